"""The ids of messages that have committed, of which an epoch on a durable store may have many millions.

The store has them all, for duplicates. The core only has to tell an id that has committed from one that nobody has
submitted yet, when a new message waits for it; and memory has to follow what is unfinished. So ids that committed
lately are kept as they are, and of the others eight bytes are left: their hashes, in sorted arrays that stay small.
Hashes of 64 bits from a secret key are taken for equal by mistake once in about 10^13 questions when a million ids are
known.

Rejected: asking the store. Every message that names an id unknown here would wait for an answer, and meanwhile the core
could learn of neither. Rejected: a set of hashes. Each would be an object, and take as much as the id.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from itertools import islice
from typing import Final

__all__ = ["CommittedIds"]

_HALF: Final = 1 << 63
_LARGE: Final = 1_024
"""How many hashes an array has on average before all of them are split."""


class CommittedIds(dict[str, None]):
    """Ids that committed; those that are no longer recent are known by their hashes.

    Only what is recent can be iterated over and counted as in any dictionary.

    Attributes:
        folded: how many are known by their hashes.
    """

    __slots__ = ("_arrays", "_shift", "folded")

    def __init__(self) -> None:
        super().__init__()
        self.folded = 0
        # Each array has the hashes with the same first bits. Hashes are spread evenly, and so are their first bits.
        self._arrays = [array("q")]
        self._shift = 64

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        if not self.folded:
            return False
        value = hash(name)
        hashes = self._arrays[(value + _HALF) >> self._shift]
        at = bisect_left(hashes, value)
        return at < len(hashes) and hashes[at] == value

    def fold(self, keep: int) -> None:
        """Keep of all but so many ids only their hashes. Those that came first go first."""
        names = [*islice(self, max(0, len(self) - keep))]
        for name in names:
            value = hash(name)
            insort(self._arrays[(value + _HALF) >> self._shift], value)
            del self[name]
        self.folded += len(names)
        while self.folded > _LARGE * len(self._arrays):
            self._split()

    def _split(self) -> None:
        """Cut every array in two, by one more bit."""
        self._shift -= 1
        halves: list[array[int]] = []
        for number, hashes in enumerate(self._arrays):
            middle = bisect_left(hashes, ((2 * number + 1) << self._shift) - _HALF)
            halves += (hashes[:middle], hashes[middle:])
        self._arrays = halves
