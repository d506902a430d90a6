"""The kernel: life and death of a runtime, what callers ask for, time, and what the core decides.

There is no task switch, channel item or thread hop per message: workers and committer are function calls on batches.

What follows from a settlement (ends by policy, completed epochs) is decided by the core and carried out by one task at
a time, so that the store learns of a completion only after the ends it rests on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio
from attrs import frozen

from naviscope_ingest._core import Core, Decided, Decisions, EpochEvent, Fold
from naviscope_ingest._kernel.breakers import Breakers
from naviscope_ingest._kernel.commits import SinkLine
from naviscope_ingest._kernel.committer import Committer
from naviscope_ingest._kernel.epochs import EpochBook, EpochPage
from naviscope_ingest._kernel.fan_outs import FanOuts
from naviscope_ingest._kernel.hints import Hints
from naviscope_ingest._kernel.judge import Judge
from naviscope_ingest._kernel.lifecycle import Lifecycle, RuntimeState
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.outcomes import Planner
from naviscope_ingest._kernel.prepared import recorder_for, refuser_for, scribe_for
from naviscope_ingest._kernel.pressure import WITHIN, Pressure
from naviscope_ingest._kernel.repairs import Repair, Repairs
from naviscope_ingest._kernel.steering import Steering
from naviscope_ingest._kernel.workers import Workers
from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.errors import IntakeFull, RuntimeFailed, RuntimeStopped
from naviscope_ingest.letters import reason_of
from naviscope_ingest.reports import EpochReport, Recovery
from naviscope_spi import (
    Accepted,
    CaughtUp,
    ChecksMessages,
    Clock,
    DeferredStore,
    Ended,
    EpochChange,
    EpochMarked,
    EpochOpened,
    EpochOptions,
    EpochRecord,
    FactBody,
    Leased,
    Message,
    Prepared,
    PutReceipt,
    Record,
    RecoveryBegun,
    Resource,
    Seq,
    SessionEnded,
    Settlement,
    StoreRefused,
    SupportsRetention,
    SupportsUnique,
    Waits,
)

__all__ = ["Kernel", "Statistics"]

_log = logging.getLogger("naviscope_ingest")

_PRUNE_EVERY = 60.0
"""How often a durable store is asked to forget what nobody needs any more, in seconds."""

_PRUNE_STEP = 1_000
"""How much it forgets in one step, so that no step holds up work."""

_TELL_EVERY = 2.0
"""How often a recovery says how far it is, in seconds."""

_LONGEST_SLEEP = 60.0
"""A wall clock may jump, so the time is looked at every so often, in seconds."""


@frozen
class Statistics:
    """What a runtime is doing and has done.

    Attributes:
        state: created, starting, running, paused, draining, stopped or failed.
        epochs: epochs that are kept.
        unfinished: messages that have not ended.
        waiting: those of them that wait or are held.
        in_flight: those that were started and not yet settled.
        workers: tasks that run executors.
        executed: attempts that executors answered.
        committed: messages that committed.
        batches: commit batches.
        backlog: messages that could run and have not been started.
        backpressure: whether intake is slow because there are too many of them.
        dropped: messages that were left out because of that.
    """

    state: str
    epochs: int
    unfinished: int
    waiting: int
    in_flight: int
    workers: int
    executed: int
    committed: int
    batches: int
    backlog: int = 0
    backpressure: bool = False
    dropped: int = 0


class _Found:
    """What a recovery tells that the core does not keep.

    Attributes:
        fold: tells the core.
        started: when it began, by the monotonic clock.
        held: what sessions had leased, by their tokens.
        recorded: messages whose outcomes are recorded.
        messages: how many were told.
        expected: how many will be.
    """

    def __init__(self, fold: Fold, started: float) -> None:
        self.fold = fold
        self.started = started
        self.held: dict[int, list[Seq]] = {}
        self.recorded: dict[Seq, None] = {}
        self.messages = 0
        self.expected: int | None = None

    def take(self, fact: FactBody) -> None:
        """Take a fact in."""
        self.fold(fact)
        if isinstance(fact, Accepted):
            self.messages += len(fact.seqs)
        elif isinstance(fact, Leased):
            self.held.setdefault(fact.token, []).extend(fact.seqs)
        elif isinstance(fact, Prepared):
            self.recorded.update(dict.fromkeys(fact.seqs))
        elif isinstance(fact, RecoveryBegun):
            self.expected = fact.amount


class Kernel:
    """Runs messages from a store through an executor into a sink."""

    def __init__(
        self, components: RuntimeComponents[Any, Any], config: RuntimeConfig, store: DeferredStore[Any], clock: Clock
    ) -> None:
        self.store = store
        self.clock = clock
        self.core = Core(
            derives=config.derives,
            on_unresolved=config.on_unresolved,
            stall_grace=config.stall_grace,
            lanes=config.lanes,
            max_deferrals=config.max_deferrals,
            ageing=config.ageing,
            # A durable store has the messages; one in memory keeps them for as long as the core does.
            keeps_outlines=store.info.durability != "none",
        )
        self.book = EpochBook(self.core, config.keep_reports, config.max_failures)
        self._found: _Found | None = None
        self._recovery: Recovery | None = None
        self._life = Lifecycle()
        self._config = config
        self._started_at = 0.0
        self._is_watched = False
        self._nursery: trio.Nursery | None = None
        self._error: BaseException | None = None
        # Messages that a recovery found in retry.
        self._delayed: list[Seq] = []
        self._is_deciding = False
        self._undecided = trio.lowlevel.ParkingLot()
        self._progress = trio.lowlevel.ParkingLot()
        self._alarm = trio.Event()
        self.ended = trio.Event()
        self._wakes_at: float | None = None
        self._membership = Membership(store, config.name)
        scribe = scribe_for(store)
        executor = components.executor
        self._check = executor.check_messages if isinstance(executor, ChecksMessages) else None
        recorder = recorder_for(components.commit_sink, scribe, config.records_outcomes)
        self._recalls = recorder is not None
        self._hints = None if components.bus is None else Hints(components.bus)
        self._meter = Meter(components.metrics, clock, self.core)
        self._workers = Workers(
            executor=components.executor,
            core=self.core,
            membership=self._membership,
            recorder=recorder,
            config=config,
            hints=self._hints,
            meter=self._meter,
            spawn=self._spawn,
            on_rest=self._on_rest,
        )
        self._breakers = Breakers(
            core=self.core,
            config=config,
            now=clock.wall,
            meter=self._meter,
            spawn=self._spawn,
            on_open=self._wake,
        )
        self._judge = Judge(
            core=self.core,
            config=config,
            membership=self._membership,
            now=clock.wall,
            chance=random.random,
            meter=self._meter,
            breakers=self._breakers,
        )
        planner = Planner(
            self.core,
            store.info.store_id,
            refuser_for(scribe, self._check),
            most=config.max_derived,
            records=recorder is not None,
        )
        self._fan_outs = FanOuts(
            core=self.core,
            membership=self._membership,
            planner=planner,
            workers=self._workers,
            config=config,
            clock=clock,
            spawn=self._spawn_passing,
            follow_up=self._follow_up,
        )
        self._line = SinkLine(
            config=config,
            now=clock.wall,
            sleep=trio.sleep,
            chance=random.random,
            meter=self._meter,
            tell=self.core.tell_sink,
            keep=lambda record: self._membership.write(Settlement(records=[record])),
        )
        self._committer = self._workers.committer = Committer(
            sink=components.commit_sink,
            core=self.core,
            planner=planner,
            fan_outs=self._fan_outs,
            judge=self._judge,
            breakers=self._breakers,
            line=self._line,
            membership=self._membership,
            recorder=recorder,
            book=self.book,
            workers=self._workers,
            config=config,
            meter=self._meter,
            clock=clock,
            carry_out=self._carry_out,
            fail=self._fail,
        )
        self.repairs = Repairs(self.core, self._membership, self.book, self._deciding)
        self._pressure = Pressure(
            self.core, config.intake, lambda: self._workers.in_flight, self._pace, self._on_pressure
        )
        self.steering = Steering(
            core=self.core,
            config=config,
            workers=self._workers,
            life=self._life,
            now=clock.wall,
            on_change=self._on_steering,
        )
        self.steering.begin()
        self._regulate()

    # Life

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Join the store, recover what it knows, and work until the block is left."""
        self._life.go("starting", "be started")
        try:
            # Before joining, which ends the session of a process that died: what it was running is told only now.
            found = await self._recover()
            async with self._membership.joined():
                await self._begin(found)
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._breakers.restore(self._membership)
                    await self._line.restore(self.store)
                    self._life.go("running", "run")
                    self._started_at = self.clock.monotonic()
                    self._workers.may_start = True
                    nursery.start_soon(self._until_the_end, self._keep_time)
                    if self.store.info.durability != "none" and isinstance(self.store, SupportsRetention):
                        nursery.start_soon(self._until_the_end, self._prune, self.store)
                    if self._hints is not None:
                        nursery.start_soon(self._until_the_end, self._workers.receive_hints, self._hints)
                        nursery.start_soon(self._until_the_end, self._hints.send_again)
                    await self._carry_out()
                    self._wake()
                    yield
                    nursery.cancel_scope.cancel()
        except BaseException as raised:
            error = sole_error(raised)
            if error is None:
                raise
            self._error = self._error or error
            if error is raised:
                raise
            raise error from error.__cause__
        finally:
            self._life.end(failed=self._error is not None)
            self.ended.set()
            self._workers.may_start = False
            self._nursery = None
            self.book.wake_all()
            self._pressure.wake_all()
            self._undecided.unpark_all()
            self._progress.unpark_all()

    @property
    def state(self) -> RuntimeState:
        """Where the runtime is in its life."""
        return self._life.state

    def _spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._until_the_end, task, *arguments)

    def _spawn_passing(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._until_it_is_done, task, *arguments)

    async def _until_it_is_done(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task that ends when it has done its work. If that fails, nothing is started any more."""
        try:
            await task(*arguments)
        except trio.Cancelled:
            raise
        except BaseException as error:
            self._fail(error)
            raise

    async def _until_the_end(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task that ends only with the runtime: when it does, nothing is started any more."""
        try:
            await task(*arguments)
        except trio.Cancelled:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._workers.may_start = False

    def _fail(self, error: BaseException) -> None:
        """Note why the runtime ends, so that those who come now are told."""
        self._workers.may_start = False
        if self._error is None:
            self._error = error
            self._life.end(failed=True)
            self._pressure.wake_all()

    async def _recover(self) -> _Found:
        """Learn everything that the store has kept."""
        started = told = self.clock.monotonic()
        found = self._found = _Found(Fold(self.core), started)
        facts = self.store.facts(None)
        async for batch in facts:
            self.core.tell_time(self.clock.wall())
            for fact in batch:
                found.take(fact.body)
                self._note_recovered(fact.body)
            if isinstance(batch[-1].body, CaughtUp):
                break
            now = self.clock.monotonic()
            if now - started > self._config.start_timeout:
                # Asked after each step: a deadline of trio would not wait for the thread of a store in virtual time.
                await facts.aclose()  # type: ignore[attr-defined]  # as below
                raise RuntimeFailed(
                    f"the start took longer than {self._config.start_timeout:g} seconds, after which {found.messages} "
                    "messages were read: RuntimeConfig(start_timeout=...) allows for more"
                )
            if now - told >= _TELL_EVERY:
                told = now
                self._tell_progress()
        await facts.aclose()  # type: ignore[attr-defined]  # every async iterator of a store can be closed
        self._recovery = self._summary(found, is_over=True)
        return found

    @property
    def recovery(self) -> Recovery:
        """What was found in the store, so far."""
        return self._recovery or (Recovery() if self._found is None else self._summary(self._found, is_over=False))

    def _summary(self, found: _Found, *, is_over: bool) -> Recovery:
        left = [epoch for epoch in self.core.epochs.values() if not epoch.is_completed]
        return Recovery(
            epochs=len(left),
            unfinished=sum(epoch.unfinished for epoch in left),
            recorded=len(found.recorded) if self._recalls else 0,
            suspects=sum(map(len, self._suspects(found))),
            messages=found.messages,
            expected=found.expected,
            seconds=self.clock.monotonic() - found.started,
            is_over=is_over,
        )

    def _suspects(self, found: _Found) -> list[list[Seq]]:
        """Return what was running when sessions ended. A message whose outcome is recorded was not, any more."""
        settled = found.recorded if self._recalls else {}
        return [[seq for seq in seqs if seq not in settled] for seqs in found.held.values()]

    def _tell_progress(self) -> None:
        """Say how far a long recovery is."""
        found = self.recovery
        of = "" if found.expected is None else f" of {found.expected:,}"
        _log.info(
            "recovering: %s%s messages read in %.0f s",
            f"{found.messages:,}",
            of,
            found.seconds,
            extra={"messages": found.messages, "expected": found.expected, "seconds": found.seconds},
        )

    async def _begin(self, found: _Found) -> None:
        """Take over from the sessions that were before."""
        for token in found.held:
            found.fold(SessionEnded(token, clean=False))
        if not self._recalls:
            self.core.disregard_records(list(found.recorded))
        self.core.advance(self.clock.wall())
        self._judge.remember(seq for seq in self._delayed if self.core.is_unfinished(seq))
        self._delayed.clear()
        for seqs in self._suspects(found):
            self._workers.suspect(seqs)
        seen = self.recovery
        if seen.unfinished or seen.epochs:
            _log.info(
                "recovered %d unfinished messages of %d epochs in %.1f s; the outcomes of %d were recorded, and %d "
                "were running when the last process ended",
                seen.unfinished,
                seen.epochs,
                seen.seconds,
                seen.recorded,
                seen.suspects,
                extra={
                    "unfinished": seen.unfinished,
                    "epochs": seen.epochs,
                    "recorded": seen.recorded,
                    "suspects": seen.suspects,
                    "seconds": seen.seconds,
                },
            )
        await self._workers.recall(list(found.recorded))

    def _note_recovered(self, fact: FactBody) -> None:
        """Put into the book what the core does not keep."""
        if isinstance(fact, EpochOpened | EpochMarked):
            self.book.open(fact.record)
        elif isinstance(fact, Waits):
            if fact.not_before is not None:
                self._delayed.append(fact.seq)
        elif isinstance(fact, Ended):
            node = self.core.node(fact.seq)
            if node is not None and node.end is not None:
                error = reason_of(fact.letter)
                node.more().reason = error
                self._note_failure(Decided(fact.seq, fact.end, frozenset(fact.causes), frozenset(), error))

    def _note_failure(self, decided: Decided) -> None:
        """Put a message that ended badly into the report of its epoch."""
        node = self.core.node(decided.seq)
        if node is not None:
            causes = [cause.id for seq in sorted(decided.causes) if (cause := self.core.node(seq)) is not None]
            self.book.fail(node.epoch.number, node.id, decided.end, decided.reason, causes)

    def check_running(self) -> None:
        """Raise if no more work is taken.

        Raises:
            RuntimeStopped: the runtime was stopped, or never started.
            RuntimeFailed: it ended by an error.
        """
        if self._workers.may_start:
            return
        if self._error is not None:
            raise RuntimeFailed(f"the runtime ended by {self._error!r}: start a new one") from self._error
        state = "stopping" if self.state in ("running", "paused") else self.state
        raise RuntimeStopped(f"the runtime is {state}: it takes no more work")

    def check_alive(self) -> None:
        """Raise if the runtime has ended, for those who wait.

        Raises:
            RuntimeStopped: it was stopped.
            RuntimeFailed: it ended by an error.
        """
        if self.state in ("stopped", "failed"):
            self.check_running()

    async def drain(self, timeout: float) -> bool:
        """Start nothing more, wait for what was started, hand the rest back; return whether all of it finished."""
        if self.state != "failed":
            self._life.go("draining", "be drained")
        self._workers.may_start = False
        self._pressure.wake_all()
        self._workers.hand_back()
        with trio.move_on_after(timeout) as scope:
            while self._workers.in_flight:
                self._wake()
                await self._progress.park()
        return not scope.cancelled_caught

    async def wait_idle(self) -> None:
        """Wait until nothing is ready, running or being committed."""
        while not self.is_idle:
            self.check_running()
            await self._progress.park()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready, running or being committed."""
        schedule = self.core.schedule
        return not (
            self._workers.in_flight
            or self._is_deciding
            or self._fan_outs.are_under_way
            or schedule.has_ready()
            or schedule.has_parked()
        )

    def statistics(self) -> Statistics:
        """Count what is going on."""
        epochs = self.core.epochs.values()
        return Statistics(
            state=self.state,
            epochs=len(epochs),
            unfinished=sum(epoch.unfinished for epoch in epochs),
            waiting=sum(epoch.waiting for epoch in epochs),
            in_flight=self._workers.in_flight,
            workers=len(self._workers),
            executed=self._workers.executed,
            committed=self._committer.committed,
            batches=self._committer.batches,
            backlog=self._pressure.backlog,
            backpressure=self._pressure.is_active,
            dropped=self._pressure.dropped,
        )

    # What callers ask for

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochPage:
        """Open an epoch, or rejoin one."""
        self.check_running()
        most = self._config.intake.max_open_epochs
        if most is not None and len(self.core.open_epochs) >= most and not self.book.knows(name):
            raise IntakeFull("max_open_epochs", most, len(self.core.open_epochs), self._pressure.hint())
        record = await self._membership.ask(self.store.open_epoch(name, options))
        page = self.learn_epoch(record)
        await self._membership.notice()
        return page

    def learn_epoch(self, record: EpochRecord) -> EpochPage:
        """Take an epoch of the store into core and book."""
        page = self.book.open(record)
        if record.key.number not in self.core.epochs:
            self.core.open_epoch(record)
            self._meter.epoch(record.key, "opened")
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
        """
        self.check_running()
        if self._check is not None:
            self._check(messages)
        if self.steering.strikes:
            self.steering.check(messages)
        dropped = 0
        if self._pressure.is_near(len(messages)):
            given = len(messages)
            messages = await self._admit(page, messages, may_wait=may_wait)
            dropped = given - len(messages)
            if not messages:
                await trio.lowlevel.checkpoint()
                return PutReceipt((), ()), dropped
        return await self._put(page, messages, unique_for), dropped

    async def _admit(
        self, page: EpochPage, messages: Sequence[Message[Any]], *, may_wait: bool
    ) -> Sequence[Message[Any]]:
        """Wait for room, refuse, or leave messages out; return those that come in."""
        pressure = self._pressure
        tracker = self.core.epochs.get(page.key.number)
        awaited = {} if tracker is None else tracker.ghosts
        pressure.check_limits(messages, awaited)
        how = page.when_full or self._config.intake.when_full
        while pressure.look() and page.sealed_at is None:
            if how in ("drop", "sample"):
                kept, dropped = pressure.choose(messages, how, awaited)
                page.drop(message.id for message in dropped)
                return kept
            if any(message.id in awaited for message in messages):
                break
            if how == "reject" or not may_wait or WITHIN.get() is self._workers:
                raise pressure.full()
            await pressure.wait()
            self.check_running()
        return messages

    async def _put(self, page: EpochPage, messages: Sequence[Message[Any]], unique_for: float | None) -> PutReceipt:
        page.submits += 1
        self._pressure.pending += len(messages)
        try:
            if unique_for is None:
                stored = self.store.put(page.key, messages)
            else:
                stored = self._unique.put_unique(page.key, messages, unique_for)
            receipt = await self._membership.ask(stored)
            self.core.tell_time(self.clock.wall())
            if receipt.accepted:
                new = messages
                if len(receipt.accepted) < len(messages):
                    new = [messages[index] for index in receipt.indexes]
                self.core.accept(page.key.number, receipt.accepted, new)
            if receipt.duplicates:
                self.core.count_duplicates(page.key.number, receipt.duplicates, len(receipt.conflicts))
            self._meter.submitted(page.key, receipt)
        finally:
            self._pressure.pending -= len(messages)
            page.submits -= 1
            if not page.submits:
                page.tell()
        if self._pressure.is_near(0):
            self._pressure.look()
        await self._follow_up()
        return receipt

    @property
    def _unique(self) -> SupportsUnique[Any]:
        if not isinstance(self.store, SupportsUnique):
            raise StoreRefused(
                f"unique_for: {type(self.store).__name__} remembers no ids beyond their epoch (it has no put_unique)"
            )
        return self.store

    async def seal(self, page: EpochPage) -> None:
        """Seal an epoch, once the submits that are under way are through."""
        self.check_running()
        while page.submits:
            await page.changed()
        await self._mark(page, "seal")
        if page.key.number in self.core.epochs:
            self.core.seal(page.key.number)
        await self._follow_up()

    async def _mark(self, page: EpochPage, mark: Literal["seal", "cancel"]) -> None:
        """Mark an epoch in the store, which seals it, and wait until the core knows of everything that came before."""

        async def mark_and_wait() -> EpochRecord:
            record = await self.store.mark_epoch(page.key, mark)
            while page.submits:
                await page.changed()
            return record

        record = await self._membership.ask(mark_and_wait())
        tracker = self.core.epochs.get(page.key.number)
        if tracker is not None and tracker.state == "open":
            page.sealed_at = record.sealed_at
            self._pressure.wake_all()
            self._meter.epoch(page.key, "sealed")

    async def cancel_epoch(self, page: EpochPage) -> None:
        """Cancel what has not ended in an epoch."""
        self.check_running()
        await self._mark(page, "cancel")
        self.core.cancel_epoch(page.key.number)
        page.tell()
        await self._follow_up(until_done=True)

    async def cancel(self, seq: Seq) -> bool:
        """Cancel one message; return whether that had an effect."""
        self.check_running()
        did = self.core.cancel(seq)
        await self._follow_up(until_done=True)
        return did

    async def provide(self, resources: Sequence[Resource]) -> None:
        """Provide resources to every epoch."""
        self.check_running()
        await self._membership.ask(self.store.notify_ready(resources))
        for resource in resources:
            self.core.provide(resource)
        await self._follow_up()

    async def forget(self, name: str) -> None:
        """Take a resource back that was provided to every epoch."""
        self.check_running()
        await self._membership.ask(self.store.forget_ready([name]))
        self.core.forget_resource(name)
        await self._membership.notice()

    async def replay(self, repairs: Sequence[Repair]) -> dict[Seq, int]:
        """Start a new run of dead letters; return how many messages each brought back."""
        self.check_running()
        self.core.tell_time(self.clock.wall())
        done = await self.repairs.replay(repairs)
        await self._follow_up()
        return done

    async def discard(self, repairs: Sequence[Repair]) -> list[Seq]:
        """Give dead letters up; return which."""
        self.check_running()
        self.core.tell_time(self.clock.wall())
        done = await self.repairs.discard(repairs)
        await self._follow_up(until_done=True)
        return done

    async def record(self, records: Sequence[Record]) -> None:
        """Keep records that ride with nothing else."""
        self.check_running()
        await self._membership.write(Settlement(records=records))

    async def _follow_up(self, *, until_done: bool = False) -> None:
        """Let the core look around after something changed, and see to what it decides."""
        self.core.advance(self.clock.wall())
        if self.core.has_decided:
            await self._carry_out()
        while until_done and self._is_deciding:
            await self._undecided.park()
        self._wake()
        await self._membership.notice()

    # Time

    async def _keep_time(self) -> None:
        """Tell the core the time whenever something becomes due."""
        while True:
            due = self.core.next_due
            self._wakes_at = due
            wait = _LONGEST_SLEEP if due is None else min(max(0.0, due - self.clock.wall()), _LONGEST_SLEEP)
            with trio.move_on_after(wait):
                await self._alarm.wait()
            self._alarm = trio.Event()
            await trio.lowlevel.checkpoint()
            await self._follow_up()

    async def _prune(self, store: SupportsRetention) -> None:
        """Let a durable store forget, in small steps, what its epochs were to be kept for."""
        while True:
            while await store.prune(self.clock.wall() - store.retain, _PRUNE_STEP) >= _PRUNE_STEP:
                await trio.lowlevel.checkpoint()
            await trio.sleep(_PRUNE_EVERY)

    def _set_alarm(self) -> None:
        due = self.core.next_due
        if due is not None and (self._wakes_at is None or due < self._wakes_at):
            self._wakes_at = due
            self._alarm.set()

    # Flow

    def _regulate(self) -> None:
        """Let workers ask in a way that looks at the time and at the backlog, as long as anything goes by them."""
        is_needed = self.core.control.is_on or self._pressure.is_active
        self._workers.take = self._take_in_time if is_needed else self.core.take

    def _take_in_time(self, limit: int) -> list[Seq]:
        self.core.tell_time(self.clock.wall())
        taken = self.core.take(limit)
        # What was parked now waits for a time, and whoever asked may be busy until long after it.
        self._set_alarm()
        if self._pressure.is_active:
            # Whoever asked counts them as in flight only when it has them.
            self._pressure.look(len(taken))
        return taken

    def _on_steering(self) -> None:
        """Let a change hold that somebody made."""
        self._regulate()
        if self._workers.may_start:
            self._wake()

    def _pace(self) -> float:
        """Return how many messages have committed in a second so far."""
        elapsed = self.clock.monotonic() - self._started_at
        return self._committer.committed / elapsed if elapsed > 0 else 0.0

    def _on_pressure(self, is_active: bool) -> None:
        """Act on intake that became slow, or no longer is."""
        self.core.schedule.is_pressed = is_active
        self._regulate()
        self._meter.pressed(is_active, self._pressure.backlog)
        _log.debug("intake is %s", "slow" if is_active else "open", extra={"backpressure": is_active})
        if is_active and not self._is_watched and self._nursery is not None:
            self._is_watched = True
            self._nursery.start_soon(self._alert)

    async def _alert(self) -> None:
        """Warn of intake that stays slow. One task does so, for as long as it is."""
        every, since = self._config.intake.alert_after, self._pressure.changes
        lasted = 0.0
        while self._pressure.is_active:
            await trio.sleep(every)
            if since != self._pressure.changes:
                since, lasted = self._pressure.changes, 0.0
                continue
            lasted += every
            _log.warning(
                "intake has been slow for %g seconds: %d messages are ready and not started",
                lasted,
                self._pressure.backlog,
                extra={"backpressure": True, "backlog": self._pressure.backlog},
            )
        self._is_watched = False

    # Who is woken

    def _wake(self) -> None:
        """See that somebody works if there is work, and that the clock rings in time."""
        self._set_alarm()
        if self._workers.have_work:
            self._workers.wake()
        self._wake_waiters()

    def _on_rest(self) -> None:
        """See to what may be due now that a worker found nothing to do."""
        self._set_alarm()
        if self._pressure.is_active:
            self._pressure.look()
        self._fan_outs.on_rest()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake those who wait until nothing is going on."""
        if self._progress and not self._workers.in_flight:
            self._progress.unpark_all()

    # Decisions

    async def _carry_out(self) -> None:
        """Write down what the core decided, and act on it. One task at a time does so, for all."""
        if self._is_deciding:
            return
        self._is_deciding = True
        try:
            await self._carry_out_all()
        finally:
            self._stop_deciding()

    async def _carry_out_all(self) -> None:
        while self.core.has_decided:
            await self._carry_out_one(self.core.drain())

    @asynccontextmanager
    async def _deciding(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Let nobody else carry out decisions for a block, and carry out those that are there before and after it."""
        while self._is_deciding:
            await self._undecided.park()
        self._is_deciding = True
        try:
            await self._carry_out_all()
            yield self._carry_out_all
            await self._carry_out_all()
        finally:
            self._stop_deciding()

    def _stop_deciding(self) -> None:
        self._is_deciding = False
        if self._undecided:
            self._undecided.unpark_all()

    async def _carry_out_one(self, decisions: Decisions) -> None:
        if decisions.stop:
            self._workers.strike(decisions.stop)
        for each in decisions.ended:
            self._note_failure(each)
        self._meter.decided(decisions.ended)
        # A replay may have come between a completion and this: then the epoch has not completed after all.
        decisions.epochs = [each for each in decisions.epochs if each.event != "completed" or each.epoch.is_completed]
        reports = {
            event.epoch.number: self.book.final_report(event.epoch, self.clock.wall())
            for event in decisions.epochs
            if event.event == "completed"
        }
        ended, records = await self._judge.ends(decisions.ended)
        settlement: Settlement[Any] = Settlement(
            ended=ended,
            records=records,
            epochs=[self._change(event, reports) for event in decisions.epochs if event.event != "blocked"],
        )
        await self._membership.write(settlement)
        for event in decisions.epochs:
            self._announce(event, reports)
        if self._pressure.is_active:
            self._pressure.look()

    def _change(self, event: EpochEvent, reports: Mapping[int, EpochReport]) -> EpochChange:
        epoch = event.epoch
        if event.event != "completed":
            return EpochChange(epoch.key, "repairing")
        return EpochChange(epoch.key, "completed", reports[epoch.number].encode(), epoch.succeeded)

    def _announce(self, event: EpochEvent, reports: Mapping[int, EpochReport]) -> None:
        epoch = event.epoch
        self._meter.epoch(epoch.key, event.event)
        if event.event == "completed":
            self.book.complete(epoch, reports[epoch.number])
        elif event.event == "repairing":
            self.book.reopen(epoch.number)
        else:
            self.book.find(epoch.number).tell()


def sole_error(error: BaseException) -> BaseException | None:
    """Take an error out of the groups that nurseries put around it, if it is the only one; None for a cancellation."""
    if isinstance(error, BaseExceptionGroup):
        _, rest = error.split(trio.Cancelled)
        while isinstance(rest, BaseExceptionGroup) and len(rest.exceptions) == 1:
            rest = rest.exceptions[0]
        return rest
    return None if isinstance(error, trio.Cancelled) else error
