"""YAML, as plain data with lines.

Of YAML only tables, lists and scalars are let in. An alias can make a few hundred bytes stand for gigabytes, a tag can
name a class, and of two equal keys one would be lost without a word; all three are refused. Scalars go by the core
schema of YAML 1.2: `no` is a string, and 1:30 is not 90.

Rejected: `yaml.safe_load`, which resolves aliases, knows no lines, and reads YAML 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final

from naviscope_ingest.errors import ConfigurationError
from naviscope_ingest.settings.origins import Origin, Placed, Problem

if TYPE_CHECKING:
    from yaml import Event

__all__ = ["read_yaml"]

_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_NUMBER: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_LONGEST_INTEGER: Final = 100
"""Digits; more cost time to read, and are no setting."""


def read_yaml(path: FilePath, text: str, most_depth: int) -> Placed:
    """Read a document.

    Raises:
        ConfigurationError: it is malformed or too deep, or has aliases, tags, equal keys or several documents.
    """
    try:
        import yaml
    except ImportError as error:
        reason = 'YAML needs a library: pip install "naviscope-ingest[yaml]", or write it in TOML, which needs none'
        raise ConfigurationError([Problem(Origin("file", str(path)), "", reason)]) from error
    try:
        return _Reader(path, yaml.parse(text, Loader=yaml.SafeLoader), most_depth).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _refused(path, mark, f"it is no YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise _refused(path, None, f"it is no YAML: {' '.join(str(error).split())}") from error


class _Reader:
    """Makes a tree of the events of a parser."""

    def __init__(self, path: FilePath, events: Iterator[Event], most_depth: int) -> None:
        self._path = path
        self._events = events
        self._most_depth = most_depth

    def document(self) -> Placed:
        """Return the only document; an empty table if there is none."""
        import yaml

        found: Placed | None = None
        for event in self._events:
            if isinstance(event, yaml.StreamStartEvent | yaml.StreamEndEvent | yaml.DocumentEndEvent):
                continue
            if isinstance(event, yaml.DocumentStartEvent):
                if found is not None:
                    raise self._refused(event, "it holds more than one document")
                found = self._value(next(self._events), self._most_depth)
        origin = Origin("file", str(self._path), 1)
        return Placed({}, origin) if found is None or found.value is None else found

    def _value(self, event: Event, left: int) -> Placed:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            raise self._refused(event, f"*{event.anchor} is an alias: write the value out")
        if not isinstance(event, yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent):
            raise self._refused(event, f"{type(event).__name__} was not expected here")
        if event.anchor is not None:
            raise self._refused(event, f"&{event.anchor} is an anchor: aliases are not let in")
        if event.tag is not None:
            raise self._refused(event, f"{event.tag:.80} is a tag: write a plain value")
        if left < 0:
            raise self._refused(event, f"it is nested deeper than {self._most_depth} levels")
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event.value) if event.implicit[0] else event.value
            return Placed(value, self._origin(event))
        if isinstance(event, yaml.MappingStartEvent):
            return Placed(self._table(left), self._origin(event))
        return Placed(self._list(left), self._origin(event))

    def _table(self, left: int) -> dict[str, Placed]:
        import yaml

        found: dict[str, Placed] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or event.anchor is not None:
                raise self._refused(event, "a key must be a plain string")
            if event.value in found:
                first = found[event.value].origin.line
                raise self._refused(event, f"the key {event.value!r:.80} is there twice, first in line {first}")
            value = self._value(next(self._events), left - 1)
            # A key is easier to find than the begin of what it holds.
            found[event.value] = Placed(value.value, self._origin(event))
        return found

    def _list(self, left: int) -> list[Placed]:
        import yaml

        found = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, left - 1))
        return found

    def _origin(self, event: Event) -> Origin:
        mark: Any = event.start_mark
        return Origin("file", str(self._path), mark.line + 1)

    def _refused(self, event: Event, reason: str) -> ConfigurationError:
        return _refused(self._path, event.start_mark, reason)


def _scalar(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _LONGEST_INTEGER and _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


def _refused(path: FilePath, mark: Any, reason: str) -> ConfigurationError:  # noqa: ANN401 - a mark of the library
    line = None if mark is None else mark.line + 1
    return ConfigurationError([Problem(Origin("file", str(path), line), "", reason)])
