"""A sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        # Where the ops of each entry end, by task key in commit order.
        self._ends: dict[str, int] = {}
        self._ids: list[str] = []
        self._kinds: list[str] = []
        # The epochs, each with the place of the first entry from which on it is the one.
        self._epochs: list[tuple[int, EpochKey]] = []

    @property
    def ops(self) -> Sequence[Op]:
        """Every op, in commit order. The list lives on: copy it to keep a moment."""
        return self._ops

    @property
    def entries(self) -> Sequence[Entry[Op]]:
        """Every entry, in commit order."""
        return list(self._entries())

    @property
    def by_task_key(self) -> Mapping[str, Entry[Op]]:
        """Every entry by its task key, in commit order."""
        return MappingProxyType({entry.task_key: entry for entry in self._entries()})

    async def commit(self, batch: CommitBatch[Op]) -> None:
        """Keep every entry that is not known yet. Not a checkpoint: a runtime yields by itself."""
        ends, all_ops, ids, kinds = self._ends, self._ops, self._ids, self._kinds
        epoch = self._epochs[-1][1] if self._epochs else None
        # Ops may be any sequence of the user's; one that raises must do so before anything is kept.
        entries = batch.entries
        for entry in entries:
            if type(entry.ops) is not tuple and type(entry.ops) is not list:
                entries = [evolve(each, ops=tuple(each.ops)) for each in entries]
                break
        for entry in entries:
            key = entry.task_key
            if key not in ends:
                all_ops += entry.ops
                ends[key] = len(all_ops)
                if entry.epoch is not epoch:
                    epoch = entry.epoch
                    self._epochs.append((len(ids), epoch))
                ids.append(entry.message_id)
                kinds.append(entry.kind)
        self.commits += 1

    def _entries(self) -> Iterator[Entry[Op]]:
        start, epoch_from = 0, dict(self._epochs)
        # The first entry has the first of them.
        epoch = epoch_from.get(0, EpochKey(0, ""))
        for place, (key, end) in enumerate(self._ends.items()):
            epoch = epoch_from.get(place, epoch)
            yield Entry(key, epoch, self._ids[place], self._kinds[place], tuple(self._ops[start:end]))
            start = end
