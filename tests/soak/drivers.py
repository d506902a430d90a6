"""What the soak test does with a seed: each driver plays one program and raises if a promise is broken.

A driver takes a seed and returns how many events it played. To add one, write the function and name it in `DRIVERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from tests.durability.backup_scenario import BackupScenario
from tests.durability.sink_scenario import SinkScenario
from tests.durability.store_scenario import StoreScenario
from tests.durability.sweep import shown, sweep
from tests.durability.upgrade_scenario import OLDER, UpgradeScenario
from tests.model.core_world import CoreWorld
from tests.model.programs import generate
from tests.model.reference import Model
from tests.model.test_core import compare, play_both
from tests.runtime.test_properties import Stage, names_messages_of_other_epochs

Driver = Callable[[int], int]

MOST_OPERATIONS = 700
"""More than a run on the simulated disk has."""

MOST_KEPT = 20
"""How many violations of one chunk are kept; the rest is counted."""


def play_core(seed: int) -> int:
    """Compare the core with the reference model after every event of a program."""
    events = 0

    def look(model: Model, core: CoreWorld) -> None:
        nonlocal events
        events += 1
        compare(model, core)

    play_both(seed, look)
    return events


def play_runtime(seed: int) -> int:
    """Run a program through the whole runtime, at random speeds and with some trouble."""
    program = generate(seed)
    if names_messages_of_other_epochs(program):
        return 0
    stage = Stage(program, seed)
    stage.play(troubles=seed % 4)
    return sum(stage.actor.attempts.values())


def play_disk(seed: int) -> int:
    """Kill, cut the power and fail at one of the I/O operations of store, sink, backup and upgrade.

    Consecutive seeds take consecutive operations, and every seventh cuts the recovery too.
    """
    images = 0
    for scenario in (StoreScenario(), SinkScenario(), BackupScenario(), *(UpgradeScenario(*older) for older in OLDER)):
        found = sweep(
            scenario,
            stride=MOST_OPERATIONS,
            start=seed % MOST_OPERATIONS,
            in_recovery=1 if seed % 7 == 0 else 0,
            then_power=True,
        )
        assert found.violations == [], "; ".join(shown(found.violations))
        images += sum(found.images.values())
    return images


DRIVERS: Mapping[str, Driver] = {"core": play_core, "runtime": play_runtime, "disk": play_disk}


@frozen
class Tally:
    """What came of some programs.

    Attributes:
        driver: who played them.
        programs, events: how many.
        violations: how many programs broke a promise.
        found: the first of them, by seed, with the error in a line.
    """

    driver: str
    programs: int = 0
    events: int = 0
    violations: int = 0
    found: Sequence[tuple[int, str]] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.driver,
            self.programs + other.programs,
            self.events + other.events,
            self.violations + other.violations,
            (*self.found, *other.found)[:MOST_KEPT],
        )


def play_chunk(driver: str, first: int, count: int) -> Tally:
    """Play the programs of consecutive seeds."""
    events, violations = 0, 0
    found: list[tuple[int, str]] = []
    for seed in range(first, first + count):
        try:
            events += DRIVERS[driver](seed)
        except Exception as error:
            violations += 1
            found.append((seed, _in_a_line(error)))
    return Tally(driver, count, events, violations, found[:MOST_KEPT])


def _in_a_line(error: BaseException) -> str:
    cause = error.__cause__
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}"[:160]
    return line if cause is None else f"{line}; from {type(cause).__name__}"
