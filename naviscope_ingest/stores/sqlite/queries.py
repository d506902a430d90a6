"""Reading rows: the driver types a value as any of SQLite's types, and the reader knows better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

__all__ = ["fetch"]


def fetch(connection: apsw.Connection, statement: str, bindings: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a statement.

    Raises:
        apsw.CorruptError: a text is none, also where SQLite does not mind.
    """
    try:
        return connection.execute(statement, bindings).fetchall()
    except UnicodeDecodeError as exc:
        raise apsw.CorruptError(f"a text in the file is damaged: {exc}") from exc
