"""The SQLite sink on files: its ledger, other users of the file, and what can be wrong with it."""

import os
import stat
import threading
from contextlib import closing

import apsw
import pytest
import trio

from naviscope_ingest import Executed, IngestRuntime, Message, RuntimeComponents
from naviscope_ingest.sinks import Delete, Execute, Insert, SinkSet, SqliteSink, To, Upsert
from naviscope_ingest.sinks import _sqlite_file as files
from naviscope_spi import CommitBatch, Entry, EpochKey, SinkRejected, SystemFailure, Transient, task_key

SCHEMA = "create table booking (id integer primary key, account text not null, amount integer not null)"


def entry(name, *ops, epoch=1):
    return Entry(task_key("store", epoch, name), EpochKey(epoch, "nightly"), name, "message", ops)


def book(amount, account="ada"):
    return Insert("booking", {"account": account, "amount": amount})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.db"


@pytest.fixture
async def sink(path):
    async with SqliteSink(path, SCHEMA) as opened:
        yield opened


def rows(path, sql="select amount from booking order by id"):
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
        return [row[0] for row in reader.execute(sql)]


async def test_every_op_reaches_the_file(sink, path):
    await sink.commit(CommitBatch([entry("a", book(1), book(2), book(3))]))
    change = Upsert("booking", {"id": 2, "account": "bob", "amount": 20}, "id")
    double = Execute("update booking set amount = amount * ? where account = ?", (2, "bob"))
    await sink.commit(CommitBatch([entry("b", Delete("booking", {"id": 1}), change, double)]))
    assert rows(path) == [40, 3]


async def test_the_ledger_holds_over_a_restart(path):
    for _ in range(3):
        async with SqliteSink(path, SCHEMA) as sink:
            await sink.commit(CommitBatch([entry("a", book(1)), entry("b", book(2))]))
    assert rows(path) == [1, 2]


async def test_it_opens_by_itself_and_again_after_it_was_closed(path):
    sink = SqliteSink(path, SCHEMA)
    await sink.commit(CommitBatch([entry("a", book(1))]))
    await sink.aclose()
    await sink.aclose()
    await sink.commit(CommitBatch([entry("b", book(2))]))
    await sink.aclose()
    assert rows(path) == [1, 2]


async def test_sinks_with_ids_of_their_own_share_a_file(path):
    for name in ("one", "two", "one"):
        async with SqliteSink(path, SCHEMA, sink_id=name) as sink:
            await sink.commit(CommitBatch([entry("a", book(1))]))
    assert rows(path) == [1, 1]


async def test_a_bad_record_costs_one_record(sink, path):
    bad = [entry("bad", book(2), book(None)), entry("worse", Insert("nowhere", {"a": 1}))]
    with pytest.raises(SinkRejected) as caught:
        await sink.commit(CommitBatch([entry("a", book(1)), *bad, entry("b", book(3))]))
    assert sorted(caught.value.rejected) == ["store:1:bad", "store:1:worse"]
    assert rows(path) == []
    await sink.commit(CommitBatch([entry("a", book(1)), entry("b", book(3))]))
    assert rows(path) == [1, 3]


async def test_what_was_applied_is_not_judged_again(sink, path):
    await sink.commit(CommitBatch([entry("a", book(1))]))
    await sink.commit(CommitBatch([entry("a", book(None)), entry("b", book(2))]))
    assert rows(path) == [1, 2]


async def test_an_op_that_rolls_everything_back_is_found(sink, path):
    await sink.commit(CommitBatch([entry("a", book(1))]))
    harsh = "create trigger harsh before insert on booking when new.amount = 7 begin select raise(rollback, 'no'); end"
    sink._file._opened().execute(harsh)
    bad = entry("bad", book(7))
    with pytest.raises(SinkRejected) as caught:
        await sink.commit(CommitBatch([entry("b", book(2)), bad, entry("c", book(3))]))
    assert list(caught.value.rejected) == ["store:1:bad"]
    assert rows(path) == [1]


async def test_the_ledger_is_not_the_users(sink, path):
    with pytest.raises(SinkRejected, match="bad"):
        await sink.commit(CommitBatch([entry("bad", Execute("delete from naviscope_ledger"))]))


async def test_a_reference_that_is_checked_late_is_blamed_on_its_entry(path):
    schema = """
        create table parent (id integer primary key);
        create table child (id integer primary key, parent integer references parent deferrable initially deferred);
    """
    child, parent = Insert("child", {"id": 1, "parent": 1}), Insert("parent", {"id": 1})
    stray = Insert("child", {"id": 2, "parent": 7})
    async with SqliteSink(path, schema) as sink:
        with pytest.raises(SinkRejected) as caught:
            await sink.commit(CommitBatch([entry("good", child, parent), entry("bad", stray)]))
        assert list(caught.value.rejected) == ["store:1:bad"]
        await sink.commit(CommitBatch([entry("good", child, parent)]))


async def test_old_epochs_leave_the_ledger(sink, path):
    await sink.commit(CommitBatch([entry(f"m{number}", epoch=number) for number in range(1, 6)]))
    assert await sink.prune_ledger(4, store_id="store", limit=2) == 2
    assert await sink.prune_ledger(4, store_id="store") == 1
    assert await sink.prune_ledger(4, store_id="other") == 0
    assert rows(path, "select epoch from naviscope_ledger order by epoch") == [4, 5]


