"""A sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from naviscope_spi import CommitBatch, Entry

__all__ = ["MemorySink"]

Op = TypeVar("Op")


class MemorySink(Generic[Op]):
    """Keeps ops in memory in the order of their commits, each entry once by its task key.

    It is for tests, examples and small jobs: it keeps every op and every entry for as long as it lives, so its memory
    grows with its content.

    Attributes:
        commits: how many batches were committed, those that changed nothing included.
    """

    def __init__(self) -> None:
        self.commits = 0
        self._ops: list[Op] = []
        self._entries: dict[str, Entry[Op]] = {}

    @property
    def ops(self) -> Sequence[Op]:
        """Every op, in commit order. The list lives on: copy it to keep a moment."""
        return self._ops

    @property
    def entries(self) -> Sequence[Entry[Op]]:
        """Every entry, in commit order."""
        return list(self._entries.values())

    @property
    def by_task_key(self) -> Mapping[str, Entry[Op]]:
        """Every entry by its task key, in commit order."""
        return MappingProxyType(self._entries)

    async def commit(self, batch: CommitBatch[Op]) -> None:
        """Keep every entry that is not known yet. Not a checkpoint: a runtime yields by itself."""
        fresh: dict[str, Entry[Op]] = {}
        for entry in batch.entries:
            if entry.task_key not in self._entries:
                fresh.setdefault(entry.task_key, entry)
        # Ops may be any sequence of the user's; one that raises must do so before anything is kept.
        ops = [op for entry in fresh.values() for op in entry.ops]
        self._entries.update(fresh)
        self._ops.extend(ops)
        self.commits += 1
