"""The core agrees with the reference model after every event of every random program."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from naviscope_ingest._core.explain import Reason, explain_epoch, explain_message
from naviscope_spi import AnyOf, Dependency, OnMessage
from tests.model.core_world import CoreWorld
from tests.model.facts import ENDED, Rules
from tests.model.interleavings import Event, Undisturbed, play
from tests.model.programs import Program, generate, generate_timeless
from tests.model.reference import Model
from tests.model.test_reference import model_of

CHUNKS = 24
PROGRAMS_IN_CHUNK = 500
INTERLEAVINGS = 50


def core_of(program: Program) -> CoreWorld:
    return CoreWorld(
        derives=program.derives,
        on_unresolved=program.on_unresolved,
        max_deferrals=program.max_deferrals,
        keeps_outlines=program.seed % 2 == 0,
    )


class Different(AssertionError):  # noqa: N818 - it is what the comparison finds
    """The worlds disagree."""


def compare(model: Model, core: CoreWorld) -> None:
    expected, found = model.snapshot(), core.snapshot()
    if expected != found:
        differences = [
            f"{name}: model {one}, core {other}"
            for name, one, other in zip(expected._fields, expected, found, strict=True)
            if one != other
        ]
        raise Different("\n".join(differences))


def play_both(seed: int, look: Callable[[Model, CoreWorld], None], rules: Rules | None = None) -> None:
    program = generate(seed)
    model, core = model_of(program, rules), core_of(program)
    events: list[Event] = []

    def after(event: Event) -> None:
        events.append(event)
        look(model, core)

    try:
        play(program, random.Random(seed), [model, core], after)
    except AssertionError as error:
        error.add_note("\n".join([program.describe(), *map(str, events)]))
        raise


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_core_and_model_agree(chunk):
    first = 1_000_000 + chunk * PROGRAMS_IN_CHUNK
    for seed in range(first, first + PROGRAMS_IN_CHUNK):
        play_both(seed, compare)


@pytest.mark.parametrize(
    "rule", ["strict_lanes", "early_barriers", "first_bad_parent_decides", "direct_children_replay"]
)
def test_a_broken_rule_is_caught(rule):
    """The same comparison fails against a model that breaks one rule, so it would fail if the core broke it."""
    for seed in range(1_000):
        try:
            play_both(seed, compare, Rules(**{rule: True}))
        except AssertionError:
            return
    pytest.fail(f"no program of 1,000 notices {rule}")


def ends_of(program: Program, seed: int) -> dict[tuple[int, str], str]:
    """Play a program undisturbed, in one of many orders, and return how its messages ended."""
    core = core_of(program)
    model = model_of(program)
    Undisturbed(program, random.Random(seed), [model, core], lambda event: compare(model, core)).run()
    states = core.snapshot().states
    assert all(state in ENDED for state in states.values())
    return {(node.epoch.number, node.id): states[seq] for seq, node in core.nodes.items()}


@pytest.mark.parametrize("chunk", range(8))
def test_ends_do_not_depend_on_timing(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * 6, chunk * 6 + 6):
        program = generate_timeless(seed)
        first = ends_of(program, 0)
        seen.update(first.values())
        for other in range(1, INTERLEAVINGS):
            assert ends_of(program, other) == first, program.describe()
    assert seen["committed"]
    assert seen["dead"]
    assert seen["skipped"]


def test_everything_that_has_not_ended_is_explained_truly():
    kinds: Counter[str] = Counter()

    def look(model: Model, core: CoreWorld) -> None:
        for seq, node in core.nodes.items():
            explanation = explain_message(core.core, node)
            if model.entries[seq].state in ENDED:
                continue
            assert explanation.reasons, f"nothing explains {node}"
            for reason in explanation.reasons:
                assert is_true(model, seq, reason), f"{node}: {reason}"
                kinds[reason.kind] += 1
        for epoch in core.core.epochs.values():
            if not epoch.is_completed:
                assert explain_epoch(core.core, epoch).reasons or not epoch.unfinished

    for seed in range(400):
        play_both(seed, look)
    assert set(kinds) == {"dependency", "worse", "held", "timer", "lane", "priority", "queue", "running", "committing"}


def is_true(model: Model, seq: int, reason: Reason) -> bool:
    """Say whether a reason holds in the model."""
    x = model.entries[seq]
    said = model.dependency_status(seq)
    if reason.kind == "dependency":
        blocker = reason.blocker
        return (
            x.state == "waiting"
            and any(word == "open" and mentions(each, reason.dependency) for each, word in said)
            and (blocker is None or model.entries[blocker].state not in ENDED)
        )
    if reason.kind == "worse":
        return x.state == "waiting" and any(
            word in ("skip", "cancel") and mentions(each, reason.dependency) for each, word in said
        )
    if reason.kind == "held":
        return any(word == "hold" and mentions(each, reason.dependency) for each, word in said)
    if reason.kind == "timer":
        return x.state == "delayed" and x.until == reason.until
    if reason.kind == "lane":
        assert reason.blocker is not None
        ahead = model.entries[reason.blocker]
        return x.state == "ready" and seq not in model.runnable() and ahead.message.key == x.message.key
    if reason.kind == "priority":
        # A lane stands at the highest priority that waits in it, so those behind its head count too.
        urgent = (each.message.priority for each in model.entries.values() if each.state == "ready")
        return seq in model.runnable() and max(urgent) > x.message.priority
    if reason.kind == "queue":
        return seq in model.runnable()
    return x.state == reason.kind


def mentions(dependency: Dependency, wanted: str | Dependency | None) -> bool:
    """Say whether a dependency is the wanted one, or has it as a member."""
    if isinstance(wanted, str):
        wanted = OnMessage(id=wanted)
    if dependency == wanted:
        return True
    return isinstance(dependency, AnyOf) and any(mentions(member, wanted) for member in dependency.members)


def test_what_waits_for_a_message_is_listed():
    def look(model: Model, core: CoreWorld) -> None:
        for seq, node in core.nodes.items():
            listed = {(name, epoch) for name, epoch in explain_message(core.core, node).waiting}
            for other, x in model.entries.items():
                waits = [each for each, word in model.dependency_status(other) if word == "open"]
                if x.state == "waiting" and any(names(model, other, each, seq) for each in waits):
                    assert (x.message.id, model.epochs[x.epoch].name) in listed

    for seed in range(200):
        play_both(seed, look)


def names(model: Model, other: int, dependency: Dependency, seq: int) -> bool:
    if isinstance(dependency, AnyOf):
        return any(names(model, other, member, seq) for member in dependency.members)
    if not isinstance(dependency, OnMessage) or model.entries[seq].state in ENDED:
        return False
    return model.target(model.entries[other], dependency) is model.entries[seq]
