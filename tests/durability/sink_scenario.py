"""The SQLite sink at work on a simulated disk: bookings and balances, each entry once."""

from __future__ import annotations

from contextlib import closing

import apsw
from attrs import define, field

from naviscope_ingest.sinks import Execute, Insert, SqliteSink, Upsert
from naviscope_ingest.testing.disk import VFS_NAME, SimulatedDisk
from naviscope_spi import Entry, EpochKey, SystemFailure, Transient, task_key

SCHEMA = """
    create table account (name text primary key, balance integer not null default 0);
    create table booking (id integer primary key, message text not null, part integer not null, body blob);
"""
PARTS = 3


def entry(number: int) -> Entry:
    ops = [Upsert("account", {"name": "ada"}, "name")]
    ops += [Insert("booking", {"message": str(number), "part": part, "body": bytes(400)}) for part in range(PARTS)]
    ops.append(Execute("update account set balance = balance + ? where name = 'ada'", (number,)))
    return Entry(task_key("store", 1, str(number)), EpochKey(1, "nightly"), str(number), "message", ops)


# Later batches repeat entries of earlier ones, as after a crash.
BATCHES = [[0, 1], [2], [1, 2, 3], [4, 5, 6, 7], [0, 8], [9], [10, 11, 9]]


@define
class Seen:
    """The entries of commits that returned."""

    applied: set[int] = field(factory=set)


class SinkScenario:
    """Commits batches; after an error it tries twice more, as a runtime would, then stops."""

    tolerated = (Transient, SystemFailure, apsw.Error)
    checkpoint_every = 2

    def make(self, disk: SimulatedDisk) -> SqliteSink:
        return SqliteSink(disk.path(), SCHEMA, vfs=VFS_NAME)

    def disk(self) -> SimulatedDisk:
        return SimulatedDisk()

    def start(self) -> Seen:
        return Seen()

    def run(self, disk: SimulatedDisk, seen: Seen) -> None:
        disk.power_on()
        file = self.make(disk)._file
        assert file is not None
        try:
            for turn, batch in enumerate(BATCHES):
                self.commit(file, batch)
                if not disk.is_dead:
                    seen.applied.update(batch)
                if turn % self.checkpoint_every:
                    file._next_checkpoint = 0
        finally:
            file.close()

    def commit(self, file, batch: list[int]) -> None:
        entries = [entry(number) for number in batch]
        for _ in range(2):
            try:
                return file.commit(entries)
            except Transient:
                pass
        return file.commit(entries)

    def recover(self, disk: SimulatedDisk) -> None:
        disk.power_on()
        file = self.make(disk)._file
        assert file is not None
        try:
            self.judge(file, set())
        finally:
            file.close()

    def check(self, disk: SimulatedDisk, seen: Seen) -> None:
        disk.power_on()
        file = self.make(disk)._file
        assert file is not None
        try:
            before = self.judge(file, seen.applied)
            assert self.judge(file, before) == before
            # Everything comes again, and changes nothing that was there.
            file.commit([entry(number) for batch in BATCHES for number in batch])
            assert self.judge(file, before) == set(range(12))
        finally:
            file.close()

    def judge(self, file, expected: set[int]) -> set[int]:
        """Return which entries are applied; they must be whole, once, and in the ledger."""
        connection = file._opened()
        with closing(connection.cursor()) as cursor:
            assert cursor.execute("pragma integrity_check").fetchall() == [("ok",)], "integrity"
            parts = cursor.execute("select message, count(*), count(distinct part) from booking group by 1").fetchall()
            assert all(found[1:] == (PARTS, PARTS) for found in parts), f"not whole, or twice: {parts}"
            applied = {int(message) for message, _, _ in parts}
            assert applied >= expected, f"lost: {expected - applied}"
            balance = cursor.execute("select balance from account").fetchall()
            assert balance == ([(sum(applied),)] if applied else []), f"{balance} is not the sum of {applied}"
            ledger = {int(key.rpartition(":")[2]) for (key,) in cursor.execute("select task_key from naviscope_ledger")}
            assert ledger == applied, "the ledger is not what was applied"
        return applied
