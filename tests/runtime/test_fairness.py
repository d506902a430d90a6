"""Who gets how much, in virtual time: epochs, kinds, and what is not urgent."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from naviscope_ingest import Cap, Executed, IntakePolicy, KindPolicy, Message
from tests.runtime.worlds import naps, started

NO_MARK = IntakePolicy(high_mark=1_000_000, low_mark=1)
LIMITS = [(), (Cap(12),), (Cap(1_000), Cap(5, by="headers.tenant"))]


def some(count, prefix, **fields):
    return (Message(f"{prefix}{n}", None, **fields) for n in range(count))


async def alone(count, **config):
    """Return how long an epoch takes that nobody disturbs."""
    async with started(naps(0.1), **config) as world:
        began = trio.current_time()
        await world.batch(*some(count, "small"))
        return trio.current_time() - began


@pytest.mark.parametrize("limits", LIMITS, ids=["no limit", "a cap", "keyed caps"])
async def test_a_small_epoch_beside_a_huge_one_that_came_first_is_done_in_three_times_its_time_alone(limits):
    config = {"limits": limits, "max_in_flight": 16, "intake": NO_MARK}
    best = await alone(100, **config)
    async with started(naps(0.1), **config) as world:
        huge = await world.intake.new_epoch("huge")
        await huge.submit(some(100_000, "huge", headers={"tenant": "x"}))
        await trio.sleep(5)
        began = trio.current_time()
        report = await world.batch(*some(100, "small"), name="small")
        assert report.committed == 100
        assert trio.current_time() - began <= 3 * best
        # The huge one goes on meanwhile.
        assert 100 < huge.report.committed < 10_000
        await huge.cancel()


@pytest.mark.parametrize("in_epochs", [1, 4])
@pytest.mark.parametrize("batch", [1, 16, 64])
async def test_kinds_get_what_their_weights_say(in_epochs, batch):
    """Whatever number may start at once, and in whatever epochs they are."""
    started_of = Counter()

    async def work(delivery):
        started_of[delivery.message.kind] += 1
        await trio.sleep(0.1)
        return Executed()

    kinds = {"a": KindPolicy(weight=3), "b": KindPolicy(weight=1)}
    async with started(work, kinds=kinds, max_in_flight=batch, intake=NO_MARK) as world:
        for number in range(in_epochs):
            epoch = await world.intake.new_epoch(f"e{number}")
            # Those of one kind came first.
            await epoch.submit(some(8_000, f"b{number}-", kind="b"))
            await epoch.submit(some(8_000, f"a{number}-", kind="a"))
        started_of.clear()
        await trio.sleep(6_000 / batch * 0.1)
        share = started_of["a"] / started_of.total()
        assert started_of.total() > 5_000
        assert share == pytest.approx(0.75, abs=0.03)
        for number in range(in_epochs):
            await world.intake.cancel_epoch(f"e{number}")


@pytest.mark.parametrize("limits", LIMITS, ids=["no limit", "a cap", "keyed caps"])
async def test_nothing_waits_for_ever_while_there_is_always_something_more_urgent(limits):
    """Of each priority some start, in the time that makes up for it."""
    waited: dict[str, float] = {}
    backlogs: list[int] = []

    async def work(delivery):
        if delivery.id.startswith("patient"):
            waited[delivery.id] = trio.current_time() - 1
        await trio.sleep(1)
        return Executed()

    async with started(work, limits=limits, max_in_flight=4, ageing=10.0, intake=NO_MARK) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(some(8, "first", priority=5))
        await trio.sleep(1)
        await epoch.submit(Message(f"patient{priority}", None, priority=priority) for priority in range(-3, 5))
        for second in range(120):
            # Just what is worked off in a second, so that about as many are always waiting.
            await epoch.submit(some(4, f"urgent{second}-", priority=5))
            backlogs.append(world.runtime.statistics().backlog)
            await trio.sleep(1)
        await epoch.cancel()
    assert min(backlogs) >= 4
    assert {name: round(seconds, -1) for name, seconds in waited.items()} == {
        f"patient{priority}": pytest.approx(10 * (5 - priority), abs=10) for priority in range(-3, 5)
    }
