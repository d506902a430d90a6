"""What commands print: on a terminal coloured and as wide as it is, in a pipe plain and whole, or JSON.

Colours are rich's business, which honours NO_COLOR and knows whether it writes to a terminal. Tables are laid out here:
a column that does not fit is left out, the least important first, and in a pipe nothing ever is.
"""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import msgspec
from attrs import field, frozen
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

__all__ = ["Cell", "Column", "Screen", "clean", "layout", "moment", "some", "span"]

Cell = str | int | tuple[str, str]
"""What stands in a table: a text, a number, or a text and its style."""

_GAP: Final = 2
_NARROWEST: Final = 16


@frozen
class Column:
    """One column of a table.

    Attributes:
        name: its heading.
        rank: how soon it is left out where there is no room; 0 is never.
        is_wide: whether it is cut rather than others left out.
        is_number: whether it stands to the right.
    """

    name: str
    rank: int = 0
    is_wide: bool = False
    is_number: bool = field(default=False, kw_only=True)


def clean(text: str) -> str:
    """Return a text in one line, without anything that would steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else " " if each in "\n\r\t" else f"\\x{ord(each):02x}"
        for each in text
        if unicodedata.category(each) != "Cs"
    )


def moment(at: float | None) -> str:
    """Return a wall-clock time in words of this time zone."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def some(number: int, thing: str) -> str:
    """Return a number of things in words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """Return a duration in few words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.0f} days"


def _text(cell: Cell) -> str:
    return clean(cell[0] if isinstance(cell, tuple) else cell if isinstance(cell, str) else str(cell))


def _grouped(cell: Cell) -> Cell:
    return f"{cell:,}" if isinstance(cell, int) else cell


def layout(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> list[tuple[int, int]]:
    """Return the columns that are shown, by their place, and how wide they are.

    Args:
        columns: the columns.
        rows: what stands in them.
        width: how wide the table may be; None for any width.
    """
    widths = [
        max(cell_len(column.name), *(cell_len(_text(row[at])) for row in rows)) if rows else cell_len(column.name)
        for at, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    if width is None:
        return [(at, widths[at]) for at in shown]

    narrowest = _NARROWEST

    def least(at: int) -> int:
        return min(widths[at], max(narrowest, cell_len(columns[at].name))) if columns[at].is_wide else widths[at]

    while sum(map(least, shown)) + _GAP * (len(shown) - 1) > width:
        ranked = max(shown, key=lambda at: columns[at].rank)
        if columns[ranked].rank:
            shown.remove(ranked)
        elif narrowest:
            # What must be there is cut further.
            narrowest = 0
        else:
            break
    room = width - _GAP * (len(shown) - 1) - sum(map(least, shown))
    for at in shown:
        if columns[at].is_wide:
            taken = least(at)
            widths[at] = min(widths[at], taken + max(0, room))
            room -= widths[at] - taken
    return [(at, widths[at]) for at in shown]


class Screen:
    """Prints answers to the standard output, and what else there is to say to the standard error.

    Args:
        is_json: whether answers are printed as JSON.
        out: where answers go; the standard output unless it is given.
    """

    def __init__(self, *, is_json: bool = False, out: IO[str] | None = None) -> None:
        self.is_json = is_json
        self._file = out or sys.stdout
        self.console = Console(file=self._file, highlight=False, soft_wrap=True)
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks at it."""
        return self.console.is_terminal

    def data(self, value: Any) -> None:  # noqa: ANN401 - plain data
        """Print a document of JSON, on several lines for those who look at it."""
        text = msgspec.json.encode(value).decode()
        if self.is_terminal:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        self._file.write(f"{text}\n")
        self._file.flush()

    def line(self, value: Any) -> None:  # noqa: ANN401 - plain data
        """Print one line of JSON."""
        self._file.write(msgspec.json.encode(value).decode() + "\n")

    def text(self, text: str) -> None:
        """Print a text as it is: a line that goes to a file, for instance."""
        self._file.write(f"{text}\n")

    def say(self, text: str, style: str = "") -> None:
        """Print a line for people."""
        self.console.print(Text(clean(text), style))

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line beside the answer."""
        self.errors.print(Text(clean(text), style))

    def facts(self, facts: Iterable[tuple[str, Cell | None]]) -> None:
        """Print names and values; those without a value are left out."""
        known = [(name, value) for name, value in facts if value not in (None, "")]
        width = max((len(name) for name, _ in known), default=0)
        for name, value in known:
            assert value is not None
            style = value[1] if isinstance(value, tuple) else ""
            line = Text(f"{name:<{width}}", "dim").append("  ")
            line.append(Text(_text(value), style))
            self.console.print(line)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, empty: str = "nothing") -> None:
        """Print a table; if it is empty, say so to those who look."""
        if not rows:
            (self.say if self.is_terminal else self.note)(empty, "dim")
            return
        if self.is_terminal:
            # In a pipe a number is what another program can read.
            rows = [[_grouped(cell) for cell in row] for row in rows]
        shown = layout(columns, rows, self.console.width if self.is_terminal else None)
        self.console.print(self._row(columns, shown, [each.name.upper() for each in columns], "dim"))
        for row in rows:
            self.console.print(self._row(columns, shown, row, ""))

    @staticmethod
    def _row(columns: Sequence[Column], shown: Sequence[tuple[int, int]], row: Sequence[Cell], style: str) -> Text:
        line = Text(no_wrap=True)
        for place, (at, width) in enumerate(shown):
            cell = row[at]
            text = _text(cell)
            if cell_len(text) > width:
                text = set_cell_size(text, width - 1).rstrip() + "…"
            padding = " " * (width - cell_len(text))
            is_last = place == len(shown) - 1
            padded = padding + text if columns[at].is_number else text if is_last else text + padding
            line.append(padded, cell[1] if isinstance(cell, tuple) else style)
            if not is_last:
                line.append(" " * _GAP)
        line.rstrip()
        return line

    def failure(self, reason: str, hint: str) -> None:
        """Print why a command could not do what it was asked to, and what to do about it."""
        self.errors.print(Text("error: ", "bold red").append(clean(reason), "not bold default"))
        if hint:
            self.errors.print(Text("hint: ", "cyan").append(clean(hint), "default"))
