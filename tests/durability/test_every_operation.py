"""The SQLite store keeps its promises wherever it is interrupted; and this test would notice if it did not.

The fast tests play every few operations. `python -m tests.soak --replay disk:0` plays one share of all of them, and
`make soak` plays share after share.
"""

from contextlib import suppress

import apsw
import pytest
import trio

from naviscope_ingest.stores.sqlite import database, steps
from naviscope_ingest.stores.sqlite.database import Database
from naviscope_ingest.stores.sqlite.transaction import Transaction
from naviscope_ingest.stores.sqlite.writer import Writer
from naviscope_ingest.testing.disk import SimulatedDisk
from naviscope_spi import StoreFailed, StoreRefused
from tests.durability.store_scenario import FIRST, SECOND, StoreScenario
from tests.durability.sweep import operations, shown, sweep

TROUBLES = {"kill", "power", "recovery"} | {
    f"{f}{how}" for f in ("io", "full", "sync") for how in (" once", " for good", ", then power")
}
OPEN = Database.open
SYNC = Database.sync


def test_the_script_is_repeatable_and_uses_the_whole_disk():
    first, second = operations(StoreScenario()), operations(StoreScenario())
    assert first == second
    assert {operation.kind for operation in first} == {"create", "read", "write", "truncate", "sync", "delete"}
    assert len(StoreScenario().states) == len(FIRST) + len(SECOND) + 1


def test_what_was_acknowledged_is_there_and_every_call_is_whole():
    found = sweep(StoreScenario(), stride=31, start=5, in_recovery=10, then_power=True)
    assert found.violations == [], "\n".join(shown(found.violations))
    assert set(found.images) == TROUBLES


def test_a_failed_sync_of_the_log_does_no_harm_when_the_power_is_cut_later():
    # A failed sync leaves the log in the page cache only, and no later sync writes it: so it must be written again
    # before anything is built on it.
    found = sweep(StoreScenario(), stride=4, most=0, troubles=["sync"], then_power=True)
    assert found.violations == [], "\n".join(shown(found.violations))


def test_believing_a_log_that_was_found_is_caught(monkeypatch):
    monkeypatch.setattr(database, "rewrite_log", lambda connection, vfs: None)
    found = sweep(StoreScenario(), start=8, stride=2, most=0, troubles=["sync"], then_power=True, enough=3)
    assert {each.trouble for each in found.violations} == {"sync, then power"}


class ForgetsNames(StoreScenario):
    """A disk that keeps only the promises of POSIX: a name is safe when its directory was synced."""

    def disk(self):
        return SimulatedDisk(keeps_names=False)


def test_a_disk_that_forgets_names_does_no_harm():
    found = sweep(ForgetsNames(), stride=12, start=2, troubles=["kill", "power"])
    assert found.violations == [], "\n".join(shown(found.violations))


def test_a_disk_that_forgets_names_does_no_harm_after_a_failed_sync():
    # If the directory were not synced with the log that is opened again, the deleted log of the process before could
    # be back after a power cut.
    found = sweep(ForgetsNames(), start=1, stride=5, most=0, troubles=["sync"], then_power=True)
    assert found.violations == [], "\n".join(shown(found.violations))


def test_an_opening_that_fails_says_why(monkeypatch):
    # With many pages in the log, a checkpoint follows the failed opening and hides its error.
    monkeypatch.setattr(database, "_CHECKPOINT_PAGES", 1)

    async def open_and_close(disk):
        async with StoreScenario().open(disk):
            pass

    probe = SimulatedDisk()
    trio.run(open_and_close, probe)
    for number in range(probe.operations):
        disk = SimulatedDisk()
        disk.kill_at(number)
        with suppress(StoreFailed, StoreRefused):
            trio.run(open_and_close, disk)


def violations(*troubles, scenario=None, stride=7):
    return sweep(scenario or StoreScenario(), stride=stride, most=0, troubles=troubles, enough=3).violations


def test_normal_sync_is_caught(monkeypatch):
    def lax(self):
        OPEN(self)
        self.connection.execute("pragma synchronous = normal")

    monkeypatch.setattr(Database, "open", lax)
    monkeypatch.setattr(Database, "sync", lambda self, *, at_commit: None)
    assert "power" in {each.trouble for each in violations("power")}


def test_a_sync_that_is_left_off_after_a_claim_is_caught(monkeypatch):
    def forgetful(self, *, at_commit):
        if not at_commit:
            SYNC(self, at_commit=False)

    monkeypatch.setattr(Database, "sync", forgetful)
    assert "power" in {each.trouble for each in violations("power")}


def test_an_early_acknowledgement_is_caught():
    class Hasty(StoreScenario):
        async def answer(self, disk, seen, call):
            seen.calls += 1
            await call()

    assert violations("kill", scenario=Hasty())


def test_two_transactions_for_one_settlement_are_caught(monkeypatch):
    run = Transaction.run

    def apart(self, apply, authorizer):
        self._connection.execute("commit; begin immediate")
        run(self, apply, authorizer)

    monkeypatch.setattr(Transaction, "run", apart)
    assert violations("kill")


def answer_without_looking(self, group):
    try:
        try:
            self._attempt(group)
        except apsw.Error:
            self.ledger.database.reopen()
            self.ledger.load()
            self._attempt(group)
    except Exception as error:
        self._stop(group, error)


def checkpoint_in_commit(self):
    OPEN(self)
    self.connection.wal_autocheckpoint(1)


def test_a_commit_that_raised_and_happened_is_found_out(monkeypatch):
    monkeypatch.setattr(Database, "open", checkpoint_in_commit)
    assert violations("io", "sync", stride=19) == []


def test_doing_it_again_without_looking_is_caught(monkeypatch):
    monkeypatch.setattr(Database, "open", checkpoint_in_commit)
    monkeypatch.setattr(Writer, "_run_together", answer_without_looking)
    assert "in the run" in {each.survival for each in violations("io", stride=2)}


def test_a_missing_look_for_duplicates_is_caught(monkeypatch):
    def forgetful(self):
        OPEN(self)
        self.connection.execute(
            "drop index if exists messages_by_id; create index messages_by_id on messages (epoch, id)"
        )

    monkeypatch.setattr(Database, "open", forgetful)
    monkeypatch.setattr(steps, "known_content", lambda *given: None)
    with pytest.raises(AssertionError, match="receipt"):
        violations("kill")
