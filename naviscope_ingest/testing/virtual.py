"""A runtime in memory and in virtual time, with everything at hand that a test wants to look at.

Nothing sleeps: whenever every task waits, the clock jumps to the next moment at which something happens. What would
hang for ever fails instead, and so does what goes round and round without letting the clock move.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final

import trio
import trio.testing
from attrs import define, evolve, field

from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.handlers import Ingest
from naviscope_ingest.intake import IntakeHandle
from naviscope_ingest.reports import EpochReport
from naviscope_ingest.runtime import IngestRuntime
from naviscope_ingest.sinks import MemorySink
from naviscope_ingest.stores import MemoryStore
from naviscope_ingest.testing.clock import TrioClock
from naviscope_spi import (
    Accepted,
    CommitSink,
    Committed,
    DeferredStore,
    Delivery,
    Ended,
    Fact,
    FactBody,
    Message,
    PipelineBus,
    RuntimeMetrics,
    Seq,
)

__all__ = ["START", "VirtualRuntime", "bounded", "open_virtual_runtime"]

START: Final = 1_000.0
"""The wall-clock time at which every test begins, in seconds since the Unix epoch."""

_LONGEST: Final = 100_000.0
_STEPS: Final = 1_000_000


@define(eq=False)
class VirtualRuntime:
    """A runtime and what it is made of.

    Attributes:
        runtime: the runtime.
        intake: what a program holds.
        executor: the work.
        sink: where ops went; a `MemorySink` unless it was given, with everything in `sink.ops`.
        store: where messages are kept.
        clock: virtual time; `clock.wall()` begins at 1,000.
        messages: every message that was accepted, submitted or derived, by id, the last one of each id.
        ends: how messages ended, by id: "committed", "dead", "skipped", "cancelled" or "expired". A message that has
            not ended is not in it.

    Messages and ends are captured when `batch`, `run_until_idle`, `advance` or `look` is awaited.
    """

    runtime: IngestRuntime[Any, Any]
    intake: IntakeHandle[Any]
    executor: Any
    sink: Any
    store: Any
    clock: TrioClock
    messages: dict[str, Message[Any]] = field(factory=dict)
    ends: dict[str, str] = field(factory=dict)
    _facts: AsyncIterator[Sequence[Fact]] | None = None
    _names: dict[Seq, str] = field(factory=dict)

    async def batch(self, *messages: Message[Any], name: str | None = None, **options: Any) -> EpochReport:  # noqa: ANN401 - of an epoch
        """Submit messages to a new epoch, seal it, wait for it, and return its report.

        Args:
            *messages: what is submitted.
            name: of the epoch.
            **options: those of `IntakeHandle.new_epoch`.
        """
        epoch = await self.intake.new_epoch(name, **options)
        await epoch.submit(messages)
        await epoch.seal()
        report = await epoch.wait()
        if self._facts is not None:
            await self.look()
        return report

    async def run_until_idle(self) -> None:
        """Wait until nothing is ready, running or being committed. Messages may still wait for something."""
        await self.intake.wait_idle()
        await self.look()

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that happens in it."""
        await trio.sleep(seconds)
        await self.look()

    async def look(self) -> None:
        """Capture what has happened by now. The other methods do so when they are done."""
        await trio.testing.wait_all_tasks_blocked()
        if self._facts is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, self._facts)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    async def _read(self, facts: AsyncIterator[Sequence[Fact]]) -> None:
        async for batch in facts:
            for fact in batch:
                self._take(fact.body)

    def _take(self, fact: FactBody) -> None:
        if isinstance(fact, Accepted):
            for seq, message in zip(fact.seqs, fact.messages, strict=True):
                self.messages[message.id] = message
                self._names[seq] = message.id
        elif isinstance(fact, Committed):
            self.ends.update((self._names[seq], "committed") for seq in fact.seqs if seq in self._names)
        elif isinstance(fact, Ended) and fact.seq in self._names:
            self.ends[self._names[fact.seq]] = fact.end


