"""What a colocated sink gets: statements inside the store's own transaction, and nothing that could break it.

The sink's statements are compiled under an authorizer: no transaction control, no ATTACH, no PRAGMA, none of our
tables. It is asked when a statement is compiled. Ours are compiled too, so it has to know whose turn it is; and the
sink's begin with a comment, so that they are never taken for one of ours that was compiled before.

What it cannot see are statements that end the transaction by an error: a trigger of the user's with
`raise(rollback, …)`, a constraint with `on conflict rollback`. So this is looked for after every error, and nothing
runs afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import apsw

__all__ = ["Authorizer", "GuestError", "Transaction", "TransactionEnded"]

Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any]

OUR_TABLES = frozenset(
    (
        "state",
        "sums",
        "codecs",
        "epochs",
        "messages",
        "stages",
        "staged",
        "ends",
        "progress",
        "claims",
        "resources",
        "records",
        "pruned",
    )
)
OUR_PREFIX = "naviscope_"
"""How tables of ours are called that later formats bring: no user has one of that name."""

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
# Errors that leave no trust in the transaction: those are the store's.
_OURS = (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NoMemError, apsw.NotADBError, apsw.InterruptError)


class GuestError(Exception):
    """What a sink raised; the cause is the error itself."""


class TransactionEnded(GuestError):  # noqa: N818 - a fact about the transaction
    """What a sink raised, after one of its statements ended the transaction for all who share it."""


class Authorizer:
    """Says what a statement may do, by whose it is."""

    def __init__(self) -> None:
        self._is_guest = False

    def __call__(self, action: int, one: str | None, two: str | None, database: str | None, by: str | None) -> int:
        """Answer SQLite."""
        if not self._is_guest:
            return apsw.SQLITE_OK
        table = two if action in _SECOND else one
        if action in _REFUSED or (table is not None and action != apsw.SQLITE_FUNCTION and _is_ours(table.lower())):
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


def _is_ours(table: str) -> bool:
    return table in OUR_TABLES or table.startswith(OUR_PREFIX)


class Transaction:
    """The store's transaction, as a sink sees it. It is of use only while `apply` runs."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection: apsw.Connection | None = connection
        self._trouble: apsw.Error | None = None

    def execute(self, sql: str, bindings: Bindings = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        connection = self._mine()
        try:
            return connection.execute(f"/* sink */ {sql}", bindings).fetchall()
        except apsw.Error as exc:
            self._note(connection, exc)
            raise

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> None:
        """Run a statement once for each of the bindings."""
        connection = self._mine()
        try:
            connection.executemany(f"/* sink */ {sql}", bindings).fetchall()
        except apsw.Error as exc:
            self._note(connection, exc)
            raise

    def _mine(self) -> apsw.Connection:
        if self._connection is None:
            raise RuntimeError("the transaction is over: it is of use only while apply runs")
        if self._trouble is not None:
            raise RuntimeError(f"the transaction is over, by an earlier error: {self._trouble}")
        return self._connection

    def _note(self, connection: apsw.Connection, exc: apsw.Error) -> None:
        if isinstance(exc, _OURS) or not connection.in_transaction:
            self._trouble = exc

    def run(self, apply: Callable[[Any], None], authorizer: Authorizer) -> None:
        """Let a sink write, then close the door.

        Raises:
            GuestError: it raised; nothing is wrong with the transaction.
            TransactionEnded: there is no transaction any more.
        """
        error: Exception | None = None
        try:
            with authorizer.guest():
                apply(self)
        except Exception as exc:
            error = exc
        finally:
            self._connection = None
        trouble = self._trouble
        if isinstance(trouble, _OURS):
            raise trouble
        if trouble is not None:
            raise TransactionEnded(str(trouble)) from (error or trouble)
        if error is not None:
            raise GuestError(str(error)) from error
