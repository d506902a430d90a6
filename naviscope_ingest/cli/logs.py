"""The log of `run`: a line for each record, as text or as JSON with everything that the record knows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.text import Text

from naviscope_ingest.cli.screen import clean
from naviscope_ingest.logs import JsonFormatter, moment_of

__all__ = ["TextLines", "logging_to"]


class TextLines(logging.Formatter):
    """Writes a record for people: time, level and message, and its traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = f"{moment_of(record)} {record.levelname.lower():<7} {clean(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _ConsoleHandler(logging.Handler):
    """Prints above whatever is live on a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
            self._console.print(Text(self.format(record), style))
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to(console: Console, form: Literal["text", "json"], level: str) -> Iterator[None]:
    """Print the log of the process to a console, at this level and above, for as long as a block lasts."""
    handler = _ConsoleHandler(console)
    handler.setFormatter(JsonFormatter() if form == "json" else TextLines())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
