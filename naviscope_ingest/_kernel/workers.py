"""Workers: the tasks that run executors.

A worker takes a message from a shared queue, calls the executor, puts the answer on the outbox, and goes on; it yields
to others after a budget of messages, not after each. One that finds no work claims more; one that finds nothing to
claim commits the outbox; one that finds nothing at all goes to sleep. So a batch is as large as the work at hand
allows, and waits for nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from naviscope_ingest._core import Core
from naviscope_ingest._core.explain import Whereabouts
from naviscope_ingest._kernel.hints import Hints
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.outcomes import Answer, Raised
from naviscope_ingest._kernel.prepared import Recorder
from naviscope_ingest._kernel.pressure import WITHIN
from naviscope_ingest.config import RuntimeConfig
from naviscope_ingest.errors import BadOutcome, OutcomeNotDecodable
from naviscope_ingest.policies import KindPolicy
from naviscope_spi import Delivery, Lease, Permanent, Ready, Seq, Settlement, SupportsBatch, SystemFailure, Transient
from naviscope_spi.names import shown

if TYPE_CHECKING:
    from naviscope_ingest._kernel.committer import Committer

__all__ = ["BEGUN", "Workers"]

BEGUN = b"\x00begun"
"""Stands in the store in place of an outcome: the message was begun, and must not be begun again."""

_BUDGET = 512
"""How many messages a worker handles before it lets others run."""


def _too_slow(timeout: float | None) -> Transient:
    return Transient(f"the executor took longer than {timeout} seconds and was cancelled", error_kind="timeout")


def _begun_before(lease: Lease[Any]) -> Permanent:
    return Permanent(
        f"message {lease.message.id!r} was begun and did not finish before the runtime ended: it is delivered at most "
        "once; see what became of it, then replay or discard it",
        error_kind="server",
    )


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


class Workers:
    """Every worker, the queue they take from and the outbox they fill.

    Args:
        executor: the user's work.
        core: says what may start.
        membership: claims it.
        recorder: reads outcomes that were recorded before a crash, if the sink can take them again.
        config: how many may be in flight, and how large batches are.
        hints: carries hints over a bus, if there is one.
        meter: measures.
        spawn: starts a task that lives as long as the runtime.
        on_rest: called when a worker finds nothing to do.

    Attributes:
        may_start: whether new work may be started now: the runtime runs, and nothing tells it to end.
        outbox: what executors have answered.
        in_flight: how many messages were started and not yet settled.
        executed: how many attempts were answered.
        take: says what may start.
        most: how many messages may be in flight.
        committer: who empties the outbox.
    """

    committer: Committer

    def __init__(
        self,
        *,
        executor: Any,  # noqa: ANN401 - one of two protocols, told apart when it runs
        core: Core,
        membership: Membership,
        recorder: Recorder | None,
        config: RuntimeConfig,
        hints: Hints | None,
        meter: Meter,
        spawn: Callable[..., None],
        on_rest: Callable[[], None],
    ) -> None:
        self.may_start = False
        self.outbox: list[Answer] = []
        self.in_flight = 0
        self.executed = 0
        self.take = core.take
        self._executor = executor
        self._runs_batches = isinstance(executor, SupportsBatch)
        self._core = core
        self._has_ready = core.schedule.has_ready
        self._ring, self._levels = core.schedule.ring, core.schedule.levels
        self._membership = membership
        self._recorder = recorder
        self._store_id = membership.store.info.store_id
        self._config = config
        # Whether any kind has a time limit, or must not be begun twice. Others do not pay for it.
        self._is_careful = any(
            policy.timeout is not None or policy.delivery == "at_most_once"
            for policy in (config.other_kinds, *config.kinds.values())
        )
        self.most = config.max_in_flight
        self._hints = hints
        self._meter = meter
        self._spawn = spawn
        self._on_rest = on_rest
        self._work: deque[Lease[Any]] = deque()
        self._workers: list[_Worker] = []
        self._sleeping = trio.lowlevel.ParkingLot()
        # As the lot would tell, but asked for every message.
        self._asleep = 0
        # Whether a worker was woken and has not looked yet. It sees all there is, so nobody else need be woken.
        self._is_waking = False
        # Messages that were running when the last process died, any of which may have killed it.
        self._suspects: deque[Seq] = deque()
        self._is_trying = False
        # Those of them that could not run alone at once, because their lane is held by a retry: they do so later.
        self._late_suspects: dict[Seq, None] = {}

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def have_work(self) -> bool:
        """Whether a worker that wakes up would find something to do."""
        return bool(self._work or self.outbox or self._has_ready())

    def whereabouts(self) -> dict[Seq, Whereabouts]:
        """Return the messages in flight that no executor runs at the moment."""
        found: dict[Seq, Whereabouts] = {lease.seq: "claimed" for lease in self._work}
        found.update((lease.seq, "answered") for lease, _ in self.outbox)
        return found

    def wake(self) -> None:
        """Let one more worker look for work. It wakes the next one if it finds more than it can do."""
        if self._is_waking:
            return
        if self._asleep:
            self._is_waking = True
            self._asleep -= 1
            self._sleeping.unpark()
        elif self.may_start and len(self._workers) < self.most:
            self._is_waking = True
            worker = _Worker()
            self._workers.append(worker)
            self._spawn(self._run, worker)

    def hand_back(self) -> None:
        """Give back what was claimed and not started."""
        seqs = [lease.seq for lease in self._work]
        self._work.clear()
        if self._hints is not None:
            seqs += self._hints.take_back()
        self.in_flight -= len(seqs)
        self._core.release(seqs)

    async def _run(self, worker: _Worker) -> None:
        self._is_waking = False
        WITHIN.set(self)
        loop = self._work_in_batches if self._runs_batches else self._work_singly
        if self._is_careful and not self._runs_batches:
            loop = self._work_carefully
        while True:
            # One scope serves until it is cancelled: entering one for each message would cost as much as a message.
            with trio.CancelScope() as worker.scope:
                await loop(worker)
            self._forget_run(worker)

    def _forget_run(self, worker: _Worker) -> None:
        """Forget what a worker was running when it was told to stop."""
        self.in_flight -= len(worker.leases)
        worker.leases = ()
        worker.is_struck = False
        self._on_rest()

    async def _find_work(self) -> None:
        """Claim messages; if there are none, commit and look again; if there is nothing at all, sleep."""
        if self._suspects:
            await self._try_suspect()
            return
        # Written as one coroutine: in a chain all of this is done for every message.
        ring, levels = self._ring, self._levels
        has_committed = False
        while True:
            room = self.most - self.in_flight
            if room > 0 and (ring or levels) and self.may_start:
                seqs = self.take(room)
                if self._late_suspects:
                    seqs = self._without_suspects(seqs)
                    if self._suspects and not seqs:
                        return
                if seqs and self._hints is None:
                    self.in_flight += len(seqs)
                    claim = self._membership.lease_nowait
                    leases = await self._membership.lease(seqs) if claim is None else claim(seqs)
                    self.in_flight -= len(seqs) - len(leases)
                    self._work.extend(leases if self._recorder is None else self._recall(leases, self._recorder))
                    return
                if seqs:
                    await self._send_hints(seqs)
            if has_committed:
                return
            if not self.outbox or self.committer.is_busy:
                await self._sleep()
                return
            await self.committer.commit_all()
            has_committed = True

    def suspect(self, seqs: Iterable[Seq]) -> None:
        """Run these messages first, each with nothing beside it: if one kills this process too, it is known which."""
        self._suspects.extend(seqs)

    async def recall(self, seqs: Sequence[Seq]) -> None:
        """Answer for messages whose outcomes were recorded before a crash, before anything is run."""
        if not seqs or self._recorder is None:
            return
        leases = await self._membership.lease(seqs)
        self.in_flight += len(leases)
        self._work.extend(self._recall(leases, self._recorder))

    async def _try_suspect(self) -> None:
        if self.outbox and not self.committer.is_busy:
            await self.committer.commit_all()
            return
        if self.in_flight or not self.may_start:
            await self._sleep()
            return
        if self._is_trying:
            self._is_trying = False
            self._suspects.popleft()
        while self._suspects:
            seq = self._suspects[0]
            node = self._core.node(seq)
            if node is not None and self._core.may_start(node):
                self._is_trying = True
                self._core.claim([seq])
                self.in_flight += 1
                leases = await self._membership.lease([seq])
                self.in_flight -= 1 - len(leases)
                for lease in leases if self._recorder is None else self._recall(leases, self._recorder):
                    self._begin(lease)
                return
            if node is not None and self._core.control.waits_for_time(node):
                # The others wait with it: they must not run beside it.
                await self._sleep()
                return
            self._suspects.popleft()
            if self._core.is_unfinished(seq):
                self._late_suspects[seq] = None

    def _without_suspects(self, seqs: Sequence[Seq]) -> list[Seq]:
        """Put back the suspects among messages that may start: now they can run alone. Return the others."""
        suspects = [seq for seq in seqs if seq in self._late_suspects]
        self._late_suspects = {
            seq: None for seq in self._late_suspects if seq not in suspects and self._core.is_unfinished(seq)
        }
        self._core.release(suspects)
        self._suspects.extend(suspects)
        return [seq for seq in seqs if seq not in suspects]

    def _begin(self, lease: Lease[Any]) -> None:
        """Let a message run, unless it has killed too many processes."""
        if lease.crashes < self._config.poison_threshold:
            self._work.append(lease)
            return
        name = lease.message.id
        error = Permanent(
            f"message {name!r} ran alone each of the {lease.crashes} times that the process died", error_kind="poison"
        )
        self.outbox.append((lease, Raised(error)))

    def _recall(self, leases: Sequence[Lease[Any]], recorder: Recorder) -> Sequence[Lease[Any]]:
        """Answer for messages whose outcomes were recorded before a crash; return the others, which have to run."""
        fresh: list[Lease[Any]] = []
        for lease in leases:
            if lease.prepared is None or lease.prepared == BEGUN:
                fresh.append(lease)
                continue
            answer: object
            try:
                answer = recorder.decode(lease.message, lease.prepared)
            except OutcomeNotDecodable as error:
                answer = Raised(error)
            self.outbox.append((lease, answer))
        return fresh

    async def _send_hints(self, seqs: Sequence[Seq]) -> None:
        """Say on the bus what may start; whoever hears of it claims it."""
        assert self._hints is not None
        self.in_flight += len(seqs)
        await self._hints.send([self._hint(seq) for seq in seqs])

    def _hint(self, seq: Seq) -> Ready:
        node = self._core.node(seq)
        assert node is not None
        return Ready(seq, node.epoch.number, node.message.kind, node.message.priority)

    async def receive_hints(self, hints: Hints) -> None:
        """Claim what the bus says is ready."""
        while True:
            seqs = await hints.receive(self._config.max_in_flight)
            if seqs:
                leases = await self._membership.lease(seqs)
                self.in_flight -= len(seqs) - len(leases)
                self._work.extend(leases if self._recorder is None else self._recall(leases, self._recorder))
                self.wake()

    async def _sleep(self) -> None:
        self._on_rest()
        self._asleep += 1
        try:
            await self._sleeping.park()
        except trio.Cancelled:
            self._asleep -= 1
            raise
        self._is_waking = False

    async def _work_singly(self, worker: _Worker) -> None:
        """Run messages one at a time until this worker is struck."""
        work, outbox, execute, store_id = self._work, self.outbox, self._executor.execute, self._store_id
        batch_size, graph, meter = self._config.commit_batch, self._core.graph, self._meter
        is_measured, now, timed = meter.is_on, meter.now, meter.timed
        started = 0.0
        handled = 0
        while True:
            if not work:
                await self._find_work()
                # Looking for work costs something too, so that nobody looks for ever without letting others run.
                handled += 1
                if not work and handled <= _BUDGET:
                    continue
            if len(work) > 1 or outbox:
                # Others are woken one by one: if executors do not wait, this worker is done before they look. If they
                # do, somebody must be there for the rest, and to commit what has been answered.
                self.wake()
            done = 0
            if is_measured:
                started = now()
            while work:
                lease = work.popleft()
                worker.leases = (lease,)
                delivery = Delivery(lease, store_id)
                if graph.hands_over:
                    self._add_extras(delivery, lease.seq)
                try:
                    outcome = await execute(delivery)
                except Exception as error:
                    outcome = Raised(error)
                if is_measured:
                    # From one answer to the next: asking the clock twice would cost as much as all the rest of it.
                    answered = now()
                    timed[lease.message.kind].append(answered - started)
                    started = answered
                if worker.is_struck:
                    return
                outbox.append((lease, outcome))
                done += 1
                if done > _BUDGET:
                    break
            worker.leases = ()
            self.executed += done
            handled += done
            if handled > _BUDGET:
                handled = 0
                await trio.lowlevel.checkpoint()
            if len(outbox) >= batch_size and not self.committer.is_busy:
                await self.committer.commit_all()

    async def _work_carefully(self, worker: _Worker) -> None:
        """Run messages one at a time within their limits, noting before what must not be begun twice."""
        work, outbox = self._work, self.outbox
        handled = 0
        while True:
            if not work:
                await self._find_work()
            if len(work) > 1 or outbox:
                self.wake()
            if work:
                lease = work.popleft()
                worker.leases = (lease,)
                started = self._meter.now() if self._meter.is_on else 0.0
                outcome = await self._execute_carefully(lease)
                if self._meter.is_on:
                    self._meter.executed(lease.message.kind, 1, started)
                if worker.is_struck:
                    return
                worker.leases = ()
                if outcome is not None:
                    outbox.append((lease, outcome))
                    self.executed += 1
            handled += 1
            if handled > _BUDGET:
                handled = 0
                await trio.lowlevel.checkpoint()
            if len(outbox) >= self._config.commit_batch and not self.committer.is_busy:
                await self.committer.commit_all()

    async def _execute_carefully(self, lease: Lease[Any]) -> object:
        """Run one message; None if it is not ours any more."""
        policy = self._config.policy(lease.message.kind)
        if policy.delivery == "at_most_once":
            if lease.prepared is not None:
                return Raised(_begun_before(lease))
            if not await self._begin_once([lease]):
                return None
        delivery = Delivery(lease, self._store_id)
        if self._core.hands_over:
            self._add_extras(delivery, lease.seq)
        outcome: object
        try:
            if policy.timeout is None:
                outcome = await self._executor.execute(delivery)
                return outcome
            with trio.move_on_after(policy.timeout):
                outcome = await self._executor.execute(delivery)
                return outcome
        except Exception as error:
            return Raised(error)
        return Raised(_too_slow(policy.timeout))

    async def _begin_once(self, leases: Sequence[Lease[Any]]) -> Sequence[Lease[Any]]:
        """Tell the store that messages are begun, so that they never are again; return those that are ours."""
        settled = await self._membership.write(Settlement(prepared={lease.seq: BEGUN for lease in leases}))
        if not settled.refused:
            return leases
        self.in_flight -= len(settled.refused)
        self._core.release(settled.refused)
        return [lease for lease in leases if lease.seq not in settled.refused]

    async def _execute_batch_carefully(self, leases: Sequence[Lease[Any]]) -> list[tuple[Lease[Any], object]]:
        """Run a batch; answer for those of it that are ours."""
        policy = self._config.policy(leases[0].message.kind)
        if policy.delivery != "at_most_once":
            return list(zip(leases, await self._execute_batch(leases, policy), strict=True))
        answers: list[tuple[Lease[Any], object]] = [
            (lease, Raised(_begun_before(lease))) for lease in leases if lease.prepared is not None
        ]
        fresh = [lease for lease in leases if lease.prepared is None]
        ours = await self._begin_once(fresh) if fresh else ()
        if ours:
            answers += zip(ours, await self._execute_batch(ours, policy), strict=True)
        return answers

    async def _work_in_batches(self, worker: _Worker) -> None:
        """Run messages of one kind together until this worker is struck."""
        outbox = self.outbox
        handled = 0
        while True:
            if not self._work:
                await self._find_work()
                handled += 1
                if not self._work and handled <= _BUDGET:
                    continue
            if self._work:
                leases = self._next_batch()
                if self._work or outbox:
                    self.wake()
                worker.leases = leases
                started = self._meter.now() if self._meter.is_on else 0.0
                answered: Iterable[Answer]
                if self._is_careful:
                    answered = await self._execute_batch_carefully(leases)
                else:
                    answered = zip(leases, await self._execute_batch(leases), strict=True)
                if self._meter.is_on:
                    self._meter.executed(leases[0].message.kind, len(leases), started)
                if worker.is_struck:
                    return
                worker.leases = ()
                known = len(outbox)
                outbox.extend(answered)
                self.executed += len(outbox) - known
                handled += len(leases)
            if len(outbox) >= self._config.commit_batch and not self.committer.is_busy:
                await self.committer.commit_all()
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

    async def _execute_batch(self, leases: Sequence[Lease[Any]], policy: KindPolicy | None = None) -> Sequence[object]:
        """Run a batch; if it raises, run its halves, so that only the culprit fails."""
        store_id = self._store_id
        deliveries: list[Delivery[Any]] = [Delivery(lease, store_id) for lease in leases]
        if self._core.hands_over:
            for delivery, lease in zip(deliveries, leases, strict=True):
                self._add_extras(delivery, lease.seq)
        try:
            if policy is None or policy.timeout is None:
                answers = await self._executor.execute_batch(deliveries)
            else:
                answers = await self._in_time(policy.timeout, deliveries)
            if not isinstance(answers, Sequence) or len(answers) != len(leases):
                raise BadOutcome(
                    f"execute_batch answered {shown(answers)} for {len(leases)} messages: return a sequence of as many "
                    "outcomes, in the same order"
                )
        except Exception as error:
            is_last = policy is not None and policy.delivery == "at_most_once"
            if isinstance(error, SystemFailure) or len(leases) == 1 or is_last:
                return [Raised(error, is_alone=len(leases) == 1)] * len(leases)
            half = len(leases) // 2
            return [
                *await self._execute_batch(leases[:half], policy),
                *await self._execute_batch(leases[half:], policy),
            ]
        return answers

    async def _in_time(self, timeout: float, deliveries: Sequence[Delivery[Any]]) -> object:
        """Run a batch within a time limit."""
        with trio.move_on_after(timeout):
            answers: object = await self._executor.execute_batch(deliveries)
            return answers
        raise _too_slow(timeout)

    def _add_extras(self, delivery: Delivery[Any], seq: Seq) -> None:
        delivery.unmet = self._core.unmet(seq)
        delivery.values = self._core.values(seq)

    def strike(self, seqs: Iterable[Seq]) -> None:
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
        self.in_flight -= gone

    def _is_wanted(self, lease: Lease[Any]) -> bool:
        return self._core.is_unfinished(lease.seq)
