"""A sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Generic, TypeVar

from naviscope_spi import CommitBatch, Entry, EpochKey

__all__ = ["MemorySink"]

Op = TypeVar("Op")


class MemorySink(Generic[Op]):
    """Keeps ops in memory in the order of their commits, each entry once by its task key.

    It is for tests, examples and small jobs: it keeps every op for as long as it lives, so its memory grows with its
    content. What it knows of entries is kept in columns: an object for each would be visited by every full garbage
    collection, which made a runtime with this sink a quarter slower.

    Attributes:
        commits: how many batches were committed, those that changed nothing included.
    """

    def __init__(self) -> None:
        self.commits = 0
        self._ops: list[Op] = []
        self._places: dict[str, int] = {}
        self._epochs: list[EpochKey] = []
        self._ids: list[str] = []
        self._kinds: list[str] = []
        # Where the ops of each entry end.
        self._ends: list[int] = []

    @property
    def ops(self) -> Sequence[Op]:
        """Every op, in commit order. The list lives on: copy it to keep a moment."""
        return self._ops

    @property
    def entries(self) -> Sequence[Entry[Op]]:
        """Every entry, in commit order."""
        return [self._entry(key, place) for key, place in self._places.items()]

    @property
    def by_task_key(self) -> Mapping[str, Entry[Op]]:
        """Every entry by its task key, in commit order."""
        return MappingProxyType({key: self._entry(key, place) for key, place in self._places.items()})

    async def commit(self, batch: CommitBatch[Op]) -> None:
        """Keep every entry that is not known yet. Not a checkpoint: a runtime yields by itself."""
        places = self._places
        keys = [entry.task_key for entry in batch.entries]
        fresh = batch.entries
        if len(set(keys)) != len(keys) or not places.keys().isdisjoint(keys):
            fresh = list({entry.task_key: entry for entry in reversed(fresh) if entry.task_key not in places}.values())
            fresh.reverse()
            keys = [entry.task_key for entry in fresh]
        # Ops may be any sequence of the user's; one that raises must do so before anything is kept.
        ops = [op for entry in fresh for op in entry.ops]
        ends = list(accumulate((len(entry.ops) for entry in fresh), initial=len(self._ops)))[1:]
        places.update(zip(keys, range(len(places), len(places) + len(keys)), strict=True))
        self._ops.extend(ops)
        self._ends.extend(ends)
        self._epochs.extend([entry.epoch for entry in fresh])
        self._ids.extend([entry.message_id for entry in fresh])
        self._kinds.extend([entry.kind for entry in fresh])
        self.commits += 1

    def _entry(self, key: str, place: int) -> Entry[Op]:
        start = self._ends[place - 1] if place else 0
        ops = tuple(self._ops[start : self._ends[place]])
        return Entry(key, self._epochs[place], self._ids[place], self._kinds[place], ops)
