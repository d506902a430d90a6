"""The check of `PipelineBus`.

A bus may lose, repeat and reorder, so the check sends again what did not arrive, as the leader does, and takes a hint
for lost only when it never comes. What no bus may do is invent, block its senders or leave its receivers asleep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

import trio
import trio.testing
from attrs import define, field

from naviscope_ingest.testing._promises import Promise, Trial, select, try_promise
from naviscope_spi import PipelineBus, Ready, Seq, SupportsNoWait

__all__ = ["BUS_PROMISES", "check_pipeline_bus"]

# How often a hint is sent before it counts as one that never comes.
_SENDINGS = 10
_CANCELLED_ROUNDS = 10


async def check_pipeline_bus(
    open_bus: Callable[[str], AbstractAsyncContextManager[PipelineBus]],
    *,
    flood: int = 100_000,
    patience: float = 1.0,
    limit: float = 60.0,
    only: Iterable[str] | None = None,
) -> None:
    """Hold a bus to its contract. Returns when every promise was kept.

    Args:
        open_bus: opens a bus; each new name is to give a new, empty one.
        flood: how many hints are sent to a bus that nobody empties.
        patience: seconds to wait for hints before they are sent again.
        limit: seconds that one promise may take.
        only: names of promises; None tries them all.

    Raises:
        ContractViolation: a promise was broken; it is named, with what was expected and what was seen.
    """
    for promise in select(BUS_PROMISES, only):
        trial = BusTrial(str(promise), promise.name, open_bus, flood=flood, patience=patience)
        await try_promise(promise, trial, limit)


@define(eq=False, kw_only=True)
class BusTrial(Trial[PipelineBus]):
    """One promise and the bus that is to keep it."""

    flood: int
    patience: float
    sent: set[Ready] = field(factory=set, init=False)

    @property
    def bus(self) -> PipelineBus:
        """The bus."""
        return self.subject

    async def send(self, hints: Sequence[Ready]) -> None:
        """Send, and remember what may come out."""
        self.sent.update(hints)
        await self.bus.send(hints)

    async def receive(self, limit: int) -> Sequence[Ready]:
        """Receive within the patience; empty when nothing came.

        Every answer has to keep to the limit, and to what was sent.
        """
        with trio.move_on_after(self.patience):
            hints = await self.bus.receive(limit)
            self.true(1 <= len(hints) <= limit, f"from 1 to {limit} hints", f"{len(hints)} hints")
            self.true(self.sent.issuperset(hints), "only hints that were sent", hints)
            return hints
        return []

    async def deliver(self, hints: Sequence[Ready], limit: int = 100) -> None:
        """Send hints, and again those that do not arrive, until all have arrived."""
        missing = dict.fromkeys(hints)
        for _ in range(_SENDINGS):
            await self.send(list(missing))
            while missing and (arrived := await self.receive(limit)):
                for hint in arrived:
                    missing.pop(hint, None)
            if not missing:
                return
        self.fail(f"{len(missing)} of {len(hints)} never came", f"every hint arrives when sent {_SENDINGS} times")


class Arrivals:
    """What receivers got, and a signal for when so many different hints have arrived."""

    def __init__(self, goal: int) -> None:
        self.hints: list[Ready] = []
        self._goal = goal
        self._reached = trio.Event()

    async def receive(self, bus: PipelineBus, limit: int) -> None:
        """Receive once."""
        self.hints.extend(await bus.receive(limit))
        if len(set(self.hints)) >= self._goal:
            self._reached.set()

    async def wait(self, patience: float) -> bool:
        """Wait until enough has arrived, but not for ever."""
        with trio.move_on_after(patience):
            await self._reached.wait()
        return self._reached.is_set()


def _hints(count: int, first: int = 1) -> list[Ready]:
    return [Ready(Seq(seq), 1 + seq % 3, f"kind-{seq % 2}", seq % 5 - 2) for seq in range(first, first + count)]


async def hints_arrive_as_they_were_sent(trial: BusTrial) -> None:
    """What comes out was sent, unchanged, and what is sent often enough comes out."""
    await trial.deliver(_hints(50))
    await trial.deliver(_hints(50, first=2**40))


async def receive_keeps_to_its_limit(trial: BusTrial) -> None:
    """`receive` returns at least one hint and at most `limit`."""
    await trial.deliver(_hints(20), limit=1)
    await trial.deliver(_hints(20), limit=3)
    await trial.deliver(_hints(5), limit=1_000)
    # When the bus is empty there is no answer at all, rather than an empty one.
    while await trial.receive(100):
        pass


async def an_empty_send_is_fine(trial: BusTrial) -> None:
    """Sending no hints wakes nobody and breaks nothing."""
    await trial.send([])
    await trial.deliver(_hints(1))


async def a_waiting_receiver_wakes(trial: BusTrial) -> None:
    """A receiver that waits gets hints that are sent later."""
    arrivals = Arrivals(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrivals.receive, trial.bus, 10)
        await trio.testing.wait_all_tasks_blocked()
        await _send_until(trial, _hints(1), arrivals)
        nursery.cancel_scope.cancel()
    trial.equal(arrivals.hints[:1], _hints(1))


async def every_waiting_receiver_wakes(trial: BusTrial) -> None:
    """Hints of one send that one receiver leaves wake the next one."""
    for _ in range(_SENDINGS):
        woken = await _woken_by_one_send(trial, 3)
        if woken == 3:
            return
        while await trial.receive(100):
            pass
    trial.fail("some sleep on", "each of 3 waiting receivers gets a hint of one large send")


async def _woken_by_one_send(trial: BusTrial, count: int) -> int:
    arrivals = Arrivals(count)
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(arrivals.receive, trial.bus, 1)
        await trio.testing.wait_all_tasks_blocked()
        # Some may be lost on the way.
        await trial.send(_hints(count * 3))
        await arrivals.wait(trial.patience)
        nursery.cancel_scope.cancel()
    return len(arrivals.hints)


async def a_cancelled_receive_takes_nothing(trial: BusTrial) -> None:
    """A cancelled `receive` takes no hint."""
    cancelled = kept = 0
    for seq in range(1, _CANCELLED_ROUNDS + 1):
        hints = _hints(1, first=seq)
        await trial.send(hints)
        with trio.CancelScope() as scope:
            scope.cancel()
            await trial.bus.receive(10)
        if scope.cancelled_caught:
            cancelled += 1
            kept += bool(await trial.receive(10))
    # A bus may lose a hint at any time, but not each time that somebody stops waiting.
    trial.true(
        not cancelled or kept > 0, "the hint is there for the next receiver", f"gone in {cancelled} of {cancelled}"
    )


async def a_full_bus_does_not_block(trial: BusTrial) -> None:
    """`send` never blocks for long: a full bus drops."""
    chunk = _hints(1_000)
    for _ in range(0, trial.flood, len(chunk)):
        with trio.move_on_after(trial.patience * _SENDINGS) as scope:
            await trial.send(chunk)
        trial.true(not scope.cancelled_caught, "send returns although nobody receives", "it waits")
    trial.true(bool(await trial.receive(10)), "a full bus still has hints", "none came")


async def calls_may_overlap(trial: BusTrial) -> None:
    """Sends and receives of many tasks overlap; nothing is invented and everything can arrive."""
    hints = _hints(200)
    arrivals = Arrivals(len(hints))

    async def receive() -> None:
        while True:
            await arrivals.receive(trial.bus, 7)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(receive)
        async with trio.open_nursery() as senders:
            for start in range(0, len(hints), 20):
                senders.start_soon(trial.send, hints[start : start + 20])
        await _send_until(trial, hints, arrivals)
        nursery.cancel_scope.cancel()
    trial.equal(sorted(set(arrivals.hints), key=lambda hint: hint.seq), hints)


async def acknowledging_is_always_fine(trial: BusTrial) -> None:
    """Acknowledging unknown or repeated hints, or none, changes nothing."""
    unknown = _hints(3)
    await trial.bus.acknowledge([])
    await trial.bus.acknowledge(unknown)
    await trial.deliver(unknown)
    await trial.bus.acknowledge(unknown)
    await trial.bus.acknowledge(unknown)


async def an_acknowledged_hint_can_come_again(trial: BusTrial) -> None:
    """A hint that is sent after it was acknowledged arrives: its message may be ready again."""
    for _ in range(3):
        await trial.deliver(_hints(2))
        await trial.bus.acknowledge(_hints(2))


async def hints_pass_without_a_checkpoint(trial: BusTrial) -> None:
    """`send_nowait` and `receive_nowait` work with the waiting ones, and an empty bus answers with nothing."""
    bus = trial.bus
    assert isinstance(bus, SupportsNoWait)
    trial.equal(list(bus.receive_nowait(10)), [], "an empty bus")
    trial.sent.update(_hints(5))
    bus.send_nowait(_hints(5))
    first = list(bus.receive_nowait(2))
    trial.true(1 <= len(first) <= 2, "from 1 to 2 hints", first)
    trial.true(bool(await trial.receive(10)), "receive gets what send_nowait sent", "nothing")
    while bus.receive_nowait(10):
        pass
    arrivals = Arrivals(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrivals.receive, trial.bus, 10)
        await trio.testing.wait_all_tasks_blocked()
        bus.send_nowait(_hints(1))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    trial.equal(arrivals.hints, _hints(1), "a waiting receiver wakes by send_nowait")


async def _send_until(trial: BusTrial, hints: Sequence[Ready], arrivals: Arrivals) -> None:
    """Send hints again and again until they have arrived, or it is clear that they do not."""
    for _ in range(_SENDINGS):
        await trial.send(hints)
        if await arrivals.wait(trial.patience):
            return


def _supports_nowait(trial: BusTrial) -> bool:
    return isinstance(trial.bus, SupportsNoWait)


BUS_PROMISES: Sequence[Promise[BusTrial]] = (
    Promise(hints_arrive_as_they_were_sent),
    Promise(receive_keeps_to_its_limit),
    Promise(an_empty_send_is_fine),
    Promise(a_waiting_receiver_wakes),
    Promise(every_waiting_receiver_wakes),
    Promise(a_cancelled_receive_takes_nothing),
    Promise(a_full_bus_does_not_block),
    Promise(calls_may_overlap),
    Promise(acknowledging_is_always_fine),
    Promise(an_acknowledged_hint_can_come_again),
    Promise(hints_pass_without_a_checkpoint, when=_supports_nowait),
)
