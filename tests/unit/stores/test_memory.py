"""What the store in memory does beyond the contract: what it frees, keeps and counts."""

import gc
import weakref

import pytest
import trio

from naviscope_ingest.stores import MemoryStore
from naviscope_spi import (
    Accepted,
    CaughtUp,
    Committed,
    Derived,
    Ended,
    EpochChange,
    EpochForgotten,
    EpochKey,
    EpochOptions,
    EpochSealed,
    InvalidMessage,
    Lease,
    Message,
    Position,
    Record,
    Resource,
    SessionLost,
    Settlement,
    UnknownEpoch,
    Waits,
)


class FixedClock:
    def __init__(self, now=100.0):
        self.now = now

    def wall(self):
        return self.now

    def monotonic(self):
        return self.now


class Payload:
    """A payload that can be watched while it is freed."""


class Arrays:
    """Answers == as an array does."""

    def __eq__(self, other):
        return [True, False]

    __hash__ = None


class Quarrelsome:
    def __eq__(self, other):
        raise RuntimeError("compare me not")

    __hash__ = None


async def opened(store, name=None):
    return (await store.open_epoch(name, EpochOptions())).key


async def finished(store, session, epoch, report=b"report"):
    await store.mark_epoch(epoch, "seal")
    await store.settle(session, Settlement(epochs=[EpochChange(epoch, "completed", report)]))


async def committed(store, session, epoch, *messages):
    receipt = await store.put(epoch, messages)
    leases = await store.pop_ready(session, receipt.accepted)
    await store.settle(session, Settlement(committed=leases))
    return receipt.accepted


async def test_messages_ids_values_and_resources_go_with_the_completion():
    store = MemoryStore()
    payload = Payload()
    watch = weakref.ref(payload)
    async with store.join("test") as session:
        epoch = await opened(store, "nightly")
        (a,) = (await store.put(epoch, [Message("a", payload)])).accepted
        del payload
        leases = await store.pop_ready(session, [a])
        derived = [Derived(a, ready=[Resource("table")])]
        await store.settle(session, Settlement(committed=leases, derived=derived, values={a: b"value"}))
        assert store.statistics().messages == 1
        await finished(store, session, epoch)
    del leases
    gc.collect()
    assert watch() is None
    assert store.statistics().messages == 0
    assert (await store.open_epoch("nightly", EpochOptions())).report == b"report"


async def test_ids_that_are_gone_are_unknown_to_a_completed_epoch():
    store = MemoryStore()
    async with store.join("test") as session:
        epoch = await opened(store)
        await committed(store, session, epoch, Message("a", 1))
        await finished(store, session, epoch)
    with pytest.raises(EpochSealed):
        await store.put(epoch, [Message("a", 1)])


async def test_skipped_messages_go_with_the_completion_too():
    store = MemoryStore()
    async with store.join("test") as session:
        epoch = await opened(store)
        (a,) = (await store.put(epoch, [Message("a", 1)])).accepted
        await store.settle(session, Settlement(ended=[Ended(a, "skipped")]))
        await finished(store, session, epoch)
        settled = await store.settle(session, Settlement(waits=[Waits(a, run=1)]))
    assert settled.refused == [a]
    assert not store._ledger._live


async def test_a_dead_letter_pins_its_epoch_until_the_repair_is_over():
    store = MemoryStore()
    async with store.join("test") as session:
        epoch = await opened(store, "nightly")
        await committed(store, session, epoch, Message("good", 1))
        (bad,) = (await store.put(epoch, [Message("bad", 1)])).accepted
        await store.settle(session, Settlement(ended=[Ended(bad, "dead", letter=b"why")]))
        await finished(store, session, epoch, b"first")
        assert (store.statistics().messages, store.statistics().letters) == (2, 1)
        assert (await store.put(epoch, [Message("good", 1)])).duplicates == 1
        repairing = EpochChange(epoch, "repairing")
        await store.settle(session, Settlement(waits=[Waits(bad, run=1)], epochs=[repairing]))
        leases = await store.pop_ready(session, [bad])
        again = EpochChange(epoch, "completed", b"second")
        await store.settle(session, Settlement(committed=leases, epochs=[again]))
    assert (store.statistics().messages, store.statistics().letters) == (0, 0)
    assert (await store.open_epoch("nightly", EpochOptions())).report == b"second"


