"""Sinks that write inside the store's transaction."""

import threading
from contextlib import suppress
from functools import partial

import apsw
import pytest
import trio
import trio.testing

from naviscope_ingest.stores import SqliteStore
from naviscope_spi import EpochOptions, Message, PartlyRefused, Settlement


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        yield store


async def leases_of(store, session, count=2):
    epoch = (await store.open_epoch(None, EpochOptions())).key
    seqs = (await store.put(epoch, [Message(f"m{number}", number) for number in range(count)])).accepted
    return await store.pop_ready(session, seqs)


def insert(transaction):
    transaction.execute("create table if not exists rows (x)")
    transaction.executemany("insert into rows values (?)", [(1,), (2,)])


async def count(store):
    return await store._read(lambda ledger: ledger.connection.execute("select count(*) from rows").fetchall()[0][0])


async def test_writes_of_a_sink_come_with_the_settlement(store):
    async with store.join("test") as session:
        leases = await leases_of(store, session)
        await store.settle_with(session, Settlement(committed=leases), insert)
        assert await count(store) == 2


async def test_a_settlement_that_comes_again_does_not_write_again(store):
    async with store.join("test") as session:
        leases = await leases_of(store, session)
        await store.settle_with(session, Settlement(committed=leases), insert)
        settled = await store.settle_with(session, Settlement(committed=leases), insert)
        assert len(settled.refused) == 2
        assert await count(store) == 2


async def test_a_settlement_that_is_refused_in_part_writes_nothing(store):
    async with store.join("test") as session:
        leases = await leases_of(store, session)
        await store.settle_with(session, Settlement(committed=leases[:1]), insert)
        with pytest.raises(PartlyRefused) as caught:
            await store.settle_with(session, Settlement(committed=leases), insert)
        assert list(caught.value.refused) == [leases[0].seq]
        assert await count(store) == 2
        settled = await store.settle_with(session, Settlement(committed=leases[1:]), insert)
        assert settled.refused == []
        assert await store.verify() == []


async def test_the_error_of_a_sink_undoes_its_settlement_alone(store):
    async with store.join("test") as session:
        leases = await leases_of(store, session)

        def fail(transaction):
            insert(transaction)
            transaction.execute("insert into nowhere values (1)")

        with pytest.raises(apsw.SQLError, match="nowhere"):
            await store.settle_with(session, Settlement(committed=leases), fail)
        settled = await store.settle_with(session, Settlement(committed=leases), insert)
        assert settled.refused == []
        assert await count(store) == 2
        assert await store.verify() == []


@pytest.mark.parametrize(
    "statement",
    [
        "commit",
        "rollback",
        "savepoint x",
        "release request",
        "attach ':memory:' as other",
        "pragma synchronous = off",
        "delete from messages",
        "select * from state",
        "update epochs set state = 'open'",
        "drop table ends",
        "create table claims (x)",
        "create trigger t after insert on messages begin select 1; end",
        "create index i on messages (at)",
        "alter table messages add column x",
        "begin immediate",
    ],
)
async def test_a_sink_cannot_touch_the_store(store, statement):
    async with store.join("test") as session:
        leases = await leases_of(store, session)
        with pytest.raises(apsw.Error):
            await store.settle_with(session, Settlement(committed=leases), lambda sink: sink.execute(statement))
        settled = await store.settle(session, Settlement(committed=leases))
        assert settled.refused == []
        assert await store.verify() == []


async def test_a_transaction_is_over_when_apply_returns(store):
    kept = []
    async with store.join("test") as session:
        leases = await leases_of(store, session)
        await store.settle_with(session, Settlement(committed=leases), kept.append)
    with pytest.raises(RuntimeError, match="is over"):
        kept[0].execute("select 1")


SETUP = (
    "create table rows (x)",
    "create table picky (x not null on conflict rollback)",
    "create trigger refuse before insert on rows when new.x = 13 begin select raise(rollback, 'not thirteen'); end",
)


def end_by_trigger(transaction):
    transaction.execute("insert into rows values (1)")
    transaction.execute("insert into rows values (13)")


def end_by_constraint(transaction):
    transaction.execute("insert into picky values (null)")


def end_by_many(transaction):
    transaction.executemany("insert into rows values (?)", [(1,), (13,), (2,)])


def end_and_go_on(transaction):
    try:
        end_by_trigger(transaction)
    except apsw.Error:
        transaction.execute("insert into rows values (2)")


def end_in_silence(transaction):
    with suppress(apsw.Error):
        end_by_trigger(transaction)


@pytest.mark.parametrize("end", [end_by_trigger, end_by_constraint, end_by_many, end_and_go_on, end_in_silence])
async def test_a_sink_that_ends_the_transaction_is_refused_alone(store, end):
    answers = {}

    async def ask(name, call):
        try:
            answers[name] = await call()
        except Exception as exc:
            answers[name] = exc

    async with store.join("test") as session:
        leases = await leases_of(store, session, 4)
        epoch = leases[0].epoch
        await store.settle_with(
            session, Settlement(committed=leases[:1]), lambda sink: [sink.execute(each) for each in SETUP]
        )

        def settle(number, apply):
            return partial(store.settle_with, session, Settlement(committed=[leases[number]]), apply)

        gate = threading.Event()
        before = store.statistics().commits
        async with trio.open_nursery() as nursery:
            # While the writer waits at the gate, the others gather to one group.
            nursery.start_soon(store._read, lambda ledger: gate.wait())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, "put", partial(store.put, epoch, [Message("late", 1)]))
            nursery.start_soon(ask, "good", settle(1, insert))
            nursery.start_soon(ask, "bad", settle(2, end))
            nursery.start_soon(ask, "claim", partial(store.pop_ready, session, [leases[3].seq + 1]))
            nursery.start_soon(ask, "more", settle(3, insert))
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        assert store.statistics().commits == before + 1
        assert isinstance(answers["bad"], apsw.Error | RuntimeError), answers["bad"]
        assert len(answers["put"].accepted) == 1
        assert [answers[name].refused for name in ("good", "more")] == [[], []]
        assert await count(store) == 4
        # It is still leased, and the store goes on.
        assert (await store.settle_with(session, Settlement(committed=[leases[2]]), insert)).refused == []
        assert await store.verify() == []


async def test_a_sink_that_ends_the_transaction_alone_in_its_group_is_refused(store):
    async with store.join("test") as session:
        leases = await leases_of(store, session)
        await store.settle_with(
            session, Settlement(committed=leases[:1]), lambda sink: [sink.execute(each) for each in SETUP]
        )
        with pytest.raises(apsw.ConstraintError, match="not thirteen"):
            await store.settle_with(session, Settlement(committed=leases[1:]), end_by_trigger)
        assert await count(store) == 0
        assert (await store.settle(session, Settlement(committed=leases[1:]))).refused == []
        assert await store.verify() == []
