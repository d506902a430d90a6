"""`wait_quiet` ends when only somebody else can go on; outlines say what is known of a message."""

import pytest
import trio

from naviscope_ingest import (
    Dependency,
    Executed,
    KindPolicy,
    Message,
    RetryPolicy,
    RuntimeStopped,
    Transient,
    UnknownEpoch,
)
from tests.runtime.worlds import START, started


async def fails_twice(delivery):
    if delivery.attempt < 2:
        raise Transient("later")
    return Executed(ops=[delivery.id])


RETRIES = KindPolicy(retry=RetryPolicy(max_attempts=3, initial_delay=20, jitter=0))


async def test_retries_are_waited_for():
    async with started(fails_twice, other_kinds=RETRIES) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", 1))
        await world.intake.wait_idle()
        assert epoch.report.committed == 0
        await world.intake.wait_quiet()
        assert epoch.report.committed == 1


async def test_a_set_start_is_waited_for():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", 1, not_before=START + 500))
        await world.intake.wait_quiet()
        assert epoch.report.committed == 1


async def test_what_nothing_can_release_is_dealt_with_first():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", 1, depends_on=["nobody"]))
        await epoch.seal()
        await world.intake.wait_quiet()
        assert (epoch.report.dead, epoch.report.state) == (1, "completed")


async def test_what_waits_for_somebody_is_not_waited_for_even_if_its_time_runs_out():
    approval = Dependency.resource("approval", external=True, timeout=1_000)
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([Message("a", 1, depends_on=[approval]), Message("b", 1, depends_on=["c"])])
        await world.intake.wait_quiet()
        assert epoch.report.unfinished == 2
        outline = world.intake.outline(epoch, "a")
        assert (outline.kind, outline.depends_on, outline.run) == ("message", (approval,), 0)
        assert world.intake.outline(epoch, "nobody") is None
        with pytest.raises(UnknownEpoch):
            world.intake.outline("nowhere", "a")
        await epoch.cancel()


async def test_a_runtime_that_stops_is_never_quiet():
    async with started(fails_twice, other_kinds=RETRIES) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", 1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_stop, world.intake)
            await trio.sleep(5)
            world.intake.runtime.stop()
            await world.intake.runtime.wait_ended()


async def _expect_stop(intake):
    with pytest.raises(RuntimeStopped):
        await intake.wait_quiet()
