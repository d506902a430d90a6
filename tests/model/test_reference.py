"""The reference model keeps its promises over random programs, and each broken rule is noticed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from naviscope_spi import AnyOf, Dependency, OnBarrier, OnEpoch, OnMessage, OnResource
from tests.model.facts import BAD, ENDED, Entry
from tests.model.interleavings import Event, apply, play
from tests.model.programs import Program, generate
from tests.model.reference import Model, Rules

PROGRAMS = 1_500

SOMETIMES = """
BarrierPassed | accepted after the deadline | barrier closed by replay | barrier rule 1 | barrier rule 2 |
barrier rule 2 with sources | blocked | cancelled epoch derives nothing | cross-epoch replay | cycle |
cycle across epochs | deadline | deferred into death | deferred on what is there | delayed | ended by an epoch |
ended by another epoch's message | epoch cancelled | expired by expires_at | group failed | group unresolved |
group waited for worse | held | held, then cancelled | held, then dead | held, then ready | held, then waiting |
lane held in retry | latched barrier | released | repair completed | replay closure > 1 | several causes | staged |
staged in vain | timeout fail | timeout hold | timeout run | timeout skip | unknown id in a completed epoch |
unresolved fail | unresolved run | unresolved skip | waited for a worse word
"""


def model_of(program: Program, rules: Rules | None = None, seen: Counter[str] | None = None) -> Model:
    return Model(
        derives=program.derives,
        on_unresolved=program.on_unresolved,
        max_deferrals=program.max_deferrals,
        rules=rules or Rules(),
        seen=seen,
    )


class Watch:
    """Looks at a model after each event and knows the promises, but none of the rules."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.last: dict[int, tuple[int, str]] = {}
        self.met: set[tuple[int, int, Dependency | str]] = set()

    def __call__(self, event: Event) -> None:
        model = self.model
        unfinished = [model.entries[seq] for seq in model.unfinished()]
        if event[0] == "start":
            self.check_start(model.entries[event[1][0]])
        self.check_ends(event)
        self.check_epochs(unfinished)
        self.check_lanes(unfinished)
        for x in unfinished:
            self.check_waiting(x)
            self.met |= {(x.seq, x.run, each) for each in x.message.depends_on if self.is_met(x, each)}

    def check_ends(self, event: Event) -> None:
        """One end for each run, only a replay begins another, committed is final, and causes are still there."""
        for x in self.model.entries.values():
            run, state = self.last.get(x.seq, (0, "waiting"))
            if x.run == run:
                assert state not in ENDED or x.state == state, f"message {x.seq} ended {state}, then {x.state}"
            else:
                assert event[0] == "replay" and x.run == run + 1 and state in BAD
            self.last[x.seq] = (x.run, x.state)
            if x.state in BAD:
                assert all(self.model.entries[seq].state in BAD for seq in x.causes[0])
                assert all(self.model.epochs[number].state == "completed" for number in x.causes[1])

    def check_epochs(self, unfinished: list[Entry]) -> None:
        """An epoch is completed exactly when it is sealed and empty; no message of a kind outlives its barrier."""
        for epoch in self.model.epochs.values():
            kinds = {x.message.kind for x in unfinished if x.epoch == epoch.number}
            assert (epoch.state == "completed") == (epoch.is_sealed and not kinds)
            assert not kinds & epoch.opened

    def check_lanes(self, unfinished: list[Entry]) -> None:
        """A lane has one holder at most."""
        holders = [x.message.key for x in unfinished if x.state in ("running", "committing") or x.in_retry]
        keys = [key for key in holders if key is not None]
        assert len(keys) == len(set(keys))

    def check_waiting(self, x: Entry) -> None:
        """What waits has an open dependency, and what is held is held by something."""
        said = [word for _, word in self.model.dependency_status(x.seq)]
        if x.state == "waiting":
            assert "open" in said
        if x.state == "held":
            assert "hold" in said and "open" not in said

    def check_start(self, x: Entry) -> None:
        """Nothing starts before each dependency was met in this run, unless it was told to run without."""
        for each in x.message.depends_on:
            if (x.seq, x.run, each) not in self.met and not self.is_met(x, each):
                assert self.is_excused(x, each), f"message {x.seq} started without {each}"

    def is_excused(self, x: Entry, each: str | Dependency) -> bool:
        on_unresolved = None if isinstance(each, str) else each.on_unresolved
        if (on_unresolved or self.model.epochs[x.epoch].on_unresolved or self.model.on_unresolved) == "run":
            return True
        return not isinstance(each, str) and each.timeout is not None and each.otherwise.expired == "run"

    def is_met(self, x: Entry, each: str | Dependency) -> bool:
        if isinstance(each, str):
            each = OnMessage(id=each)
        epoch = self.model.epochs[x.epoch]
        if isinstance(each, OnMessage):
            target = self.model.target(x, each)
            return target is not None and (target.state == "committed" or self.passes(each, target.state))
        if isinstance(each, OnResource):
            versions = (scope.get(each.name, -1) for scope in (epoch.versions, self.model.versions))
            return max(versions) >= each.min_version
        if isinstance(each, OnBarrier):
            return each.kind in epoch.opened
        if isinstance(each, OnEpoch):
            other = self.model.names.get(each.name)
            if other is None or other.state != "completed":
                return False
            ends = {y.state for y in self.model.entries.values() if y.epoch == other.number}
            return ends <= {"committed", "skipped"} or self.passes(each, "cancelled" if other.is_cancelled else "dead")
        assert isinstance(each, AnyOf)
        # A group that was told to run despite its failure may have failed in any way.
        return sum(self.is_met(x, member) for member in each.members) >= each.at_least or "run" in each.otherwise

    def passes(self, each: Dependency, state: str) -> bool:
        return state in BAD and getattr(each.otherwise, state) == "run"


