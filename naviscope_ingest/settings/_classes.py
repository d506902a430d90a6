"""The shapes of classes, read off their annotations, validators and docstrings.

A class is described once. From that follow the reading of files and variables, the JSON Schema, the reference page and
the names of environment variables, so none of them can say something else than the class does.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

import attrs

from naviscope_ingest.settings._shapes import (
    Choice,
    Either,
    Field,
    ListOf,
    Nullable,
    OneOf,
    Plain,
    Record,
    Shape,
    TableOf,
    Written,
)

__all__ = ["record_of", "shape_of"]

_NAMED_BY: Final[Mapping[str, Mapping[str, str]]] = {"Cap": {"limit": "cap"}, "Rate": {"limit": "rate"}}
"""Fields that have another key in files: the one that tells which of several classes a table is."""

_SORTS: Final[Mapping[Any, str]] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def shape_of(hint: Any) -> Shape | None:  # noqa: ANN401 - a type
    """Return the shape of values of a type; None if no file can hold one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(hint, "__metadata__"):
        return shape_of(hint.__origin__)
    if origin is Literal:
        return Choice(arguments)
    if origin in (types.UnionType, Union):
        return _union(arguments)
    if hint in _SORTS:
        return Plain((_SORTS[hint],))
    if isinstance(hint, type) and hasattr(hint, "parse"):
        return Written(hint)
    if isinstance(hint, type) and attrs.has(hint):
        record = record_of(hint)
        return record if record.fields else None
    if isinstance(origin, type) and issubclass(origin, Collection):
        item = shape_of(arguments[-1])
        is_table = issubclass(origin, Mapping)
        if item is None or (is_table and arguments[0] is not str):
            return None
        return TableOf(item) if is_table else ListOf(item)
    return None


def _union(members: Sequence[Any]) -> Shape | None:
    """Return the shape of an optional value, of one class among several, or of a value that may be a table."""
    shapes = [shape_of(each) for each in members if each is not type(None)]
    if any(each is None for each in shapes):
        return None
    known = [each for each in shapes if each is not None]
    found: Shape
    if len(known) == 1:
        found = known[0]
    elif all(isinstance(each, Record) for each in known):
        records = [each for each in known if isinstance(each, Record)]
        found = OneOf({_only_key(each, records): each for each in records})
    elif all(isinstance(each, Plain) for each in known):
        found = Plain(tuple(sort for each in known if isinstance(each, Plain) for sort in each.sorts))
    else:
        (table,) = (each for each in known if isinstance(each, TableOf | Record))
        (plain,) = (each for each in known if each is not table)
        found = Either(plain, table)
    return Nullable(found) if type(None) in members else found


def _only_key(record: Record, among: Sequence[Record]) -> str:
    others = {key for each in among if each is not record for key in each.fields}
    return next(each.key for each in record.fields.values() if each.default is attrs.NOTHING and each.key not in others)


@cache
def record_of(made: type) -> Record:
    """Return the shape of a class of attrs."""
    hints, texts = get_type_hints(made, include_extras=True), _texts(made)
    found: dict[str, Field] = {}
    hidden = []
    for attribute in attrs.fields(cast("Any", made)):
        shape = shape_of(hints[attribute.name])
        if shape is None:
            hidden.append(attribute.name)
            continue
        key = _key(made, attribute.name, hints[attribute.name])
        found[key] = Field(
            key, attribute.name, shape, _default_of(attribute), texts.get(attribute.name, ""), _check(made, attribute)
        )
    return Record(made, found, tuple(hidden))


def _key(made: type, name: str, hint: Any) -> str:  # noqa: ANN401 - a type
    other = _NAMED_BY.get(made.__name__, {}).get(name)
    if other is not None:
        return other
    for part in (hint, *get_args(hint)):
        unit = getattr(part, "__metadata__", (None,))[0]
        if isinstance(unit, str):
            return name if name.endswith(f"_{unit}") else f"{name}_{unit}"
    return name


def _default_of(attribute: attrs.Attribute[Any]) -> Any:  # noqa: ANN401 - of any type
    default: Any = attribute.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]  # a class


def _check(made: type, attribute: attrs.Attribute[Any]) -> Callable[[Any], None]:
    def check(value: Any) -> None:  # noqa: ANN401 - of any type
        if attribute.validator is not None:
            attribute.validator(object.__new__(made), attribute, value)

    return check


def _texts(made: type) -> dict[str, str]:
    """Return what the docstring of a class says of its attributes."""
    found: dict[str, str] = {}
    _, _, section = (inspect.getdoc(made) or "").partition("Attributes:\n")
    name = ""
    for line in section.splitlines():
        if not line.startswith("    "):
            if line:
                break
            continue
        start = re.match(r"    (\w+): (.*)", line)
        if start is not None and not line.startswith("     "):
            name, found[start[1]] = start[1], start[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found
