"""A SQLite file of a sink's own: one connection, used by one thread at a time.

How it is written follows from what crashes and faults do to a file. FULL sync in WAL mode, or a power cut takes back
what was acknowledged. Checkpoints never run inside COMMIT, or COMMIT can raise although it happened. After an error of
the disk the connection is closed and the file opened again: going on with the same one can lose a later commit. A log
that is found is written anew before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import apsw

from naviscope_ingest._sqlite_log import has_log, rewrite_log
from naviscope_ingest.sinks._sqlite_apply import Writer, is_about_the_system
from naviscope_ingest.sinks._sqlite_schema import Schema
from naviscope_ingest.sinks.ledger import Ledger
from naviscope_ingest.sinks.sql_ops import SqlOp
from naviscope_spi import Entry, SinkRejected, SystemFailure, Transient

__all__ = ["SqliteFile"]

_PAGES_BETWEEN_CHECKPOINTS: Final = 1_000
# If readers keep the log from being started anew for this long, wait for them.
_PAGES_TOO_MANY: Final = 20_000

_MAY_PASS: Final = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.ProtocolError,
    apsw.InterruptError,
    apsw.SchemaChangeError,
    apsw.FullError,
    apsw.IOError,
)


class SqliteFile:
    """The file, opened when it is first needed and again after a failure.

    Args:
        path: where it is; created if there is none.
        schema: the user's tables.
        ledger: the entries that were applied.
        busy_timeout: seconds to wait for other users of the file.
        vfs: another VFS than the system's. The file is then locked for others, as a VFS may lack shared memory.
    """

    def __init__(self, path: str, schema: Schema, ledger: Ledger, *, busy_timeout: float, vfs: str | None) -> None:
        self.path = path
        self._schema = schema
        self._ledger = ledger
        self._busy_timeout = busy_timeout
        self._vfs = vfs
        self._connection: apsw.Connection | None = None
        self._writer = Writer()
        self._pages = 0
        self._next_checkpoint = _PAGES_BETWEEN_CHECKPOINTS

    def open(self) -> None:
        """Open the file, if it is not open, and bring in what is missing."""
        try:
            self._opened()
        except (apsw.Error, MemoryError) as error:
            raise self._translated(error) from error

    def commit(self, entries: Sequence[Entry[SqlOp]]) -> None:
        """Apply the entries that are new in one transaction.

        Raises:
            SinkRejected: these can never be applied; nothing was.
            Transient: busy, full, or an error of the disk.
            SystemFailure: it is not a database, damaged, or may not be written.
        """
        try:
            connection = self._opened()
            with _transaction(connection):
                self._apply(connection, entries)
        except (apsw.Error, MemoryError) as error:
            raise self._translated(error) from error
        self._checkpoint_if_due(connection)

    def prune(self, before_epoch: int, store_id: str, limit: int) -> int:
        """Forget the ledger's rows of old epochs."""
        try:
            connection = self._opened()
            with _transaction(connection):
                pruned = self._ledger.prune(connection, before_epoch, store_id=store_id, limit=limit)
        except (apsw.Error, MemoryError) as error:
            raise self._translated(error) from error
        self._checkpoint_if_due(connection)
        return pruned

    def close(self) -> None:
        """Close the file. The last to close it moves the log into it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(True)

    def _apply(self, connection: apsw.Connection, entries: Sequence[Entry[SqlOp]]) -> None:
        try:
            self._writer.write(connection, self._ledger.claim(connection, entries))
        except BaseException as error:
            if is_about_the_system(error):
                raise
            self._blame(connection, entries, error)

    def _blame(self, connection: apsw.Connection, entries: Sequence[Entry[SqlOp]], error: BaseException) -> None:
        """Begin again and apply entry by entry; raise if one is to blame."""

        def renew() -> None:
            connection.execute("BEGIN IMMEDIATE")

        if connection.in_transaction:
            connection.execute("ROLLBACK")
        renew()
        errors = self._writer.blame(connection, self._ledger.claim(connection, entries), renew)
        if errors:
            raise SinkRejected(errors) from error

    def _opened(self) -> apsw.Connection:
        if self._connection is None:
            if has_log(self.path, self._vfs):
                rewrite_log(self._connect(), self._vfs)
            connection = self._connect()
            try:
                self._prepare(connection)
            except BaseException:
                connection.close(True)
                raise
            self._connection = connection
        return self._connection

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, vfs=self._vfs)
        connection.set_busy_timeout(round(self._busy_timeout * 1_000))
        if self._vfs is not None:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        return connection

    def _prepare(self, connection: apsw.Connection) -> None:
        self._set(connection, "synchronous", "FULL", 2)
        self._set(connection, "journal_mode", "WAL", "wal")
        self._set(connection, "wal_autocheckpoint", "0", 0)
        self._set(connection, "foreign_keys", "ON", 1)
        # After an error the answer "wal" may be wrong; without a log this says -1.
        if connection.wal_checkpoint()[0] < 0:
            raise apsw.IOError(f"{self.path} is not in WAL mode")
        connection.set_wal_hook(self._note_pages)
        self._next_checkpoint = _PAGES_BETWEEN_CHECKPOINTS
        with _transaction(connection):
            connection.execute(f"{self._ledger.schema} WITHOUT ROWID")
            self._schema.check(connection)
            self._schema.ensure(connection)

    def _set(self, connection: apsw.Connection, name: str, value: str, expected: Any) -> None:  # noqa: ANN401
        connection.execute(f"PRAGMA {name} = {value}").fetchall()
        answer = connection.execute(f"PRAGMA {name}").fetchall()
        if answer != [(expected,)]:
            raise apsw.IOError(f"PRAGMA {name} is {answer}, not {expected}")

    def _note_pages(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_if_due(self, connection: apsw.Connection) -> None:
        """Move the log into the file now and then. The commit before it stands, whatever comes of this."""
        if self._pages < self._next_checkpoint:
            return
        mode = apsw.SQLITE_CHECKPOINT_PASSIVE if self._pages < _PAGES_TOO_MANY else apsw.SQLITE_CHECKPOINT_RESTART
        try:
            in_log, moved = connection.wal_checkpoint(mode=mode)
        except (apsw.BusyError, apsw.LockedError):
            in_log, moved = self._pages, 0
        except apsw.Error:
            self.close()
            return
        # What was moved is written over by the next commit, and counting starts anew.
        self._next_checkpoint = _PAGES_BETWEEN_CHECKPOINTS + (0 if in_log == moved else in_log)

    def _translated(self, error: BaseException) -> Exception:
        """Return what an error of the driver means for the runtime. What may pass by itself is tried again."""
        if not isinstance(error, apsw.BusyError | apsw.LockedError):
            self.close()
        text = f"{self.path}: {type(error).__name__}: {error}"
        return Transient(text) if isinstance(error, _MAY_PASS) else SystemFailure(text)


@contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    """Commit at the end, or roll back what is left to roll back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
