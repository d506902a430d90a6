"""The shapes that values in a configuration may have: how they are read, listed, and described.

Rejected: `msgspec.convert` and `msgspec.json.schema`, which do most of this. They stop at the first error, know a path
but no line, and could not write the unit of a number into its key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, Protocol, TypeAlias, cast

import attrs
from attrs import frozen

from naviscope_ingest.settings.origins import Path, Placed, Problem, shown_path
from naviscope_spi.names import shown

__all__ = [
    "WRONG",
    "Choice",
    "Either",
    "Field",
    "Leaf",
    "ListOf",
    "Nullable",
    "OneOf",
    "Plain",
    "Record",
    "Shape",
    "TableOf",
    "Written",
    "plain_value",
]

WRONG: Final = object()
"""What stands for a value that a problem was noted of."""

Leaf: TypeAlias = tuple[Path, Any, bool]
"""A path, the plain value there, and whether it is the default."""


class Shape(Protocol):
    """What values of one kind look like.

    Attributes:
        takes_text: whether the text of an environment variable is such a value as it stands.
    """

    @property
    def takes_text(self) -> bool: ...

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        """Return the value, or WRONG after noting why. What a table leaves out is taken from `base`."""
        ...

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        """Yield what a value consists of; `base` is the default."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return it as JSON Schema."""
        ...

    def words(self) -> str:
        """Return it in a few words."""
        ...


def _wrong(problems: list[Problem], placed: Placed, path: Path, reason: str, nearest: str | None = None) -> object:
    problems.append(Problem(placed.origin, shown_path(path), reason, nearest))
    return WRONG


def _shown(value: Any) -> str:  # noqa: ANN401 - anything that a file can hold
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    return shown(value)


_WORDS: Final = {"string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
_CLASSES: Final[Mapping[str, Any]] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}


@frozen
class Plain:
    """A string, a number, or true or false: of one sort, or of several.

    Attributes:
        sorts: which, in the words of JSON Schema.
    """

    sorts: tuple[str, ...]

    @property
    def takes_text(self) -> bool:
        return self.sorts == ("string",)

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        value = placed.value
        if not any(_is_a(sort, value) for sort in self.sorts):
            return _wrong(problems, placed, path, f"give {self.words()}, not {_shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            return _wrong(problems, placed, path, f"give a finite number, not {value}")
        return value

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        yield path, value, bool(value == base)

    def schema(self) -> dict[str, Any]:
        return {"type": self.sorts[0] if len(self.sorts) == 1 else list(self.sorts)}

    def words(self) -> str:
        return ", ".join(_WORDS[sort] for sort in self.sorts)


def _is_a(sort: str, value: object) -> bool:
    return isinstance(value, _CLASSES[sort]) and (sort == "boolean" or not isinstance(value, bool))


@frozen
class Choice:
    """One of several words."""

    known: tuple[str, ...]
    takes_text = True

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        if placed.value in self.known:
            return placed.value
        near = get_close_matches(str(placed.value), self.known, 1)
        hint = f"did you mean {near[0]}? it" if near else "it"
        return _wrong(problems, placed, path, f"{_shown(placed.value)} is unknown: {hint} is {self.words()}")

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        yield path, value, bool(value == base)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.known)}

    def words(self) -> str:
        return f"one of {', '.join(self.known)}"


@frozen
class Written:
    """A value that is written as text, which its class reads.

    Attributes:
        made: the class: `parse` reads a text, `str` writes it.
    """

    made: Any
    takes_text = True

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        if not isinstance(placed.value, str):
            return _wrong(problems, placed, path, f"give {self.words()}, not {_shown(placed.value)}")
        try:
            return self.made.parse(placed.value)
        except ValueError as error:
            return _wrong(problems, placed, path, str(error))

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        yield path, str(value), bool(value == base)

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}

    def words(self) -> str:
        return "a string"


@frozen
class ListOf:
    """Several values of one shape. In a merge a list is replaced whole."""

    item: Shape
    takes_text = False

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        if not isinstance(placed.value, list):
            return _wrong(problems, placed, path, f"give {self.words()}, not {_shown(placed.value)}")
        found = [self.item.read(each, (*path, index), None, problems) for index, each in enumerate(placed.value)]
        return WRONG if any(each is WRONG for each in found) else tuple(found)

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        items = sorted(value) if isinstance(value, frozenset) else value
        yield path, [plain_value(self.item, each) for each in items], bool(value == base)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema()}

    def words(self) -> str:
        return f"a list, each {self.item.words()}"


@frozen
class TableOf:
    """Values of one shape, under names that the user gives."""

    item: Shape
    takes_text = False

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        if not isinstance(placed.value, dict):
            return _wrong(problems, placed, path, f"give {self.words()}, not {_shown(placed.value)}")
        known: Mapping[str, Any] = base if isinstance(base, Mapping) else {}
        found = {
            key: self.item.read(child, (*path, key), known.get(key), problems) for key, child in placed.value.items()
        }
        return WRONG if any(each is WRONG for each in found.values()) else {**known, **found}

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        for key, child in value.items():
            yield from self.item.leaves(child, (*path, key), None)

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.item.schema()}

    def words(self) -> str:
        return f"a table, each {self.item.words()}"


@frozen
class Nullable:
    """A value, or none."""

    shape: Shape

    @property
    def takes_text(self) -> bool:
        return self.shape.takes_text

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        # TOML has no null, so a word says it too where a string could not be meant.
        if placed.value is None or (placed.value == "none" and not self.takes_text):
            return None
        return self.shape.read(placed, path, base, problems)

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        if value is None:
            yield path, None, base is None
        else:
            yield from self.shape.leaves(value, path, base)

    def schema(self) -> dict[str, Any]:
        nothing = [{"type": "null"}] if self.takes_text else [{"type": "null"}, {"const": "none"}]
        return {"anyOf": [self.shape.schema(), *nothing]}

    def words(self) -> str:
        return f"{self.shape.words()}, or none"


