"""The dependency graph: who waits for whom, and what an end tells those who wait.

Each edge costs O(1) when it is made and O(1) when its target ends. The common edge, a plain id of the same epoch or one
resource, is an entry in the target's list of waiters and a count in the child. Everything else is a term of a case. A
child that counts gets a case at the first sign of trouble; its old entries stay in the lists and do nothing (see
`NEVER`).

The status of a message or epoch dependency follows its target for as long as the child waits: a replayed parent is open
again. Resources and barriers stay satisfied once they were.

The graph only notes what changed, in `freed` and `disputed`; the core judges and acts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from naviscope_ingest._core.barriers import Barrier
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.nodes import ENDED, NEVER, Node, State, Waiter
from naviscope_ingest._core.resources import Resources, Scope
from naviscope_ingest._core.terms import GO, LOST, Case, Group, Said, Status, Term, policy_of, unresolved_word
from naviscope_ingest._core.timers import TimerKind, Timers
from naviscope_spi import AnyOf, Dependency, OnBarrier, OnEpoch, OnMessage, OnResource, Resource, Seq

__all__ = ["Graph", "root_of"]


class Graph:
    """Every edge between messages, resources, barriers and epochs.

    Attributes:
        names: the kept epoch of each name.
        freed: counting nodes whose last parent has committed, or whose resource is there.
        disputed: cases to be judged.
        barriers: barriers that got their first waiter.
        hands_over: whether any message ever passed a dependency, or a value was left.
        is_recovering: whether facts are still missing, so that an unknown id means nothing yet.
    """

    def __init__(self, timers: Timers) -> None:
        self.names: dict[str, EpochTracker] = {}
        self.resources = Resources()
        self.freed: list[Node] = []
        self.disputed: list[Case] = []
        self.barriers: list[tuple[EpochTracker, Barrier]] = []
        self.hands_over = False
        self.is_recovering = False
        self._timers = timers
        # Terms that wait for something in an epoch that does not exist yet.
        self._unnamed: dict[str, list[Term]] = {}

    # Making edges

    def link(self, node: Node, now: float) -> None:
        """Connect a new message with what it waits for."""
        epoch = node.epoch
        live, done = epoch.live, epoch.done
        missing = 0
        for dependency in node.message.depends_on:
            if type(dependency) is not str:
                if type(dependency) is OnResource and len(node.message.depends_on) == 1:
                    self._count_resource(node, dependency)
                else:
                    self.open_case(node, node.message.depends_on, now)
                return
            parent = live.get(dependency)
            if parent is None:
                if dependency in done:
                    continue
                epoch.ghost(dependency).waiters.append(node)
            elif parent.state is ENDED:
                self.open_case(node, node.message.depends_on, now)
                return
            elif parent.waiters is not None:
                parent.waiters.append(node)
            elif parent.first is None:
                parent.first = node
            else:
                parent.waiters = [node]
            missing += 1
        node.missing = missing

    def _count_resource(self, node: Node, wanted: OnResource) -> None:
        """Let a message wait for one resource and nothing else."""
        if not self.resources.is_satisfied(node.epoch.number, wanted):
            node.missing = 1
            self.resources.wait(node.epoch.number, node, wanted)
            if wanted.timeout is not None:
                self._timers.set(node.since + wanted.timeout, TimerKind.TIMEOUT, node.seq)

    def open_case(self, node: Node, depends_on: Iterable[str | Dependency], now: float) -> Case:
        """Let a case decide for a message, over these dependencies, whose time begins now."""
        node.missing = NEVER
        node.case = case = Case(node, now)
        for dependency in depends_on:
            root = self._grow(case, dependency, None)
            root.word = self._word(root)
            case.add(root)
        # Also if their parents have ended: a replay may open them again, and time goes on.
        for place, when in case.timeouts():
            self._timers.set(when, TimerKind.TIMEOUT, node.seq, place)
        self._dispute(case)
        return case

    def case_of(self, node: Node) -> Case:
        """Return the case of a waiting message. One that only counted gets one, as if it had had it all the time."""
        if node.case is not None:
            return node.case
        self.close_case(node)
        return self.open_case(node, node.message.depends_on, node.since)

    def close_case(self, node: Node) -> None:
        """Forget how a message's dependencies stood; it goes by them no longer, whether it counted or had a case."""
        case = node.case
        if case is not None:
            for place, when in case.timeouts():
                self._timers.drop(when, TimerKind.TIMEOUT, node.seq, place)
            for root in case.roots:
                if isinstance(root.dependency, OnResource) and root.status is None:
                    self.resources.leave(root, root.dependency)
            node.case = None
        elif (wanted := node.resource) is not None:
            self._stop_counting(node, wanted)
            self.resources.leave(node, wanted)

    def _stop_counting(self, node: Node, wanted: OnResource) -> None:
        """Take the resource that a message waits for as settled, whatever came of it."""
        node.missing = 0
        if wanted.timeout is not None:
            self._timers.drop(node.since + wanted.timeout, TimerKind.TIMEOUT, node.seq)

    def _grow(self, case: Case, dependency: str | Dependency, up: Group | None) -> Term:
        if isinstance(dependency, AnyOf):
            group = Group(case, dependency, up)
            for member in dependency.members:
                term = self._grow(case, member, group)
                group.members.append(term)
                group.count(term, 1)
            group.status = group.outcome()
            return group
        term = Term(case, dependency, up)
        term.status = self._watch(term)
        return term

    def _watch(self, term: Term) -> Status:
        """Connect a term with its target and return how that stands."""
        dependency, epoch = term.dependency, term.case.node.epoch
        if isinstance(dependency, str):
            return self._watch_message(term, epoch, dependency)
        if isinstance(dependency, OnMessage):
            target = epoch if dependency.epoch_name is None else self.names.get(dependency.epoch_name)
            if target is not None:
                return self._watch_message(term, target, dependency.id)
            assert dependency.epoch_name is not None
            self._unnamed.setdefault(dependency.epoch_name, []).append(term)
            return None
        if isinstance(dependency, OnResource):
            return self._watch_resource(term, epoch, dependency)
        if isinstance(dependency, OnBarrier):
            return self._watch_barrier(term, epoch, dependency)
        assert isinstance(dependency, OnEpoch)
        return self._watch_epoch(term, dependency)

    def _watch_message(self, term: Term, epoch: EpochTracker, message_id: str) -> Status:
        if message_id in epoch.done:
            return GO
        parent = epoch.live.get(message_id)
        if parent is None:
            epoch.ghost(message_id).waiters.append(term)
            return LOST if epoch.is_completed and not self.is_recovering else None
        if parent.waiters is None:
            parent.waiters = []
        parent.waiters.append(term)
        end = parent.end
        assert end != "committed"
        return end

    def _watch_resource(self, term: Term, epoch: EpochTracker, wanted: OnResource) -> Status:
        if self.resources.is_satisfied(epoch.number, wanted):
            return GO
        self.resources.wait(epoch.number, term, wanted)
        return None

    def _watch_barrier(self, term: Term, epoch: EpochTracker, wanted: OnBarrier) -> Status:
        barrier = epoch.barrier(wanted.kind)
        if barrier.is_open:
            return GO
        if not barrier.waiters:
            self.barriers.append((epoch, barrier))
        barrier.waiters.append(term)
        return None

    def _watch_epoch(self, term: Term, wanted: OnEpoch) -> Status:
        target = self.names.get(wanted.name)
        if target is None:
            self._unnamed.setdefault(wanted.name, []).append(term)
            return None
        if target.waiters is None:
            target.waiters = []
        target.waiters.append(term)
        return target.status

    # What happens to targets

    def accepted(self, node: Node) -> None:
        """Hand the waiters of an id that was unknown to the message that bears it."""
        ghost = node.epoch.ghosts.pop(node.message.id, None)
        if ghost is not None:
            node.waiters = ghost.waiters
            for term in _terms(ghost.waiters):
                self._tell(term, None)

    def committed(self, waiters: list[Waiter]) -> None:
        """Tell the waiters of a message that it committed."""
        freed = self.freed
        for waiter in waiters:
            if type(waiter) is Node:
                waiter.missing = missing = waiter.missing - 1
                if not missing:
                    freed.append(waiter)
            else:
                assert isinstance(waiter, Term)
                self._tell(waiter, GO)

    def ended(self, node: Node) -> None:
        """Tell the waiters of a message that it ended without committing. They stay, for a replay may come."""
        waiters = node.all_waiters()
        if not waiters:
            return
        node.first, node.waiters = None, []
        for waiter in waiters:
            if isinstance(waiter, Term):
                node.waiters.append(waiter)
                self._tell(waiter, _bad(node))
            elif waiter.state is State.ENDED:
                node.waiters.append(waiter)
            elif waiter.case is None and waiter.state is State.WAITING:
                # It only counted so far. The case looks at every parent, this one too, and takes its place here.
                self.case_of(waiter)

    def reopened(self, node: Node) -> None:
        """Tell the waiters of a replayed message that it is unfinished again."""
        for term in _terms(node.all_waiters()):
            self._tell(term, None)

    def discarded(self, node: Node) -> None:
        """Let those who are held by a dead letter follow it."""
        for term in _terms(node.all_waiters()):
            self._reword(root_of(term))

    def provided(self, scope: Scope, resource: Resource) -> None:
        """Record a resource and tell those who wait for it."""
        self.hands_over |= resource.value is not None
        for waiter in self.resources.provide(scope, resource):
            if isinstance(waiter, Term):
                self._tell(waiter, GO)
            elif (wanted := waiter.resource) is not None:
                self._stop_counting(waiter, wanted)
                self.freed.append(waiter)

    def opened(self, barrier: Barrier) -> None:
        """Open a barrier and tell those who wait for it."""
        barrier.is_open = True
        waiters, barrier.waiters = barrier.waiters, []
        for term in waiters:
            self._tell(term, GO)

    def epoch_opened(self, epoch: EpochTracker) -> None:
        """Give an epoch its name; those who waited for that name now wait for it."""
        self.names[epoch.name] = epoch
        for term in self._unnamed.pop(epoch.name, ()):
            if term.is_live:
                self._tell(term, self._watch(term))

    def epoch_changed(self, epoch: EpochTracker) -> None:
        """Tell those who wait for an epoch, or for ids it never got, that it completed or is being repaired."""
        for term in epoch.waiters or ():
            self._tell(term, epoch.status)
        for ghost in epoch.ghosts.values():
            for term in _terms(ghost.waiters):
                self._tell(term, LOST if epoch.is_completed else None)

    def epoch_forgotten(self, epoch: EpochTracker) -> None:
        """Take an epoch's name away. Those who still wait for something of it wait for the next one of that name."""
        if self.names.get(epoch.name) is epoch:
            del self.names[epoch.name]
        self.resources.forget(epoch.number)
        left = [term for ghost in epoch.ghosts.values() for term in _terms(ghost.waiters)]
        for term in left:
            if term.is_live and root_of(term).word is None:
                self._tell(term, None)
                self._unnamed.setdefault(epoch.name, []).append(term)

    # What happens to terms

    def timed_out(self, node: Node, place: int) -> None:
        """Let one of a message's dependencies act as if its parent had expired, if it is open."""
        root = self.case_of(node).roots[place]
        root.timed_out = True
        self._reword(root)

    def resolve(self, root: Term) -> None:
        """Let a root say what it says when nothing alive can release it."""
        root.resolved = unresolved_word(root)
        self._reword(root)

    def causes(self, case: Case) -> tuple[frozenset[Seq], frozenset[int]]:
        """Return the messages and epochs whose ends make roots of a case say something else than go."""
        guilty = [
            target
            for root in case.roots
            if root.word not in (None, "run") and root.resolved is None and root.status is not None
            for target in self._ended_targets(root)
        ]
        return (
            frozenset(target.seq for target in guilty if isinstance(target, Node)),
            frozenset(target.number for target in guilty if isinstance(target, EpochTracker)),
        )

    def unmet(self, case: Case) -> list[str | Dependency]:
        """Return the dependencies that were passed although they are not satisfied."""
        return [root.dependency for root in case.roots if root.word == "run" and root.status != GO]

    def passed(self, node: Node, depends_on: Iterable[str | Dependency]) -> list[str | Dependency]:
        """Return which dependencies of a message that has been started before are not satisfied: it was let past them.

        A barrier counts as satisfied: that it had opened is not recorded, and nothing but time lets anybody past it.
        """
        passing = Case(node, node.since)
        found: list[str | Dependency] = []
        for dependency in depends_on:
            if _names_barrier(dependency):
                continue
            root = self._grow(passing, dependency, None)
            if root.status != GO:
                found.append(dependency)
            if isinstance(dependency, OnResource) and root.status is None:
                self.resources.leave(root, dependency)
        return found

    def target(self, term: Term) -> Node | EpochTracker | None:
        """Return the message or epoch a leaf waits for; None if it is unknown, or no such thing."""
        dependency, epoch = term.dependency, term.case.node.epoch
        if isinstance(dependency, str):
            return epoch.live.get(dependency)
        if isinstance(dependency, OnMessage):
            home = self.home(term)
            return None if home is None else home.live.get(dependency.id)
        if isinstance(dependency, OnEpoch):
            return self.names.get(dependency.name)
        return None

    def home(self, term: Term) -> EpochTracker | None:
        """Return the epoch in which the target of a leaf is, or would be."""
        dependency = term.dependency
        if isinstance(dependency, OnMessage) and dependency.epoch_name is not None:
            return self.names.get(dependency.epoch_name)
        if isinstance(dependency, OnEpoch):
            return self.names.get(dependency.name)
        return term.case.node.epoch

    def _tell(self, term: Term, status: Status) -> None:
        """Give a leaf a new status and carry it up to its root."""
        if term.status == status or not term.is_live:
            return
        group = term.up
        if group is None:
            term.status = status
            self._reword(term)
            return
        could_die = group.can_die
        group.count(term, -1)
        term.status = status
        group.count(term, 1)
        self._recount(group, could_die)
        root = root_of(group)
        if root.word == "hold":
            # The group may fail as before, but by other members: perhaps all of those were discarded.
            self._reword(root)

    def _recount(self, group: Group, could_die: bool) -> None:
        status = group.outcome()
        up = group.up
        if up is None:
            if group.status != status:
                group.status = status
                self._reword(group)
            return
        if group.status == status and (status is not None or could_die == (group.deadly > 0)):
            return
        up_could_die = up.can_die
        # Take out what this group counted as before. It may have been open and deadly then, and open and harmless now.
        deadly, group.deadly = group.deadly, int(could_die)
        up.count(group, -1)
        group.deadly = deadly
        group.status = status
        up.count(group, 1)
        self._recount(up, up_could_die)

    def _reword(self, root: Term) -> None:
        case = root.case
        if case.node.case is case and case.reword(root, self._word(root)):
            self._dispute(case)

    def _word(self, root: Term) -> Said:
        """Turn the status of a root into what it says."""
        if root.resolved is not None:
            return root.resolved
        status = root.status
        if status == GO:
            return "run"
        if status == LOST and unresolved_word(root) is not None:
            return unresolved_word(root)
        if status is None or status == LOST:
            return self._word_after_timeout(root) if root.timed_out else None
        word = policy_of(root).on(status)
        return "fail" if word == "hold" and self._is_given_up(root) else word

    def _word_after_timeout(self, root: Term) -> Said:
        """Decide for good what a root says whose time is over, unless it holds: then the parent may come after all."""
        word = policy_of(root).expired
        if word != "hold":
            root.resolved = word
        return word

    def _is_given_up(self, root: Term) -> bool:
        """Tell whether nothing that a root is held for can come back: it was discarded, or never existed."""
        targets = list(self._ended_targets(root))
        letters = [each for each in targets if isinstance(each, Node) and each.end in ("dead", "expired")]
        if not letters:
            return not targets
        return all(node.rare is not None and node.rare.discarded for node in letters)

    def _ended_targets(self, term: Term) -> Iterator[Node | EpochTracker]:
        """Yield the messages and epochs in a term that ended badly."""
        if isinstance(term, Group):
            for member in term.members:
                yield from self._ended_targets(member)
        elif term.status not in (None, GO, LOST):
            target = self.target(term)
            # Nothing is known any more of a message whose epoch was freed, and nothing in it can be replayed.
            if target is not None:
                yield target

    def _dispute(self, case: Case) -> None:
        if not case.is_queued:
            case.is_queued = True
            self.disputed.append(case)


def _terms(waiters: Iterable[Waiter]) -> Iterator[Term]:
    return (waiter for waiter in waiters if isinstance(waiter, Term))


def _names_barrier(dependency: str | Dependency) -> bool:
    if isinstance(dependency, AnyOf):
        return any(map(_names_barrier, dependency.members))
    return isinstance(dependency, OnBarrier)


def root_of(term: Term) -> Term:
    """Return the dependency of the message that a term belongs to."""
    while term.up is not None:
        term = term.up
    return term


def _bad(node: Node) -> Status:
    assert node.end is not None and node.end != "committed"
    return node.end
