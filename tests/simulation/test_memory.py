"""Programs whose store is in memory are simulated too: their runtimes are cancelled at any step, and started again."""

from __future__ import annotations

import pytest

from naviscope_ingest import EpochSealed
from naviscope_ingest.stores._ledger import Ledger
from naviscope_ingest.testing import SimulationFailed, simulate
from tests.simulation.kernel_program import KernelProgram


class InMemory(KernelProgram):
    store = "memory"

    def prepare(self, world):
        super().prepare(world)
        # Nothing records outcomes: what a runtime was cancelled at is executed again, and may be answered otherwise.
        self.sink = "forgetful service"

    async def submit(self, intake, epoch, messages):
        try:
            await super().submit(intake, epoch, messages)
        except EpochSealed:
            # In memory ids go with the completion, which may come before a submit of known ones arrives.
            assert intake.report(epoch).state == "completed"


def test_promises_are_kept_by_runtimes_that_are_cancelled_at_any_step():
    report = simulate(InMemory, seeds=60)
    assert report.crashes >= 60
    assert not report.power_cuts
    assert not {"io", "full", "sync", "power"} & report.faults.keys()
    assert report.sometimes["a process found unfinished messages"]


def test_one_seed_is_one_run():
    assert simulate(InMemory, seeds=[7]).digests == simulate(InMemory, seeds=[7]).digests


def _forgets_the_last(put):
    def forget(self, key, messages):
        receipt = put(self, key, messages)
        if len(receipt.accepted) > 1:
            seq = receipt.accepted[-1]
            epoch = self._live.pop(seq)
            del epoch.ids[messages[receipt.indexes[-1]].id]
            del epoch.messages[seq]
            epoch.unfinished -= 1
        return receipt

    return forget


def test_a_store_that_forgets_what_it_acknowledged_is_caught(monkeypatch):
    monkeypatch.setattr(Ledger, "put", _forgets_the_last(Ledger.put))
    with pytest.raises(SimulationFailed):
        simulate(InMemory, seeds=100)
