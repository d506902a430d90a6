"""Writes the files of the present format: `python -m tests.formats`."""

from __future__ import annotations

from unittest.mock import patch

import trio

from naviscope_ingest.sinks import SqliteSink
from naviscope_ingest.stores.sqlite.backup import Copy
from naviscope_ingest.stores.sqlite.schema import load_scripts
from naviscope_ingest.testing.disk import SimulatedDisk
from tests.durability.store_scenario import FIRST, SCHEMA, Desk, StoreScenario
from tests.formats import CALLS, keep_files
from tests.simulation.folder import SimulatedFolder


async def work(disk: SimulatedDisk) -> dict[str, dict[str, bytes]]:
    """Play the script, and return what is found at its end."""
    async with StoreScenario().open(disk) as store, store.join("script") as session:
        desk = Desk(store, session, SqliteSink(schema=SCHEMA))
        for call in FIRST[:CALLS]:
            await call(desk)
        killed = {name: disk.content(name) for name in disk.names()}
        await store.backup(disk.path("copy.db"))
        return {"killed": killed, "copy": {"ingest.db": disk.content("copy.db")}}


def main() -> None:
    number = len(load_scripts())
    with patch.object(Copy, "folder", SimulatedFolder()):
        for which, contents in trio.run(work, SimulatedDisk()).items():
            keep_files(number, which, contents)
            print(f"format {number}, {which}: {', '.join(contents)}")


if __name__ == "__main__":
    main()
