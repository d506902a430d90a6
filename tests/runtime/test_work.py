"""How messages are worked off: order, lanes, batches, retries, and getting results into the sink."""

from __future__ import annotations

import pytest
import trio

from naviscope_ingest import (
    Deferred,
    Dependency,
    Executed,
    Fatal,
    Message,
    Permanent,
    Resource,
    SinkRejected,
    Skipped,
    Transient,
)
from tests.runtime.worlds import (
    START,
    GatedSink,
    TroubledSink,
    failures,
    messages,
    naps,
    started,
)

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
            raise Permanent("poison")
        return Executed([delivery.id])

    executor = Together(answer)
    async with started(executor) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(16))))
        assert (report.committed, report.dead) == (15, 1)
        assert failures(report) == {"m5": ("dead", "Permanent: poison")}
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


async def test_an_outcome_does_not_wait_for_those_that_still_run():
    sink = TroubledSink()
    async with started({"b": naps(50), "c": naps(50)}, sink=sink) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b", "c"))
        await trio.sleep(1)
        assert sink.batches == [["a"]]
        await epoch.submit(messages("d"))
        await trio.sleep(1)
        assert sink.batches == [["a"], ["d"]]


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


class Busy:
    """Takes what is ready together, so that no other worker looks. "again" fails at first, "long" takes long."""

    def __init__(self):
        self.tried = []

    async def execute_batch(self, deliveries):
        for delivery in deliveries:
            if delivery.id == "again":
                self.tried.append(trio.current_time())
                # Once in company, and then alone.
                if len(self.tried) <= 2:
                    raise Transient("not yet", retry_after=1)
            if delivery.id == "long":
                await trio.sleep(1_000)
        return [Executed([delivery.id]) for delivery in deliveries]


async def test_a_retry_is_in_time_although_whoever_set_its_time_is_busy_for_long():
    """The worker that commits goes on with what became ready, and nobody rests before that is done."""
    executor = Busy()
    async with started(executor) as world:
        await world.batch(*messages("a", "again"), Message("long", None, depends_on=["a"]))
    assert executor.tried == pytest.approx([0, 0, 1])


async def test_what_is_stuck_is_dealt_with_in_time_although_everybody_is_busy_for_long():
    go = Dependency.resource("go", external=True)
    async with started(Busy(), stall_grace=5) as world:
        one, other = await world.intake.new_epoch("one"), await world.intake.new_epoch("other")
        await one.submit([Message("a", None, depends_on=[go]), Message("b", None, depends_on=["absent", "a"])])
        await one.seal()
        await other.submit([Message("first", None, depends_on=[go]), Message("long", None, depends_on=["first"])])
        await trio.sleep(10)
        await world.intake.notify_dependency_ready(Resource("go"))
        await trio.sleep(100)
        assert one.report.completed_at == START + 15
        await other.cancel()


async def test_a_message_that_becomes_ready_before_its_time_starts_in_time():
    async with started({"long": naps(1_000)}) as world:
        later = Message("later", None, depends_on=["a"], not_before=START + 7)
        epoch = await world.intake.new_epoch()
        await epoch.submit([*messages("a"), later, Message("long", None, depends_on=["a"])])
        await trio.sleep(8)
        assert world.sink.ops == ["a", "later"]
        await epoch.cancel()


async def test_explain_tells_what_is_claimed_from_what_runs_and_what_has_answered():
    entered, gate = trio.Event(), GatedSink()

    async def work(delivery):
        if delivery.id == "slow":
            entered.set()
            await trio.sleep(100)
        return Executed([delivery.id])

    async with started(work, sink=gate, max_in_flight=3, commit_batch=1) as world:
        epoch = await world.intake.new_epoch()

        async def why(name):
            [reason] = (await epoch.explain(name)).reasons
            return reason.kind, reason.text

        await epoch.submit(messages("first"))
        await gate.entered.wait()
        await epoch.submit(messages("second", "slow"))
        await entered.wait()
        assert await why("first") == ("committing", "its outcome is with the sink")
        assert await why("second") == ("committing", "its executor has answered")
        assert await why("slow") == ("running", "its executor runs")
        gate.gate.set()
        await epoch.seal()
        assert (await epoch.wait()).committed == 3
