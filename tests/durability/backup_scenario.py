"""A backup is made while the store works, on a simulated disk.

Whatever happens meanwhile, the store has what it had. What has the name of the copy is whole; and if the call returned,
it is there.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import trio
from attrs import define

from naviscope_ingest.sinks import SqliteSink
from naviscope_ingest.stores.sqlite import BackupFailed, SqliteStore, backup
from naviscope_ingest.stores.sqlite.backup import Copy
from naviscope_ingest.testing.disk import VFS_NAME, SimulatedDisk
from tests.durability.store_scenario import FIRST, SCHEMA, Desk, FixedClock, Seen, StoreScenario, difference, known
from tests.simulation.folder import SimulatedFolder

BEFORE, BETWEEN = 8, 4
PAGES = 9


@define
class SeenCopy(Seen):
    """How many calls were answered, and whether the backup was."""

    is_copied: bool = False


class BackupScenario(StoreScenario):
    """Some calls, a backup with some more between its steps, and the end."""

    def start(self) -> SeenCopy:
        return SeenCopy()

    def run(self, disk: SimulatedDisk, seen: Seen) -> None:
        disk.power_on()
        assert isinstance(seen, SeenCopy)
        with patch.object(Copy, "folder", SimulatedFolder()), patch.object(backup, "_PAGES", PAGES):
            trio.run(self._work, disk, seen)

    async def _work(self, disk: SimulatedDisk, seen: SeenCopy) -> None:
        async with self.open(disk) as store, store.join("script") as session:
            desk = Desk(store, session, SqliteSink(schema=SCHEMA))
            script = iter(FIRST[: BEFORE + BETWEEN])

            async def answer() -> bool:
                call = next(script, None)
                if call is not None:
                    await self.answer(disk, seen, lambda: call(desk))
                return call is not None

            for _ in range(BEFORE):
                await answer()
            try:
                await self._back_up(store, disk, answer)
            except BackupFailed:
                # The store goes on.
                while await answer():
                    pass
                return
            if not disk.is_dead:
                seen.is_copied = True

    async def _back_up(self, store: SqliteStore, disk: SimulatedDisk, answer) -> None:
        """Do what `backup` does, with calls between the steps: in which order tasks run is trio's business."""
        copy = await store._read(lambda ledger: Copy(ledger, disk.path("copy.db")))
        try:
            while not await store._read(copy.step):
                await answer()
            while await answer():
                pass
        finally:
            copy.close()

    def check(self, disk: SimulatedDisk, seen: Seen) -> None:
        assert isinstance(seen, SeenCopy)
        disk.power_on()
        trio.run(self._check_copy, disk, seen, self.states[BEFORE : BEFORE + BETWEEN + 1])
        super().check(disk, seen)

    async def _check_copy(self, disk: SimulatedDisk, seen: SeenCopy, states: list[Any]) -> None:
        if "copy.db" not in disk.names():
            assert not seen.is_copied, "the copy is gone"
            return
        options = {"clock": FixedClock(), "vfs": VFS_NAME, "runner": "inline"}
        async with SqliteStore.open(disk.path("copy.db"), read_only=True, **options) as store:
            problems = list(await store.verify())
            assert problems == [], f"verify: {problems}"
            assert store._ledger.state.is_copy
            found = await known(store)
        assert found in states, f"the copy: {difference(found, states[0])}"
