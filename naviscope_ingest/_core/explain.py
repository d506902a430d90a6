"""Why is it not done? What holds a message or an epoch, what would release it, and what waits for it.

Every message that has not ended gets at least one reason, and every reason is read off the state that decides, so an
explanation cannot disagree with what the core does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, TypeAlias

from attrs import frozen

from naviscope_ingest._core.core import Core
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.nodes import Ghost, Node, State
from naviscope_ingest._core.terms import Case, Group, Term
from naviscope_spi import Dependency, End, OnBarrier, OnEpoch, OnResource, Seq

__all__ = [
    "EpochExplanation",
    "MessageExplanation",
    "Reason",
    "ReasonKind",
    "Whereabouts",
    "explain_epoch",
    "explain_message",
]

ReasonKind: TypeAlias = Literal[
    "dependency",
    "worse",
    "held",
    "timer",
    "lane",
    "cap",
    "rate",
    "pause",
    "breaker",
    "retry-after",
    "priority",
    "queue",
    "running",
    "committing",
    "ended",
    "dropped",
    "unsealed",
]

Whereabouts: TypeAlias = Literal["claimed", "answered"]
"""Where a started message is that no executor runs at the moment: before that, or after it."""

_NOWHERE: Mapping[Seq, Whereabouts] = {}
_SHOWN = 20
"""How many reasons and dependents are listed; the rest is counted."""


@frozen
class Reason:
    """One thing that holds a message.

    Attributes:
        kind: what sort of thing: an open dependency; a bad end that waits for a worse one; a parent that must be
            replayed or discarded; a time; a lane; a cap, a rate, a pause, an open breaker or a service that asked for
            a pause; more urgent messages; other ready messages; a worker; the sink; its end.
        text: the reason in words.
        release: what would release it, in words.
        dependency: the dependency concerned, if any.
        blocker: the message concerned, if it is known.
        until: the time concerned, if any: the earliest at which this reason can end.
    """

    kind: ReasonKind
    text: str
    release: str = ""
    dependency: str | Dependency | None = None
    blocker: Seq | None = None
    until: float | None = None


@frozen
class MessageExplanation:
    """Why a message has not ended, or how it did.

    Attributes:
        seq: its place in the store; not kept of one that committed.
        id: its id.
        epoch: the name of its epoch.
        state: where it stands.
        end: how it ended, if it has.
        since: when it came into this state, if that is kept.
        reasons: what holds it.
        more_reasons: how many are not listed.
        waiting: ids of messages that wait for it, with the names of their epochs.
        more_waiting: how many are not listed.
    """

    seq: Seq | None
    id: str
    epoch: str
    state: State
    end: End | None
    since: float | None
    reasons: Sequence[Reason]
    more_reasons: int
    waiting: Sequence[tuple[str, str]]
    more_waiting: int

    @classmethod
    def committed(cls, message_id: str, epoch: str) -> MessageExplanation:
        """Say of a message that it committed; nothing else is kept of it."""
        done = Reason("ended", "it committed")
        return cls(None, message_id, epoch, State.ENDED, "committed", None, [done], 0, (), 0)

    @classmethod
    def dropped(cls, message_id: str, epoch: str) -> MessageExplanation:
        """Say of a message that it was left out."""
        left_out = Reason(
            "dropped", "it was left out when it was submitted: too much was to be done", "submit it again"
        )
        return cls(None, message_id, epoch, State.ENDED, None, None, [left_out], 0, (), 0)


@frozen
class EpochExplanation:
    """Why an epoch has not completed.

    Attributes:
        name: its name.
        state: open, sealed, completed or repairing.
        is_blocked: whether all that remains waits for a person or the world.
        counts: how many messages are in each state, and how many ended in each way.
        reasons: what holds it, the most frequent first, with how many messages each holds.
        examples: some of the messages that hold it, those that others wait for first.
    """

    name: str
    state: str
    is_blocked: bool
    counts: dict[str, int]
    reasons: Sequence[tuple[str, int]]
    examples: Sequence[MessageExplanation]


def explain_message(core: Core, node: Node, whereabouts: Mapping[Seq, Whereabouts] = _NOWHERE) -> MessageExplanation:
    """Say why a message has not ended.

    Args:
        core: where it lives.
        node: the message.
        whereabouts: the started messages that no executor runs at the moment.
    """
    reasons = _Reasons(core, whereabouts).of(node)
    waiting = list(dict.fromkeys((child.id, child.epoch.name) for child in _children(node)))
    return MessageExplanation(
        seq=node.seq,
        id=node.id,
        epoch=node.epoch.name,
        state=node.state,
        end=node.end,
        since=node.since,
        reasons=reasons[:_SHOWN],
        more_reasons=max(0, len(reasons) - _SHOWN),
        waiting=waiting[:_SHOWN],
        more_waiting=max(0, len(waiting) - _SHOWN),
    )


def explain_epoch(
    core: Core,
    epoch: EpochTracker,
    whereabouts: Mapping[Seq, Whereabouts] = _NOWHERE,
    *,
    looked_at: int = 10_000,
) -> EpochExplanation:
    """Say why an epoch has not completed.

    Args:
        core: where it lives.
        epoch: the epoch.
        whereabouts: the started messages that no executor runs at the moment.
        looked_at: how many of its messages are asked; the rest is only counted.
    """
    asked = list(islice(epoch.pending(), looked_at))
    reasons = _Reasons(core, whereabouts)
    found: Counter[str] = Counter()
    if not epoch.is_sealed:
        found["the epoch is not sealed: more messages may come"] = 1
    if epoch.expected:
        found["derived messages of a committed parent are still coming in"] = sum(epoch.expected.values())
    for node in asked:
        found.update({_general(reason) for reason in reasons.of(node)})
    asked.sort(key=lambda node: (-len(node.all_waiters()), node.seq))
    return EpochExplanation(
        name=epoch.name,
        state=epoch.state,
        is_blocked=epoch.is_blocked,
        counts=epoch.counts(),
        reasons=found.most_common(_SHOWN),
        examples=[explain_message(core, node, whereabouts) for node in asked[:_SHOWN]],
    )


def _general(reason: Reason) -> str:
    """Name a reason so that messages with the same one fall together."""
    if reason.kind == "dependency" and reason.dependency is not None:
        each = reason.dependency
        return f"waiting for {f'message {each!r}' if isinstance(each, str) else each.describe()}"
    if reason.kind == "timer":
        return "waiting for a time"
    if reason.kind == "priority":
        return "more urgent messages go first"
    return reason.text


class _Reasons:
    """Finds what holds a message."""

    def __init__(self, core: Core, whereabouts: Mapping[Seq, Whereabouts]) -> None:
        self._core = core
        self._whereabouts = whereabouts
        self._graph = core.graph

    def of(self, node: Node) -> list[Reason]:
        if node.state in (State.WAITING, State.HELD):
            return list(self._counting(node) if node.case is None else self._waiting(node.case))
        if node.state is State.DELAYED:
            return [self._delayed(node)]
        if node.state is State.READY:
            return list(self._ready(node))
        if node.state is State.RUNNING:
            return [self._running(node)]
        if node.state is State.COMMITTING:
            return [self._committing()]
        rare = node.rare
        text = f"it ended {node.end}: {rare.reason if rare is not None else ''}".rstrip(": ")
        is_letter = node.end in ("dead", "expired") and not (rare is not None and rare.discarded)
        return [Reason("ended", text, "intake.dead_letters shows its dead letter, and replays it" if is_letter else "")]

    def _running(self, node: Node) -> Reason:
        where = self._whereabouts.get(node.seq)
        if where == "claimed":
            return Reason("queue", "it is claimed and waits for a worker", "a worker is free")
        if where is None:
            return Reason("running", "its executor runs", "the executor answers")
        if self._core.sink_hold[0]:
            return self._committing()
        return Reason("committing", "its executor has answered", "the next batch is committed")

    def _committing(self) -> Reason:
        trouble, until = self._core.sink_hold
        if not trouble:
            return Reason("committing", "its outcome is with the sink", "the sink commits")
        return Reason("breaker", f"its outcome waits: {trouble}", "the sink is tried again and commits", until=until)

    def _counting(self, node: Node) -> Iterator[Reason]:
        passing = Case(node, node.since)
        for each in node.message.depends_on:
            if each not in node.epoch.done:
                yield self._open(Term(passing, each))

    def _waiting(self, case: Case) -> Iterator[Reason]:
        has_open = case.open > 0
        for root in case.roots:
            if root.word is None:
                for leaf in root.leaves():
                    yield self._open(leaf)
            elif root.word == "hold":
                yield self._held(root)
            elif root.word != "run" and has_open:
                yield Reason(
                    "worse",
                    f"{root.complain()}: it will {root.word} unless an open dependency says worse",
                    "its other dependencies end",
                    root.dependency,
                )

    def _open(self, leaf: Term) -> Reason:
        """Say how the target of an open dependency stands."""
        dependency = leaf.dependency
        target = self._graph.target(leaf)
        if isinstance(target, Node):
            text, release = f"{leaf.describe()} is {target.state.value}", "it commits"
        elif isinstance(target, EpochTracker):
            text, release = f"{leaf.describe()} is {target.state}, {target.unfinished} unfinished", "it completes"
        elif isinstance(dependency, OnResource):
            text, release = self._resource(leaf, dependency), "somebody provides it"
        elif isinstance(dependency, OnBarrier):
            text, release = self._barrier(leaf, dependency)
        elif self._graph.home(leaf) is None:
            text, release = f"{leaf.describe()}: there is no such epoch", "an epoch of that name is opened"
        else:
            text, release = f"{leaf.describe()} was never submitted", "it is submitted and commits"
        blocker = target.seq if isinstance(target, Node) else None
        return Reason("dependency", text, release, dependency, blocker)

    def _resource(self, leaf: Term, wanted: OnResource) -> str:
        best = self._graph.resources.best(leaf.case.node.epoch.number, wanted.name)
        return f"{leaf.describe()} " + ("was never provided" if best is None else f"is at version {best}")

    def _barrier(self, leaf: Term, wanted: OnBarrier) -> tuple[str, str]:
        epoch = leaf.case.node.epoch
        left = (epoch.kinds or {}).get(wanted.kind, 0)
        if not epoch.is_sealed:
            return f"{leaf.describe()} is closed: the epoch is not sealed", "the epoch is sealed"
        if left:
            return f"{leaf.describe()} is closed: {left} of its kind are unfinished", "they end"
        return f"{leaf.describe()} is closed: unfinished messages may derive its kind", "they end"

    def _held(self, root: Term) -> Reason:
        release = "replay or discard the dead letter"
        if root.timed_out:
            release = "it comes after all, or the message is cancelled"
        elif isinstance(root, Group):
            release = "replay or discard the dead letters among them"
        elif isinstance(root.dependency, OnEpoch):
            release = "repair that epoch by a replay"
        target = None if isinstance(root, Group) else self._graph.target(root)
        return Reason(
            "held",
            f"held: {root.complain()}",
            release,
            root.dependency,
            target.seq if isinstance(target, Node) else None,
        )

    def _delayed(self, node: Node) -> Reason:
        retry_at = None if node.rare is None else node.rare.retry_at
        if retry_at is not None:
            return Reason("timer", f"it is tried again at {retry_at:.3f}", "that time comes", until=retry_at)
        until = node.message.not_before
        return Reason("timer", f"it may not start before {until:.3f}", "that time comes", until=until)

    def _ready(self, node: Node) -> Iterator[Reason]:
        core, key = self._core, node.message.key
        lane = None if key is None else core.schedule.lanes.get(key)
        if lane is not None and lane.next() is not node:
            ahead = lane.holder or lane.head()
            assert ahead is not None
            text = f"its lane {key!r} is taken by message {ahead.id!r}"
            yield Reason("lane", text, "that message ends", blocker=ahead.seq)
        holds = core.control.holds_of(node)
        for hold in holds:
            yield Reason(hold.kind, hold.text, hold.release, until=hold.until)
        if holds or (lane is not None and lane.next() is not node):
            return
        urgent = core.schedule.most_urgent_before(node)
        if urgent is not None:
            text = f"messages of priority {urgent:g} go first; its own is {node.message.priority}"
            yield Reason("priority", text, "they have started, or it has waited long enough")
        else:
            yield Reason("queue", "it is ready and waits for a worker", "a worker is free and its turn comes")


def _children(node: Node | Ghost) -> Iterator[Node]:
    """Yield the messages that wait for one."""
    for waiter in node.waiters if isinstance(node, Ghost) else node.all_waiters():
        if isinstance(waiter, Term):
            if waiter.is_live:
                yield waiter.case.node
        elif waiter.case is None and waiter.state is State.WAITING:
            yield waiter
