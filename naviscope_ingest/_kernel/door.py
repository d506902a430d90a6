"""The door: how messages come in, and when they are held up, left out or refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from naviscope_ingest._core import Core
from naviscope_ingest._kernel.epochs import EpochBook, EpochPage
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.pressure import WITHIN, Pressure
from naviscope_ingest._kernel.steering import Steering
from naviscope_ingest.admission import IntakePolicy
from naviscope_ingest.errors import IntakeFull
from naviscope_spi import (
    Clock,
    DeferredStore,
    EpochOptions,
    Message,
    PutReceipt,
    StoreRefused,
    SupportsUnique,
)

__all__ = ["Door"]


class Door:
    """Lets epochs and messages in.

    Args:
        store: where they go.
        core: is told of them.
        book: has a page for each epoch.
        membership: asks the store.
        pressure: knows whether there is room.
        steering: knows what somebody refuses.
        policy: what happens when there is no room.
        within: whose workers must never wait for room, since they would wait for themselves.
        check: refuses messages that the executor would not take, if it says so.
        meter: measures.
        clock: where time comes from.
        check_running: raises if no more work is taken.
        follow_up: sees to what follows from messages that came in.
    """

    def __init__(
        self,
        *,
        store: DeferredStore[Any],
        core: Core,
        book: EpochBook,
        membership: Membership,
        pressure: Pressure,
        steering: Steering,
        policy: IntakePolicy,
        within: object,
        check: Callable[[Sequence[Message[Any]]], None] | None,
        meter: Meter,
        clock: Clock,
        check_running: Callable[[], None],
        follow_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._core = core
        self._book = book
        self._membership = membership
        self._pressure = pressure
        self._steering = steering
        self._policy = policy
        self._within = within
        self._check = check
        self._meter = meter
        self._wall = clock.wall
        self._check_running = check_running
        self._follow_up = follow_up

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochPage:
        """Open an epoch, or rejoin one.

        Raises:
            IntakeFull: too many epochs are open.
        """
        self._check_running()
        most = self._policy.max_open_epochs
        if most is not None and len(self._core.open_epochs) >= most and not self._book.knows(name):
            raise IntakeFull("max_open_epochs", most, len(self._core.open_epochs), self._pressure.hint())
        record = await self._membership.ask(self._store.open_epoch(name, options))
        page = self._book.open(record)
        if record.key.number not in self._core.epochs:
            self._core.open_epoch(record)
            self._meter.epoch(record.key, "opened")
        if self._membership.waits:
            await self._membership.notice()
        return page

    async def put(
        self,
        page: EpochPage,
        messages: Sequence[Message[Any]],
        unique_for: float | None = None,
        *,
        may_wait: bool = True,
    ) -> tuple[PutReceipt, int]:
        """Store messages and let them run; but not those that were stored so not long ago, in whatever epoch.

        Returns:
            What came of it, and how many were left out because too much is to be done.

        Raises:
            IntakeFull: there is no room, and it may not be waited for.
        """
        self._check_running()
        if self._check is not None:
            self._check(messages)
        if self._steering.strikes:
            self._steering.check(messages)
        if self._pressure.is_near(len(messages)):
            return await self._put_with_care(page, messages, unique_for, may_wait=may_wait)
        return await self._put(page, messages, unique_for), 0

    async def _put_with_care(
        self, page: EpochPage, messages: Sequence[Message[Any]], unique_for: float | None, *, may_wait: bool
    ) -> tuple[PutReceipt, int]:
        """Wait for room, refuse, or leave messages out. Those that somebody waits for come in before the others."""
        pressure, how = self._pressure, page.when_full or self._policy.when_full
        early: PutReceipt | None = None
        dropped: Sequence[Message[Any]] = ()
        while True:
            tracker = self._core.epochs.get(page.key.number)
            awaited = {} if tracker is None else tracker.ghosts
            others = [message for message in messages if message.id not in awaited]
            full = pressure.limit_reached(others)
            is_slow = pressure.look() and page.sealed_at is None
            if not others or not (full or is_slow):
                break
            if full is None and how in ("drop", "sample"):
                messages, dropped = pressure.choose(messages, how, awaited)
                page.drop(message.id for message in dropped)
                break
            if len(others) < len(messages):
                # Their waiters may be what fills the runtime. What they wait for themselves is awaited then.
                urgent = [message for message in messages if message.id in awaited]
                early = _together(early, await self._put(page, urgent, unique_for))
                messages = others
                continue
            if full is not None:
                raise full
            if how == "reject" or not may_wait or WITHIN.get() is self._within:
                raise pressure.full()
            await pressure.wait()
            self._check_running()
        if not messages:
            await trio.lowlevel.checkpoint()
            return early or PutReceipt((), ()), len(dropped)
        return _together(early, await self._put(page, messages, unique_for)), len(dropped)

    async def _put(self, page: EpochPage, messages: Sequence[Message[Any]], unique_for: float | None) -> PutReceipt:
        pressure = self._pressure
        page.submits += 1
        pressure.pending += len(messages)
        try:
            if unique_for is None:
                stored = self._store.put(page.key, messages)
            else:
                stored = self._unique.put_unique(page.key, messages, unique_for)
            receipt = await (self._membership.ask(stored) if self._membership.shields else stored)
            self._tell_core(page, messages, receipt)
        finally:
            pressure.pending -= len(messages)
            page.submits -= 1
            if not page.submits:
                page.tell()
        if pressure.is_near(0):
            pressure.look()
        await self._follow_up()
        return receipt

    def _tell_core(self, page: EpochPage, messages: Sequence[Message[Any]], receipt: PutReceipt) -> None:
        self._core.tell_time(self._wall())
        if receipt.accepted:
            new = messages
            if len(receipt.accepted) < len(messages):
                new = [messages[index] for index in receipt.indexes]
            self._core.accept(page.key.number, receipt.accepted, new)
        if receipt.duplicates:
            self._core.count_duplicates(page.key.number, receipt.duplicates, len(receipt.conflicts))
        self._meter.submitted(page.key, receipt)

    @property
    def _unique(self) -> SupportsUnique[Any]:
        if not isinstance(self._store, SupportsUnique):
            raise StoreRefused(
                f"unique_for: {type(self._store).__name__} remembers no ids beyond their epoch (it has no put_unique)"
            )
        return self._store


def _together(early: PutReceipt | None, late: PutReceipt) -> PutReceipt:
    """Return what came of two parts of a chunk. Which of its messages those were is of no interest any more."""
    if early is None:
        return late
    return PutReceipt(
        (*early.accepted, *late.accepted),
        (),
        early.duplicates + late.duplicates,
        (*early.conflicts, *late.conflicts),
    )
