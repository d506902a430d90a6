"""The kernel: life and death of a runtime, what callers ask for, time, and what the core decides.

There is no task switch, channel item or thread hop per message: workers and committer are function calls on batches.
What has a life of its own stands in files beside this one: the door that lets messages in, the workers, the committer,
the decider that carries out what the core decides, and the reconstruction of all this from a store.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio

from naviscope_ingest._core import Core
from naviscope_ingest._core.explain import Whereabouts
from naviscope_ingest._kernel.breakers import Breakers
from naviscope_ingest._kernel.commits import SinkLine
from naviscope_ingest._kernel.committer import Committer
from naviscope_ingest._kernel.decisions import Decider
from naviscope_ingest._kernel.door import Door
from naviscope_ingest._kernel.epochs import EpochBook, EpochPage
from naviscope_ingest._kernel.fan_outs import FanOuts
from naviscope_ingest._kernel.hints import Hints
from naviscope_ingest._kernel.judge import Judge
from naviscope_ingest._kernel.lifecycle import Lifecycle, RuntimeState
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.outcomes import Planner
from naviscope_ingest._kernel.prepared import recorder_for, refuser_for, scribe_for
from naviscope_ingest._kernel.pressure import Pressure
from naviscope_ingest._kernel.reconstruction import Reconstruction
from naviscope_ingest._kernel.repairs import Repair, Repairs
from naviscope_ingest._kernel.steering import Steering
from naviscope_ingest._kernel.workers import Workers
from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.errors import RuntimeFailed, RuntimeStopped
from naviscope_ingest.reports import Recovery
from naviscope_spi import (
    ChecksMessages,
    Clock,
    DeferredStore,
    EpochRecord,
    Record,
    Resource,
    Seq,
    Settlement,
    Statistics,
    SupportsRetention,
)

__all__ = ["Kernel"]

_log = logging.getLogger("naviscope_ingest")

_PRUNE_EVERY = 60.0
"""How often a durable store is asked to forget what nobody needs any more, in seconds."""

_PRUNE_STEP = 1_000
"""How much it forgets in one step, so that no step holds up work."""

_LONGEST_SLEEP = 60.0
"""A wall clock may jump, so the time is looked at every so often, in seconds."""


class Kernel:
    """Runs messages from a store through an executor into a sink.

    Args:
        components: what it is made of.
        config: how it behaves.
        store: where messages are kept.
        clock: where time comes from.
        injected: says how often each fault has struck that is injected on purpose.
    """

    def __init__(
        self,
        components: RuntimeComponents[Any, Any],
        config: RuntimeConfig,
        store: DeferredStore[Any],
        clock: Clock,
        injected: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.store = store
        self.clock = clock
        self._wall = clock.wall
        self._injected = injected
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
        self._life = Lifecycle()
        self._config = config
        self._started_at = 0.0
        self._takes_changes = False
        self._is_watched = False
        self._nursery: trio.Nursery | None = None
        self._error: BaseException | None = None
        self._progress = trio.lowlevel.ParkingLot()
        self._alarm = trio.Event()
        self.ended = trio.Event()
        self._wakes_at: float | None = None
        self._membership = Membership(store, config.name)
        scribe = scribe_for(store)
        executor = components.executor
        check = executor.check_messages if isinstance(executor, ChecksMessages) else None
        recorder = recorder_for(components.commit_sink, scribe, config.records_outcomes)
        self._reconstruction = Reconstruction(
            store=store,
            core=self.core,
            book=self.book,
            clock=clock,
            timeout=config.start_timeout,
            recalls=recorder is not None,
        )
        self._hints = None if components.bus is None else Hints(components.bus)
        self._meter = Meter(components.metrics, clock, self.core)
        self._workers = Workers(
            executor=executor,
            core=self.core,
            membership=self._membership,
            recorder=recorder,
            config=config,
            hints=self._hints,
            meter=self._meter,
            spawn=self._spawn,
            on_rest=self._on_rest,
        )
        self._pressure = Pressure(
            self.core, config.intake, lambda: self._workers.in_flight, self._pace, self._on_pressure
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
        self._decider = Decider(
            core=self.core,
            membership=self._membership,
            judge=self._judge,
            book=self.book,
            workers=self._workers,
            meter=self._meter,
            clock=clock,
            on_end=self._look_at_pressure,
        )
        planner = Planner(
            self.core,
            store.info.store_id,
            refuser_for(scribe, check),
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
            carry_out=self._decider.carry_out,
            fail=self._fail,
            set_alarm=self._set_alarm,
        )
        self.repairs = Repairs(self.core, self._membership, self.book, self._decider.alone)
        self.steering = Steering(
            core=self.core,
            config=config,
            workers=self._workers,
            life=self._life,
            now=clock.wall,
            on_change=self._on_steering,
        )
        self.steering.begin()
        self.door = Door(
            store=store,
            core=self.core,
            book=self.book,
            membership=self._membership,
            pressure=self._pressure,
            steering=self.steering,
            policy=config.intake,
            within=self._workers,
            check=check,
            meter=self._meter,
            clock=clock,
            check_running=self.check_running,
            follow_up=self._follow_up,
        )
        self._regulate()

    # Life

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Join the store, recover what it knows, and work until the block is left."""
        self._life.go("starting", "be started")
        try:
            self._meter.begin(self.statistics)
            # Before joining, which ends the session of a process that died: what it was running is told only now.
            await self._reconstruction.read()
            self._meter.recovered(self._reconstruction.recovery)
            async with self._membership.joined():
                await self._reconstruction.take_over(self._judge, self._workers)
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
                    await self._decider.carry_out()
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
            self._end()

    def _end(self) -> None:
        self._life.end(failed=self._error is not None)
        self.ended.set()
        self._workers.may_start = self._takes_changes = False
        self._nursery = None
        self.book.wake_all()
        self._pressure.wake_all()
        self._decider.wake_all()
        self._progress.unpark_all()

    @asynccontextmanager
    async def at_rest(self, *, read_only: bool) -> AsyncIterator[None]:
        """Learn what the store knows, and start nothing until the block is left: only answer, and take changes.

        What a process that died was running stays as it was, and so do outcomes that it recorded: both are told to the
        runtime that starts next.
        """
        self._life.go("at rest", "be opened at rest")
        try:
            await self._reconstruction.read()
            if read_only:
                yield
                return
            async with self._membership.visiting():
                self._takes_changes = True
                await self._follow_up(until_done=True)
                yield
        finally:
            self._end()

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

    @property
    def recovery(self) -> Recovery:
        """What was found in the store, so far."""
        return self._reconstruction.recovery

    def check_running(self) -> None:
        """Raise if no more work is taken.

        Raises:
            RuntimeStopped: the runtime was stopped, or never started.
            RuntimeFailed: it ended by an error.
        """
        if self._workers.may_start or self._takes_changes:
            return
        if self._error is not None:
            raise RuntimeFailed(f"the runtime ended by {self._error!r}: start a new one") from self._error
        if self.state == "at rest":
            raise RuntimeStopped("the store was opened to be read, and changes nothing")
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
        if self.state == "at rest":
            raise RuntimeStopped("nothing runs here: it goes on when a runtime works on this store")

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

    async def wait_quiet(self) -> None:
        """Wait until nothing is going on, and nothing will but by somebody's doing."""
        while True:
            await self.wait_idle()
            if not self.core.will_go_on:
                return
            await self._progress.park()
            self.check_running()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready, running or being committed."""
        schedule = self.core.schedule
        return not (
            self._workers.in_flight
            or self._decider.is_busy
            or self._fan_outs.are_under_way
            or schedule.has_ready()
            or schedule.has_parked()
        )

    def whereabouts(self) -> dict[Seq, Whereabouts]:
        """Return the messages in flight that no executor runs at the moment."""
        return self._workers.whereabouts()

    def statistics(self) -> Statistics:
        """Count what is going on."""
        # A list at once, so that another thread may ask too.
        epochs = [*self.core.epochs.values()]
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
            delayed=self.core.delayed,
            faults=self._injected(),
            epochs_in=Counter("blocked" if epoch.is_blocked else epoch.state for epoch in epochs),
        )

    # What callers ask for

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
        marking = self._mark_and_wait(page, mark)
        record = await (self._membership.ask(marking) if self._membership.waits else marking)
        tracker = self.core.epochs.get(page.key.number)
        if tracker is not None and tracker.state == "open":
            page.sealed_at = record.sealed_at
            self._pressure.wake_all()
            self._meter.epoch(page.key, "sealed")

    async def _mark_and_wait(self, page: EpochPage, mark: Literal["seal", "cancel"]) -> EpochRecord:
        record = await self.store.mark_epoch(page.key, mark)
        while page.submits:
            await page.changed()
        return record

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
        if self._membership.waits:
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
        if self.core.advance(self._wall()):
            await self._decider.carry_out()
        if until_done:
            await self._decider.until_done()
        self._wake()
        if self._membership.waits:
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
        _log.debug("intake is %s", "slow" if is_active else "open", extra={"backpressure": is_active})
        if is_active and not self._is_watched and self._nursery is not None:
            self._is_watched = True
            self._nursery.start_soon(self._alert)

    def _look_at_pressure(self) -> None:
        if self._pressure.is_active:
            self._pressure.look()

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
        self._look_at_pressure()
        self._fan_outs.on_rest()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake those who wait until nothing is going on."""
        if self._progress and not self._workers.in_flight:
            self._progress.unpark_all()


def sole_error(error: BaseException) -> BaseException | None:
    """Take an error out of the groups that nurseries put around it, if it is the only one; None for a cancellation."""
    if isinstance(error, BaseExceptionGroup):
        _, rest = error.split(trio.Cancelled)
        while isinstance(rest, BaseExceptionGroup) and len(rest.exceptions) == 1:
            rest = rest.exceptions[0]
        return rest
    return None if isinstance(error, trio.Cancelled) else error