async def test_a_replayed_message_is_no_conflict_although_it_was_edited():
    store = MemoryStore()
    epoch = await opened(store)
    async with store.join("test") as session:
        (a,) = (await store.put(epoch, [Message("a", "old")])).accepted
        await store.settle(session, Settlement(ended=[Ended(a, "dead")]))
        await store.settle(session, Settlement(waits=[Waits(a, run=1, payload="new")]))
        assert (await store.pop_ready(session, [a]))[0].message.payload == "new"
    assert not (await store.put(epoch, [Message("a", "old")])).conflicts


async def test_only_the_latest_reports_are_kept():
    store = MemoryStore(keep_reports=3)
    async with store.join("test") as session:
        for number in range(5):
            await finished(store, session, await opened(store, f"e{number}"), b"%d" % number)
        reader = store.facts()
        await anext(reader)
        await finished(store, session, await opened(store, "e5"))
        news = await anext(reader)
    assert EpochForgotten(EpochKey(3, "e2")) in [fact.body for fact in news]
    assert store.statistics().epochs == 3
    with pytest.raises(UnknownEpoch):
        await store.mark_epoch(EpochKey(1, "e0"), "seal")
    assert (await opened(store, "e0")).number == 7


async def test_ten_thousand_reports_are_kept_by_default():
    store = MemoryStore()
    async with store.join("test") as session:
        for _ in range(10_005):
            await finished(store, session, store._ledger.open_epoch(None, EpochOptions()).key)
    assert store.statistics().epochs == 10_000


async def test_pruning_goes_by_the_time_of_completion():
    clock = FixedClock()
    store = MemoryStore(clock=clock)
    async with store.join("test") as session:
        for name in ("early", "late"):
            await finished(store, session, await opened(store, name))
            clock.now += 10
    assert await store.prune(110.0, 100) == 1
    assert list(store._ledger._names) == ["late"]


async def test_the_times_of_acceptance_come_from_the_clock():
    clock = FixedClock(5.0)
    store = MemoryStore(clock=clock)
    epoch = await opened(store)
    await store.put(epoch, [Message("a", 1)])
    clock.now = 6.0
    await store.put(epoch, [Message("b", 1), Message("c", 1)])
    batch = await anext(store.facts())
    assert [fact.body.at for fact in batch if hasattr(fact.body, "at")] == [5.0, 6.0]


@pytest.mark.parametrize("kind", [Arrays, Quarrelsome])
async def test_payloads_that_cannot_be_compared_are_like_themselves_only(kind):
    store = MemoryStore()
    epoch = await opened(store)
    payload = kind()
    await store.put(epoch, [Message("a", payload)])
    assert not (await store.put(epoch, [Message("a", payload)])).conflicts
    assert (await store.put(epoch, [Message("a", kind())])).conflicts == ["a"]


