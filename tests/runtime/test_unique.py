"""Producers that deliver again, perhaps into another epoch: `submit(unique_for=seconds)`."""

import math

import pytest
import trio

from naviscope_ingest import InvalidMessage, MemoryStore, Message, StoreRefused
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_ingest.testing import TrioClock
from naviscope_spi import SupportsUnique
from tests.runtime.worlds import START, messages, started


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path, autojump_clock):
    clock = TrioClock(START)
    if request.param == "memory":
        yield MemoryStore(clock=clock)
    else:
        async with SqliteStore.open(tmp_path / "a.db", runner="inline", clock=clock) as opened:
            yield opened


async def test_what_comes_again_in_another_epoch_is_a_duplicate_for_its_time(store):
    async with started(store=store) as world:
        for delay, accepted in ((0, 3), (5, 0), (4, 0), (2, 3), (9, 0), (2, 3)):
            await trio.sleep(delay)
            async with world.intake.epoch() as epoch:
                receipt = await epoch.submit(messages("a", "b", "c"), unique_for=10)
            assert (receipt.accepted, receipt.duplicates) == (accepted, 3 - accepted)
            assert (epoch.report.committed, epoch.report.duplicates) == (accepted, 3 - accepted)
            assert epoch.report.succeeded
    assert world.executor.seen == ["a", "b", "c"] * 3


async def test_an_iterator_is_looked_at_chunk_by_chunk(store):
    async with started(store=store, submit_chunk=2) as world:
        async with world.intake.epoch() as epoch:
            await epoch.submit(messages("b", "e"), unique_for=60)
        async with world.intake.epoch() as epoch:
            receipt = await world.intake.submit(epoch, iter(messages(*"abcde")), unique_for=60)
    assert (receipt.accepted, receipt.duplicates, receipt.conflicts) == (3, 2, ())
    assert sorted(world.executor.seen) == sorted("beacd")


async def test_what_was_cancelled_is_taken_when_it_comes_again(store):
    async with started(store=store) as world:
        with pytest.raises(LookupError):
            async with world.intake.epoch() as epoch:
                await epoch.submit(Message("a", None, depends_on=["later"]), unique_for=60)
                raise LookupError
        async with world.intake.epoch() as epoch:
            receipt = await epoch.submit(messages("a"), unique_for=60)
    assert (receipt.accepted, epoch.report.committed) == (1, 1)


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan, True, "60"])
async def test_a_time_that_is_none_is_refused_before_anything_is_stored(store, wrong):
    async with started(store=store) as world:
        epoch = await world.intake.new_epoch("job")
        with pytest.raises(InvalidMessage, match=r"unique_for=.*finite number above zero"):
            await epoch.submit(messages("a"), unique_for=wrong)
        assert epoch.report.submitted == 0


async def test_a_store_that_cannot_remember_is_named(autojump_clock):
    class Forgetful(MemoryStore):
        """One without the power."""

        put_unique = None

    store = Forgetful(clock=TrioClock(START))
    assert not isinstance(store, SupportsUnique)
    async with started(store=store) as world:
        epoch = await world.intake.new_epoch("job")
        with pytest.raises(StoreRefused, match="Forgetful remembers no ids beyond their epoch"):
            await epoch.submit(messages("a"), unique_for=60)
        await epoch.submit(messages("a"))


async def test_a_runtime_forgets_in_small_steps_what_is_remembered_no_longer(tmp_path, autojump_clock, monkeypatch):
    monkeypatch.setattr("naviscope_ingest._kernel.kernel._PRUNE_STEP", 7)
    path, clock = tmp_path / "a.db", TrioClock(START)
    async with SqliteStore.open(path, runner="inline", clock=clock) as store, started(store=store) as world:
        async with world.intake.epoch() as epoch:
            await epoch.submit(messages(*(f"a{number}" for number in range(50))), unique_for=30)
            await epoch.submit(messages("long"), unique_for=1_000)
        assert store._ledger.sums.of("naviscope_uniques")[0] == 51
    # It is remembered over the restart too.
    async with SqliteStore.open(path, runner="inline", clock=clock) as store, started(store=store) as world:
        async with world.intake.epoch() as epoch:
            assert (await epoch.submit(messages("a0"), unique_for=30)).duplicates == 1
        await trio.sleep(120)
        assert store._ledger.sums.of("naviscope_uniques")[0] == 1
        assert await store.verify() == []
