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
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import frozen

from naviscope_ingest._core import Core, Decisions, EpochEvent, Fold
from naviscope_ingest._kernel.commits import check_answer, commit_entries
from naviscope_ingest._kernel.epochs import EpochBook, EpochPage
from naviscope_ingest._kernel.hints import Hints
from naviscope_ingest._kernel.outcomes import Answer, Batch, Planner, Raised, Rest
from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.errors import BadOutcome, RuntimeFailed, RuntimeStopped
from naviscope_spi import (
    CaughtUp,
    Clock,
    CommitBatch,
    DeferredStore,
    Delivery,
    Derived,
    Ended,
    EpochChange,
    EpochOpened,
    EpochOptions,
    EpochRecord,
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
        state: created, running, draining, stopped or failed.
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
        self._executed = 0
        self._committed = 0
        self._batches = 0

    # Life

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Join the store, recover what it knows, and work until the block is left."""
        try:
            async with self.store.join("runtime") as session:
                self._session = session
                await self._recover()
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self.state = "running"
                    nursery.start_soon(self._keep_time)
                    if self._hints is not None:
                        nursery.start_soon(self._receive_hints, self._hints)
                        nursery.start_soon(self._hints.send_again)
                    await self._carry_out()
                    self._wake()
                    yield
                    nursery.cancel_scope.cancel()
        except BaseException as raised:
            error = sole_error(raised)
            if not isinstance(error, trio.Cancelled):
                self._error = error
            if error is raised:
                raise
            raise error from error.__cause__
        finally:
            self.state = "stopped" if self._error is None else "failed"
            self._session = None
            self._nursery = None
            self.book.wake_all()
            self._undecided.unpark_all()
            self._progress.unpark_all()

    async def _recover(self) -> None:
        """Learn everything that the store has kept."""
        fold = Fold(self.core)
        facts = self.store.facts(None)
        async for batch in facts:
            for fact in batch:
                if isinstance(fact.body, EpochOpened):
                    self.book.open(fact.body.record.key, None)
                self.core.tell_time(self.clock.wall())
                fold(fact.body)
            if any(isinstance(fact.body, CaughtUp) for fact in batch):
                break
        await facts.aclose()  # type: ignore[attr-defined]  # every async iterator of a store can be closed
        self.core.advance(self.clock.wall())

    def check_running(self) -> None:
        """Raise if no more work is taken.

        Raises:
            RuntimeStopped: the runtime was stopped, or never started.
            RuntimeFailed: it ended by an error.
        """
        if self.state == "running":
            return
        if self._error is not None:
            raise RuntimeFailed(f"the runtime ended by {self._error!r}: start a new one") from self._error
        raise RuntimeStopped(f"the runtime is {self.state}: it takes no more work")

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
        page = self.book.open(record.key, self.clock.wall())
        if record.key.number not in self.core.epochs:
            self.core.open_epoch(record)
        return page

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
            metrics = self._components.metrics
            if metrics is not None:
                metrics.submitted(page.key, len(receipt.accepted), receipt.duplicates, len(receipt.conflicts))
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
        if page.key.number in self.core.epochs:
            self.core.seal(page.key.number)
        await self._follow_up()

    async def cancel_epoch(self, page: EpochPage) -> None:
        """Cancel what has not ended in an epoch."""
        self.check_running()
        await self.store.mark_epoch(page.key, "cancel")
        if page.sealed_at is None:
            page.sealed_at = self.clock.wall()
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
        elif self._nursery is not None and len(self._workers) < self._config.max_in_flight:
            worker = _Worker()
            self._workers.append(worker)
            self._nursery.start_soon(self._run_worker, worker)

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
        if room <= 0 or not self._has_ready() or self.state != "running":
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
        batch_size, core = self._config.commit_batch, self.core
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
                try:
                    outcome = await execute(delivery)
                except Exception as error:
                    outcome = Raised(error)
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
                answers = await self._execute_batch(leases)
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
                    f"execute_batch answered {answers!r:.80} for {len(leases)} messages: return a sequence of as many "
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
            if len(worker.leases) == 1 and worker.leases[0].seq in struck:
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
            if rest.derived:
                await self._stage(batch, rest)
            settled = await self._settle(batch, rest)
            core.tell_time(now)
            self._tell_core(batch, rest, settled)
        self._in_flight -= len(answers)
        self._committed += len(batch.leases)
        self._batches += 1
        core.advance(now)
        if core.has_decided:
            await self._carry_out()
        if rest is not None and rest.fatal is not None:
            raise rest.fatal

    async def _sink(self, batch: Batch) -> None:
        """Let the sink commit the ops of a batch; what it refuses ends dead."""
        sink = self._components.commit_sink
        try:
            answer = await self._commit_to_sink(CommitBatch(batch.entries))
        except Exception as error:
            refused = await commit_entries(sink, batch.entries, trio.sleep, error)
            self._drop_refused(batch, refused)
        else:
            if answer is not None:
                check_answer(sink, answer)

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
            ended=[ended for _, ended, _ in rest.ended],
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
        for lease, outcome in rest.deferred:
            core.defer(lease.seq, outcome.depends_on)
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
            node = self.core.node(each.seq)
            if node is not None:
                causes = [cause.id for seq in sorted(each.causes) if (cause := self.core.node(seq)) is not None]
                self.book.fail(node.epoch.number, node.id, each.end, each.reason, causes)
        settlement: Settlement[Any] = Settlement(
            ended=[
                Ended(each.seq, each.end, tuple(sorted(each.causes)), tuple(sorted(each.epoch_causes)))
                for each in decisions.ended
            ],
            epochs=[
                EpochChange(event.epoch.key, event.event, succeeded=event.epoch.succeeded)
                for event in decisions.epochs
                if event.event != "blocked"
            ],
        )
        await self._write(settlement)
        for event in decisions.epochs:
            self._announce(event)

    def _announce(self, event: EpochEvent) -> None:
        epoch = event.epoch
        metrics = self._components.metrics
        if metrics is not None:
            metrics.epoch_changed(epoch.key, event.event)
        if event.event == "completed":
            self.book.complete(epoch, self.clock.wall())
        elif event.event == "repairing":
            self.book.reopen(epoch.number)
        else:
            self.book.find(epoch.number).tell()


def _handed_back(lease: Lease[Any]) -> Waits:
    return Waits(lease.seq, None, None, lease.attempt, lease.run)


def sole_error(error: BaseException) -> BaseException:
    """Take an error out of the groups that nurseries put around it, if it is the only one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
