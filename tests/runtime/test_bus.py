"""A runtime that is given a bus: hints travel, and whatever happens to them, every message runs once."""

from __future__ import annotations

import random

import pytest
import trio

from naviscope_ingest import Executed, MemoryBus, MemoryStore, Message
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import START, LossyBus, chain, messages, naps, started


async def test_hints_travel_over_the_bus():
    bus = MemoryBus()
    async with started(bus=bus) as world:
        assert (await world.batch(*chain(20), *messages(*"abc"))).committed == 23
        assert len(world.sink.ops) == len(set(world.sink.ops)) == 23
    statistics = bus.statistics()
    assert statistics.sent >= 23
    assert statistics.waiting == 0


async def test_levels_take_no_time_over_a_bus():
    async with started(bus=MemoryBus()) as world:
        report = await world.batch(*chain(200))
        assert report.completed_at == START


@pytest.mark.parametrize("seed", range(10))
async def test_a_bus_that_loses_repeats_and_reorders_costs_only_time(seed):
    async with started(bus=LossyBus(random.Random(seed)), max_in_flight=5) as world:
        lanes = [Message(f"k{n}", None, key=f"lane{n % 3}") for n in range(20)]
        report = await world.batch(*chain(10), *lanes)
        assert report.committed == 30
        assert sorted(world.executor.seen) == sorted(world.sink.ops)
        assert world.runtime.statistics().in_flight == 0


async def test_a_bus_that_is_full_costs_only_time():
    async with started(bus=MemoryBus(capacity=1)) as world:
        assert (await world.batch(*messages(*(f"m{n}" for n in range(20))))).committed == 20


async def test_what_is_cancelled_while_its_hint_travels_is_not_started():
    class Slow(MemoryBus):
        async def receive(self, limit):
            hints = await super().receive(limit)
            await trio.sleep(5)
            return hints

    async with started(bus=Slow()) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b"))
        await epoch.seal()
        await trio.sleep(1)
        assert await epoch.cancel("a")
        report = await epoch.wait()
        assert (report.committed, report.cancelled) == (1, 1)
        await world.intake.wait_idle()
        assert world.executor.seen == ["b"]


async def test_never_more_messages_are_in_flight_than_allowed_over_a_bus():
    async with started(naps(1), bus=MemoryBus(), max_in_flight=3) as world:
        assert (await world.batch(*messages(*(f"m{n}" for n in range(30))))).committed == 30
        assert world.executor.most == 3
        assert world.clock.wall() == START + 10


@pytest.mark.parametrize("after", [0.0, 0.2, 0.7, 1.5, 3.0])
async def test_what_a_stopped_runtime_left_on_the_bus_is_not_lost(after):
    async def work(delivery):
        await trio.sleep(1)
        return Executed([delivery.id])

    store = MemoryStore(clock=TrioClock(START))
    bus = LossyBus(random.Random(7))
    async with started(work, store=store, bus=bus) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit([*chain(5), *messages(*"abc")])
        await trio.sleep(after)
        world.runtime.stop(timeout=0)
    async with started(work, store=store, sink=world.sink, bus=bus) as second:
        await second.intake.seal_epoch("nightly")
        assert (await second.intake.wait_epoch("nightly")).committed == 8
    assert sorted(world.sink.ops) == sorted(["m0", "m1", "m2", "m3", "m4", "a", "b", "c"])
