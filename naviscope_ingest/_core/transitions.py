"""How messages and epochs move from state to state, and what follows when they do.

A fact is followed by *waves*: open barriers and complete epochs by the present state; judge every disputed message, all
of them before acting on any; act; again, until nothing changes. So the causes that are recorded do not depend on the
order in which messages happen to be looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from attrs import define, field, frozen

from naviscope_ingest._core.barriers import Barrier, Derivations
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.graph import Graph
from naviscope_ingest._core.nodes import READY, WAITING, Node, State
from naviscope_ingest._core.resources import Scope
from naviscope_ingest._core.schedule import Schedule
from naviscope_ingest._core.terms import Case, Verdict
from naviscope_ingest._core.timers import TimerKind, Timers
from naviscope_spi import BadEnd, Dependency, ErrorKind, Resource, Seq

__all__ = ["Decided", "Decisions", "EpochEvent", "Transitions"]

_END_OF: dict[Verdict, BadEnd] = {"fail": "dead", "cancel": "cancelled", "skip": "skipped"}


@frozen
class Decided:
    """The core ended a message. The kind of error is given if it is not what others did."""

    seq: Seq
    end: BadEnd
    causes: frozenset[Seq]
    epoch_causes: frozenset[int]
    reason: str
    kind: ErrorKind | None = None


@frozen
class EpochEvent:
    """An epoch completed, is being repaired, or became blocked."""

    epoch: EpochTracker
    event: Literal["completed", "repairing", "blocked"]


@define
class Decisions:
    """What was decided since the last time anybody asked.

    Attributes:
        ended: messages that the core ended, in order.
        stop: messages among them whose executors are to be cancelled.
        epochs: what happened to epochs, in order.
    """

    ended: list[Decided] = field(factory=list)
    stop: list[Seq] = field(factory=list)
    epochs: list[EpochEvent] = field(factory=list)

    def __bool__(self) -> bool:
        return bool(self.ended or self.stop or self.epochs)


class Transitions:
    """The state of every message that has not committed, and the only place where it changes.

    Attributes:
        now: the time as it was last told.
        nodes: messages that have not committed, by place.
        epochs: the epochs that are kept, by number.
        quiet: those that are sealed, with nothing but waiting messages.
        decisions: what was decided and not yet asked for.
        is_changed: whether anything happened since somebody last cleared this.
        ended: how many messages have ended so far.
        touched: epochs whose counts changed, by number; looked at by the next wave.
    """

    def __init__(self, derives: Mapping[str, Collection[str]] | None, ageing: float) -> None:
        self.now = 0.0
        self.nodes: dict[Seq, Node] = {}
        self.epochs: dict[int, EpochTracker] = {}
        self.quiet: dict[int, EpochTracker] = {}
        self.derivations = Derivations(derives)
        self.timers = Timers()
        self.graph = Graph(self.timers)
        self.schedule = Schedule(self.timers, ageing)
        self.decisions = Decisions()
        self.is_changed = False
        self.ended = 0
        self.touched: dict[int, EpochTracker] = {}

    def settle(self) -> None:
        """Run waves until nothing changes."""
        self.is_changed = True
        graph = self.graph
        if graph.is_recovering:
            return
        while True:
            if graph.freed:
                self._free()
            if self.touched or graph.barriers:
                self._look_at_epochs()
            if not graph.disputed:
                if graph.freed or self.touched or graph.barriers:
                    continue
                return
            disputed, graph.disputed = graph.disputed, []
            rulings = [self._rule(case) for case in disputed if self._is_judged(case)]
            for ruling in rulings:
                self._act(*ruling)

    def _free(self) -> None:
        freed, self.graph.freed = self.graph.freed, []
        now = self.now
        last: EpochTracker | None = None
        start = freed.append
        for node in freed:
            # It may have been started and deferred since: facts of a recovery are judged at its end.
            if node.state is not WAITING or node.missing:
                continue
            epoch, message = node.epoch, node.message
            epoch.waiting -= 1
            if node.rare is None and message.key is None and not message.priority and message.not_before is None:
                # Most messages are plain, and go straight into the queue of their epoch.
                if epoch is not last:
                    last, start = epoch, self.schedule.usual_queue(epoch)
                node.state = READY
                node.since = now
                start(node)
            else:
                self.make_ready(node)

    def _is_judged(self, case: Case) -> bool:
        case.is_queued = False
        return case.node.case is case and case.node.state in (State.WAITING, State.HELD)

    def _rule(self, case: Case) -> tuple[Node, Verdict, Decided | None]:
        """Judge a message, and put down why, before anything that is judged with it has changed."""
        node, verdict = case.node, case.judge()
        if verdict in ("wait", "hold"):
            return node, verdict, None
        if verdict == "ready":
            unmet = self.graph.unmet(case)
            if unmet:
                node.more().unmet = (*node.more().unmet, *unmet)
                self.graph.hands_over = True
            return node, verdict, None
        causes, epoch_causes = self.graph.causes(case)
        return node, verdict, Decided(node.seq, _END_OF[verdict], causes, epoch_causes, case.why())

    def _act(self, node: Node, verdict: Verdict, decided: Decided | None) -> None:
        if decided is not None:
            self.decide(node, decided.end, decided.reason, decided.causes, decided.epoch_causes)
        elif verdict == "ready":
            self.graph.close_case(node)
            node.epoch.waiting -= 1
            self.touch(node.epoch)
            self.make_ready(node)
        else:
            state = State.HELD if verdict == "hold" else State.WAITING
            if node.state is not state:
                node.state = state
                node.since = self.now

    def _look_at_epochs(self) -> None:
        """Open the barriers and complete the epochs that the present state allows to."""
        graph = self.graph
        if graph.barriers:
            new, graph.barriers = graph.barriers, []
            for epoch, barrier in new:
                if epoch.number not in self.touched:
                    self._open_if_clear(epoch, barrier)
        touched, self.touched = self.touched, {}
        for epoch in touched.values():
            if epoch.barriers:
                for barrier in epoch.barriers.values():
                    self._open_if_clear(epoch, barrier)
            if epoch.unfinished > epoch.waiting or not epoch.is_sealed:
                if epoch.number in self.quiet:
                    self._unquiet(epoch)
            elif epoch.unfinished:
                self.quiet[epoch.number] = epoch
            else:
                if epoch.state != "completed":
                    self._complete(epoch)
                self._unquiet(epoch)

    def _unquiet(self, epoch: EpochTracker) -> None:
        if self.quiet.pop(epoch.number, None) is not None:
            epoch.is_blocked = False
            epoch.pardon()

    def _open_if_clear(self, epoch: EpochTracker, barrier: Barrier) -> None:
        if barrier.is_open or not epoch.is_sealed:
            return
        assert epoch.kinds is not None
        if not any(self.derivations.may_bring(kind, barrier.kind) for kind in epoch.kinds):
            self.graph.opened(barrier)

    def _complete(self, epoch: EpochTracker) -> None:
        if epoch.state == "repairing":
            epoch.revision += 1
        epoch.state = "completed"
        self.schedule.forget(epoch.number)
        self.graph.epoch_changed(epoch)
        self.decisions.epochs.append(EpochEvent(epoch, "completed"))

    def provide(self, provided: Iterable[tuple[Scope, Resource]]) -> None:
        """Provide resources, which may be all that happens to the epochs of those who waited for them."""
        freed = self.graph.freed
        before = len(freed)
        for scope, resource in provided:
            self.graph.provided(scope, resource)
        for node in freed[before:]:
            self.touch(node.epoch)

    def make_ready(self, node: Node) -> None:
        """Let a message whose dependencies are satisfied start, at its time."""
        starts_at = node.starts_at
        if starts_at is not None and starts_at > self.now:
            self.delay(node, starts_at)
        else:
            node.state = State.READY
            node.since = self.now
            self.schedule.add(node)

    def delay(self, node: Node, until: float) -> None:
        """Let a message start later: when `starts_at` says."""
        node.state = State.DELAYED
        node.since = self.now
        self.timers.set(until, TimerKind.START, node.seq)

    def undelay(self, node: Node) -> None:
        """Call off the later start of a message, if it has one."""
        if node.state is State.DELAYED:
            assert node.starts_at is not None
            self.timers.drop(node.starts_at, TimerKind.START, node.seq)

    def wait(self, node: Node, depends_on: Iterable[str | Dependency]) -> Case:
        """Let a message wait for dependencies."""
        node.state = State.WAITING
        node.since = self.now
        node.epoch.waiting += 1
        self.touch(node.epoch)
        return self.graph.open_case(node, depends_on, self.now)

    def hand_back(self, node: Node) -> None:
        """Make a started message ready again, before others that never started."""
        self.schedule.leave(node)
        node.state = State.READY
        node.since = self.now
        self.schedule.add(node, first=True)

    def start_again(self, node: Node) -> None:
        """Make a message ready whose time has come. After a retry it still has its lane."""
        if node.state is State.DELAYED:
            self.undelay(node)
            node.state = State.READY
            node.since = self.now
            self.schedule.resume(node)

    def is_over(self, node: Node) -> bool:
        """End a message that would run again although its time, or its epoch's, is over; tell whether it was."""
        if self.graph.is_recovering or node.is_recorded:
            # Later facts say whether it did run again. If not, its timer or the end of the recovery ends it.
            return False
        if node.epoch.verdict is not None:
            self.decide(node, node.epoch.verdict, "the epoch was ended while it ran")
            return True
        if node.expires_at is not None and node.expires_at <= self.now:
            self.decide(node, "expired", "its expires_at passed before it could run again")
            return True
        return False

    def condemn(self, epoch: EpochTracker, end: BadEnd, reason: str) -> None:
        """End all that has not ended and is not being committed, and all that comes later."""
        epoch.verdict = end
        pending = [node for node in epoch.pending() if node.state is not State.COMMITTING and not node.is_recorded]
        self.end_together(pending, end, reason)
        self.touch(epoch)

    def end_together(self, nodes: Sequence[Node], end: BadEnd, reason: str) -> None:
        """End messages by one decision: none of their ends follows from another's."""
        for node in nodes:
            if node.state is State.RUNNING:
                self.decisions.stop.append(node.seq)
            self.decisions.ended.append(Decided(node.seq, end, frozenset(), frozenset(), reason))
            self._close(node, end, reason)
        for node in nodes:
            self.graph.ended(node)

    def decide(
        self,
        node: Node,
        end: BadEnd,
        reason: str,
        causes: frozenset[Seq] = frozenset(),
        epoch_causes: frozenset[int] = frozenset(),
        *,
        kind: ErrorKind | None = None,
    ) -> None:
        """End a message by a decision of the core. Its executor does not run, or has answered."""
        self.decisions.ended.append(Decided(node.seq, end, causes, epoch_causes, reason, kind))
        self.end(node, end, reason, causes, epoch_causes)

    def end(
        self,
        node: Node,
        end: BadEnd,
        reason: str,
        causes: frozenset[Seq] = frozenset(),
        epoch_causes: frozenset[int] = frozenset(),
    ) -> None:
        """End a message otherwise than by commit, and tell those who wait for it."""
        self._close(node, end, reason)
        if causes or epoch_causes:
            node.more().causes, node.more().epoch_causes = causes, epoch_causes
        self.graph.ended(node)

    def _close(self, node: Node, end: BadEnd, reason: str) -> None:
        self.retire(node)
        node.end = end
        node.epoch.ends[end] += 1
        node.more().reason = reason
        self.touch(node.epoch)

    def retire(self, node: Node) -> None:
        """Take a message out of everything that unfinished messages are in."""
        epoch, expires_at = node.epoch, node.message.expires_at
        is_waiting = node.state is State.WAITING or node.state is State.HELD
        if is_waiting:
            epoch.waiting -= 1
            self.graph.close_case(node)
        else:
            self.undelay(node)
        node.state = State.ENDED
        node.since = self.now
        epoch.unfinished -= 1
        self.ended += 1
        if not is_waiting and (node.message.key is not None or self.schedule.slots):
            self.schedule.leave(node)
        if epoch.kinds is not None:
            epoch.count_kind(node, -1)
        if expires_at is not None:
            self.timers.drop(expires_at, TimerKind.EXPIRY, node.seq)

    def touch(self, epoch: EpochTracker) -> None:
        """Note that something about an epoch changed."""
        self.touched[epoch.number] = epoch
