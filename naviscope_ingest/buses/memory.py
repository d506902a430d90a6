"""A bus within one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio
from attrs import frozen

from naviscope_spi import Ready

__all__ = ["BusStatistics", "MemoryBus"]


@frozen
class BusStatistics:
    """What a bus has done so far.

    Attributes:
        waiting: hints on the bus now.
        sent: hints taken in.
        received: hints handed out.
        dropped: hints refused because the bus was full.
        receivers: tasks that wait for hints now.
    """

    waiting: int
    sent: int
    received: int
    dropped: int
    receivers: int


class MemoryBus:
    """Carries hints between tasks of one trio run, first in, first out.

    A full bus drops the newest hints and counts them; the leader sends hints again, so nothing is lost by that.
    A hint that was received is not delivered again, so `acknowledge` has nothing to do.

    Args:
        capacity: how many hints it holds at most.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: a bus holds at least one hint")
        self._capacity = capacity
        self._hints: deque[Ready] = deque()
        self._receivers = trio.lowlevel.ParkingLot()
        self._sent = 0
        self._received = 0
        self._dropped = 0

    async def send(self, ready: Sequence[Ready]) -> None:
        """Pass hints on. A checkpoint, before anything is sent: cancelled, none is."""
        await trio.lowlevel.checkpoint()
        self.send_nowait(ready)

    async def receive(self, limit: int) -> Sequence[Ready]:
        """Wait for hints and return at least one and at most `limit`. A checkpoint; cancelled, none is taken."""
        _check_limit(limit)
        await trio.lowlevel.checkpoint()
        while not self._hints:
            await self._park()
        hints = self.receive_nowait(limit)
        # One wake-up may have stood for many hints: what is left belongs to the next receiver.
        if self._hints:
            self._receivers.unpark()
        return hints

    async def acknowledge(self, ready: Sequence[Ready]) -> None:
        """Change nothing: a received hint is not delivered again. A checkpoint."""
        await trio.lowlevel.checkpoint()

    def send_nowait(self, ready: Sequence[Ready]) -> None:
        """Pass hints on at once; those beyond the capacity are dropped."""
        room = self._capacity - len(self._hints)
        taken = ready if len(ready) <= room else ready[:room]
        self._hints.extend(taken)
        self._sent += len(taken)
        self._dropped += len(ready) - len(taken)
        if taken:
            self._receivers.unpark()

    def receive_nowait(self, limit: int) -> Sequence[Ready]:
        """Return at most `limit` hints; empty when there are none now."""
        _check_limit(limit)
        hints = self._hints
        if len(hints) <= limit:
            taken = list(hints)
            hints.clear()
        else:
            taken = [hints.popleft() for _ in range(limit)]
        self._received += len(taken)
        return taken

    def statistics(self) -> BusStatistics:
        """Count what happened so far."""
        return BusStatistics(
            waiting=len(self._hints),
            sent=self._sent,
            received=self._received,
            dropped=self._dropped,
            receivers=len(self._receivers),
        )

    async def _park(self) -> None:
        await self._receivers.park()


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise ValueError(f"limit={limit}: ask for at least one hint")
