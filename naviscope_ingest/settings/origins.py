"""Where values come from, and trees of values that know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import frozen

__all__ = ["DEFAULT", "KEYWORD", "Origin", "Path", "Placed", "Problem", "named", "place", "put", "shown_path"]

Path: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a value."""


@frozen
class Origin:
    """Where a value comes from.

    Attributes:
        source: a keyword in the program, an environment variable, a file, or nowhere: the default.
        name: the variable, or the path of the file.
        line: the line in the file, from 1.
    """

    source: Literal["keyword", "environment", "file", "default"]
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        """Say it as briefly as can be: ingest.toml:3, NAVISCOPE_MAX_IN_FLIGHT, keyword, default."""
        if self.source == "file" and self.line is not None:
            return f"{self.name}:{self.line}"
        return self.name or self.source


KEYWORD = Origin("keyword")
DEFAULT = Origin("default")


@frozen
class Placed:
    """A value with its origin: a plain value, or a table or list of such."""

    value: Any
    origin: Origin

    def over(self, lower: Placed) -> Placed:
        """Return this with what only the other one says. Tables are merged key by key, anything else is replaced."""
        if not isinstance(self.value, dict) or not isinstance(lower.value, dict):
            return self
        merged = dict(lower.value)
        for key, child in self.value.items():
            merged[key] = child.over(merged[key]) if key in merged else child
        return Placed(merged, self.origin)

    def origin_of(self, path: Path) -> Origin:
        """Return where the value at a path comes from."""
        found = self
        for part in path:
            if not isinstance(found.value, dict):
                # A list, or nothing at all, stands for everything within.
                return found.origin
            if part not in found.value:
                return DEFAULT
            found = found.value[part]
        return found.origin


@frozen
class Problem:
    """What is wrong with one value.

    Attributes:
        origin: where it stands.
        key: the keys that lead to it, such as "kinds.http.cap"; empty for the whole.
        reason: what is wrong, and what to do.
        nearest: the valid key that may be meant, if it is the key that is wrong.
    """

    origin: Origin
    key: str
    reason: str
    nearest: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.origin), self.key, self.reason) if part)


def place(value: object, origin: Origin) -> Placed:
    """Return plain values with one origin for all of them."""
    if isinstance(value, Mapping):
        return Placed({key: place(child, origin) for key, child in value.items()}, origin)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return Placed([place(child, origin) for child in value], origin)
    return Placed(value, origin)


def put(path: Sequence[str], value: Placed) -> Placed:
    """Return tables around a value, one for each part of the path."""
    for part in reversed(path):
        value = Placed({part: value}, value.origin)
    return value


def named(part: str | int, after: str) -> str:
    """Return a path in words with one more part."""
    if isinstance(part, int):
        return f"{after}[{part}]"
    text = part if part and all(each.isalnum() or each in "_-" for each in part) else f'"{part:.80}"'
    return f"{after}.{text}" if after else text


def shown_path(path: Path) -> str:
    """Return a path in words: kinds.http.cap, limits[2].by."""
    text = ""
    for part in path:
        text = named(part, text)
    return text
