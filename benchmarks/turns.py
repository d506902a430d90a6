"""Contenders timed turn by turn in one process, so that a slow moment of the machine meets all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

__all__ = ["ratio", "take_turns"]


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Time everybody so many times; return the seconds of each, by name.

    Whoever comes second finds caches warm and memory in use, so each round begins with another one.
    """
    names = [*contenders]
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(contenders[name]())
    return taken


def ratio(taken: Mapping[str, list[float]], name: str, beside: str) -> float:
    """Return how many times as fast one is as another: the median over the rounds, each compared within itself."""
    return statistics.median(theirs / ours for ours, theirs in zip(taken[name], taken[beside], strict=True))
