"""The log: records of the standard library under "naviscope_ingest", with their facts as extra fields.

The library is silent unless somebody listens: its logger has a handler that drops everything, and no level of its own.
A record says in words what happened, and carries the facts beside them: epoch, message, kind, attempt, and others.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["LOGGER", "JsonFormatter", "facts_of", "moment_of"]

LOGGER: Final = "naviscope_ingest"
"""The logger under which every record is found."""

MAX_TEXT: Final = 8_192
"""The longest text of a field, in characters: what is logged may come from anywhere."""

_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the extra fields of a record."""
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


def moment_of(record: logging.LogRecord) -> str:
    """Return when a record was made: 2026-11-18T06:00:00.000Z."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: time, level, logger, text, its facts, and its traceback if there is one.

    A fact that JSON cannot say is written as text. Line breaks and control characters are escaped, so a record is
    always one line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": moment_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_TEXT],
        }
        # What every record has comes first and cannot be replaced.
        line |= {name: _plain(value) for name, value in facts_of(record).items() if name not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-MAX_TEXT:]
        return json.dumps(line)


def _plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON can say
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in [*value.items()][:100]}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value[:100]]
    return str(value)[:MAX_TEXT]
