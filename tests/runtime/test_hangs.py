"""Every way in which the first design of this system hung, lost messages or slowed down; see the architecture, §8."""

from __future__ import annotations

import itertools

import pytest
import trio

from naviscope_ingest import Deferred, Dependency, EpochSealed, Executed, Fatal, MemoryStore, Message, Permanent
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import START, Playing, World, chain, failures, messages, naps, started


def assert_nothing_is_left(world: World) -> None:
    """See that what was done has left nothing behind that the next message would have to step over."""
    statistics = world.runtime.statistics()
    assert (statistics.unfinished, statistics.waiting, statistics.in_flight) == (0, 0, 0)
    core = world.runtime._kernel.core
    assert not core._nodes
    assert not core.schedule.has_ready()
    assert not len(core.schedule.lanes)
    assert core.next_due is None
    assert all(not (epoch.live or epoch.done or epoch.ghosts or epoch.doomed) for epoch in core.epochs.values())
    kept = world.store.statistics()
    assert kept.messages == 0


# An unresolvable dependency.


async def test_an_unresolvable_dependency_fails_its_message_after_the_grace_period():
    async with started(stall_grace=5.0) as world:
        report = await world.batch(Message("a", None, depends_on=["ghost"]), *messages("b"))
        assert (report.committed, report.dead) == (1, 1)
        assert "ghost" in failures(report)["a"][1]
        assert report.completed_at == pytest.approx(START + 5.0)


@pytest.mark.parametrize(("policy", "end"), [("run", "committed"), ("skip", "skipped"), ("fail", "dead")])
async def test_an_unresolvable_dependency_follows_its_policy(policy, end):
    async with started() as world:
        report = await world.batch(Message("a", None, depends_on=[Dependency.message("ghost", on_unresolved=policy)]))
        assert getattr(report, end) == 1


async def test_an_unresolvable_dependency_told_to_wait_is_visibly_blocked():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", None, depends_on=[Dependency.message("ghost", on_unresolved="wait")]))
        await epoch.seal()
        report = await epoch.wait(until="blocked")
        assert report.is_blocked
        assert not report.is_completed


async def test_children_of_an_unresolvable_message_end_too():
    async with started() as world:
        report = await world.batch(Message("a", None, depends_on=["ghost"]), Message("b", None, depends_on=["a"]))
        assert report.dead == 2


async def test_a_dependency_on_an_epoch_that_never_comes_does_not_hang():
    async with started() as world:
        report = await world.batch(Message("a", None, depends_on=[Dependency.epoch("nowhere")]))
        assert report.dead == 1


# A cycle.


@pytest.mark.parametrize("size", [2, 3, 50])
async def test_a_cycle_dies_at_once_and_is_named(size):
    circle = [Message(f"m{n}", None, depends_on=[f"m{(n + 1) % size}"]) for n in range(size)]
    async with started() as world:
        report = await world.batch(*circle, *messages("other"))
        assert (report.committed, report.dead) == (1, size)
        assert all("circle" in error or "m0" in error for _, error in failures(report).values())
        assert report.completed_at == pytest.approx(START)


async def test_a_cycle_made_by_deferrals_dies():
    async with started({"a": Deferred(["b"]), "b": Deferred(["a"])}) as world:
        report = await world.batch(*messages("a", "b"))
        assert report.dead == 2


# An executor that defers itself.


@pytest.mark.parametrize("depends_on", [["a"], [], [Dependency.message("a")], [Dependency.barrier("message")]], ids=str)
async def test_a_deferral_that_could_never_end_is_a_bug_and_kills_the_message(depends_on):
    async with started({"a": Deferred(depends_on)}) as world:
        report = await world.batch(*messages("a", "b"), Message("child", None, depends_on=["a"]))
        assert (report.committed, report.dead) == (1, 2)
        assert "deferred" in failures(report)["a"][1]
        assert world.executor.seen.count("a") == 1


async def test_an_executor_that_always_defers_is_stopped_after_a_hundred_times():
    async with started({"a": Deferred(["b"])}) as world:
        report = await world.batch(*messages("a", "b"))
        assert (report.committed, report.dead) == (1, 1)
        assert "more than 100 times" in failures(report)["a"][1]
        assert world.executor.seen.count("a") == 101


async def test_an_executor_that_always_defers_to_something_new_is_stopped_too():
    names = itertools.count()

    async def work(delivery):
        if delivery.id == "a":
            return Deferred([Dependency.resource(f"r{next(names)}", on_unresolved="run")])
        return Executed()

    async with started(work, max_deferrals=3, stall_grace=1.0) as world:
        report = await world.batch(*messages("a"))
        assert report.dead == 1
        assert "more than 3 times" in failures(report)["a"][1]


# After a Fatal.


