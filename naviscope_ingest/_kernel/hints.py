"""Hints of ready work on a bus.

A bus may lose, repeat and reorder, so a hint is sent again until its message was claimed, and a hint for a message that
was claimed already is passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import trio

from naviscope_spi import PipelineBus, Ready, Seq

__all__ = ["Hints"]

_AGAIN_AFTER = 1.0
"""How often hints that nobody followed are sent again, in seconds."""


class Hints:
    """What was sent and not yet claimed.

    Args:
        bus: what carries them.
    """

    def __init__(self, bus: PipelineBus) -> None:
        self._bus = bus
        self._open: dict[Seq, Ready] = {}

    async def send(self, hints: Sequence[Ready]) -> None:
        """Send hints, and remember them until their messages are claimed."""
        self._open.update({hint.seq: hint for hint in hints})
        await self._bus.send(hints)

    async def receive(self, limit: int) -> list[Seq]:
        """Wait for hints; return the messages among them that are not claimed yet."""
        hints = await self._bus.receive(limit)
        found = [hint.seq for hint in hints if self._open.pop(hint.seq, None) is not None]
        await self._bus.acknowledge(hints)
        return found

    async def send_again(self) -> None:
        """Send for ever what nobody followed."""
        while True:
            waiting = list(self._open.values())
            await trio.sleep(_AGAIN_AFTER)
            lost = [hint for hint in waiting if hint.seq in self._open]
            if lost:
                await self._bus.send(lost)

    def forget(self, seqs: Collection[Seq]) -> int:
        """Forget hints of messages that were ended; return how many there were."""
        gone = [seq for seq in seqs if self._open.pop(seq, None) is not None]
        return len(gone)

    def take_back(self) -> list[Seq]:
        """Forget every hint and return the messages."""
        seqs = list(self._open)
        self._open.clear()
        return seqs