def test_random_programs_keep_the_promises():
    seen: Counter[str] = Counter()
    for seed in range(PROGRAMS):
        program = generate(seed)
        model = model_of(program, seen=seen)
        events: list[Event] = []
        watch = Watch(model)

        def look(event: Event, watch: Watch = watch, events: list[Event] = events) -> None:
            events.append(event)
            watch(event)

        try:
            play(program, random.Random(seed), [model], look)
        except AssertionError as error:
            error.add_note("\n".join([program.describe(), *map(str, events)]))
            raise
        assert model.is_terminal() and not model.unfinished()
    missing = [fact.strip() for fact in SOMETIMES.split("|") if not seen[fact.strip()]]
    assert not missing, f"never happened in {PROGRAMS} programs: {missing}"


def test_the_same_events_give_the_same_world():
    for seed in range(50):
        program = generate(seed)
        first, second = model_of(program), model_of(program)
        for event in play(program, random.Random(seed), [first]):
            apply(second, event)
        assert first.snapshot() == second.snapshot()


class Different(Exception):  # noqa: N818 - it is what the test looks for
    """The broken world has been noticed."""


def differs(seed: int, rules: Rules) -> bool:
    program = generate(seed)
    right, broken = model_of(program), model_of(program, rules)

    def compare(event: Event) -> None:
        if right.snapshot() != broken.snapshot():
            raise Different

    try:
        play(program, random.Random(seed), [right, broken], compare)
    except Different:
        return True
    return False


@pytest.mark.parametrize(
    "rule", ["strict_lanes", "early_barriers", "first_bad_parent_decides", "direct_children_replay"]
)
def test_a_broken_rule_is_noticed(rule):
    found = sum(differs(seed, Rules(**{rule: True})) for seed in range(200))
    assert found >= 2, f"only {found} of 200 programs notice {rule}"


def test_unbroken_rules_never_differ():
    assert not any(differs(seed, Rules()) for seed in range(50))
