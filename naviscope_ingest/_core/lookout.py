"""When to look for what is stuck, and what to do about what is found.

A look goes over every waiting message of the quiet epochs, so it must be rare when they are many: a million messages
that wait for a person would make every other message slow. A long look has to be paid for, by messages that end or by a
grace period that passes; a short one is free.
"""

from __future__ import annotations

from collections.abc import Sequence

from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.nodes import Node
from naviscope_ingest._core.stuck import Circle, analyse
from naviscope_ingest._core.terms import Term
from naviscope_ingest._core.transitions import EpochEvent, Transitions
from naviscope_spi import Dependency

__all__ = ["Lookout"]

_FREE = 10_000
"""A look at so many messages and dependencies costs nothing worth saving."""


class Lookout:
    """Deals with what nothing alive can release.

    Args:
        transitions: the messages.
        grace: seconds before unresolvable dependencies are dealt with.

    Attributes:
        due: when to look again although nothing happens.
    """

    def __init__(self, transitions: Transitions, grace: float) -> None:
        self._transitions = transitions
        self._grace = grace
        # How many messages must have ended before the next look is paid for.
        self._paid_at = 0
        self.due: float | None = None

    def look(self) -> None:
        """Open barriers, break circles and resolve the unresolvable, until there is nothing left to do."""
        transitions = self._transitions
        if not transitions.quiet:
            self.due = None
        while transitions.quiet and self._is_time():
            transitions.is_changed = False
            self.due = None
            found = analyse(transitions.graph, transitions.derivations, transitions.quiet.values())
            self._paid_at = transitions.ended + (found.cost if found.cost > _FREE else 0)
            self._note_doomed(found.doomed)
            for barrier in found.barriers:
                transitions.graph.opened(barrier)
            for circle in found.cycles:
                self._break(circle)
            if self._resolve(found.unresolved) or found.barriers or found.cycles:
                transitions.settle()
            else:
                self._note_blocked(found.blocked)

    def _is_time(self) -> bool:
        transitions = self._transitions
        if self.due is not None and transitions.now >= self.due:
            return True
        if not transitions.is_changed:
            return False
        if transitions.ended >= self._paid_at:
            return True
        later = transitions.now + self._grace
        self.due = later if self.due is None else min(self.due, later)
        return False

    def _note_doomed(self, doomed: Sequence[Node]) -> None:
        found = {node.seq for node in doomed}
        for epoch in self._transitions.quiet.values():
            epoch.pardon(except_for=found)
        for node in doomed:
            rare = node.more()
            if rare.doomed_since is None:
                rare.doomed_since = self._transitions.now
                if node.epoch.doomed is None:
                    node.epoch.doomed = []
                node.epoch.doomed.append(node)

    def _note_blocked(self, blocked: Sequence[EpochTracker]) -> None:
        for epoch in self._transitions.quiet.values():
            was, epoch.is_blocked = epoch.is_blocked, epoch in blocked
            if epoch.is_blocked and not was:
                self._transitions.decisions.epochs.append(EpochEvent(epoch, "blocked"))

    def _break(self, circle: Circle) -> None:
        way = " → ".join(repr(node.id) for node in (*circle.way, circle.way[0]))
        self._transitions.end_together(circle.members, "dead", f"it waits in a circle: {way}")

    def _resolve(self, unresolved: Sequence[tuple[Node, Sequence[str | Dependency]]]) -> bool:
        """Deal with dependencies that nothing can bring, once their grace period is over; tell whether any was due."""
        graph, now = self._transitions.graph, self._transitions.now
        due: list[Term] = []
        for node, dependencies in unresolved:
            assert node.rare is not None
            assert node.rare.doomed_since is not None
            at = node.rare.doomed_since + self._grace
            if at <= now:
                roots = graph.case_of(node).roots
                due += [root for root in roots if root.word is None and root.dependency in dependencies]
            elif self.due is None or at < self.due:
                self.due = at
        for root in due:
            graph.resolve(root)
        return bool(due)
