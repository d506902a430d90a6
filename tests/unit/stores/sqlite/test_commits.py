"""Group commit, cancellation, and commits that raise."""

from functools import partial

import apsw
import pytest
import trio
import trio.testing

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite import StoreClosed, StoreFull
from naviscope_ingest.stores.sqlite.steps import notify_ready, pop_ready
from naviscope_ingest.stores.sqlite.writer import Request
from naviscope_spi import EpochOptions, EpochSealed, Message, Resource, Settlement, StoreFailed
from tests.unit.stores.sqlite.faults import FaultyDisk, Times


async def epoch_of(store, name="nightly"):
    return (await store.open_epoch(name, EpochOptions())).key


async def known_ids(path, epoch):
    """Return the ids that are in the file, by putting them all again."""
    async with SqliteStore.open(path) as store:
        return {message.id for message in await recovered(store)}


async def recovered(store):
    facts = store.facts()
    messages = []
    async for batch in facts:
        for fact in batch:
            messages += getattr(fact.body, "messages", [])
        if type(batch[-1].body).__name__ == "CaughtUp":
            break
    await facts.aclose()
    return messages


async def test_concurrent_puts_share_commits(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = await epoch_of(store)
        before = store.statistics().commits
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(store.put, epoch, [Message(f"m{number}", None)])
        commits = store.statistics().commits - before
        assert len(await recovered(store)) == 200
    assert 1 <= commits <= 50


async def test_one_refused_request_does_not_spoil_its_group(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        sealed, opened = await epoch_of(store, "sealed"), await epoch_of(store, "open")
        await store.mark_epoch(sealed, "seal")
        refused = []

        async def put_late(number):
            try:
                await store.put(sealed, [Message(f"late{number}", None)])
            except EpochSealed as error:
                refused.append(error.message_id)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(put_late, number)
                nursery.start_soon(store.put, opened, [Message(f"m{number}", None)])
        assert len(refused) == 20
        assert {message.id for message in await recovered(store)} == {f"m{number}" for number in range(20)}
        assert await store.verify() == []


async def test_a_call_that_is_cancelled_before_it_is_queued_does_nothing(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = await epoch_of(store)
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.put(epoch, [Message("a", None)])
        assert scope.cancelled_caught
        assert await recovered(store) == []


async def test_a_call_that_is_queued_happens_and_answers(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = await epoch_of(store)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def put():
                    receipts.append(await store.put(epoch, [Message("a", None)]))

                receipts = []
                nursery.start_soon(put)
                await trio.testing.wait_all_tasks_blocked(0)
                scope.cancel()
        assert [len(receipt.accepted) for receipt in receipts] == [1]


@pytest.mark.parametrize("runner", ["thread", "inline"])
async def test_a_claim_is_committed_before_it_is_answered_and_not_synced(tmp_path, runner):
    """It is kept for when the process dies, which needs no sync. So a chain costs one for each message and not two."""
    synced = []
    with FaultyDisk() as disk:
        async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name, runner=runner) as store:
            epoch = await epoch_of(store)
            seqs = (await store.put(epoch, [Message(f"m{n}", n) for n in range(3)])).accepted
            async with store.join("test") as session:
                disk.after = lambda what, file: synced.append(file) if what == "sync" else None
                for seq in seqs:
                    before = store.statistics().commits
                    (lease,) = await store.pop_ready(session, [seq])
                    assert store.statistics().commits == before + 1
                    assert synced == []
                    await store.settle(session, Settlement(committed=[lease]))
                    assert synced == ["db-wal"]
                    synced.clear()


async def test_a_claim_that_comes_with_others_is_synced_with_them(tmp_path):
    synced = []
    with FaultyDisk() as disk:
        async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name, runner="inline") as store:
            epoch = await epoch_of(store)
            (seq,) = (await store.put(epoch, [Message("a", 1)])).accepted
            async with store.join("test") as session:
                disk.after = lambda what, file: synced.append(file) if what == "sync" else None
                claim = Request(partial(pop_ready, session=session, seqs=[seq]), is_light=True)
                store._runner.writer.run([claim, Request(partial(notify_ready, resources=[Resource("r")]))])
                assert synced == ["db-wal"]
                assert len(claim.answer.unwrap()) == 1


@pytest.mark.parametrize("runner", ["thread", "inline"])
async def test_a_commit_that_raised_but_is_there_counts(tmp_path, runner):
    path = tmp_path / "a.db"
    with FaultyDisk() as disk:
        async with SqliteStore.open(path, vfs=disk.name, runner=runner) as store:
            epoch = await epoch_of(store)
            # The log is on the disk when the error comes, so that opening it again finds the commit.
            disk.after = fault = Times(apsw.IOError, "sync", "db-wal")
            receipt = await store.put(epoch, [Message("a", 1)])
            assert fault.raised == 1
            assert len(receipt.accepted) == 1
            again = await store.put(epoch, [Message("a", 1)])
            assert (len(again.accepted), again.duplicates) == (0, 1)
            assert await store.verify() == []


@pytest.mark.parametrize("what", ["write", "sync"])
@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize("first", [1, 2, 3])
async def test_a_group_that_is_not_there_is_run_again(tmp_path, what, error, first):
    path = tmp_path / "a.db"
    with FaultyDisk() as disk:
        async with SqliteStore.open(path, vfs=disk.name, runner="inline") as store:
            epoch = await epoch_of(store)
            disk.before = Times(error, what, "db-wal", first)
            for number in range(4):
                receipt = await store.put(epoch, [Message(f"m{number}", "x" * 5_000)])
                assert len(receipt.accepted) == 1
            assert disk.before.raised == 1
            assert await store.verify() == []
    assert await known_ids(path, epoch) == {f"m{number}" for number in range(4)}


@pytest.mark.parametrize(("error", "expected"), [(apsw.IOError, StoreFailed), (apsw.FullError, StoreFull)])
@pytest.mark.parametrize("runner", ["thread", "inline"])
async def test_a_disk_that_goes_on_failing_stops_the_store(tmp_path, error, expected, runner):
    path = tmp_path / "a.db"
    with FaultyDisk() as disk:
        async with SqliteStore.open(path, vfs=disk.name, runner=runner) as store:
            epoch = await epoch_of(store)
            await store.put(epoch, [Message("safe", 1)])
            disk.before = Times(error, "write", "db-wal", times=1_000)
            with pytest.raises(expected, match=str(path)):
                await store.put(epoch, [Message("lost", 1)])
            disk.before = lambda what, file: None
            for call in (
                lambda: store.put(epoch, []),
                lambda: store.read("space", []),
                lambda: anext(store.facts()),
                lambda: store.notify_ready([]),
            ):
                with pytest.raises(expected):
                    await call()
    assert await known_ids(path, epoch) == {"safe"}


async def test_leases_outlive_a_commit_that_failed(tmp_path):
    with FaultyDisk() as disk:
        async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name, runner="inline") as store:
            epoch = await epoch_of(store)
            seqs = (await store.put(epoch, [Message(f"m{n}", n) for n in range(3)])).accepted
            async with store.join("test") as session:
                leases = await store.pop_ready(session, seqs)
                await store.settle(session, Settlement(committed=leases[:1]))
                disk.before = Times(apsw.IOError, "sync", "db-wal")
                settled = await store.settle(session, Settlement(committed=leases[1:2]))
                assert disk.before.raised == 1
                assert settled.refused == []
                settled = await store.settle(session, Settlement(committed=leases))
                assert list(settled.refused) == list(seqs[:2])
            assert await store.verify() == []


async def test_a_closed_store_says_so(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        pass
    with pytest.raises(StoreClosed):
        await store.open_epoch("nightly", EpochOptions())


@pytest.mark.parametrize("runner", ["thread", "inline"])
async def test_readers_that_wait_end_with_the_store(tmp_path, runner):
    ended = []

    async def read(store):
        async for _ in store.facts():
            pass
        ended.append(True)

    async with trio.open_nursery() as nursery, SqliteStore.open(tmp_path / "a.db", runner=runner) as store:
        await epoch_of(store)
        await recovered(store)
        nursery.start_soon(read, store)
        nursery.start_soon(read, store)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not ended
    assert ended == [True, True]


async def test_readers_that_wait_are_told_that_the_store_has_stopped(tmp_path):
    with FaultyDisk() as disk:
        async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name) as store:
            epoch = await epoch_of(store)
            told = []

            async def read():
                try:
                    async for _ in store.facts():
                        pass
                except StoreFull as error:
                    told.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked(0.05)
                disk.before = Times(apsw.FullError, "write", "db-wal", times=1_000)
                with pytest.raises(StoreFull):
                    await store.put(epoch, [Message("a", 1)])
            assert len(told) == 1
            disk.before = lambda what, file: None
