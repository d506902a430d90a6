"""What can go wrong in a simulation, and how much of it a seed draws."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, get_args

from attrs import frozen

__all__ = ["FAULTS", "FaultName", "Mix", "check_faults"]

FaultName: TypeAlias = Literal[
    "kill",
    "power",
    "recovery",
    "stop",
    "io",
    "full",
    "sync",
    "slow executor",
    "hanging executor",
    "failing executor",
    "slow sink",
    "hanging sink",
    "failing sink",
    "deceiving sink",
    "resend",
    "late submit",
    "clock jump",
    "pause",
]
"""The name of a fault; `FAULTS` says what each is."""

FAULTS: Final[Mapping[FaultName, str]] = {
    "kill": "the process dies, at any step of a task or any operation of the disk; what was written is there",
    "power": "the same, and of what was not synced nothing survives, or all, or some, or torn parts of it",
    "recovery": "the process dies while it starts",
    "stop": "somebody stops the runtime in order",
    "io": "operations of the disk fail, one or all from some moment on",
    "full": "the disk is full",
    "sync": "a sync fails, and what it was to save may be lost",
    "slow executor": "an executor takes its time",
    "hanging executor": "an executor does not return for a quarter of an hour",
    "failing executor": "an executor raises `Transient` before or after it has done its work",
    "slow sink": "a sink takes its time",
    "hanging sink": "a sink does not return for a quarter of an hour",
    "failing sink": "a sink raises `Transient` and has done nothing",
    "deceiving sink": "a sink raises `Transient` although it has committed",
    "resend": "a producer submits again what was accepted",
    "late submit": "a producer submits to an epoch that was sealed",
    "clock jump": "the wall clock is set, forwards or back",
    "pause": "the whole process stands still for minutes",
}
"""Every fault, and what it is."""

_DEADLY: Final[tuple[FaultName, ...]] = ("kill", "power", "recovery")
_LETHAL: Final[tuple[FaultName, ...]] = (*_DEADLY, "stop", "io", "full", "sync")
_SETTING: Final[tuple[FaultName, ...]] = ("clock jump", "pause")
_LIVES: Final = (2, 5, 8, 12, 16)
# How much likelier the process is killed than that it fails or is stopped.
_KILLS: Final = 3.0


def check_faults(faults: Iterable[str] | None) -> frozenset[FaultName]:
    """Return the faults of these names; None for all.

    Raises:
        ValueError: there is none of a name.
    """
    if faults is None:
        return frozenset(FAULTS)
    names = frozenset([faults] if isinstance(faults, str) else faults)
    unknown = sorted(names - set(get_args(FaultName)))
    if unknown:
        raise ValueError(f"faults: there is no {unknown[0]!r}; there are {', '.join(FAULTS)}")
    return frozenset(each for each in FAULTS if each in names)


@frozen
class Mix:
    """The faults of one seed.

    Attributes:
        lives: how many processes are given trouble, one after the other.
        rates: how likely each fault is where it can happen.
    """

    lives: int
    rates: Mapping[FaultName, float]

    @classmethod
    def draw(cls, rng: random.Random, allowed: frozenset[FaultName]) -> Mix:
        """Draw a mix. Some have nothing, some have nearly everything."""
        intensity = rng.choice((0.0, 0.15, 0.4, 0.4, 0.7, 0.7, 0.95, 0.95))
        # Always in the same order, so that leaving a fault out changes nothing about the others.
        drawn: dict[FaultName, float] = {name: intensity * rng.random() * (rng.random() < 0.65) for name in FAULTS}
        rates: dict[FaultName, float] = {name: rate for name, rate in drawn.items() if rate and name in allowed}
        lives = rng.choice(_LIVES) if rates else 0
        if not any(name in rates for name in _LETHAL):
            lives = min(lives, 1)
        return cls(lives, rates)

    def hits(self, rng: random.Random, fault: FaultName) -> bool:
        """Throw a die for a fault. A fault that is not in the mix takes no number."""
        rate = self.rates.get(fault)
        return rate is not None and rng.random() < rate

    def lethal(self, rng: random.Random) -> FaultName | None:
        """Draw how a process ends, if by trouble."""
        ways: list[FaultName] = [name for name in _LETHAL if name in self.rates]
        if not ways or rng.random() < 0.1:
            return None
        weights = [self.rates[name] * (_KILLS if name in _DEADLY else 1.0) for name in ways]
        return rng.choices(ways, weights)[0]

    def setting(self, rng: random.Random) -> list[FaultName]:
        """Draw what happens around a process."""
        return [name for name in _SETTING if self.hits(rng, name)]