@pytest.mark.parametrize("answer", [Fatal("no"), Permanent("no"), ValueError("no")], ids=repr)
async def test_a_failed_parent_never_strands_its_children(answer):
    family = [
        *messages("a"),
        Message("follows", None, depends_on=["a"]),
        Message("skips", None, depends_on=[Dependency.message("a", otherwise="skip")]),
        Message("runs", None, depends_on=[Dependency.message("a", otherwise="run")]),
        Message("grandchild", None, depends_on=["follows"]),
    ]
    async with started({"a": answer}) as world:
        report = await world.batch(*family)
        assert (report.dead, report.skipped, report.committed) == (3, 1, 1)
        assert {failure.message_id: failure.causes for failure in report.failures} == {
            "a": (),
            "follows": ["a"],
            "grandchild": ["follows"],
        }


async def test_children_that_come_after_the_failure_end_too():
    async with started({"a": Fatal("no")}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await world.intake.wait_idle()
        await epoch.submit(Message("late", None, depends_on=["a"]))
        await epoch.seal()
        assert (await epoch.wait()).dead == 2


# Every slot taken.


async def test_deferred_messages_hold_no_slot():
    waits = {f"w{n}": [Deferred(["last"])] for n in range(20)}
    async with started(waits, max_in_flight=1) as world:
        report = await world.batch(*messages(*waits, "last"))
        assert report.committed == 21
        assert world.executor.most == 1


async def test_derived_messages_need_no_slot_of_their_parent():
    async def work(delivery):
        depth = delivery.payload
        return Executed([delivery.id], [Message(f"{delivery.id}.{n}", depth - 1) for n in range(3)] if depth else ())

    async with started(work, max_in_flight=1) as world:
        report = await world.batch(Message("m", 4))
        assert report.committed == 1 + 3 + 9 + 27 + 81
        assert world.executor.most == 1


async def test_a_parent_that_waits_for_what_it_could_derive_does_not_deadlock_with_one_slot():
    answers = {"a": [Deferred(["b"])], "b": [Executed(["b"], [Message("c", None)])], "c": [Deferred(["a"])]}
    async with started(answers, max_in_flight=1) as world:
        assert (await world.batch(*messages("a", "b"))).committed == 3


async def test_an_executor_may_submit_with_one_slot():
    async def work(delivery):
        if delivery.id == "a":
            await world.intake.submit("other", messages("b", "c"))
            await world.intake.seal_epoch("other")
        return Executed([delivery.id])

    async with started(work, max_in_flight=1) as world:
        await world.intake.new_epoch("other")
        await world.batch(*messages("a"))
        assert (await world.intake.wait_epoch("other")).committed == 2


# Waiting twice.


async def test_anyone_may_wait_any_number_of_times():
    async with started(naps(3)) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit(messages("a"))
        reports = []

        async def wait():
            reports.append(await world.intake.wait_epoch("nightly"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait)
            await trio.sleep(1)
            await epoch.seal()
            await epoch.wait()
        reports += [await epoch.wait(), await epoch.wait()]
        assert len(reports) == 7
        assert all(report == reports[0] for report in reports)


async def test_a_waiter_that_gives_up_leaves_the_others_waiting():
    async with started(naps(3)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await epoch.seal()
        with trio.move_on_after(1) as scope:
            await epoch.wait()
        assert scope.cancelled_caught
        assert (await epoch.wait()).committed == 1


async def test_an_empty_sealed_epoch_completes_at_once():
    async with started() as world:
        report = await world.batch()
        assert report.succeeded
        assert report.submitted == 0
        assert report.completed_at == START


# Late submits and duplicates.


async def test_a_late_submit_to_a_completed_epoch_is_refused():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await epoch.seal()
        before = await epoch.wait()
        with pytest.raises(EpochSealed, match="does not know message 'late'"):
            await epoch.submit(messages("late"))
        assert await epoch.wait() == before
        assert world.executor.seen == ["a"]


async def test_known_ids_of_a_sealed_epoch_are_duplicates():
    async with started(naps(5)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b"))
        await epoch.seal()
        receipt = await epoch.submit(messages("b", "a"))
        assert (receipt.accepted, receipt.duplicates) == (0, 2)
        with pytest.raises(EpochSealed) as caught:
            await epoch.submit(messages("a", "c", "b"))
        assert caught.value.message_id == "c"
        report = await epoch.wait()
        assert (report.submitted, report.committed, report.duplicates) == (2, 2, 2)


async def test_known_ids_of_a_completed_epoch_are_duplicates_while_they_are_kept():
    """A dead letter keeps the ids of its epoch; otherwise they go when it completes."""
    async with started({"dead": Fatal("no")}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "dead"))
        await epoch.seal()
        await epoch.wait()
        assert (await epoch.submit(messages("a", "dead"))).duplicates == 2
        with pytest.raises(EpochSealed):
            await epoch.submit(messages("b"))


async def test_duplicates_do_not_complete_an_epoch_early():
    gate = trio.Event()

    async def work(delivery):
        if delivery.id == "slow":
            await gate.wait()
        return Executed([delivery.id])

    async with started(work) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("slow", "a", "a", "a"))
        await epoch.submit(messages("a", "slow"))
        await epoch.seal()
        await trio.sleep(100)
        assert epoch.report.state == "sealed"
        assert (epoch.report.submitted, epoch.report.unfinished, epoch.report.duplicates) == (2, 1, 4)
        gate.set()
        assert (await epoch.wait()).committed == 2


async def test_duplicates_do_not_keep_an_epoch_open():
    async def work(delivery):
        return Executed([delivery.id], messages("a", "b", "c"))

    async with started(work) as world:
        report = await world.batch(*messages("a", "b", "a", "b"))
        # Two were submitted again; of the nine that were derived, only one was new.
        assert (report.submitted, report.committed, report.duplicates) == (3, 3, 2 + 8)
        assert sorted(world.sink.ops) == ["a", "b", "c"]


# Speed.


@pytest.mark.parametrize("reverse", [False, True])
async def test_dependency_levels_take_no_time(reverse):
    levels = chain(1_000)
    async with started() as world:
        report = await world.batch(*(levels[::-1] if reverse else levels))
        assert report.committed == 1_000
        assert world.clock.wall() == START
        assert list(world.sink.ops) == [f"m{n}" for n in range(1_000)]


async def test_levels_that_are_deferred_take_no_time_either():
    answers = {f"m{n}": [Deferred([f"m{n - 1}"])] for n in range(1, 200)}
    async with started(answers) as world:
        assert (await world.batch(*messages("m0", *answers))).committed == 200
        assert world.clock.wall() == START


async def test_nothing_is_left_of_messages_that_are_done():
    async with started() as world:
        for round_ in range(5):
            mixed = [
                Message(f"m{n}", None, key=f"k{n % 7}", priority=n % 3, depends_on=[f"m{n - 1}"] if n % 2 else ())
                for n in range(400)
            ]
            assert (await world.batch(*mixed, name=f"round {round_}")).committed == 400
            assert_nothing_is_left(world)
        assert world.runtime.statistics().committed == 2_000


async def test_nothing_is_left_in_an_open_epoch_but_the_ids():
    """An epoch that is never sealed may live for long: what is done must not be gone through again."""
    async with started() as world:
        epoch = await world.intake.new_epoch()
        for start in range(0, 2_000, 500):
            await epoch.submit(Message(f"m{n}", None, key=f"k{n % 3}") for n in range(start, start + 500))
            await world.intake.wait_idle()
            core = world.runtime._kernel.core
            assert not core._nodes
            assert not core.schedule.has_ready()
            assert not len(core.schedule.lanes)
            assert core.next_due is None
            assert len(core.epochs[epoch.number].done) == start + 500


# Nothing is lost.


async def test_what_a_stopped_runtime_had_started_is_finished_by_the_next_one():
    """A message is not removed from the store when it is started, so it survives its executor."""
    clock = TrioClock(START)
    store, work = MemoryStore(clock=clock), [*chain(30), *messages(*(f"x{n}" for n in range(30)))]
    executor = Playing(naps(1))
    async with started(executor, store=store, max_in_flight=8) as first:
        epoch = await first.intake.new_epoch("nightly")
        await epoch.submit(work)
        await epoch.seal()
        await trio.sleep(2.5)
        assert executor.running
        first.runtime.stop(timeout=0)
    cut_off = set(executor.seen) - set(first.sink.ops)
    assert cut_off
    async with started(executor, store=store, sink=first.sink) as second:
        report = await second.intake.wait_epoch("nightly")
        assert (report.submitted, report.committed) == (60, 60)
    assert sorted(first.sink.ops) == sorted(message.id for message in work)
    assert cut_off <= set(executor.seen[-60:])


async def test_what_a_crashed_runtime_had_started_is_finished_by_the_next_one():
    store = MemoryStore(clock=TrioClock(START))
    executor = Playing(naps(1))
    sink = None
    with pytest.raises(KeyError, match="power cut"):
        async with started(executor, store=store, drain_timeout=0.0) as first:
            sink = first.sink
            epoch = await first.intake.new_epoch("nightly")
            await epoch.submit(messages(*"abcdef"))
            await trio.sleep(0.5)
            raise KeyError("power cut")
    assert not sink.ops
    async with started(executor, store=store, sink=sink) as second:
        epoch = await second.intake.new_epoch("nightly")
        assert (await epoch.submit(messages(*"abcdef"))).duplicates == 6
        await epoch.seal()
        assert (await epoch.wait()).committed == 6
    assert sorted(sink.ops) == list("abcdef")


async def test_a_cancelled_executor_does_not_lose_other_messages():
    async with started(naps(2), max_in_flight=2) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*"abcdef"))
        await epoch.seal()
        await trio.sleep(1)
        assert await epoch.cancel("a")
        report = await epoch.wait()
        assert (report.committed, report.cancelled) == (5, 1)
        assert sorted(world.sink.ops) == list("bcdef")
