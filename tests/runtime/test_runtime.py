"""The front door: starting, stopping, failing and starting again, and what is measured on the way."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import (
    Dependency,
    Executed,
    Fatal,
    IngestRuntime,
    MemorySink,
    MemoryStore,
    Message,
    Resource,
    RuntimeComponents,
    RuntimeFailed,
    Skipped,
    SystemFailure,
)
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import (
    START,
    Playing,
    TroubledSink,
    World,
    answers,
    bounded,
    chain,
    make_runtime,
    messages,
    naps,
    run_with,
    started,
)

# Starting.


async def test_the_shortest_program():
    class Load:
        async def execute(self, delivery):
            return Executed(ops=[("load", delivery.payload)])

    sink = MemorySink()
    runtime = IngestRuntime(RuntimeComponents(executor=Load(), commit_sink=sink))
    with bounded():
        async with runtime.running() as intake:
            async with intake.epoch("nightly") as epoch:
                await epoch.submit(
                    [Message("orders", {"table": "orders"}, depends_on=["users"]), Message("users", {"table": "users"})]
                )
            report = await epoch.wait()
    assert report.succeeded
    assert list(sink.ops) == [("load", {"table": "users"}), ("load", {"table": "orders"})]
    assert runtime.state == "stopped"


async def test_the_long_form():
    sink = MemorySink()
    runtime = make_runtime(Playing(), sink, None, TrioClock())
    assert runtime.state == "created"
    with bounded():
        async with trio.open_nursery() as nursery:
            intake = await nursery.start(runtime.run_forever)
            assert runtime.state == "running"
            assert intake.runtime is runtime
            epoch = await intake.new_epoch()
            await epoch.submit(messages("a", "b"))
            await epoch.seal()
            assert (await intake.wait_epoch(epoch)).committed == 2
            runtime.stop()
    assert runtime.state == "stopped"
    assert sorted(sink.ops) == ["a", "b"]


async def test_the_block_raises_its_own_exception_as_it_is():
    boom = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with started():
            raise boom
    assert caught.value is boom


async def test_a_group_of_the_block_is_raised_as_it_is():
    boom = ExceptionGroup("mine", [ValueError("one"), KeyError("two")])
    with pytest.raises(ExceptionGroup) as caught:
        async with started():
            raise boom
    assert caught.value is boom


async def test_the_block_finishes_what_was_started_when_it_raises():
    with pytest.raises(KeyError):
        async with started(naps(5)) as world:
            epoch = await world.intake.new_epoch()
            await epoch.submit(messages("a"))
            await trio.sleep(1)
            raise KeyError
    assert list(world.sink.ops) == ["a"]


async def test_cancelling_the_block_from_outside_ends_the_runtime_at_once():
    with trio.move_on_after(2):
        async with started(naps(500)) as world:
            await world.batch(*messages("a"))
    assert trio.current_time() == 2
    assert world.runtime.state == "stopped"


async def test_a_system_failure_reaches_every_waiter():
    errors = []

    async def wait(wait_for):
        try:
            await wait_for()
        except RuntimeFailed as error:
            errors.append(error)

    runtime = make_runtime(
        Playing(answers({"bad": SystemFailure("disk gone")})), MemorySink(), None, clock=TrioClock(START)
    )
    with bounded(), pytest.RaisesGroup(pytest.RaisesExc(SystemFailure, match="disk gone")):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(shield=True):
                intake = await nursery.start(runtime.run_forever)
                epochs = [await intake.new_epoch() for _ in range(3)]
                async with trio.open_nursery() as waiters:
                    for epoch in epochs:
                        waiters.start_soon(wait, epoch.wait)
                    await trio.sleep(1)
                    await epochs[0].submit(messages("bad"))
                for call in (
                    epochs[0].wait,
                    epochs[1].seal,
                    intake.wait_idle,
                    intake.new_epoch,
                    lambda: epochs[0].submit(messages("late")),
                    lambda: intake.notify_dependency_ready(Resource("r")),
                    epochs[2].cancel,
                ):
                    await wait(call)
    # Waiting until nothing goes on is no wait for one who finds nothing going on.
    assert len(errors) in (9, 10)
    assert all(isinstance(error.__cause__, SystemFailure) for error in errors)
    assert runtime.state == "failed"


async def test_a_system_failure_ends_the_short_form_as_runtime_failed():
    with pytest.raises(RuntimeFailed, match="disk gone"):
        async with started({"bad": SystemFailure("disk gone")}) as world:
            epoch = await world.intake.new_epoch()
            await epoch.submit(messages("bad"))
            await epoch.wait()


async def test_a_system_failure_hands_the_message_back_and_finishes_the_commit():
    store = MemoryStore(clock=TrioClock(START))
    sink = TroubledSink()
    with pytest.raises(RuntimeFailed):
        async with started({"bad": SystemFailure("disk gone")}, store=store, sink=sink) as world:
            epoch = await world.intake.new_epoch("nightly")
            await epoch.submit(messages("good", "bad"))
            await epoch.wait()
    assert list(sink.ops) == ["good"]
    async with started(store=store, sink=sink) as world:
        await world.intake.seal_epoch("nightly")
        report = await world.intake.wait_epoch("nightly")
        assert (report.committed, report.dead) == (2, 0)
        assert world.executor.seen == ["bad"]


async def fails_and_goes_on(calls: int) -> World:
    """Let the runtime fail while the caller goes on making calls; return what it was made of."""
    with pytest.raises(RuntimeFailed) as caught:
        async with started({"bad": SystemFailure("disk gone")}) as world:
            epoch = await world.intake.new_epoch()
            await epoch.submit(messages("bad"))
            for n in range(calls):
                await epoch.submit(messages(f"m{n}"))
            await epoch.wait()
    assert isinstance(caught.value.__cause__, SystemFailure), caught.value
    return world


def test_nothing_is_started_after_a_system_failure():
    for seed in range(60):
        world = run_with(seed, fails_and_goes_on, 1)
        assert world.executor.seen.count("bad") == 1


def test_a_caller_who_meets_a_failing_runtime_is_told_so():
    for seed in range(60):
        run_with(seed, fails_and_goes_on, 20)


# Stopping.


async def test_stop_finishes_what_runs_and_hands_back_what_does_not():
    store = MemoryStore(clock=TrioClock(START))
    work = {"short": naps(5), "long": naps(500)}
    async with started(work, store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit([*messages("short", "long"), Message("next", None, depends_on=["short"])])
        await epoch.seal()
        await trio.sleep(1)
        world.runtime.stop(timeout=10)
        await trio.sleep(1)
        assert world.runtime.state == "draining"
    assert world.clock.wall() == START + 11
    assert list(world.sink.ops) == ["short"]
    assert world.runtime.state == "stopped"
    async with started(store=store, sink=world.sink) as second:
        assert (await second.intake.wait_epoch("nightly")).committed == 3
        assert sorted(second.executor.seen) == ["long", "next"]


async def test_stop_does_not_wait_longer_than_it_must():
    async with started({"a": naps(5)}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([*messages("a"), Message("b", None, depends_on=["ghost"])])
        await trio.sleep(1)
        world.runtime.stop()
    assert world.clock.wall() == START + 5


async def test_nothing_new_starts_while_draining():
    async with started(naps(5), max_in_flight=2) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*(f"m{n}" for n in range(10))))
        await trio.sleep(1)
        world.runtime.stop()
    assert len(world.sink.ops) == 2
    assert world.clock.wall() == START + 5


async def test_waiting_for_idle_ends_when_all_that_is_left_waits():
    async with started(naps(3)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([*chain(3), Message("never", None, depends_on=["ghost"])])
        await world.intake.wait_idle()
        assert world.clock.wall() == START + 9
        assert epoch.report.unfinished == 1


# After a restart.


async def test_an_epoch_goes_on_after_a_restart_with_all_its_counts():
    store = MemoryStore(clock=TrioClock(START))
    work = {"dead": Fatal("bad"), "skipped": Skipped()}
    async with started(work, store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit([*messages("a", "dead", "skipped"), Message("waits", None, depends_on=["later"])])
        await world.intake.wait_idle()
    async with started(store=store) as world:
        epoch = await world.intake.get_epoch("nightly")
        assert (await epoch.submit(messages("a", "dead", "later"))).duplicates == 2
        await epoch.seal()
        report = await epoch.wait()
        assert (report.submitted, report.committed, report.dead, report.skipped) == (5, 3, 1, 1)
        assert world.executor.seen == ["later", "waits"]


async def test_a_completed_epoch_is_still_completed_after_a_restart():
    store = MemoryStore(clock=TrioClock(START))
    async with started(store=store) as world:
        await world.batch(*messages("a"), name="nightly")
    async with started(store=store) as world:
        assert (await world.intake.wait_epoch("nightly")).is_completed


async def test_the_report_of_a_completed_epoch_survives_a_restart():
    store = MemoryStore(clock=TrioClock(START))
    async with started(store=store) as world:
        before = await world.batch(*messages("a"), name="nightly")
    async with started(store=store) as world:
        assert await world.intake.wait_epoch("nightly") == before


async def test_an_epoch_that_did_not_succeed_has_not_succeeded_after_a_restart():
    store = MemoryStore(clock=TrioClock(START))
    async with started(naps(10), store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit(messages("a"))
        await epoch.cancel()
        assert not (await epoch.wait()).succeeded
    async with started(store=store) as world:
        assert not (await world.intake.wait_epoch("nightly")).succeeded


async def test_the_failures_of_an_epoch_survive_a_restart():
    store = MemoryStore(clock=TrioClock(START))
    async with started({"a": Fatal("bad data")}, store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit(messages("a"))
        await world.intake.wait_idle()
    async with started(store=store) as world:
        report = world.intake.report("nightly")
        assert report.dead == 1
        assert [failure.message_id for failure in report.failures] == ["a"]


async def test_what_ended_in_an_epoch_that_is_gone_still_counts_for_those_who_wait():
    """A message skipped in a completed epoch has told its children, although its id is known no more."""
    async with started({"parent": Skipped(), "slow": naps(5)}) as world:
        waits = [Dependency.message("parent", "first")]
        second = await world.intake.new_epoch("second")
        await second.submit(Message("child", None, depends_on=waits))
        await second.seal()
        await world.batch(*messages("parent"), name="first")
        assert (await second.wait()).skipped == 1


async def test_a_message_may_wait_for_worse_longer_than_its_bad_parent_is_kept():
    async with started({"parent": Skipped(), "slow": naps(5)}) as world:
        second = await world.intake.new_epoch("second")
        waits = [Dependency.message("parent", "first"), "slow"]
        await second.submit([Message("child", None, depends_on=waits), *messages("slow")])
        await second.seal()
        await world.batch(*messages("parent"), name="first")
        assert (await second.wait()).skipped == 1


# Measuring.


class Meter:
    """Metrics that note every call."""

    def __init__(self):
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def of(self, hook: str) -> list[tuple[Any, ...]]:
        return [args for name, args in self.calls if name == hook]

    def __getattr__(self, hook: str) -> Any:
        return lambda *args: self.calls.append((hook, args))


async def test_metrics_hear_of_submits_and_of_completed_epochs():
    meter = Meter()
    async with started(metrics=meter) as world:
        await world.batch(*messages("a", "b", "a"), name="nightly")
        key = world.store._ledger._names["nightly"].key
    assert meter.of("submitted") == [(key, 2, 1, 0)]
    assert (key, "completed") in meter.of("epoch_changed")


async def test_metrics_hear_of_blocked_epochs():
    meter = Meter()
    async with started(metrics=meter) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", None, depends_on=[Dependency.resource("approved", external=True)]))
        await epoch.seal()
        await epoch.wait(until="blocked")
        assert [state for _, state in meter.of("epoch_changed")][-1] == "blocked"


@pytest.mark.parametrize("hook", ["executed", "ended", "sink_committed"])
async def test_metrics_hear_of_work(hook):
    meter = Meter()
    async with started(metrics=meter) as world:
        await world.batch(*messages("a"))
    assert meter.of(hook)


async def test_metrics_hear_of_every_state_of_an_epoch():
    meter = Meter()
    async with started(metrics=meter) as world:
        await world.batch(*messages("a"))
    assert [state for _, state in meter.of("epoch_changed")] == ["opened", "sealed", "completed"]
