"""Buses keep the contract, and the check notices when one does not."""

import pytest
import trio
from attrs import evolve

from naviscope_ingest.buses import MemoryBus
from naviscope_ingest.errors import ContractViolation
from naviscope_ingest.testing import check_pipeline_bus
from naviscope_ingest.testing.pipeline_bus import BUS_PROMISES
from naviscope_spi import Ready, Seq
from tests.contract.factories import opens


@pytest.mark.parametrize("promise", BUS_PROMISES, ids=lambda promise: promise.name)
async def test_the_bus_in_memory_keeps_the_promise(promise, autojump_clock):
    await check_pipeline_bus(opens(MemoryBus), only=[promise.name])


async def test_a_small_bus_keeps_the_promises(autojump_clock):
    await check_pipeline_bus(opens(lambda: MemoryBus(capacity=1_000)))


class WaitingBus:
    """A bus without the power to do without waiting; variants of it mistreat hints."""

    def __init__(self):
        self.bus = MemoryBus()

    async def send(self, ready):
        await self.bus.send(self.on_the_way(ready))

    async def receive(self, limit):
        return await self.bus.receive(limit)

    async def acknowledge(self, ready):
        await self.bus.acknowledge(ready)

    def on_the_way(self, ready):
        return ready


class LosesEveryThirdHint(WaitingBus):
    count = 0

    def on_the_way(self, ready):
        return [hint for hint in ready if self.is_lucky()]

    def is_lucky(self):
        self.count += 1
        return self.count % 3 != 0


class RepeatsHints(WaitingBus):
    def on_the_way(self, ready):
        return [*ready, *ready]


class ReordersHints(WaitingBus):
    def on_the_way(self, ready):
        return list(reversed(ready))


@pytest.mark.parametrize("bus", [WaitingBus, LosesEveryThirdHint, RepeatsHints, ReordersHints])
async def test_a_bus_may_lose_repeat_and_reorder(bus, autojump_clock):
    await check_pipeline_bus(opens(bus))


class InventsHints(WaitingBus):
    promise = "hints_arrive_as_they_were_sent"

    def on_the_way(self, ready):
        return [*ready, Ready(Seq(999_999), 1, "invented")]


class ForgetsPriorities(WaitingBus):
    promise = "hints_arrive_as_they_were_sent"

    def on_the_way(self, ready):
        return [evolve(hint, priority=0) for hint in ready]


class LosesEverything(WaitingBus):
    promise = "hints_arrive_as_they_were_sent"

    def on_the_way(self, ready):
        return []


class IgnoresTheLimit(WaitingBus):
    promise = "receive_keeps_to_its_limit"

    async def receive(self, limit):
        return await self.bus.receive(limit + 1)


class AnswersWithNothing(WaitingBus):
    promise = "receive_keeps_to_its_limit"

    async def receive(self, limit):
        await trio.lowlevel.checkpoint()
        return self.bus.receive_nowait(limit)


class LeavesReceiversAsleep(WaitingBus):
    promise = "a_waiting_receiver_wakes"

    async def receive(self, limit):
        await trio.lowlevel.checkpoint()
        if not self.bus.statistics().waiting:
            await trio.sleep_forever()
        return self.bus.receive_nowait(limit)


class WakesOneReceiver(WaitingBus):
    promise = "every_waiting_receiver_wakes"

    def __init__(self):
        super().__init__()
        self.lot = trio.lowlevel.ParkingLot()

    async def send(self, ready):
        await self.bus.send(ready)
        self.lot.unpark()

    async def receive(self, limit):
        await trio.lowlevel.checkpoint()
        while not self.bus.statistics().waiting:
            await self.lot.park()
        return self.bus.receive_nowait(limit)


class TakesBeforeItWaits(WaitingBus):
    promise = "a_cancelled_receive_takes_nothing"

    async def receive(self, limit):
        hints = self.bus.receive_nowait(limit)
        if not hints:
            return await self.bus.receive(limit)
        await trio.lowlevel.checkpoint()
        return hints


class WaitsForRoom(WaitingBus):
    promise = "a_full_bus_does_not_block"

    async def send(self, ready):
        if self.bus.statistics().waiting > 5_000:
            await trio.sleep_forever()
        await self.bus.send(ready)


class RefusesTheUnknown(WaitingBus):
    promise = "acknowledging_is_always_fine"

    async def acknowledge(self, ready):
        if ready:
            raise LookupError("these hints are not known")


class NeverSendsAgain(WaitingBus):
    promise = "acknowledging_is_always_fine"

    def __init__(self):
        super().__init__()
        self.done = set()

    async def acknowledge(self, ready):
        self.done.update(ready)

    def on_the_way(self, ready):
        return [hint for hint in ready if hint not in self.done]


class SleepsThroughNoWait(MemoryBus):
    promise = "hints_pass_without_a_checkpoint"

    def send_nowait(self, ready):
        self._hints.extend(ready)

    async def send(self, ready):
        await trio.lowlevel.checkpoint()
        super().send_nowait(ready)


@pytest.mark.parametrize(
    "bus",
    [
        InventsHints,
        ForgetsPriorities,
        LosesEverything,
        IgnoresTheLimit,
        AnswersWithNothing,
        LeavesReceiversAsleep,
        WakesOneReceiver,
        TakesBeforeItWaits,
        WaitsForRoom,
        RefusesTheUnknown,
        NeverSendsAgain,
        SleepsThroughNoWait,
    ],
)
async def test_a_broken_bus_is_caught(bus, autojump_clock):
    with pytest.raises(ContractViolation) as caught:
        await check_pipeline_bus(opens(bus))
    assert caught.value.promise.partition(":")[0] == bus.promise
