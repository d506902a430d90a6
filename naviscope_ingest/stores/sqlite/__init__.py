"""A durable store in one SQLite file.

The modules, from the bottom: errors, lockfile, schema and database are about the file; marks and rows about
columns; entries, stages and ledger are what the writer knows; steps, settlement and retention change it; recovery and
verification read it; backup copies it; transaction is for sinks in the same file; feed is for readers of facts; writer
runs it all, on a thread or inline; store is what callers hold.
"""

from contextlib import AbstractAsyncContextManager
from typing import Any

from naviscope_ingest.stores.sqlite.errors import (
    BackupFailed,
    NewerFormat,
    NotAStore,
    OlderFormat,
    StoreClosed,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)
from naviscope_ingest.stores.sqlite.store import SqliteStatistics, SqliteStore
from naviscope_ingest.stores.sqlite.transaction import Transaction
from naviscope_ingest.stores.urls import check_options

__all__ = [
    "BackupFailed",
    "NewerFormat",
    "NotAStore",
    "OlderFormat",
    "SqliteStatistics",
    "SqliteStore",
    "StoreClosed",
    "StoreCorrupt",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "StoreUnavailable",
    "Transaction",
    "open_sqlite",
]


def open_sqlite(place: str, **options: Any) -> AbstractAsyncContextManager[SqliteStore[Any]]:  # noqa: ANN401 - as of open
    """Open the file that a URL names: `sqlite:///relative.db`, `sqlite:////absolute.db`.

    Args:
        place: the URL without its scheme and colon.
        **options: as of `SqliteStore.open`.

    Raises:
        ValueError: the URL has a host, or no path.
        UnknownOption: there is no such option.
    """
    if not place.startswith("///") or len(place) == 3:
        raise ValueError(f"sqlite:{place}: write sqlite:///relative.db for a file here, or sqlite:////absolute/path.db")
    check_options("sqlite:", options, SqliteStore.open)
    return SqliteStore.open(place[3:], **options)
