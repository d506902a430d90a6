"""What nothing alive can release: one fixpoint over the waiting messages of quiet epochs.

An epoch is quiet when it is sealed and all that is unfinished in it waits or is held. Only then is there anything to
find; everything in a livelier epoch counts as alive. Over the waiting messages of quiet epochs we compute how each
could still be released, in three steps that build on each other:

1. by *activity*: a livelier epoch, or a timeout that will fire;
2. by *the world*: a held message that somebody may replay, an external resource, a dependency that is told to wait;
3. by *a barrier* that could be opened now.

A message is released in a step if one of its open dependencies leads to something that is. An unknown id, a resource or
a barrier leads to the rest of its epoch, since any other message there may bring it. What is left is doomed.

- An epoch with neither active nor doomed messages is idle: its barriers may open, those with the fewest possible
  sources first, since a source that is left may still derive into the kind. A barrier stays shut for a message that
  says it derives into the kind and waits for a person or the world; one that merely does not say is passed over.
- Doomed messages that wait for each other in a circle die at once, and the circle is named. Some of the doomed are
  hopeful instead: they only wait for something unresolvable, or for others that do, and will move when that is dealt
  with. Circles are looked for among the rest.
- When no circle is left, the unresolvable dependencies are dealt with after a grace period.

Rejected: a separate rule for each kind of dependency (each rule was blind to what another would release), and failing
everything that is idle (it kills messages that wait for a person).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import TypeAlias

from attrs import define, field, frozen

from naviscope_ingest._core.barriers import Barrier, Derivations
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.graph import Graph, root_of
from naviscope_ingest._core.nodes import Node, State
from naviscope_ingest._core.terms import Case, Group, Term, unresolved_word
from naviscope_spi import Dependency, OnBarrier, OnResource, Seq

__all__ = ["Circle", "Findings", "Hope", "analyse"]


class Hope(IntEnum):
    """How a waiting message could still be released; the least is the best."""

    ACTIVITY = 0
    WORLD = 1
    BARRIER = 2
    NONE = 3


@frozen
class Circle:
    """Messages that wait for each other: all of them, and one way round."""

    members: list[Node]
    way: list[Node]


@define
class Findings:
    """What an analysis found. At most one of the first three is filled.

    Attributes:
        barriers: barriers to open now.
        cycles: circles of messages that wait for each other.
        unresolved: messages with the dependencies that nothing alive can release.
        doomed: every message that nothing alive can release.
        blocked: epochs in which all that remains waits for a person or the world.
        cost: how many messages and dependencies were looked at.
    """

    barriers: list[Barrier] = field(factory=list)
    cycles: list[Circle] = field(factory=list)
    unresolved: list[tuple[Node, list[str | Dependency]]] = field(factory=list)
    doomed: list[Node] = field(factory=list)
    blocked: list[EpochTracker] = field(factory=list)
    cost: int = 0


def analyse(graph: Graph, derivations: Derivations, quiet: Iterable[EpochTracker]) -> Findings:
    """Find what is to be done about messages that wait in quiet epochs."""
    survey = _Survey(graph, list(quiet))
    found = Findings(cost=survey.cost)
    found.doomed = [node for node in survey.waiting if survey.hope[node.seq] is Hope.NONE]
    found.barriers = _barriers_to_open(survey, derivations)
    if found.barriers:
        return found
    if found.doomed:
        doom = _Doom(survey, found.doomed)
        found.cycles = doom.circles()
        if not found.cycles:
            found.unresolved = doom.unresolved()
    restless = {node.epoch.number for node in survey.waiting if survey.hope[node.seq] is not Hope.WORLD}
    found.blocked = [epoch for epoch in survey.quiet if epoch.number not in restless]
    return found


# What a message may wait for: a message, every message of a kind in an epoch, every message of an epoch.
_Key: TypeAlias = tuple[int, str | None] | Seq


class _Survey:
    """How the waiting messages of quiet epochs could still be released."""

    def __init__(self, graph: Graph, quiet: list[EpochTracker]) -> None:
        self.graph = graph
        self.quiet = quiet
        self.waiting = [node for epoch in quiet for node in epoch.pending() if node.state is State.WAITING]
        self.has_held = {epoch.number for epoch in quiet if any(n.state is State.HELD for n in epoch.pending())}
        self.hope: dict[Seq, Hope] = {}
        self.cost = len(self.waiting)
        self._spread()

    def roots(self, node: Node) -> list[Term]:
        """Return the open dependencies of a waiting message.

        A message that only counts gets terms for the moment: it may be one of a million that need no case.
        """
        case = node.case
        if case is None:
            passing = Case(node, node.since)
            done = node.epoch.done
            return [Term(passing, each) for each in node.message.depends_on if each not in done]
        return [root for root in case.roots if root.word is None]

    def key(self, term: Term) -> _Key | None:
        """Return what an open leaf waits for, if it exists."""
        target = self.graph.target(term)
        if isinstance(target, Node):
            return target.seq
        if isinstance(target, EpochTracker):
            return (target.number, None)
        if isinstance(term.dependency, OnBarrier):
            return (term.case.node.epoch.number, term.dependency.kind)
        return None

    def _spread(self) -> None:
        """Find for each waiting message how it could be released, the best way first."""
        seeds: dict[Hope, list[Node]] = {Hope.ACTIVITY: [], Hope.WORLD: [], Hope.BARRIER: []}
        followers: dict[Seq, list[Node]] = {}
        onlookers: dict[int, list[Node]] = {}
        for node in self.waiting:
            for term in (leaf for root in self.roots(node) for leaf in root.leaves()):
                self.cost += 1
                hope = self._own_hope(term)
                if hope is not None:
                    seeds[hope].append(node)
                target = self.graph.target(term)
                home = self.graph.home(term)
                if isinstance(target, Node):
                    followers.setdefault(target.seq, []).append(node)
                elif home is not None:
                    onlookers.setdefault(home.number, []).append(node)
        for hope, nodes in seeds.items():
            self._flood(hope, nodes, followers, onlookers)
        for node in self.waiting:
            self.hope.setdefault(node.seq, Hope.NONE)

    def _flood(
        self, hope: Hope, todo: list[Node], followers: dict[Seq, list[Node]], onlookers: dict[int, list[Node]]
    ) -> None:
        while todo:
            node = todo.pop()
            if node.seq in self.hope:
                continue
            self.hope[node.seq] = hope
            todo.extend(followers.get(node.seq, ()))
            # One member of the epoch suffices for all who look on.
            todo.extend(onlookers.pop(node.epoch.number, ()))

    def _own_hope(self, term: Term) -> Hope | None:
        """Return how a leaf is released by itself, not through another waiting message."""
        root = root_of(term)
        dependency = term.dependency
        if not isinstance(root.dependency, str) and root.dependency.timeout is not None and not root.timed_out:
            return Hope.ACTIVITY
        home = self.graph.home(term)
        if home is not None and not home.is_completed and not home.is_quiet:
            return Hope.ACTIVITY
        if unresolved_word(root) is None or (isinstance(dependency, OnResource) and dependency.external):
            return Hope.WORLD
        target = self.graph.target(term)
        if isinstance(target, Node):
            return Hope.WORLD if target.state is State.HELD else None
        if home is not None and home.number in self.has_held:
            return Hope.WORLD
        if isinstance(dependency, OnBarrier) and home is not None and not home.has_kind(dependency.kind):
            return Hope.BARRIER
        return None


def _watchers(survey: _Survey, nodes: Iterable[Node]) -> dict[_Key, list[Term]]:
    """Return the leaves that wait for each thing."""
    watchers: dict[_Key, list[Term]] = {}
    for node in nodes:
        for root in survey.roots(node):
            for leaf in root.leaves():
                key = survey.key(leaf)
                if key is not None:
                    watchers.setdefault(key, []).append(leaf)
    return watchers


def _keys_of(node: Node) -> tuple[_Key, _Key, _Key]:
    number = node.epoch.number
    return node.seq, (number, node.message.kind), (number, None)


# Barriers of idle epochs


def _barriers_to_open(survey: _Survey, derivations: Derivations) -> list[Barrier]:
    """Return the barriers with the fewest possible sources left, of epochs that are idle."""
    busy = {node.epoch.number for node in survey.waiting if survey.hope[node.seq] in (Hope.ACTIVITY, Hope.NONE)}
    candidates = [
        (epoch, barrier)
        for epoch in survey.quiet
        if epoch.number not in busy
        for barrier in epoch.barriers.values()
        if not barrier.is_open and not epoch.has_kind(barrier.kind) and any(map(_is_awaited, barrier.waiters))
    ]
    if not candidates:
        return []
    watchers = _watchers(survey, survey.waiting)
    sources: dict[int, list[Barrier]] = {}
    for epoch, barrier in candidates:
        behind = _behind(epoch, barrier.kind, watchers)
        outside = [node for node in epoch.pending() if node.seq not in behind]
        if not any(_keeps_shut(survey, node, barrier.kind, derivations) for node in outside):
            count = sum(derivations.may_bring(node.message.kind, barrier.kind) for node in outside)
            sources.setdefault(count, []).append(barrier)
    return sources[min(sources)] if sources else []


def _keeps_shut(survey: _Survey, node: Node, kind: str, derivations: Derivations) -> bool:
    """Tell whether a message that waits for a person or the world says that it may derive into the kind."""
    is_patient = node.state is State.HELD or survey.hope.get(node.seq) is Hope.WORLD
    return is_patient and derivations.declares(node.message.kind, kind)


def _is_awaited(term: Term) -> bool:
    """Tell whether a message still waits for this leaf: it is live, and open up to its root."""
    if not term.is_live:
        return False
    while term.status is None and term.up is not None:
        term = term.up
    return term.status is None and term.word is None


def _behind(epoch: EpochTracker, kind: str, watchers: dict[_Key, list[Term]]) -> set[Seq]:
    """Return the messages that cannot move before the barrier opens."""
    behind: set[Seq] = set()
    stopped: set[int] = set()
    todo: deque[_Key] = deque([(epoch.number, kind)])
    while todo:
        for leaf in watchers.get(todo.popleft(), ()):
            node = leaf.case.node
            if node.seq not in behind and _stops(leaf, stopped):
                behind.add(node.seq)
                seq, same_kind, same_epoch = _keys_of(node)
                todo += (seq, same_kind, same_epoch) if node.epoch is epoch else (seq, same_epoch)
    return behind


def _stops(term: Term, stopped: set[int]) -> bool:
    """Note that a leaf waits for the barrier; tell whether its root, and so its message, does by now."""
    stopped.add(id(term))
    group = term.up
    if group is None:
        return True
    left = sum(member.status is None and id(member) not in stopped for member in group.members)
    return group.satisfied + left < group.need and _stops(group, stopped)


# What nothing alive can release


class _Doom:
    """The doomed messages: which of them move once the unresolvable is dealt with, and which go in circles."""

    def __init__(self, survey: _Survey, doomed: list[Node]) -> None:
        self._survey = survey
        self._doomed = doomed
        # The terms of counting messages are made anew each time they are asked for, so they are asked for once.
        self._roots = {node.seq: survey.roots(node) for node in doomed}
        self._hopeful: set[Seq] = set()
        self._moving: set[int] = set()
        self._find_hopeful()

    def circles(self) -> list[Circle]:
        """Return the circles that no hope leads out of."""
        lost = {node.seq: node for node in self._doomed if node.seq not in self._hopeful}
        edges: dict[_Key, list[_Key]] = {}
        for seq, node in lost.items():
            edges[seq] = [key for root in self._roots[seq] if id(root) not in self._moving for key in self._ways(root)]
            for key in _keys_of(node)[1:]:
                edges.setdefault(key, []).append(seq)
        return [
            Circle(
                members=[lost[key] for key in circle if not isinstance(key, tuple)],
                way=[lost[key] for key in _way_round(circle, edges) if not isinstance(key, tuple)],
            )
            for circle in _circles(list(lost), edges)
        ]

    def unresolved(self) -> list[tuple[Node, list[str | Dependency]]]:
        """Return the messages that wait for something that does not exist, and for what."""
        found = self._that_wait(self._is_unresolvable)
        # Otherwise groups are left that each have another way out, and every way leads to another such group.
        return found or self._that_wait(lambda root: any(map(self._is_unresolvable, root.leaves())))

    def _that_wait(self, test: Callable[[Term], bool]) -> list[tuple[Node, list[str | Dependency]]]:
        found = [(node, [root.dependency for root in self._roots[node.seq] if test(root)]) for node in self._doomed]
        return [(node, dependencies) for node, dependencies in found if dependencies]

    def _find_hopeful(self) -> None:
        """Find the messages all of whose dependencies lead to something unresolvable, and nowhere else."""
        still = {node.seq: len(self._roots[node.seq]) for node in self._doomed}
        unfinished: dict[_Key, int] = {}
        watchers: dict[_Key, list[Term]] = {}
        todo: deque[Term] = deque()
        for node in self._doomed:
            for key in _keys_of(node):
                unfinished[key] = unfinished.get(key, 0) + 1
            for leaf in (leaf for root in self._roots[node.seq] for leaf in root.leaves()):
                target = self._survey.key(leaf)
                if target is None:
                    todo.append(leaf)
                else:
                    watchers.setdefault(target, []).append(leaf)
        while todo:
            root = root_of(todo.popleft())
            if id(root) in self._moving:
                continue
            self._moving.add(id(root))
            node = root.case.node
            still[node.seq] -= 1
            if still[node.seq]:
                continue
            self._hopeful.add(node.seq)
            for key in _keys_of(node):
                unfinished[key] -= 1
                if not unfinished[key]:
                    todo.extend(watchers.pop(key, ()))

    def _is_unresolvable(self, term: Term) -> bool:
        """Tell whether an open term waits for something that does not exist."""
        if isinstance(term, Group):
            left = sum(member.status is None and not self._is_unresolvable(member) for member in term.members)
            # One that cannot be reached anyway waits for a worse end, as long as a member can bring it.
            is_reachable = term.satisfied + term.open >= term.need
            return not left or (is_reachable and term.satisfied + left < term.need)
        return self._survey.key(term) is None

    def _ways(self, root: Term) -> Iterator[_Key]:
        return (key for leaf in root.leaves() if (key := self._survey.key(leaf)) is not None)


def _circles(start: Iterable[_Key], edges: dict[_Key, list[_Key]]) -> list[list[_Key]]:
    """Return the strongly connected components that have a circle (Tarjan's algorithm, without recursion)."""
    index: dict[_Key, int] = {}
    low: dict[_Key, int] = {}
    stack: list[_Key] = []
    on_stack: set[_Key] = set()
    path: list[tuple[_Key, Iterator[_Key]]] = []
    found: list[list[_Key]] = []

    def enter(key: _Key) -> None:
        index[key] = low[key] = len(index)
        stack.append(key)
        on_stack.add(key)
        path.append((key, iter(edges.get(key, ()))))

    for first in start:
        if first not in index:
            enter(first)
        while path:
            key, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[key])
                if low[key] == index[key]:
                    component = [stack.pop()]
                    while component[-1] != key:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    if len(component) > 1 or key in edges.get(key, ()):
                        found.append(component)
            elif following not in index:
                enter(following)
            elif following in on_stack:
                low[key] = min(low[key], index[following])
    return found


def _way_round(circle: list[_Key], edges: dict[_Key, list[_Key]]) -> list[_Key]:
    """Return one way round within a strongly connected component, from its oldest message on if that is on it."""
    members = frozenset(circle)
    way: dict[_Key, None] = {}
    at: _Key = min(key for key in circle if not isinstance(key, tuple))
    while at not in way:
        way[at] = None
        at = next(key for key in edges[at] if key in members)
    path = list(way)
    return path[path.index(at) :]
