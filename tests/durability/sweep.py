"""Plays a scenario again and again, with trouble at another operation each time, and checks what is left.

A scenario has `run(disk, seen)`, which works on a disk and notes in `seen` what was acknowledged, and
`check(disk, seen)`, which opens the disk as the next process would, and raises `AssertionError` if a promise is broken;
`recover(disk)` is its beginning, which is cut too.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

from naviscope_ingest.testing.disk import BEFALLS, CHANGES, Fault, Operation, SimulatedDisk, Survival

FAULTS: tuple[Fault, ...] = ("io", "full", "sync")


class Scenario(Protocol):
    """Some work on a disk, and what must hold after it was interrupted."""

    tolerated: tuple[type[BaseException], ...]

    def disk(self) -> SimulatedDisk:
        """Return a new disk."""

    def start(self) -> Any:
        """Return an empty note of what was acknowledged."""

    def run(self, disk: SimulatedDisk, seen: Any) -> None:
        """Work; note what was acknowledged while the process lived."""

    def recover(self, disk: SimulatedDisk) -> None:
        """Start as the next process would, and change nothing that can be seen."""

    def check(self, disk: SimulatedDisk, seen: Any) -> None:
        """Recover, raise `AssertionError` if a promise is broken, and go on working."""


class Violation(NamedTuple):
    """A broken promise: what happened at which operation, what survived, and what was wrong then."""

    trouble: str
    at: Operation
    survival: str
    error: str = ""


class Findings(NamedTuple):
    """What a sweep saw."""

    images: Counter[str]
    violations: list[Violation]


ALL = ("kill", "power", *FAULTS)
# How many operations after a fault the power is cut as well.
LATER = (3, 9, 30)
# At how many places the process after a failed one is cut.
PARTS = 4


def sweep(
    scenario: Scenario,
    *,
    stride: int = 1,
    start: int = 0,
    seeds: int = 1,
    most: int = 3,
    in_recovery: int = 0,
    troubles: Collection[str] = ALL,
    then_power: bool = False,
    enough: int = sys.maxsize,
) -> Findings:
    """Play every trouble at every `stride`-th operation.

    Args:
        scenario: what to play.
        stride: 1 is every operation.
        start: the first of them.
        seeds: random variants of each power cut.
        most: prefixes of each power cut.
        in_recovery: also cut the recovery after every such image, at every operation; 0 does not.
        troubles: which kinds of trouble.
        then_power: also cut the power some operations after each fault, and while the next process recovers.
        enough: stop after so many violations.
    """
    found = Findings(Counter(), [])
    # A connection to a dead disk cannot close in order, and says so where nobody can catch it.
    with patch.object(sys, "unraisablehook", lambda raised: None):
        which = slice(start, None, stride)
        kinds = [*troubles, *(["then power"] if then_power else [])]
        for _ in _played(scenario, found, which, (seeds, most, in_recovery), kinds):
            if len(found.violations) >= enough:
                break
        gc.collect()
    return found


def _played(
    scenario: Scenario, found: Findings, which: slice, variants: tuple[int, int, int], troubles: Collection[str]
) -> Iterator[None]:
    log = operations(scenario)
    changes = [operation for operation in log if operation.kind in CHANGES]
    if {"kill", "power"} & set(troubles):
        for turn, operation in enumerate(changes[which]):
            _stop(scenario, operation, turn, variants, found)
            yield
    for fault in FAULTS:
        befallen = [operation for operation in log if operation.kind in BEFALLS[fault]] if fault in troubles else []
        for operation in befallen[which]:
            for once in (True, False):
                _fail(scenario, operation, fault, once, found)
            if "then power" in troubles:
                _fail_and_cut(scenario, operation, fault, found)
            yield


def _stop(scenario: Scenario, operation: Operation, turn: int, variants: tuple[int, int, int], found: Findings) -> None:
    seeds, most, in_recovery = variants
    disk, seen = interrupted(scenario, operation.number)
    _judge(scenario, disk.killed_image, seen, found, Violation("kill", operation, "all of it"))
    for survival in disk.survivals(seeds=seeds, most=most):
        _judge(scenario, partial(disk.image, survival), seen, found, Violation("power", operation, str(survival)))
    if in_recovery and turn % in_recovery == in_recovery // 2:
        _cut_recovery(scenario, disk.image(Survival("torn", turn)), seen, found, operation)


def operations(scenario: Scenario) -> list[Operation]:
    """Return the operations of an undisturbed run, after checking that it is well."""
    disk = scenario.disk()
    disk.log = []
    seen = scenario.start()
    scenario.run(disk, seen)
    assert disk.log is not None
    log = list(disk.log)
    scenario.check(disk.killed_image(), seen)
    return log


def interrupted(scenario: Scenario, number: int) -> tuple[SimulatedDisk, Any]:
    """Run until the process is killed at an operation."""
    disk = scenario.disk()
    disk.kill_at(number)
    seen = scenario.start()
    _run(scenario, disk, seen)
    assert disk.is_dead, "the run did not come to that operation: it is not repeatable"
    return disk, seen


def _run(scenario: Scenario, disk: SimulatedDisk, seen: Any) -> None:
    try:
        scenario.run(disk, seen)
    except BaseExceptionGroup as errors:
        if errors.split(scenario.tolerated)[1] is not None:
            raise
    except scenario.tolerated:
        pass


def _fail(scenario: Scenario, operation: Operation, fault: Fault, once: bool, found: Findings) -> None:
    disk = scenario.disk()
    disk.fail_at(operation.number, fault, once=once)
    seen = scenario.start()
    trouble = f"{fault} {'once' if once else 'for good'}"
    try:
        _run(scenario, disk, seen)
    except Exception as error:
        found.violations.append(Violation(trouble, operation, "in the run", _in_a_line(error)))
    disk.heal()
    disk.kill()
    _judge(scenario, disk.killed_image, seen, found, Violation(trouble, operation, "all of it"))
    for survival in (Survival("none"), Survival("torn", operation.number)):
        _judge(scenario, partial(disk.image, survival), seen, found, Violation(trouble, operation, str(survival)))


def _fail_and_cut(scenario: Scenario, operation: Operation, fault: Fault, found: Findings) -> None:
    for later in LATER:
        disk = scenario.disk()
        disk.fail_at(operation.number, fault)
        disk.kill_at(operation.number + later)
        seen = scenario.start()
        _run(scenario, disk, seen)
        disk.kill()
        for survival in (Survival("none"), Survival("torn", operation.number)):
            case = Violation(f"{fault}, then power", operation, f"{survival} {later} operations later")
            _judge(scenario, partial(disk.image, survival), seen, found, case)
    _fail_and_cut_the_next(scenario, operation, fault, found)


def _fail_and_cut_the_next(scenario: Scenario, operation: Operation, fault: Fault, found: Findings) -> None:
    """Let the process fail, start the next one, and cut the power some time in its recovery or after it."""
    disk = scenario.disk()
    disk.fail_at(operation.number, fault, once=False)
    seen = scenario.start()
    _run(scenario, disk, seen)
    disk.kill()
    probe = disk.killed_image()
    scenario.recover(probe)
    for part in range(1, PARTS + 1):
        number = probe.operations * part // PARTS
        following = disk.killed_image()
        following.kill_at(number)
        with suppress(*scenario.tolerated, BaseExceptionGroup):
            scenario.recover(following)
        following.kill()
        for survival in (Survival("none"), Survival("torn", operation.number)):
            case = Violation(f"{fault}, then power", operation, f"{survival} at {number} of the next process")
            _judge(scenario, partial(following.image, survival), seen, found, case)


def _cut_recovery(scenario: Scenario, before: SimulatedDisk, seen: Any, found: Findings, operation: Operation) -> None:
    probe = before.killed_image()
    scenario.recover(probe)
    for number in range(probe.operations):
        disk = before.killed_image()
        disk.kill_at(number)
        with suppress(*scenario.tolerated, BaseExceptionGroup):
            scenario.recover(disk)
        assert disk.is_dead, "the recovery is not repeatable"
        for survival in (Survival("none"), Survival("all"), Survival("torn", number)):
            text = f"{survival} at {number} of the recovery"
            _judge(scenario, partial(disk.image, survival), seen, found, Violation("recovery", operation, text))


def _judge(scenario: Scenario, image: Callable[[], SimulatedDisk], seen: Any, found: Findings, case: Violation) -> None:
    found.images[case.trouble] += 1
    try:
        scenario.check(image(), seen)
    except Exception as error:
        found.violations.append(case._replace(error=_in_a_line(error)))


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def shown(violations: list[Violation]) -> Iterator[str]:
    """Yield a line for the first violations."""
    for each in violations[:10]:
        yield f"{each.trouble} at {each.at}, {each.survival}: {each.error}"
