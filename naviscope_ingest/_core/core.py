"""The core: facts in, decisions out.

Every method that tells a fact (`accept`, `claim`, `commit`, …) changes what the core knows and notes what follows from
it. `advance` tells the time, and looks for what nothing alive can release. `take` returns messages that may start;
`drain` returns everything else that was decided. The core never waits, reads no clock and touches nothing outside.

A fact is followed by *waves*: complete epochs and open barriers by the present state; judge every disputed message, all
of them before acting on any; act; again, until nothing changes. So the causes that are recorded do not depend on the
order in which messages happen to be looked at.

Facts that come again change nothing. Folding a store's facts from the beginning is therefore recovery, and a leader may
read back what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from attrs import define, field, frozen

from naviscope_ingest._core.barriers import Barrier, Derivations
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.graph import Graph
from naviscope_ingest._core.nodes import Node, State
from naviscope_ingest._core.schedule import Schedule
from naviscope_ingest._core.stuck import analyse
from naviscope_ingest._core.terms import Case, Gate, Term, Verdict
from naviscope_ingest._core.timers import TimerKind, Timers
from naviscope_spi import (
    Accepted,
    BadEnd,
    CaughtUp,
    Committed,
    Dependency,
    Ended,
    EpochForgotten,
    EpochMarked,
    EpochOpened,
    EpochRecord,
    FactBody,
    InvalidMessage,
    Leased,
    Message,
    OnMessage,
    OnResource,
    OnUnresolved,
    Provided,
    Resource,
    Seq,
    SessionEnded,
    Waits,
)

__all__ = ["Core", "Decided", "Decisions", "EpochEvent", "Refused"]

_END_OF: dict[Verdict, BadEnd] = {"fail": "dead", "cancel": "cancelled", "skip": "skipped"}
_HAS_LANE = (State.RUNNING, State.COMMITTING, State.DELAYED, State.READY)
_FREE_ANALYSIS = 10_000


class Refused(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The core cannot do what it was asked to: the message is unknown or in the wrong state."""


@frozen
class Decided:
    """The core ended a message."""

    seq: Seq
    end: BadEnd
    causes: frozenset[Seq]
    epoch_causes: frozenset[int]
    reason: str


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