@frozen
class Either:
    """A table, or else something that is none."""

    plain: Shape
    table: Shape
    takes_text = False

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        shape = self.table if isinstance(placed.value, dict) else self.plain
        return shape.read(placed, path, base, problems)

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        yield from (self.table if isinstance(value, Mapping) else self.plain).leaves(value, path, base)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.plain.schema(), self.table.schema()]}

    def words(self) -> str:
        return f"{self.plain.words()}, or {self.table.words()}"


@frozen
class Field:
    """One key of a table.

    Attributes:
        key: as it stands in a file.
        name: as it is called in Python.
        shape: what its value looks like.
        default: its value when it is left out; `attrs.NOTHING` when it must not be.
        text: what it is, in a sentence.
        check: refuses values of the right shape that make no sense.
    """

    key: str
    name: str
    shape: Shape
    default: Any
    text: str
    check: Callable[[Any], None]


@frozen
class Record:
    """A table with keys that are known: a class.

    Attributes:
        made: the class.
        fields: what it has, by key.
        in_python_only: keys of what no file can hold, such as functions.
    """

    made: type
    fields: Mapping[str, Field]
    in_python_only: Collection[str]
    takes_text = False

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        if not isinstance(placed.value, dict):
            return _wrong(problems, placed, path, f"give {self.words()}, not {_shown(placed.value)}")
        before = len(problems)
        self.refuse_unknown(placed, path, self.fields, problems)
        given = self.read_fields(placed, path, base, problems)
        for each in self.fields.values():
            if each.default is attrs.NOTHING and base is None and each.key not in placed.value:
                _wrong(problems, placed, path, f"{each.key} is missing")
        return WRONG if len(problems) > before else self.make(given, base, placed, path, problems)

    def refuse_unknown(self, placed: Placed, path: Path, known: Collection[str], problems: list[Problem]) -> None:
        """Note keys that are not known."""
        for key, child in placed.value.items():
            if key in self.in_python_only:
                _wrong(problems, child, (*path, key), "it cannot stand in a configuration: give it in the program")
            elif key not in known:
                near = get_close_matches(str(key), known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                _wrong(problems, child, (*path, key), f"there is no such key: {hint}", near[0] if near else None)

    def read_fields(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> dict[str, Any]:
        """Return what was given, by name in Python."""
        found = {}
        for each in self.fields.values():
            if each.key not in placed.value:
                continue
            child, where = placed.value[each.key], (*path, each.key)
            value = each.shape.read(child, where, getattr(base, each.name, _default(each)), problems)
            if value is not WRONG:
                try:
                    each.check(value)
                except ValueError as error:
                    _wrong(problems, child, where, _reason(error))
                found[each.name] = value
        return found

    def make(self, given: Mapping[str, Any], base: object, placed: Placed, path: Path, problems: list[Problem]) -> Any:  # noqa: ANN401
        """Return the object, unless its parts contradict each other."""
        try:
            return self.made(**given) if base is None else attrs.evolve(cast("Any", base), **given)
        except ValueError as error:
            return _wrong(problems, placed, path, _reason(error))

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        for each in self.fields.values():
            usual = getattr(base, each.name, _default(each))
            yield from each.shape.leaves(getattr(value, each.name), (*path, each.key), usual)

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self.made.__name__}"}

    def definition(self) -> dict[str, Any]:
        """Return what the schema refers to."""
        needed = [each.key for each in self.fields.values() if each.default is attrs.NOTHING]
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {each.key: _described(each) for each in self.fields.values()},
            **({"required": needed} if needed else {}),
        }

    def words(self) -> str:
        return f"a table as {self.made.__name__} has"


@frozen
class OneOf:
    """A table of one of several classes, told by the key that only it has."""

    records: Mapping[str, Record]
    takes_text = False

    def read(self, placed: Placed, path: Path, base: object, problems: list[Problem]) -> Any:  # noqa: ANN401
        there = [key for key in self.records if isinstance(placed.value, dict) and key in placed.value]
        if len(there) != 1:
            return _wrong(problems, placed, path, f"give {self.words()}")
        return self.records[there[0]].read(placed, path, None, problems)

    def leaves(self, value: Any, path: Path, base: object) -> Iterator[Leaf]:  # noqa: ANN401
        (record,) = (each for each in self.records.values() if each.made is type(value))
        yield from record.leaves(value, path, base)

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [each.schema() for each in self.records.values()]}

    def words(self) -> str:
        return f"a table with either {' or '.join(self.records)}"


def _default(each: Field) -> object:
    return None if each.default is attrs.NOTHING else each.default


def _described(each: Field) -> dict[str, Any]:
    default = {} if each.default is attrs.NOTHING else {"default": plain_value(each.shape, each.default)}
    return {**each.shape.schema(), "description": each.text, **default}


def plain_value(shape: Shape, value: object) -> Any:  # noqa: ANN401 - whatever a file could hold
    """Return a value as a file would have it, without what is the default."""
    plain: dict[str, Any] = {}
    for path, leaf, is_default in shape.leaves(value, (), None):
        if not path:
            return leaf
        if not is_default:
            table = plain
            for part in path[:-1]:
                table = table.setdefault(str(part), {})
            table[str(path[-1])] = leaf
    return plain


def _reason(error: ValueError) -> str:
    """Return what a class says of its arguments, without its name: here a file is read, and no call."""
    return re.sub(r"^\w+\(.*\): ", "", str(error), count=1, flags=re.DOTALL)
