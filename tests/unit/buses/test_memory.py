"""What the bus in memory does beyond the contract: order, capacity and counting."""

import pytest
import trio

from naviscope_ingest.buses import BusStatistics, MemoryBus
from naviscope_spi import Ready, Seq


def hints(*seqs):
    return [Ready(Seq(seq), 1, "message") for seq in seqs]


async def test_hints_come_out_in_the_order_they_went_in():
    bus = MemoryBus()
    await bus.send(hints(3, 1))
    await bus.send(hints(2))
    assert [*await bus.receive(2), *await bus.receive(2)] == hints(3, 1, 2)


async def test_a_full_bus_drops_the_newest_and_counts_them():
    bus = MemoryBus(capacity=3)
    await bus.send(hints(1, 2))
    await bus.send(hints(3, 4, 5))
    assert bus.statistics() == BusStatistics(waiting=3, sent=3, received=0, dropped=2, receivers=0)
    assert await bus.receive(10) == hints(1, 2, 3)
    await bus.send(hints(6))
    assert bus.statistics() == BusStatistics(waiting=1, sent=4, received=3, dropped=2, receivers=0)


async def test_waiting_receivers_are_counted():
    bus = MemoryBus()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.receive, 1)
        nursery.start_soon(bus.receive, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert bus.statistics().receivers == 2
        await bus.send(hints(1, 2))
    assert bus.statistics().receivers == 0


async def test_receivers_are_served_in_the_order_they_came():
    bus = MemoryBus()
    served = []

    async def receive(name):
        served.append((name, await bus.receive(1)))

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(receive, name)
            await trio.testing.wait_all_tasks_blocked()
        bus.send_nowait(hints(1, 2, 3))
    assert served == [("a", hints(1)), ("b", hints(2)), ("c", hints(3))]


async def test_a_receiver_whose_hint_was_taken_waits_on():
    bus = MemoryBus()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.receive, 1)
        await trio.testing.wait_all_tasks_blocked()
        bus.send_nowait(hints(1))
        assert bus.receive_nowait(1) == hints(1)
        await trio.testing.wait_all_tasks_blocked()
        assert bus.statistics().receivers == 1
        await bus.send(hints(2))


async def test_limits_and_capacities_below_one_are_refused():
    with pytest.raises(ValueError, match="capacity=0"):
        MemoryBus(capacity=0)
    with pytest.raises(ValueError, match="limit=0"):
        await MemoryBus().receive(0)
    with pytest.raises(ValueError, match="limit=-1"):
        MemoryBus().receive_nowait(-1)