@asynccontextmanager
async def open_virtual_runtime(
    work: Any,  # noqa: ANN401 - one of several things, as below
    *,
    sink: CommitSink[Any] | None = None,
    store: DeferredStore[Any] | None = None,
    bus: PipelineBus | None = None,
    metrics: RuntimeMetrics | None = None,
    config: RuntimeConfig | None = None,
    captures: bool = True,
    longest: float = _LONGEST,
    **options: Any,  # noqa: ANN401 - as of RuntimeConfig
) -> AsyncIterator[VirtualRuntime]:
    """Run a runtime for a block of a test, under `trio.testing.MockClock(autojump_threshold=0)`.

    Args:
        work: an executor, an async function that takes a delivery and returns an outcome, or an app of handlers. Plain
            functions of an app are called where they are, and not in threads, which virtual time would not wait for.
        sink: where ops go; that of the app, or a `MemorySink`, unless it is given.
        store: where messages are kept; in memory unless it is given.
        bus: carries hints.
        metrics: hooks for measurement.
        config: how the runtime behaves; what an app was given, unless it is given.
        captures: whether messages and ends are captured.
        longest: how many virtual seconds the block may take. What waits for something that never happens takes longer.
        **options: changes to `config`, such as `max_in_flight=1`.

    Raises:
        AssertionError: the block took longer, or goes round and round.
    """
    clock = TrioClock(START)
    async with AsyncExitStack() as stack:
        if isinstance(work, Ingest):
            config = config or work.config
            parts = work.inline_components()
        else:
            executor = work if hasattr(work, "execute") or hasattr(work, "execute_batch") else _Calls(work)
            parts = RuntimeComponents(executor=executor, commit_sink=MemorySink())
        if isinstance(work, Ingest) and sink is None and isinstance(parts.commit_sink, AbstractAsyncContextManager):
            await stack.enter_async_context(parts.commit_sink)
        components: RuntimeComponents[Any, Any] = evolve(
            parts,
            commit_sink=parts.commit_sink if sink is None else sink,
            store=MemoryStore(clock=clock) if store is None else store,
            bus=bus,
            metrics=metrics,
            clock=clock,
        )
        runtime = IngestRuntime(components, evolve(config or RuntimeConfig(), **options))
        stack.enter_context(bounded(longest))
        intake = await stack.enter_async_context(runtime.running())
        world = VirtualRuntime(runtime, intake, components.executor, components.commit_sink, runtime.store, clock)
        if captures:
            world._facts = runtime.store.facts(None)
        yield world


class _Calls:
    """An executor that calls a function."""

    def __init__(self, function: Callable[[Delivery[Any]], Awaitable[Any]]) -> None:
        self._function = function

    async def execute(self, message: Delivery[Any]) -> Any:  # noqa: ANN401 - whatever it answers
        return await self._function(message)


@contextmanager
def bounded(seconds: float = _LONGEST, steps: int = _STEPS) -> Iterator[None]:
    """Fail what takes too long by the virtual clock, and what keeps that clock from moving.

    Args:
        seconds: how many virtual seconds the block may take.
        steps: how many steps tasks may take in it.
    """
    with trio.move_on_after(seconds) as time_scope, trio.CancelScope() as step_scope:
        limit = _StepLimit(steps, step_scope)
        trio.lowlevel.add_instrument(limit)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(limit)
    if time_scope.cancelled_caught:
        raise AssertionError(f"{seconds:g} virtual seconds have passed, and no end: it waits for what never happens")
    if step_scope.cancelled_caught:
        raise AssertionError(f"{steps} steps of tasks, and no end: it goes round and round")


class _StepLimit(trio.abc.Instrument):
    """Cancels a scope after so many steps of tasks."""

    def __init__(self, limit: int, scope: trio.CancelScope) -> None:
        self._left = limit
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if not self._left:
            self._scope.cancel()
