"""An upgrade of an older file is whole or did not happen, wherever it is interrupted; and this test bites."""

import pytest
import trio

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite import store
from naviscope_ingest.stores.sqlite.database import Database
from naviscope_ingest.stores.sqlite.schema import load_scripts
from naviscope_ingest.testing.disk import CHANGES, Survival
from tests.durability.sweep import interrupted, operations, shown, sweep
from tests.durability.upgrade_scenario import OLDER, UpgradeScenario


@pytest.mark.parametrize(("number", "which"), OLDER)
def test_an_upgrade_is_whole_or_did_not_happen(number, which):
    found = sweep(UpgradeScenario(number, which), stride=19, start=2, most=1, in_recovery=9)
    assert found.violations == [], "\n".join(shown(found.violations))
    assert min(found.images[trouble] for trouble in ("kill", "io once", "full once", "sync for good")) > 0
    assert found.images["power"] > 15


@pytest.mark.parametrize(("number", "which"), OLDER)
def test_an_interrupted_upgrade_is_picked_up_from_real_files(number, which, tmp_path):
    # The simulated disk has no directory to look into, so what is refused before SQLite is asked is not seen there.
    scenario = UpgradeScenario(number, which)
    changes = [operation for operation in operations(scenario) if operation.kind in CHANGES]
    assert len(changes) > 15
    for operation in changes[::3]:
        disk, _ = interrupted(scenario, operation.number)
        for index, image in enumerate((disk.killed_image(), disk.image(Survival("torn", operation.number)))):
            folder = tmp_path / f"{operation.number}-{index}"
            folder.mkdir()
            for name in image.names():
                (folder / name).write_bytes(image.content(name))
            assert trio.run(findings, folder / "ingest.db") == []


async def findings(path):
    async with SqliteStore.open(path) as store:
        return list(await store.verify())


def test_an_upgrade_in_several_transactions_is_caught(monkeypatch):
    torn = [each.replace("drop table epochs;", "commit; begin; drop table epochs;") for each in load_scripts()]
    monkeypatch.setattr(store, "Database", lambda path, vfs, read_only: Database(path, vfs, read_only, torn))
    assert sweep(UpgradeScenario(1, "killed"), most=0, troubles=["kill"], enough=3).violations
