"""What a runtime finds when it starts on a store that another one has left."""

from contextlib import asynccontextmanager

import trio

from naviscope_ingest import Message
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import START, started


@asynccontextmanager
async def opened(path):
    """Open a store under virtual time."""
    async with SqliteStore.open(path, runner="inline", clock=TrioClock(START)) as store:
        yield store


async def test_a_report_has_its_times_after_a_restart(tmp_path, autojump_clock):
    async with opened(tmp_path / "a.db") as store, started({}, store=store) as world:
        await trio.sleep(1)
        for name in ("open", "sealed", "cancelled"):
            epoch = await world.intake.new_epoch(name)
            await epoch.submit(Message("a", None, depends_on=["b"]))
        await trio.sleep(1)
        await world.intake.seal_epoch("sealed")
        assert world.intake.report("sealed").opened_at == START + 1
    async with opened(tmp_path / "a.db") as store, started({}, store=store) as world:
        await trio.sleep(1)
        await world.intake.seal_epoch("sealed")
        await world.intake.cancel_epoch("cancelled")
        reports = [world.intake.report(name) for name in ("open", "sealed", "cancelled")]
        assert {report.opened_at for report in reports} == {START + 1}
        assert [report.sealed_at for report in reports] == [None, START + 2, START + 3]
