"""Backpressure: intake slows down when more is ready to run than workers get through.

The backlog is what could run and has not been started. When it reaches the high mark, intake is slow until it has
fallen to the low one: between the marks nothing changes, so that submitters do not wake and sleep with every message.
Messages that wait for something are not in it: holding back a producer for them could hold back what they wait for.
They have a limit of their own, which refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any

import trio

from naviscope_ingest._core import Core
from naviscope_ingest.admission import IntakePolicy, WhenFull
from naviscope_ingest.errors import IntakeFull
from naviscope_spi import Message

__all__ = ["WITHIN", "Pressure"]

WITHIN: ContextVar[object | None] = ContextVar("naviscope_ingest_within", default=None)
"""Whose workers run the present task: a submit from there must never wait for them."""

_SHORTEST_HINT = 0.05
_LONGEST_HINT = 60.0


class Pressure:
    """Says whether messages may come in.

    Args:
        core: knows what is ready.
        policy: where the marks are.
        in_flight: how many messages are started and not yet settled.
        pace: how many messages commit in a second, as far as is known.
        on_change: called when intake becomes slow, and when it no longer is.

    Attributes:
        is_active: whether intake is slow.
        pending: messages that were let in and are not yet known to the core.
        dropped: how many were dropped.
        changes: how often intake became slow or open.
    """

    def __init__(
        self,
        core: Core,
        policy: IntakePolicy,
        in_flight: Callable[[], int],
        pace: Callable[[], float],
        on_change: Callable[[bool], None],
    ) -> None:
        self.is_active = False
        self.pending = 0
        self.dropped = 0
        self.changes = 0
        self._core = core
        self._policy = policy
        self._in_flight = in_flight
        self._pace = pace
        self._on_change = on_change
        self._lot = trio.lowlevel.ParkingLot()
        # Below this nothing has to be counted.
        bounds = (policy.high_mark, policy.max_waiting, policy.max_unfinished or policy.high_mark)
        self._free = min(bounds)
        self._seen = 0

    def is_near(self, count: int) -> bool:
        """Tell whether so many more messages have to be looked at before they come in."""
        return self.is_active or self._core.size + self.pending + count >= self._free

    @property
    def backlog(self) -> int:
        """How many messages could run and have not been started."""
        return max(0, self._core.runnable - self._in_flight()) + self.pending

    def look(self, starting: int = 0) -> bool:
        """Tell whether intake is slow now.

        Args:
            starting: how many messages are about to be in flight.
        """
        backlog = self.backlog - starting
        if not self.is_active and backlog >= self._policy.high_mark:
            self.is_active = True
            self.changes += 1
            self._on_change(True)
        elif self.is_active and backlog <= self._policy.low_mark:
            self.is_active = False
            self.changes += 1
            self._on_change(False)
            self._lot.unpark_all()
        return self.is_active

    def wake_all(self) -> None:
        """Let everybody who waits look again: an epoch was sealed, or the runtime stops."""
        if self._lot:
            self._lot.unpark_all()

    async def wait(self) -> None:
        """Wait until there may be room."""
        await self._lot.park()

    def limit_reached(self, messages: Sequence[Message[Any]]) -> IntakeFull | None:
        """Return why there is no room at all for messages that nobody waits for, if so."""
        policy = self._policy
        most = policy.max_unfinished
        if most is not None and (unfinished := self._core.unfinished + self.pending) + len(messages) > most:
            return IntakeFull("max_unfinished", most, unfinished, self.hint())
        if self._core.size + len(messages) > policy.max_waiting:
            waiting, more = self._core.waiting, sum(bool(message.depends_on) for message in messages)
            if more and waiting + more > policy.max_waiting:
                return IntakeFull("max_waiting", policy.max_waiting, waiting, self.hint())
        return None

    def full(self) -> IntakeFull:
        """Return the error that says that intake is slow."""
        return IntakeFull("high_mark", self._policy.high_mark, self.backlog, self.hint())

    def hint(self) -> float:
        """Return in how many seconds it may be worth trying again."""
        pace = self._pace()
        too_many = max(1, self.backlog - self._policy.low_mark)
        return _SHORTEST_HINT if not pace else min(_LONGEST_HINT, max(_SHORTEST_HINT, too_many / pace))

    def choose(
        self, messages: Sequence[Message[Any]], how: WhenFull, awaited: Collection[str]
    ) -> tuple[Sequence[Message[Any]], Sequence[Message[Any]]]:
        """Return the messages that come in although intake is slow, and those that are dropped.

        What somebody waits for comes in, and so does what one that comes in waits for.
        """
        kept: set[str] = set()
        needed: set[str] = set()
        for message in reversed(messages):
            self._seen += 1
            is_sampled = how == "sample" and self._seen % self._policy.keep_one_in == 0
            if is_sampled or message.id in awaited or message.id in needed:
                kept.add(message.id)
                needed.update(each for each in message.depends_on if isinstance(each, str))
        dropped = [message for message in messages if message.id not in kept]
        self.dropped += len(dropped)
        return [message for message in messages if message.id in kept], dropped
