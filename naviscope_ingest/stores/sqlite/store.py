"""The durable store: one SQLite file, one writer."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import apsw
import trio
from attrs import frozen

from naviscope_ingest._encoding import Content, Scribe
from naviscope_ingest.codecs import MsgspecCodec
from naviscope_ingest.stores.sqlite import steps
from naviscope_ingest.stores.sqlite.backup import Copy
from naviscope_ingest.stores.sqlite.database import Database
from naviscope_ingest.stores.sqlite.errors import NOT_UNDERSTOOD, StoreReadOnly, corrupt, translated
from naviscope_ingest.stores.sqlite.feed import Feed, Reader, Start
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.letters import letter, letters
from naviscope_ingest.stores.sqlite.lockfile import LockFile
from naviscope_ingest.stores.sqlite.puts import Put
from naviscope_ingest.stores.sqlite.recovery import recovery
from naviscope_ingest.stores.sqlite.retention import prune
from naviscope_ingest.stores.sqlite.settlement import settle
from naviscope_ingest.stores.sqlite.transaction import Authorizer, Transaction
from naviscope_ingest.stores.sqlite.uniques import put_unique
from naviscope_ingest.stores.sqlite.verification import verification
from naviscope_ingest.stores.sqlite.writer import InlineRunner, ThreadRunner
from naviscope_spi import (
    Clock,
    EpochKey,
    EpochOptions,
    EpochRecord,
    Fact,
    KeptLetter,
    Lease,
    Message,
    PartlyRefused,
    PayloadCodec,
    Position,
    PutReceipt,
    Resource,
    Seq,
    Session,
    Settled,
    Settlement,
    StoreFailed,
    StoreInfo,
    check_name,
)

__all__ = ["MAX_PAYLOAD", "MAX_RECENT", "RETAIN", "SqliteStatistics", "SqliteStore"]

P = TypeVar("P")

MAX_PAYLOAD = 16 * 1024 * 1024
"""The largest payload unless another limit is given, in bytes."""

MAX_RECENT = 32 * 1024 * 1024
"""How many bytes of messages that were put lately are kept in memory unless another limit is given."""

RETAIN = 7 * 24 * 3600.0
"""How long ids and report of a completed epoch are kept unless it says otherwise, in seconds."""


@frozen
class SqliteStatistics:
    """What the writer has done.

    Attributes:
        commits: how many groups were committed.
        wal_pages: how many pages the log has.
        leases: how many messages are leased.
    """

    commits: int
    wal_pages: int
    leases: int


class SqliteStore(Generic[P]):
    """Keeps everything in one SQLite file, safe against power cuts. One process at a time, one session at a time.

    Open one with `async with SqliteStore.open("ingest.db") as store`. Async methods can be cancelled until they are
    queued for the writer; from then on they happen whole, and are waited for.

    What `pop_ready` notes survives the process, so that a message which brings it down is found out. It has no sync of
    its own, so a power cut may take it.

    While it is open, do not open the file with the standard library's `sqlite3` in the same process. That is another
    copy of SQLite, and closing the file in one drops the locks of the other, so that the file can be damaged. `apsw` is
    what this store uses, and may be used beside it.
    """

    def __init__(self, ledger: Ledger, runner: Literal["thread", "inline"], retain: float) -> None:
        self._ledger = ledger
        self._retain = retain
        self._feed = Feed()
        ledger.hears = lambda: self._feed.is_heard
        self._authorizer = Authorizer()
        self._runner = (ThreadRunner if runner == "thread" else InlineRunner)(ledger, self._feed)
        self._info: StoreInfo | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        codec: PayloadCodec | None = None,
        clock: Clock | None = None,
        vfs: str | None = None,
        runner: Literal["thread", "inline"] = "thread",
        read_only: bool = False,
        max_payload: int = MAX_PAYLOAD,
        max_recent: int = MAX_RECENT,
        retain: float = RETAIN,
        store_id: str | None = None,
        who: str = "naviscope-ingest",
    ) -> AsyncIterator[SqliteStore[Any]]:
        """Open a file for as long as the block lasts, making it if there is none.

        Args:
            path: the file. Its log and its lock stand beside it.
            codec: how payloads are encoded; `MsgspecCodec()` unless another is given.
            clock: where wall-clock time comes from.
            vfs: an apsw VFS by name, for tests on a simulated disk; then no lock file is made.
            runner: "thread" for a writer of its own; "inline" runs everything where it is asked for, for simulation.
            read_only: read a file, a backup for instance; whatever would change it raises `StoreReadOnly`.
            max_payload: the largest payload, in bytes.
            max_recent: how many bytes of messages that were put lately are kept in memory too, so that they need not be
                read when they run.
            retain: seconds to keep ids and report of an epoch that completed cleanly and does not say otherwise.
            store_id: the first part of every task key, for a new file; random unless it is given.
            who: a name for people, in the lock.

        Raises:
            StoreLocked: another process has the file; the error says who.
            NotAStore: the file is something else.
            NewerFormat: a later version of the library wrote it.
            OlderFormat: an earlier version wrote it, and it is opened with `read_only`.
            StoreCorrupt: it is damaged.
            StoreUnavailable: it cannot be opened or made.
            StoreFull: the disk is full.
        """
        if store_id is not None and (not store_id or ":" in store_id):
            raise ValueError(f"store_id={store_id!r}: it is not empty and has no colon, which parts task keys")
        scribe = Scribe(MsgspecCodec() if codec is None else codec, max_payload)
        wall = time.time if clock is None else clock.wall
        database = Database(os.fspath(path), vfs, read_only)
        ledger = Ledger(database, scribe, lambda: float(wall()), store_id or secrets.token_hex(8), max_recent)
        store = cls(ledger, runner, retain)
        lock = None if read_only or vfs is not None else LockFile(Path(path), who)
        try:
            await store._start()
            try:
                yield store
            finally:
                await store._runner.stop(_close)
                store._feed.end(None)
        finally:
            if lock is not None:
                lock.release()

    async def _start(self) -> None:
        await self._runner.start(self._open)
        state = self._ledger.state
        limit = self._ledger.scribe.max_payload
        self._info = StoreInfo(state.store_id, "power", colocation="sqlite", max_payload=limit, finishes_calls=True)

    def _open(self, ledger: Ledger) -> None:
        database = ledger.database
        try:
            database.prepare = self._protect
            database.open()
            ledger.load()
            state = ledger.state
            if (state.commits == 0 or state.is_copy) and not database.read_only:
                # The first commit makes the store's id last, and that of a copy the numbers of its epochs.
                database.connection.execute("begin immediate")
                ledger.begin_group()
                ledger.go_on_from_copy()
                ledger.flush()
                database.connection.execute("commit")
        except apsw.Error as exc:
            database.close(is_clean=False)
            raise translated(exc, database.path, "opening") from exc
        except NOT_UNDERSTOOD as exc:
            database.close(is_clean=False)
            raise corrupt(exc, database.path, "opening") from exc
        except BaseException:
            database.close(is_clean=False)
            raise

    def _protect(self, connection: apsw.Connection) -> None:
        connection.authorizer = self._authorizer

    async def _write(self, work: Callable[[Ledger], Any], *, is_light: bool = False, is_quick: bool = False) -> Any:  # noqa: ANN401
        if self._ledger.database.read_only:
            raise StoreReadOnly(f"{self._ledger.database.path} was opened with read_only=True")
        return await self._runner.ask(work, is_light=is_light, is_quick=is_quick)

    async def _read(self, work: Callable[[Ledger], Any]) -> Any:  # noqa: ANN401 - what the work returns
        return await self._runner.ask(work, is_apart=True)

    @property
    def info(self) -> StoreInfo:
        """What this store is."""
        assert self._info is not None
        return self._info

    @property
    def path(self) -> str:
        """The file."""
        return self._ledger.database.path

    @property
    def codec(self) -> PayloadCodec:
        """How payloads are encoded."""
        return self._ledger.scribe.codec

    @property
    def retain(self) -> float:
        """Seconds to keep completed epochs: `prune(time.time() - store.retain, limit)` removes what is older."""
        return self._retain

    def statistics(self) -> SqliteStatistics:
        """Say what the writer has done so far."""
        return SqliteStatistics(self._runner.writer.commits, self._ledger.database.wal_pages, len(self._ledger.leases))

    @asynccontextmanager
    async def join(self, who: str, *, lead: bool = True) -> AsyncIterator[Session]:
        """Become the member of this store; whoever was it before is thought dead. Leaving cannot be cancelled."""
        session: Session = await self._write(partial(steps.enter, who=who, lead=lead))
        async with self._leaving(session):
            yield session

    @asynccontextmanager
    async def visit(self, who: str) -> AsyncIterator[Session]:
        """Become the member in place of one that died, without ending its session; or join if there is none."""
        session, is_new = await self._write(partial(steps.visit, who=who))
        async with self._leaving(session) if is_new else contextlib.nullcontext():
            yield session

    @asynccontextmanager
    async def _leaving(self, session: Session) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            # The error of the block says more than that of a store which has stopped.
            with contextlib.suppress(StoreFailed), trio.CancelScope(shield=True):
                await self._write(partial(steps.leave, session=session))
            raise
        with trio.CancelScope(shield=True):
            await self._write(partial(steps.leave, session=session))

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochRecord:
        """Open an epoch, or rejoin the kept one of that name. The options of a rejoined one stay as they were.

        Raises:
            EpochExists: `if_exists="refuse"` and the name is taken.
            InvalidMessage: the name or an option is malformed.
        """
        if name is not None:
            check_name("epoch name", name)
        record: EpochRecord = await self._write(partial(steps.open_epoch, name=name, options=options))
        return record

    async def mark_epoch(self, epoch: EpochKey, mark: Literal["seal", "cancel"]) -> EpochRecord:
        """Seal an epoch, or ask for its cancellation, which seals it too. A completed epoch stays as it is.

        Raises:
            UnknownEpoch: there is no such epoch.
        """
        record: EpochRecord = await self._write(partial(steps.mark_epoch, key=epoch, mark=mark))
        return record

    async def put(
        self, epoch: EpochKey, messages: Sequence[Message[P]], *, staged_by: Lease[P] | None = None
    ) -> PutReceipt:
        """Store messages; when it returns they survive a power cut. Payloads are compared as they come back decoded.

        Raises:
            EpochSealed: the epoch is not open and an id is unknown; nothing of this call was stored.
            UnknownEpoch: there is no such epoch.
            SessionLost: the lease of `staged_by` is not live.
            InvalidMessage: a payload cannot be encoded or is too large; nothing of this call was stored.
            ValueError: the parent in `staged_by` is of another epoch.
        """
        contents = [self._ledger.scribe.write(message) for message in messages]
        work: Callable[[Ledger], PutReceipt]
        if staged_by is None:
            work = Put(epoch, messages, contents)
        else:
            work = partial(steps.put_staged, key=epoch, contents=contents, parent=staged_by)
        receipt: PutReceipt = await self._write(work)
        return receipt

    async def put_unique(self, epoch: EpochKey, messages: Sequence[Message[P]], seconds: float) -> PutReceipt:
        """Store messages as `put` does, but for those that were accepted so in another epoch not long ago.

        What is accepted is remembered for so many seconds, by its kind and id, also over a restart.

        Raises:
            EpochSealed: the epoch is not open and a message is neither known in it nor remembered; nothing was stored.
            UnknownEpoch: there is no such epoch.
            InvalidMessage: a payload cannot be encoded or is too large; nothing of this call was stored.
        """
        contents = [self._ledger.scribe.write(message) for message in messages]
        work = partial(put_unique, key=epoch, messages=messages, contents=contents, seconds=seconds)
        receipt: PutReceipt = await self._write(work)
        return receipt

    async def pop_ready(self, session: Session, seqs: Sequence[Seq]) -> Sequence[Lease[P]]:
        """Claim messages, in the order of `seqs`. Those that ended, are leased or unknown are left out.

        Raises:
            SessionLost: the session has ended.
        """
        work = partial(steps.pop_ready, session=session, seqs=seqs)
        leases: Sequence[Lease[P]] = await self._write(work, is_light=True, is_quick=True)
        return leases

    async def settle(self, session: Session, settlement: Settlement[P]) -> Settled:
        """Apply a settlement in one atomic step; when it returns it survives a power cut.

        Raises:
            SessionLost: the session has ended; nothing was applied.
            InvalidMessage: a derived message or an edited payload cannot be encoded; nothing was applied.
            ValueError: `derived` or `values` name a message that is not among `committed`; nothing was applied.
        """
        work = partial(
            settle, session=session, settlement=settlement, contents=self._contents(settlement), retain=self._retain
        )
        settled: Settled = await self._write(work, is_quick=True)
        return settled

    async def settle_with(self, session: Session, settlement: Settlement[P], apply: Callable[[Any], None]) -> Settled:
        """Settle, and let a sink write in the same transaction: `apply` gets a `Transaction`, on the writer's thread.

        Raises:
            PartlyRefused: some messages of `committed` are refused; nothing happened.
            SessionLost: the session has ended; nothing happened.
        """
        contents = self._contents(settlement)

        def work(ledger: Ledger) -> Settled:
            settled = settle(ledger, session, settlement, contents, self._retain)
            named = set(settled.refused)
            refused = [lease.seq for lease in settlement.committed if lease.seq in named] if named else []
            if refused and len(refused) < len(settlement.committed):
                raise PartlyRefused(refused)
            if not refused:
                ledger.must_commit = True
                Transaction(ledger.connection).run(apply, self._authorizer)
            return settled

        settled: Settled = await self._write(work)
        return settled

    def _contents(self, settlement: Settlement[P]) -> Sequence[Sequence[Content]]:
        write = self._ledger.scribe.write
        return [[write(message) for message in each.messages] for each in settlement.derived]

    async def notify_ready(self, resources: Sequence[Resource]) -> Position:
        """Provide resources globally. Versions only grow: a lower one changes nothing."""
        position: Position = await self._write(partial(steps.notify_ready, resources=resources))
        return position

    async def forget_ready(self, names: Sequence[str]) -> Position:
        """Take global resources back. Who was satisfied by them stays so; unknown names change nothing."""
        position: Position = await self._write(partial(steps.forget_ready, names=names))
        return position

    def facts(self, after: Position | None = None) -> AsyncIterator[Sequence[Fact]]:
        """Return an iterator over facts, in commit order; its `aclose` ends it.

        What is known is taken when the first facts are asked for. The present position goes on from there, any other
        starts over with a recovery. Messages of a recovery have no payload.
        """
        return Reader(partial(self._begin, after), self._more, self._feed.drop)

    async def _begin(self, after: Position | None, reader: Reader) -> Start:
        self._feed.add(reader)
        start: Start = await self._read(partial(self._start_reading, after))
        return start

    def _start_reading(self, after: Position | None, ledger: Ledger) -> Start:
        if after is not None and after == ledger.position:
            return ledger.position, None
        token = ledger.state.token
        leases = dict.fromkeys(ledger.leases, token) if token is not None else {}
        known = self._of_now(ledger, lambda connection: recovery(connection, ledger.scribe, leases))
        return ledger.position, known

    def _of_now(self, ledger: Ledger, read: Callable[[apsw.Connection], Iterator[Any]]) -> Iterator[Any]:
        """Read from the file as it is now: aside while others write, or at once if there is no second connection."""
        path = ledger.database.path
        if ledger.database.is_exclusive:
            return iter(list(_understood(read(ledger.connection), path)))
        return _understood(_closing(ledger.database.snapshot(), read), path)

    async def _more(self, chunks: Iterator[Any]) -> Any:  # noqa: ANN401 - a chunk
        try:
            return await self._runner.aside(lambda: next(chunks, None))
        except apsw.Error as exc:
            raise translated(exc, self._ledger.database.path, "reading") from exc

    async def read(self, space: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of those keys that exist."""
        found: Mapping[str, bytes] = await self._read(partial(steps.read_records, space=space, keys=keys))
        return found

    async def scan(self, space: str, *, after: str = "", limit: int = 100) -> Sequence[tuple[str, bytes]]:
        """Return a page of keys and values, in order of the keys."""
        work = partial(steps.scan_records, space=space, after=after, limit=limit)
        found: Sequence[tuple[str, bytes]] = await self._read(work)
        return found

    async def letters(
        self, *, epoch: int | None = None, after: Seq | None = None, limit: int = 100
    ) -> Sequence[KeptLetter[P]]:
        """Return a page of dead letters without payloads, in order of place."""
        work = partial(letters, epoch=epoch, after=Seq(0) if after is None else after, limit=limit)
        found: Sequence[KeptLetter[P]] = await self._read(work)
        return found

    async def letter(self, seq: Seq) -> KeptLetter[P] | None:
        """Return one dead letter whole, None if that message has none. Reading its payload may raise why it cannot."""
        found: KeptLetter[P] | None = await self._read(partial(letter, seq=seq))
        return found

    async def prune(self, before: float, limit: int) -> int:
        """Remove at most `limit` rows of epochs that completed before that wall-clock time; return how many.

        An epoch with a `retain` of its own counts as completed that much earlier or later than the store's `retain`
        says. One with dead letters is pinned: it stays.
        """
        removed: int = await self._write(partial(prune, before=before, limit=limit))
        return removed

    async def verify(self) -> Sequence[str]:
        """Check the hash of every row and the sum of every table; return what is wrong, naming the record."""
        findings: list[str] = []
        chunks = await self._read(partial(self._of_now, read=verification))
        while (found := await self._more(chunks)) is not None:
            findings += found
        return findings

    async def backup(self, path: str) -> None:
        """Write a consistent copy to a path that does not exist yet, while work goes on.

        Open it with `read_only=True` to look at it, or without to go on from there.

        Raises:
            FileExistsError: there is something at that path.
            BackupFailed: the copy cannot be made; this store goes on.
        """
        copy: Copy = await self._read(lambda ledger: Copy(ledger, os.fspath(path)))
        try:
            while not await self._read(copy.step):
                pass
        finally:
            copy.close()


def _close(ledger: Ledger) -> None:
    ledger.database.close()


def _understood(chunks: Iterator[Any], path: str) -> Iterator[Any]:
    try:
        yield from chunks
    except NOT_UNDERSTOOD as exc:
        raise corrupt(exc, path, "reading") from exc


def _closing(connection: apsw.Connection, read: Callable[[apsw.Connection], Iterator[Any]]) -> Iterator[Any]:
    try:
        yield from read(connection)
    finally:
        connection.close(True)
