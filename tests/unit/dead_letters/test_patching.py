"""Editing payloads by paths: what is named is replaced, everything else stays, and the type is kept."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_ingest.dead_letters.patching import patched
from naviscope_ingest.errors import PatchRefused

KEYS = st.text("abcxyz_- ", min_size=1, max_size=5)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
PLAIN = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


def paths(value: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return every path into plain data."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [before] if before else []
    for name, part in parts:
        found += paths(part, (*before, str(name)))
    return found


def at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


@given(st.data())
def test_exactly_what_is_named_is_replaced(data):
    payload = data.draw(PLAIN.filter(lambda value: len(paths(value)) > 0))
    path = data.draw(st.sampled_from(paths(payload)))
    value = data.draw(PLAIN)
    before = copy.deepcopy(payload)
    result = patched(payload, {".".join(path): value})
    assert payload == before
    assert at(result, path) == value
    others = [each for each in paths(payload) if each[: len(path)] != path and path[: len(each)] != each]
    assert all(at(result, each) == at(payload, each) for each in others)
    assert len(paths(result)) == len(paths(payload)) - len(paths(at(payload, path))) + len(paths(value))


@given(st.data())
def test_a_path_that_leads_nowhere_is_refused(data):
    payload = data.draw(PLAIN)
    path = ".".join(data.draw(st.lists(KEYS | st.integers(0, 5).map(str), min_size=1, max_size=4)))
    if tuple(path.split(".")) not in paths(payload):
        with pytest.raises(PatchRefused) as caught:
            patched(payload, {path: 1})
        assert caught.value.path == path


@given(st.data())
def test_putting_a_part_back_changes_nothing(data):
    payload = data.draw(PLAIN.filter(lambda value: len(paths(value)) > 0))
    path = data.draw(st.sampled_from(paths(payload)))
    assert patched(payload, {".".join(path): at(payload, path)}) == payload


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0
    tags: tuple[str, ...] = ()


@attrs.frozen
class Sized:
    point: Point
    size: int = 1


class Shape(msgspec.Struct, omit_defaults=True):
    name: str = ""
    sized: Sized | None = None
    by_id: dict[int, Point] = {}


WHOLE = Shape("s", Sized(Point(1, 2.0, ("a", "b")), 3), {7: Point(1)})


@pytest.mark.parametrize(
    ("path", "value", "read", "expected"),
    [
        ("name", "t", lambda shape: shape.name, "t"),
        ("sized.point.x", 5, lambda shape: shape.sized.point.x, 5),
        ("sized.point.y", 5, lambda shape: shape.sized.point.y, 5.0),
        ("sized.point.tags.1", "c", lambda shape: shape.sized.point.tags, ("a", "c")),
        ("sized.size", 9, lambda shape: shape.sized.size, 9),
        ("sized.point", {"x": 4}, lambda shape: shape.sized.point, Point(4)),
        ("sized", None, lambda shape: shape.sized, None),
        ("by_id.7.x", 2, lambda shape: shape.by_id, {7: Point(2)}),
    ],
)
def test_classes_stay_what_they_are(path, value, read, expected):
    result = patched(WHOLE, {path: value})
    assert type(result) is Shape
    assert read(result) == expected
    assert type(read(result)) is type(expected)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("sized.point.x", "5", "Expected `int`, got `str`"),
        ("sized.point", {"y": 1}, "missing required field `x`"),
        ("sized.pint", 1, "Sized has no field 'pint': did you mean 'point'"),
        ("by_id.8", {"x": 1}, "there is no key '8'"),
        ("sized.point.tags.2", "c", "no place in a list of 2"),
        ("name.first", "x", "which has none"),
        ("a..b", 1, "no field 'a'"),
        (".".join("a" * 60), 1, "a path is names and numbers"),
    ],
)
def test_what_does_not_fit_says_why(path, value, says):
    with pytest.raises(PatchRefused, match=says):
        patched(WHOLE, {path: value})


def test_private_fields_are_not_lost():
    @attrs.frozen
    class Private:
        name: str
        _secret: int = 0

    with pytest.raises(PatchRefused, match="Private has private fields: give the whole payload"):
        patched(Private("a", 5), {"name": "b"})


def test_a_constructor_that_refuses_is_heard():
    @dataclasses.dataclass
    class Positive:
        value: int

        def __post_init__(self):
            if self.value < 0:
                raise ArithmeticError("it is negative")

    with pytest.raises(PatchRefused, match="it is negative"):
        patched(Positive(1), {"value": -1})


@pytest.mark.parametrize("patch", [{}, None, [("a", 1)], {5: 1}])
def test_a_patch_is_a_mapping_of_paths(patch):
    with pytest.raises(PatchRefused):
        patched({"a": 1}, patch)
