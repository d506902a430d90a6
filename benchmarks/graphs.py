"""The graphs that the runtime and its neighbours run, and the check that a run was right.

Everything comes from a fixed seed, so a graph of the same name and size is the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from attrs import define, field

LAYERS = 100
WINDOW = 1_000
SIGNALS = 1_000
SEED = 20_261_118


@define(eq=False)
class Graph:
    """Messages numbered from 0.

    Attributes:
        name: the workload.
        parents: for each message the earlier ones that it waits for.
        signals: for each message the signal that it waits for; empty unless the workload has signals.
        ids: names of the messages, as callers of a library have them.
        parent_ids: `parents` by name.
    """

    name: str
    parents: Sequence[tuple[int, ...]]
    signals: Sequence[int] = ()
    ids: list[str] = field(init=False)
    parent_ids: list[tuple[str, ...]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ids = [f"m{number}" for number in range(len(self.parents))]
        self.parent_ids = [tuple(self.ids[parent] for parent in above) for above in self.parents]

    def __len__(self) -> int:
        return len(self.parents)


def _independent(count: int, rng: random.Random) -> Graph:
    return Graph("W1", [()] * count)


def _layered(count: int, rng: random.Random) -> Graph:
    width = count // LAYERS
    parents: list[tuple[int, ...]] = [()] * width
    for layer in range(1, LAYERS):
        above = range((layer - 1) * width, layer * width)
        parents += [tuple(sorted(rng.sample(above, 2))) for _ in range(width)]
    return Graph("W2", parents)


def _chain(count: int, rng: random.Random) -> Graph:
    return Graph("W3", [(), *((number - 1,) for number in range(1, count))])


def window_parents(number: int, rng: random.Random) -> tuple[int, ...]:
    """Choose up to three messages among the last thousand."""
    first = max(0, number - WINDOW)
    return tuple(sorted(rng.sample(range(first, number), min(rng.randint(0, 3), number - first))))


def _windowed(count: int, rng: random.Random) -> Graph:
    return Graph("W4", [window_parents(number, rng) for number in range(count)])


def _signalled(count: int, rng: random.Random) -> Graph:
    return Graph("W6", [()] * count, [rng.randrange(SIGNALS) for _ in range(count)])


_MAKERS: dict[str, Callable[[int, random.Random], Graph]] = {
    "W1": _independent,
    "W2": _layered,
    "W3": _chain,
    "W4": _windowed,
    "W6": _signalled,
}

TITLES = {
    "W1": "independent",
    "W2": "100 layers, 2 parents each",
    "W3": "a chain",
    "W4": "up to 3 parents within 1,000",
    "W6": "each waits for one of 1,000 resources",
    "W7": "epochs of 5 messages",
}


def make(name: str, count: int) -> Graph:
    """Make the graph of a workload."""
    return _MAKERS[name](count, random.Random(f"{SEED}-{name}-{count}"))


def check_order(parents: Sequence[tuple[int, ...]], ran: Sequence[int]) -> None:
    """Raise unless each message ran once, after its parents."""
    count = len(parents)
    if len(ran) != count:
        raise AssertionError(f"{len(ran)} runs of {count} messages")
    place = [-1] * count
    for at, number in enumerate(ran):
        place[number] = at
    if -1 in place:
        raise AssertionError(f"message {place.index(-1)} never ran")
    for number, above in enumerate(parents):
        if any(place[parent] > place[number] for parent in above):
            raise AssertionError(f"message {number} ran before one of {above}")
