"""The format of the file: its number, the scripts that make it, and how an older file is upgraded.

Script N turns format N - 1 into N. A new file runs them all, an older one those it lacks, in one transaction: a crash
in the middle leaves the file as it was. A script is never changed once it was released; files of every older format are
kept with the tests, and upgraded by them.

Scripts may call functions of ours: the hash of a row, the sum of hashes, and one that refuses a damaged row. The names
have a number, because a script goes on meaning what it meant when a later format hashes in another way. Rejected:
upgrades in Python, which use the classes of today to write rows of yesterday.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, NoReturn

import apsw

from naviscope_ingest.stores.sqlite.errors import NewerFormat, NotAStore, OlderFormat, StoreCorrupt
from naviscope_ingest.stores.sqlite.marks import commit_mark, mark_of, sum_as_bytes
from naviscope_ingest.stores.sqlite.queries import fetch

__all__ = ["APPLICATION_ID", "find_format", "load_scripts", "upgrade"]

APPLICATION_ID = 0x4E565331
"""What tells our files from other SQLite files: "NVS1"."""


def load_scripts() -> Sequence[str]:
    """Return the scripts of all formats, in order."""
    folder = files("naviscope_ingest.stores.sqlite").joinpath("schema")
    names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql"))
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in names]


def upgrade(connection: apsw.Connection, path: str, scripts: Sequence[str], *, is_writable: bool) -> int | None:
    """Bring a file to the format of the last script; return the format it had, or None if it was new.

    Raises:
        NotAStore: it is a database of somebody else.
        NewerFormat: it was written by a later version.
        OlderFormat: it has to be upgraded, and is only read.
        StoreCorrupt: a row that has to be written anew is damaged.
    """
    found = find_format(connection, path, scripts)
    if found == len(scripts):
        return found
    if not is_writable:
        raise OlderFormat(path, found or 0, len(scripts))
    with _functions(connection, path):
        _upgrade(connection, scripts, found or 0)
    return found


def _upgrade(connection: apsw.Connection, scripts: Sequence[str], found: int) -> None:
    # A table that is written anew is named as the old one was. The views and triggers of users are not looked at then.
    connection.config(apsw.SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, 1)
    connection.execute("begin immediate")
    try:
        for script in scripts[found:]:
            connection.execute(script).fetchall()
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute(f"pragma user_version = {len(scripts)}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, 0)


@contextmanager
def _functions(connection: apsw.Connection, path: str) -> Iterator[None]:
    """Let scripts call functions of ours, and nobody else."""

    def damaged(what: Any) -> NoReturn:  # noqa: ANN401 - what SQLite has
        raise StoreCorrupt(f"{path}: {what} does not match its hash, and is not upgraded: restore a backup")

    scalars: dict[str, Callable[..., int]] = {"hash_1": mark_of, "commit_hash_1": commit_mark, "damaged": damaged}
    for name, function in scalars.items():
        connection.create_scalar_function(name, function, deterministic=True)
    connection.create_aggregate_function("sum_1", _Sum, 1)
    try:
        yield
    finally:
        for name in scalars:
            connection.create_scalar_function(name, None)
        connection.create_aggregate_function("sum_1", None, 1)


class _Sum:
    """The sum of the hashes of a table, as `sums` has it."""

    def __init__(self) -> None:
        self._total = 0

    def step(self, *marks: Any) -> None:  # noqa: ANN401 - what SQLite has
        """Add a hash."""
        self._total += sum(marks)

    def final(self) -> bytes:
        """Return the sum."""
        return sum_as_bytes(self._total)


def find_format(connection: apsw.Connection, path: str, scripts: Sequence[str]) -> int | None:
    """Return the format of a file, or None if it is empty.

    Raises:
        NotAStore: it is a database of somebody else.
        NewerFormat: it was written by a later version.
    """
    application = connection.pragma("application_id")
    if application == APPLICATION_ID:
        version = connection.pragma("user_version")
        assert isinstance(version, int)
        if version > len(scripts):
            raise NewerFormat(path, version, len(scripts))
        return version
    if application == 0 and not fetch(connection, "select 1 from sqlite_schema limit 1"):
        return None
    raise NotAStore(f"{path} is a database of another program (application_id {application}): take another file")
