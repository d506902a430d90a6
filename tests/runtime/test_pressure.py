"""Intake under pressure: marks, strategies, limits of their own, and submits that must never wait."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from naviscope_ingest import EpochSealed, Executed, IntakeFull, IntakePolicy, Message, RuntimeStopped
from tests.runtime.worlds import START, naps, started


def marks(high: int, low: int = 0, **options) -> IntakePolicy:
    return IntakePolicy(high_mark=high, low_mark=low, **options)


def some(count: int, prefix: str = "m", **fields) -> list[Message[None]]:
    return [Message(f"{prefix}{n}", None, **fields) for n in range(count)]


async def test_a_submit_waits_above_the_high_mark_until_the_low_one_is_reached():
    async with started(naps(1), intake=marks(20, 5), max_in_flight=1, submit_chunk=1) as world:
        epoch = await world.intake.new_epoch()
        highest = 0

        async def submit():
            nonlocal highest
            for message in some(100):
                await epoch.submit(message)
                highest = max(highest, world.runtime.statistics().backlog)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            await wait_all_tasks_blocked()
            before = world.runtime.statistics()
            assert (before.backpressure, before.backlog) == (True, 20)
            await trio.sleep(10)
            assert world.runtime.statistics().backlog in (10, 11)
            await trio.sleep(6)
            assert world.runtime.statistics().backlog in (19, 20)
        await epoch.seal()
        report = await epoch.wait()
        assert (report.committed, highest) == (100, 20)
        assert not world.runtime.statistics().backpressure


async def test_messages_that_wait_for_something_hold_nobody_back():
    async with started(intake=marks(2)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(50, "waiting", depends_on=["last"]))
        await epoch.submit(some(50, "later", not_before=START + 1_000))
        assert world.runtime.statistics().backlog == 0
        await epoch.submit(Message("last", None))
        await epoch.seal()
        assert (await epoch.wait()).committed == 101


async def test_reject_raises_with_a_hint_and_what_was_stored_before():
    async with started(naps(1), intake=marks(10, 5, when_full="reject"), submit_chunk=4, max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        with pytest.raises(IntakeFull, match="high_mark is 10") as caught:
            await epoch.submit(some(100))
        assert caught.value.receipt.accepted == caught.value.index == 12
        assert caught.value.retry_after > 0
        await epoch.cancel()


async def test_submit_nowait_raises_where_submit_would_wait():
    async with started(naps(1), intake=marks(10, 5), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit_nowait(some(12))
        with pytest.raises(IntakeFull):
            await epoch.submit_nowait(some(1, "more"))
        await epoch.cancel()


async def test_drop_leaves_messages_out_and_says_so_everywhere():
    async with started(naps(1), intake=marks(10, 5), max_in_flight=1, submit_chunk=10) as world:
        epoch = await world.intake.new_epoch(when_full="drop")
        await epoch.submit(Message("child", None, depends_on=["m55"]))
        receipt = await epoch.submit(some(60))
        # The one that somebody waits for came in.
        assert (receipt.accepted, receipt.dropped) == (11, 49)
        [reason] = (await epoch.explain("m40")).reasons
        assert reason.kind == "dropped"
        await epoch.seal()
        report = await epoch.wait()
        assert (report.committed, report.dropped) == (12, 49)
        assert world.runtime.statistics().dropped == 49


async def test_sample_keeps_one_in_so_many_and_what_that_one_waits_for():
    async with started(naps(1), intake=marks(10, 5, when_full="sample", keep_one_in=10), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(11))
        receipt = await epoch.submit(some(100, "chain"))
        assert receipt.accepted == 10
        kept = [name for name in (f"chain{n}" for n in range(100)) if (await epoch.explain(name)).seq is not None]
        assert len(kept) == 10
        [reason] = (await epoch.explain(next(f"chain{n}" for n in range(100) if f"chain{n}" not in kept))).reasons
        assert (reason.kind, reason.release) == ("dropped", "submit it again")
        pairs = [Message(f"{x}{n}", None, depends_on=[f"a{n}"] if x == "b" else ()) for n in range(50) for x in "ab"]
        await epoch.submit(pairs)
        await epoch.seal()
        report = await epoch.wait()
        assert report.dead == 0
        assert 10 <= report.committed - 21 <= 20


@pytest.mark.parametrize("how", ["seal", "cancel", "stop"])
async def test_a_blocked_submit_wakes_on_seal_cancel_and_stop(how):
    async with started(naps(1_000), intake=marks(1), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(5))
        seen: list[type[BaseException]] = []

        async def submit():
            try:
                await epoch.submit(some(5, "late"))
            except (EpochSealed, RuntimeStopped) as error:
                seen.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            await wait_all_tasks_blocked()
            if how == "seal":
                await epoch.seal()
            elif how == "cancel":
                await epoch.cancel()
            else:
                world.runtime.stop(0)
        assert seen == [RuntimeStopped if how == "stop" else EpochSealed]
        if how != "stop":
            await epoch.cancel()


async def test_a_submit_in_an_executor_or_a_sink_never_waits():
    seen: list[str] = []

    async def work(delivery):
        try:
            await epoch.submit(Message(f"of {delivery.message.id}", None))
        except IntakeFull:
            seen.append(delivery.message.id)
        return Executed([delivery.message.id])

    async with started(work, intake=marks(1), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(20))
        await world.intake.wait_idle()
        assert seen[:19] == [f"m{n}" for n in range(19)]
        await epoch.cancel()


async def test_derived_messages_pass_the_mark_and_run_before_submitted_ones():
    async def work(delivery):
        await trio.sleep(1)
        name = delivery.message.id
        return Executed([name], [Message(f"{name}.{n}", None) for n in range(3)] if name == "m0" else ())

    async with started(work, intake=marks(10, 2), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(20))
        await epoch.seal()
        await epoch.wait()
        assert world.executor.seen[:5] == ["m0", "m0.0", "m0.1", "m0.2", "m1"]


async def test_too_many_waiting_messages_are_refused_unless_somebody_waits_for_them():
    async with started(intake=marks(100, max_waiting=10)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(10, depends_on=["bridge"]))
        with pytest.raises(IntakeFull, match="max_waiting is 10 and 10 are there"):
            await epoch.submit(Message("m10", None, depends_on=["bridge"]))
        await epoch.submit(Message("bridge", None, depends_on=["end"]))
        await epoch.submit(Message("end", None))
        await epoch.seal()
        assert (await epoch.wait()).committed == 12


async def test_admission_limits_unfinished_messages_and_open_epochs():
    policy = IntakePolicy(max_unfinished=5, max_open_epochs=2)
    async with started(naps(1), intake=policy) as world:
        first = await world.intake.new_epoch("first")
        await first.submit(some(5))
        with pytest.raises(IntakeFull, match="max_unfinished"):
            await first.submit(some(1, "more"))
        await world.intake.new_epoch("second")
        with pytest.raises(IntakeFull, match="max_open_epochs"):
            await world.intake.new_epoch("third")
        assert (await world.intake.new_epoch("second")).name == "second"
        await first.seal()
        await first.wait()
        await world.intake.new_epoch("third")


async def test_slow_intake_that_lasts_is_logged(caplog):
    caplog.set_level(logging.WARNING, "naviscope_ingest")
    async with started(naps(1), intake=marks(10, 5, alert_after=30), max_in_flight=1) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(100))
        await epoch.submit_nowait([])
        with pytest.raises(IntakeFull):
            await epoch.submit_nowait(some(1, "more"))
        await epoch.seal()
        await epoch.wait()
    assert [record.backpressure for record in caplog.records] == [True] * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"high_mark": 5, "low_mark": 5}, "the low mark must be below"),
        ({"high_mark": 0}, "whole number of at least 1"),
        ({"low_mark": -1}, "zero or more"),
        ({"when_full": "explode"}, "'block', 'reject', 'drop', 'sample'"),
        ({"keep_one_in": 0}, "at least 1"),
        ({"alert_after": 0}, "above 0"),
        ({"max_unfinished": 0}, "at least 1"),
        ({"max_waiting": 0}, "at least 1"),
        ({"max_open_epochs": 0}, "at least 1"),
        ({"high_mark": True}, "at least 1"),
        ({"low_mark": 1.5}, "zero or more"),
        ({"alert_after": float("nan")}, "above 0"),
    ],
)
def test_impossible_policies_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        IntakePolicy(**options)


async def test_a_strategy_that_does_not_exist_is_refused_before_the_epoch_is_opened():
    async with started() as world:
        with pytest.raises(ValueError, match="new_epoch"):
            await world.intake.new_epoch("x", when_full="explode")
        with pytest.raises(ValueError, match="cap=0"):
            await world.intake.new_epoch("x", cap=0)
        assert world.intake.epochs() == []


def chains(count: int, ahead: int) -> list[Message[None]]:
    """Make messages of which every tenth waits for one that comes much later."""
    return [
        Message(f"m{n}", None, depends_on=[f"m{n + ahead}"] if n % 10 == 0 and n + ahead < count else ())
        for n in range(count)
    ]


@pytest.mark.parametrize("chunk", [10, 64])
async def test_what_somebody_waits_for_brings_nothing_else_past_the_mark(chunk):
    """There is such a message in every chunk. The others of the chunk wait for room."""
    async with started(naps(1), intake=marks(50, 20), max_in_flight=10, submit_chunk=chunk) as world:
        epoch = await world.intake.new_epoch()
        highest = 0

        async def watch():
            nonlocal highest
            while True:
                highest = max(highest, world.runtime.statistics().backlog)
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            receipt = await epoch.submit(chains(1_000, 100))
            assert (receipt.accepted, receipt.duplicates) == (1_000, 0)
            await epoch.seal()
            assert (await epoch.wait()).committed == 1_000
            nursery.cancel_scope.cancel()
        # The chunk that reaches the mark comes in whole; and what is awaited from each one after it.
        assert highest <= 50 + chunk + 10


@pytest.mark.parametrize("policy", [marks(1_000, max_waiting=20), marks(1_000, max_unfinished=20)])
async def test_what_somebody_waits_for_brings_nothing_else_past_the_other_limits(policy):
    async with started(intake=policy) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(20, "waiting", depends_on=["bridge"]))
        with pytest.raises(IntakeFull) as caught:
            await epoch.submit([*some(5, "more", depends_on=["bridge"]), Message("bridge", None, depends_on=["end"])])
        assert caught.value.index == 0
        assert epoch.report.submitted == 21
        await epoch.submit(Message("end", None))
        await epoch.seal()
        assert (await epoch.wait()).committed == 22
