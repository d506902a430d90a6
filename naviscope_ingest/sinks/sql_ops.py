"""Ops for sinks that write tables.

An op checks itself when it is made, in the executor: what is malformed ends its own message and never reaches a batch.
Names of tables and columns are checked and quoted, values are always bound, so nothing of a message becomes SQL.

An op is made for every message, so it is a Struct, which takes a third of the time of a frozen class. It holds nothing
that could lead back to it, so the garbage collector need not know of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from naviscope_spi import Permanent

__all__ = ["RESERVED_PREFIX", "Delete", "Execute", "Insert", "InvalidOp", "SqlOp", "SqlValue", "Upsert"]

SqlValue: TypeAlias = "str | bytes | int | float | None"
"""What a column takes."""

RESERVED_PREFIX: Final = "naviscope_"
"""How the names of our own tables start, in any case; those of users may not."""

MAX_SQL_BYTES: Final = 1_000_000
"""The longest SQL text, as SQLite has it by default."""

_ROLLBACK: Final = re.compile(r"\b(or|conflict)\s+rollback\b|\braise\s*\(\s*rollback\b", re.IGNORECASE)
_COMMENT: Final = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
_NAME = re.compile(r"[^\W\d][\w$]{0,127}")
_CACHED = 1_024


class InvalidOp(Permanent, ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """An op is malformed. Its message can never succeed."""


class Insert(msgspec.Struct, frozen=True, gc=False):
    """Add a row.

    Attributes:
        table: the table.
        row: the value of each column; columns that are not named take their defaults.
    """

    table: str
    row: Mapping[str, SqlValue]

    def __post_init__(self) -> None:
        """Refuse what cannot be a row."""
        table, row = self.table, self.row
        if type(table) is not str or type(row) is not dict or not row:
            _check("Insert", table, "row", row)
        insert_sql(table, tuple(row))

    def statement(self) -> tuple[str, Sequence[SqlValue]]:
        """Return the SQL and what is bound to it."""
        return insert_sql(self.table, tuple(self.row)), tuple(self.row.values())


class Upsert(msgspec.Struct, frozen=True, gc=False):
    """Add a row, or change the one that has the same key.

    Attributes:
        table: the table. It needs a primary key or a unique index over exactly the columns of the key.
        row: the value of each column, those of the key included; columns that are not named stay as they are.
        key: the columns that tell which row it is: one name or several.
    """

    table: str
    row: Mapping[str, SqlValue]
    key: str | Sequence[str]

    def __post_init__(self) -> None:
        """Refuse what cannot be a row with a key."""
        table, row = self.table, self.row
        if type(table) is not str or type(row) is not dict or not row:
            _check("Upsert", table, "row", row)
        if not _are_names(self.key):
            raise InvalidOp(f"Upsert(key={self.key!r:.80}): give the name of a column, or a list of names")
        upsert_sql(self.table, tuple(self.row), self._key())

    def statement(self) -> tuple[str, Sequence[SqlValue]]:
        """Return the SQL and what is bound to it."""
        return upsert_sql(self.table, tuple(self.row), self._key()), tuple(self.row.values())

    def _key(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove the rows that have these values. It is fine if there are none.

    Attributes:
        table: the table.
        key: the value of each column that tells which rows; None finds NULL.
    """

    table: str
    key: Mapping[str, SqlValue]

    def __post_init__(self) -> None:
        """Refuse a key that names no column: it would remove every row."""
        _check("Delete", self.table, "key", self.key)
        delete_sql(self.table, tuple(self.key))

    def statement(self) -> tuple[str, Sequence[SqlValue]]:
        """Return the SQL and what is bound to it."""
        return delete_sql(self.table, tuple(self.key)), tuple(self.key.values())


