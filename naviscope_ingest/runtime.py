"""The runtime that people embed."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio
from attrs import evolve

from naviscope_ingest._kernel import Kernel, SystemClock
from naviscope_ingest._kernel.kernel import sole_error
from naviscope_ingest._kernel.lifecycle import RuntimeState
from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.errors import RuntimeFailed, WrongState
from naviscope_ingest.intake import IntakeHandle
from naviscope_ingest.interop import AsyncioIntake, BlockingIntake, running_for_asyncio, running_in_thread
from naviscope_ingest.limits import KindView, Limits
from naviscope_ingest.reports import Recovery
from naviscope_ingest.sinks import MemorySink
from naviscope_ingest.stores import MemoryStore, open_store
from naviscope_spi import (
    CommitSink,
    DeferredStore,
    Delivery,
    Executor,
    Outcome,
    RuntimeMetrics,
    Statistics,
    SupportsBatch,
    SystemFailure,
)

if TYPE_CHECKING:
    from naviscope_ingest.faults.injector import Injector

__all__ = ["IngestRuntime"]

P = TypeVar("P")
Op = TypeVar("Op")


class _Nobody:
    """Stands for an executor where nothing is executed."""

    async def execute(self, message: Delivery[Any]) -> Outcome[Any]:
        raise SystemFailure(f"message {message.id!r} was started in a store at rest")


class IngestRuntime(Generic[P, Op]):
    """Runs messages that depend on each other, and knows when a batch of them is done.

    One runtime runs once. After a stop or a failure make a new one; with a durable store it goes on where this one was.

    Args:
        components: executor, sink, and what else it is made of.
        config: how it behaves.

    Attributes:
        components: as given.
        config: as given.
        store: where messages are kept.
    """

    def __init__(self, components: RuntimeComponents[P, Op], config: RuntimeConfig | None = None) -> None:
        self.components = components
        self.config = config or RuntimeConfig()
        clock = components.clock or SystemClock()
        self.store: DeferredStore[P] = components.store or MemoryStore(clock=clock)
        store = self.store
        self._injector: Injector | None = None
        if self.config.faults:
            from naviscope_ingest.faults.components import with_faults

            components, store, self._injector = with_faults(self.config.faults, components, store)
        if components.tracing is not None:
            tracing = components.tracing
            components = evolve(
                components,
                executor=tracing.executor(components.executor),
                commit_sink=tracing.sink(components.commit_sink),
            )
        self._kernel = Kernel(components, self.config, store, clock, self._injected)
        self._stop = trio.Event()
        self._stop_timeout = self.config.drain_timeout
        self._drained = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        executor: Executor[P, Op] | SupportsBatch[P, Op],
        commit_sink: CommitSink[Op],
        config: RuntimeConfig | None = None,
        metrics: RuntimeMetrics | None = None,
        **options: Any,  # noqa: ANN401 - of the store
    ) -> AsyncIterator[IntakeHandle[P]]:
        """Open the store of a URL and run on it for as long as a block lasts.

        What an earlier process left unfinished in it goes on at once.

        Args:
            url: "sqlite:///ingest.db" (relative), "sqlite:////var/lib/ingest.db" (absolute), "memory://", or a scheme
                that another package brings.
            executor: the work.
            commit_sink: where results become visible.
            config: how the runtime behaves.
            metrics: hooks for measurement.
            **options: passed on to the store; for SQLite those of `SqliteStore.open`, such as `codec`, how payloads
                are stored, `max_payload` and `retain`.

        Raises:
            UnknownOption: the store has no such option.
        """
        async with open_store(url, **options) as store:
            components: RuntimeComponents[P, Op] = RuntimeComponents(
                executor=executor, commit_sink=commit_sink, store=store, metrics=metrics
            )
            async with cls(components, config).running() as intake:
                yield intake

    @classmethod
    @asynccontextmanager
    async def at_rest(
        cls,
        url: str,
        *,
        read_only: bool = False,
        executor: Executor[P, Any] | SupportsBatch[P, Any] | None = None,
        config: RuntimeConfig | None = None,
        **options: Any,  # noqa: ANN401 - of the store
    ) -> AsyncIterator[IntakeHandle[P]]:
        """Open the store of a URL while no runtime works on it: to ask, to submit, to repair. Nothing is executed.

        Messages that are submitted wait for the next start. What a process that died was running, and the outcomes that
        it recorded, are left for that start too. Waiting for something that has to run raises `RuntimeStopped`.

        Args:
            url: as of `open`.
            read_only: only ask. For SQLite this works beside a process that has the file, and shows it as it was when
                it was opened.
            executor: checks messages that are submitted, if it is a `ChecksMessages`; it is never called otherwise.
            config: how the runtime behaves that would run; its limit of messages that are ready does not hold here.
            **options: passed on to the store.

        Raises:
            UnknownOption: the store has no such option.
            StoreLocked: another process has the file, and it is not opened to be read.
        """
        config = config or RuntimeConfig()
        # Nothing starts, so whoever waited for room would wait for ever.
        config = evolve(config, intake=evolve(config.intake, high_mark=sys.maxsize, low_mark=0))
        if read_only:
            options["read_only"] = True
        async with open_store(url, **options) as store:
            components: RuntimeComponents[P, Any] = RuntimeComponents(
                executor=executor or _Nobody(), commit_sink=MemorySink(), store=store
            )
            runtime = cls(components, config)
            async with runtime._kernel.at_rest(read_only=read_only):
                yield IntakeHandle(runtime, runtime._kernel)

    @property
    def state(self) -> RuntimeState:
        """Created, starting, running, paused, draining, stopped or failed; or at rest, if it was opened so."""
        return self._kernel.state

    @property
    def limits(self) -> Limits:
        """The caps and rates in force, to be looked at and changed while it runs."""
        return Limits(self._kernel)

    async def run_forever(self, *, task_status: trio.TaskStatus[IntakeHandle[P]] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop` is called or the task is cancelled.

        Start it with `intake = await nursery.start(runtime.run_forever)`. Any error that ends it is raised here, and
        reaches everybody who waits as `RuntimeFailed`.
        """
        self._check_fresh()
        async with self._kernel.opened():
            task_status.started(IntakeHandle(self, self._kernel))
            await self._stop.wait()
            self._drained = await self._kernel.drain(self._stop_timeout)

    def _check_fresh(self) -> None:
        if self._kernel.state != "created":
            raise WrongState(self._kernel.state, "be started", ())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[IntakeHandle[P]]:
        """Run for as long as a block lasts, then stop.

        An exception of the block is raised as it is, not wrapped in a group. An error that ends the runtime cancels the
        block and is raised as `RuntimeFailed`.
        """
        self._check_fresh()
        from_body: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                intake = await nursery.start(self.run_forever)
                try:
                    yield intake
                except BaseException as error:
                    if sole_error(error) is None:
                        raise  # It was cancelled, perhaps in a nursery of the block.
                    from_body = error
                self.stop()
        except BaseException as raised:
            failure = sole_error(raised)
            if failure is not None and not isinstance(failure, Exception):
                # An interrupt goes first, whatever the block made of a runtime that ended.
                raise failure from None
            if from_body is None and isinstance(failure, Exception):
                raise RuntimeFailed(f"the runtime ended by {failure!r}") from failure
            if from_body is None:
                raise
        if from_body is not None:
            raise from_body

    def running_in_thread(self) -> AbstractContextManager[BlockingIntake[P]]:
        """Run in a thread for as long as a block of blocking code lasts; see `interop.running_in_thread`."""
        return running_in_thread(self.running())

    def running_for_asyncio(self) -> AbstractAsyncContextManager[AsyncioIntake[P]]:
        """Run in a thread for as long as a block of an asyncio program lasts; see `interop.running_for_asyncio`."""
        return running_for_asyncio(self.running())

    def stop(self, timeout: float | None = None) -> None:
        """Take no more work, finish what was started, hand the rest back to the store, and end `run_forever`.

        Args:
            timeout: seconds to wait for what was started; then it is cancelled. None takes `drain_timeout`.

        Raises:
            ValueError: that is no time.
        """
        if timeout is not None:
            if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
                raise ValueError(f"timeout={timeout!r:.80}: give seconds, zero or more")
            self._stop_timeout = timeout
        self._stop.set()

    async def drain(self, timeout: float | None = None) -> bool:
        """Stop, and wait until it has; return whether all that was started finished in time.

        What had not started, and what did not finish, is kept by a durable store, and goes on at the next start.

        Args:
            timeout: seconds to wait for what was started; then it is cancelled. None takes `drain_timeout`.

        Raises:
            WrongState: it was never started.
        """
        if self.state == "created":
            raise WrongState("created", "be drained", ("starting",))
        self.stop(timeout)
        await self._kernel.ended.wait()
        return self._drained

    async def wait_ended(self) -> None:
        """Wait until it has stopped or failed."""
        await self._kernel.ended.wait()

    # Live control

    def pause(self, kind: str | None = None, *, reason: str = "") -> None:
        """Start nothing more, or nothing more of a kind. Messages still come in; what runs goes on.

        Args:
            kind: which kind; None for all.
            reason: why; `explain` says so.

        Raises:
            WrongState: the runtime is not running.
            NoSuchKind: no message has that kind, and nothing is configured for it.
        """
        self._kernel.steering.pause(kind, reason)

    def resume(self, kind: str | None = None) -> None:
        """Start again what was paused.

        Raises:
            WrongState: the runtime, or that kind, is not paused.
        """
        self._kernel.steering.resume(kind)

    def strike(self, kind: str | None = None, *, id: str | None = None, reason: str = "") -> None:  # noqa: A002 - as in Message
        """Refuse messages of a kind, or whose ids match a pattern, at intake. Derived messages are not refused.

        Args:
            kind: which kind.
            id: a pattern of ids, such as "import-*".
            reason: why; the error says so.
        """
        self._kernel.steering.strike(kind, id, reason)

    def unstrike(self, kind: str | None = None, *, id: str | None = None) -> bool:  # noqa: A002 - as in Message
        """Let in again what was struck; return whether it was."""
        return self._kernel.steering.unstrike(kind, id)

    def kinds(self) -> Sequence[KindView]:
        """Return the kinds that messages have or the configuration names, and what holds them."""
        return [KindView(kind, unfinished, held_by) for kind, unfinished, held_by in self._kernel.steering.kinds()]

    @property
    def struck(self) -> Sequence[str]:
        """What is refused at intake, in words."""
        return [each.rule for each in self._kernel.steering.strikes]

    @property
    def recovery(self) -> Recovery:
        """What was found in the store when the runtime started. While it starts: what was found so far."""
        return self._kernel.recovery

    def statistics(self) -> Statistics:
        """Count what is going on and has gone on."""
        return self._kernel.statistics()

    def _injected(self) -> Mapping[str, int]:
        return {} if self._injector is None else self._injector.injected
