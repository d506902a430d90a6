"""The stuck analysis: what happens when a sealed epoch has nothing left to run.

A message of a quiet epoch is fine as long as one of its open dependencies *leads on* to something that may still move:
a timer, another epoch at work, a held message, an operator, a barrier that could be opened. All of that is one least
fixpoint, computed three times with growing sets of sources (A, B, C). What is in none of them is doomed: it either
waits in a circle, which dies at once, or for something that nobody can bring, which is resolved after a grace.
"""

from __future__ import annotations

from collections.abc import Callable

from naviscope_spi import AnyOf, Dependency, OnBarrier, OnEpoch, OnMessage, OnResource
from tests.model.facts import Entry, Epoch, Facts, Wait
from tests.model.judgement import OPEN, SATISFIED, comes_to, status, unresolved_word

Barrier = tuple[int, str]
"""An epoch's number and a kind."""

Source = Callable[[Entry, Wait, Dependency], bool]
"""Says whether an open leaf of a top-level dependency is a source of hope by itself."""


class Analysis:
    """One look at the world; it reads, and its methods say what to do."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.quiet = {number for number, epoch in facts.epochs.items() if facts.is_quiet(epoch)}
        self.alive = {number: facts.alive(number) for number in facts.epochs}
        self.waiting = [x for number in self.quiet for x in self.alive[number] if x.state == "waiting"]
        self.open_waits = {x.seq: [w for w in x.waits if status(facts, x, w) == OPEN] for x in self.waiting}
        self.leaves = {x.seq: [(w, leaf) for w in self.open_waits[x.seq] for leaf in self._leaves(x, w, w.dependency)]
                       for x in self.waiting}  # fmt: skip
        self.timed = self._led_on(set(), lambda x, wait, leaf: wait.has_timer)
        self.patient = self._led_on(self.timed, self._is_patient)
        self.hopeful = self._led_on(self.patient, lambda x, wait, leaf: self._is_openable(x, leaf))
        self.doomed = [x for x in self.waiting if x.seq not in self.hopeful]

    def _leaves(self, x: Entry, wait: Wait, part: Dependency) -> list[Dependency]:
        """List the open leaves of an open dependency; of a group, those of its open members."""
        if type(part) is not AnyOf:
            return [part]
        return [leaf for member in self._open_members(x, wait, part) for leaf in self._leaves(x, wait, member)]

    def _open_members(self, x: Entry, wait: Wait, group: AnyOf) -> list[Dependency]:
        return [member for member in group.members if comes_to(self.facts, x, wait, member) == OPEN]

    def _satisfied(self, x: Entry, wait: Wait, group: AnyOf) -> int:
        return sum(comes_to(self.facts, x, wait, member) == SATISFIED for member in group.members)

    # What leads on.

    def _led_on(self, known: set[int], is_source: Source) -> set[int]:
        """Compute the least set of waiting messages that lead on, given what is known and one more sort of source."""
        found = known | {x.seq for x in self.waiting if any(is_source(x, w, leaf) for w, leaf in self.leaves[x.seq])}
        grew = True
        while grew:
            grew = False
            for x in self.waiting:
                if x.seq not in found and any(self._leads_on(x, leaf, found) for _, leaf in self.leaves[x.seq]):
                    found.add(x.seq)
                    grew = True
        return found

    def _leads_on(self, x: Entry, leaf: Dependency, found: set[int]) -> bool:
        """Say whether an open leaf waits for something that moves, or for a message that leads on."""
        if type(leaf) is OnMessage:
            target = self.facts.target(x, leaf)
            if target is not None:
                return target.epoch not in self.quiet or target.seq in found
        epoch = self._concerned(x, leaf)
        # A completed epoch does not move by itself (an unknown id in it stays open under "wait").
        if epoch is None or epoch.state == "completed":
            return False
        return epoch.number not in self.quiet or any(
            y.seq in found and y is not x for y in self.waiting if y.epoch == epoch.number
        )

    def _concerned(self, x: Entry, leaf: Dependency) -> Epoch | None:
        """Find the epoch in which something must happen for this leaf."""
        if type(leaf) in (OnMessage, OnEpoch):
            return self.facts.target_epoch(x, leaf)
        return self.facts.epochs[x.epoch]

    def _is_patient(self, x: Entry, wait: Wait, leaf: Dependency) -> bool:
        """Say whether a person may release the leaf: it is held up, external, or told to wait."""
        if unresolved_word(self.facts, x, wait.dependency) == "wait":
            return True
        if type(leaf) is OnResource and leaf.external:
            return True
        target = self.facts.target(x, leaf) if type(leaf) is OnMessage else None
        if target is not None:
            return target.state == "held"
        epoch = self._concerned(x, leaf)
        return epoch is not None and any(y.state == "held" for y in self.alive[epoch.number])

    def _is_openable(self, x: Entry, leaf: Dependency) -> bool:
        """Say whether the leaf is a barrier whose kind has nothing unfinished."""
        return type(leaf) is OnBarrier and not any(y.message.kind == leaf.kind for y in self.alive[x.epoch])

    # Barriers at idle.

    def barriers_to_open(self) -> list[tuple[Epoch, str]]:
        """List the barriers that open now: those with the fewest possible sources left."""
        candidates = [each for each in self._candidates() if not self._is_kept_shut(each)]
        counts = {each: self._count_sources(each) for each in candidates}
        if any(counts.values()):
            self.facts.seen["barrier rule 2 with sources"] += 1
        fewest = min(counts.values(), default=0)
        return [(self.facts.epochs[number], kind) for (number, kind), count in counts.items() if count == fewest]

    def _candidates(self) -> set[Barrier]:
        """Collect the openable barriers of epochs in which nothing is due and nothing is doomed.

        A timer may still bring messages, and the doomed are resolved first, since their ends may free others.
        """
        excluded = {x.epoch for x in self.waiting if x.seq in self.timed} | {x.epoch for x in self.doomed}
        return {
            (x.epoch, leaf.kind)
            for x in self.waiting
            if x.epoch not in excluded
            for _, leaf in self.leaves[x.seq]
            if self._is_openable(x, leaf)
        }

    def _is_kept_shut(self, barrier: Barrier) -> bool:
        """Say whether a message that a person or the world may release says that it derives into the kind."""
        number, kind = barrier
        behind = self._behind(barrier)
        return any(
            y.seq not in behind
            and (y.state == "held" or y.seq in self.patient - self.timed)
            and self._declares(y.message.kind, kind)
            for y in self.alive[number]
        )

    def _declares(self, kind: str, derived: str) -> bool:
        """Say whether a kind declares to derive another, over any number of declared steps."""
        reached: set[str] = set()
        todo = [kind]
        while todo:
            children = self.facts.derives.get(todo.pop(), ())
            todo += [child for child in children if child not in reached]
            reached |= set(children)
        return derived in reached

    def _count_sources(self, barrier: Barrier) -> int:
        """Count the unfinished messages that may derive the kind and do not themselves wait behind its barrier."""
        number, kind = barrier
        behind = self._behind(barrier)
        return sum(y.seq not in behind and self.facts.may_derive(y.message.kind, kind) for y in self.alive[number])

    def _behind(self, barrier: Barrier) -> set[int]:
        """Compute the least set of waiting messages that cannot move before this barrier opens."""
        behind: set[int] = set()
        grew = True
        while grew:
            grew = False
            for x in self.waiting:
                if x.seq not in behind and any(
                    self._is_behind(x, w, w.dependency, barrier, behind) for w in self.open_waits[x.seq]
                ):
                    behind.add(x.seq)
                    grew = True
        return behind

    def _is_behind(self, x: Entry, wait: Wait, part: Dependency, barrier: Barrier, behind: set[int]) -> bool:
        """Say whether an open dependency cannot be satisfied before the barrier opens."""
        if type(part) is OnMessage:
            target = self.facts.target(x, part)
            return target is not None and target.seq in behind
        if type(part) is OnEpoch:
            epoch = self.facts.target_epoch(x, part)
            return epoch is not None and any(y.seq in behind for y in self.alive[epoch.number])
        if type(part) is OnBarrier:
            if (x.epoch, part.kind) == barrier:
                return True
            return any(y.seq in behind and y.message.kind == part.kind for y in self.alive[x.epoch])
        if type(part) is AnyOf:
            members = self._open_members(x, wait, part)
            free = sum(not self._is_behind(x, wait, member, barrier, behind) for member in members)
            # A group that cannot be reached anyway, and only waits for a worse end, is not behind what it ignores.
            return free < len(members) and self._satisfied(x, wait, part) + free < part.at_least
        return False

    # Cycles.

    def circling(self) -> list[Entry]:
        """List the doomed messages that wait for themselves, around any number of corners."""
        hopeful = self._resolvable_later()
        lost = {x.seq: x for x in self.doomed if x.seq not in hopeful}
        edges = {seq: self._waits_for(x, hopeful) & set(lost) for seq, x in lost.items()}
        circling = [x for seq, x in lost.items() if seq in _reachable(edges, seq)]
        assert circling or not lost, f"silent hang: {sorted(lost)} wait for each other without a circle"
        return circling

    def _resolvable_later(self) -> set[int]:
        """Compute the least set of doomed messages that go on, one way or another, once the unresolvable is resolved.

        Those are no part of a circle even if they touch one: their turn comes after the grace.
        """
        hopeful: set[int] = set()
        grew = True
        while grew:
            grew = False
            for x in self.doomed:
                if x.seq not in hopeful and all(
                    self._has_hope(x, w, w.dependency, hopeful) for w in self.open_waits[x.seq]
                ):
                    hopeful.add(x.seq)
                    grew = True
        return hopeful

    def _has_hope(self, x: Entry, wait: Wait, part: Dependency, hopeful: set[int]) -> bool:
        """Say whether an open dependency of a doomed message is decided once the hopeful ones are."""
        if type(part) is AnyOf:
            return any(self._has_hope(x, wait, member, hopeful) for member in self._open_members(x, wait, part))
        if self._is_unresolvable(x, part):
            return True
        return all(y.seq in hopeful for y in self._awaited(x, part))

    def _is_unresolvable(self, x: Entry, leaf: Dependency) -> bool:
        """Say whether an open leaf of a doomed message names something nobody will bring."""
        if type(leaf) is OnMessage:
            return self.facts.target(x, leaf) is None
        if type(leaf) is OnEpoch:
            return self.facts.target_epoch(x, leaf) is None
        return type(leaf) is OnResource

    def _awaited(self, x: Entry, leaf: Dependency) -> list[Entry]:
        """List the unfinished messages that an open leaf waits for."""
        if type(leaf) is OnMessage:
            target = self.facts.target(x, leaf)
            return [] if target is None else [target]
        if type(leaf) is OnBarrier:
            return [y for y in self.alive[x.epoch] if y.message.kind == leaf.kind]
        if type(leaf) is OnEpoch:
            epoch = self.facts.target_epoch(x, leaf)
            return [] if epoch is None else self.alive[epoch.number]
        return []

    def _waits_for(self, x: Entry, hopeful: set[int]) -> set[int]:
        """Collect the messages at the far end of the dependencies without hope."""
        lost = [w for w in self.open_waits[x.seq] if not self._has_hope(x, w, w.dependency, hopeful)]
        return {y.seq for w in lost for leaf in self._leaves(x, w, w.dependency) for y in self._awaited(x, leaf)}

    # What nobody will bring.

    def unresolved(self) -> list[tuple[Entry, Wait]]:
        """List the dependencies of doomed messages that nobody can satisfy."""
        every = [(x, w) for x in self.doomed for w in self.open_waits[x.seq]]
        certain = [(x, w) for x, w in every if self._is_lost(x, w, w.dependency)]
        # A group whose other members wait for this very message is lost too, but only if nothing plainer is.
        return certain or [
            (x, w) for x, w in every if any(self._is_unresolvable(x, leaf) for leaf in self._leaves(x, w, w.dependency))
        ]

    def _is_lost(self, x: Entry, wait: Wait, part: Dependency) -> bool:
        """Say whether the dependency is unresolvable, or a group that cannot be reached without such members."""
        if type(part) is not AnyOf:
            return self._is_unresolvable(x, part)
        members = self._open_members(x, wait, part)
        left = sum(not self._is_lost(x, wait, member) for member in members)
        satisfied = self._satisfied(x, wait, part)
        # One that cannot be reached anyway waits for a worse end, as long as a member can bring it.
        is_reachable = satisfied + len(members) >= part.at_least
        return not left or (is_reachable and satisfied + left < part.at_least)

    def is_blocked(self, epoch: Epoch) -> bool:
        """Say whether only a person can help this epoch on; asked when the analysis has nothing to do."""
        members = {x.seq for x in self.waiting if x.epoch == epoch.number}
        has_work = epoch.number in self.quiet and bool(self.alive[epoch.number])
        return has_work and members <= self.patient - self.timed


def _reachable(edges: dict[int, set[int]], start: int) -> set[int]:
    """Collect everything that can be reached from a message in one step or more."""
    reached: set[int] = set()
    todo = [start]
    while todo:
        fresh = edges[todo.pop()] - reached
        reached |= fresh
        todo += fresh
    return reached
