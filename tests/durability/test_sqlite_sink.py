"""The SQLite sink loses nothing and applies nothing twice, wherever it is interrupted; and this test bites."""

import pytest

from naviscope_ingest.sinks import Ledger
from naviscope_ingest.sinks._sqlite_file import SqliteFile
from tests.durability.sink_scenario import SinkScenario
from tests.durability.sweep import shown, sweep


def test_nothing_is_lost_and_nothing_is_applied_twice():
    found = sweep(SinkScenario(), stride=2, in_recovery=12, then_power=True)
    assert found.violations == [], "\n".join(shown(found.violations))
    assert min(found.images[trouble] for trouble in ("kill", "power", "recovery", "io once", "sync for good")) > 20


def caught():
    return sweep(SinkScenario(), stride=3).violations


def test_normal_sync_is_caught(monkeypatch):
    set_it = SqliteFile._set

    def lax(self, connection, name, value, expected):
        set_it(self, connection, name, *(("NORMAL", 1) if name == "synchronous" else (value, expected)))

    monkeypatch.setattr(SqliteFile, "_set", lax)
    assert {each.trouble for each in caught() if "lost" in each.error} >= {"power"}


def test_a_missing_ledger_is_caught(monkeypatch):
    monkeypatch.setattr(Ledger, "_known", lambda self, connection, keys: set())
    monkeypatch.setattr(Ledger, "_write", lambda self, connection, keys: None)

    with pytest.raises(AssertionError, match="twice"):
        caught()


def test_two_transactions_are_caught(monkeypatch):
    apply = SqliteFile._apply

    def torn(self, connection, entries):
        apply(self, connection, entries[:1])
        connection.execute("commit; begin immediate")
        apply(self, connection, entries[1:])

    monkeypatch.setattr(SqliteFile, "_apply", torn)
    # Entries stay whole, so only a ledger that is written apart from the rows is wrong: this one is not.
    assert caught() == []

    def ledger_first(self, connection, entries):
        fresh = self._ledger.claim(connection, entries)
        connection.execute("commit; begin immediate")
        self._writer.write(connection, fresh)

    monkeypatch.setattr(SqliteFile, "_apply", ledger_first)
    assert caught()


def test_an_early_acknowledgement_is_caught():
    class Hasty(SinkScenario):
        def commit(self, file, batch):
            self.seen.applied.update(batch)
            super().commit(file, batch)

        def run(self, disk, seen):
            self.seen = seen
            super().run(disk, seen)

    violations = sweep(Hasty(), stride=3).violations
    assert {each.trouble for each in violations if "lost" in each.error} >= {"kill", "power"}
