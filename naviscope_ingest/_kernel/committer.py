"""Commits: from answers to the sink, from the sink to the store, from the store to the core.

One batch at a time. Dependents become ready when the store has settled their parents, never before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from naviscope_ingest._core import Core
from naviscope_ingest._kernel.breakers import Breakers
from naviscope_ingest._kernel.commits import SinkLine, check_answer
from naviscope_ingest._kernel.epochs import EpochBook
from naviscope_ingest._kernel.fan_outs import FanOuts
from naviscope_ingest._kernel.inside import inside_for
from naviscope_ingest._kernel.judge import Judge
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.outcomes import Batch, Planner, Rest, settlement_of
from naviscope_ingest._kernel.prepared import Recorder
from naviscope_ingest._kernel.workers import Workers
from naviscope_ingest.config import RuntimeConfig
from naviscope_spi import Clock, CommitBatch, CommitSink, Derived, Message, Seq, Settled, Settlement, Waits

__all__ = ["Committer"]

_log = logging.getLogger("naviscope_ingest")

_AT_ONCE = 4_000
"""How many derived messages the core is told of together with the commit of their parents."""


class Committer:
    """Empties the outbox.

    Args:
        sink: where results become visible.
        core: is told what committed.
        planner: sorts answers.
        fan_outs: sees to outcomes that bring too much for one settlement.
        judge: decides on attempts that failed.
        line: gets into the sink what does not go in at once.
        breakers: are told of what works, when they ask for it.
        membership: settles them.
        recorder: writes outcomes down before the sink sees them, if that is needed.
        book: is told what failed.
        workers: whose outbox it is.
        config: how large batches are.
        meter: measures.
        clock: where time comes from.
        carry_out: sees to what the core decides.
        fail: called before work is handed back by an error that stops the runtime.
        set_alarm: sees that somebody looks when the next time has come.

    Attributes:
        is_busy: whether a batch is being committed.
        committed: how many messages committed.
        batches: how many batches there were.
    """

    def __init__(
        self,
        *,
        sink: CommitSink[Any],
        core: Core,
        planner: Planner,
        fan_outs: FanOuts,
        judge: Judge,
        line: SinkLine,
        breakers: Breakers,
        membership: Membership,
        recorder: Recorder | None,
        book: EpochBook,
        workers: Workers,
        config: RuntimeConfig,
        meter: Meter,
        clock: Clock,
        carry_out: Callable[[], Awaitable[None]],
        fail: Callable[[BaseException], None],
        set_alarm: Callable[[], None],
    ) -> None:
        self.is_busy = False
        self.committed = 0
        self.batches = 0
        self._sink = sink
        self._commit_to_sink: Callable[[CommitBatch[Any]], Awaitable[object]] = sink.commit
        self._line = line
        self._breakers = breakers
        self._inside = inside_for(sink, membership, line)
        self._slow = config.slow_sink_seconds
        self._core = core
        self._plan = planner.plan
        self._fan_outs = fan_outs
        self._judge = judge
        self._tried = judge.tried
        self._membership = membership
        self._recorder = recorder
        self._book = book
        self._workers = workers
        self._outbox = workers.outbox
        self._config = config
        self._batch_size = config.commit_batch
        self._linger = config.commit_linger
        self._meter = meter
        self._is_measured = meter.is_on
        self._wall = clock.wall
        self._carry_out = carry_out
        self._fail = fail
        self._set_alarm = set_alarm

    async def commit_all(self) -> None:
        """Commit what executors have answered, batch by batch: hand each to the sink, then settle it.

        The worker that does so goes on with what became ready. Written as one coroutine: in a chain every batch is one
        message.
        """
        self.is_busy = True
        try:
            outbox, size, linger = self._outbox, self._batch_size, self._linger
            if linger and len(outbox) < min(size, self._workers.in_flight):
                await trio.sleep(linger)
            core, plan, is_measured = self._core, self._plan, self._is_measured
            commit = self._membership.commit_nowait
            while outbox:
                answers = outbox[:size]
                del outbox[:size]
                began = self._wall()
                batch = plan(answers, began)
                if batch.left:
                    outbox[:0] = batch.left
                if batch.entries and self._inside is None:
                    if self._recorder is not None:
                        await self._record(batch, self._recorder)
                    if self._line.is_troubled:
                        await self._line.until_worth_a_call()
                    started = self._meter.now() if is_measured else 0.0
                    try:
                        answer = await self._commit_to_sink(CommitBatch(batch.entries))
                    except Exception as error:
                        await self._commit_in_parts(batch, error)
                    else:
                        if answer is not None:
                            check_answer(self._sink, answer)
                        if self._line.is_troubled:
                            await self._line.worked()
                    if is_measured:
                        self._meter.sink_committed(len(batch.entries), started)
                if self._tried:
                    self._forget_histories(batch)
                if self._breakers.is_alert:
                    self._breakers.worked(batch)
                settling = self._meter.now() if is_measured else 0.0
                if batch.rest is None and self._inside is None:
                    if commit is not None:
                        commit(batch.leases)
                    else:
                        await self._membership.write(Settlement(batch.leases))
                    now = self._wall()
                    has_decided = core.commit_plain(batch.nodes, now)
                else:
                    await self._commit_rest(batch, batch.more())
                    has_decided = core.look()
                    now = core.now
                if now - began > self._slow and batch.entries and self._inside is None:
                    self._report_slow(now - began, len(batch.entries))
                self._workers.in_flight -= len(answers) - len(batch.left)
                self.committed += len(batch.leases)
                self.batches += 1
                if is_measured:
                    self._meter.batch(batch, len(answers), settling)
                if has_decided:
                    await self._carry_out()
                if batch.rest is not None and batch.rest.fatal is not None:
                    raise batch.rest.fatal
                if core.may_be_due:
                    # Whoever commits may be busy for long with what became ready, and nobody else need look before.
                    self._set_alarm()
        finally:
            self.is_busy = False

    async def _commit_in_parts(self, batch: Batch, error: Exception) -> None:
        """Commit what the sink takes of a batch that failed; what it refuses ends dead."""
        await self._drop_refused(batch, await self._line.commit(self._sink, batch.entries, error))

    def _report_slow(self, seconds: float, entries: int) -> None:
        """Say that a batch took long to commit."""
        self._meter.sink_slow(seconds)
        _log.warning(
            "%s took %.1f s to commit %d entries",
            type(self._sink).__name__,
            seconds,
            entries,
            extra={"seconds": seconds, "entries": entries},
        )

    def _forget_histories(self, batch: Batch) -> None:
        """Let go of what was tried before by messages that now commit."""
        records = self._judge.forget([lease.seq for lease in batch.leases])
        if records:
            batch.more().records += records

    async def _record(self, batch: Batch, recorder: Recorder) -> None:
        """Tell the store what the sink is about to see, so that after a crash it sees the same again."""
        records = recorder.record(batch)
        if not records:
            return
        settled = await self._membership.write(Settlement(prepared=records))
        if settled.refused:
            # They are not ours any more: whoever has them now may come to another outcome.
            batch.leave_out(settled.refused)
            self._core.release(settled.refused)

    async def _commit_rest(self, batch: Batch, rest: Rest) -> None:
        """Settle a batch that does more than commit messages that bring nothing."""
        for lease, outcome in rest.fan_outs:
            self._fan_outs.stage(lease, outcome)
        if rest.failed:
            await self._judge.judge(batch)
        if rest.fatal is not None:
            # What is handed back must not be started again.
            self._fail(rest.fatal)
        if rest.derived:
            await self._stage(batch, rest)
        # An end that is being settled wins over a cancel, as a commit does.
        self._core.hand_to_sink(lease.seq for lease, _, _ in rest.ended)
        rest.ended = [each for each in rest.ended if self._core.is_unfinished(each[0].seq)]
        settled = await self._settle(batch)
        self._core.tell_time(self._wall())
        # Before the commits of this batch are told: whether a deferral had to wait is a matter of when it was answered.
        spent = [lease for lease, outcome in rest.deferred if self._core.defer(lease.seq, outcome.depends_on)]
        # Nobody may start them before the store knows of the attempt: what it is told then would end their new lease.
        self._core.claim(lease.seq for lease in spent)
        self._tell_core(batch, rest, settled)
        if spent:
            # It need not wait at all, which only the core could tell.
            again = [Waits(lease.seq, None, None, lease.attempt + 1, lease.run) for lease in spent]
            await self._membership.write(
                Settlement(waits=[each for each in again if self._core.is_unfinished(each.seq)])
            )
            self._core.release(lease.seq for lease in spent)

    async def _drop_refused(self, batch: Batch, refused: dict[str, BaseException]) -> None:
        """Let messages end dead that the sink refuses."""
        names = {(entry.epoch.number, entry.message_id): refused.get(entry.task_key) for entry in batch.entries}
        for lease in tuple(batch.leases):
            error = names.get((lease.epoch.number, lease.message.id))
            if error is not None:
                batch.drop(lease, error)
        await self._judge.judge(batch)

    async def _stage(self, batch: Batch, rest: Rest) -> None:
        """Put large numbers of derived messages aside that were recorded whole, so that no settlement grows long."""
        limit = self._config.max_derived
        by_seq = {lease.seq: lease for lease in batch.leases}
        for seq, derived in rest.derived.items():
            if len(derived.messages) <= limit:
                continue
            for at in range(0, len(derived.messages), limit):
                await self._membership.store.put(
                    by_seq[seq].epoch, derived.messages[at : at + limit], staged_by=by_seq[seq]
                )
            rest.derived[seq] = Derived(seq, (), len(derived.messages), derived.ready)

    async def _settle(self, batch: Batch) -> Settled:
        if self._inside is None or not batch.entries:
            return await self._membership.write(settlement_of(batch))
        began = self._wall()
        started = self._meter.now() if self._is_measured else 0.0
        settled = await self._inside.settle(batch, self._drop_refused)
        if self._wall() - began > self._slow:
            self._report_slow(self._wall() - began, len(batch.entries))
        if self._is_measured:
            self._meter.sink_committed(len(batch.entries), started)
        return settled

    def _tell_core(self, batch: Batch, rest: Rest, settled: Settled) -> None:
        core = self._core
        for lease, ended, error in rest.ended:
            self._book.fail(lease.epoch.number, lease.message.id, ended.end, error, ())
        derived: list[tuple[int, Sequence[Seq], Sequence[Message[Any]]]] = []
        if rest.derived:
            promised = Counter[int]()
            parents = [lease for lease in batch.leases if lease.seq in rest.derived]
            for lease in parents:
                brought = rest.derived[lease.seq]
                promised[lease.epoch.number] += len(brought.messages) + brought.staged
            if len(settled.accepted) > _AT_ONCE:
                self._fan_outs.bring(settled.accepted, parents, promised)
            else:
                derived = [(key.number, [seq], [message]) for seq, key, message in settled.accepted]
                promised.subtract(number for number, _, _ in derived)
                self._fan_outs.count_known(promised)
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
