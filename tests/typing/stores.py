# pyright: reportUnnecessaryTypeIgnoreComment=true
"""A store and a bus of a user fit the contracts by their shape alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, Literal, TypeVar

from naviscope_ingest import MemoryBus, MemoryStore, MsgspecCodec, SqliteStore
from naviscope_ingest.sinks import SqliteSink, SqlOp
from naviscope_spi import (
    DeferredStore,
    EncodesOps,
    EpochKey,
    EpochOptions,
    EpochRecord,
    Fact,
    Lease,
    Message,
    PayloadCodec,
    PipelineBus,
    Position,
    PutReceipt,
    Ready,
    Resource,
    Seq,
    Session,
    Settled,
    Settlement,
    StoreInfo,
    SupportsBackup,
    SupportsColocation,
    SupportsNoWait,
    SupportsRecords,
    SupportsRetention,
    SupportsVerify,
    SupportsVisits,
)

P = TypeVar("P")


class NoStore(Generic[P]):
    """Has every method of the contract, and keeps nothing."""

    @property
    def info(self) -> StoreInfo:
        return StoreInfo("none", "none")

    @asynccontextmanager
    async def join(self, who: str, *, lead: bool = True) -> AsyncIterator[Session]:
        yield Session(1, 1 if lead else None)

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochRecord:
        return EpochRecord(EpochKey(1, name or "e"), "open", options)

    async def mark_epoch(self, epoch: EpochKey, mark: Literal["seal", "cancel"]) -> EpochRecord:
        return EpochRecord(epoch, "sealed", EpochOptions(), cancel_requested=mark == "cancel")

    async def put(
        self, epoch: EpochKey, messages: Sequence[Message[P]], *, staged_by: Lease[P] | None = None
    ) -> PutReceipt:
        return PutReceipt([Seq(index) for index in range(len(messages))], range(len(messages)))

    async def pop_ready(self, session: Session, seqs: Sequence[Seq]) -> Sequence[Lease[P]]:
        return []

    async def settle(self, session: Session, settlement: Settlement[P]) -> Settled:
        return Settled(Position(1), refused=[lease.seq for lease in settlement.committed])

    async def notify_ready(self, resources: Sequence[Resource]) -> Position:
        return Position(len(resources))

    async def forget_ready(self, names: Sequence[str]) -> Position:
        return Position(len(names))

    async def facts(self, after: Position | None = None) -> AsyncIterator[Sequence[Fact]]:
        yield []


class Forgetful(NoStore[P]):
    async def put(self, epoch: EpochKey, messages: Sequence[Message[P]]) -> PutReceipt:  # type: ignore[override]
        return PutReceipt([], [])


class Plain:
    """A store of one kind of payload."""

    async def put(self, epoch: EpochKey, messages: Sequence[Message[str]]) -> PutReceipt:
        return PutReceipt([], [])


def stores_fit_by_shape() -> None:
    store: DeferredStore[str] = NoStore[str]()
    store = MemoryStore[str]()
    store = NoStore[int]()  # type: ignore[assignment]
    store = Forgetful[str]()  # type: ignore[assignment]
    store = Plain()  # type: ignore[assignment]
    block: AbstractAsyncContextManager[Session] = store.join("me")
    records: SupportsRecords = MemoryStore[str]()
    records = NoStore[str]()  # type: ignore[assignment]
    del block, records


async def a_store_keeps_messages_of_its_payload(store: DeferredStore[str], epoch: EpochKey) -> None:
    await store.put(epoch, [Message("a", "text")])
    await store.put(epoch, [Message("a", 1)])  # type: ignore[arg-type]
    async with store.join("me") as session:
        for lease in await store.pop_ready(session, [Seq(1)]):
            lease.message.payload.upper()
        await store.pop_ready(session, ["1"])  # type: ignore[list-item]
        await store.mark_epoch(epoch, "close")  # type: ignore[arg-type]
    async for batch in store.facts():
        for fact in batch:
            print(fact.position, fact.body)


class Wire:
    async def send(self, ready: Sequence[Ready]) -> None: ...

    async def receive(self, limit: int) -> Sequence[Ready]:
        return [Ready(Seq(1), 1, "message")][:limit]

    async def acknowledge(self, ready: Sequence[Ready]) -> None: ...


class Deaf:
    async def send(self, ready: Sequence[Ready]) -> None: ...


class Torn(Wire):
    async def receive(self, limit: int) -> Ready:  # type: ignore[override]
        return Ready(Seq(limit), 1, "message")


def buses_fit_by_shape() -> None:
    bus: PipelineBus = Wire()
    bus = MemoryBus()
    bus = Deaf()  # type: ignore[assignment]
    quick: SupportsNoWait = MemoryBus()
    quick = Wire()  # type: ignore[assignment]
    del bus, quick


def check_sqlite(store: SqliteStore[int]) -> None:
    contract: DeferredStore[int] = store
    colocation: SupportsColocation[int] = store
    records: SupportsRecords = store
    retention: SupportsRetention = store
    backup: SupportsBackup = store
    verify: SupportsVerify = store
    visits: SupportsVisits = store
    codec: PayloadCodec = MsgspecCodec({"kind": int})
    del contract, colocation, records, retention, backup, verify, visits, codec


def check_sqlite_sink(sink: SqliteSink) -> None:
    power: EncodesOps[SqlOp] = sink
    wrong: EncodesOps[int] = sink  # type: ignore[assignment]
    del power, wrong
