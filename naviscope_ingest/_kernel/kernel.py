"""The loop: claims what the core lets start, runs executors, commits outcomes, keeps time.

There is no task switch, channel item or thread hop per message. Workers are tasks that take a message from a shared
queue, call the executor, put the answer on the outbox, and go on; they yield to others after a budget of messages, not
after each. A worker that finds no work claims more; one that finds nothing to claim commits the outbox; one that finds
nothing at all goes to sleep. So a batch is as large as the work at hand allows, and waits for nobody.

What follows from a settlement (ends by policy, completed epochs) is decided by the core and carried out by one task at
a time, so that the store learns of a completion only after the ends it rests on.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import evolve, frozen

from naviscope_ingest._core import Core, Decided, Decisions, EpochEvent, Fold, State
from naviscope_ingest._kernel.commits import check_answer, commit_entries
from naviscope_ingest._kernel.epochs import EpochBook, EpochPage
from naviscope_ingest._kernel.hints import Hints
from naviscope_ingest._kernel.outcomes import Answer, Batch, Planner, Raised, Rest, shown
from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.errors import BadOutcome, RuntimeFailed, RuntimeStopped
from naviscope_ingest.reports import EpochReport
from naviscope_spi import (
    CaughtUp,
    Clock,
    CommitBatch,
    DeferredStore,
    Delivery,
    Derived,
    Ended,
    EpochChange,
    EpochKey,
    EpochMarked,
    EpochOpened,
    EpochOptions,
    EpochRecord,
    FactBody,
    Lease,
    Message,
    PutReceipt,
    Ready,
    Resource,
    Seq,
    Session,
    Settled,
    Settlement,
    SupportsBatch,
    SystemFailure,
    Waits,
)

__all__ = ["Kernel", "Statistics"]

_BUDGET = 512
"""How many messages a worker handles before it lets others run."""

_LONGEST_SLEEP = 60.0
"""A wall clock may jump, so the time is looked at every so often, in seconds."""


@frozen
class Statistics:
    """What a runtime is doing and has done.

    Attributes:
        state: created, starting, running, draining, stopped or failed.
        epochs: epochs that are kept.
        unfinished: messages that have not ended.
        waiting: those of them that wait or are held.
        in_flight: those that were started and not yet settled.
        workers: tasks that run executors.
        executed: attempts that executors answered.
        committed: messages that committed.
        batches: commit batches.
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


