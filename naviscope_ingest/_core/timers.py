"""Times at which something becomes due, in order.

Timers are taken out for good when their message moves on: a million messages with a deadline each must not leave a
million timers behind. Hence sorted blocks, where a heap would keep what was called off.

A timer is two numbers, the time and who is meant, kept in arrays: sixteen bytes, no object, nothing for the interpreter
to count or look through. Nobody holds on to one. When it was set follows from what it is for (a message's own times, or
since when it waits), so whoever calls it off says so again.

Rejected: a sorted list of tuples with the subject in them, and a list of its timers for each message: three hundred
bytes for a message that has one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from enum import IntEnum
from typing import Final, NamedTuple

__all__ = ["Timer", "TimerKind", "Timers"]

# Places in who is meant. The dependencies of a message are at most 100,000.
_KIND: Final = 60
_NUMBER: Final = 17
_ROOT_MASK: Final = (1 << _NUMBER) - 1
_NUMBER_MASK: Final = (1 << (_KIND - _NUMBER)) - 1

_BLOCK: Final = 2_000
"""How many timers a block has before it is cut in two."""


class TimerKind(IntEnum):
    """What becomes due. At the same instant the lower number goes first."""

    DEADLINE = 0
    EXPIRY = 1
    TIMEOUT = 2
    START = 3
    GATE = 4


class Timer(NamedTuple):
    """One due time.

    `number` is the place of a message, or that of an epoch or a gate; `root` says which of its dependencies it is.
    """

    when: float
    kind: TimerKind
    number: int
    root: int


class _Block:
    """Some timers in order: by time, then by who is meant."""

    __slots__ = ("whens", "who")

    def __init__(self, whens: array[float], who: array[int]) -> None:
        self.whens = whens
        self.who = who

    def place(self, when: float, who: int) -> int:
        """Return where a timer is, or would be."""
        whens = self.whens
        low = bisect_left(whens, when)
        return bisect_left(self.who, who, low, bisect_right(whens, when, low))


class Timers:
    """Every time that is waited for.

    Attributes:
        count: how many there are. Callers on the hot path ask whether there is any.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        # The last timer of each block, to find the block by.
        self._lasts: list[tuple[float, int]] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    @property
    def next_due(self) -> float | None:
        """The earliest due time."""
        return self._blocks[0].whens[0] if self._blocks else None

    def set(self, when: float, kind: TimerKind, number: int, root: int = 0) -> None:
        """Add a timer. None is set twice."""
        who = _who(kind, number, root)
        if not self._blocks:
            self._blocks.append(_Block(array("d"), array("q")))
            self._lasts.append((when, who))
        at = min(bisect_left(self._lasts, (when, who)), len(self._blocks) - 1)
        block = self._blocks[at]
        place = block.place(when, who)
        block.whens.insert(place, when)
        block.who.insert(place, who)
        self.count += 1
        if len(block.who) > _BLOCK:
            half = _BLOCK // 2
            self._blocks.insert(at + 1, _Block(block.whens[half:], block.who[half:]))
            del block.whens[half:], block.who[half:]
            self._lasts.insert(at, (block.whens[-1], block.who[-1]))
            at += 1
            block = self._blocks[at]
        self._lasts[at] = (block.whens[-1], block.who[-1])

    def drop(self, when: float, kind: TimerKind, number: int, root: int = 0) -> None:
        """Take a timer out, if it is still there."""
        who = _who(kind, number, root)
        at = bisect_left(self._lasts, (when, who))
        if at < len(self._blocks):
            block = self._blocks[at]
            place = block.place(when, who)
            if block.whens[place] == when and block.who[place] == who:
                self._remove(at, place)

    def pop_due(self, now: float) -> Timer | None:
        """Take out the earliest timer, if it is due."""
        if not self._blocks or self._blocks[0].whens[0] > now:
            return None
        when, who = self._blocks[0].whens[0], self._blocks[0].who[0]
        self._remove(0, 0)
        return Timer(when, TimerKind(who >> _KIND), who >> _NUMBER & _NUMBER_MASK, who & _ROOT_MASK)

    def _remove(self, at: int, place: int) -> None:
        block = self._blocks[at]
        del block.whens[place], block.who[place]
        self.count -= 1
        if block.who:
            self._lasts[at] = (block.whens[-1], block.who[-1])
        else:
            del self._blocks[at], self._lasts[at]


def _who(kind: TimerKind, number: int, root: int) -> int:
    return kind << _KIND | number << _NUMBER | root
