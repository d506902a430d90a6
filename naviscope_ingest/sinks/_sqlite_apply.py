"""Writes entries through a connection that is in a transaction, and finds the culprits when that fails.

The fast way runs all ops in their order, equal neighbours in one call. Only if that raises, the entries are tried again
one by one, each in a savepoint, to learn which of them are to blame. SQL that users wrote runs under an authorizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import length_hint
from typing import Any, Final, Protocol

import apsw

from naviscope_ingest.sinks.sql_ops import Delete, Execute, Insert, SqlOp, Upsert, is_reserved
from naviscope_spi import Entry, Permanent, SinkRejected

__all__ = ["RunsSql", "TransactionLost", "Writer", "is_about_the_system"]

_SYSTEM: Final = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.ProtocolError,
    apsw.InterruptError,
    apsw.SchemaChangeError,
    apsw.FullError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.NoMemError,
    apsw.MisuseError,
    apsw.InternalError,
    apsw.ThreadingViolationError,
    apsw.ConnectionClosedError,
    MemoryError,
)
"""Errors of the disk, of other users of the file, or of ours: never of an entry."""

_PERMITTED: Final = frozenset(
    {
        apsw.SQLITE_SELECT,
        apsw.SQLITE_READ,
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_FUNCTION,
        apsw.SQLITE_RECURSIVE,
    }
)
_OPS: Final = (Insert, Upsert, Delete, Execute)
_VETTED: Final = 1_000


class RunsSql(Protocol):
    """The transaction of a store that guards it."""

    def execute(self, sql: str, bindings: Any = ..., /) -> Iterable[Any]:  # noqa: ANN401 - as the driver binds them
        """Run a statement and return its rows."""
        ...

    def executemany(self, sql: str, bindings: Iterable[Any], /) -> Iterable[Any] | None:
        """Run a statement once for each of the bindings."""
        ...


class TransactionLost(Exception):  # noqa: N818 - a fact about the transaction
    """An op rolled the whole transaction back (`ROLLBACK` as conflict clause, or raised by a trigger)."""


def is_about_the_system(error: BaseException) -> bool:
    """Say whether an error is no entry's fault."""
    return isinstance(error, _SYSTEM) or not isinstance(error, Exception)


class Writer:
    """Applies entries to one database. Used by one thread at a time."""

    def __init__(self) -> None:
        # The SQL of users that passed the authorizer. What it may do cannot change: it cannot change the schema.
        self._vetted: set[str] = set()

    def write(self, connection: apsw.Connection, entries: Sequence[Entry[SqlOp]]) -> None:
        """Apply all ops in order. If it raises, some may be applied: roll back."""
        reader = _Reader()
        for run in reader.runs(entries):
            is_new = run.is_own and run.sql not in self._vetted
            if is_new:
                self._vet(connection, run.sql, run.bindings[0])
            reader.do(connection, run, int(is_new))
        if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            # It would fail at COMMIT, when nobody can tell any more whose it is.
            raise Permanent("FOREIGN KEY constraint failed: the row that is referred to does not exist")

    def blame(
        self, connection: apsw.Connection, entries: Sequence[Entry[SqlOp]], renew: Callable[[], None]
    ) -> dict[str, BaseException]:
        """Apply entries one by one and return the errors of those that cannot be; the others stay applied.

        Args:
            connection: in a transaction in which none of them is applied.
            entries: what raised as a whole.
            renew: begins another transaction when an op has rolled this one back.
        """
        errors: dict[str, BaseException] = {}
        for entry in entries:
            connection.execute("SAVEPOINT naviscope_entry")
            try:
                self.write(connection, [entry])
            except BaseException as error:
                if is_about_the_system(error):
                    raise
                errors[entry.task_key] = _explained(error)
                if not connection.in_transaction:
                    renew()
                    continue
                connection.execute("ROLLBACK TO naviscope_entry")
            connection.execute("RELEASE naviscope_entry")
        return errors

    def write_inside(self, transaction: RunsSql | apsw.Connection, entries: Sequence[Entry[SqlOp]]) -> None:
        """Apply entries inside a transaction of somebody else, all or none of them.

        A bare connection has savepoints, so every culprit is found. A store that guards its transaction undoes all of
        it when this raises; then the culprit is the one at which it stopped, and the next is found the next time.

        Raises:
            SinkRejected: these cannot be applied; none is.
            TransactionLost: one of them rolled everything back; which one is not known.
        """
        if isinstance(transaction, apsw.Connection):
            self._write_with_savepoints(transaction, entries)
            return
        reader = _Reader()
        try:
            for run in reader.runs(entries):
                reader.do(transaction, run)
        except Exception as error:
            if is_about_the_system(error) or reader.at is None:
                raise
            raise SinkRejected({reader.at.task_key: _explained(error)}) from error

    def _write_with_savepoints(self, connection: apsw.Connection, entries: Sequence[Entry[SqlOp]]) -> None:
        connection.execute("SAVEPOINT naviscope_sink")
        try:
            try:
                self.write(connection, entries)
            except BaseException as error:
                if is_about_the_system(error):
                    raise
                self._blame_inside(connection, entries, error)
        except BaseException:
            # After an error of the disk there may be no transaction left; that is for its owner to see.
            if connection.in_transaction:
                connection.execute("ROLLBACK TO naviscope_sink")
                connection.execute("RELEASE naviscope_sink")
            raise
        connection.execute("RELEASE naviscope_sink")

    def _blame_inside(self, connection: apsw.Connection, entries: Sequence[Entry[SqlOp]], error: BaseException) -> None:
        def lost() -> None:
            raise TransactionLost("an op rolled the transaction of the store back: use no ROLLBACK in SQL") from error

        if not connection.in_transaction:
            if len(entries) == 1:
                raise SinkRejected({entries[0].task_key: _explained(error)}) from error
            lost()
        connection.execute("ROLLBACK TO naviscope_sink")
        errors = self.blame(connection, entries, lost)
        if errors:
            raise SinkRejected(errors) from error

    def _vet(self, connection: apsw.Connection, sql: str, parameters: Any) -> None:  # noqa: ANN401 - as bound
        """Run SQL of a user for the first time, under the authorizer."""
        before = connection.authorizer
        reasons: list[str] = []

        def permits(action: int, first: str | None, second: str | None, *more: str | None) -> int:
            # Reads and changes name their table first, a function nothing. Full-text search asks for the data version.
            if action in _PERMITTED and not (first and _is_ours(first)):
                return apsw.SQLITE_OK
            if action == apsw.SQLITE_PRAGMA and first == "data_version":
                return apsw.SQLITE_OK
            reasons.append(f"table {first!r} is not yours" if action in _PERMITTED else "it does more than that")
            return apsw.SQLITE_DENY

        connection.authorizer = permits
        try:
            for _ in connection.execute(sql, parameters):
                pass
        except (apsw.AuthError, apsw.SQLError) as error:
            if not reasons:
                raise
            raise Permanent(f"Execute may only read and change rows of your tables: {reasons[0]}") from error
        finally:
            connection.authorizer = before
        if len(self._vetted) >= _VETTED:
            self._vetted.clear()
        self._vetted.add(sql)


