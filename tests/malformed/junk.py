"""Bad input, made from a seed: values that nobody should pass, and texts and bytes that were damaged."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import random
import string
from collections.abc import Callable, Iterator
from typing import Any


class Colour(enum.StrEnum):
    RED = "red"


class HostileError(Exception):
    """What objects of the caller raise; it is theirs to see."""


class Hostile:
    """Raises whatever is done to it."""

    def __repr__(self):
        raise HostileError("no repr")

    def __str__(self):
        raise HostileError("no str")

    def __eq__(self, other):
        raise HostileError("no comparison")

    def __hash__(self):
        raise HostileError("no hash")

    def __bool__(self):
        raise HostileError("no truth")

    def __iter__(self):
        raise HostileError("no iteration")

    def __len__(self):
        raise HostileError("no length")


class Text(str):
    """A string of a kind of its own."""

    __slots__ = ()


def _endless() -> Iterator[int]:
    while True:
        yield 1


TEXTS = (
    "",
    " ",
    "a",
    "a" * 300,
    "ä" * 200,
    "\x00",
    "a\nb",
    "\u2028",
    "\ud800",
    "\U0001f600" * 100,
    "a/b",
    "../../etc/passwd",
    "%s%n",
    "'; drop table messages; --",
    "a:b",
    "1",
    "-1",
    "nan",
    "none",
    "null",
    "true",
    "{}",
    "[]",
    "[" * 5_000,
    "x" * 100_000,
)
NUMBERS = (
    0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**70, 10**30, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf, True, False,
    decimal.Decimal("NaN"), 1j,
)  # fmt: skip
THINGS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    Hostile,
    object,
    lambda: Hostile,
    lambda: Colour.RED,
    lambda: Text("text"),
    lambda: b"",
    lambda: b"\xff\x00" * 10,
    lambda: bytearray(b"a"),
    set,
    lambda: {1},
    lambda: frozenset({"a"}),
    lambda: (each for each in (1, 2)),
    lambda: _endless,
    lambda: print,
    lambda: len,
    lambda: datetime.datetime(2026, 1, 1),
    lambda: range(3),
    lambda: Exception("no"),
    lambda: ...,
    lambda: type,
    lambda: memoryview(b"a"),
)


def value(rng: random.Random, depth: int = 3) -> Any:
    """Return something that nobody should pass."""
    draw = rng.random()
    if draw < 0.3:
        return rng.choice(TEXTS)
    if draw < 0.5:
        return rng.choice(NUMBERS)
    if draw < 0.75 or not depth:
        return rng.choice(THINGS)()
    size = rng.choice((0, 1, 2, 5))
    if draw < 0.85:
        return [value(rng, depth - 1) for _ in range(size)]
    if draw < 0.9:
        return tuple(value(rng, depth - 1) for _ in range(size))
    if draw < 0.97:
        return {rng.choice(TEXTS[:20]): value(rng, depth - 1) for _ in range(size)}
    nested: Any = 1
    for _ in range(2_000):
        nested = [nested]
    return nested


def plain(rng: random.Random, depth: int = 4) -> Any:
    """Return something that JSON can hold."""
    draw = rng.random()
    if draw < 0.4 or not depth:
        return rng.choice((None, True, False, 0, -1, 2**70, 1.5, 1e300, "", "a", "payload", "m1", *TEXTS[:10]))
    if draw < 0.7:
        return [plain(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {
        rng.choice((*TEXTS[:10], "id", "kind", "payload", "op")): plain(rng, depth - 1)
        for _ in range(rng.randint(0, 3))
    }


def damaged_text(rng: random.Random, text: str) -> str:
    """Damage a text in one to three places."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(text))
        draw = rng.random()
        if draw < 0.25:
            text = text[:at] + text[at + rng.randint(1, 5) :]
        elif draw < 0.5:
            text = text[:at] + rng.choice((*string.printable, "\x00", "\ud800", "é", '"', "}", "]", ",")) + text[at:]
        elif draw < 0.7:
            other = rng.randint(0, len(text))
            text = text[:at] + text[other:]
        elif draw < 0.9:
            text = text[:at] + rng.choice(TEXTS[:20]) + text[at + 1 :]
        else:
            text = text[:at]
    return text


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Damage data: bits that flip, an end that is missing, a piece of garbage, a piece that stands elsewhere."""
    found = bytearray(data)
    draw = rng.random()
    if draw < 0.5:
        for _ in range(rng.choice((1, 1, 2, 20))):
            at = rng.randrange(len(found))
            found[at] ^= 1 << rng.randrange(8)
    elif draw < 0.65:
        del found[rng.randrange(len(found)) :]
    elif draw < 0.85:
        at, size = rng.randrange(len(found)), rng.choice((1, 16, 512, 4096))
        found[at : at + size] = rng.choice((bytes(size), rng.randbytes(size), b"\xff" * size))
    elif draw < 0.95:
        at, size = rng.randrange(len(found)), rng.choice((4, 512, 4096))
        other = rng.randrange(len(found))
        found[at : at + size] = found[other : other + size]
    else:
        found = bytearray(rng.randbytes(rng.choice((0, 1, 15, 100, 4096))))
    return bytes(found)
