"""Going on from a copy: what the copy has keeps its task keys, and nothing new gets one that was given before."""

from contextlib import closing

import apsw
import pytest
import trio

from naviscope_ingest import Executed, IngestRuntime, Message, SqliteStore
from naviscope_ingest.sinks import Insert, SqliteSink
from naviscope_spi import EpochOptions

SCHEMA = "create table booking (id text not null, text text not null)"


class Booker:
    def __init__(self, *, until=None):
        self.until = until
        self.reached = trio.Event()

    async def execute(self, message):
        if message.id == self.until:
            self.reached.set()
            await trio.sleep_forever()
        return Executed(ops=[Insert("booking", {"id": message.id, "text": message.payload})])


def opened(folder, store="ingest.db", executor=None):
    sink = SqliteSink(path=folder / "results.db", schema=SCHEMA)
    return IngestRuntime.open(f"sqlite:///{folder / store}", executor=executor or Booker(), commit_sink=sink)


async def book(folder, name, *messages, store="ingest.db"):
    async with opened(folder, store) as intake, intake.epoch(name) as epoch:
        await epoch.submit(messages)
    return epoch.report


def bookings(folder):
    with closing(apsw.Connection(str(folder / "results.db"))) as connection:
        return sorted(connection.execute("select id, text from booking").fetchall())


async def test_a_new_epoch_is_not_taken_for_one_that_came_after_the_copy(tmp_path):
    await book(tmp_path, "monday", Message("a", "on monday"))
    async with opened(tmp_path) as intake:
        await intake.runtime.store.backup(str(tmp_path / "copy.db"))
    tuesday = await book(tmp_path, "tuesday", Message("a", "on tuesday"))
    wednesday = await book(tmp_path, "wednesday", Message("a", "on wednesday"), store="copy.db")
    assert wednesday.number > tuesday.number
    assert wednesday.number < 2**53
    assert bookings(tmp_path) == [("a", "on monday"), ("a", "on tuesday"), ("a", "on wednesday")]


async def test_what_was_unfinished_in_the_copy_is_not_applied_a_second_time(tmp_path):
    executor = Booker(until="b")
    async with opened(tmp_path, executor=executor) as intake:
        epoch = await intake.new_epoch("monday")
        await epoch.submit([Message("b", "first")])
        await executor.reached.wait()
        await intake.runtime.store.backup(str(tmp_path / "copy.db"))
        intake.runtime.stop(timeout=0)
    # The original goes on, and commits what the copy has as unfinished.
    assert (await book(tmp_path, "monday")).committed == 1
    assert (await book(tmp_path, "monday", store="copy.db")).committed == 1
    assert bookings(tmp_path) == [("b", "first")]


async def test_copies_of_a_copy_and_copies_side_by_side_have_numbers_of_their_own(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        await store.open_epoch("one", EpochOptions())
        await store.backup(str(tmp_path / "b.db"))
        await store.backup(str(tmp_path / "c.db"))
    numbers = []
    for name in ("a", "b", "c"):
        for _ in range(2):
            async with SqliteStore.open(tmp_path / f"{name}.db") as store:
                numbers.append((await store.open_epoch(None, EpochOptions())).key.number)
    async with SqliteStore.open(tmp_path / "b.db") as store:
        await store.backup(str(tmp_path / "d.db"))
        numbers.append((await store.open_epoch(None, EpochOptions())).key.number)
    async with SqliteStore.open(tmp_path / "d.db") as store:
        numbers.append((await store.open_epoch(None, EpochOptions())).key.number)
    assert len(set(numbers)) == len(numbers)
    assert [numbers[1] - numbers[0], numbers[3] - numbers[2], numbers[5] - numbers[4]] == [1, 1, 1]


@pytest.mark.parametrize("runner", ["thread", "inline"])
async def test_a_copy_that_is_only_read_stays_a_copy(tmp_path, runner):
    async with SqliteStore.open(tmp_path / "a.db", runner=runner) as store:
        await store.backup(str(tmp_path / "b.db"))
        store_id = store.info.store_id
    for read_only, is_copy in ((True, 1), (False, 0), (False, 0)):
        async with SqliteStore.open(tmp_path / "b.db", read_only=read_only, runner=runner) as store:
            assert store.info.store_id == store_id
            assert await store.verify() == []
            assert store._ledger.state.is_copy == is_copy
