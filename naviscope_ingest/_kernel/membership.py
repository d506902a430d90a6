"""The runtime's membership of its store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from naviscope_ingest.errors import RuntimeStopped
from naviscope_spi import (
    AnswersAtOnce,
    DeferredStore,
    Lease,
    Seq,
    Session,
    Settled,
    Settlement,
    SupportsColocation,
    SupportsVisits,
)

__all__ = ["Membership"]

T = TypeVar("T")


class Membership:
    """Claims and settles under one session.

    Args:
        store: the store.
        name: what the runtime is called.

    Attributes:
        lease: claims messages.
        waits: whether answers come later than the deed. A store in memory answers in the step in which it acts: there
            is nothing to shield, and a scope costs as much as settling.
        shields: whether a call may be cancelled on its way back, when it has happened and nobody knows. A store that
            finishes what it began needs no scope around each call, which would cost more than to store a message.
        write: settles, even if we are being cancelled: the sink has applied it, or the core has decided it.
        lease_nowait: claims messages from a store that answers at once; None for one that does not.
        commit_nowait: settles messages that bring nothing in such a store.

    These are called for every batch, which may be one message: what they return is awaited by the caller, without a
    call or a coroutine of their own around it.
    """

    lease: Callable[[Sequence[Seq]], Awaitable[Sequence[Lease[Any]]]]
    write: Callable[[Settlement[Any]], Awaitable[Settled]]
    lease_nowait: Callable[[Sequence[Seq]], Sequence[Lease[Any]]] | None = None
    commit_nowait: Callable[[Sequence[Lease[Any]]], Sequence[Seq]] | None = None

    def __init__(self, store: DeferredStore[Any], name: str) -> None:
        self.store = store
        self._name = name
        self._session: Session | None = None
        self.waits = store.info.durability != "none"
        self.shields = self.waits and not store.info.finishes_calls

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a member for as long as the block lasts."""
        async with self.store.join(self._name) as session, self._under(session):
            if isinstance(self.store, AnswersAtOnce) and _means_both(type(self.store)):
                self.lease_nowait = partial(self.store.pop_ready_nowait, session)
                self.commit_nowait = partial(self.store.commit_nowait, session)
            yield

    @asynccontextmanager
    async def visiting(self) -> AsyncIterator[None]:
        """Settle in place of a member that died, if the store has a way, for as long as the block lasts."""
        store = self.store
        opening = store.visit(self._name) if isinstance(store, SupportsVisits) else store.join(self._name)
        async with opening as session, self._under(session):
            yield

    @asynccontextmanager
    async def _under(self, session: Session) -> AsyncIterator[None]:
        self._session = session
        self.lease = partial(self.store.pop_ready, session)
        self.write = self._write if self.waits else partial(self.store.settle, session)
        try:
            yield
        finally:
            self._session = None

    @property
    def worker(self) -> str:
        """The name of the runtime and its session, for those who look for what it did."""
        return self._name if self._session is None else f"{self._name} {self._session.token}"

    async def _write(self, settlement: Settlement[Any]) -> Settled:
        return await _whole(self.store.settle(self._joined, settlement))

    async def write_with(self, settlement: Settlement[Any], apply: Callable[[Any], None]) -> Settled:
        """Settle, and let a sink write in the same transaction."""
        assert isinstance(self.store, SupportsColocation)
        return await _whole(self.store.settle_with(self._joined, settlement, apply))

    @property
    def _joined(self) -> Session:
        if self._session is None:
            # Somebody who was sealing, say, came back from the store when it had been left. The next process decides.
            raise RuntimeStopped("the runtime has stopped: what follows from this call is decided at the next start")
        return self._session

    async def ask(self, call: Coroutine[Any, Any, T]) -> T:
        """Ask the store for something, and wait for the answer even if we are cancelled meanwhile.

        Cancelled on its way back, a call has happened and nobody knows: the core would never learn of it.
        """
        if not self.waits:
            return await call
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            call.close()
            raise
        return await _whole(call)

    async def notice(self) -> None:
        """Notice a cancellation that came while the store was asked, now that the core knows the answer.

        Not of interest where nobody `waits`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()


def _means_both(store: type) -> bool:
    """Tell whether the forms that do not wait do what the others do.

    A subclass, or a wrapper, that changes only the one that waits wants that one to be called.
    """
    names = ("pop_ready_nowait", "pop_ready"), ("commit_nowait", "settle")
    return all(_depth(store, nowait) <= _depth(store, waiting) for nowait, waiting in names)


def _depth(store: type, method: str) -> int:
    return next((depth for depth, each in enumerate(store.__mro__) if method in vars(each)), len(store.__mro__))


async def _whole(call: Awaitable[T]) -> T:
    answers: list[T] = []
    with trio.CancelScope(shield=True):
        answers.append(await call)
    return answers[0]
