"""Staged messages: stored as they will be, and out of sight until their parent commits.

A parent may bring a million messages. So they are written where they stay, chunk by chunk, and all that keeps them out
of sight is the range of their places in `stages`: the commit of their parent changes that row, and nothing else. If
their parent does not commit they stay out of sight, and the writer deletes them in small steps when it is idle.

An id that is only staged blocks nobody. Who puts it takes its place in the index, and the staged message is gone, as it
would be if it were found to be known when its parent commits. Two parents may stage one id: the second of them keeps
its message in `staged`, and looks for the other when it commits. This is the one case whose commit takes the longer the
more there are.

Rejected: rows of their own for all staged messages, moved when the parent commits, which holds the writer for seconds;
and moved step by step after the commit, since every look at messages would then have to look in two places.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

import apsw

from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_spi import Seq

__all__ = ["ALIVE", "DROPPED", "WAITS", "Birth", "Joined", "Lazy", "Stage", "Stages"]

T = TypeVar("T")

WAITS, ALIVE, DROPPED = range(3)
"""The states of a stage: its parent is at work, has committed, or has not and never will under that lease."""

Birth: TypeAlias = tuple[Seq, str, bytes, bytes | None]
"""A staged message as it is remembered until it comes alive: place, id, head, rest.

Nothing in it can be part of a cycle, so a million of them are not looked through when the interpreter looks for some.
"""

_COLUMNS = "first, last, parent, epoch, state, at"


class Stage(NamedTuple):
    """A range of places whose messages one parent has staged: a row of `stages`.

    Attributes:
        first, last: the places. Some of them may be empty.
        parent: who staged them.
        epoch: where they belong.
        state: `WAITS`, `ALIVE` or `DROPPED`.
        at: when they came alive.
    """

    first: int
    last: int
    parent: int
    epoch: int
    state: int
    at: float | None = None


class Stages:
    """Stages, by the places in them."""

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self._by_first = {stage.first: stage for stage in stages}
        self._firsts = sorted(self._by_first)

    @classmethod
    def load(cls, connection: apsw.Connection, *, with_alive: bool) -> Stages:
        """Read them from the file."""
        where = "" if with_alive else f"where state <> {ALIVE}"
        return cls([Stage(*row) for row in fetch(connection, f"select {_COLUMNS} from stages {where}")])  # noqa: S608

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def at(self, seq: int) -> Stage | None:
        """Return the stage of a place."""
        place = bisect_right(self._firsts, seq)
        if not place:
            return None
        stage = self._by_first[self._firsts[place - 1]]
        return stage if seq <= stage.last else None

    def of(self, parent: int) -> list[Stage]:
        """Return what a parent has staged and not dropped, in order."""
        return [stage for stage in self.waiting() if stage.parent == parent]

    def waiting(self) -> list[Stage]:
        """Return the stages whose parents are at work, in order."""
        return [stage for stage in map(self._by_first.__getitem__, self._firsts) if stage.state == WAITS]

    def dropped(self) -> Stage | None:
        """Return a stage that was dropped, and has messages left to delete."""
        return next((stage for stage in self._by_first.values() if stage.state == DROPPED), None)

    def put(self, stage: Stage) -> None:
        """Add a stage, or change one. One that is alive is forgotten: its messages are like others."""
        if stage.state == ALIVE:
            self.remove(stage)
            return
        if stage.first not in self._by_first:
            insort(self._firsts, stage.first)
        self._by_first[stage.first] = stage

    def remove(self, stage: Stage) -> None:
        """Forget a stage."""
        if self._by_first.pop(stage.first, None) is not None:
            self._firsts.remove(stage.first)


class Lazy(Sequence[T], Generic[T]):
    """A sequence whose items are made from rows whenever they are asked for."""

    def __init__(self, rows: Sequence[Any], make: Callable[[Any], T]) -> None:
        self._rows = rows
        self._make = make

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._rows)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return Lazy(self._rows[index], self._make)
        return self._make(self._rows[index])


class Joined(Sequence[T], Generic[T]):
    """Sequences one after the other."""

    def __init__(self, parts: Sequence[Sequence[T]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        for part in self._parts:
            if 0 <= place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(index)
