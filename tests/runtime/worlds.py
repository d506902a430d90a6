"""Executors, stores and sinks that play parts, for runtimes in virtual time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import trio
from attrs import define, field

from naviscope_ingest import (
    CommitBatch,
    Delivery,
    EpochReport,
    Executed,
    IngestRuntime,
    MemoryBus,
    MemorySink,
    MemoryStore,
    Message,
    Resource,
    RuntimeComponents,
    RuntimeConfig,
)
from naviscope_ingest.testing import TrioClock, VirtualRuntime, open_virtual_runtime
from naviscope_ingest.testing.virtual import START, bounded
from naviscope_pytest import run_virtually
from naviscope_spi import (
    EpochKey,
    EpochOptions,
    EpochRecord,
    Lease,
    Position,
    PutReceipt,
    Ready,
    Seq,
    Session,
    Settled,
    Settlement,
    StoreInfo,
)

__all__ = ["START", "bounded"]


def run_with(seed: int, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run a function in virtual time."""
    # Trio throws a coin for the order of tasks; a seed that fails should fail again.
    trio._core._run._r.seed(seed)
    return run_virtually(function, *args)


Work = Callable[[Delivery[Any]], Awaitable[Any]]


async def commits_its_id(delivery: Delivery[Any]) -> Any:
    """Do the least an executor can do."""
    return Executed(ops=[delivery.id])


@define
class Playing:
    """An executor that calls a function.

    Attributes:
        work: the function.
        seen: the ids of the messages, in the order in which they were started.
        running: the ids of those that run now.
        most: how many ran at once at most.
    """

    work: Work = commits_its_id
    seen: list[str] = field(factory=list)
    running: list[str] = field(factory=list)
    most: int = 0

    async def execute(self, delivery: Delivery[Any]) -> Any:
        self.seen.append(delivery.id)
        self.running.append(delivery.id)
        self.most = max(self.most, len(self.running))
        try:
            return await self.work(delivery)
        finally:
            self.running.remove(delivery.id)


def answers(by_id: Mapping[str, Any]) -> Work:
    """Make work that answers as told: an outcome, an error to raise, a list of those in turn, or work itself.

    What is not listed commits its id.
    """
    turns: dict[str, int] = {}

    async def work(delivery: Delivery[Any]) -> Any:
        if delivery.id not in by_id:
            return await commits_its_id(delivery)
        answer = by_id[delivery.id]
        if isinstance(answer, list):
            turn = turns.get(delivery.id, 0)
            turns[delivery.id] = turn + 1
            answer = answer[turn] if turn < len(answer) else Executed(ops=[delivery.id])
        if callable(answer) and not isinstance(answer, type):
            return await answer(delivery)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return work


def naps(seconds: float) -> Work:
    """Make work that takes so long."""

    async def work(delivery: Delivery[Any]) -> Any:
        await trio.sleep(seconds)
        return Executed(ops=[delivery.id])

    return work


T = TypeVar("T")


class WaitingStore(MemoryStore[Any]):
    """A store that takes its time, as one on a disk does: every call lets others run, before and after.

    A call that is cancelled before has done nothing; cancelled after, it has done everything and nobody hears of it.

    Args:
        clock: where wall-clock time comes from.
        pause: how long before and after, in seconds; None makes it an ordinary store.
    """

    def __init__(self, clock: TrioClock, pause: float | None = 0.001) -> None:
        super().__init__(clock=clock)
        self.pause = pause

    @property
    def info(self) -> StoreInfo:
        return StoreInfo(super().info.store_id, "none" if self.pause is None else "power")

    async def _slowly(self, call: Coroutine[Any, Any, T]) -> T:
        if self.pause is None:
            return await call
        try:
            await trio.sleep(self.pause)
            answer = await call
        finally:
            call.close()
        await trio.sleep(self.pause)
        return answer

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochRecord:
        return await self._slowly(super().open_epoch(name, options))

    async def mark_epoch(self, epoch: EpochKey, mark: Literal["seal", "cancel"]) -> EpochRecord:
        return await self._slowly(super().mark_epoch(epoch, mark))

    async def put(
        self, epoch: EpochKey, messages: Sequence[Message[Any]], *, staged_by: Lease[Any] | None = None
    ) -> PutReceipt:
        return await self._slowly(super().put(epoch, messages, staged_by=staged_by))

    async def pop_ready(self, session: Session, seqs: Sequence[Seq]) -> Sequence[Lease[Any]]:
        return await self._slowly(super().pop_ready(session, seqs))

    async def settle(self, session: Session, settlement: Settlement[Any]) -> Settled:
        return await self._slowly(super().settle(session, settlement))

    async def notify_ready(self, resources: Sequence[Resource]) -> Position:
        return await self._slowly(super().notify_ready(resources))

    async def forget_ready(self, names: Sequence[str]) -> Position:
        return await self._slowly(super().forget_ready(names))


