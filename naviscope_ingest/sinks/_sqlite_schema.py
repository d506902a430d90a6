"""The user's tables: tried in memory when the sink is made, then brought into a file that may have them already.

A schema is plain CREATE statements. They run once on an empty database in memory, which finds every mistake before any
work starts and tells which tables, indexes, views and triggers there are to be. In the file, those that are missing are
created; so the text needs no IF NOT EXISTS, and the same program can simply be started again. A table that is there but
lacks a column is an error: how to change a table that has data is for people to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw
from attrs import frozen

from naviscope_ingest.sinks._sqlite_apply import RunsSql
from naviscope_ingest.sinks.sql_ops import RESERVED_PREFIX, is_reserved, rolls_back
from naviscope_spi import SystemFailure

__all__ = ["Schema"]

_REFUSED = frozenset(
    {
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
        apsw.SQLITE_CREATE_TEMP_INDEX,
        apsw.SQLITE_CREATE_TEMP_TABLE,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_VIEW,
    }
)

# Triggers have a name space of their own. SQLite folds the case of ASCII letters only, so it is asked to do that.
_MARK = "(type = 'trigger') || ':' || lower(name)"
_MADE = f"SELECT type, name, {_MARK}, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL"  # noqa: S608 - fixed text


@frozen
class _Thing:
    """A table, index, view or trigger, and its columns if it has any."""

    kind: str
    name: str
    mark: str
    sql: str
    columns: frozenset[str]


class Schema:
    """The things a sink needs in its database.

    Args:
        sql: CREATE statements; empty if the tables are made elsewhere.

    Raises:
        ValueError: the text is not SQL, does more than create, or uses reserved names.
    """

    def __init__(self, sql: str) -> None:
        if not isinstance(sql, str):
            raise ValueError(f"schema={sql!r:.80}: give CREATE statements as a string")
        if rolls_back(sql):
            raise ValueError("schema: a constraint or trigger that rolls the whole transaction back: use ABORT there")
        self._things = tuple(_tried(sql))
        self._marks = tuple(thing.mark for thing in self._things)
        marks = ", ".join("?" * len(self._things))
        self._count = f"SELECT count(*) FROM sqlite_schema WHERE {_MARK} IN ({marks})"  # noqa: S608

    def ensure(self, connection: RunsSql | apsw.Connection) -> None:
        """Create what is missing. Quick when nothing is, so that it can be asked before every batch.

        What is created in a transaction that is rolled back is gone again: therefore nothing is remembered here.
        """
        if not self._things or _one(connection, self._count, self._marks) == len(self._things):
            return
        for thing in self._things:
            if _kind(connection, thing) is None:
                connection.execute(thing.sql)

    def check(self, connection: RunsSql | apsw.Connection) -> None:
        """Compare what is there with what should be. Asked once for a connection.

        Raises:
            SystemFailure: something else has the name, or a table lacks a column.
        """
        for thing in self._things:
            kind = _kind(connection, thing)
            if kind not in (None, thing.kind):
                raise SystemFailure(f"the schema has a {thing.kind} {thing.name!r}, the file has a {kind} of that name")
            if kind is not None and thing.columns:
                _check_columns(connection, thing)


def _tried(sql: str) -> Iterator[_Thing]:
    """Run the text on an empty database and yield what it made."""
    connection = apsw.Connection(":memory:")
    try:
        _run(connection, sql)
        # The tables behind a virtual table are made with it.
        behind = {name for (name,) in connection.execute("SELECT name FROM pragma_table_list WHERE type = 'shadow'")}
        made: Any = connection.execute(_MADE).fetchall()
        for kind, name, mark, table, text in made:
            if name in behind or table in behind or name.startswith("sqlite_"):
                continue
            if is_reserved(name):
                raise ValueError(f"schema: {kind} {name!r}: names that start with {RESERVED_PREFIX!r} are reserved")
            is_table = kind == "table"
            if is_table and connection.execute(f'SELECT EXISTS (SELECT 1 FROM "{_doubled(name)}")').get:  # noqa: S608
                raise ValueError(f"schema: it puts rows into {name!r}: give CREATE statements only")
            yield _Thing(kind, name, mark, text, frozenset(_columns(connection, name)) if is_table else frozenset())
    finally:
        connection.close()


def _run(connection: apsw.Connection, sql: str) -> None:
    connection.authorizer = _permits
    try:
        connection.execute(sql).fetchall()
    except apsw.AuthError as error:
        raise ValueError(f"schema: give CREATE statements for permanent tables only: {sql!r:.200}") from error
    except apsw.Error as error:
        raise ValueError(f"schema: {error}: {sql!r:.200}") from error
    finally:
        connection.authorizer = None


def _permits(action: int, *details: str | None) -> int:
    return apsw.SQLITE_DENY if action in _REFUSED else apsw.SQLITE_OK


def _kind(connection: RunsSql | apsw.Connection, thing: _Thing) -> str | None:
    """Return what has the name of a thing, if anything has."""
    kind: str | None = _one(connection, f"SELECT type FROM sqlite_schema WHERE {_MARK} = ?", (thing.mark,))  # noqa: S608
    return kind


def _one(connection: RunsSql | apsw.Connection, sql: str, bindings: tuple[str, ...]) -> Any:  # noqa: ANN401 - a value
    """Return the value that a statement finds, None if there is none."""
    rows: list[Any] = list(connection.execute(sql, bindings))
    return rows[0][0] if rows else None


def _check_columns(connection: RunsSql | apsw.Connection, thing: _Thing) -> None:
    """Name every column in a query: a guarded transaction has no pragmas that would list them."""
    table = f'"{_doubled(thing.name)}"'
    names = ", ".join(f'{table}."{_doubled(column)}"' for column in sorted(thing.columns))
    try:
        # Whether the table may be read at all comes first.
        list(connection.execute(f"SELECT 1 FROM {table} LIMIT 0"))  # noqa: S608 - quoted, and the user's own text
        list(connection.execute(f"SELECT {names} FROM {table} LIMIT 0"))  # noqa: S608
    except apsw.AuthError as error:
        raise SystemFailure(f"the schema has a table {thing.name!r}, but that is one of the store's own") from error
    except apsw.SQLError as error:
        raise SystemFailure(
            f"table {thing.name!r} is in the file without a column that the schema has ({error}): "
            "add it to the table, or leave it out of the schema"
        ) from error


def _columns(connection: apsw.Connection, table: str) -> set[str]:
    rows = connection.execute("SELECT lower(name) FROM pragma_table_xinfo(?)", (table,))
    return {name for (name,) in rows}


def _doubled(name: str) -> str:
    return name.replace('"', '""')
