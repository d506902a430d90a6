"""The lines of the values of a TOML document, which `tomllib` does not tell.

The text has been read by `tomllib` before, so it is known to be valid, and finding keys is a matter of tokens: headers
of tables, keys before an equals sign, and brackets.

Rejected: a library that keeps positions (tomlkit), for one number in an error message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from naviscope_ingest.settings.origins import Origin, Path, Placed

__all__ = ["lines_of", "with_lines"]

_TOKEN: Final = re.compile(
    r'''(?P<text>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*')'''
    r"""|(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<space>[ \t\r]+)|(?P<mark>[\[\]{}=,])|(?P<bare>[^\s\[\]{}=,#"']+)""",
    re.DOTALL,
)


def with_lines(value: object, lines: Mapping[Path, int], file: str, path: Path = (), line: int = 1) -> Placed:
    """Return the values of a document, each with its line, or else with that of what it is in."""
    line = lines.get(path, line)
    found: Any = value
    if isinstance(value, dict):
        found = {key: with_lines(child, lines, file, (*path, key), line) for key, child in value.items()}
    elif isinstance(value, list):
        found = [with_lines(child, lines, file, (*path, index), line) for index, child in enumerate(value)]
    elif not isinstance(value, str | int | float | bool):
        found = str(value)  # TOML has dates and times; no setting is one.
    return Placed(found, Origin("file", file, line))


def lines_of(text: str) -> dict[Path, int]:
    """Return the line of each key and each item of a valid document, by path."""
    return _Lines(text).read()


class _Lines:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        self._found: dict[Path, int] = {}
        # How many tables each array of tables has so far.
        self._tables: dict[Path, int] = {}
        line = 1
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or ""
            if kind not in ("space", "comment"):
                self._tokens.append((kind, match[0], line))
            line += match[0].count("\n")

    def read(self) -> dict[Path, int]:
        """Go through the document."""
        table: Path = ()
        while self._at < len(self._tokens):
            if self._peek() == "\n":
                self._at += 1
            elif self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._found

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _line(self) -> int:
        return self._tokens[min(self._at, len(self._tokens) - 1)][2]

    def _header(self) -> Path:
        line = self._line()
        self._at += 1
        is_array = self._peek() == "["
        self._at += is_array
        keys = self._key()
        self._at += 1 + is_array
        path: Path = ()
        for index, key in enumerate(keys):
            path = (*path, key)
            if is_array and index == len(keys) - 1:
                self._tables[path] = self._tables.get(path, -1) + 1
                self._found.setdefault(path, line)
            if path in self._tables:
                path = (*path, self._tables[path])
        self._found[path] = line
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._key():
            path = (*path, key)
            self._found.setdefault(path, line)
        self._at += 1
        self._value(path)

    def _key(self) -> list[str]:
        """Return the parts of a key, up to what ends it."""
        import tomllib

        parts: list[str] = []
        while self._at < len(self._tokens) and self._tokens[self._at][0] in ("text", "bare"):
            kind, text, _ = self._tokens[self._at]
            if kind == "text":
                parts.append(tomllib.loads(f"x={text}")["x"])
            else:
                parts.extend(part for part in text.split(".") if part)
            self._at += 1
        return parts

    def _value(self, path: Path) -> None:
        opened = self._peek()
        if opened not in ("[", "{"):
            # A value in one piece, or a date with a space in it.
            while self._at < len(self._tokens) and self._tokens[self._at][0] in ("text", "bare"):
                self._at += 1
            return
        self._at += 1
        index = 0
        while self._at < len(self._tokens) and self._peek() not in ("]", "}"):
            if self._peek() in ("\n", ","):
                self._at += 1
            elif opened == "{":
                self._pair(path)
            else:
                self._found[*path, index] = self._line()
                self._value((*path, index))
                index += 1
        self._at += 1
