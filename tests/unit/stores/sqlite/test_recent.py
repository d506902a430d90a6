"""Messages that were put lately: what is kept of them, for how long, and that it makes no difference."""

import pytest

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite import steps
from naviscope_ingest.stores.sqlite.recent import Recent
from naviscope_spi import Ended, EpochOptions, EpochSealed, Message, Settlement, Waits


def rows(*seqs, size=700):
    return [("messages", seq, 1, f"m{seq}", 0.0, b"", None, 1, b"x" * size) for seq in seqs]


def test_what_is_taken_is_gone_and_makes_room():
    recent = Recent(3_000)
    recent.add(rows(1, 2, 3))
    assert recent.size == 3_000
    assert recent.take([3, 9, 1]) == rows(3, 1)
    assert recent.take([3, 1]) == []
    assert (len(recent), recent.size) == (1, 1_000)
    recent.add(rows(4, 5))
    assert len(recent) == 3


def test_when_it_is_full_the_older_ones_stay():
    recent = Recent(4_000)
    recent.add(rows(1, 2, 3))
    recent.add(rows(4, 5))
    assert recent.take([1, 2, 3, 4, 5]) == rows(1, 2, 3)


def test_those_that_nobody_takes_make_room_in_the_end():
    recent = Recent(4_000)
    recent.add(rows(1, 2, 3, 4))
    for seq in range(5, 9):
        recent.add(rows(seq))
    assert recent.size == 2_000
    recent.add(rows(9))
    assert recent.take([1, 2, 3, 4, 9]) == rows(3, 4, 9)


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db", max_recent=100_000) as opened:
        yield opened


def count_recent(store):
    return len(store._ledger.recent)


async def test_a_claim_of_some_that_are_remembered_and_some_that_are_not_keeps_its_order(store):
    epoch = (await store.open_epoch("nightly", EpochOptions())).key
    seqs = list((await store.put(epoch, [Message(f"m{n}", {"n": n}) for n in range(6)])).accepted)
    store._ledger.recent.take([seqs[1], seqs[4]])
    async with store.join("test") as session:
        leases = await store.pop_ready(session, seqs[::-1])
    assert [lease.message.payload["n"] for lease in leases] == [5, 4, 3, 2, 1, 0]


async def test_a_payload_is_what_was_stored_and_not_what_became_of_it(store):
    epoch = (await store.open_epoch("nightly", EpochOptions())).key
    payload = {"rows": [1]}
    seqs = (await store.put(epoch, [Message("a", payload)])).accepted
    payload["rows"].append(2)
    async with store.join("test") as session:
        (lease,) = await store.pop_ready(session, seqs)
    assert lease.message.payload == {"rows": [1]}


async def test_one_that_ends_or_waits_without_having_run_is_read(store):
    epoch = (await store.open_epoch("nightly", EpochOptions())).key
    seqs = (await store.put(epoch, [Message("a", 1), Message("b", 2), Message("c", 3)])).accepted
    async with store.join("test") as session:
        await store.settle(session, Settlement(ended=[Ended(seqs[0], "cancelled")], waits=[Waits(seqs[1], attempt=2)]))
        assert count_recent(store) == 1
        leases = await store.pop_ready(session, seqs)
    assert [(lease.message.id, lease.attempt) for lease in leases] == [("b", 2), ("c", 0)]


async def test_what_was_rolled_back_is_not_remembered(store):
    epoch = (await store.open_epoch("nightly", EpochOptions())).key
    await store.put(epoch, [Message("a", 1)])

    def put_and_fail(ledger):

        steps.put(ledger, epoch, [Message("b", 2)], [ledger.scribe.write(Message("b", 2))])
        assert len(ledger.recent) == 2
        raise EpochSealed(epoch.name, "b")

    with pytest.raises(EpochSealed):
        await store._write(put_and_fail)
    assert count_recent(store) == 1
    receipt = await store.put(epoch, [Message("b", 3)])
    async with store.join("test") as session:
        (lease,) = await store.pop_ready(session, receipt.accepted)
    assert lease.message.payload == 3
    assert await store.verify() == []
