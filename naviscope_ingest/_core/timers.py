"""Times at which something becomes due, in order.

Timers are taken out for good when their message moves on: a million messages with a deadline each must not leave a
million timers behind. Hence a sorted list, where a heap would keep what was called off.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from naviscope_ingest._core.epochs import EpochTracker
    from naviscope_ingest._core.gates import Gate
    from naviscope_ingest._core.nodes import Node
    from naviscope_ingest._core.terms import Term

__all__ = ["Timer", "TimerKind", "Timers"]


class TimerKind(IntEnum):
    """What becomes due. At the same instant the lower number goes first."""

    DEADLINE = 0
    EXPIRY = 1
    TIMEOUT = 2
    START = 3
    GATE = 4


class Timer(NamedTuple):
    """One due time. `number` is the seq or the epoch; `order` makes every timer different."""

    when: float
    kind: TimerKind
    number: int
    order: int
    subject: Subject


Subject: TypeAlias = "EpochTracker | Gate | Node | Term"


class Timers:
    """Every time that is waited for."""

    def __init__(self) -> None:
        # Timers compare by their first four fields; `order` is unique, so subjects are never compared.
        self._sorted: SortedList[Timer] = SortedList()
        self._order = 0

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def next_due(self) -> float | None:
        """The earliest due time."""
        return self._sorted[0].when if self._sorted else None

    def set(self, when: float, kind: TimerKind, number: int, subject: Subject) -> Timer:
        """Add a timer."""
        self._order += 1
        timer = Timer(when, kind, number, self._order, subject)
        self._sorted.add(timer)
        return timer

    def set_for(self, node: Node, when: float, kind: TimerKind, subject: Node | Term | None = None) -> None:
        """Add a timer that belongs to a message and goes with it."""
        node.more().timers.append(self.set(when, kind, node.seq, node if subject is None else subject))

    def drop(self, timer: Timer) -> None:
        """Take a timer out, if it is still there."""
        self._sorted.discard(timer)

    def drop_all(self, node: Node, *kinds: TimerKind) -> None:
        """Take out a message's timers of these kinds; of every kind if none is given."""
        if node.rare is None or not node.rare.timers:
            return
        kept = []
        for timer in node.rare.timers:
            if kinds and timer.kind not in kinds:
                kept.append(timer)
            else:
                self._sorted.discard(timer)
        node.rare.timers = kept

    def pop_due(self, now: float) -> Timer | None:
        """Take out the earliest timer, if it is due."""
        if self._sorted and self._sorted[0].when <= now:
            return self._sorted.pop(0)
        return None
