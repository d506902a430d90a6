"""Carrying out what the core decides: ends by policy, completed epochs, executors that have to stop.

One task at a time does so, for all, so that the store learns of a completion only after the ends it rests on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from naviscope_ingest._core import Core, Decisions, EpochEvent
from naviscope_ingest._kernel.epochs import EpochBook
from naviscope_ingest._kernel.judge import Judge
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.workers import Workers
from naviscope_ingest.reports import EpochReport
from naviscope_spi import Clock, EpochChange, Settlement

__all__ = ["Decider"]

_log = logging.getLogger("naviscope_ingest")


class Decider:
    """Writes down what the core decided, and acts on it.

    Args:
        core: decides.
        membership: settles.
        judge: says what is kept of messages that ended.
        book: is told of epochs and failures.
        workers: whose executors are stopped.
        meter: measures.
        clock: where time comes from.
        on_end: called when messages may have ended.

    Attributes:
        is_busy: whether decisions are being carried out.
    """

    def __init__(
        self,
        *,
        core: Core,
        membership: Membership,
        judge: Judge,
        book: EpochBook,
        workers: Workers,
        meter: Meter,
        clock: Clock,
        on_end: Callable[[], None],
    ) -> None:
        self.is_busy = False
        self._core = core
        self._membership = membership
        self._judge = judge
        self._book = book
        self._workers = workers
        self._meter = meter
        self._wall = clock.wall
        self._on_end = on_end
        self._waiting = trio.lowlevel.ParkingLot()

    async def carry_out(self) -> None:
        """Carry out all decisions, unless somebody does so already."""
        if self.is_busy:
            return
        self.is_busy = True
        try:
            await self._carry_out_all()
        finally:
            self._rest()

    async def until_done(self) -> None:
        """Wait until nobody carries out decisions."""
        while self.is_busy:
            await self._waiting.park()

    def wake_all(self) -> None:
        """Let everybody who waits look again."""
        if self._waiting:
            self._waiting.unpark_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Let nobody else carry out decisions for a block, and carry out those that are there before and after it."""
        await self.until_done()
        self.is_busy = True
        try:
            await self._carry_out_all()
            yield self._carry_out_all
            await self._carry_out_all()
        finally:
            self._rest()

    def _rest(self) -> None:
        self.is_busy = False
        self.wake_all()

    async def _carry_out_all(self) -> None:
        while self._core.has_decided:
            await self._carry_out_one(self._core.drain())

    async def _carry_out_one(self, decisions: Decisions) -> None:
        if decisions.stop:
            self._workers.strike(decisions.stop)
        for each in decisions.ended:
            self._book.note(each)
        self._meter.decided(decisions.ended)
        # A replay may have come between a completion and this: then the epoch has not completed after all.
        decisions.epochs = [each for each in decisions.epochs if each.event != "completed" or each.epoch.is_completed]
        reports = {
            event.epoch.number: self._book.final_report(event.epoch, self._wall())
            for event in decisions.epochs
            if event.event == "completed"
        }
        ended, records = await self._judge.ends(decisions.ended)
        settlement: Settlement[Any] = Settlement(
            ended=ended,
            records=records,
            epochs=[_change(event, reports) for event in decisions.epochs if event.event != "blocked"],
        )
        await self._membership.write(settlement)
        for event in decisions.epochs:
            self._announce(event, reports)
        self._on_end()

    def _announce(self, event: EpochEvent, reports: Mapping[int, EpochReport]) -> None:
        epoch = event.epoch
        self._meter.epoch(epoch.key, event.event)
        if _log.isEnabledFor(logging.INFO):
            _tell(event, reports.get(epoch.number))
        if event.event == "completed":
            self._book.complete(epoch, reports[epoch.number])
        elif event.event == "repairing":
            self._book.reopen(epoch.number)
        else:
            self._book.find(epoch.number).tell()


def _tell(event: EpochEvent, report: EpochReport | None) -> None:
    """Log what became of an epoch."""
    epoch = event.epoch
    facts: dict[str, object] = {"epoch": epoch.name, "epoch_number": epoch.number, "event": event.event}
    if report is None:
        is_blocked = event.event == "blocked"
        what = "blocked: all that is left waits for a person or the world" if is_blocked else event.event
        _log.info("epoch %r is %s", epoch.name, what, extra=facts)
        return
    counts = {name: getattr(report, name) for name in ("submitted", "committed", "dead", "skipped")}
    ends = counts | {"cancelled": report.cancelled, "expired": report.expired}
    told = ", ".join(f"{count} {name}" for name, count in ends.items())
    _log.info("epoch %r completed: %s", epoch.name, told, extra={**facts, **ends, "revision": report.revision})


def _change(event: EpochEvent, reports: Mapping[int, EpochReport]) -> EpochChange:
    epoch = event.epoch
    if event.event != "completed":
        return EpochChange(epoch.key, "repairing")
    return EpochChange(epoch.key, "completed", reports[epoch.number].encode(), epoch.succeeded)