async def test_overlapping_calls_wait_for_each_other(sink, path):
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(sink.commit, CommitBatch([entry(f"m{number % 25}", book(number % 25))]))
    assert sorted(rows(path)) == list(range(25))


async def test_two_sinks_write_one_file_at_once(path):
    async def commit_all(name):
        async with SqliteSink(path, SCHEMA, sink_id=name) as sink:
            for number in range(20):
                await sink.commit(CommitBatch([entry(f"m{number}", book(number))]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit_all, "one")
        nursery.start_soon(commit_all, "two")
    assert sorted(rows(path)) == sorted([*range(20), *range(20)])


async def test_the_work_is_done_in_another_thread(sink):
    threads = []
    sink._file.commit = lambda entries: threads.append(threading.get_ident())
    await sink.commit(CommitBatch([entry("a", book(1))]))
    assert threads[0] != threading.get_ident()


async def test_a_locked_file_is_tried_again(path):
    async with SqliteSink(path, SCHEMA, busy_timeout=0.01) as sink:
        with closing(apsw.Connection(str(path))) as other:
            other.execute("begin immediate")
            with pytest.raises(Transient, match=r"results\.db: BusyError"):
                await sink.commit(CommitBatch([entry("a", book(1))]))
        await sink.commit(CommitBatch([entry("a", book(1))]))
    assert rows(path) == [1]


async def test_a_full_disk_is_tried_again(sink, path):
    sink._file._opened().pragma("max_page_count", 10)
    with pytest.raises(Transient, match="FullError"):
        await sink.commit(CommitBatch([entry("a", book(1, "x" * 1_000_000))]))
    # After an error of the disk the file is opened anew; here that lifts the limit.
    await sink.commit(CommitBatch([entry("a", book(1, "x" * 1_000_000))]))
    assert rows(path) == [1]


async def test_what_is_not_a_database_is_left_alone(path):
    path.write_text("my precious notes\n" * 100)
    with pytest.raises(SystemFailure, match=r"results\.db: NotADBError"):
        await SqliteSink(path, SCHEMA).commit(CommitBatch([entry("a", book(1))]))
    assert path.read_text() == "my precious notes\n" * 100
    assert [each.name for each in path.parent.iterdir()] == ["results.db"]


async def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(SystemFailure, match="CantOpenError"):
        async with SqliteSink(tmp_path / "no" / "such.db", SCHEMA):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_file_that_may_not_be_written_is_an_error(path):
    async with SqliteSink(path, SCHEMA):
        pass
    path.chmod(stat.S_IRUSR)
    with pytest.raises(SystemFailure, match="ReadOnlyError"):
        await SqliteSink(path, SCHEMA).commit(CommitBatch([entry("a", book(1))]))


async def test_a_file_with_another_table_of_that_name_is_an_error(path):
    with closing(apsw.Connection(str(path))) as other:
        other.execute("create table booking (id)")
    with pytest.raises(SystemFailure, match=r"without a column that the schema has .*account"):
        async with SqliteSink(path, SCHEMA):
            pass


@pytest.mark.parametrize("wrong", ["", b""])
def test_a_path_must_name_a_file(wrong):
    with pytest.raises((ValueError, TypeError)):
        SqliteSink(wrong)


async def test_the_log_is_moved_into_the_file_now_and_then(path, monkeypatch):
    monkeypatch.setattr(files, "_PAGES_BETWEEN_CHECKPOINTS", 20)
    async with SqliteSink(path, SCHEMA) as sink:
        for number in range(100):
            await sink.commit(CommitBatch([entry(f"m{number}", book(number))]))
        assert path.with_name("results.db-wal").stat().st_size < 60 * 4096
    assert rows(path) == list(range(100))


async def test_a_reader_does_not_stop_the_writer(path, monkeypatch):
    monkeypatch.setattr(files, "_PAGES_BETWEEN_CHECKPOINTS", 5)
    monkeypatch.setattr(files, "_PAGES_TOO_MANY", 20)
    async with SqliteSink(path, SCHEMA, busy_timeout=0.001) as sink:
        await sink.commit(CommitBatch([entry("first", book(0))]))
        with closing(apsw.Connection(str(path))) as reader:
            reader.execute("begin; select * from booking").fetchall()
            for number in range(30):
                await sink.commit(CommitBatch([entry(f"m{number}", book(number))]))
        await sink.commit(CommitBatch([entry("last", book(0))]))
    assert len(rows(path)) == 32


async def test_the_runtime_ends_the_bad_record_and_commits_the_rest(path):
    class Bookkeeper:
        async def execute(self, message):
            return Executed(ops=[To("rows", book(message.payload)), To("audit", book(0, message.id))])

    async with SqliteSink(path, SCHEMA, sink_id="rows") as own, SqliteSink(path, SCHEMA, sink_id="audit") as audit:
        sinks = SinkSet({"rows": own, "audit": audit})
        components = RuntimeComponents(executor=Bookkeeper(), commit_sink=sinks)
        async with IngestRuntime(components).running() as intake, intake.epoch("monday") as epoch:
            await epoch.submit([Message("1", 10), Message("2", None), Message("3", 30)])
    assert (epoch.report.committed, epoch.report.dead) == (2, 1)
    assert "NOT NULL constraint failed: booking.amount" in epoch.report.failures[0].error
    assert sorted(rows(path, "select amount from booking where account = 'ada'")) == [10, 30]
    assert sorted(rows(path, "select account from booking where account <> 'ada'")) == ["1", "3"]
