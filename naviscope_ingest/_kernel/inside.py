"""Sinks that write inside the store's own transaction.

A batch is settled and applied in one step: there is no moment in which the one has happened and the other not. If the
sink refuses some of it, the rest is settled in parts, each with its own effects, until the culprits are alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from attrs import define, field

from naviscope_ingest._kernel.commits import commit_entries
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.outcomes import Batch, settlement_of
from naviscope_ingest.errors import SinkMisbehaved
from naviscope_spi import (
    AppliesInside,
    CommitBatch,
    CommitSink,
    DeferredStore,
    Seq,
    Settled,
    Settlement,
    SupportsColocation,
)

__all__ = ["Inside", "inside_for"]


def inside_for(sink: CommitSink[Any], membership: Membership) -> Inside | None:
    """Return what commits to a sink that writes inside the store, or None for one that does not.

    Raises:
        ValueError: the sink needs a store that takes it in, and this one does not.
    """
    if not isinstance(sink, AppliesInside):
        return None
    store: DeferredStore[Any] = membership.store
    if not isinstance(store, SupportsColocation) or store.info.colocation != sink.colocation:
        raise ValueError(
            f"{type(sink).__name__} writes inside the transactions of a {sink.colocation} store, and "
            f"{type(store).__name__} is none: use such a store, or give the sink a place of its own"
        )
    return Inside(sink, membership)


@define
class _Part:
    """What was settled so far of a batch that was parted."""

    batch: Batch
    done: set[Seq] = field(factory=set)
    settled: list[Settled] = field(factory=list)


class Inside:
    """Settles batches together with their effects.

    Args:
        sink: writes inside a transaction.
        membership: settles.
    """

    def __init__(self, sink: AppliesInside[Any], membership: Membership) -> None:
        self._sink = sink
        self._membership = membership

    async def settle(
        self, batch: Batch, drop_refused: Callable[[Batch, dict[str, BaseException]], Awaitable[None]]
    ) -> Settled:
        """Settle a batch and apply it, in one step if the sink takes all of it.

        Args:
            batch: what is settled.
            drop_refused: lets messages end dead that the sink refuses.
        """
        part = _Part(batch)
        try:
            await self._write(part, settlement_of(batch), CommitBatch(batch.entries))
        except _SinkFailed as failed:
            refused = await commit_entries(_InParts(self, part), batch.entries, trio.sleep, failed.error)
            await drop_refused(batch, refused)
            rest = settlement_of(batch, without=part.done)
            part.settled.append(await self._membership.write(rest))
        if len(part.settled) == 1:
            # It may hold a million messages, made as they are asked for.
            accepted = part.settled[0].accepted
        else:
            accepted = [each for settled in part.settled for each in settled.accepted]
        return Settled(part.settled[-1].position, accepted, ())

    async def write_part(self, part: _Part, entries: CommitBatch[Any]) -> None:
        """Settle the messages of some entries, with what they bring."""
        names = {(entry.epoch.number, entry.message_id) for entry in entries.entries}
        seqs = {lease.seq for lease in part.batch.leases if (lease.epoch.number, lease.message.id) in names}
        try:
            await self._write(part, settlement_of(part.batch, only=seqs), entries)
        except _SinkFailed as failed:
            raise failed.error from failed.error.__cause__

    async def _write(self, part: _Part, settlement: Settlement[Any], entries: CommitBatch[Any]) -> None:
        def apply(transaction: object) -> None:
            try:
                answer: object = self._sink.apply(transaction, entries)  # type: ignore[func-returns-value]  # it is checked
            except Exception as error:
                raise _SinkFailed(error) from error
            if answer is not None:
                raise SinkMisbehaved(f"{type(self._sink).__name__}.apply returned {answer!r:.80}: it must return None")

        part.settled.append(await self._membership.write_with(settlement, apply))
        part.done.update(lease.seq for lease in settlement.committed)


class _InParts:
    """What looks like a sink to those who search for culprits."""

    def __init__(self, inside: Inside, part: _Part) -> None:
        self._inside = inside
        self._part = part

    async def commit(self, batch: CommitBatch[Any]) -> None:
        """Settle and apply some entries."""
        await self._inside.write_part(self._part, batch)


class _SinkFailed(Exception):  # noqa: N818 - it carries another error through the store
    """The sink raised, not the store."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
