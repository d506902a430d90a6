"""Cancelled at every await: nothing is lost, nothing is applied twice, and nobody is left waiting.

Each test plays a scenario again and again, cancelled when a task comes to rest for the first time, the second, the
third, and so on, until the scenario finishes before its turn comes. After each the world must be consistent: either
the same runtime goes on, or a new one on the same store does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest
import trio
from attrs import define

from naviscope_ingest import (
    CommitBatch,
    Deferred,
    Dependency,
    EpochReport,
    Executed,
    IntakeHandle,
    MemorySink,
    MemoryStore,
    Message,
    Resource,
    RuntimeStopped,
    Transient,
)
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import (
    START,
    Playing,
    WaitingStore,
    World,
    bounded,
    chain,
    make_runtime,
    messages,
    run_with,
    started,
)

STORES = pytest.mark.parametrize("pause", [None, 0.001], ids=["quick store", "store that waits"])

MOST = 2_000
"""More awaits than any scenario here has."""


class Canceller(trio.abc.Instrument):
    """Cancels a scope when tasks have come to rest so many times.

    Args:
        at: how many times.
        scope: what is cancelled.
        task: whose rests count; every task's unless it is given.
    """

    def __init__(self, at: int, scope: trio.CancelScope, task: trio.lowlevel.Task | None) -> None:
        self.left = at
        self.scope = scope
        self.task = task

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.task is None or task is self.task:
            self.left -= 1
            if not self.left:
                self.scope.cancel()


@contextmanager
def cancelled_at(at: int, *, only_this_task: bool) -> Iterator[trio.CancelScope]:
    """Cancel a block when it awaits for the n-th time, or when any task does."""
    with trio.CancelScope() as scope:
        canceller = Canceller(at, scope, trio.lowlevel.current_task() if only_this_task else None)
        trio.lowlevel.add_instrument(canceller)
        try:
            yield scope
        finally:
            trio.lowlevel.remove_instrument(canceller)


def at_every_await(trial: Callable[[int], Awaitable[bool]], *, at_least: int) -> None:
    """Play a trial, cancelled one await later each time, until it says that it was not cancelled."""
    for at in range(1, MOST):
        try:
            was_cancelled = run_with(at, trial, at)
        except BaseException as error:
            error.add_note(f"cancelled at await {at}")
            raise
        if not was_cancelled:
            assert at > at_least, f"it finished after {at - 1} awaits: the scenario is too small to mean something"
            return
    pytest.fail(f"not finished after {MOST} awaits")


class Dawdling(MemorySink[Any]):
    """A sink that can be cancelled before and after it has kept a batch."""

    async def commit(self, batch: CommitBatch[Any]) -> None:
        await trio.lowlevel.checkpoint()
        await super().commit(batch)
        await trio.lowlevel.checkpoint()


# One call is cancelled, and the runtime goes on.


@define
class Call:
    """A call that is cancelled.

    Attributes:
        before: what is done first.
        call: what is cancelled, and then done again.
        committed: how many messages commit in the end.
        cancelled: how many end cancelled.
        at_least: how many awaits it has at least.
    """

    call: Callable[[World], Awaitable[object]]
    before: Callable[[World], Awaitable[object]] | None = None
    committed: int = 0
    cancelled: int = 0
    at_least: int = 1


async def opens(world: World) -> None:
    await world.intake.new_epoch("nightly")


async def opens_and_submits(world: World) -> None:
    epoch = await world.intake.new_epoch("nightly")
    await epoch.submit(chain(10))


async def waits_for_approval(world: World) -> None:
    epoch = await world.intake.new_epoch("nightly")
    waits = [Dependency.resource("approved", external=True)]
    await epoch.submit([Message("a", None, depends_on=waits), Message("b", None, depends_on=["a"])])


async def is_running(world: World) -> None:
    epoch = await world.intake.new_epoch("nightly")
    await epoch.submit([*messages("m0"), Message("m1", None, depends_on=["m0"])])
    await trio.sleep(0.5)


async def submits_from_a_slow_source(world: World) -> None:
    async def source():
        for message in chain(10):
            await trio.sleep(0.1)
            yield message

    async with aclosing(source()) as stream:
        await world.intake.submit("nightly", stream)


async def seals_and_waits(world: World) -> None:
    await world.intake.seal_epoch("nightly")
    await world.intake.wait_epoch("nightly")


async def uses_the_block(world: World) -> None:
    async with world.intake.epoch("nightly") as epoch:
        await epoch.submit(chain(5))


async def looks_at_progress(world: World) -> None:
    await world.intake.seal_epoch("nightly")
    epoch = await world.intake.get_epoch("nightly")
    async with aclosing(epoch.progress(0.3)) as reports:
        async for _ in reports:
            pass


CALLS = {
    "new_epoch": Call(opens, committed=0),
    "submit": Call(lambda world: world.intake.submit("nightly", chain(10)), opens, committed=10, at_least=3),
    "submit from a slow source": Call(submits_from_a_slow_source, opens, committed=10, at_least=10),
    "seal": Call(lambda world: world.intake.seal_epoch("nightly"), opens_and_submits, committed=10, at_least=0),
    "seal and wait": Call(seals_and_waits, opens_and_submits, committed=10, at_least=2),
    "block": Call(uses_the_block, committed=5, at_least=4),
    "progress": Call(looks_at_progress, opens_and_submits, committed=10, at_least=5),
    "wait for idle": Call(lambda world: world.intake.wait_idle(), opens_and_submits, committed=10),
    "explain": Call(lambda world: world.intake.explain("nightly"), opens_and_submits, committed=10, at_least=0),
    "cancel a running message": Call(lambda world: world.intake.cancel("nightly", "m0"), is_running, cancelled=2),
    "cancel a waiting message": Call(
        lambda world: world.intake.cancel("nightly", "m1"), is_running, committed=1, cancelled=1
    ),
    "cancel the epoch": Call(lambda world: world.intake.cancel_epoch("nightly"), is_running, cancelled=2),
    "notify": Call(
        lambda world: world.intake.notify_dependency_ready(Resource("approved")), waits_for_approval, committed=2
    ),
}


def cases() -> Iterator[Any]:
    for name in CALLS:
        for pause, store in ((None, "quick store"), (0.001, "store that waits")):
            for restarts, then in ((False, "goes on"), (True, "starts again")):
                yield pytest.param(name, restarts, pause, id=f"{name}, {store}, {then}")


@pytest.mark.parametrize(("name", "restarts", "pause"), list(cases()))
def test_a_cancelled_call_can_be_made_again(name, restarts, pause):
    """Whatever a cancelled call has done, doing it again comes to the same as doing it once."""
    case = CALLS[name]

    async def trial(at: int) -> bool:
        clock, sink = TrioClock(START), Dawdling()
        store = WaitingStore(clock, pause)
        executor = Playing(nap)
        async with started(executor, store=store, sink=sink, submit_chunk=3) as world:
            if case.before is not None:
                await case.before(world)
            with cancelled_at(at, only_this_task=True) as scope:
                await case.call(world)
            if not restarts:
                await finish(world)
            else:
                world.runtime.stop(timeout=0)
        if restarts:
            async with started(executor, store=store, sink=sink, submit_chunk=3) as world:
                await finish(world)
        return scope.cancelled_caught

    async def nap(delivery: Any) -> Any:
        await trio.sleep(1)
        return Executed([delivery.id])

    async def finish(world: World) -> None:
        if not any(report.is_completed for report in world.intake.epochs()):
            await case.call(world)
        await world.intake.seal_epoch("nightly")
        report = await world.intake.wait_epoch("nightly")
        assert len(world.sink.ops) == len(set(world.sink.ops)) == case.committed
        assert (report.committed, report.cancelled) == (case.committed, case.cancelled)
        assert (report.dead, report.expired, report.skipped, report.unfinished) == (0, 0, 0, 0)
        await world.intake.wait_idle()
        assert world.runtime.statistics().in_flight == 0

    at_every_await(trial, at_least=case.at_least)


# The whole runtime is cancelled, and another one on the same store goes on.


@define
class Play:
    """An executor whose messages do everything that messages can do, each in the end with one op.

    What it answers depends on what has happened, not on how often it was asked: answers get lost.
    """

    sink: MemorySink[Any]

    async def execute(self, delivery: Any) -> Any:
        name = delivery.id
        await trio.sleep(1)
        if name == "file":
            rows = [Message(f"row{n}", None, kind="row") for n in range(5)]
            return Executed([name], rows, [Resource("schema", 1)], b"5 rows")
        if name == "again" and not delivery.attempt:
            raise Transient("busy")
        if name == "later" and "row4" not in self.sink.ops:
            return Deferred(["row4"])
        return Executed([name])


PLAY = [
    Message("total", None, kind="total", depends_on=[Dependency.barrier("row")]),
    Message("file", None, kind="file"),
    Message("later", None, kind="other"),
    Message("again", None, kind="other", key="k"),
    Message("second", None, kind="other", key="k"),
    Message("user", None, kind="other", depends_on=[Dependency.resource("schema", 1), "file"]),
]
OPS = sorted([*(message.id for message in PLAY), *(f"row{n}" for n in range(5))])
DERIVES = {"file": ["row"], "row": [], "total": [], "other": []}


async def run_the_program(intake: IntakeHandle[Any]) -> EpochReport:
    """Be a program that can simply be run again."""
    epoch = await intake.new_epoch("nightly")
    if not epoch.report.is_completed:
        if epoch.report.state == "open":
            await epoch.submit(PLAY)
        await epoch.seal()
    return await epoch.wait()


class Trial:
    """A store and a sink that outlive the runtimes on them."""

    def __init__(self, pause: float | None = None, **config: Any) -> None:
        self.clock = TrioClock(START)
        self.store = WaitingStore(self.clock, pause)
        self.sink = Dawdling()
        self.play = Play(self.sink)
        self.config = {"derives": DERIVES, "max_derived": 2, "submit_chunk": 2} | config

    def runtime(self) -> Any:
        return make_runtime(self.play, self.sink, self.store, self.clock, **self.config)

    async def finish(self) -> None:
        """Let a new runtime finish what the first one left."""
        with bounded():
            async with self.runtime().running() as intake:
                report = await run_the_program(intake)
        assert report.is_completed
        assert (report.submitted, report.committed, report.unfinished) == (len(OPS), len(OPS), 0)
        assert sorted(self.sink.ops) == OPS
        order = list(self.sink.ops)
        assert order.index("total") > max(order.index(f"row{n}") for n in range(5))
        assert order.index("later") > order.index("row4")
        assert order.index("user") > order.index("file")


@pytest.mark.parametrize("max_in_flight", [1, 256])
@STORES
def test_a_runtime_that_is_cancelled_anywhere_loses_nothing(max_in_flight, pause):
    """Every task counts, so this cancels executors, sinks, the clock, recovery and the caller alike."""

    async def trial(at: int) -> bool:
        world = Trial(pause, max_in_flight=max_in_flight)
        runtime = world.runtime()
        with bounded(), cancelled_at(at, only_this_task=False) as scope:
            async with runtime.running() as intake:
                await run_the_program(intake)
        assert runtime.state in ("stopped", "created")
        assert runtime.statistics().state == runtime.state
        await world.finish()
        return scope.cancelled_caught

    at_every_await(trial, at_least=40)


@STORES
def test_run_forever_cancelled_anywhere_loses_nothing(pause):
    async def trial(at: int) -> bool:
        world = Trial(pause)
        runtime = world.runtime()
        with bounded(), cancelled_at(at, only_this_task=False) as scope:
            async with trio.open_nursery() as nursery:
                intake = await nursery.start(runtime.run_forever)
                await run_the_program(intake)
                runtime.stop()
        await world.finish()
        return scope.cancelled_caught

    at_every_await(trial, at_least=40)


@STORES
def test_a_recovery_that_is_cancelled_anywhere_can_be_made_again(pause):
    async def trial(at: int) -> bool:
        world = Trial(pause, max_in_flight=1)
        with trio.move_on_after(3.5):
            async with world.runtime().running() as intake:
                await run_the_program(intake)
        with bounded(), cancelled_at(at, only_this_task=False) as scope:
            async with world.runtime().running() as intake:
                await run_the_program(intake)
        await world.finish()
        return scope.cancelled_caught

    at_every_await(trial, at_least=30)


@STORES
def test_a_drain_that_is_cancelled_anywhere_loses_nothing(pause):
    async def trial(at: int) -> bool:
        world = Trial(pause)
        runtime = world.runtime()
        scope = trio.CancelScope()
        with bounded(), scope:
            async with runtime.running() as intake:
                epoch = await intake.new_epoch("nightly")
                await epoch.submit(PLAY)
                await trio.sleep(0.5)
                runtime.stop(timeout=10)
                canceller = Canceller(at, scope, None)
                trio.lowlevel.add_instrument(canceller)
        trio.lowlevel.remove_instrument(canceller)
        await world.finish()
        return scope.cancelled_caught

    at_every_await(trial, at_least=5)


@pytest.mark.parametrize("timeout", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
@STORES
def test_a_stop_at_any_time_loses_nothing(timeout, pause):
    async def main() -> None:
        world = Trial(pause)
        runtime = world.runtime()
        with bounded():
            async with runtime.running() as intake:
                epoch = await intake.new_epoch("nightly")
                await epoch.submit(PLAY)
                await trio.sleep(timeout)
                runtime.stop(timeout=0)
                with pytest.raises(RuntimeStopped):
                    await epoch.wait()
        assert runtime.state == "stopped"
        await world.finish()

    run_with(0, main)


@pytest.mark.parametrize("at", range(1, 40))
@STORES
def test_a_program_that_is_killed_again_and_again_gets_there(at, pause):
    async def main() -> None:
        world = Trial(pause)
        for more in range(200):
            # A little later each time: a program that never gets past its recovery would never end.
            with bounded(), cancelled_at(at + more, only_this_task=False) as scope:
                async with world.runtime().running() as intake:
                    await run_the_program(intake)
            if not scope.cancelled_caught:
                break
        assert not scope.cancelled_caught
        await world.finish()

    run_with(at, main)


# What is cancelled in the middle.


async def test_an_executor_that_is_cancelled_in_the_middle_runs_again_without_spending_an_attempt():
    attempts = []

    async def work(delivery: Any) -> Any:
        attempts.append(delivery.attempt)
        await trio.sleep(5)
        return Executed([delivery.id])

    store = MemoryStore(clock=TrioClock(START))
    with trio.move_on_after(2):
        async with started(work, store=store) as world:
            epoch = await world.intake.new_epoch("nightly")
            await epoch.submit(messages("a"))
            await epoch.wait()
    async with started(work, store=store) as world:
        await world.intake.seal_epoch("nightly")
        assert (await world.intake.wait_epoch("nightly")).committed == 1
    assert attempts == [0, 0]


async def test_a_sink_that_is_cancelled_after_it_applied_a_batch_gets_it_again():
    class Stuck(MemorySink[Any]):
        async def commit(self, batch: CommitBatch[Any]) -> None:
            await super().commit(batch)
            if self.commits == 1:
                await trio.sleep_forever()

    store, sink = MemoryStore(clock=TrioClock(START)), Stuck()
    with trio.move_on_after(2):
        async with started(store=store, sink=sink) as world:
            epoch = await world.intake.new_epoch("nightly")
            await epoch.submit([*messages("a"), Message("b", None, depends_on=["a"])])
            await epoch.wait()
    assert list(sink.ops) == ["a"]
    async with started(store=store, sink=sink) as world:
        await world.intake.seal_epoch("nightly")
        assert (await world.intake.wait_epoch("nightly")).committed == 2
    assert list(sink.ops) == ["a", "b"]


async def test_a_waiter_that_is_cancelled_with_others_leaves_no_trace():
    async with started(Playing()) as world:
        epoch = await world.intake.new_epoch()
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(epoch.wait)
                    nursery.start_soon(world.intake.wait_idle)
        await epoch.submit(messages("a"))
        await epoch.seal()
        assert (await epoch.wait()).committed == 1
