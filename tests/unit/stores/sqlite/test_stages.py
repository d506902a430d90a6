"""Staged messages: however many there are, the commit of their parent is one small write."""

import pytest
import trio

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite import retention
from naviscope_ingest.stores.sqlite.stages import ALIVE, DROPPED, WAITS, Joined, Lazy, Stage, Stages
from naviscope_spi import Derived, EpochChange, EpochOptions, Message, Seq, Settlement

CHUNK, CHUNKS = 500, 10
MANY = CHUNK * CHUNKS


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db", runner="inline") as store:
        yield store


async def leased(store, session, *names):
    epoch = (await store.open_epoch("one", EpochOptions())).key
    return await store.pop_ready(session, (await store.put(epoch, [Message(name, b"") for name in names])).accepted)


async def stage(store, lease, start=0):
    for first in range(start, start + MANY, CHUNK):
        messages = [Message(f"s{number}", number) for number in range(first, first + CHUNK)]
        await store.put(lease.epoch, messages, staged_by=lease)


def changes(store):
    return store._ledger.connection.total_changes()


def amount(store, table):
    return store._ledger.sums.of(table)[0]


async def test_the_commit_of_a_parent_changes_few_rows(store):
    async with store.join("test") as session:
        (lease,) = await leased(store, session, "a")
        await stage(store, lease)
        before = changes(store)
        settled = await store.settle(session, Settlement([lease], derived=[Derived(lease.seq, staged=MANY)]))
        assert changes(store) - before < 20
        assert [message.id for _, _, message in settled.accepted] == [f"s{number}" for number in range(MANY)]
        claimed = await store.pop_ready(session, [seq for seq, _, _ in settled.accepted])
        assert [each.message.payload for each in claimed] == list(range(MANY))
        assert (await store.settle(session, Settlement(claimed))).refused == []
        assert await store.verify() == []


async def test_what_was_staged_in_vain_is_deleted_in_small_steps(store, monkeypatch):
    monkeypatch.setattr(retention, "_STEP", 100)
    async with store.join("test") as session:
        lease, other = await leased(store, session, "a", "b")
        await stage(store, lease)
        before = changes(store)
        await store.settle(session, Settlement([lease]))
        # The inline runner does one step with each call.
        assert 100 <= changes(store) - before < 120
        assert amount(store, "messages") == MANY - 100 + 2
        # What is not deleted yet is in nobody's way.
        await stage(store, other)
        settled = await store.settle(session, Settlement([other], derived=[Derived(other.seq, staged=MANY)]))
        assert len(settled.accepted) == MANY
        assert await store.verify() == []


async def test_a_thread_deletes_them_when_it_is_idle(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        async with store.join("test") as session:
            (lease,) = await leased(store, session, "a")
            await stage(store, lease)
        with trio.fail_after(30):
            while amount(store, "stages"):
                await store.notify_ready([])
        assert amount(store, "messages") == 1
        assert await store.verify() == []


async def test_the_next_process_deletes_them_too(tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "_STEP", 100)
    async with SqliteStore.open(tmp_path / "a.db", runner="inline") as store, store.join("test") as session:
        (lease,) = await leased(store, session, "a")
        await stage(store, lease)
    async with SqliteStore.open(tmp_path / "a.db", runner="inline") as store, store.join("next") as session:
        assert amount(store, "messages") > MANY / 2
        assert await store.pop_ready(session, [Seq(lease.seq + 1)]) == []
        while amount(store, "stages"):
            await store.notify_ready([])
        assert amount(store, "messages") == 1
        assert await store.verify() == []


async def test_a_commit_that_is_undone_can_come_again(store):
    async with store.join("test") as session:
        (lease,) = await leased(store, session, "a")
        await stage(store, lease)
        settlement = Settlement([lease], derived=[Derived(lease.seq, staged=MANY)])

        def fail(transaction):
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await store.settle_with(session, settlement, fail)
        assert await store.pop_ready(session, [Seq(lease.seq + 1)]) == []
        assert len((await store.settle(session, settlement)).accepted) == MANY
        assert await store.verify() == []


async def test_stages_of_a_pruned_epoch_are_forgotten(store):
    async with store.join("test") as session:
        (lease,) = await leased(store, session, "a")
        await stage(store, lease)
        settled = await store.settle(session, Settlement([lease], derived=[Derived(lease.seq, staged=MANY)]))
        claimed = await store.pop_ready(session, [seq for seq, _, _ in settled.accepted])
        await store.settle(session, Settlement(claimed))
        assert amount(store, "stages") == 1
        await store.mark_epoch(lease.epoch, "seal")
        completed = EpochChange(lease.epoch, "completed", succeeded=True)
        await store.settle(session, Settlement(epochs=[completed]))
        while await store.prune(1e12, 1_000):
            assert await store.verify() == []
        assert (amount(store, "messages"), amount(store, "stages")) == (0, 0)


def test_a_place_is_found_in_its_stage():
    one, two = Stage(3, 5, 1, 1, WAITS), Stage(9, 9, 2, 1, DROPPED)
    stages = Stages([two, one])
    assert [stages.at(seq) for seq in (2, 3, 5, 6, 9, 10)] == [None, one, one, None, two, None]
    assert (stages.of(1), stages.of(2), stages.dropped()) == ([one], [], two)
    stages.put(one._replace(last=7))
    assert stages.at(6) == one._replace(last=7)
    stages.put(one._replace(state=ALIVE))
    assert stages.at(6) is None
    stages.remove(two)
    assert not stages


def test_joined_sequences_are_one():
    joined = Joined([Lazy([1, 2, 3], str), ["x"], Lazy([4], str)])
    assert list(joined) == ["1", "2", "3", "x", "4"]
    assert [joined[index] for index in (0, 3, 4, -1, -5)] == ["1", "x", "4", "4", "1"]
    assert (len(joined), list(joined[1:4]), list(Lazy([1, 2, 3], str)[1:])) == (5, ["2", "3", "x"], ["2", "3"])
    for index in (5, -6):
        with pytest.raises(IndexError):
            joined[index]