class Core:
    """Knows every message that has not committed, and decides what happens to it.

    Args:
        derives: for each kind that says so, the kinds it derives; others may derive any.
        on_unresolved: what happens to dependencies that nothing alive can release, when neither they nor their epoch
            say.
        stall_grace: seconds before that happens.
        lanes: whether a message in retry blocks its lane, or lets others pass.
        max_deferrals: how often one run of a message may be deferred.

    Attributes:
        now: the time as it was last told.
        epochs: the epochs that are kept, by number.
    """

    def __init__(
        self,
        *,
        derives: Mapping[str, Collection[str]] | None = None,
        on_unresolved: OnUnresolved = "fail",
        stall_grace: float = 5.0,
        lanes: Literal["block", "pass"] = "block",
        max_deferrals: int = 100,
    ) -> None:
        self.now = 0.0
        self.epochs: dict[int, EpochTracker] = {}
        self._derivations = Derivations(derives)
        self._on_unresolved: OnUnresolved = on_unresolved
        self._stall_grace = stall_grace
        self._lanes_pass = lanes == "pass"
        self._max_deferrals = max_deferrals
        self._nodes: dict[Seq, Node] = {}
        self._timers = Timers()
        self._graph = Graph(self._timers)
        self._schedule = Schedule()
        self._decisions = Decisions()
        self._touched: dict[int, EpochTracker] = {}
        self._quiet: dict[int, EpochTracker] = {}
        self._leases: dict[int, dict[Seq, None]] = {}
        # When to look for what is stuck: something changed since, or a grace period ends.
        self._is_changed = False
        self._look_at: float | None = None
        self._credit = _FREE_ANALYSIS
        self._doomed: dict[Seq, Node] = {}

    # Questions

    @property
    def graph(self) -> Graph:
        """The dependency graph."""
        return self._graph

    @property
    def schedule(self) -> Schedule:
        """The order of ready messages."""
        return self._schedule

    @property
    def next_due(self) -> float | None:
        """When `advance` has something to do next, if nothing happens before."""
        due = self._timers.next_due
        if self._look_at is None:
            return due
        return self._look_at if due is None else min(due, self._look_at)

    def node(self, seq: Seq) -> Node | None:
        """Return a message that has not committed."""
        return self._nodes.get(seq)

    def find(self, number: int, message_id: str) -> Node | None:
        """Return a message that has not committed, by epoch and id."""
        return self._epoch(number).live.get(message_id)

    def may_start(self, node: Node) -> bool:
        """Tell whether a ready message could be taken now: its lane is free."""
        if node.state is not State.READY:
            return False
        key = node.message.key
        lane = None if key is None else self._schedule.lanes.get(key)
        return lane is None or lane.next() is node

    def values(self, seq: Seq) -> dict[str, bytes]:
        """Return what the dependencies of a message left for it, by message id or resource name."""
        node = self._nodes[seq]
        found: dict[str, bytes] = {}
        for dependency in (*node.message.depends_on, *(node.rare.added if node.rare else ())):
            self._collect(node.epoch, dependency, found)
        return found

    def unmet(self, seq: Seq) -> Sequence[str | Dependency]:
        """Return the dependencies that a message passed although they are not satisfied."""
        rare = self._nodes[seq].rare
        return () if rare is None else rare.unmet

    def barrier_passed(self, seq: Seq, derived: Iterable[Message[Any]]) -> str | None:
        """Return a kind among derived messages whose barrier has opened: their parent must end dead."""
        barriers = self._nodes[seq].epoch.barriers
        if not barriers:
            return None
        for message in derived:
            barrier = barriers.get(message.kind)
            if barrier is not None and barrier.is_open:
                return message.kind
        return None

    def _collect(self, epoch: EpochTracker, dependency: str | Dependency, found: dict[str, bytes]) -> None:
        if isinstance(dependency, str):
            value, name = epoch.values.get(dependency), dependency
        elif isinstance(dependency, OnMessage):
            home = epoch if dependency.epoch_name is None else self._graph.names.get(dependency.epoch_name)
            value, name = home.values.get(dependency.id) if home else None, dependency.id
        elif isinstance(dependency, OnResource):
            value, name = self._graph.resources.value(epoch.number, dependency.name), dependency.name
        else:
            for member in getattr(dependency, "members", ()):
                self._collect(epoch, member, found)
            return
        if value is not None:
            found[name] = value

    # Epochs

    def open_epoch(self, record: EpochRecord) -> EpochTracker:
        """Learn of an epoch."""
        number = record.key.number
        known = self.epochs.get(number)
        if known is not None:
            return known
        epoch = EpochTracker(record.key, record.options, self._on_unresolved, record.state, record.succeeded)
        epoch.was_cancelled = record.cancel_requested
        if record.cancel_requested and record.state in ("open", "sealed"):
            epoch.verdict = "cancelled"
        self.epochs[number] = epoch
        if record.options.deadline is not None and record.state != "completed":
            self._timers.set(record.options.deadline, TimerKind.DEADLINE, number, epoch)
        self._graph.epoch_opened(epoch)
        self._touch(epoch)
        self._settle()
        return epoch

    def seal(self, number: int) -> None:
        """Take no more messages into an epoch but derived ones."""
        epoch = self._epoch(number)
        if not epoch.is_sealed:
            epoch.is_sealed = True
            epoch.state = "sealed"
            self._touch(epoch)
            self._settle()

    def cancel_epoch(self, number: int) -> None:
        """Seal an epoch and cancel what has not ended and is not being committed."""
        epoch = self._epoch(number)
        if epoch.is_completed or epoch.verdict == "cancelled":
            return
        epoch.was_cancelled = True
        epoch.is_sealed = True
        if epoch.state == "open":
            epoch.state = "sealed"
        self._condemn(epoch, "cancelled", "the epoch was cancelled")
        self._settle()

    def forget_epoch(self, number: int) -> None:
        """Drop a completed epoch, its ids and its ends."""
        epoch = self.epochs.get(number)
        if epoch is None:
            return
        if not epoch.is_completed:
            raise Refused(f"epoch {epoch.name!r} is {epoch.state}: only a completed epoch can be forgotten")
        del self.epochs[number]
        for node in epoch.live.values():
            del self._nodes[node.seq]
        self._graph.epoch_forgotten(epoch)
        self._settle()

    def count_duplicates(self, number: int, duplicates: int, conflicts: int = 0) -> None:
        """Note that known ids were submitted again."""
        epoch = self._epoch(number)
        epoch.duplicates += duplicates
        epoch.conflicts += conflicts

    # Messages

    def accept(self, number: int, seqs: Sequence[Seq], messages: Sequence[Message[Any]]) -> None:
        """Learn of new messages of an epoch. Their ids are new, but may be waited for already."""
        epoch = self._epoch(number)
        nodes, live, now = self._nodes, epoch.live, self.now
        for seq, message in zip(seqs, messages, strict=True):
            if seq in nodes or message.id in live or message.id in epoch.done:
                continue
            nodes[seq] = live[message.id] = node = Node(seq, epoch, message, now)
            epoch.unfinished += 1
            if epoch.kinds is not None:
                epoch.count_kind(node, 1)
            if epoch.ghosts:
                self._graph.accepted(node)
            if message.expires_at is not None:
                self._timers.set_for(node, message.expires_at, TimerKind.EXPIRY)
            if message.depends_on:
                self._graph.link(node, now)
                if node.missing:
                    epoch.waiting += 1
                    continue
            self._make_ready(node)
        if epoch.verdict is not None and not self._graph.is_recovering:
            self._condemn(epoch, epoch.verdict, "the epoch had been ended before")
        self._touch(epoch)
        self._settle()

    def claim(self, seqs: Iterable[Seq], token: int | None = None) -> None:
        """Learn that messages were started, here or by another process."""
        for seq in seqs:
            node = self._nodes.get(seq)
            if node is None or node.state in (State.RUNNING, State.COMMITTING, State.ENDED):
                continue
            if node.state in (State.WAITING, State.HELD):
                # Only a fact of an earlier leader says so: it knew more than was folded so far.
                self._graph.close_case(node)
                node.epoch.waiting -= 1
            self._timers.drop_all(node, TimerKind.START)
            node.state = State.RUNNING
            node.since = self.now
            self._schedule.start(node)
            if token is not None:
                self._leases.setdefault(token, {})[seq] = None
            self._touch(node.epoch)

    def hand_to_sink(self, seqs: Iterable[Seq]) -> None:
        """Learn that outcomes were handed to the sink. From here on, commit wins over cancel."""
        for seq in seqs:
            node = self._nodes.get(seq)
            if node is not None and node.state is State.RUNNING:
                node.state = State.COMMITTING
                node.since = self.now

    def commit(
        self,
        seqs: Iterable[Seq],
        values: Mapping[Seq, bytes] | None = None,
        ready: Iterable[tuple[int, Resource]] = (),
        derived: Iterable[tuple[int, Sequence[Seq], Sequence[Message[Any]]]] = (),
    ) -> None:
        """Learn that messages committed, in one step with what they derived and provided.

        Args:
            seqs: the messages.
            values: what they leave for their dependents.
            ready: resources they provide, with the number of the epoch.
            derived: the messages they derived, with the number of the epoch.
        """
        is_recovering, self._graph.is_recovering = self._graph.is_recovering, True
        for number, new_seqs, messages in derived:
            self.accept(number, new_seqs, messages)
        for number, resource in ready:
            self._graph.provided(number, resource)
        self._graph.is_recovering = is_recovering
        nodes, touched = self._nodes, self._touched
        for seq in seqs:
            node = nodes.get(seq)
            if node is None or node.state is State.ENDED:
                continue
            del nodes[seq]
            message, epoch = node.message, node.epoch
            if values and seq in values:
                epoch.values[message.id] = values[seq]
            self._retire(node)
            node.end = "committed"
            del epoch.live[message.id]
            epoch.done.add(message.id)
            epoch.ends["committed"] += 1
            touched[epoch.number] = epoch
            if node.waiters:
                self._graph.committed(node.waiters)
        self._settle()

    def end(self, fact: Ended, reason: str = "") -> None:
        """Learn that a message ended without committing."""
        node = self._nodes.get(fact.seq)
        if node is not None and node.state is not State.ENDED:
            self._end(node, fact.end, frozenset(fact.causes), frozenset(fact.epoch_causes), reason)
            self._settle()

    def defer(self, seq: Seq, depends_on: Sequence[str | Dependency]) -> bool:
        """Let a running message wait for more; return whether an attempt was spent, for it need not wait at all.

        A deferral that could never end is a bug of the executor, and the message ends dead.
        """
        node = self._running(seq)
        if node is None:
            return False
        rare = node.more()
        rare.deferrals += 1
        fault = self._fault(node, depends_on, rare.deferrals)
        if fault is not None:
            self._decide(node, "dead", fault)
            self._settle()
            return True
        rare.added = (*rare.added, *depends_on)
        self._schedule.leave(node)
        self._wait(node, depends_on)
        assert node.case is not None
        spent = node.case.judge() == "ready"
        rare.attempts += spent
        self._stop_if_over(node)
        self._settle()
        return spent

    def retry(self, seq: Seq, at: float, *, spent: bool = True) -> None:
        """Let a running message run again, not before that time."""
        node = self._running(seq)
        if node is None:
            return
        rare = node.more()
        rare.attempts += spent
        rare.retry_at = at
        if self._lanes_pass:
            self._schedule.leave(node)
        self._delay(node, at)
        self._stop_if_over(node)
        self._settle()

    def release(self, seqs: Iterable[Seq]) -> None:
        """Make started messages ready again: they were handed back, or their process died."""
        for seq in seqs:
            node = self._nodes.get(seq)
            if node is not None and node.state in (State.RUNNING, State.COMMITTING):
                self._schedule.leave(node)
                node.state = State.READY
                node.since = self.now
                self._schedule.add(node, first=True)
                self._stop_if_over(node)
        self._settle()

    def cancel(self, seq: Seq) -> bool:
        """Cancel a message; return whether that had an effect. What is being committed is not cancelled."""
        node = self._nodes.get(seq)
        if node is None or node.state in (State.COMMITTING, State.ENDED):
            return False
        self._decide(node, "cancelled", "it was cancelled")
        self._settle()
        return True

    def provide(self, resource: Resource, number: int | None = None) -> None:
        """Learn of a resource, in the scope of an epoch or everywhere."""
        self._graph.provided(number, resource)
        self._settle()

    def forget_resource(self, name: str) -> None:
        """Take a global resource back. Who was satisfied by it stays so."""
        self._graph.resources.forget(None, name)

    # Dead letters

    def replay(self, seq: Seq) -> list[Seq]:
        """Start a new run of a dead or expired message and of all that it took down; return their places.

        Raises:
            Refused: the message is unknown, or its end cannot be replayed.
        """
        revived = self._closure(self._letter(seq, "replayed"))
        self._revive(revived)
        self._settle()
        return [node.seq for node in revived]

    def discard(self, seq: Seq) -> None:
        """Give a dead or expired message up: those who are held by it follow its end.

        Raises:
            Refused: the message is unknown, or has no dead letter.
        """
        node = self._letter(seq, "discarded")
        node.more().discarded = True
        self._graph.discarded(node)
        self._settle()

    def _letter(self, seq: Seq, what: str) -> Node:
        node = self._nodes.get(seq)
        if node is None:
            raise Refused(f"message {seq} is not known here, or has committed: only a dead letter can be {what}")
        if node.end not in ("dead", "expired"):
            state = node.end or node.state.value
            raise Refused(f"message {node.id!r} is {state}: only a dead or expired message can be {what}")
        return node

    def _closure(self, root: Node) -> list[Node]:
        """Return a message and all whose ends follow from its end, across epochs."""
        found: dict[Seq, Node] = {root.seq: root}
        epochs: dict[int, None] = {}
        todo = [root]
        while todo:
            node = todo.pop()
            waiters: list[Any] = [*(node.waiters or ())]
            if node.epoch.number not in epochs:
                epochs[node.epoch.number] = None
                waiters += node.epoch.waiters
            for waiter in waiters:
                child: Node = waiter.case.node if isinstance(waiter, Term) else waiter
                if child.seq not in found and self._follows(child, node):
                    found[child.seq] = child
                    todo.append(child)
        return sorted(found.values(), key=lambda node: node.seq)

    def _follows(self, child: Node, parent: Node) -> bool:
        rare = child.rare
        return (
            child.state is State.ENDED
            and rare is not None
            and (parent.seq in rare.causes or parent.epoch.number in rare.epoch_causes)
        )

    def _revive(self, nodes: Sequence[Node]) -> None:
        """Bring ended messages back to life, all of them before any is judged."""
        for node in nodes:
            epoch, rare = node.epoch, node.more()
            assert node.end is not None
            epoch.ends[node.end] -= 1
            epoch.unfinished += 1
            if epoch.kinds is not None:
                epoch.count_kind(node, 1)
            rare.run += 1
            rare.attempts = rare.deferrals = 0
            rare.added, rare.unmet, rare.reason = (), (), ""
            rare.causes, rare.epoch_causes = frozenset(), frozenset()
            rare.discarded, rare.retry_at = False, None
            node.end = None
            self._close_barriers(epoch, node.message.kind)
            self._reopen(epoch)
        for node in nodes:
            self._wait(node, node.message.depends_on)
            if node.message.expires_at is not None and node.message.expires_at > self.now:
                self._timers.set_for(node, node.message.expires_at, TimerKind.EXPIRY)
        for node in nodes:
            self._graph.reopened(node)

    def _close_barriers(self, epoch: EpochTracker, kind: str) -> None:
        """Close what a revived message may bring again: it must be able to commit, although the barrier had opened."""
        for barrier in epoch.barriers.values():
            if barrier.is_open and self._derivations.may_bring(kind, barrier.kind):
                barrier.is_open = False

    def _reopen(self, epoch: EpochTracker) -> None:
        epoch.verdict = None
        self._touch(epoch)
        if epoch.is_completed:
            epoch.state = "repairing"
            self._graph.epoch_changed(epoch)
            self._decisions.epochs.append(EpochEvent(epoch, "repairing"))

    # Time

    def advance(self, now: float) -> None:
        """Learn what time it is: let due timers act, then look for what nothing alive can release."""
        self.now = max(self.now, now)
        while (timer := self._timers.pop_due(self.now)) is not None:
            self._fire(timer.kind, timer.subject)
            self._settle()
        self._look()

    def _fire(self, kind: TimerKind, subject: EpochTracker | Node | Term) -> None:
        if isinstance(subject, EpochTracker):
            if not subject.is_completed:
                self._condemn(subject, "expired", "the deadline of the epoch passed")
            return
        if isinstance(subject, Term):
            self._graph.timed_out(subject)
            return
        if kind is TimerKind.EXPIRY:
            if subject.state not in (State.RUNNING, State.COMMITTING, State.ENDED):
                self._decide(subject, "expired", "its expires_at passed before it could run")
        elif subject.state is State.DELAYED:
            subject.state = State.READY
            subject.since = self.now
            self._schedule.resume(subject)

    def _look(self) -> None:
        """Deal with what nothing alive can release, until there is nothing left to do."""
        while self._quiet and self._is_time_to_look():
            self._is_changed = False
            self._look_at = None
            found = analyse(self._graph, self._derivations, self._quiet.values())
            self._credit = _FREE_ANALYSIS if found.cost < _FREE_ANALYSIS else -found.cost
            self._note_doomed(found.doomed)
            for barrier in found.barriers:
                self._graph.opened(barrier)
            for circle in found.cycles:
                way = " → ".join(repr(node.id) for node in (*circle.way, circle.way[0]))
                for node in circle.members:
                    self._decide(node, "dead", f"it waits in a circle: {way}", spread=False)
                self._spread_all(circle.members)
            self._resolve(found.unresolved)
            self._note_blocked(found.blocked)
            self._settle()

    def _is_time_to_look(self) -> bool:
        if self._look_at is not None and self.now >= self._look_at:
            return True
        if not self._is_changed:
            return False
        if self._credit >= 0:
            return True
        # The last look was long. It is paid for by messages that end, or by waiting.
        self._look_at = min(self._look_at or self.now + self._stall_grace, self.now + self._stall_grace)
        return False

    def _note_doomed(self, doomed: Sequence[Node]) -> None:
        known, self._doomed = self._doomed, {node.seq: node for node in doomed}
        for seq, node in known.items():
            if seq not in self._doomed:
                node.more().doomed_since = None
        for node in doomed:
            rare = node.more()
            if rare.doomed_since is None:
                rare.doomed_since = self.now

    def _resolve(self, unresolved: Sequence[tuple[Node, Sequence[str | Dependency]]]) -> None:
        """Deal with dependencies that nothing can satisfy, once their grace period is over."""
        due: list[Term] = []
        for node, dependencies in unresolved:
            assert node.rare is not None and node.rare.doomed_since is not None
            at = node.rare.doomed_since + self._stall_grace
            if at > self.now:
                self._look_at = at if self._look_at is None else min(self._look_at, at)
                continue
            case = node.case or self._graph.open_case(node, node.message.depends_on, self.now)
            due += [root for root in case.roots if root.word is None and root.dependency in dependencies]
        for root in due:
            self._graph.resolve(root)
        self._is_changed |= bool(due)

    def _note_blocked(self, blocked: Sequence[EpochTracker]) -> None:
        for epoch in self._quiet.values():
            was, epoch.is_blocked = epoch.is_blocked, epoch in blocked
            if epoch.is_blocked and not was:
                self._decisions.epochs.append(EpochEvent(epoch, "blocked"))

    # Decisions

    def take(self, limit: int) -> list[Seq]:
        """Return messages that may start now, in order. They count as running."""
        taken = self._schedule.take(limit)
        now = self.now
        for node in taken:
            node.since = now
        return [node.seq for node in taken]

    def drain(self) -> Decisions:
        """Return what was decided since the last time, and forget it."""
        decisions, self._decisions = self._decisions, Decisions()
        return decisions

    # Recovery

    def fold(self, fact: FactBody) -> None:
        """Learn a fact that a store recorded. One that is known already changes nothing."""
        handler = self._handlers().get(type(fact))
        assert handler is not None, f"unknown fact {fact!r}"
        handler(fact)

    def recovering(self) -> None:
        """Expect facts from the beginning: decide nothing before `CaughtUp`."""
        self._graph.is_recovering = True

    def _handlers(self) -> dict[type, Callable[[Any], object]]:
        return {
            EpochOpened: lambda fact: self.open_epoch(fact.record),
            EpochMarked: self._fold_mark,
            EpochForgotten: lambda fact: self.forget_epoch(fact.epoch.number),
            Accepted: self._fold_accepted,
            Leased: lambda fact: self.claim(fact.seqs, fact.token),
            Committed: lambda fact: self.commit(fact.seqs, fact.values),
            Ended: self.end,
            Waits: self._fold_waits,
            Provided: lambda fact: self.provide(fact.resource, fact.epoch),
            SessionEnded: self._fold_session,
            CaughtUp: self._fold_caught_up,
        }

    def _fold_mark(self, fact: EpochMarked) -> None:
        record = fact.record
        if record.key.number not in self.epochs:
            self.open_epoch(record)
        elif record.cancel_requested:
            self.cancel_epoch(record.key.number)
        elif record.state != "open":
            self.seal(record.key.number)

    def _fold_accepted(self, fact: Accepted[Any]) -> None:
        # Timeouts count from acceptance, which may be long ago.
        now, self.now = self.now, fact.at
        self.accept(fact.epoch.number, fact.seqs, fact.messages)
        self.now = max(now, fact.at)

    def _fold_waits(self, fact: Waits) -> None:
        node = self._nodes.get(fact.seq)
        if node is None:
            return
        if node.state is State.ENDED:
            if fact.run > node.run:
                self._revive([node])
                node.more().run = fact.run
                self._settle()
            return
        rare = node.more()
        rare.run, rare.attempts = fact.run, fact.attempt
        if fact.depends_on is not None:
            if node.state is State.READY:
                self.claim([fact.seq])
            if node.state is State.RUNNING:
                self.defer(fact.seq, fact.depends_on)
                rare.attempts = fact.attempt
            elif set(fact.depends_on) - set(rare.added):
                # It was deferred before this process learnt that its first dependencies are satisfied.
                rare.added = (*rare.added, *fact.depends_on)
                self._graph.open_case(node, (*node.message.depends_on, *rare.added), self.now)
        elif fact.not_before is not None:
            rare.retry_at = fact.not_before
            if node.state is State.READY:
                self.claim([fact.seq])
            if node.state is State.RUNNING:
                self.retry(fact.seq, fact.not_before, spent=False)
        else:
            self.release([fact.seq])

    def _fold_session(self, fact: SessionEnded) -> None:
        self.release(self._leases.pop(fact.token, ()))

    def _fold_caught_up(self, fact: CaughtUp) -> None:
        self._graph.is_recovering = False
        for epoch in self.epochs.values():
            self._touch(epoch)
            if epoch.is_completed:
                self._graph.epoch_changed(epoch)
            elif epoch.verdict is not None:
                self._condemn(epoch, epoch.verdict, "the epoch had been ended before")
        self._settle()

    # What follows from a fact

    def _settle(self) -> None:
        """Run waves until nothing changes."""
        self._is_changed = True
        if self._graph.is_recovering:
            return
        graph = self._graph
        while graph.freed or graph.disputed or self._touched or graph.barriers:
            self._free()
            self._look_at_epochs()
            disputed, graph.disputed = graph.disputed, []
            verdicts = [(case, case.judge()) for case in disputed if self._is_judged(case)]
            for case, verdict in verdicts:
                self._act(case, verdict)

    def _free(self) -> None:
        freed, self._graph.freed = self._graph.freed, []
        for node in freed:
            if node.state is State.WAITING:
                node.epoch.waiting -= 1
                self._make_ready(node)

    def _is_judged(self, case: Case) -> bool:
        case.is_queued = False
        return case.node.case is case and case.node.state in (State.WAITING, State.HELD)

    def _act(self, case: Case, verdict: Verdict) -> None:
        node = case.node
        if verdict == "ready":
            unmet = self._graph.unmet(case)
            if unmet:
                node.more().unmet = unmet
            self._graph.close_case(node)
            node.epoch.waiting -= 1
            self._touch(node.epoch)
            self._make_ready(node)
        elif verdict in ("wait", "hold"):
            state = State.HELD if verdict == "hold" else State.WAITING
            if node.state is not state:
                node.state = state
                node.since = self.now
        else:
            causes, epoch_causes = self._graph.causes(case)
            self._decide(node, _END_OF[verdict], self._why(case), causes, epoch_causes)

    def _why(self, case: Case) -> str:
        """Say in words what made a case end its message."""
        for root in case.roots:
            if root.word in (None, "run", "hold"):
                continue
            if root.resolved is not None:
                return f"nothing alive can bring {root.describe()}"
            if root.timed_out:
                return f"{root.describe()} did not come within {getattr(root.dependency, 'timeout', 0)} seconds"
            if root.status == "lost":
                return f"{root.describe()} does not exist and its epoch is completed"
            if isinstance(root, Gate):
                return f"too many failed of {root.describe()}"
            return f"{root.describe()} ended {root.status}"
        return ""

    def _look_at_epochs(self) -> None:
        """Open the barriers and complete the epochs that the present state allows to."""
        graph = self._graph
        touched, self._touched = self._touched, {}
        new, graph.barriers = graph.barriers, []
        for epoch, barrier in new:
            if epoch.number not in touched:
                self._open_if_clear(epoch, barrier)
        for epoch in touched.values():
            for barrier in epoch.barriers.values():
                self._open_if_clear(epoch, barrier)
            if epoch.is_due:
                self._complete(epoch)
            if epoch.is_quiet:
                self._quiet[epoch.number] = epoch
            elif self._quiet.pop(epoch.number, None) is not None:
                epoch.is_blocked = False

    def _open_if_clear(self, epoch: EpochTracker, barrier: Barrier) -> None:
        if barrier.is_open or not epoch.is_sealed or not barrier.waiters:
            return
        assert epoch.kinds is not None
        if not any(self._derivations.may_bring(kind, barrier.kind) for kind in epoch.kinds):
            self._graph.opened(barrier)

    def _complete(self, epoch: EpochTracker) -> None:
        if epoch.state == "repairing":
            epoch.revision += 1
        epoch.state = "completed"
        self._graph.epoch_changed(epoch)
        self._decisions.epochs.append(EpochEvent(epoch, "completed"))

    def _make_ready(self, node: Node) -> None:
        """Let a message whose dependencies are satisfied start, at its time."""
        not_before = node.message.not_before
        if node.rare is not None and node.rare.retry_at is not None:
            not_before = node.rare.retry_at
        if not_before is not None and not_before > self.now:
            self._delay(node, not_before)
        else:
            node.state = State.READY
            node.since = self.now
            self._schedule.add(node)

    def _delay(self, node: Node, until: float) -> None:
        node.state = State.DELAYED
        node.since = self.now
        self._timers.set_for(node, until, TimerKind.START)

    def _wait(self, node: Node, depends_on: Iterable[str | Dependency]) -> None:
        node.state = State.WAITING
        node.since = self.now
        node.epoch.waiting += 1
        self._touch(node.epoch)
        self._graph.open_case(node, depends_on, self.now)

    def _fault(self, node: Node, depends_on: Sequence[str | Dependency], deferrals: int) -> str | None:
        if not depends_on:
            return "it was deferred without saying what for"
        if deferrals > self._max_deferrals:
            return f"it was deferred more than {self._max_deferrals} times"
        try:
            node.message.check_dependencies(depends_on)
        except InvalidMessage as error:
            return f"it was deferred in vain: {error}"
        return None

    def _stop_if_over(self, node: Node) -> None:
        """End a message that would go on although its time, or its epoch's, is over."""
        expires_at = node.message.expires_at
        if node.epoch.verdict is not None:
            self._decide(node, node.epoch.verdict, "the epoch was ended while it ran")
        elif expires_at is not None and expires_at <= self.now and node.run == 0:
            self._decide(node, "expired", "its expires_at passed before it could run again")

    def _condemn(self, epoch: EpochTracker, end: BadEnd, reason: str) -> None:
        """End all that has not ended and is not being committed, and all that comes later."""
        epoch.verdict = end
        ended = [node for node in epoch.pending() if node.state is not State.COMMITTING]
        for node in ended:
            self._decide(node, end, reason, spread=False)
        self._spread_all(ended)
        self._touch(epoch)

    def _decide(
        self,
        node: Node,
        end: BadEnd,
        reason: str,
        causes: frozenset[Seq] = frozenset(),
        epoch_causes: frozenset[int] = frozenset(),
        *,
        spread: bool = True,
    ) -> None:
        """End a message by a decision of the core."""
        if node.state is State.RUNNING:
            self._decisions.stop.append(node.seq)
        self._decisions.ended.append(Decided(node.seq, end, causes, epoch_causes, reason))
        self._end(node, end, causes, epoch_causes, reason, spread=spread)

    def _end(
        self,
        node: Node,
        end: BadEnd,
        causes: frozenset[Seq],
        epoch_causes: frozenset[int],
        reason: str,
        *,
        spread: bool = True,
    ) -> None:
        self._retire(node)
        node.end = end
        node.epoch.ends[end] += 1
        rare = node.more()
        rare.causes, rare.epoch_causes, rare.reason = causes, epoch_causes, reason
        self._touch(node.epoch)
        if spread:
            self._graph.ended(node, self.now)

    def _spread_all(self, nodes: Iterable[Node]) -> None:
        """Tell the waiters of messages that ended together, after all of them have."""
        for node in nodes:
            self._graph.ended(node, self.now)

    def _retire(self, node: Node) -> None:
        """Take a message out of everything that unfinished messages are in."""
        epoch, state = node.epoch, node.state
        node.state = State.ENDED
        node.since = self.now
        epoch.unfinished -= 1
        self._credit += 1
        if state is State.WAITING or state is State.HELD:
            epoch.waiting -= 1
            self._graph.close_case(node)
        elif node.message.key is not None:
            self._schedule.leave(node)
        if epoch.kinds is not None:
            epoch.count_kind(node, -1)
        if node.rare is not None:
            self._timers.drop_all(node)

    def _running(self, seq: Seq) -> Node | None:
        node = self._nodes.get(seq)
        return node if node is not None and node.state is State.RUNNING else None

    def _touch(self, epoch: EpochTracker) -> None:
        self._touched[epoch.number] = epoch

    def _epoch(self, number: int) -> EpochTracker:
        epoch = self.epochs.get(number)
        if epoch is None:
            raise Refused(f"there is no epoch {number}: it was never opened, or it was forgotten")
        return epoch
