"""A file of an older format is opened, on a simulated disk.

Whatever happens meanwhile, what is found afterwards is what was there before: in the old format, or in the new one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import trio

from naviscope_ingest.stores.sqlite.schema import load_scripts
from naviscope_ingest.testing.disk import SimulatedDisk
from tests.durability.store_scenario import Seen, StoreScenario
from tests.formats import CALLS, kept_files, kept_formats

OLDER = [(number, which) for number in kept_formats() if number < len(load_scripts()) for which in ("killed", "copy")]
"""The kept files that are upgraded."""


@cache
def expected() -> Any:
    """Return what the process knew that wrote the files."""
    return StoreScenario().states[CALLS]


class UpgradeScenario(StoreScenario):
    """The opening of a kept file.

    Args:
        number: its format.
        which: "killed" has a log; "copy" has none, so that a journal is written.
    """

    def __init__(self, number: int, which: str) -> None:
        self._files = kept_files(number, which)
        self.expected = expected()

    def disk(self) -> SimulatedDisk:
        disk = SimulatedDisk()
        for name, content in self._files.items():
            disk.put(name, content)
        return disk

    def run(self, disk: SimulatedDisk, seen: Seen) -> None:
        disk.power_on()
        trio.run(self._recover, disk)

    def check(self, disk: SimulatedDisk, seen: Seen) -> None:
        disk.power_on()
        trio.run(self._check, disk, 0, [self.expected])
