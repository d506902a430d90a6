"""A core that is told the facts of a store again comes to the same decisions.

A `RecordingWorld` writes down what a store would. At some point of a random program a new core is told all of it, and
compared with the core that has been there all the time, after both have lost what was at work.

Facts are of two sorts: what happened to messages and epochs, and what followed for others. Both are recorded, as ends.
What is not recorded is how far a message had come that neither started nor ended since. After a restart it is asked
again, so these may differ:

- A dependency that had been passed (by "run", by a timeout, or resolved as unresolvable) may be open again, if its
  parent was replayed or its time was not yet up; a timeout that a deferral or a replay set begins again with the
  restart, and so does the grace period of what nothing alive can release.
- A barrier that rule 2 opened is shut until rule 2 or rule 1 opens it again, so who waited for it, but did not start,
  waits once more. A barrier that rule 1 opened is open.
- A message that was replayed is taken to have been replayed after its own and its epoch's time was over.
- The cancellation of an epoch that a replay lifted before the epoch had completed holds again (short account only).
- A message that came back from a crash during a retry starts before others of its lane (short account only).

Ends, causes, runs and attempts, the states of epochs, and what is unfinished never differ.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from naviscope_ingest._core import Core, EpochTracker, Fold, Node
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
from tests.model.interleavings import Event, Interleaving, Undisturbed
from tests.model.programs import Program, Recorded, generate, generate_timeless
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
            *(self.provided(resource.name, self.epoch_of[seq]) for seq in good for resource in ready.get(seq, ())),
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
        super().deferred(seq, depends_on)
        del self.leased[seq]
        self.record(*self.waits(seq, depends_on=tuple(depends_on)))

    def retry(self, seq, at):
        super().retry(seq, at)
        del self.leased[seq]
        self.record(*self.waits(seq, not_before=at))

    def waits(self, seq: int, **fields: Any) -> Iterable[Waits]:
        """Say how a message goes on, unless the core ended it instead: then that is the first thing it decided."""
        ended = self.core._transitions.decisions.ended
        if ended and ended[0].seq == seq:
            return ()
        rare = self.nodes[seq].more()
        return (Waits(Seq(seq), attempt=rare.attempts, run=rare.run, **fields),)

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
        node = self.nodes[seq]
        self.record(Ended(Seq(seq), node.end, sorted(node.rare.causes), sorted(node.rare.epoch_causes), discarded=True))


def told_whole(world: RecordingWorld) -> list[FactBody]:
    """Tell everything that ever happened, in order."""
    return world.facts


def told_short(world: RecordingWorld) -> list[FactBody]:
    """Tell only where everything stands, as a store does that keeps no history."""
    accepted: dict[Seq, Accepted] = {}
    waits: dict[Seq, Waits] = {}
    leased: dict[Seq, Leased] = {}
    fates: dict[Seq, FactBody] = {}
    provided: dict[tuple[int | None, str], Provided] = {}
    for fact in world.facts:
        match fact:
            case Accepted():
                for seq, message in zip(fact.seqs, fact.messages, strict=True):
                    accepted[seq] = Accepted(fact.epoch, [seq], [message], fact.at)
            case Leased():
                leased |= {seq: Leased([seq], fact.token) for seq in fact.seqs}
            case Committed():
                fates |= {seq: Committed([seq]) for seq in fact.seqs}
            case Ended():
                fates[fact.seq] = fact
            case Waits():
                waits[fact.seq] = _joined(waits.get(fact.seq), fact)
                leased.pop(fact.seq, None)
                fates.pop(fact.seq, None)
            case Provided():
                provided[fact.epoch, fact.resource.name] = fact
            case SessionEnded():
                leased.clear()
    facts: list[FactBody] = [EpochOpened(record) for record in world.records.values()]
    facts += accepted.values()
    for seq in accepted:
        facts += [known[seq] for known in (waits, leased, fates) if seq in known]
    return facts + list(provided.values())


def _joined(old: Waits | None, new: Waits) -> Waits:
    """Keep what earlier deferrals of the same run added."""
    if old is None or old.run < new.run or old.depends_on is None:
        return new
    return evolve(new, depends_on=tuple(dict.fromkeys((*old.depends_on, *(new.depends_on or ())))))


ACCOUNTS = pytest.mark.parametrize("account", [told_whole, told_short])
Account = Callable[[RecordingWorld], Sequence[FactBody]]


def recover(world: RecordingWorld, account: Account) -> Core:
    """Tell a new core the facts, and that the session which recorded the last of them has ended."""
    core = Core(**world.options)
    fold = Fold(core)
    for fact in (*account(world), CaughtUp(), SessionEnded(world.session, clean=False)):
        core.tell_time(world.now)
        fold(fact)
    core.advance(world.now)
    return core


def crashed(world: RecordingWorld) -> Core:
    """Return what the present core comes to when everything at work is lost."""
    # Messages are frozen, so both may have the same.
    core = copy.deepcopy(world.core, {id(node.message): node.message for node in world.nodes.values()})
    core.release([Seq(seq) for seq in world.leased])
    core.advance(core.now)
    return core


def world_of(program: Program, kind: type[RecordingWorld] = RecordingWorld) -> Any:
    return kind(
        derives=program.derives,
        on_unresolved=program.on_unresolved,
        max_deferrals=program.max_deferrals,
        keeps_outlines=program.seed % 2 == 0,
    )


def look_now_and_then(
    program: Program, look: Callable[[RecordingWorld], None], *, replays: int | None = None
) -> RecordingWorld:
    """Play a program and look at the world after some of its events."""
    world, rng = world_of(program), random.Random(program.seed)
    events: list[Event] = []

    def after(event: Event) -> None:
        events.append(event)
        if rng.random() < 0.15:
            look(world)

    interleaving = Interleaving(program, random.Random(program.seed), [model_of(program), world], after)
    if replays is not None:
        interleaving.replays = replays
    try:
        interleaving.run()
    except AssertionError as error:
        error.add_note("\n".join([program.describe(), *map(str, events), "facts:", *map(str, world.facts)]))
        raise
    return world


# What is recorded


@ACCOUNTS
@pytest.mark.parametrize("chunk", range(2))
def test_what_is_recorded_is_known_after_a_restart(account, chunk):
    seen: Counter[str] = Counter()

    def look(world: RecordingWorld) -> None:
        core = recover(world, account)
        for node in world.nodes.values():
            seen[str(node.end)] += 1
            check_message(core, node)
        for epoch in world.core.epochs.values():
            seen[epoch.state] += 1
            check_epoch(core.epochs[epoch.number], epoch)

    for seed in range(chunk * 150, chunk * 150 + 150):
        look_now_and_then(generate(seed), look)
    ends = {"committed", "dead", "skipped", "cancelled", "expired", "None"}
    assert set(seen) == ends | {"open", "sealed", "completed", "repairing"}


def check_message(core: Core, node: Node) -> None:
    """Compare one message: what ended is as it was, what had not ended is not lost."""
    again = core.node(node.seq)
    if node.end == "committed":
        assert again is None
        assert node.id in core.epochs[node.epoch.number].done
        return
    assert again is not None
    assert again.run == node.run
    if node.end is not None:
        assert again.end == node.end
        assert causes(again) == causes(node)
    elif again.end is None:
        assert attempts(again) == attempts(node)


def check_epoch(again: EpochTracker, epoch: EpochTracker) -> None:
    assert again.ends["committed"] == epoch.ends["committed"]
    if epoch.is_completed:
        assert again.is_completed
        assert (again.ends, again.status, again.was_cancelled) == (epoch.ends, epoch.status, epoch.was_cancelled)
    else:
        # What nobody was there to decide before is decided after a restart, so it may be done by now.
        assert again.state in (epoch.state, "completed")


def causes(node: Node) -> tuple[frozenset[Seq], frozenset[int]]:
    return (frozenset(), frozenset()) if node.rare is None else (node.rare.causes, node.rare.epoch_causes)


def attempts(node: Node) -> int:
    return 0 if node.rare is None else node.rare.attempts


# What follows from it


@ACCOUNTS
@pytest.mark.parametrize("chunk", range(2))
def test_a_restart_changes_nothing_where_all_that_was_decided_is_recorded(account, chunk):
    seen: Counter[str] = Counter()

    def look(world: RecordingWorld) -> None:
        expected, found = view(crashed(world)), view(recover(world, account))
        assert found["states"] == expected["states"]
        if account is told_short:
            # The lane is that of a message in retry; whether it came back from a crash since is not told.
            expected["runnable"] = found["runnable"]
        assert found == expected
        seen.update(expected["states"].values())

    for seed in range(chunk * 150, chunk * 150 + 150):
        look_now_and_then(Recorded(random.Random(seed)).program(seed), look, replays=0)
    assert {"waiting", "held", "delayed", "ready"} <= set(seen)


def view(core: Core) -> dict[str, Any]:
    nodes = core._nodes.values()
    return {
        "committed": {epoch.number: epoch.done for epoch in core.epochs.values()},
        "states": {node.seq: node.end or node.state.value for node in nodes},
        "causes": {node.seq: causes(node) for node in nodes if node.end is not None},
        "runs": {node.seq: node.run for node in nodes},
        "attempts": {node.seq: attempts(node) for node in nodes if node.end is None},
        "epochs": {epoch.number: (epoch.state, epoch.was_cancelled) for epoch in core.epochs.values()},
        "runnable": {node.seq for node in nodes if core.may_start(node)},
    }


@ACCOUNTS
def test_a_restart_shuts_only_barriers_that_something_may_still_come_through(account):
    """Rule 1 is judged by the present state and opens them again at once; rule 2 had to wait for a moment of rest."""
    seen: Counter[str] = Counter()

    def look(world: RecordingWorld) -> None:
        core = recover(world, account)
        for epoch in world.core.epochs.values():
            again = core.epochs[epoch.number]
            for kind in {barrier.kind for barrier in epoch.barriers.values() if barrier.is_open}:
                is_open = kind in again.barriers and again.barriers[kind].is_open
                is_asked = any(term.is_live for term in again.barrier(kind).waiters)
                may_come = any(
                    core._transitions.derivations.may_bring(node.message.kind, kind) for node in again.pending()
                )
                seen[f"open {is_open}"] += 1
                assert is_open or may_come or not is_asked

    for seed in range(300):
        look_now_and_then(generate(seed), look, replays=0)
    assert set(seen) == {"open True", "open False"}


# Going on after a restart


class RestartingWorld(RecordingWorld):
    """A world that goes on with a new core, made from its facts, whenever what is at work is lost.

    It also answers the questions that an interleaving asks, which no model can: a model does not restart.
    """

    account: Account = staticmethod(told_whole)
    restarts = 0

    def release(self, seqs):
        self.leased.clear()
        self.session += 1
        self.facts.append(SessionEnded(self.session - 1, clean=False))
        self.core = recover(self, self.account)
        self.nodes |= {node.seq: node for node in self.core._nodes.values()}
        self.staged.clear()
        self.restarts += 1
        self.record()

    @property
    def entries(self) -> dict[int, Any]:
        return {seq: SimpleNamespace(state=node.end or node.state.value) for seq, node in self.nodes.items()}

    @property
    def epochs(self) -> dict[int, EpochTracker]:
        return dict(self.core.epochs)

    def runnable(self) -> list[int]:
        return [seq for seq, node in self.nodes.items() if self.core.may_start(node)]

    def is_terminal(self) -> bool:
        return all(epoch.is_completed for epoch in self.core.epochs.values())


class Restless(Undisturbed):
    """A run in which nobody interferes, but the process dies again and again."""

    is_waking = False

    def wake(self) -> None:
        """Let time pass. No process dies meanwhile: that would make grace periods begin again, and look like a hang."""
        self.is_waking = True
        super().wake()
        self.is_waking = False

    def emit(self, method: str, *args: Any) -> Any:
        answer = super().emit(method, *args)
        may_die = not self.is_waking and method not in ("release", "stage", "start", "executed")
        if may_die and self.rng.random() < 0.1:
            # An executor that runs again comes to the same outcome.
            for seq in self.in_state("committing"):
                self.attempts[seq] -= 1
            super().emit("release", self.in_state("running", "committing"))
        return answer


@ACCOUNTS
@pytest.mark.parametrize("chunk", range(2))
def test_ends_do_not_depend_on_restarts(account, chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * 30, chunk * 30 + 30):
        program = generate_timeless(seed)
        expected, passed = ends_without_restarts(program)
        if passed:
            continue
        for other in range(4):
            world = world_of(program, RestartingWorld)
            world.account = account
            Restless(program, random.Random(other), [world]).run()
            ends = {(node.epoch.number, node.id): node.end for node in world.nodes.values()}
            assert ends == expected, program.describe()
            seen.update(ends.values())
            seen["restarts"] += world.restarts
    assert seen["restarts"] > 300
    assert set(seen) >= {"committed", "dead", "skipped"}


def ends_without_restarts(program: Program) -> tuple[dict[tuple[int, str], str], bool]:
    """Return how the messages of a program end, and whether one derived into a kind whose barrier had opened.

    That ends it dead. But rule 2 opened the barrier, and after a restart the barrier is shut and the message commits.
    """
    seen: Counter[str] = Counter()
    model = model_of(program, seen=seen)
    Undisturbed(program, random.Random(0), [model]).run()
    return {(x.epoch, x.message.id): x.state for x in model.entries.values()}, seen["BarrierPassed"] > 0
