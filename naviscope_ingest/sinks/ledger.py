"""A table of the task keys that a sink has applied, for sinks that write SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar

from naviscope_ingest.sinks.sql_ops import RESERVED_PREFIX
from naviscope_spi import Entry

__all__ = ["Ledger", "RunsSql"]

Op = TypeVar("Op")

# SQLite before 3.32 takes 999 parameters, PostgreSQL 65,535.
_KEYS_AT_ONCE: Final = 500
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class RunsSql(Protocol):
    """A connection in a transaction, as apsw, sqlite3 and psycopg have it."""

    def execute(self, statement: str, bindings: Any = ..., /) -> Iterable[Any]:  # noqa: ANN401 - the driver's own types
        """Run one statement and yield its rows."""
        ...


class Ledger:
    """Which entries a sink has applied, kept beside the rows and written in the same transaction.

    The number of the epoch comes before the task key, in which it is contained: so rows are added at the end of the
    table, and those of old epochs are found together when they are pruned.

    Args:
        sink_id: tells sinks that share a database apart.
        table: the name of the table.
        placeholder: how the driver writes a parameter.
    """

    def __init__(
        self, sink_id: str = "sink", *, table: str = f"{RESERVED_PREFIX}ledger", placeholder: str = "?"
    ) -> None:
        if not isinstance(sink_id, str) or not sink_id:
            raise ValueError(f"Ledger(sink_id={sink_id!r:.80}): give a name that tells this sink from others")
        if not _NAME.fullmatch(table):
            raise ValueError(f"Ledger(table={table!r:.80}): use letters, digits and _")
        self.sink_id = sink_id
        self.table = table
        self._mark = placeholder

    @property
    def schema(self) -> str:
        """The statement that makes the table, if there is none."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (sink_id TEXT NOT NULL, epoch BIGINT NOT NULL, "
            "task_key TEXT NOT NULL, PRIMARY KEY (sink_id, epoch, task_key))"
        )

    def claim(self, connection: RunsSql, entries: Sequence[Entry[Op]]) -> list[Entry[Op]]:
        """Write the entries down and return those that are new, in order.

        Of two with one task key the first counts. Roll the transaction back if the entries are not applied.
        """
        first = {(entry.epoch.number, entry.task_key): entry for entry in reversed(entries)}
        known = self._known(connection, sorted(first))
        fresh = [entry for entry in entries if self._is_fresh(entry, first, known)]
        self._write(connection, [(entry.epoch.number, entry.task_key) for entry in fresh])
        return fresh

    def prune(self, connection: RunsSql, before_epoch: int, *, store_id: str, limit: int = 10_000) -> int:
        """Forget the entries of epochs of a store with a lower number, at most `limit`; return how many.

        Only epochs that the store has forgotten may be pruned: the entries of others can come again.
        """
        mark = self._mark
        # A task key starts with the store and a colon, and a semicolon is what follows a colon.
        found = connection.execute(
            f"SELECT epoch, task_key FROM {self.table} WHERE sink_id = {mark} AND epoch < {mark} "  # noqa: S608
            f"AND task_key >= {mark} AND task_key < {mark} ORDER BY epoch, task_key LIMIT {mark}",
            (self.sink_id, before_epoch, f"{store_id}:", f"{store_id};", limit),
        )
        rows = list(found)
        for epoch, key in rows:
            connection.execute(
                f"DELETE FROM {self.table} WHERE sink_id = {mark} AND epoch = {mark} AND task_key = {mark}",  # noqa: S608
                (self.sink_id, epoch, key),
            )
        return len(rows)

    def _known(self, connection: RunsSql, keys: Sequence[tuple[int, str]]) -> set[str]:
        known: set[str] = set()
        mark = self._mark
        for epoch, group in groupby(keys, key=lambda each: each[0]):
            names = [name for _, name in group]
            for start in range(0, len(names), _KEYS_AT_ONCE):
                some = names[start : start + _KEYS_AT_ONCE]
                sql = (
                    f"SELECT task_key FROM {self.table} WHERE sink_id = {mark} AND epoch = {mark} "  # noqa: S608
                    f"AND task_key IN ({', '.join([mark] * len(some))})"
                )
                known.update(row[0] for row in connection.execute(sql, (self.sink_id, epoch, *some)))
        return known

    @staticmethod
    def _is_fresh(entry: Entry[Op], first: dict[tuple[int, str], Entry[Op]], known: set[str]) -> bool:
        return entry.task_key not in known and first[entry.epoch.number, entry.task_key] is entry

    def _write(self, connection: RunsSql, keys: Sequence[tuple[int, str]]) -> None:
        mark = self._mark
        for start in range(0, len(keys), _KEYS_AT_ONCE // 3):
            some = keys[start : start + _KEYS_AT_ONCE // 3]
            rows = ", ".join([f"({mark}, {mark}, {mark})"] * len(some))
            values = [value for epoch, key in some for value in (self.sink_id, epoch, key)]
            connection.execute(f"INSERT INTO {self.table} (sink_id, epoch, task_key) VALUES {rows}", values)  # noqa: S608
