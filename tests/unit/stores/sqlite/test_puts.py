"""Small puts of one group go into the file together, and look as if each had come alone."""

from contextlib import asynccontextmanager

import apsw
import pytest

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite.puts import Put
from naviscope_ingest.stores.sqlite.writer import Request
from naviscope_spi import EpochOptions, EpochSealed, Message
from tests.unit.stores.sqlite.faults import FaultyDisk


@asynccontextmanager
async def opened(path, **options):
    """Open a store whose groups the test makes, with an epoch and somebody who reads facts."""
    async with SqliteStore.open(path, runner="inline", **options) as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        facts = store.facts()
        while type((await anext(facts))[-1].body).__name__ != "CaughtUp":
            pass
        yield store, epoch, facts
        await facts.aclose()


def request(store, epoch, *names, payload=1):
    messages = [Message(name, payload) for name in names]
    put = Put(epoch, messages, [store._ledger.scribe.write(message) for message in messages])
    return Request(put)


def run(store, *requests):
    """Run requests as one group; return their answers, and the ids that each step tells of."""
    store._runner.writer.run(requests)
    steps = [[message.id for body in each.step[1] for message in body.messages] for each in requests if each.step]
    return [each.answer for each in requests], steps


async def test_neighbours_are_one_step_and_few_statements(tmp_path):
    async with opened(tmp_path / "a.db") as (store, epoch, _):
        statements = []
        store._ledger.connection.exec_trace = lambda cursor, sql, bindings: statements.append(sql) or True
        answers, steps = run(store, *(request(store, epoch, f"m{number}") for number in range(100)))
        store._ledger.connection.exec_trace = None
        assert [answer.unwrap().accepted for answer in answers] == [[seq] for seq in range(1, 101)]
        assert steps == [[f"m{number}" for number in range(100)]]
        assert sum("insert into messages" in sql for sql in statements) == 2
        assert len(statements) < 12
        assert await store.verify() == []


async def test_a_known_id_among_them_is_a_duplicate_and_the_others_are_new(tmp_path):
    async with opened(tmp_path / "a.db") as (store, epoch, _):
        run(store, request(store, epoch, "b"))
        group = [request(store, epoch, *names) for names in (("a",), ("b", "c"), ("d",), ("a",))]
        answers, steps = run(store, *group, request(store, epoch, "d", payload=2))
        receipts = [answer.unwrap() for answer in answers]
        assert [(len(each.accepted), each.duplicates) for each in receipts] == [(1, 0), (1, 1), (1, 0), (0, 1), (0, 1)]
        assert receipts[-1].conflicts == ["d"]
        assert steps == [["a"], ["c"], ["d"]]
        assert await store.verify() == []


async def test_a_sealed_epoch_refuses_each_of_them(tmp_path):
    async with opened(tmp_path / "a.db") as (store, epoch, _):
        await store.mark_epoch(epoch, "seal")
        answers, steps = run(store, request(store, epoch, "a"), request(store, epoch, "b"))
        for answer, name in zip(answers, "ab", strict=True):
            with pytest.raises(EpochSealed) as refused:
                answer.unwrap()
            assert refused.value.message_id == name
        assert steps == []


async def test_what_stands_between_them_keeps_its_turn(tmp_path):
    """A put before the seal is stored, one after it is refused, though they are of one group."""
    async with opened(tmp_path / "a.db") as (store, epoch, _):

        def seal(ledger):
            row = ledger.changing(ledger.known(epoch))
            row.state = "sealed"
            ledger.tell()

        early, late = [request(store, epoch, name) for name in "ab"], request(store, epoch, "c")
        answers, _ = run(store, *early, Request(seal), late)
        assert [type(answer).__name__ for answer in answers] == ["Value", "Value", "Value", "Error"]


@pytest.mark.parametrize("is_there", [False, True], ids=["lost", "there"])
async def test_a_group_that_is_run_again_tells_of_each_once(tmp_path, is_there):
    """A failed sync may have committed the group or not: it is looked for, and run once more if it is not there."""
    with FaultyDisk() as disk:
        async with opened(tmp_path / "a.db", vfs=disk.name) as (store, epoch, _):
            failures = [apsw.IOError("once")]

            def fail(what, file):
                if what == "sync" and file.endswith("wal") and failures:
                    raise failures.pop()

            if is_there:
                disk.after = fail
            else:
                disk.before = fail
            answers, steps = run(store, *(request(store, epoch, name) for name in "abc"))
            assert not failures
            assert [len(answer.unwrap().accepted) for answer in answers] == [1, 1, 1]
            assert sorted(name for step in steps for name in step) == ["a", "b", "c"]
            assert await store.verify() == []
