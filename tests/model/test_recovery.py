"""A core that is told the facts of a store again comes to the same decisions."""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from attrs import define, evolve

from naviscope_ingest._core import Core, Fold, State
from naviscope_spi import (
    Accepted,
    CaughtUp,
    Committed,
    Ended,
    EpochKey,
    EpochMarked,
    EpochOpened,
    EpochOptions,
    EpochRecord,
    FactBody,
    Leased,
    Message,
    Provided,
    Resource,
    Seq,
    SessionEnded,
    Waits,
)
from tests.model.core_world import CoreWorld
from tests.model.interleavings import Undisturbed, play
from tests.model.programs import Program, generate, generate_timeless
from tests.model.test_reference import model_of


class RecordingWorld(CoreWorld):
    """A core whose facts are written down, as a store would have them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.options = options
        self.facts: list[FactBody] = []
        self.records: dict[int, EpochRecord] = {}
        self.leased: dict[int, None] = {}
        self.session = 1

    def record(self, *facts: FactBody) -> None:
        """Write facts down, and then what the core decided because of them."""
        self.facts += facts
        decisions = self.core.drain()
        for each in decisions.ended:
            self.leased.pop(each.seq, None)
            self.facts.append(Ended(each.seq, each.end, sorted(each.causes), sorted(each.epoch_causes)))
        for each in decisions.epochs:
            if each.event != "blocked":
                is_repair = each.event == "repairing"
                self.mark(
                    each.epoch.number,
                    state=each.event,
                    succeeded=None if is_repair else each.epoch.succeeded,
                    cancel_requested=self.records[each.epoch.number].cancel_requested and not is_repair,
                )

    def mark(self, number: int, **changes: Any) -> None:
        self.records[number] = evolve(self.records[number], **changes)
        self.facts.append(EpochMarked(self.records[number]))

    # Events

    def open_epoch(self, number, name, *, deadline=None, on_unresolved=None):
        super().open_epoch(number, name, deadline=deadline, on_unresolved=on_unresolved)
        options = EpochOptions(deadline=deadline, on_unresolved=on_unresolved)
        self.records[number] = EpochRecord(EpochKey(number, name), "open", options)
        self.record(EpochOpened(self.records[number]))

    def accept(self, number, messages):
        super().accept(number, messages)
        self.record(self.accepted(number, messages))

    def accepted(self, number: int, messages: Sequence[tuple[int, Message]]) -> Accepted:
        seqs = [Seq(seq) for seq, _ in messages]
        return Accepted(self.records[number].key, seqs, [message for _, message in messages], self.now)

    def seal(self, number):
        super().seal(number)
        self.mark(number, state="sealed")
        self.record()

    def cancel_epoch(self, number):
        old = self.records[number]
        super().cancel_epoch(number)
        if old.state != "completed":
            self.mark(number, state="sealed" if old.state == "open" else old.state, cancel_requested=True)
        self.record()

    def start(self, seq):
        super().start(seq)
        self.leased[seq] = None
        self.record(Leased([Seq(seq)], self.session))

    def committed(self, seqs, derived, ready):
        before = set(self.nodes)
        super().committed(seqs, derived, ready)
        good = [seq for seq in seqs if self.nodes[seq].end == "committed"]
        births = {
            seq: (self.nodes[seq].epoch.number, self.nodes[seq].message) for seq in self.nodes if seq not in before
        }
        for seq in seqs:
            del self.leased[seq]
        self.record(
            *(self.accepted(number, [(seq, message)]) for seq, (number, message) in births.items()),
            Committed([Seq(seq) for seq in good]),
            *(Ended(Seq(seq), "dead") for seq in seqs if seq not in good),
            *(
                self.provided(resource.name, self.epoch_of[seq])
                for seq in good
                for resource in ready.get(seq, ())
            ),
        )

    def provided(self, name: str, scope: int | None) -> Provided:
        version = self.core.graph.resources.version(scope, name)
        assert version is not None
        return Provided(Resource(name, version), scope)

    def failed(self, seq):
        super().failed(seq)
        del self.leased[seq]
        self.record(Ended(Seq(seq), "dead"))

    def skipped(self, seq):
        super().skipped(seq)
        del self.leased[seq]
        self.record(Ended(Seq(seq), "skipped"))

    def deferred(self, seq, depends_on):
        run = self.nodes[seq].run
        super().deferred(seq, depends_on)
        del self.leased[seq]
        self.record(*self.waits(seq, depends_on=tuple(depends_on)))

    def retry(self, seq, at):
        super().retry(seq, at)
        del self.leased[seq]
        self.record(*self.waits(seq, not_before=at))

    def waits(self, seq: int, **fields: Any) -> Iterable[Waits]:
        """Say how a message goes on, unless the core ended it instead."""
        node = self.nodes[seq]
        if node.rare is not None and any(each.seq == seq for each in self.core._transitions.decisions.ended):
            first = next(each for each in self.core._transitions.decisions.ended)
            if first.seq == seq:
                return []
        rare = node.more()
        return [Waits(Seq(seq), attempt=rare.attempts, run=rare.run, **fields)]

    def release(self, seqs):
        assert set(seqs) == set(self.leased), "a session ends with all its leases"
        super().release(seqs)
        self.leased.clear()
        self.session += 1
        self.record(SessionEnded(self.session - 1, clean=False))

    def cancel(self, seq):
        super().cancel(seq)
        self.record()

    def provide(self, resource):
        super().provide(resource)
        self.record(self.provided(resource.name, None))

    def advance(self, now):
        super().advance(now)
        self.record()

    def replay(self, seq):
        revived = super().replay(seq)
        self.record(*(Waits(Seq(each), run=self.nodes[each].run) for each in revived))
        return revived

    def discard(self, seq):
        super().discard(seq)
        self.record()


def whole(world: RecordingWorld) -> list[FactBody]:
    return list(world.facts)


def compact(world: RecordingWorld) -> list[FactBody]:
    """Tell only what is left, epoch by epoch, as a store may that keeps no history."""
    accepted: dict[Seq, Accepted] = {}
    fates: dict[Seq, FactBody] = {}
    waits: dict[Seq, Waits] = {}
    leased: dict[Seq, Leased] = {}
    provided: dict[tuple[int | None, str], Provided] = {}
    for fact in world.facts:
        match fact:
            case Accepted():
                accepted |= {seq: Accepted(fact.epoch, [seq], [m], fact.at) for seq, m in zip(fact.seqs, fact.messages)}
            case Leased():
                leased |= {seq: Leased([seq], fact.token) for seq in fact.seqs}
            case Committed():
                fates |= {seq: Committed([seq], fact.values) for seq in fact.seqs}
                for seq in fact.seqs:
                    leased.pop(seq, None)
            case Ended():
                fates[fact.seq] = fact
                leased.pop(fact.seq, None)
            case Waits():
                old = waits.get(fact.seq)
                added = fact.depends_on
                if old is not None and old.run == fact.run:
                    added = (*(old.depends_on or ()), *(added or ())) or None
                waits[fact.seq] = evolve(fact, depends_on=added)
                leased.pop(fact.seq, None)
                fates.pop(fact.seq, None)
            case Provided():
                provided[fact.epoch, fact.resource.name] = fact
            case SessionEnded():
                leased.clear()
    facts: list[FactBody] = [EpochOpened(record) for record in world.records.values()]
    facts += accepted.values()
    for seq in accepted:
        facts += [where[seq] for where in (waits, leased, fates) if seq in where]
    return facts + list(provided.values())


def recover(world: RecordingWorld, facts: Sequence[FactBody]) -> Core:
    """Tell a new core the facts, and that the session they were recorded in has ended."""
    core = Core(**world.options)
    core.tell_time(world.now)
    fold = Fold(core)
    for fact in facts:
        core.tell_time(world.now)
        fold(fact)
    fold(CaughtUp())
    fold(SessionEnded(world.session, clean=False))
    for seq, node in world.nodes.items():
        again = core.node(Seq(seq))
        if again is not None and again.end in ("dead", "expired") and node.rare is not None and node.rare.discarded:
            core.discard(Seq(seq))
    core.advance(world.now)
    return core


def crashed(world: RecordingWorld) -> Core:
    """Return what the core itself would come to if everything at work were lost now."""
    # Messages are frozen, so both may have the same.
    core = copy.deepcopy(world.core, {id(node.message): node.message for node in world.nodes.values()})
    core.release([Seq(seq) for seq in world.leased])
    core.advance(core.now)
    return core


def view(core: Core) -> dict[str, Any]:
    nodes = core._nodes
    return {
        "done": {e.number: e.done for e in core.epochs.values()},
        "states": {seq: node.end or node.state.value for seq, node in nodes.items()},
        "causes": {seq: (node.rare.causes, node.rare.epoch_causes) for seq, node in nodes.items() if node.end},
        "runs": {seq: node.run for seq, node in nodes.items()},
        "attempts": {seq: node.rare.attempts if node.rare else 0 for seq, node in nodes.items() if not node.end},
        "epochs": {e.number: (e.state, e.was_cancelled, e.verdict if e.state != "completed" else None) for e in core.epochs.values()},
        "opened": {(e.number, b.kind) for e in core.epochs.values() for b in e.barriers.values() if b.is_open},
        "runnable": {seq for seq, node in nodes.items() if core.may_start(node)},
    }



def check_what_is_recorded(world, core):
    for seq, node in world.nodes.items():
        again = core.node(Seq(seq))
        if node.end == "committed":
            assert again is None and node.id in core.epochs[node.epoch.number].done, node
            continue
        assert again is not None, node
        assert again.run == node.run, (node, again)
        if node.end is not None:
            assert again.end == node.end, (node, again)
            assert (again.rare.causes, again.rare.epoch_causes) == (node.rare.causes, node.rare.epoch_causes), node
        elif again.end is None:
            assert (again.rare.attempts if again.rare else 0) == (node.rare.attempts if node.rare else 0), node
    for number, epoch in world.core.epochs.items():
        again = core.epochs[number]
        assert again.ends["committed"] == epoch.ends["committed"]
        if epoch.is_completed:
            assert again.is_completed and again.succeeded == epoch.succeeded
            assert epoch.ends == again.ends
            assert again.was_cancelled == epoch.was_cancelled
        else:
            assert again.state in (epoch.state, "completed")



from tests.model.programs import _Generator
from tests.model.interleavings import Interleaving
from attrs import evolve

class _Recorded(_Generator):
    def __init__(self, rng):
        super().__init__(rng)
        self.timeouts = 0.0
        self.tastes = [t if t != "barrier" else "message" for t in self.tastes]
    def policy(self):
        policy = super().policy()
        if policy.get("on_unresolved") in ("run", "skip"):
            del policy["on_unresolved"]
        return policy
    def epoch(self, number, name):
        e = super().epoch(number, name)
        return evolve(e, on_unresolved="wait" if e.on_unresolved == "wait" else None)
    def program(self, seed):
        return evolve(super().program(seed), on_unresolved="fail")

if __name__ == "__main__":
    how = {"whole": whole, "compact": compact}[sys.argv[1]]
    count: Counter[str] = Counter()
    class Stop(Exception): pass
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        program = _Recorded(random.Random(seed)).program(seed)
        rng = random.Random(seed)
        world = RecordingWorld(derives=program.derives, on_unresolved=program.on_unresolved, max_deferrals=program.max_deferrals)
        events = []
        def after(event):
            events.append(event)
            if rng.random() < 0.15:
                count["looks"] += 1
                cone, cother = crashed(world), recover(world, how(world))
                one, other = view(cone), view(cother)
                diff = [k for k in one if one[k] != other[k]]
                if diff:
                    key = diff[0]
                    detail = ""
                    if isinstance(one[key], dict):
                        ks = [k for k in one[key].keys() | other[key].keys() if one[key].get(k) != other[key].get(k)]
                        detail = str({(one[key].get(k), other[key].get(k)) for k in ks}) if key in ("states","epochs") else ""
                    count[f"{key} {detail}"[:200]] += 1
                    if len(sys.argv) > 5 and sys.argv[5] in f"{key} {detail}":
                        print(program.describe()); print(*events, sep="\n"); print(*how(world), sep="\n")
                        for k in diff: print(k, "\n live", one[k], "\n back", other[k])
                        from naviscope_ingest._core.explain import explain_message
                        for c in (cone, cother):
                            print("--")
                            for n in c._nodes.values(): print(n, [ (r.text) for r in explain_message(c, n).reasons], n.rare and n.rare.doomed_since)
                        print("now", world.now, "seed", seed)
                        sys.exit()
                    raise Stop
        i = Interleaving(program, random.Random(seed), [model_of(program), world], after)
        if sys.argv[4] == "no": i.replays = 0
        try:
            i.run()
        except Stop:
            count["programs with differences"] += 1
    for k, v in count.most_common(40): print(v, k)
