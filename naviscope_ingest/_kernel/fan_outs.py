"""Fan-outs: a message that brings more than fits into one settlement.

What it brings is read bit by bit, and may be a generator that makes it as it is read. Each bit is *staged*: put into
the store under the lease of the parent, where nobody sees it. All the while the parent is running, and can be
cancelled. Then its outcome goes the way of all others, and its settlement brings the stage alive with one small write.
From then on the messages exist; the core is told of them *as capacity allows*, a bit whenever few are ready to start.
Until it knows them all it counts the parent's word that more will come, so the epoch is not done and no barrier opens
too early.

So neither the loop nor the writer of the store is held for long, and a million messages do not stand in memory because
one parent brought them. A process that ends in the middle loses nothing: what was staged for a parent that has not
committed is dropped with its lease, and what is alive is found again by a recovery.

Rejected: telling the core of everything at once, in steps with pauses. The pauses are not enough: whenever the
interpreter looks through a million new objects for garbage, everything waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import trio

from naviscope_ingest._core import Core, State
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.outcomes import Planner, Raised, Staged
from naviscope_ingest._kernel.workers import Workers
from naviscope_ingest.config import RuntimeConfig
from naviscope_ingest.errors import BadOutcome
from naviscope_spi import Clock, EpochKey, Executed, Fatal, InvalidMessage, Lease, Message, Seq, SessionLost

__all__ = ["FanOuts"]

Accepted = tuple[Seq, EpochKey, Message[Any]]


class FanOuts:
    """Stages what messages bring, and tells the core of it.

    Args:
        core: is told.
        membership: whose store keeps stages.
        planner: says what is wrong with derived messages.
        workers: commit the parent; start the children.
        config: how much is staged and told at once.
        clock: where time comes from.
        spawn: starts a task that ends when it is done.
        follow_up: lets the core look around, and sees to what it decides.
    """

    def __init__(
        self,
        *,
        core: Core,
        membership: Membership,
        planner: Planner,
        workers: Workers,
        config: RuntimeConfig,
        clock: Clock,
        spawn: Callable[..., None],
        follow_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._core = core
        self._membership = membership
        self._planner = planner
        self._workers = workers
        self._step = config.max_derived
        # Enough for every worker until the next bit is told, and for the largest batch.
        self._enough = 4 * max(config.max_in_flight, config.commit_batch, config.max_derived)
        self._wall = clock.wall
        self._spawn = spawn
        self._follow_up = follow_up
        self._waiting = trio.lowlevel.ParkingLot()
        self._under_way = 0

    @property
    def are_under_way(self) -> bool:
        """Whether the core does not know yet of everything that is alive."""
        return self._under_way > 0

    def on_rest(self) -> None:
        """Go on, now that a worker found nothing to do."""
        if self._waiting:
            self._waiting.unpark_all()

    # Before the parent commits

    def stage(self, lease: Lease[Any], outcome: Executed[Any, Any]) -> None:
        """Put aside what a message brings; then let its outcome be committed. It stays in flight."""
        self._workers.in_flight += 1
        self._spawn(self._stage_and_answer, lease, outcome)

    async def _stage_and_answer(self, lease: Lease[Any], outcome: Executed[Any, Any]) -> None:
        answer = await self._stage(lease, outcome)
        if answer is None:
            self._workers.in_flight -= 1
            await self._follow_up()
        else:
            self._workers.outbox.append((lease, answer))
            self._workers.wake()

    async def _stage(self, lease: Lease[Any], outcome: Executed[Any, Any]) -> object:
        """Return the outcome with what it brings staged, another answer if that cannot be, None if it was ended."""
        count = 0
        kinds: dict[str, Message[Any]] = {}
        messages = iter(outcome.derived)
        while True:
            try:
                chunk = list(islice(messages, self._step))
            except Exception as error:
                # A generator is a part of the executor.
                return Raised(error)
            if not chunk:
                return Executed(outcome.ops, Staged(count, tuple(kinds.values())), outcome.ready, outcome.value)
            if not self._is_running(lease):
                # It was ended before this began; the core may not even know its epoch's messages any more.
                return None
            wrong = self._planner.fault_of(lease, chunk, count)
            if wrong is not None:
                return Fatal(wrong)
            try:
                await self._membership.store.put(lease.epoch, chunk, staged_by=lease)
            except InvalidMessage as error:
                return Fatal(BadOutcome(f"derived[{count}] or one of those that follow cannot be stored: {error}"))
            except SessionLost:
                if self._is_running(lease):
                    raise
            if not self._is_running(lease):
                return None
            count += len(chunk)
            kinds.update((message.kind, message) for message in chunk)
            await trio.lowlevel.checkpoint()

    def _is_running(self, lease: Lease[Any]) -> bool:
        node = self._core.node(lease.seq)
        return node is not None and node.state is State.RUNNING

    # After it

    def bring(self, accepted: Sequence[Accepted], parents: Sequence[Lease[Any]], promised: Counter[int]) -> None:
        """Tell the core of messages that are alive, bit by bit. Until then it expects them.

        Args:
            accepted: the messages.
            parents: who brought them, and is about to commit.
            promised: how many there should be in each epoch; those that are missing were known before.
        """
        for parent in parents:
            self._core.expect(parent.epoch.number, parent.message.kind)
        self._under_way += 1
        self._spawn(self._bring, accepted, parents, promised, self._wall())

    async def _bring(
        self, accepted: Sequence[Accepted], parents: Sequence[Lease[Any]], promised: Counter[int], at: float
    ) -> None:
        core = self._core
        messages = iter(accepted)
        while chunk := list(islice(messages, self._step)):
            while core.schedule.depth >= self._enough:
                await self._waiting.park()
            # Their times count from when they came alive.
            core.tell_time(at)
            for number, seqs, new in _by_epoch(chunk):
                core.accept(number, seqs, new)
                promised[number] -= len(seqs)
            await self._follow_up()
            await trio.lowlevel.checkpoint()
        self.count_known(promised)
        for parent in parents:
            core.expect_no_more(parent.epoch.number, parent.message.kind)
        self._under_way -= 1
        await self._follow_up()

    def count_known(self, missing: Counter[int]) -> None:
        """Count derived messages whose ids were known already. The first ones won."""
        for number, count in missing.items():
            # A cancelled epoch takes no derived messages at all: those are not known, but unwanted.
            if count > 0 and not self._core.epochs[number].was_cancelled:
                self._core.count_duplicates(number, count)


def _by_epoch(chunk: Sequence[Accepted]) -> Iterator[tuple[int, list[Seq], list[Message[Any]]]]:
    for number, together in groupby(chunk, key=lambda each: each[1].number):
        group = list(together)
        yield number, [seq for seq, _, _ in group], [message for _, _, message in group]