class Execute(msgspec.Struct, frozen=True, gc=False):
    """Run SQL of your own, for what the other ops cannot say.

    It may read and change rows of your tables. Transactions, schema and settings belong to the sink: a statement that
    touches them is refused.

    Attributes:
        sql: the text, the same for many messages: values go into `parameters`.
        parameters: values by position (`?`) or by name (`:name`).
    """

    sql: str
    parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()

    def __post_init__(self) -> None:
        """Refuse what is not SQL with parameters."""
        if not isinstance(self.sql, str) or not self.sql.strip():
            raise InvalidOp(f"Execute(sql={self.sql!r:.80}): give an SQL statement")
        if len(self.sql) > MAX_SQL_BYTES:
            raise InvalidOp(f"Execute(sql={self.sql!r:.60}…): it is longer than {MAX_SQL_BYTES:,} characters")
        if rolls_back(self.sql):
            raise InvalidOp(f"Execute(sql={self.sql!r:.80}): it would roll back the work of others too: use OR ABORT")
        if isinstance(self.parameters, str | bytes) or not isinstance(self.parameters, Sequence | Mapping):
            raise InvalidOp(f"Execute(parameters={self.parameters!r:.80}): give a list of values, or a mapping by name")

    def statement(self) -> tuple[str, Sequence[SqlValue] | Mapping[str, SqlValue]]:
        """Return the SQL and what is bound to it."""
        return self.sql, self.parameters


SqlOp: TypeAlias = Insert | Upsert | Delete | Execute


def quote(what: str, name: object) -> str:
    """Return a name of a table or column as it stands in SQL.

    Raises:
        InvalidOp: it is no plain name, or reserved.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOp(
            f"{name!r:.80} is no name of a {what}: use letters, digits, _ and $, not starting with a digit, at most 128"
        )
    if what == "table" and is_reserved(name):
        raise InvalidOp(f"table {name!r:.80}: names that start with {RESERVED_PREFIX!r} or 'sqlite_' are reserved")
    return f'"{name}"'


def rolls_back(sql: str) -> bool:
    """Say whether SQL can roll back more than its own statement: the whole transaction, with the work of others."""
    return _ROLLBACK.search(_COMMENT.sub(" ", sql)) is not None


def is_reserved(name: str) -> bool:
    """Say whether a table of that name is not the user's."""
    return name.lower().startswith((RESERVED_PREFIX, "sqlite_"))


def _are_names(key: object) -> bool:
    if isinstance(key, str):
        return True
    return isinstance(key, Sequence) and len(key) > 0 and all(isinstance(column, str) for column in key)


def _check(op: str, table: object, what: str, row: object) -> None:
    if not isinstance(table, str):
        quote("table", table)
    if not isinstance(row, Mapping):
        raise InvalidOp(f"{op}({what}={row!r:.80}): give a mapping from column to value")
    if not row:
        raise InvalidOp(f"{op}({what}={{}}): name at least one column")


@lru_cache(_CACHED)
def insert_sql(table: str, columns: tuple[str, ...]) -> str:
    """Return the SQL of an `Insert`."""
    into = quote("table", table)
    names = ", ".join(quote("column", column) for column in columns)
    # Every name was checked; values are bound.
    return f"INSERT INTO {into} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


@lru_cache(_CACHED)
def upsert_sql(table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
    """Return the SQL of an `Upsert`."""
    missing = [column for column in key if column not in columns]
    if missing or len(set(key)) != len(key):
        wrong = f"column {missing[0]!r} is not in the row" if missing else "a column is named twice"
        raise InvalidOp(f"Upsert({table!r:.80}, key={list(key)!r:.80}): {wrong}")
    target = ", ".join(quote("column", column) for column in key)
    others = [quote("column", column) for column in columns if column not in key]
    action = "UPDATE SET " + ", ".join(f"{each} = excluded.{each}" for each in others) if others else "NOTHING"
    return f"{insert_sql(table, columns)} ON CONFLICT ({target}) DO {action}"


@lru_cache(_CACHED)
def delete_sql(table: str, columns: tuple[str, ...]) -> str:
    """Return the SQL of a `Delete`.

    Columns are written with their table: SQLite would take a lone quoted name that is no column for a string.
    """
    source = quote("table", table)
    where = " AND ".join(f"{source}.{quote('column', column)} IS ?" for column in columns)
    return f"DELETE FROM {source} WHERE {where}"  # noqa: S608
