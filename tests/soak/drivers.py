"""What the soak test does with a seed: each driver plays one program and raises if a promise is broken.

A driver takes a seed and returns what it played. To add one, write the function and name it in `DRIVERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attrs import field, frozen

from naviscope_ingest.testing import simulate
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
from tests.simulation.kernel_program import KernelProgram


@frozen
class Played:
    """What came of one program that kept its promises.

    Attributes:
        events: how much happened.
        counts: what happened, by name; names of a table begin with that of the table and a colon.
        digest: the hash of what happened, if the driver has one.
    """

    events: int
    counts: Counter[str] = field(factory=Counter)
    digest: str | None = None


Driver = Callable[[int], Played]

MOST_OPERATIONS = 700
"""More than a run on the simulated disk has."""

MOST_KEPT = 20
"""How many violations of one chunk are kept; the rest is counted."""

EVERY_DIGEST = 100
"""Of which seeds the hash is kept."""


def play_core(seed: int) -> Played:
    """Compare the core with the reference model after every event of a program."""
    events = 0

    def look(model: Model, core: CoreWorld) -> None:
        nonlocal events
        events += 1
        compare(model, core)

    play_both(seed, look)
    return Played(events)


def play_runtime(seed: int) -> Played:
    """Run a program through the whole runtime, at random speeds and with some trouble."""
    program = generate(seed)
    if names_messages_of_other_epochs(program):
        return Played(0)
    stage = Stage(program, seed)
    stage.play(troubles=seed % 4)
    return Played(sum(stage.actor.attempts.values()))


def play_disk(seed: int) -> Played:
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
    return Played(images)


def play_kernel(seed: int) -> Played:
    """Run a program through the whole runtime on the simulated disk, with every fault."""
    report = simulate(KernelProgram, seeds=[seed])
    counts = Counter({"crashes": report.crashes, "power_cuts": report.power_cuts})
    counts.update({f"faults:{name}": count for name, count in report.faults.items()})
    counts.update({f"sometimes:{name}": count for name, count in report.sometimes.items()})
    return Played(report.steps, counts, report.digests[seed])


DRIVERS: Mapping[str, Driver] = {"kernel": play_kernel, "core": play_core, "runtime": play_runtime, "disk": play_disk}


@frozen
class Tally:
    """What came of some programs.

    Attributes:
        driver: who played them.
        programs, events: how many.
        violations: how many programs broke a promise.
        found: the first of them, by seed, with the error in a line.
        counts: what happened, by name.
        digests: the hash of what happened for every hundredth seed.
    """

    driver: str
    programs: int = 0
    events: int = 0
    violations: int = 0
    found: Sequence[tuple[int, str]] = ()
    counts: Counter[str] = field(factory=Counter)
    digests: Mapping[int, str] = field(factory=dict)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.driver,
            self.programs + other.programs,
            self.events + other.events,
            self.violations + other.violations,
            (*self.found, *other.found)[:MOST_KEPT],
            self.counts + other.counts,
            {**self.digests, **other.digests},
        )


def play_chunk(driver: str, first: int, count: int) -> Tally:
    """Play the programs of consecutive seeds."""
    events, violations = 0, 0
    found: list[tuple[int, str]] = []
    counts: Counter[str] = Counter()
    digests: dict[int, str] = {}
    for seed in range(first, first + count):
        try:
            played = DRIVERS[driver](seed)
        except Exception as error:
            violations += 1
            found.append((seed, _in_a_line(error)))
        else:
            events += played.events
            counts += played.counts
            if played.digest is not None and seed % EVERY_DIGEST == 0:
                digests[seed] = played.digest
    return Tally(driver, count, events, violations, found[:MOST_KEPT], counts, digests)


def _in_a_line(error: BaseException) -> str:
    cause = error.__cause__
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}"[:160]
    return line if cause is None else f"{line}; from {type(cause).__name__}"
