"""A sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from attrs import evolve

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
        places, all_ops, ends = self._places, self._ops, self._ends
        epochs, ids, kinds = self._epochs, self._ids, self._kinds
        # Ops may be any sequence of the user's; one that raises must do so before anything is kept.
        entries = batch.entries
        for entry in entries:
            if type(entry.ops) is not tuple and type(entry.ops) is not list:
                entries = [evolve(each, ops=tuple(each.ops)) for each in entries]
                break
        for entry in entries:
            key = entry.task_key
            if key not in places:
                places[key] = len(places)
                all_ops += entry.ops
                ends.append(len(all_ops))
                epochs.append(entry.epoch)
                ids.append(entry.message_id)
                kinds.append(entry.kind)
        self.commits += 1

    def _entry(self, key: str, place: int) -> Entry[Op]:
        start = self._ends[place - 1] if place else 0
        ops = tuple(self._ops[start : self._ends[place]])
        return Entry(key, self._epochs[place], self._ids[place], self._kinds[place], ops)
