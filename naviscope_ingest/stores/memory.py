"""A store in memory: everything the contract promises, except that it survives the process."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, TypeVar

import trio

from naviscope_ingest.stores._ledger import Ledger, StoreStatistics
from naviscope_spi import (
    Clock,
    EpochKey,
    EpochOptions,
    EpochRecord,
    Fact,
    KeptLetter,
    Lease,
    Message,
    Position,
    PutReceipt,
    Resource,
    Seq,
    Session,
    Settled,
    Settlement,
    StoreInfo,
    check_name,
)

__all__ = ["MemoryStore", "StoreStatistics", "open_memory"]

P = TypeVar("P")

KEEP_REPORTS = 10_000
"""Of how many completed epochs a store keeps the report."""

MAX_WHOLE = 100_000
"""How many committed messages of an unfinished epoch a store keeps whole."""


class MemoryStore(Generic[P]):
    """Keeps messages, epochs, resources and records for as long as it lives.

    It is for tests, for work that can be repeated, and for pipelines whose source remembers. One session at a time; the
    whole store belongs to one trio run. When an epoch completes, its ids and messages go and its report stays, unless a
    dead or expired message pins it: then all of it stays, so that a replay finds what it needs.

    Async methods are checkpoints before anything is changed: cancelled, they did nothing. Two are no checkpoints at
    all, `pop_ready` and `settle`: a runtime calls them for every batch, which may be one message, and yields by itself.

    Args:
        keep_reports: of how many completed epochs the report is kept, the latest first.
        max_whole: how many committed messages of an unfinished epoch are kept whole, to compare them with duplicates;
            of others the id and a digest. Fewer take less memory if payloads are large, and a little more time.
        store_id: the first part of every task key; random unless it is given.
        clock: where wall-clock time comes from.
    """

    def __init__(
        self,
        *,
        keep_reports: int = KEEP_REPORTS,
        max_whole: int = MAX_WHOLE,
        store_id: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if keep_reports < 1:
            raise ValueError(f"keep_reports={keep_reports}: keep at least one report")
        if max_whole < 0:
            raise ValueError(f"max_whole={max_whole}: give a number of messages, zero or more")
        if store_id is not None and (not store_id or ":" in store_id):
            raise ValueError(f"store_id={store_id!r}: it is not empty and has no colon, which parts task keys")
        self._info = StoreInfo(store_id or secrets.token_hex(8), "none")
        self._ledger: Ledger[P] = Ledger(keep_reports, max_whole, time.time if clock is None else clock.wall)

    @property
    def info(self) -> StoreInfo:
        """What this store is."""
        return self._info

    @property
    def retain(self) -> float:
        """Reports are kept by their number, not by their age."""
        return math.inf

    def statistics(self) -> StoreStatistics:
        """Count what is held now. Takes time with the number of epochs, not of messages."""
        return self._ledger.statistics()

    @asynccontextmanager
    async def join(self, who: str, *, lead: bool = True) -> AsyncIterator[Session]:
        """Become the member of this store; whoever was it before is thought dead.

        Entering is a checkpoint, leaving is not. However the block is left, its leases are handed back.
        """
        await trio.lowlevel.checkpoint()
        session = self._ledger.enter(lead=lead)
        try:
            yield session
        finally:
            self._ledger.leave(session)

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochRecord:
        """Open an epoch, or rejoin the kept one of that name. The options of a rejoined one stay as they were.

        Raises:
            EpochExists: `if_exists="refuse"` and the name is taken.
            InvalidMessage: the name is malformed.
        """
        if name is not None:
            check_name("epoch name", name)
        await trio.lowlevel.checkpoint()
        return self._ledger.open_epoch(name, options)

    async def mark_epoch(self, epoch: EpochKey, mark: Literal["seal", "cancel"]) -> EpochRecord:
        """Seal an epoch, or ask for its cancellation, which seals it too. A completed epoch stays as it is.

        Raises:
            UnknownEpoch: there is no such epoch.
        """
        await trio.lowlevel.checkpoint()
        return self._ledger.mark_epoch(epoch, mark)

    async def put(
        self, epoch: EpochKey, messages: Sequence[Message[P]], *, staged_by: Lease[P] | None = None
    ) -> PutReceipt:
        """Store messages. Payloads are compared by `==`, or by identity if that gives no bool.

        Raises:
            EpochSealed: the epoch is not open and an id is unknown; nothing of this call was stored.
            UnknownEpoch: there is no such epoch.
            SessionLost: the lease of `staged_by` is not live.
            ValueError: the parent in `staged_by` is of another epoch.
        """
        await trio.lowlevel.checkpoint()
        if staged_by is None:
            return self._ledger.put(epoch, messages)
        return self._ledger.put_staged(epoch, messages, staged_by)

    async def put_unique(self, epoch: EpochKey, messages: Sequence[Message[P]], seconds: float) -> PutReceipt:
        """Store messages as `put` does, but for those that were accepted so in another epoch not long ago.

        Raises:
            EpochSealed: the epoch is not open and a message is neither known in it nor remembered; nothing was stored.
            UnknownEpoch: there is no such epoch.
        """
        await trio.lowlevel.checkpoint()
        return self._ledger.put_unique(epoch, messages, seconds)

    async def pop_ready(self, session: Session, seqs: Sequence[Seq]) -> Sequence[Lease[P]]:
        """Claim messages, in the order of `seqs`. Those that ended, are leased or unknown are left out.

        Raises:
            SessionLost: the session has ended.
        """
        return self._ledger.pop_ready(session, seqs)

    async def settle(self, session: Session, settlement: Settlement[P]) -> Settled:
        """Apply a settlement in one atomic step.

        Raises:
            SessionLost: the session has ended; nothing was applied.
            ValueError: `derived` or `values` name a message that is not among `committed`; nothing was applied.
        """
        return self._ledger.settle(session, settlement)

    @property
    def pop_ready_nowait(self) -> Callable[[Session, Sequence[Seq]], Sequence[Lease[P]]]:
        """Claims messages, as `pop_ready` does. It is the ledger's own method: called for every batch."""
        return self._ledger.pop_ready

    @property
    def commit_nowait(self) -> Callable[[Session, Sequence[Lease[P]]], Sequence[Seq]]:
        """Commits messages that bring nothing, as `settle` does, and returns those that were refused; so is this."""
        return self._ledger.commit

    async def notify_ready(self, resources: Sequence[Resource]) -> Position:
        """Provide resources globally. Versions only grow: a lower one changes nothing."""
        await trio.lowlevel.checkpoint()
        return self._ledger.notify_ready(resources)

    async def forget_ready(self, names: Sequence[str]) -> Position:
        """Take global resources back. Who was satisfied by them stays so; unknown names change nothing."""
        await trio.lowlevel.checkpoint()
        return self._ledger.forget_ready(names)

    def facts(self, after: Position | None = None) -> AsyncIterator[Sequence[Fact]]:
        """Return an iterator over facts, in commit order; its `aclose` ends it.

        What is known is taken at the moment of this call. The present position goes on from there, any other starts
        over with a recovery. A reader keeps what it has not read: read it, close it or drop it.
        """
        return self._ledger.facts(after)

    async def read(self, space: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of those keys that exist."""
        await trio.lowlevel.checkpoint()
        return self._ledger.read(space, keys)

    async def scan(self, space: str, *, after: str = "", limit: int = 100) -> Sequence[tuple[str, bytes]]:
        """Return a page of keys and values, in order of the keys."""
        await trio.lowlevel.checkpoint()
        return self._ledger.scan(space, after, limit)

    async def letters(
        self, *, epoch: int | None = None, after: Seq | None = None, limit: int = 100
    ) -> Sequence[KeptLetter[P]]:
        """Return a page of dead letters, in order of place. It takes time with the number of failed messages."""
        await trio.lowlevel.checkpoint()
        return self._ledger.letters(epoch, Seq(0) if after is None else after, limit)

    async def letter(self, seq: Seq) -> KeptLetter[P] | None:
        """Return one dead letter, None if that message has none."""
        await trio.lowlevel.checkpoint()
        return self._ledger.letter(seq)

    async def prune(self, before: float, limit: int) -> int:
        """Forget at most `limit` epochs that completed before that wall-clock time; return how many.

        An epoch with dead letters is pinned: it stays.
        """
        await trio.lowlevel.checkpoint()
        return self._ledger.prune(before, limit)


@asynccontextmanager
async def open_memory(
    place: str,
    *,
    keep_reports: int = KEEP_REPORTS,
    max_whole: int = MAX_WHOLE,
    store_id: str | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[MemoryStore[Any]]:
    """Make a new store, for the URL `memory://`.

    Args:
        place: the URL without its scheme and colon.
        keep_reports: as of `MemoryStore`.
        max_whole: as of `MemoryStore`.
        store_id: so too.
        clock: so too.

    Raises:
        ValueError: the URL names a place: there is none.
    """
    if place != "//":
        raise ValueError(f"memory:{place}: a store in memory has no place; write memory://")
    yield MemoryStore(keep_reports=keep_reports, max_whole=max_whole, store_id=store_id, clock=clock)
