"""A runtime in virtual time, with everything at hand that a test wants to look at.

A test fails if it takes too long by the virtual clock, which is what a silent hang comes to, and also if tasks go round
and round without letting that clock move.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from naviscope_ingest import (
    CommitBatch,
    Delivery,
    EpochReport,
    Executed,
    IngestRuntime,
    IntakeHandle,
    MemorySink,
    MemoryStore,
    Message,
    RuntimeComponents,
    RuntimeConfig,
)
from naviscope_ingest.testing import TrioClock

START = 1_000.0
"""The wall-clock time at which every test begins."""

LONG = 100_000.0
"""More virtual seconds than anything here may take."""


LEAVES_A_GENERATOR = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator object _chunks:pytest.PytestUnraisableExceptionWarning"
)
"""A submit that fails leaves a generator to the garbage collector; `test_bad_input` has the test of that."""


class StepLimit(trio.abc.Instrument):
    """Cancels a scope after so many steps of tasks."""

    def __init__(self, limit: int, scope: trio.CancelScope) -> None:
        self.left = limit
        self.scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if not self.left:
            self.scope.cancel()


@contextmanager
def bounded(seconds: float = LONG, steps: int = 400_000) -> Iterator[None]:
    """Fail what takes too long by the virtual clock, and what keeps that clock from moving."""
    with trio.CancelScope() as scope:
        limit = StepLimit(steps, scope)
        trio.lowlevel.add_instrument(limit)
        try:
            with trio.fail_after(seconds):
                yield
        finally:
            trio.lowlevel.remove_instrument(limit)
    assert not scope.cancelled_caught, f"{steps} steps of tasks, and no end"


def run_with(seed: int, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run a function in virtual time."""
    # Trio throws a coin for the order of tasks; a seed that fails should fail again.
    trio._core._run._r.seed(seed)
    return trio.run(function, *args, clock=MockClock(autojump_threshold=0))


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


@define
class World:
    """A runtime and what it is made of."""

    runtime: IngestRuntime[Any, Any]
    intake: IntakeHandle[Any]
    executor: Any
    sink: Any
    store: Any
    clock: TrioClock

    async def batch(self, *messages: Message[Any], name: str | None = None, **options: Any) -> EpochReport:
        """Submit messages to a new epoch, seal it, wait for it, and return its report."""
        epoch = await self.intake.new_epoch(name, **options)
        await epoch.submit(messages)
        await epoch.seal()
        return await epoch.wait()


def make_runtime(
    executor: Any, sink: Any, store: Any, clock: TrioClock, metrics: Any = None, **config: Any
) -> IngestRuntime[Any, Any]:
    components: RuntimeComponents[Any, Any] = RuntimeComponents(
        executor=executor, commit_sink=sink, store=store, clock=clock, metrics=metrics
    )
    return IngestRuntime(components, RuntimeConfig(**config))


@asynccontextmanager
async def started(
    work: Any = commits_its_id, *, sink: Any = None, store: Any = None, metrics: Any = None, **config: Any
) -> AsyncIterator[World]:
    """Run a runtime for a block, in bounds.

    `work` is a function, a mapping for `answers`, or an executor.
    """
    clock = TrioClock(START)
    executor = work
    if isinstance(work, Mapping):
        executor = Playing(answers(work))
    elif not (hasattr(work, "execute") or hasattr(work, "execute_batch")):
        executor = Playing(work)
    sink = MemorySink() if sink is None else sink
    store = MemoryStore(clock=clock) if store is None else store
    runtime = make_runtime(executor, sink, store, clock, metrics, **config)
    with bounded():
        async with runtime.running() as intake:
            yield World(runtime, intake, executor, sink, store, clock)


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
