"""The SQLite sink in the file of the SQLite store: one transaction, and none of the store's tables."""

from contextlib import closing

import apsw
import pytest

from naviscope_ingest.sinks import Execute, Insert, SqliteSink
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_spi import (
    AppliesInside,
    CommitBatch,
    Entry,
    EpochOptions,
    Message,
    SessionLost,
    Settlement,
    SinkRejected,
    SupportsColocation,
    SystemFailure,
    task_key,
)

SCHEMA = "create table booking (id integer primary key, message text not null unique)"


def book(name):
    return Insert("booking", {"message": name})


def entry(lease, *ops):
    name = lease.message.id
    return Entry(task_key("sim", lease.epoch.number, name), lease.epoch, name, "message", ops)


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore.open(tmp_path / "ingest.db") as opened:
        yield opened


async def settle(store, session, sink, leases, *ops):
    """Commit leases, the first of them with some ops, the others with a booking each."""
    entries = [entry(leases[0], *ops), *(entry(lease, book(lease.message.id)) for lease in leases[1:])]
    batch = CommitBatch(entries)
    return await store.settle_with(session, Settlement(committed=leases), lambda inside: sink.apply(inside, batch))


async def leased(store, session, *names):
    epoch = (await store.open_epoch("one", EpochOptions())).key
    receipt = await store.put(epoch, [Message(name, b"") for name in names])
    return list(await store.pop_ready(session, receipt.accepted))


def rows(store):
    return [name for (name,) in store._ledger.database.connection.execute("select message from booking order by id")]


def test_store_and_sink_say_that_they_fit():
    assert isinstance(SqliteSink(), AppliesInside)
    assert issubclass(SqliteStore, SupportsColocation)


async def test_rows_and_ends_are_one_step(store):
    sink = SqliteSink(schema=SCHEMA)
    assert store.info.colocation == sink.colocation
    async with store.join("test") as session:
        leases = await leased(store, session, "a", "b", "c")
        assert (await settle(store, session, sink, leases, book("a"), Execute("select 1"))).refused == []
        assert rows(store) == ["a", "b", "c"]
        with pytest.raises(SystemFailure):
            await sink.commit(CommitBatch([]))


@pytest.mark.parametrize(
    "op",
    [
        Insert("booking", {"message": None}),
        Insert("nowhere", {"a": 1}),
        Execute("delete from messages"),
        Execute("update state set commits = 0"),
        Insert("ends", {"seq": 1}),
        Execute("commit"),
        Execute("pragma synchronous = off"),
        "not an op",
    ],
)
async def test_a_bad_record_costs_one_record(store, op):
    sink = SqliteSink(schema=SCHEMA)
    async with store.join("test") as session:
        leases = await leased(store, session, "bad", "b", "c")
        with pytest.raises(SinkRejected) as caught:
            await settle(store, session, sink, leases, book("x"), op)
        assert [key.rpartition(":")[2] for key in caught.value.rejected] == ["bad"]
        await settle(store, session, sink, leases[1:], book("b"))
        assert rows(store) == ["b", "c"]
        assert list(await store.verify()) == []
        assert len((await settle(store, session, sink, leases[:1], book("x"))).refused) == 0


async def test_a_trigger_that_rolls_everything_back_costs_one_record(store):
    # The sink takes no such schema, but somebody else may have made it.
    trigger = (
        "create trigger no before insert on booking when new.message = 'x' begin select raise(rollback, 'no'); end"
    )
    sink = SqliteSink(schema=SCHEMA)
    async with store.join("test") as session:
        leases = await leased(store, session, "first", "bad", "b", "c")
        await settle(store, session, sink, leases[:1], book("first"))
        with closing(apsw.Connection(store._ledger.database.path)) as other:
            other.execute(trigger)
        with pytest.raises(SinkRejected) as caught:
            await settle(store, session, sink, leases[1:], book("x"))
        assert [key.rpartition(":")[2] for key in caught.value.rejected] == ["bad"]
        await settle(store, session, sink, leases[2:], book("b"))
        assert rows(store) == ["first", "b", "c"]
        assert list(await store.verify()) == []


async def test_a_refused_settlement_writes_no_rows(store):
    sink = SqliteSink(schema=SCHEMA)
    async with store.join("first") as session:
        leases = await leased(store, session, "a")
        await settle(store, session, sink, leases, book("a"))
        assert len((await settle(store, session, sink, leases, book("again"))).refused) == 1
        assert rows(store) == ["a"]
    with pytest.raises(SessionLost):
        await settle(store, session, sink, leases, book("late"))
    assert rows(store) == ["a"]


@pytest.mark.parametrize("table", ["messages", "Epochs", "state"])
async def test_a_table_of_the_stores_name_is_refused(store, table):
    sink = SqliteSink(schema=f"create table {table} (seq)")
    async with store.join("test") as session:
        leases = await leased(store, session, "a")
        with pytest.raises(SystemFailure, match="one of the store's own"):
            await settle(store, session, sink, leases, Insert(table, {"seq": 1}))
        assert list(await store.verify()) == []


async def test_the_tables_are_there_after_a_restart(tmp_path):
    for name in ("a", "b"):
        async with SqliteStore.open(tmp_path / "ingest.db") as store, store.join("test") as session:
            await settle(store, session, SqliteSink(schema=SCHEMA), await leased(store, session, name), book(name))
            found = rows(store)
    assert found == ["a", "b"]
