"""Epochs as a caller meets them: opening, submitting, waiting, reports, and why it is not done."""

from __future__ import annotations

import pytest
import trio

from naviscope_ingest import (
    Dependency,
    EpochExists,
    EpochFailed,
    EpochTimeout,
    Executed,
    Fatal,
    Message,
    Resource,
    RuntimeStopped,
    Skipped,
    Transient,
    UnknownEpoch,
    UnknownMessage,
)
from tests.runtime.worlds import (
    START,
    answers,
    failures,
    messages,
    naps,
    started,
)

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
