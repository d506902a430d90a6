"""Row hashes and running sums: they notice what SQLite's own checks do not.

A bit that changes on the disk gives, more often than not, a file that SQLite finds in order and rows that are wrong. So
each row has a hash of its key and content, and each table a sum of these hashes, changed in the same transaction: a
changed row is named, a missing one is noticed. Rows are deleted, so a chain of hashes would be none. Rejected: a CRC,
which costs 0.5 µs less a row and leaves one wrong row in four thousand million unnoticed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import apsw
import msgspec

from naviscope_ingest.stores.sqlite.queries import fetch

__all__ = ["Sums", "Totals", "mark_of", "marks_of", "sum_as_bytes"]

_WRAP = 1 << 128
_encode = msgspec.msgpack.Encoder().encode
Totals: TypeAlias = dict[str, tuple[int, int]]


def mark_of(*parts: object) -> int:
    """Return the hash of a row: of the name of its table, its key and its content, as a signed integer of 64 bits."""
    return int.from_bytes(blake2b(_encode(parts), digest_size=8).digest(), "big", signed=True)


def marks_of(rows: Sequence[tuple[Any, ...]]) -> Sequence[int]:
    """Return the hashes of rows that begin with the name of their table."""
    digests = b"".join([blake2b(_encode(row), digest_size=8).digest() for row in rows])
    return struct.unpack(f">{len(rows)}q", digests)


def sum_as_bytes(total: int) -> bytes:
    """Return a sum of hashes as it is written."""
    return (total % _WRAP).to_bytes(16, "big")


class Sums:
    """How many rows each table has, and the sum of their hashes."""

    def __init__(self) -> None:
        self._totals: Totals = {}
        self._written: Totals = {}

    def load(self, connection: apsw.Connection) -> None:
        """Read them from the file."""
        rows = fetch(connection, "select name, amount, total from sums")
        self._totals = {name: (amount, int.from_bytes(total, "big")) for name, amount, total in rows}
        self._written = dict(self._totals)

    def add(self, table: str, marks: Sequence[int], sign: int = 1) -> None:
        """Count new rows, or with a sign of -1 rows that go."""
        amount, total = self._totals.get(table, (0, 0))
        self._totals[table] = (amount + sign * len(marks), (total + sign * sum(marks)) % _WRAP)

    def swap(self, table: str, old: int | None, new: int | None) -> None:
        """Count a row that was changed, made (old is None) or deleted (new is None)."""
        amount, total = self._totals.get(table, (0, 0))
        amount += (new is not None) - (old is not None)
        self._totals[table] = (amount, (total + (new or 0) - (old or 0)) % _WRAP)

    def clear(self, table: str) -> None:
        """Count a table that was emptied."""
        self._totals[table] = (0, 0)

    def saved(self) -> Totals:
        """Return what they are now, for `restore`."""
        return dict(self._totals)

    def restore(self, saved: Totals) -> None:
        """Take back what was counted since."""
        self._totals = saved

    def of(self, table: str) -> tuple[int, int]:
        """Return the number of rows of a table and the sum of their hashes."""
        return self._totals.get(table, (0, 0))

    def write(self, connection: apsw.Connection) -> None:
        """Write those that changed."""
        changed = [(name, *now) for name, now in self._totals.items() if self._written.get(name) != now]
        if changed:
            rows = [(name, amount, sum_as_bytes(total)) for name, amount, total in changed]
            connection.executemany("insert or replace into sums values (?, ?, ?)", rows)
        self._written = dict(self._totals)
