"""The runtime's membership of its store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from naviscope_spi import DeferredStore, Lease, Seq, Session, Settled, Settlement

__all__ = ["Membership"]


class Membership:
    """Claims and settles under one session.

    Args:
        store: the store.
    """

    def __init__(self, store: DeferredStore[Any]) -> None:
        self.store = store
        self._session: Session | None = None
        # A store in memory settles without waiting: there is nothing to shield, and a scope costs as much as settling.
        self._waits = store.info.durability != "none"

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a member for as long as the block lasts."""
        async with self.store.join("runtime") as session:
            self._session = session
            try:
                yield
            finally:
                self._session = None

    async def lease(self, seqs: Sequence[Seq]) -> Sequence[Lease[Any]]:
        """Claim messages."""
        assert self._session is not None
        return await self.store.pop_ready(self._session, seqs)

    async def write(self, settlement: Settlement[Any]) -> Settled:
        """Settle, even if we are being cancelled: the sink has applied it, or the core has decided it."""
        assert self._session is not None
        if not self._waits:
            return await self.store.settle(self._session, settlement)
        settled: Settled | None = None
        with trio.CancelScope(shield=True):
            settled = await self.store.settle(self._session, settlement)
        assert settled is not None
        return settled