async def test_nothing_is_made_for_readers_who_are_not_there(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(store._ledger._feed, "publish", lambda bodies: pytest.fail("a fact without a reader"))
    async with store.join("test") as session:
        epoch = await opened(store)
        await committed(store, session, epoch, Message("a", 1))
        await finished(store, session, epoch)


async def test_a_reader_that_was_dropped_or_closed_is_gone():
    store = MemoryStore()
    forgotten, closed = store.facts(), store.facts()
    assert store.statistics().readers == 2
    await closed.aclose()
    del forgotten
    gc.collect()
    assert store.statistics().readers == 0
    with pytest.raises(StopAsyncIteration):
        await anext(closed)


async def test_two_tasks_may_wait_on_one_reader():
    store = MemoryStore()
    reader = store.facts()
    await anext(reader)
    batches = []

    async def read():
        batches.append(await anext(reader))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await opened(store)
        await trio.testing.wait_all_tasks_blocked()
        await opened(store)
    assert len(batches) == 2


async def test_the_present_position_goes_on_and_an_older_one_starts_over():
    store = MemoryStore()
    await opened(store, "a")
    (*_, last) = await anext(store.facts())
    going_on = store.facts(last.position)
    await opened(store, "b")
    assert [fact.body.record.key.name for fact in await anext(going_on)] == ["b"]
    over = await anext(store.facts(last.position))
    assert [fact.body.record.key.name for fact in over[:-1]] == ["a", "b"]
    # A reader that stopped within a recovery has a position that is always too old.
    assert over[0].position == Position(0)


async def test_a_large_recovery_comes_in_batches():
    store = MemoryStore()
    epoch = await opened(store)
    await store.put(epoch, [Message(f"m{number}", number) for number in range(2_500)])
    sizes = [len(fact.body.seqs) for fact in await anext(store.facts()) if hasattr(fact.body, "seqs")]
    assert sizes == [1_000, 1_000, 500]


async def test_an_automatic_name_avoids_one_that_is_taken():
    store = MemoryStore()
    assert (await opened(store, "epoch-2")).number == 1
    assert (await opened(store)).name == "epoch-2+"


async def test_a_malformed_name_is_refused():
    with pytest.raises(InvalidMessage, match="epoch name"):
        await MemoryStore().open_epoch("line\nbreak", EpochOptions())


async def test_only_what_commits_can_bring_something():
    store = MemoryStore()
    async with store.join("test") as session:
        epoch = await opened(store)
        (a,) = (await store.put(epoch, [Message("a", 1)])).accepted
        wrong = Settlement(derived=[Derived(a, [Message("b", 1)])], records=[Record("s", "k", b"v")])
        with pytest.raises(ValueError, match="not among committed"):
            await store.settle(session, wrong)
    assert await store.read("s", ["k"]) == {}


async def test_a_parent_stages_into_its_own_epoch():
    store = MemoryStore()
    async with store.join("test") as session:
        home, other = await opened(store), await opened(store)
        (a,) = (await store.put(home, [Message("a", 1)])).accepted
        (lease,) = await store.pop_ready(session, [a])
        with pytest.raises(ValueError, match="cannot stage"):
            await store.put(other, [Message("b", 1)], staged_by=lease)
        assert store.statistics().staged == 0


async def test_a_copy_of_a_lease_counts_and_that_of_an_earlier_attempt_does_not():
    store = MemoryStore()
    async with store.join("test") as session:
        (a,) = (await store.put(await opened(store), [Message("a", 1)])).accepted
        (first,) = await store.pop_ready(session, [a])
        await store.settle(session, Settlement(waits=[Waits(a, attempt=1)]))
        (second,) = await store.pop_ready(session, [a])
        assert (await store.settle(session, Settlement(committed=[first]))).refused == [a]
        copy = Lease(a, second.epoch, second.message, second.token, second.run, second.attempt)
        assert (await store.settle(session, Settlement(committed=[copy]))).refused == []


async def test_a_scope_of_a_completed_epoch_takes_nothing():
    store = MemoryStore()
    async with store.join("test") as session:
        epoch = await opened(store)
        await finished(store, session, epoch)
        await store.settle(session, Settlement(ready=[(epoch.number, Resource("r")), (99, Resource("r"))]))
    facts = await anext(store.facts())
    assert not [fact for fact in facts if hasattr(fact.body, "resource")]


async def test_a_space_without_records_is_not_kept():
    store = MemoryStore()
    async with store.join("test") as session:
        await store.settle(session, Settlement(records=[Record("s", "k", b"v")]))
        await store.settle(session, Settlement(records=[Record("s", "k", None)]))
    assert not store._ledger._records


async def test_many_staged_chunks_come_alive_in_order():
    store = MemoryStore()
    async with store.join("test") as session:
        epoch = await opened(store)
        (a,) = (await store.put(epoch, [Message("a", 1)])).accepted
        (lease,) = await store.pop_ready(session, [a])
        for start in range(0, 3_000, 1_000):
            chunk = [Message(f"m{number}", number) for number in range(start, start + 1_000)]
            await store.put(epoch, chunk, staged_by=lease)
        assert store.statistics().staged == 3_000
        settled = await store.settle(session, Settlement(committed=[lease], derived=[Derived(a, staged=3_000)]))
    assert [message.payload for _, _, message in settled.accepted] == list(range(3_000))
    assert store.statistics().staged == 0


async def test_a_replay_forgets_crashes():
    store = MemoryStore()
    (a,) = (await store.put(await opened(store), [Message("a", 1)])).accepted
    async with store.join("one") as first:
        await store.pop_ready(first, [a])
        async with store.join("two") as second:
            (lease,) = await store.pop_ready(second, [a])
            assert lease.crashes == 1
            await store.settle(second, Settlement(ended=[Ended(a, "dead")]))
            await store.settle(second, Settlement(waits=[Waits(a, run=1)]))
            (lease,) = await store.pop_ready(second, [a])
            assert (lease.crashes, lease.run) == (0, 1)


async def test_a_lost_session_is_named():
    store = MemoryStore()
    async with store.join("one") as session:
        pass
    with pytest.raises(SessionLost, match="session 1 has ended"):
        await store.pop_ready(session, [])


@pytest.mark.parametrize("options", [{"keep_reports": 0}, {"store_id": "a:b"}, {"store_id": ""}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        MemoryStore(**options)


def test_a_store_id_is_random_unless_it_is_given():
    assert MemoryStore().info.store_id != MemoryStore().info.store_id
    assert MemoryStore(store_id="fixed").info.store_id == "fixed"


@pytest.mark.parametrize(
    ("payload", "other"),
    [(7, 8), (-1, -2), (b"x", "x"), ({"a": 1, "b": [2]}, {"a": 1, "b": [3]}), (None, 0), (object(), object())],
)
async def test_duplicates_and_conflicts_are_told_however_few_messages_are_kept_whole(payload, other):
    """Of an object that cannot be written down the message itself stays."""
    store = MemoryStore(max_whole=3)
    async with store.join("a") as session:
        epoch = (await store.open_epoch("e", EpochOptions())).key
        for number in range(200):
            receipt = await store.put(epoch, [Message(f"m{number}", payload, key="k", depends_on=["p"])])
            leases = await store.pop_ready(session, receipt.accepted)
            if number != 5:
                await store.settle(session, Settlement(leases))
        kept = store._ledger._epochs[epoch.number]
        is_shrunk = type(payload) is not object
        assert len(kept.messages) <= 6 if is_shrunk else len(kept.messages) == 200
        again = await store.put(epoch, [Message(f"m{n}", payload, key="k", depends_on=["p"]) for n in range(200)])
        assert (len(again.accepted), again.duplicates, again.conflicts) == (0, 200, [])
        for changed in (
            Message("m9", other, key="k", depends_on=["p"]),
            Message("m9", payload, key="l", depends_on=["p"]),
            Message("m9", payload, key="k", depends_on=["q"]),
            Message("m9", payload, key="k", depends_on=["p"], kind="other"),
        ):
            assert (await store.put(epoch, [changed])).conflicts == ["m9"]


async def test_who_joins_later_is_told_the_ids_of_messages_that_are_not_kept_whole():
    store = MemoryStore(max_whole=3)
    async with store.join("a") as session:
        epoch = (await store.open_epoch("e", EpochOptions())).key
        for number in range(50):
            receipt = await store.put(epoch, [Message(f"m{number}", number)])
            if number != 5:
                await store.settle(session, Settlement(await store.pop_ready(session, receipt.accepted)))
    accepted, committed = {}, []
    async for batch in store.facts(None):
        for fact in batch:
            if isinstance(fact.body, Accepted):
                accepted.update(zip(fact.body.seqs, fact.body.messages, strict=True))
            elif isinstance(fact.body, Committed):
                committed += fact.body.seqs
        if isinstance(batch[-1].body, CaughtUp):
            break
    assert [message.id for message in accepted.values()] == [f"m{n}" for n in range(50)]
    assert [accepted[seq].id for seq in committed] == [f"m{n}" for n in range(50) if n != 5]
    left = accepted.keys() - set(committed)
    assert [accepted[seq].payload for seq in left] == [5]
