"""What a colocated sink gets: statements inside the store's own transaction, and nothing that could break it.

The sink's statements are compiled under an authorizer: no transaction control, no ATTACH, no PRAGMA, none of our
tables. It is asked when a statement is compiled. Ours are compiled too, so it has to know whose turn it is; and the
sink's begin with a comment, so that they are never taken for one of ours that was compiled before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import apsw

__all__ = ["Authorizer", "GuestError", "Transaction"]

Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any]

OUR_TABLES = frozenset(
    (
        "state",
        "sums",
        "codecs",
        "epochs",
        "messages",
        "staged",
        "ends",
        "progress",
        "claims",
        "resources",
        "records",
        "pruned",
    )
)
_REFUSED = frozenset(
    (
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
    )
)
# Which of the arguments names a table, where it is not the first.
_SECOND = frozenset(
    (
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TRIGGER,
    )
)
# Errors that roll the whole transaction back, or leave no trust in it: those are the store's.
_OURS = (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NoMemError, apsw.NotADBError, apsw.InterruptError)


class GuestError(Exception):
    """What a sink raised; the cause is the error itself."""


class Authorizer:
    """Says what a statement may do, by whose it is."""

    def __init__(self) -> None:
        self._is_guest = False

    def __call__(self, action: int, one: str | None, two: str | None, database: str | None, by: str | None) -> int:
        """Answer SQLite."""
        if not self._is_guest:
            return apsw.SQLITE_OK
        table = two if action in _SECOND else one
        if action in _REFUSED or (table is not None and table.lower() in OUR_TABLES and action != apsw.SQLITE_FUNCTION):
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK

    @contextmanager
    def guest(self) -> Iterator[None]:
        """Treat statements as those of a guest, for as long as the block lasts."""
        self._is_guest = True
        try:
            yield
        finally:
            self._is_guest = False


class Transaction:
    """The store's transaction, as a sink sees it. It is of use only while `apply` runs."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection: apsw.Connection | None = connection

    def execute(self, sql: str, bindings: Bindings = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        return self._mine().execute(f"/* sink */ {sql}", bindings).fetchall()

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> None:
        """Run a statement once for each of the bindings."""
        self._mine().executemany(f"/* sink */ {sql}", bindings).fetchall()

    def _mine(self) -> apsw.Connection:
        if self._connection is None:
            raise RuntimeError("the transaction is over: it is of use only while apply runs")
        return self._connection

    def run(self, apply: Callable[[Any], None], authorizer: Authorizer) -> None:
        """Let a sink write, then close the door.

        Raises:
            GuestError: it raised; nothing is wrong with the transaction.
        """
        connection = self._mine()
        try:
            with authorizer.guest():
                apply(self)
        except _OURS:
            raise
        except Exception as exc:
            # Some errors end the transaction whole (`raise(rollback, …)` in a trigger, for one): then it is no longer
            # the sink's alone.
            if not connection.in_transaction:
                raise apsw.AbortError(f"the sink's error ended the transaction: {exc}") from exc
            raise GuestError(str(exc)) from exc
        finally:
            self._connection = None
