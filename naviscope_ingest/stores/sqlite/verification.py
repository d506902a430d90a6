"""Checking a file: SQLite's own structure, the hash of every row, and the sum of every table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from naviscope_ingest.stores.sqlite.entries import EPOCH_COLUMNS, State
from naviscope_ingest.stores.sqlite.errors import NOT_UNDERSTOOD
from naviscope_ingest.stores.sqlite.marks import Sums, commit_mark, mark_of
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.rows import COMMITTED

__all__ = ["verification"]

_CHUNK = 500
# A damaged file may have a million wrong rows; the first say enough.
_MAX_FINDINGS = 100


class _Table(NamedTuple):
    """How a table is read: its columns in the order in which they are hashed, and how many of them are its key."""

    name: str
    columns: str
    key: int = 1


_TABLES = (
    _Table("epochs", ", ".join(EPOCH_COLUMNS)),
    _Table("messages", "seq, epoch, id, at, head, rest, codec, payload"),
    _Table("stages", "first, last, parent, epoch, state, at"),
    _Table("staged", "seq, parent, epoch, id, at, head, rest, codec, payload"),
    _Table("ends", "seq, epoch, end, value, causes, letter"),
    _Table("progress", "seq, run, attempt, crashes, not_before, added, prepared, edited_codec, edited"),
    _Table("claims", "number, seqs"),
    _Table("resources", "scope, name, version, value", key=2),
    _Table("records", "space, key, value", key=2),
    _Table("naviscope_uniques", "kind, id, until, seq", key=2),
)


def verification(connection: apsw.Connection) -> Iterator[Sequence[str]]:
    """Yield what is wrong, chunk by chunk, in words that name the record; most chunks are empty."""
    found = 0
    for findings in _findings(connection):
        found += len(findings)
        yield findings
        if found >= _MAX_FINDINGS:
            yield [f"and more: the check stopped after {found} findings"]
            return


def _findings(connection: apsw.Connection) -> Iterator[Sequence[str]]:
    sums = Sums()
    try:
        yield [str(row[0]) for row in fetch(connection, "pragma quick_check(20)") if row[0] != "ok"]
        sums.load(connection)
        yield _check_state(connection)
    except (apsw.Error, *NOT_UNDERSTOOD) as exc:
        yield [f"the file cannot be read: {exc}"]
        return
    for table in _TABLES:
        try:
            yield from _check_table(connection, table, sums.of(table.name))
        except (apsw.Error, *NOT_UNDERSTOOD) as exc:
            yield [f"table {table.name} cannot be read: {exc}"]


def _check_state(connection: apsw.Connection) -> list[str]:
    rows = fetch(connection, "select * from state")
    if len(rows) != 1:
        return [f"table state has {len(rows)} rows and should have 1"]
    state = State(*rows[0][1:-1])
    return [] if state.row() == rows[0][1:] else ["table state: the row does not match its hash"]


def _check_table(connection: apsw.Connection, table: _Table, expected: tuple[int, int]) -> Iterator[list[str]]:
    names = table.columns.split(", ")
    key = ", ".join(names[: table.key])
    # Names of ours stand in these statements, and nothing else.
    start = f"select {table.columns}, mark from {table.name}"  # noqa: S608
    end = f"order by {key} limit {_CHUNK}"
    marks = ", ".join("?" * table.key)
    rows = fetch(connection, f"{start} {end}")
    amount, total = 0, 0
    while rows:
        findings = []
        for *values, mark in rows:
            amount += 1
            total += mark if isinstance(mark, int) else 0
            if mark != _mark(table.name, values):
                findings.append(f"table {table.name}, {_name(names, values)}: the row does not match its hash")
        yield findings
        after = rows[-1][: table.key]
        rows = fetch(connection, f"{start} where ({key}) > ({marks}) {end}", after)
    if (amount, total % (1 << 128)) != expected:
        yield [
            f"table {table.name}: {amount} rows, and the sum says {expected[0]}"
            if amount != expected[0]
            else f"table {table.name}: the sum of the hashes of its {amount} rows is not what it should be"
        ]


def _mark(table: str, values: Sequence[Any]) -> int:
    """Return the hash that a row should have."""
    if table == "ends" and values[2:] == [COMMITTED, None, None, None]:
        return commit_mark(values[0], values[1])
    return mark_of(table, *values)


def _name(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in zip(names[:4], values[:4], strict=True) if name in _NAMING)


_NAMING = ("seq", "first", "number", "name", "epoch", "id", "scope", "space", "key", "kind")
