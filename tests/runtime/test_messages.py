"""What happens to a message from outside: cancelling, time, resources, and what others derive."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import (
    Deferred,
    Dependency,
    Executed,
    Fatal,
    MemoryStore,
    Message,
    Resource,
    Transient,
    UnknownMessage,
    task_key,
)
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import (
    START,
    GatedSink,
    failures,
    messages,
    naps,
    started,
)

# Cancelling and time.


async def test_cancelling_a_running_message_cancels_its_executor():
    noticed = []

    async def work(delivery):
        try:
            await trio.sleep(100)
        except trio.Cancelled:
            noticed.append(world.clock.wall())
            raise

    async with started(work) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([*messages("a"), Message("child", None, depends_on=["a"])])
        await epoch.seal()
        await trio.sleep(1)
        assert await epoch.cancel("a")
        report = await epoch.wait()
        assert report.cancelled == 2
        assert not await world.intake.wait_idle()
        assert noticed == [START + 1]
        assert world.runtime.statistics().in_flight == 0
        assert not world.sink.ops


async def test_an_answer_that_comes_after_the_cancel_is_dropped():
    async def work(delivery):
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return Executed([delivery.id], messages("child"))

    async with started(work) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await epoch.seal()
        await trio.sleep(1)
        assert await epoch.cancel("a")
        assert (await epoch.wait()).cancelled == 1
        await world.intake.wait_idle()
        assert not world.sink.ops
        assert world.executor.seen == ["a"]
        # The worker that was told to stop works on.
        assert (await world.batch(*messages("b"))).committed == 2


async def test_cancelling_a_waiting_message():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", None, depends_on=["b"]))
        assert await epoch.cancel("a")
        assert not await epoch.cancel("a")
        await epoch.submit(messages("b"))
        await epoch.seal()
        report = await epoch.wait()
        assert (report.cancelled, report.committed) == (1, 1)


async def test_a_committed_message_cannot_be_cancelled():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await world.intake.wait_idle()
        assert not await epoch.cancel("a")
        with pytest.raises(UnknownMessage):
            await epoch.cancel("nobody")
        assert epoch.report.committed == 1


async def test_commit_wins_over_cancel_once_the_sink_has_the_outcome():
    sink = GatedSink()
    async with started({"a": Executed(["a"], messages("child"))}, sink=sink) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await sink.entered.wait()
        assert not await epoch.cancel("a")
        assert await epoch.cancel()
        sink.gate.set()
        report = await epoch.wait()
        assert (report.committed, report.cancelled, report.submitted) == (1, 0, 1)
        assert list(sink.ops) == ["a"]


async def test_a_message_that_is_cancelled_while_its_failure_waits_for_the_sink_fails_once():
    sink = GatedSink()
    async with started({"bad": Fatal("no")}, sink=sink) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("good", "bad"))
        await epoch.seal()
        await sink.entered.wait()
        await epoch.cancel("bad")
        sink.gate.set()
        report = await epoch.wait()
        assert report.dead + report.cancelled == 1
        assert len(report.failures) == 1


async def test_cancelling_an_epoch_ends_what_has_not_committed():
    async with started({"slow": naps(100)}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([*messages("done", "slow"), Message("waits", None, depends_on=["slow"])])
        await trio.sleep(1)
        await epoch.cancel()
        report = await epoch.wait()
        assert (report.committed, report.cancelled) == (1, 2)
        assert report.sealed_at == START + 1
        await epoch.cancel()
        assert epoch.report == report


async def test_what_passes_the_deadline_of_its_epoch_expires():
    async with started({"slow": naps(100)}) as world:
        epoch = await world.intake.new_epoch(deadline=START + 10)
        await epoch.submit([*messages("done", "slow"), Message("waits", None, depends_on=["ghost"])])
        await trio.sleep(11)
        assert epoch.report.expired == 2
        assert epoch.report.state == "open"
        await epoch.submit(messages("late"))
        await epoch.seal()
        report = await epoch.wait()
        assert (report.committed, report.expired) == (1, 3)
        assert "deadline" in failures(report)["slow"][1]


async def test_a_message_expires_before_it_starts_but_not_while_it_runs():
    async with started(naps(10), max_in_flight=1) as world:
        report = await world.batch(
            Message("runs", None, expires_at=START + 5), Message("waits for its turn", None, expires_at=START + 5)
        )
        assert (report.committed, report.expired) == (1, 1)
        assert world.executor.seen == ["runs"]


async def test_a_message_does_not_start_before_its_time():
    times = {}

    async def work(delivery):
        times[delivery.id] = world.clock.wall() - START
        return Executed()

    async with started(work) as world:
        await world.batch(
            Message("later", None, not_before=START + 30.5),
            Message("then", None, depends_on=["later"]),
            Message("now", None, not_before=START - 1),
        )
        assert times == {"now": 0.0, "later": pytest.approx(30.5), "then": pytest.approx(30.5)}


async def test_a_dependency_times_out():
    async with started({"slow": naps(100)}) as world:
        impatient = Message("a", None, depends_on=[Dependency.message("slow", timeout=7, otherwise="run")])
        epoch = await world.intake.new_epoch()
        await epoch.submit([impatient, *messages("slow")])
        await trio.sleep(8)
        assert list(world.sink.ops) == ["a"]
        await epoch.cancel()


# Resources.


async def test_a_notified_resource_releases_those_who_wait_in_every_epoch():
    async with started() as world:
        epochs = [await world.intake.new_epoch() for _ in range(2)]
        for epoch in epochs:
            await epoch.submit(Message("a", None, depends_on=[Dependency.resource("schema", 2, external=True)]))
            await epoch.seal()
        await world.intake.notify_dependency_ready(Resource("schema", 1))
        await trio.sleep(1)
        assert not world.sink.ops
        await world.intake.notify_dependency_ready(Resource("other"), Resource("schema", 3))
        for epoch in epochs:
            assert (await epoch.wait()).committed == 1


async def test_a_forgotten_resource_satisfies_nobody_new():
    async with started() as world:
        wants = [Dependency.resource("schema", external=True)]
        await world.intake.notify_dependency_ready(Resource("schema", 1))
        assert (await world.batch(Message("a", None, depends_on=wants))).committed == 1
        await world.intake.forget("schema")
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("b", None, depends_on=wants))
        await epoch.seal()
        assert (await epoch.wait(until="blocked")).is_blocked


async def test_a_forgotten_resource_stays_forgotten_after_a_restart():
    store = MemoryStore(clock=TrioClock(START))
    async with started(store=store) as world:
        await world.intake.notify_dependency_ready(Resource("schema", 1))
        await world.intake.forget("schema")
    async with started(store=store) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("b", None, depends_on=[Dependency.resource("schema", external=True)]))
        await epoch.seal()
        assert (await epoch.wait(until="blocked")).is_blocked


async def test_an_executor_provides_within_its_epoch():
    work = {"maker": Executed(["maker"], ready=[Resource("part", add=1)])}
    async with started(work) as world:
        report = await world.batch(*messages("maker"), Message("taker", None, depends_on=[Dependency.resource("part")]))
        assert report.committed == 2
        other = await world.batch(Message("taker", None, depends_on=[Dependency.resource("part")]))
        assert other.dead == 1


async def test_values_and_unmet_dependencies_are_delivered():
    seen = {}

    async def work(delivery):
        seen[delivery.id] = (dict(delivery.values), list(delivery.unmet))
        if delivery.id == "parent":
            return Executed(value=b"42", ready=[Resource("token", 1, value=b"abc")])
        return Fatal("no") if delivery.id == "dead" else Executed()

    passed = Dependency.message("dead", otherwise="run")
    async with started(work) as world:
        report = await world.batch(
            *messages("parent", "dead"),
            Message("child", None, depends_on=["parent", Dependency.resource("token", 1), passed]),
        )
        assert (report.committed, report.dead) == (2, 1)
    assert seen["parent"] == ({}, [])
    assert seen["child"] == ({"parent": b"42", "token": b"abc"}, [passed])


async def test_a_delivery_says_who_it_is():
    found: list[Any] = []

    async def work(delivery):
        found.append(delivery)
        if len(found) == 1:
            raise Transient("busy")
        return Executed([1])

    async with started(work) as world:
        await world.batch(Message("a", {"n": 1}, kind="row"), name="nightly")
    first, second = found
    assert (first.id, first.kind, first.payload, first.epoch.name) == ("a", "row", {"n": 1}, "nightly")
    assert (first.attempt, second.attempt, first.run) == (0, 1, 0)
    assert first.task_key == second.task_key == task_key(world.store.info.store_id, 1, "a")
    assert list(world.sink.by_task_key) == [first.task_key]


# Derived messages.


async def test_derived_messages_belong_to_the_epoch_and_may_be_waited_for():
    work = {"file": Executed(["file"], [Message(f"row{n}", None, kind="row") for n in range(3)])}
    async with started(work) as world:
        report = await world.batch(
            Message("file", None, kind="file"), Message("after", None, depends_on=["row1", "row2"])
        )
        assert (report.submitted, report.committed) == (5, 5)
        assert world.sink.ops[-1] == "after"
        assert world.sink.ops[0] == "file"


@pytest.mark.parametrize("count", [9, 10, 11, 35])
async def test_many_derived_messages_are_staged(count):
    rows = messages(*(f"row{n}" for n in range(count)))
    async with started({"file": Executed(["file"], rows)}, max_derived=10) as world:
        report = await world.batch(*messages("file", "row3"))
        assert (report.submitted, report.committed) == (count + 1, count + 1)
        assert sorted(world.sink.ops) == sorted(["file", *(row.id for row in rows)])


async def test_a_message_derived_behind_an_open_barrier_ends_its_parent():
    work = {"late": Executed(["late"], [Message("row", None, kind="row")])}
    async with started(work) as world:
        late = Message("late", None, kind="late", depends_on=["total"])
        total = Message("total", None, kind="total", depends_on=[Dependency.barrier("row")])
        report = await world.batch(late, total)
        assert (report.committed, report.dead) == (1, 1)
        assert failures(report)["late"][1].startswith(
            "BarrierPassed: a message of kind 'late' derived one of kind 'row'"
        )
        assert "late" not in world.sink.ops


async def test_a_barrier_waits_for_what_kinds_may_derive():
    work = {"file": Executed(["file"], [Message(f"row{n}", None, kind="row") for n in range(5)])}
    async with started(work, derives={"file": ["row"], "row": [], "total": []}) as world:
        total = Message("total", None, kind="total", depends_on=[Dependency.barrier("row")])
        report = await world.batch(total, Message("file", None, kind="file"))
        assert report.committed == 7
        assert world.sink.ops[-1] == "total"


async def test_a_deferred_message_runs_again_when_what_it_waits_for_is_there():
    async with started({"a": [Deferred(["b", "c"])], "b": naps(2), "c": naps(3)}) as world:
        report = await world.batch(*messages("a", "b", "c"))
        assert report.committed == 3
        assert world.executor.seen == ["a", "b", "c", "a"]
        assert report.completed_at == START + 3


async def test_a_deferral_spends_no_attempt():
    attempts = []

    async def work(delivery):
        if delivery.id == "a":
            attempts.append(delivery.attempt)
            if len(attempts) == 1:
                return Deferred(["b"])
        return Executed()

    async with started(work) as world:
        await world.batch(*messages("a", "b"))
        assert attempts == [0, 0]


async def test_a_deferral_on_what_is_there_already_spends_an_attempt():
    attempts = []

    async def work(delivery):
        if delivery.id == "a":
            attempts.append(delivery.attempt)
            if len(attempts) == 1:
                return Deferred(["b"])
        return Executed()

    async with started(work) as world:
        await world.batch(*messages("b"), Message("a", None, depends_on=["b"]))
        assert attempts == [0, 1]


async def test_a_fatal_is_final_whatever_error_it_carries():
    async with started({"a": Fatal(Transient("gave up"))}) as world:
        report = await world.batch(*messages("a"))
        assert report.dead == 1
        assert world.executor.seen == ["a"]