class _Worker:
    """A task that runs executors.

    Attributes:
        scope: cancels what it runs.
        leases: what it runs now.
        is_struck: whether that was cancelled; an answer that comes all the same is dropped.
    """

    __slots__ = ("is_struck", "leases", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.leases: Sequence[Lease[Any]] = ()
        self.is_struck = False


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
        )
        self.book = EpochBook(self.core, config.keep_reports, config.max_failures)
        self.state = "created"
        self._components = components
        self._metrics = components.metrics
        self._config = config
        self._executor: Any = components.executor
        self._commit_to_sink: Callable[[CommitBatch[Any]], Awaitable[object]] = components.commit_sink.commit
        # A store in memory settles without waiting: there is nothing to shield, and a scope costs as much as settling.
        self._store_waits = store.info.durability != "none"
        self._runs_batches = isinstance(components.executor, SupportsBatch)
        self._planner = Planner(self.core, store.info.store_id, clock.wall, random.random)
        self._session: Session | None = None
        self._nursery: trio.Nursery | None = None
        self._error: BaseException | None = None
        self._is_ending = False
        self._hints = None if components.bus is None else Hints(components.bus)
        self._has_ready = self.core.schedule.has_ready
        self._work: deque[Lease[Any]] = deque()
        self._outbox: list[Answer] = []
        self._workers: list[_Worker] = []
        self._sleeping = trio.lowlevel.ParkingLot()
        # As the lot would tell, but asked for every message.
        self._asleep = 0
        self._in_flight = 0
        self._is_committing = False
        self._is_deciding = False
        self._undecided = trio.lowlevel.ParkingLot()
        self._progress = trio.lowlevel.ParkingLot()
        self._alarm = trio.Event()
        self._wakes_at: float | None = None
        # By kind: how many were executed since the last commit, and how long that took. Only kept for metrics.
        self._timed: dict[str, tuple[int, float]] = {}
        self._executed = 0
        self._committed = 0
        self._batches = 0

    # Life

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Join the store, recover what it knows, and work until the block is left."""
        self.state = "starting"
        try:
            async with self.store.join("runtime") as session:
                self._session = session
                await self._recover()
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self.state = "running"
                    nursery.start_soon(self._until_the_end, self._keep_time)
                    if self._hints is not None:
                        nursery.start_soon(self._until_the_end, self._receive_hints, self._hints)
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
            self.state = "stopped" if self._error is None else "failed"
            self._is_ending = True
            self._session = None
            self._nursery = None
            self.book.wake_all()
            self._undecided.unpark_all()
            self._progress.unpark_all()

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
            self._is_ending = True

    def _fail(self, error: BaseException) -> None:
        """Note why the runtime ends, so that those who come now are told."""
        self._is_ending = True
        if self._error is None:
            self._error = error
            self.state = "failed"

    async def _recover(self) -> None:
        """Learn everything that the store has kept."""
        fold = Fold(self.core)
        facts = self.store.facts(None)
        async for batch in facts:
            for fact in batch:
                self.core.tell_time(self.clock.wall())
                fold(fact.body)
                self._note_recovered(fact.body)
            if any(isinstance(fact.body, CaughtUp) for fact in batch):
                break
        await facts.aclose()  # type: ignore[attr-defined]  # every async iterator of a store can be closed
        self.core.advance(self.clock.wall())

    def _note_recovered(self, fact: FactBody) -> None:
        """Put into the book what the core does not keep."""
        if isinstance(fact, EpochOpened | EpochMarked):
            self.book.open(fact.record, None)
        elif isinstance(fact, Ended):
            node = self.core.node(fact.seq)
            if node is not None and node.end is not None:
                error = "" if fact.letter is None else fact.letter.decode()
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
        if self.state == "running" and not self._is_ending:
            return
        if self._error is not None:
            raise RuntimeFailed(f"the runtime ended by {self._error!r}: start a new one") from self._error
        state = "stopping" if self.state == "running" else self.state
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
        self.state = "draining"
        self._hand_back_unstarted()
        with trio.move_on_after(timeout) as scope:
            while self._in_flight:
                self._wake()
                await self._progress.park()
        return not scope.cancelled_caught

    def _hand_back_unstarted(self) -> None:
        seqs = [lease.seq for lease in self._work]
        self._work.clear()
        if self._hints is not None:
            seqs += self._hints.take_back()
        self._in_flight -= len(seqs)
        self.core.release(seqs)

    async def wait_idle(self) -> None:
        """Wait until nothing is ready, running or being committed."""
        while not self.is_idle:
            self.check_running()
            await self._progress.park()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready, running or being committed."""
        return not self._in_flight and not self._is_deciding and not self.core.schedule.has_ready()

    def statistics(self) -> Statistics:
        """Count what is going on."""
        epochs = self.core.epochs.values()
        return Statistics(
            state=self.state,
            epochs=len(epochs),
            unfinished=sum(epoch.unfinished for epoch in epochs),
            waiting=sum(epoch.waiting for epoch in epochs),
            in_flight=self._in_flight,
            workers=len(self._workers),
            executed=self._executed,
            committed=self._committed,
            batches=self._batches,
        )

    # What callers ask for

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochPage:
        """Open an epoch, or rejoin one."""
        self.check_running()
        record = await self.store.open_epoch(name, options)
        return self.learn_epoch(record)

    def learn_epoch(self, record: EpochRecord) -> EpochPage:
        """Take an epoch of the store into core and book."""
        page = self.book.open(record, self.clock.wall())
        if record.key.number not in self.core.epochs:
            self.core.open_epoch(record)
            self._tell_metrics(record.key, "opened")
        return page

    def _tell_metrics(self, key: EpochKey, state: str) -> None:
        if self._metrics is not None:
            self._metrics.epoch_changed(key, state)

    async def put(self, page: EpochPage, messages: Sequence[Message[Any]]) -> PutReceipt:
        """Store messages and let them run."""
        self.check_running()
        page.submits += 1
        try:
            receipt = await self.store.put(page.key, messages)
            self.core.tell_time(self.clock.wall())
            if receipt.accepted:
                if len(receipt.accepted) == len(messages):
                    self.core.accept(page.key.number, receipt.accepted, messages)
                else:
                    self.core.accept(page.key.number, receipt.accepted, [messages[index] for index in receipt.indexes])
            if receipt.duplicates:
                self.core.count_duplicates(page.key.number, receipt.duplicates, len(receipt.conflicts))
            if self._metrics is not None:
                self._metrics.submitted(page.key, len(receipt.accepted), receipt.duplicates, len(receipt.conflicts))
        finally:
            page.submits -= 1
            if not page.submits:
                page.tell()
        await self._follow_up()
        return receipt

    async def seal(self, page: EpochPage) -> None:
        """Seal an epoch, once the submits that are under way are through."""
        self.check_running()
        while page.submits:
            await page.changed()
        record = await self.store.mark_epoch(page.key, "seal")
        if record.state != "open" and page.sealed_at is None:
            page.sealed_at = self.clock.wall()
            self._tell_metrics(page.key, "sealed")
        if page.key.number in self.core.epochs:
            self.core.seal(page.key.number)
        await self._follow_up()

    async def cancel_epoch(self, page: EpochPage) -> None:
        """Cancel what has not ended in an epoch."""
        self.check_running()
        await self.store.mark_epoch(page.key, "cancel")
        if page.sealed_at is None:
            page.sealed_at = self.clock.wall()
            self._tell_metrics(page.key, "sealed")
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
        await self.store.notify_ready(resources)
        for resource in resources:
            self.core.provide(resource)
        await self._follow_up()

    async def forget(self, name: str) -> None:
        """Take a resource back that was provided to every epoch."""
        self.check_running()
        await self.store.forget_ready([name])
        self.core.forget_resource(name)

    async def _follow_up(self, *, until_done: bool = False) -> None:
        """Let the core look around after something changed, and see to what it decides."""
        self.core.advance(self.clock.wall())
        await self._carry_out()
        while until_done and self._is_deciding:
            await self._undecided.park()
        self._wake()

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

    def _set_alarm(self) -> None:
        due = self.core.next_due
        if due is not None and (self._wakes_at is None or due < self._wakes_at):
            self._wakes_at = due
            self._alarm.set()

    # Workers

    def _wake(self) -> None:
        """See that somebody works if there is work, and that the clock rings in time."""
        self._set_alarm()
        if self._work or self._outbox or self.core.schedule.has_ready():
            self._wake_worker()
        self._wake_waiters()

    def _wake_worker(self) -> None:
        """Let one more worker look for work. It wakes the next one if it finds more than it can do."""
        if self._asleep:
            self._asleep -= 1
            self._sleeping.unpark()
        elif self._nursery is not None and not self._is_ending and len(self._workers) < self._config.max_in_flight:
            worker = _Worker()
            self._workers.append(worker)
            self._nursery.start_soon(self._until_the_end, self._run_worker, worker)

    def _wake_waiters(self) -> None:
        """Wake those who wait until nothing is going on."""
        if self._progress and not self._in_flight:
            self._progress.unpark_all()

    async def _run_worker(self, worker: _Worker) -> None:
        loop = self._work_in_batches if self._runs_batches else self._work_singly
        while True:
            # One scope serves until it is cancelled: entering one for each message would cost as much as a message.
            with trio.CancelScope() as worker.scope:
                await loop(worker)
            self._strike_done(worker)

    def _strike_done(self, worker: _Worker) -> None:
        """Forget what a worker was running when it was told to stop."""
        self._in_flight -= len(worker.leases)
        worker.leases = ()
        worker.is_struck = False
        self._wake_waiters()

    async def _find_work(self) -> None:
        """Claim messages; if there are none, commit and look again; if there is nothing at all, sleep."""
        if await self._claim():
            return
        if self._outbox and not self._is_committing:
            await self._commit_outbox()
            await self._claim()
        else:
            await self._sleep()

    async def _claim(self) -> bool:
        """Claim messages that may start, as many as there is room for; return whether there were any."""
        room = self._config.max_in_flight - self._in_flight
        if room <= 0 or not self._has_ready() or self.state != "running" or self._is_ending:
            return False
        seqs = self.core.take(room)
        if not seqs:
            return False
        self._in_flight += len(seqs)
        if self._hints is not None:
            await self._hints.send([self._hint(seq) for seq in seqs])
            return False
        await self._lease(seqs)
        return True

    async def _lease(self, seqs: Sequence[Seq]) -> None:
        """Claim messages in the store and put them into the queue."""
        assert self._session is not None
        leases = await self.store.pop_ready(self._session, seqs)
        self._work.extend(leases)
        self._in_flight -= len(seqs) - len(leases)

    def _hint(self, seq: Seq) -> Ready:
        node = self.core.node(seq)
        assert node is not None
        return Ready(seq, node.epoch.number, node.message.kind, node.message.priority)

    async def _receive_hints(self, hints: Hints) -> None:
        """Claim what the bus says is ready."""
        while True:
            seqs = await hints.receive(self._config.max_in_flight)
            if seqs:
                await self._lease(seqs)
                self._wake()

    async def _sleep(self) -> None:
        self._set_alarm()
        self._wake_waiters()
        self._asleep += 1
        try:
            await self._sleeping.park()
        except trio.Cancelled:
            self._asleep -= 1
            raise

    async def _work_singly(self, worker: _Worker) -> None:
        """Run messages one at a time until this worker is struck."""
        work, outbox, execute, store_id = self._work, self._outbox, self._executor.execute, self.store.info.store_id
        batch_size, core, metrics = self._config.commit_batch, self.core, self._metrics
        handled = 0
        while True:
            if not work:
                await self._find_work()
                # Looking for work costs something too, so that nobody looks for ever without letting others run.
                handled += 1
                if not work and handled <= _BUDGET:
                    continue
            if len(work) > 1:
                # Others are woken one by one: if executors do not wait, this worker is done before they look.
                self._wake_worker()
            done = 0
            while work:
                lease = work.popleft()
                worker.leases = (lease,)
                delivery = Delivery(lease, store_id)
                if core.hands_over:
                    self._add_extras(delivery, lease.seq)
                started = self.clock.monotonic() if metrics is not None else 0.0
                try:
                    outcome = await execute(delivery)
                except Exception as error:
                    outcome = Raised(error)
                if metrics is not None:
                    self._note_time(lease.message.kind, 1, started)
                if worker.is_struck:
                    return
                outbox.append((lease, outcome))
                done += 1
                if done > _BUDGET:
                    break
            worker.leases = ()
            self._executed += done
            handled += done
            if handled > _BUDGET:
                handled = 0
                await trio.lowlevel.checkpoint()
            if len(outbox) >= batch_size and not self._is_committing:
                await self._commit_outbox()

    async def _work_in_batches(self, worker: _Worker) -> None:
        """Run messages of one kind together until this worker is struck."""
        outbox = self._outbox
        handled = 0
        while True:
            if not self._work:
                await self._find_work()
                handled += 1
                if not self._work and handled <= _BUDGET:
                    continue
            if self._work:
                leases = self._next_batch()
                if self._work:
                    self._wake_worker()
                worker.leases = leases
                started = self.clock.monotonic()
                answers = await self._execute_batch(leases)
                if self._metrics is not None:
                    self._note_time(leases[0].message.kind, len(leases), started)
                if worker.is_struck:
                    return
                worker.leases = ()
                outbox.extend(zip(leases, answers, strict=True))
                self._executed += len(leases)
                handled += len(leases)
            if len(outbox) >= self._config.commit_batch and not self._is_committing:
                await self._commit_outbox()
            if handled > _BUDGET:
                handled = 0
                await trio.lowlevel.checkpoint()

    def _next_batch(self) -> list[Lease[Any]]:
        """Take claimed messages of one kind from the queue; lanes have let one of each key through."""
        work, limit = self._work, self._config.execute_batch
        kind = work[0].message.kind
        batch = [lease for lease in work if lease.message.kind == kind]
        if len(batch) == len(work) <= limit:
            work.clear()
            return batch
        del batch[limit:]
        others = [lease for lease in work if lease.message.kind != kind]
        rest = [lease for lease in work if lease.message.kind == kind][limit:]
        work.clear()
        # Other kinds first, so that a kind of which there is always more cannot keep them waiting.
        work.extend((*others, *rest))
        return batch

    async def _execute_batch(self, leases: Sequence[Lease[Any]]) -> Sequence[object]:
        """Run a batch; if it raises, run its halves, so that only the culprit fails."""
        store_id = self.store.info.store_id
        deliveries: list[Delivery[Any]] = [Delivery(lease, store_id) for lease in leases]
        if self.core.hands_over:
            for delivery, lease in zip(deliveries, leases, strict=True):
                self._add_extras(delivery, lease.seq)
        try:
            answers = await self._executor.execute_batch(deliveries)
            if not isinstance(answers, Sequence) or len(answers) != len(leases):
                raise BadOutcome(
                    f"execute_batch answered {shown(answers)} for {len(leases)} messages: return a sequence of as many "
                    "outcomes, in the same order"
                )
        except Exception as error:
            if isinstance(error, SystemFailure) or len(leases) == 1:
                return [Raised(error)] * len(leases)
            half = len(leases) // 2
            return [*await self._execute_batch(leases[:half]), *await self._execute_batch(leases[half:])]
        return answers

    def _add_extras(self, delivery: Delivery[Any], seq: Seq) -> None:
        delivery.unmet = self.core.unmet(seq)
        delivery.values = self.core.values(seq)

    def _strike(self, seqs: Iterable[Seq]) -> None:
        """Cancel the executors of messages that were ended while they ran, or forget those that wait for one."""
        struck = frozenset(seqs)
        for worker in self._workers:
            # A batch is only stopped when nothing of it is wanted any more.
            if any(lease.seq in struck for lease in worker.leases) and not any(map(self._is_wanted, worker.leases)):
                worker.is_struck = True
                worker.scope.cancel()
        left = [lease for lease in self._work if lease.seq not in struck]
        gone = len(self._work) - len(left)
        if gone:
            self._work.clear()
            self._work.extend(left)
        if self._hints is not None:
            gone += self._hints.forget(struck)
        self._in_flight -= gone

    def _is_wanted(self, lease: Lease[Any]) -> bool:
        return self._is_alive(lease.seq)

    # Commits

    async def _commit_outbox(self) -> None:
        """Commit what executors have answered, batch by batch."""
        self._is_committing = True
        try:
            linger = self._config.commit_linger
            if linger and len(self._outbox) < min(self._config.commit_batch, self._in_flight):
                await trio.sleep(linger)
            while self._outbox:
                size = self._config.commit_batch
                answers = self._outbox[:size]
                del self._outbox[:size]
                await self._commit(answers)
        finally:
            self._is_committing = False

    async def _commit(self, answers: Sequence[Answer]) -> None:
        """Hand a batch to the sink, then settle it. The worker that does so goes on with what became ready."""
        core = self.core
        batch = self._planner.plan(answers)
        seqs = [lease.seq for lease in batch.leases]
        late = core.hand_to_sink(seqs)
        if late:
            batch.leave_out(late)
        if batch.entries:
            await self._sink(batch)
        now = self.clock.wall()
        rest = batch.rest
        if rest is None:
            await self._write(Settlement(batch.leases))
            core.tell_time(now)
            core.commit(seqs)
        else:
            await self._commit_rest(batch, rest, now)
        self._in_flight -= len(answers)
        self._committed += len(batch.leases)
        self._batches += 1
        if self._metrics is not None:
            self._measure(batch)
        core.advance(now)
        if core.has_decided:
            await self._carry_out()
        if rest is not None and rest.fatal is not None:
            raise rest.fatal

    async def _commit_rest(self, batch: Batch, rest: Rest, now: float) -> None:
        """Settle a batch that does more than commit messages that bring nothing."""
        if rest.fatal is not None:
            # What is handed back must not be started again.
            self._fail(rest.fatal)
        if rest.derived:
            await self._stage(batch, rest)
        rest.ended = [each for each in rest.ended if self._is_wanted(each[0])]
        settled = await self._settle(batch, rest)
        self.core.tell_time(now)
        # Before the commits of this batch are told: whether a deferral had to wait is a matter of when it was answered.
        spent = [lease for lease, outcome in rest.deferred if self.core.defer(lease.seq, outcome.depends_on)]
        self._tell_core(batch, rest, settled)
        if spent:
            # It need not wait at all, which only the core could tell.
            again = [Waits(lease.seq, None, None, lease.attempt + 1, lease.run) for lease in spent]
            await self._write(Settlement(waits=[each for each in again if self._is_alive(each.seq)]))

    def _is_alive(self, seq: Seq) -> bool:
        node = self.core.node(seq)
        return node is not None and node.state is not State.ENDED

    async def _sink(self, batch: Batch) -> None:
        """Let the sink commit the ops of a batch; what it refuses ends dead."""
        sink = self._components.commit_sink
        started = self.clock.monotonic() if self._metrics is not None else 0.0
        try:
            answer = await self._commit_to_sink(CommitBatch(batch.entries))
        except Exception as error:
            refused = await commit_entries(sink, batch.entries, trio.sleep, error)
            self._drop_refused(batch, refused)
        else:
            if answer is not None:
                check_answer(sink, answer)
        if self._metrics is not None:
            self._metrics.sink_committed(len(batch.entries), self.clock.monotonic() - started)

    def _measure(self, batch: Batch) -> None:
        """Tell the metrics what a batch came to."""
        assert self._metrics is not None
        for kind, (count, seconds) in self._timed.items():
            self._metrics.executed(kind, count, seconds)
        self._timed.clear()
        for kind, count in Counter(lease.message.kind for lease in batch.leases).items():
            self._metrics.ended("committed", kind, count)
        if batch.rest is not None:
            ends = Counter((ended.end, lease.message.kind) for lease, ended, _ in batch.rest.ended)
            for (end, kind), count in ends.items():
                self._metrics.ended(end, kind, count)
        counts = self.statistics()
        self._metrics.observed(
            {"unfinished": counts.unfinished, "waiting": counts.waiting, "in_flight": counts.in_flight}
        )

    def _count_ends(self, decided: Sequence[Decided]) -> None:
        if self._metrics is not None:
            nodes = ((each.end, self.core.node(each.seq)) for each in decided)
            ends = Counter((end, node.message.kind) for end, node in nodes if node is not None)
            for (end, kind), count in ends.items():
                self._metrics.ended(end, kind, count)

    def _note_time(self, kind: str, count: int, started: float) -> None:
        known, seconds = self._timed.get(kind, (0, 0.0))
        self._timed[kind] = (known + count, seconds + self.clock.monotonic() - started)

    def _drop_refused(self, batch: Batch, refused: dict[str, BaseException]) -> None:
        names = {(entry.epoch.number, entry.message_id): refused.get(entry.task_key) for entry in batch.entries}
        for lease in tuple(batch.leases):
            error = names.get((lease.epoch.number, lease.message.id))
            if error is not None:
                batch.drop(lease, error)

    async def _stage(self, batch: Batch, rest: Rest) -> None:
        """Put large numbers of derived messages aside in chunks, so that no settlement grows too long."""
        limit = self._config.max_derived
        by_seq = {lease.seq: lease for lease in batch.leases}
        for seq, derived in rest.derived.items():
            if len(derived.messages) <= limit:
                continue
            for at in range(0, len(derived.messages), limit):
                await self.store.put(by_seq[seq].epoch, derived.messages[at : at + limit], staged_by=by_seq[seq])
            rest.derived[seq] = Derived(seq, (), len(derived.messages), derived.ready)

    async def _settle(self, batch: Batch, rest: Rest) -> Settled:
        settlement: Settlement[Any] = Settlement(
            committed=batch.leases,
            values=rest.values,
            ended=[evolve(ended, letter=error.encode() or None) for _, ended, error in rest.ended],
            waits=[*rest.waits, *map(_handed_back, rest.handed_back)],
            derived=list(rest.derived.values()),
        )
        return await self._write(settlement)

    async def _write(self, settlement: Settlement[Any]) -> Settled:
        """Write to the store, even if we are being cancelled: the sink has applied it, or the core has decided it."""
        assert self._session is not None
        if not self._store_waits:
            return await self.store.settle(self._session, settlement)
        settled: Settled | None = None
        with trio.CancelScope(shield=True):
            settled = await self.store.settle(self._session, settlement)
        assert settled is not None
        return settled

    def _tell_core(self, batch: Batch, rest: Rest, settled: Settled) -> None:
        core = self.core
        for lease, ended, error in rest.ended:
            self.book.fail(lease.epoch.number, lease.message.id, ended.end, error, ())
        derived: list[tuple[int, Sequence[Seq], Sequence[Message[Any]]]] = [
            (key.number, [seq], [message]) for seq, key, message in settled.accepted
        ]
        core.commit(
            [lease.seq for lease in batch.leases],
            values=rest.values,
            ready=[
                (lease.epoch.number, resource)
                for lease in (batch.leases if rest.derived else ())
                if lease.seq in rest.derived
                for resource in rest.derived[lease.seq].ready
            ],
            derived=derived,
            ended=[(ended, error) for _, ended, error in rest.ended],
        )
        for waits in rest.waits:
            if waits.not_before is not None:
                core.retry(waits.seq, waits.not_before, spent=False)
        if rest.handed_back:
            core.release(lease.seq for lease in rest.handed_back)

    # Decisions

    async def _carry_out(self) -> None:
        """Write down what the core decided, and act on it. One task at a time does so, for all."""
        if self._is_deciding:
            return
        self._is_deciding = True
        try:
            while self.core.has_decided:
                await self._carry_out_one(self.core.drain())
        finally:
            self._is_deciding = False
            if self._undecided:
                self._undecided.unpark_all()

    async def _carry_out_one(self, decisions: Decisions) -> None:
        if decisions.stop:
            self._strike(decisions.stop)
        for each in decisions.ended:
            self._note_failure(each)
        self._count_ends(decisions.ended)
        reports = {
            event.epoch.number: self.book.final_report(event.epoch, self.clock.wall())
            for event in decisions.epochs
            if event.event == "completed"
        }
        settlement: Settlement[Any] = Settlement(
            ended=[
                Ended(
                    each.seq,
                    each.end,
                    tuple(sorted(each.causes)),
                    tuple(sorted(each.epoch_causes)),
                    each.reason.encode() or None,
                )
                for each in decisions.ended
            ],
            epochs=[self._change(event, reports) for event in decisions.epochs if event.event != "blocked"],
        )
        await self._write(settlement)
        for event in decisions.epochs:
            self._announce(event, reports)

    def _change(self, event: EpochEvent, reports: Mapping[int, EpochReport]) -> EpochChange:
        epoch = event.epoch
        if event.event != "completed":
            return EpochChange(epoch.key, "repairing")
        return EpochChange(epoch.key, "completed", reports[epoch.number].encode(), epoch.succeeded)

    def _announce(self, event: EpochEvent, reports: Mapping[int, EpochReport]) -> None:
        epoch = event.epoch
        self._tell_metrics(epoch.key, event.event)
        if event.event == "completed":
            self.book.complete(epoch, reports[epoch.number])
        elif event.event == "repairing":
            self.book.reopen(epoch.number)
        else:
            self.book.find(epoch.number).tell()


def _handed_back(lease: Lease[Any]) -> Waits:
    return Waits(lease.seq, None, None, lease.attempt, lease.run)


def sole_error(error: BaseException) -> BaseException | None:
    """Take an error out of the groups that nurseries put around it, if it is the only one; None for a cancellation."""
    if isinstance(error, BaseExceptionGroup):
        _, rest = error.split(trio.Cancelled)
        while isinstance(rest, BaseExceptionGroup) and len(rest.exceptions) == 1:
            rest = rest.exceptions[0]
        return rest
    return None if isinstance(error, trio.Cancelled) else error
