"""Replay: a dead letter lives again, and so does everything that its end took down.

Every end but commit records its causes, a set. The closure over causes is revived, across epochs; each revived message
is then judged again by the present ends of its parents. (Reviving only direct children leaves grandchildren dead whose
cause is gone.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.nodes import Node, State
from naviscope_ingest._core.terms import Term
from naviscope_ingest._core.timers import TimerKind
from naviscope_ingest._core.transitions import EpochEvent, Transitions
from naviscope_spi import Seq

__all__ = ["closure", "revive"]


def closure(roots: Iterable[Node]) -> list[Node]:
    """Return messages and all whose ends follow from theirs, in order of acceptance."""
    found: dict[Seq, Node] = {root.seq: root for root in roots}
    epochs: dict[int, None] = {}
    todo = list(found.values())
    while todo:
        node = todo.pop()
        waiters: list[Any] = list(node.all_waiters())
        if node.epoch.number not in epochs:
            epochs[node.epoch.number] = None
            waiters += node.epoch.waiters or ()
        for waiter in waiters:
            child: Node = waiter.case.node if isinstance(waiter, Term) else waiter
            if child.seq not in found and _follows(child, node):
                found[child.seq] = child
                todo.append(child)
    return sorted(found.values(), key=lambda node: node.seq)


def _follows(child: Node, parent: Node) -> bool:
    rare = child.rare
    if child.state is not State.ENDED or rare is None:
        return False
    return parent.seq in rare.causes or parent.epoch.number in rare.epoch_causes


def revive(transitions: Transitions, nodes: Sequence[Node]) -> None:
    """Bring ended messages back to life, all of them before any is judged."""
    for node in nodes:
        _reset(node, transitions.now)
        _reopen(transitions, node.epoch, node.message.kind)
    for node in nodes:
        transitions.wait(node, node.message.depends_on)
        if node.expires_at is not None:
            transitions.timers.set(node.expires_at, TimerKind.EXPIRY, node.seq)
    for node in nodes:
        transitions.graph.reopened(node)


def _reset(node: Node, now: float) -> None:
    """Begin a new run."""
    epoch, rare = node.epoch, node.more()
    assert node.end is not None
    epoch.ends[node.end] -= 1
    epoch.discarded -= rare.discarded
    epoch.unfinished += 1
    node.end = None
    node.state = State.WAITING
    if epoch.kinds is not None:
        epoch.count_kind(node, 1)
    rare.run += 1
    rare.attempts = rare.deferrals = 0
    rare.added, rare.unmet, rare.reason = (), (), ""
    rare.causes, rare.epoch_causes = frozenset(), frozenset()
    rare.discarded, rare.retry_at, rare.doomed_since = False, None, None
    rare.has_outlived = node.message.expires_at is not None and node.message.expires_at <= now


def _reopen(transitions: Transitions, epoch: EpochTracker, kind: str) -> None:
    """Let an epoch take back a message of some kind."""
    epoch.verdict = None
    epoch.was_cancelled = False
    for barrier in epoch.barriers.values():
        # What it may bring again must be able to commit, although the barrier had opened.
        if barrier.is_open and transitions.derivations.may_bring(kind, barrier.kind):
            barrier.is_open = False
    if epoch.is_completed:
        epoch.state = "repairing"
        transitions.unfinished[epoch.number] = epoch
        transitions.graph.epoch_changed(epoch)
        if not transitions.graph.is_recovering:
            transitions.decisions.epochs.append(EpochEvent(epoch, "repairing"))
    transitions.touch(epoch)