def _is_ours(table: str) -> bool:
    return is_reserved(table) and not table.lower().startswith("sqlite_")


class _Run:
    """Neighbours that use the same statement.

    Attributes:
        sql: the statement.
        is_own: whether a user wrote it.
        bindings: what is bound to it, each time.
        entries: whose that is.
    """

    __slots__ = ("bindings", "entries", "is_own", "sql")

    def __init__(self, sql: str, *, is_own: bool) -> None:
        self.sql = sql
        self.is_own = is_own
        self.bindings: list[Any] = []
        self.entries: list[Entry[SqlOp]] = []


class _Reader:
    """Reads the ops of entries, and knows at which entry it is.

    Attributes:
        at: the entry whose op was read or run last.
    """

    def __init__(self) -> None:
        self.at: Entry[SqlOp] | None = None

    def runs(self, entries: Sequence[Entry[SqlOp]]) -> Iterator[_Run]:
        """Yield each statement with what is bound to it by all neighbours that use it."""
        run: _Run | None = None
        # Most ops insert into the table of their neighbour: those are told by table and columns, and not by their SQL.
        table: str | None = None
        columns: tuple[str, ...] = ()
        for entry in entries:
            self.at = entry
            for op in entry.ops:
                if type(op) is Insert and op.table == table and tuple(op.row) == columns:
                    assert run is not None
                    run.bindings.append(tuple(op.row.values()))
                    run.entries.append(entry)
                    continue
                if not isinstance(op, _OPS):
                    raise Permanent(f"op {op!r:.80}: SqliteSink takes Insert, Upsert, Delete and Execute")
                sql, parameters = op.statement()
                if run is None or sql != run.sql:
                    if run is not None:
                        yield run
                        self.at = entry
                    run = _Run(sql, is_own=type(op) is Execute)
                    table, columns = (op.table, tuple(op.row)) if type(op) is Insert else (None, ())
                run.bindings.append(parameters)
                run.entries.append(entry)
        if run is not None:
            yield run

    def do(self, connection: RunsSql | apsw.Connection, run: _Run, start: int = 0) -> None:
        """Run one text with each of the parameters, to the last row."""
        bindings = run.bindings[start:] if start else run.bindings
        if len(bindings) > 1:
            left = iter(bindings)
            try:
                # A guarded transaction answers None.
                for _ in connection.executemany(run.sql, left) or ():
                    pass
            finally:
                # The driver takes the next parameters when it is done with the last.
                self.at = run.entries[start + max(len(bindings) - length_hint(left), 1) - 1]
        elif bindings:
            self.at = run.entries[-1]
            for _ in connection.execute(run.sql, bindings[0]):
                pass


def _explained(error: BaseException) -> BaseException:
    """Return the error as the sink's own: a driver's exceptions end here."""
    if isinstance(error, Permanent):
        return error
    if isinstance(error, apsw.AuthError):
        explained = Permanent(f"ops may only read and change rows of your tables: {error}")
    else:
        explained = Permanent(f"{type(error).__name__}: {error}")
    explained.__cause__ = error
    return explained
