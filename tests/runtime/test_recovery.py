"""What a runtime finds when it starts on a store that another one has left."""

import shutil
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
import trio.testing

from naviscope_ingest import Executed, MemoryBus, MemorySink, Message
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import START, make_runtime, started


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


async def killed(folder, work, *messages, until, seals=False):
    """Run until something happened, and return the file as a process that is killed then leaves it."""
    path, left = folder / "a.db", folder / "killed.db"
    async with opened(path) as store:
        with trio.CancelScope() as scope:
            async with started(work, store=store) as world:
                epoch = await world.intake.new_epoch("job")
                await epoch.submit(messages)
                if seals:
                    await epoch.seal()
                await until.wait()
                await trio.testing.wait_all_tasks_blocked()
                for suffix in ("", "-wal"):
                    shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
                scope.cancel()
    return left


class Together:
    """Takes three seconds for each message, and notes which messages ran beside it."""

    def __init__(self):
        self.running = {}
        self.beside = {}

    async def execute(self, delivery):
        mine = self.beside[delivery.id] = set(self.running)
        for others in self.running.values():
            others.add(delivery.id)
        self.running[delivery.id] = mine
        await trio.sleep(3)
        del self.running[delivery.id]
        return Executed()


@pytest.mark.parametrize("bus", [None, MemoryBus])
async def test_a_suspect_whose_lane_is_taken_runs_alone_when_its_turn_comes(tmp_path, autojump_clock, bus):
    both = trio.Event()
    seen = []

    async def hangs(delivery):
        seen.append(delivery.id)
        if len(seen) == 2:
            both.set()
        await trio.sleep_forever()

    # While x is tried alone, a waits for it. Then a has the lane, which comes before b.
    messages = [Message("a", None, key="lane", depends_on=["x"]), Message("x", None), Message("b", None, key="lane")]
    file = await killed(tmp_path, hangs, *messages, until=both)
    assert sorted(seen) == ["b", "x"]
    executor = Together()
    async with opened(file) as store, started(executor, store=store, bus=bus and bus()) as world:
        assert world.runtime.recovery.suspects == 2
        epoch = await world.intake.get_epoch("job")
        await epoch.submit([Message(f"m{number}", None) for number in range(20)])
        await epoch.seal()
        assert (await epoch.wait()).committed == 23
    assert executor.beside["x"] == executor.beside["b"] == set()
    assert len(executor.beside["a"]) == 20


class SlowReader(SqliteStore):
    """A store that takes a second for each part of a recovery, and lets others look meanwhile."""

    def facts(self, after=None):
        return self._slowly(super().facts(after))

    async def _slowly(self, facts):
        async with aclosing(facts):
            async for batch in facts:
                await trio.sleep(1)
                yield batch


async def test_a_long_recovery_says_how_far_it_is(tmp_path, autojump_clock, caplog, monkeypatch):
    monkeypatch.setattr("naviscope_ingest.stores.sqlite.recovery._CHUNK", 10)
    async with opened(tmp_path / "a.db") as store, started(store=store) as world:
        epoch = await world.intake.new_epoch("job")
        await epoch.submit([Message(f"m{number}", None, depends_on=["later"]) for number in range(100)])
        await epoch.submit([Message(f"n{number}", None) for number in range(50)])
        await world.intake.wait_idle()
    shown = []
    clock = TrioClock(START)
    caplog.set_level("INFO", "naviscope_ingest")
    caplog.clear()
    async with (
        SlowReader.open(tmp_path / "a.db", runner="inline", clock=clock) as store,
        trio.open_nursery() as nursery,
    ):
        runtime = make_runtime(Together(), MemorySink(), store, clock)
        assert not runtime.recovery.is_over

        async def watch():
            while not shown or not shown[-1].is_over:
                await trio.sleep(4)
                assert runtime.statistics().state in ("starting", "running")
                shown.append(runtime.recovery)

        nursery.start_soon(watch)
        await nursery.start(runtime.run_forever)
        found = runtime.recovery
        assert (found.is_over, found.epochs, found.unfinished, found.messages, found.expected) == (
            True,
            1,
            100,
            150,
            150,
        )
        await trio.sleep(10)
        runtime.stop()
    read = [each.messages for each in shown]
    assert read == sorted(read)
    assert 0 < read[1] < 150
    assert {each.expected for each in shown[1:]} == {150}
    told = [record for record in caplog.records if record.msg.startswith("recovering")]
    assert len(told) >= 5
    assert all(0 <= record.messages <= record.expected == 150 for record in told)
    assert "of 150 messages read in" in told[0].getMessage()
    assert "recovered 100 unfinished messages of 1 epochs" in caplog.records[-1].getMessage()
