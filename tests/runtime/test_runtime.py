"""The front door: runtime, intake and epochs as a caller meets them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import (
    Deferred,
    Dependency,
    EpochExists,
    EpochFailed,
    EpochTimeout,
    Executed,
    Fatal,
    IngestRuntime,
    MemorySink,
    MemoryStore,
    Message,
    Resource,
    RuntimeComponents,
    RuntimeFailed,
    RuntimeStopped,
    SinkRejected,
    Skipped,
    SystemFailure,
    Transient,
    UnknownEpoch,
    UnknownMessage,
    task_key,
)
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import (
    START,
    GatedSink,
    Playing,
    TroubledSink,
    World,
    answers,
    bounded,
    chain,
    failures,
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


# Epochs.


async def test_an_epoch_block_seals_and_waits():
    async with started(naps(3)) as world:
        async with world.intake.epoch("nightly") as epoch:
            await epoch.submit(messages("a", "b"))
            assert epoch.report.state == "open"
        assert epoch.report.is_completed
        assert (epoch.name, epoch.number, repr(epoch)) == ("nightly", 1, "<Epoch 1 'nightly'>")
        assert world.clock.wall() == START + 3


async def test_a_named_epoch_stays_open_when_its_block_raises():
    async with started() as world:
        with pytest.raises(KeyError):
            async with world.intake.epoch("nightly") as epoch:
                await epoch.submit(messages("a"))
                raise KeyError
        assert epoch.report.state == "open"
        async with world.intake.epoch("nightly") as again:
            receipt = await again.submit(messages("a", "b"))
            assert (receipt.accepted, receipt.duplicates) == (1, 1)
        assert again.number == epoch.number
        assert again.report.committed == 2


async def test_an_unnamed_epoch_is_cancelled_when_its_block_raises():
    async with started(naps(10)) as world:
        with pytest.raises(KeyError):
            async with world.intake.epoch() as epoch:
                await epoch.submit(messages("a", "b"))
                await trio.sleep(1)
                raise KeyError
        report = await epoch.wait()
        assert (report.cancelled, report.committed) == (2, 0)
        assert world.clock.wall() == START + 1


async def test_the_exception_of_an_epoch_block_survives_a_runtime_that_stops():
    with pytest.raises(KeyError):
        async with started() as world, world.intake.epoch():
            world.runtime.stop()
            await trio.testing.wait_all_tasks_blocked()
            raise KeyError


async def test_opening_a_known_name_rejoins_it_in_whatever_state():
    async with started(naps(5)) as world:
        first = await world.intake.new_epoch("nightly")
        await first.submit(messages("a"))
        assert (await world.intake.new_epoch("nightly")).number == first.number
        await first.seal()
        await first.seal()
        assert (await world.intake.new_epoch("nightly")).report.state == "sealed"
        done = await first.wait()
        assert await (await world.intake.new_epoch("nightly")).wait() == done
        with pytest.raises(EpochExists, match="'nightly' exists"):
            await world.intake.new_epoch("nightly", if_exists="refuse")


async def test_epochs_are_found_by_name():
    async with started() as world:
        with pytest.raises(UnknownEpoch, match="no epoch 'nightly'"):
            await world.intake.get_epoch("nightly")
        epoch = await world.intake.new_epoch("nightly")
        other = await world.intake.new_epoch()
        assert (await world.intake.get_epoch("nightly")).number == epoch.number
        assert [report.name for report in world.intake.epochs()] == ["nightly", other.name]
        assert world.intake.report("nightly") == epoch.report


async def test_only_so_many_completed_epochs_are_kept():
    async with started(keep_reports=3) as world:
        for n in range(6):
            await world.batch(*messages("a"), name=f"e{n}")
        assert [report.name for report in world.intake.epochs()] == ["e3", "e4", "e5"]
        with pytest.raises(UnknownEpoch):
            world.intake.report("e0")


async def test_a_report_counts_everything_and_knows_its_times():
    work = {
        "dead": Fatal("bad data"),
        "skipped": Skipped("nothing new"),
        "slow": naps(4),
        "cancelled": naps(100),
        "parent": Executed(["parent"], messages("child")),
    }
    async with started(work) as world:
        await trio.sleep(1)
        epoch = await world.intake.new_epoch("nightly")
        await trio.sleep(1)
        names = ["dead", "skipped", "slow", "cancelled", "parent"]
        await epoch.submit([*messages(*names, "dead"), Message("dead", "other"), Message("late", None, expires_at=1.0)])
        await epoch.submit(Message("follows", None, depends_on=["dead"]))
        await trio.sleep(1)
        await epoch.cancel("cancelled")
        await epoch.seal()
        sealed = epoch.report
        assert (sealed.state, sealed.unfinished, sealed.succeeded, sealed.completed_at) == ("sealed", 1, False, None)
        report = await epoch.wait()
        assert report.state == "completed"
        assert (report.name, report.number, report.revision, report.is_blocked) == ("nightly", 1, 0, False)
        assert (report.submitted, report.unfinished) == (8, 0)
        assert (report.committed, report.dead, report.skipped, report.cancelled, report.expired) == (3, 2, 1, 1, 1)
        assert (report.duplicates, report.conflicts) == (2, 1)
        assert (report.opened_at, report.sealed_at, report.completed_at) == (START + 1, START + 3, START + 6)
        assert not report.succeeded
        found = failures(report)
        assert found["dead"] == ("dead", "Permanent: bad data")
        assert found["cancelled"] == ("cancelled", "it was cancelled")
        assert found["late"][0] == "expired"
        assert found["follows"][0] == "dead"
        with pytest.raises(EpochFailed, match="2 dead, 1 cancelled, 1 expired of 8") as caught:
            report.raise_for_failures()
        assert caught.value.report is report


async def test_a_good_report_raises_nothing():
    async with started({"b": Skipped()}) as world:
        report = await world.batch(*messages("a", "b"))
        assert report.raise_for_failures() is report
        assert report.succeeded


async def test_a_report_lists_only_so_many_failures():
    async with started(answers({f"m{n}": Fatal("no") for n in range(20)}), max_failures=5) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(20))))
        assert (report.dead, len(report.failures)) == (20, 5)


async def test_a_wait_that_takes_too_long_carries_the_report():
    async with started(naps(50)) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit(messages("a"))
        await epoch.seal()
        with pytest.raises(EpochTimeout, match="'nightly' is sealed after 10 seconds, 1 of 1 messages") as caught:
            await epoch.wait(10)
        assert (caught.value.report.unfinished, caught.value.timeout) == (1, 10)
        with pytest.raises(EpochTimeout):
            await epoch.wait(0)
        assert (await epoch.wait(100)).committed == 1
        assert (await epoch.wait(0)).committed == 1


async def test_waiting_until_blocked_returns_when_only_a_person_can_help():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        approval = Dependency.resource("approved", external=True)
        await epoch.submit([Message("a", None, depends_on=[approval]), *messages("b")])
        await epoch.seal()
        report = await epoch.wait(until="blocked")
        assert report.is_blocked
        assert (report.state, report.unfinished, report.committed) == ("sealed", 1, 1)
        await world.intake.notify_dependency_ready(Resource("approved"))
        report = await epoch.wait(until="blocked")
        assert report.is_completed
        assert not report.is_blocked


async def test_progress_reports_until_the_end():
    async with started(naps(1), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b", "c"))
        await epoch.seal()
        seen = [(world.clock.wall() - START, report.committed) async for report in epoch.progress(every=0.8)]
        times = [time for time, _ in seen]
        assert times == pytest.approx([0.0, 0.8, 1.6, 2.4, 3.0])
        assert [committed for _, committed in seen] == [0, 0, 1, 2, 3]


async def test_a_wait_ends_when_the_runtime_is_stopped():
    async with started() as world:
        epoch = await world.intake.new_epoch()

        async def wait():
            with pytest.raises(RuntimeStopped):
                await epoch.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            world.runtime.stop()


# Why it is not done.


async def test_explain_tells_both_directions():
    async with started({"parent": naps(10)}) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit([Message("child", None, depends_on=["parent", "ghost"]), *messages("parent", "done")])
        await trio.sleep(1)
        child = await epoch.explain("child")
        assert [reason.text for reason in child.reasons] == [
            "message 'parent' is running",
            "message 'ghost' was never submitted",
        ]
        parent = await world.intake.explain("nightly", "parent")
        assert parent.waiting == [("child", "nightly")]
        assert [reason.kind for reason in parent.reasons] == ["running"]
        assert (await epoch.explain("done")).end == "committed"
        whole = await epoch.explain()
        assert dict(whole.reasons)["the epoch is not sealed: more messages may come"] == 1
        assert (whole.counts["waiting"], whole.counts["running"], whole.counts["committed"]) == (1, 1, 1)
        with pytest.raises(UnknownMessage, match="has no message 'nobody'"):
            await epoch.explain("nobody")


async def test_explain_says_why_a_message_is_dead():
    async with started({"a": Fatal("bad data")}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await epoch.seal()
        await epoch.wait()
        explained = await epoch.explain("a")
        assert explained.end == "dead"
        assert explained.reasons[0].text == "it ended dead: Permanent: bad data"


async def test_explain_names_timers_lanes_and_queues():
    work = {"retry": [Transient(retry_after=50)], "first": naps(50), "busy": naps(50)}
    async with started(work, max_in_flight=2) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("retry"))
        await epoch.submit([*messages("first", "second", key="k"), *messages("busy")])
        await epoch.submit(messages("queued"))
        await trio.sleep(1)
        kinds = {name: (await epoch.explain(name)).reasons[0].kind for name in ("retry", "second", "queued", "busy")}
        assert kinds == {"retry": "timer", "second": "lane", "queued": "queue", "busy": "running"}
        assert (await epoch.explain("retry")).reasons[0].until == pytest.approx(START + 50)


async def test_statistics_count_what_goes_on():
    async with started(naps(2), max_in_flight=3) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([*messages(*"abcd"), Message("e", None, depends_on=["a"])])
        await trio.sleep(1)
        now = world.runtime.statistics()
        assert (now.state, now.epochs, now.unfinished, now.waiting, now.in_flight) == ("running", 1, 5, 1, 3)
        await world.intake.wait_idle()
        now = world.runtime.statistics()
        assert (now.unfinished, now.waiting, now.in_flight) == (0, 0, 0)
        assert (now.executed, now.committed) == (5, 5)
        assert now.workers <= 3
        assert now.batches >= 2


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


# Order.


async def test_messages_of_a_lane_run_one_at_a_time_in_order_of_acceptance():
    busy: set[str] = set()

    async def work(delivery):
        key = delivery.message.key
        assert key not in busy
        busy.add(key)
        await trio.sleep(1)
        busy.remove(key)
        return Executed([(key, delivery.payload)])

    async with started(work) as world:
        lanes = [Message(f"{key}{n}", n, key=key) for n in range(5) for key in ("x", "y", "z")]
        report = await world.batch(*lanes)
        assert report.committed == 15
        assert world.clock.wall() == START + 5
    for key in ("x", "y", "z"):
        assert [n for lane, n in world.sink.ops if lane == key] == list(range(5))


async def test_a_message_in_retry_keeps_its_lane_unless_told_otherwise():
    for lanes, order in (("block", ["a", "b"]), ("pass", ["b", "a"])):
        async with started({"a": [Transient(retry_after=5)]}, lanes=lanes) as world:
            await world.batch(*messages("a", "b", key="k"))
            assert list(world.sink.ops) == order


async def test_urgent_messages_start_first():
    async with started(naps(1), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("first"))
        await trio.sleep(0.5)
        await epoch.submit([Message(f"p{n}", None, priority=n) for n in (0, -5, 7, 3)])
        await epoch.seal()
        await epoch.wait()
        assert world.executor.seen == ["first", "p7", "p3", "p0", "p-5"]


async def test_a_small_epoch_is_not_kept_waiting_by_a_large_one():
    async with started(naps(1), max_in_flight=1) as world:
        large = await world.intake.new_epoch("large")
        await large.submit(messages(*(f"m{n}" for n in range(500))))
        await trio.sleep(0.5)
        await world.batch(*messages("a", "b", "c"), name="small")
        assert world.clock.wall() - START < 100
        assert large.report.unfinished > 400
        await large.cancel()


async def test_never_more_messages_are_in_flight_than_allowed():
    sink = GatedSink()
    async with started(sink=sink, max_in_flight=5) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*(f"m{n}" for n in range(50))))
        await epoch.seal()
        await sink.entered.wait()
        await trio.sleep(10)
        # A sink that does not answer bounds what is started.
        assert world.runtime.statistics().in_flight == 5
        assert len(world.executor.seen) == 5
        sink.gate.set()
        assert (await epoch.wait()).committed == 50


async def test_executors_run_at_the_same_time():
    async with started(naps(1), max_in_flight=10) as world:
        await world.batch(*messages(*(f"m{n}" for n in range(50))))
        assert world.executor.most == 10
        assert world.clock.wall() == START + 5


# Batches.


class Together:
    """A batch executor that notes its batches, and what each of its messages comes to."""

    def __init__(self, answer=None):
        self.batches: list[list[str]] = []
        self.answer = answer or (lambda delivery: Executed([delivery.id]))
        self.attempts: list[int] = []

    async def execute_batch(self, deliveries):
        self.batches.append([delivery.id for delivery in deliveries])
        self.attempts += [delivery.attempt for delivery in deliveries]
        assert len({delivery.kind for delivery in deliveries}) == 1
        keys = [delivery.message.key for delivery in deliveries if delivery.message.key is not None]
        assert len(set(keys)) == len(keys)
        await trio.lowlevel.checkpoint()
        return [self.answer(delivery) for delivery in deliveries]


async def test_a_batch_executor_gets_messages_of_one_kind_together():
    executor = Together()
    async with started(executor, execute_batch=10) as world:
        mixed = [Message(f"{kind}{n}", None, kind=kind) for kind in ("a", "b") for n in range(25)]
        assert (await world.batch(*mixed)).committed == 50
        assert all(len(batch) <= 10 for batch in executor.batches)
        assert len(executor.batches) < 25
        assert sorted(world.sink.ops) == sorted(message.id for message in mixed)


async def test_a_batch_never_has_two_of_one_lane():
    executor = Together()
    async with started(executor) as world:
        assert (await world.batch(*[Message(f"m{n}", None, key=f"k{n % 3}") for n in range(30)])).committed == 30
        assert max(map(len, executor.batches)) <= 3


async def test_a_batch_that_raises_is_run_in_halves_until_the_culprit_is_alone():
    def answer(delivery):
        if delivery.id == "m5":
            raise ValueError("poison")
        return Executed([delivery.id])

    executor = Together(answer)
    async with started(executor) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(16))))
        assert (report.committed, report.dead) == (15, 1)
        assert failures(report) == {"m5": ("dead", "ValueError: poison")}
        assert set(executor.attempts) == {0}
        assert ["m5"] in executor.batches
        assert len(executor.batches) < 16


async def test_every_kind_of_outcome_may_come_from_a_batch():
    outcomes = {"skip": Skipped(), "die": Fatal("no"), "wait": Deferred(["go"]), "go": Executed(["go"])}
    done = []

    def answer(delivery):
        if delivery.id in done:
            return Executed([delivery.id])
        done.append(delivery.id)
        return outcomes[delivery.id]

    async with started(Together(answer)) as world:
        report = await world.batch(*messages(*outcomes))
        assert (report.committed, report.skipped, report.dead) == (2, 1, 1)


class Napping(Together):
    """A batch executor that takes its time."""

    was_cancelled = False

    async def execute_batch(self, deliveries):
        try:
            await trio.sleep(10)
        except trio.Cancelled:
            self.was_cancelled = True
            raise
        return await super().execute_batch(deliveries)


async def test_cancelling_one_message_of_a_batch_leaves_the_others():
    async with started(Napping()) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b", "c"))
        await epoch.seal()
        await trio.sleep(1)
        assert await epoch.cancel("b")
        report = await epoch.wait()
        assert (report.committed, report.cancelled) == (2, 1)
        assert list(world.sink.ops) == ["a", "c"]
        assert world.runtime.statistics().in_flight == 0


async def test_cancelling_every_message_of_a_batch_cancels_the_executor():
    async with started(Napping()) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b", "c"))
        await trio.sleep(1)
        await epoch.cancel()
        await world.intake.wait_idle()
        assert world.executor.was_cancelled
        assert world.clock.wall() == START + 1


# Retries and sinks.


async def test_a_transient_failure_is_tried_again_later_and_later():
    times = []

    async def work(delivery):
        times.append(world.clock.wall() - START)
        raise Transient("server busy")

    async with started(work) as world:
        report = await world.batch(*messages("a"))
        assert report.dead == 1
        assert failures(report)["a"] == ("dead", "Transient: server busy")
    first, second, third = times
    assert first == 0
    assert 0.1 <= second <= 0.11 + 1e-6
    assert 0.2 <= third - second <= 0.22 + 1e-6


async def test_a_transient_failure_that_passes_costs_nothing():
    async with started({"a": [Transient(), Transient()]}) as world:
        assert (await world.batch(*messages("a"))).committed == 1
        assert list(world.sink.ops) == ["a"]


async def test_a_failure_that_says_when_to_come_back_spends_no_attempt():
    async with started({"a": [Transient(retry_after=7)] * 10}) as world:
        assert (await world.batch(*messages("a"))).committed == 1
        assert world.clock.wall() == pytest.approx(START + 70)


async def test_what_a_sink_rejects_dies_and_the_rest_commits():
    class Picky(TroubledSink):
        async def commit(self, batch):
            bad = {entry.task_key: ValueError("too long") for entry in batch.entries if entry.ops[0] in ("m3", "m7")}
            if bad:
                self.batches.append([entry.message_id for entry in batch.entries])
                raise SinkRejected(bad)
            await super().commit(batch)

    sink = Picky()
    async with started(sink=sink) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(10))), Message("c", None, depends_on=["m3"]))
        assert (report.committed, report.dead) == (8, 3)
        assert failures(report)["m3"] == ("dead", "ValueError: too long")
        assert len(sink.batches) == 2


async def test_one_bad_record_costs_one_record():
    sink = TroubledSink(bad=["m13", "m40"])
    async with started(sink=sink) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(64))))
        assert (report.committed, report.dead) == (62, 2)
        assert sorted(failures(report)) == ["m13", "m40"]
        assert "cannot write" in failures(report)["m13"][1]
        assert len(sink.ops) == len(set(sink.ops)) == 62


async def test_an_error_of_a_sink_that_passes_costs_nothing():
    async with started(sink=TroubledSink(ValueError("hiccup"))) as world:
        assert (await world.batch(*messages("a", "b"))).committed == 2


async def test_a_transient_failure_of_the_sink_never_ends_a_message():
    sink = TroubledSink(*[Transient("locked")] * 20)
    async with started(sink=sink) as world:
        report = await world.batch(*messages("a", "b"))
        assert (report.committed, report.dead) == (2, 0)
        assert len(sink.batches) == 21
        assert world.executor.seen == ["a", "b"]


async def test_a_sink_says_when_to_come_back():
    async with started(sink=TroubledSink(Transient("locked", retry_after=33))) as world:
        await world.batch(*messages("a"))
        assert world.clock.wall() == pytest.approx(START + 33)


async def test_an_outcome_waits_for_company_while_others_run():
    sink = TroubledSink()
    async with started({"b": naps(1), "c": naps(50)}, sink=sink, commit_linger=5.0) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b", "c"))
        await epoch.seal()
        await trio.sleep(4.9)
        assert not sink.batches
        await trio.sleep(0.2)
        assert sink.batches == [["a", "b"]]
        report = await epoch.wait()
        # The last one waits for nobody.
        assert report.completed_at == pytest.approx(START + 50)


async def test_commits_do_not_overlap_and_have_a_largest_size():
    class Slow(TroubledSink):
        busy = False

        async def commit(self, batch):
            assert not self.busy
            self.busy = True
            await trio.sleep(1)
            await super().commit(batch)
            self.busy = False

    sink = Slow()
    async with started(sink=sink, commit_batch=7) as world:
        assert (await world.batch(*messages(*(f"m{n}" for n in range(50))))).committed == 50
        assert max(map(len, sink.batches)) <= 7


async def test_messages_without_ops_do_not_reach_the_sink():
    async with started({"a": Executed()}) as world:
        assert (await world.batch(*messages("a"))).committed == 1
        assert world.sink.commits == 0


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


# Submitting.


async def test_a_receipt_says_what_was_stored():
    async with started(submit_chunk=10) as world:
        epoch = await world.intake.new_epoch()
        receipt = await epoch.submit(Message(f"m{n % 25}", n % 25) for n in range(40))
        assert (receipt.accepted, receipt.duplicates, list(receipt.conflicts)) == (25, 15, [])
        receipt = await world.intake.submit(epoch, Message("m3", "other"))
        assert (receipt.accepted, receipt.duplicates, list(receipt.conflicts)) == (0, 1, ["m3"])
        assert receipt.last is None


async def test_messages_may_come_from_an_async_iterable():
    async def source():
        for n in range(25):
            await trio.sleep(0.1)
            yield Message(f"m{n}", n)

    async with started(submit_chunk=10) as world:
        epoch = await world.intake.new_epoch()
        receipt = await epoch.submit(source())
        assert receipt.accepted == 25
        await epoch.seal()
        assert (await epoch.wait()).committed == 25


async def test_submitting_nothing_stores_nothing():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        assert (await epoch.submit([])).accepted == 0


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
