"""Messages that were put lately, as they stand in their rows, so that a claim need not read them back.

Most messages run soon after they were put. A row that is here was written by this process, has not ended, was never
claimed and has no row in `progress`; whoever changes that takes it out. So it is no more than a shorter way to the same
answer, and can be emptied at any time: after anything unusual it is.

It has a limit. Messages run about in the order in which they came, so when it is full, later ones are not taken in: to
let the oldest go would let go of exactly those that come next. But the oldest may wait for something that never comes.
So once as much was turned away as there is room for, the older half goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeAlias

__all__ = ["MessageRow", "Recent"]

MessageRow: TypeAlias = tuple[str, int, int, str, float, bytes, bytes | None, int, bytes]
"""A message as it is hashed: name of the table, seq, epoch, id, at, head, rest, codec, payload."""

# What a row takes beside head and payload, in bytes: the tuple, two objects of bytes, a place in the dictionary.
_ROW = 300


class Recent:
    """Rows of messages by their places.

    Args:
        limit: how many bytes they may take.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[int, MessageRow] = {}
        self._size = 0
        self._turned_away = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """How many bytes they take, about."""
        return self._size

    def add(self, rows: Sequence[MessageRow]) -> None:
        """Take in rows that were written just now, all of them or none."""
        size = _size_of(rows)
        if self._size + size <= self._limit:
            self._rows.update([(row[1], row) for row in rows])
            self._size += size
            return
        self._turned_away += size
        if self._turned_away >= self._limit:
            self._turned_away = 0
            self.take(list(islice(self._rows, (len(self._rows) + 1) // 2)))

    def take(self, seqs: Iterable[int]) -> list[MessageRow]:
        """Let rows go, and return those that were here, in that order."""
        rows = self._rows
        taken = [rows.pop(seq) for seq in seqs if seq in rows]
        self._size -= _size_of(taken)
        return taken

    def clear(self) -> None:
        """Let all go."""
        self._rows.clear()
        self._size = 0


def _size_of(rows: Sequence[MessageRow]) -> int:
    return sum([len(row[5]) + len(row[8]) for row in rows]) + _ROW * len(rows)
