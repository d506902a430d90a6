"""A sink that writes tables of SQLite: in a file of its own, or in the store's file with the settlement."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Final

import trio

from naviscope_ingest.sinks._sql_encoding import decode_sql_ops, encode_sql_ops
from naviscope_ingest.sinks._sqlite_apply import Writer
from naviscope_ingest.sinks._sqlite_file import SqliteFile
from naviscope_ingest.sinks._sqlite_schema import Schema
from naviscope_ingest.sinks.ledger import Ledger
from naviscope_ingest.sinks.sql_ops import SqlOp
from naviscope_spi import CommitBatch, SystemFailure

__all__ = ["SqliteSink"]

COLOCATION: Final = "sqlite"


class SqliteSink:
    """Applies `Insert`, `Upsert`, `Delete` and `Execute` to tables of SQLite, each entry once.

    With a path it has a file of its own, in which a ledger tells what was applied; a durable store records outcomes
    before they come here, so that after a crash the same ones come again. Without one it writes into the file of the
    store, inside the transaction that settles the messages: there is no moment between effect and settlement. That
    needs a store whose `info.colocation` is "sqlite".

    A refused op (a constraint, an unknown table or column, a value that cannot be bound) ends its own message. A file
    that is busy, a full disk and an error of the disk are tried again; a file that is damaged, no database or not
    writable stops the runtime.

    Args:
        path: the file; None for the store's own.
        schema: CREATE statements for the tables. What exists is left alone, so there is no need for IF NOT EXISTS.
        sink_id: tells sinks that share a file apart in its ledger.
        busy_timeout: seconds to wait for other users of the file.
        vfs: the name of an SQLite VFS, for a simulated disk. The file is then locked for others.

    Attributes:
        colocation: "sqlite" on a sink without a path. A sink with a path has no such attribute, so it is no
            `AppliesInside`.

    Raises:
        ValueError: the schema is not SQL, does more than create, or uses names that are reserved.
    """

    colocation: str

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        schema: str = "",
        *,
        sink_id: str = "sink",
        busy_timeout: float = 5.0,
        vfs: str | None = None,
    ) -> None:
        self._schema = Schema(schema)
        self._file: SqliteFile | None = None
        if path is None:
            self.colocation = COLOCATION
        else:
            if not fspath(path):
                raise ValueError("SqliteSink(path=''): name a file, or None for tables in the store's own")
            ledger = Ledger(sink_id)
            self._file = SqliteFile(fspath(path), self._schema, ledger, busy_timeout=busy_timeout, vfs=vfs)
        self._writer = Writer()
        # Whether the tables of the store's file were compared with the schema. One runtime has one store.
        self._is_checked = False
        # One connection, one thread at a time; not trio's own limiter, which others may hold.
        self._limiter = trio.CapacityLimiter(1)

    def __repr__(self) -> str:
        return f"SqliteSink({self._file.path if self._file else None!r})"

    async def __aenter__(self) -> SqliteSink:
        """Open the file now, so that what is wrong with it is seen before any work."""
        if self._file is not None:
            await trio.to_thread.run_sync(self._file.open, limiter=self._limiter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the file. A later commit opens it again."""
        if self._file is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._file.close, limiter=self._limiter)

    async def commit(self, batch: CommitBatch[SqlOp]) -> None:
        """Apply the entries that are new in one transaction of the sink's own file.

        Calls may overlap; they wait for each other. Cancelled before it starts, nothing is applied; a transaction that
        has begun is finished.

        Raises:
            SinkRejected: these entries can never be applied; nothing of the batch was.
            Transient: busy, disk full or a disk error; the batch may be applied, and the ledger knows.
            SystemFailure: the file is damaged, no database or not writable; or the sink has no path and the store
                cannot take it in.
        """
        if self._file is None:
            raise SystemFailure(
                "SqliteSink() without a path writes inside the transactions of a SQLite store, and this store has none "
                'for it: use a store at "sqlite:///…", or give the sink a file of its own with SqliteSink("results.db")'
            )
        if batch.entries:
            await trio.to_thread.run_sync(self._file.commit, batch.entries, limiter=self._limiter)
        else:
            await trio.lowlevel.checkpoint()

    def apply(self, transaction: Any, batch: CommitBatch[SqlOp]) -> None:  # noqa: ANN401 - the contract's type
        """Apply every entry inside the store's transaction, on the store's thread.

        The transaction is a connection of apsw, or what a store makes of one: `execute` and `executemany`.

        No ledger is kept: an entry is settled with its effect, so it cannot come again.

        Raises:
            SinkRejected: these entries can never be applied; nothing of the batch was.
        """
        if not self._is_checked:
            self._schema.check(transaction)
            self._is_checked = True
        self._schema.ensure(transaction)
        if batch.entries:
            self._writer.write_inside(transaction, batch.entries)

    def encode_ops(self, ops: Sequence[SqlOp]) -> bytes:
        """Return the ops of one message as MessagePack.

        Raises:
            InvalidOp: one of them is no op for tables, or holds a value that no column takes.
        """
        return encode_sql_ops(ops)

    def decode_ops(self, data: bytes) -> Sequence[SqlOp]:
        """Return the ops that these bytes stand for.

        Raises:
            InvalidOp: they stand for none.
        """
        return decode_sql_ops(data)

    async def prune_ledger(self, before_epoch: int, *, store_id: str, limit: int = 10_000) -> int:
        """Forget what was applied for epochs of a store with a lower number, at most `limit` entries.

        Only epochs that the store has forgotten may go: the entries of others can come again. A sink without a path
        has no ledger, and nothing to forget.

        Args:
            before_epoch: the lowest number to keep.
            store_id: which store (`StoreInfo.store_id`); several may share a sink.
            limit: the most to forget in one transaction.

        Returns:
            How many entries were forgotten; as many as the limit means that there may be more.
        """
        if self._file is None:
            return 0
        return await trio.to_thread.run_sync(self._file.prune, before_epoch, store_id, limit, limiter=self._limiter)
