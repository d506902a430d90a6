"""A backup is whole or has no name, and the store goes on, wherever either is interrupted; and this test bites."""

from naviscope_ingest.testing import disk
from tests.durability.backup_scenario import BackupScenario
from tests.durability.sweep import shown, sweep
from tests.simulation.folder import SimulatedFolder


def test_undisturbed_it_is_made():
    scenario, seen = BackupScenario(), BackupScenario().start()
    scenario.run(scenario.disk(), seen)
    assert seen.is_copied


def test_what_has_the_name_of_a_copy_is_whole():
    found = sweep(BackupScenario(), stride=17, start=4, most=1)
    assert found.violations == [], "\n".join(shown(found.violations))
    assert found.images["kill"] > 10
    assert found.images["io once"] > 10


def test_a_name_that_is_not_synced_is_caught(monkeypatch):
    def hasty(self, path, name):
        where, old = disk.located(path)
        where.rename(old, disk.located(name)[1])

    monkeypatch.setattr(SimulatedFolder, "publish", hasty)
    found = sweep(BackupScenario(), start=235, most=0, troubles=["power"], enough=1)
    assert found.violations