class LossyBus(MemoryBus):
    """A bus that loses, repeats, reorders and delays hints, as any bus may."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    async def send(self, ready: Sequence[Ready]) -> None:
        rng = self.rng
        hints = [hint for hint in ready for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        rng.shuffle(hints)
        await trio.sleep(rng.choice((0.0, 0.0, 0.4)))
        await super().send(hints)

    async def receive(self, limit: int) -> Sequence[Ready]:
        hints = await super().receive(limit)
        await trio.sleep(self.rng.choice((0.0, 0.0, 0.2)))
        return hints

    async def acknowledge(self, ready: Sequence[Ready]) -> None:
        await trio.sleep(self.rng.choice((0.0, 0.1)))
        await super().acknowledge(ready)


class TroubledSink(MemorySink[Any]):
    """A sink that raises as told before it keeps anything.

    Attributes:
        errors: what the next commits raise, None for nothing.
        bad: ops that cannot be committed, whatever the company.
        batches: the ids of every batch that came, in order.
    """

    def __init__(self, *errors: BaseException | None, bad: Sequence[Any] = ()) -> None:
        super().__init__()
        self.errors = list(errors)
        self.bad = bad
        self.batches: list[list[str]] = []

    async def commit(self, batch: CommitBatch[Any]) -> None:
        self.batches.append([entry.message_id for entry in batch.entries])
        await trio.lowlevel.checkpoint()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        for entry in batch.entries:
            if any(op in self.bad for op in entry.ops):
                raise ValueError(f"cannot write {entry.ops}")
        await super().commit(batch)


class GatedSink(MemorySink[Any]):
    """A sink that commits when it is let.

    Attributes:
        entered: set when a commit has begun.
        gate: lets commits go on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entered = trio.Event()
        self.gate = trio.Event()

    async def commit(self, batch: CommitBatch[Any]) -> None:
        self.entered.set()
        await self.gate.wait()
        await super().commit(batch)


World = VirtualRuntime


def make_runtime(
    executor: Any, sink: Any, store: Any, clock: TrioClock, *, metrics: Any = None, bus: Any = None, **config: Any
) -> IngestRuntime[Any, Any]:
    components: RuntimeComponents[Any, Any] = RuntimeComponents(
        executor=executor, commit_sink=sink, store=store, clock=clock, metrics=metrics, bus=bus
    )
    return IngestRuntime(components, RuntimeConfig(**config))


@asynccontextmanager
async def started(
    work: Any = commits_its_id,
    *,
    sink: Any = None,
    store: Any = None,
    metrics: Any = None,
    bus: Any = None,
    **config: Any,
) -> AsyncIterator[World]:
    """Run a runtime for a block, in bounds.

    `work` is a function, a mapping for `answers`, or an executor.
    """
    executor = work
    if isinstance(work, Mapping):
        executor = Playing(answers(work))
    elif not (hasattr(work, "execute") or hasattr(work, "execute_batch")):
        executor = Playing(work)
    parts = {"sink": sink, "store": store, "metrics": metrics, "bus": bus}
    async with open_virtual_runtime(executor, **parts, captures=False, **config) as world:
        yield world


def messages(*ids: str, **options: Any) -> list[Message[Any]]:
    """Make messages that differ in nothing but their ids."""
    return [Message(each, None, **options) for each in ids]


def chain(length: int) -> list[Message[Any]]:
    """Make messages each of which waits for the one before."""
    return [Message(f"m{n}", None, depends_on=[f"m{n - 1}"] if n else ()) for n in range(length)]


def failures(report: EpochReport) -> dict[str, tuple[str, str]]:
    """Return how and why messages ended badly, by id."""
    found = {failure.message_id: (failure.end, failure.error) for failure in report.failures}
    assert len(found) == len(report.failures), f"a message fails twice in {report.failures}"
    return found
