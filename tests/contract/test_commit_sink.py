"""Sinks keep the contract, and the check notices when one does not."""

from contextlib import asynccontextmanager, closing
from functools import partial

import apsw
import msgspec
import pytest
import trio
from attrs import evolve

from naviscope_ingest.errors import ContractViolation
from naviscope_ingest.sinks import Insert, MemorySink, SqliteSink
from naviscope_ingest.testing import check_commit_sink
from naviscope_ingest.testing.commit_sink import SINK_PROMISES
from naviscope_spi import CommitBatch, SinkRejected
from tests.contract.factories import opens

POISON = -1


class PickySink(MemorySink):
    """A sink that refuses one op, and names the culprit."""

    async def commit(self, batch):
        bad = {entry.task_key: ValueError("poison") for entry in batch.entries if POISON in entry.ops}
        if bad:
            raise SinkRejected(bad)
        return await super().commit(batch)


async def numbers(sink):
    return list(sink.ops)


async def check(sink, **options):
    await check_commit_sink(
        opens(sink), make_op=lambda number: number, visible=numbers, poison=lambda: POISON, reopens=False, **options
    )


@pytest.mark.parametrize("promise", SINK_PROMISES, ids=lambda promise: promise.name)
async def test_the_sink_in_memory_keeps_the_promise(promise):
    # It takes every op, so there is none that it would refuse.
    await check_commit_sink(
        opens(MemorySink), make_op=lambda number: number, visible=numbers, reopens=False, only=[promise.name]
    )


@asynccontextmanager
async def open_sqlite(folder, name):
    async with SqliteSink(folder / f"{name}.db", "create table seen (number integer not null)") as sink:
        yield sink


async def numbers_in_file(sink):
    with closing(apsw.Connection(sink._file.path)) as reader:
        return [number for (number,) in reader.execute("select number from seen order by rowid")]


@pytest.mark.parametrize("promise", SINK_PROMISES, ids=lambda promise: promise.name)
async def test_the_sqlite_sink_keeps_the_promise(promise, tmp_path):
    await check_commit_sink(
        partial(open_sqlite, tmp_path),
        make_op=lambda number: Insert("seen", {"number": number}),
        visible=numbers_in_file,
        poison=lambda: Insert("seen", {"number": None}),
        only=[promise.name],
    )


async def test_a_sink_may_refuse_a_batch():
    await check(PickySink)


class Unordered(PickySink):
    @property
    def ops(self):
        return sorted(super().ops, reverse=True)


async def test_a_sink_may_show_no_order():
    await check(Unordered, is_ordered=False)


class AnswersSomething(PickySink):
    promise = "a_commit_makes_ops_visible"

    async def commit(self, batch):
        await super().commit(batch)
        return len(batch.entries)


class ShowsThingsLater(PickySink):
    promise = "a_commit_makes_ops_visible"

    def __init__(self):
        super().__init__()
        self.held = CommitBatch(())

    async def commit(self, batch):
        held, self.held = self.held, batch
        await super().commit(held)


class ReversesOps(PickySink):
    promise = "ops_of_an_entry_keep_their_order"

    async def commit(self, batch):
        await super().commit(evolve(batch, entries=[evolve(each, ops=each.ops[::-1]) for each in batch.entries]))


class RefusesEmptyBatches(PickySink):
    promise = "nothing_to_do_is_fine"

    async def commit(self, batch):
        if not batch.entries:
            raise ValueError("empty")
        await super().commit(batch)


class CutsLargeBatches(PickySink):
    promise = "a_large_batch_is_applied_whole"

    async def commit(self, batch):
        await super().commit(evolve(batch, entries=batch.entries[:100]))


class AppliesAgain(PickySink):
    promise = "a_repeated_batch_changes_nothing"

    async def commit(self, batch):
        self._ends.clear()
        await super().commit(batch)


class KnowsBatchesOnly(PickySink):
    promise = "a_repeated_entry_in_other_company_changes_nothing"

    def __init__(self):
        super().__init__()
        self.batches = set()

    async def commit(self, batch):
        keys = tuple(entry.task_key for entry in batch.entries)
        if keys not in self.batches:
            self._ends.clear()
            await super().commit(batch)
            self.batches.add(keys)


class KnowsOpsOnly(PickySink):
    promise = "a_known_task_key_changes_nothing"

    async def commit(self, batch):
        fresh = [evolve(each, ops=[op for op in each.ops if op not in self.ops]) for each in batch.entries]
        self._ends.clear()
        await super().commit(evolve(batch, entries=fresh))


class FoldsCase(PickySink):
    promise = "messages_are_told_apart_by_task_key"

    async def commit(self, batch):
        await super().commit(
            evolve(batch, entries=[evolve(each, task_key=each.task_key.lower()) for each in batch.entries])
        )


class StopsAtTheCulprit(MemorySink):
    promise = "a_refused_batch_applies_nothing"

    async def commit(self, batch):
        for entry in batch.entries:
            if POISON in entry.ops:
                raise ValueError("poison")
            await super().commit(CommitBatch([entry]))


class SwallowsTheCulprit(MemorySink):
    promise = "a_refused_batch_applies_nothing"

    async def commit(self, batch):
        await super().commit(evolve(batch, entries=[each for each in batch.entries if POISON not in each.ops]))


class BlamesEverybody(PickySink):
    promise = "a_refused_batch_applies_nothing"

    async def commit(self, batch):
        try:
            await super().commit(batch)
        except SinkRejected as rejected:
            raise SinkRejected({each.task_key: rejected for each in batch.entries}) from None


class TearsWhenCancelled(PickySink):
    promise = "a_cancelled_commit_is_whole_or_not_at_all"

    async def commit(self, batch):
        if any(POISON in entry.ops for entry in batch.entries):
            await super().commit(batch)
        for entry in batch.entries:
            await trio.lowlevel.checkpoint()
            await super().commit(CommitBatch([entry]))


class RemembersTooEarly(PickySink):
    promise = "a_cancelled_commit_is_whole_or_not_at_all"

    def __init__(self):
        super().__init__()
        self.seen = set()

    async def commit(self, batch):
        if any(POISON in entry.ops for entry in batch.entries):
            await super().commit(batch)
        fresh = [entry for entry in batch.entries if entry.task_key not in self.seen]
        self.seen.update(entry.task_key for entry in fresh)
        await trio.lowlevel.checkpoint()
        await super().commit(CommitBatch(fresh))


class EncodingSink(PickySink):
    def encode_ops(self, ops):
        return msgspec.msgpack.encode(ops)

    def decode_ops(self, data):
        return msgspec.msgpack.decode(data)


async def test_a_sink_may_encode_its_ops():
    await check(EncodingSink)


class ForgetsTheRest(EncodingSink):
    promise = "encoded_ops_are_the_same_ops"

    def encode_ops(self, ops):
        return super().encode_ops(ops[:100])


class WritesText(EncodingSink):
    promise = "encoded_ops_are_the_same_ops"

    def encode_ops(self, ops):
        return repr(ops)


class RemembersOps(EncodingSink):
    promise = "encoded_ops_are_the_same_ops"

    def __init__(self):
        super().__init__()
        self.encoded = []

    def encode_ops(self, ops):
        self.encoded.append(ops)
        return super().encode_ops(len(self.encoded) - 1)

    def decode_ops(self, data):
        return self.encoded[super().decode_ops(data)]


class OnDisk:
    """A sink that keeps rows, and the keys of what it applied, in something that outlives it."""

    def __init__(self, disk):
        self.rows = disk.setdefault("rows", [])
        self.keys = disk.setdefault("keys", set())

    async def commit(self, batch):
        if any(POISON in entry.ops for entry in batch.entries):
            raise ValueError("poison")
        await trio.lowlevel.checkpoint()
        for entry in batch.entries:
            if entry.task_key not in self.keys:
                self.rows.extend(entry.ops)
                self.keys.add(entry.task_key)
        await trio.lowlevel.checkpoint()


async def rows_on_disk(sink):
    return list(sink.rows)


async def check_on_disk(sink, **options):
    disks = {}

    @asynccontextmanager
    async def open_again(name):
        yield sink(disks.setdefault(name, {}))

    await check_commit_sink(
        open_again, make_op=lambda number: number, visible=rows_on_disk, poison=lambda: POISON, **options
    )


async def test_a_sink_on_disk_comes_through_many_storms():
    await check_on_disk(OnDisk)
    for seed in range(20):
        await check_on_disk(OnDisk, seed=seed, only=["a_storm_loses_nothing_and_doubles_nothing"])


class KeysInMemory(OnDisk):
    promise = "a_sink_that_is_opened_again_knows_what_it_applied"

    def __init__(self, disk):
        super().__init__(disk)
        self.keys = set()


class WritesWhenItIsClosed(OnDisk):
    promise = "a_sink_that_is_opened_again_knows_what_it_applied"

    def __init__(self, disk):
        super().__init__({"rows": list(disk.setdefault("rows", [])), "keys": set(disk.setdefault("keys", ()))})


class ForgetsOldKeys(OnDisk):
    promise = "a_storm_loses_nothing_and_doubles_nothing"

    def __init__(self, disk):
        super().__init__(disk)
        self.keys = disk["keys"] = dict(disk["keys"]) if disk["keys"] else {}

    async def commit(self, batch):
        if any(POISON in entry.ops for entry in batch.entries):
            raise ValueError("poison")
        for entry in batch.entries:
            if entry.task_key not in self.keys:
                self.rows.extend(entry.ops)
                self.keys[entry.task_key] = None
        if len(batch.entries) < 100:
            while len(self.keys) > 30:
                del self.keys[next(iter(self.keys))]


class TrustsTheFirstEntry(OnDisk):
    """It takes a batch for known as soon as its first entry is."""

    promise = "a_repeated_entry_in_other_company_changes_nothing"

    async def commit(self, batch):
        if not batch.entries or batch.entries[0].task_key not in self.keys:
            await super().commit(batch)


class NotesKeysBeforeRows(OnDisk):
    promise = "a_cancelled_commit_is_whole_or_not_at_all"

    async def commit(self, batch):
        if any(POISON in entry.ops for entry in batch.entries):
            raise ValueError("poison")
        fresh = [entry for entry in batch.entries if entry.task_key not in self.keys]
        self.keys.update(entry.task_key for entry in fresh)
        await trio.lowlevel.checkpoint()
        self.rows.extend(op for entry in fresh for op in entry.ops)


class NotesKeysAfterwards(NotesKeysBeforeRows):
    """In two transactions: rows, then keys."""

    async def commit(self, batch):
        if any(POISON in entry.ops for entry in batch.entries):
            raise ValueError("poison")
        fresh = [entry for entry in batch.entries if entry.task_key not in self.keys]
        self.rows.extend(op for entry in fresh for op in entry.ops)
        await trio.lowlevel.checkpoint()
        self.keys.update(entry.task_key for entry in fresh)


@pytest.mark.parametrize(
    "sink",
    [
        KeysInMemory,
        WritesWhenItIsClosed,
        ForgetsOldKeys,
        TrustsTheFirstEntry,
        NotesKeysBeforeRows,
        NotesKeysAfterwards,
    ],
)
async def test_a_broken_sink_on_disk_is_caught(sink):
    with pytest.raises(ContractViolation) as caught:
        await check_on_disk(sink)
    assert caught.value.promise.partition(":")[0] == sink.promise


@pytest.mark.parametrize(
    "sink",
    [KeysInMemory, WritesWhenItIsClosed, ForgetsOldKeys, TrustsTheFirstEntry, NotesKeysBeforeRows, NotesKeysAfterwards],
)
async def test_the_storm_alone_finds_it_too_and_says_what_led_to_it(sink):
    with pytest.raises(ContractViolation, match=r"(lost|applied more than once): op \d+") as caught:
        await check_on_disk(sink, seed=3, only=["a_storm_loses_nothing_and_doubles_nothing"])
    assert "The last steps" in str(caught.value)
    assert "seed=3)" in str(caught.value)


async def test_a_report_names_what_is_doubled():
    with pytest.raises(ContractViolation) as caught:
        await check(AppliesAgain)
    assert str(caught.value) == (
        "a_repeated_batch_changes_nothing: Applying a batch again changes nothing.\n"
        "  expected: 3 ops visible, each once\n"
        "  seen:     applied more than once: op 1 (2 times), 2 (2 times), 3 (2 times)"
    )


@pytest.mark.parametrize(
    "sink",
    [
        AnswersSomething,
        ShowsThingsLater,
        ReversesOps,
        RefusesEmptyBatches,
        CutsLargeBatches,
        AppliesAgain,
        KnowsBatchesOnly,
        KnowsOpsOnly,
        FoldsCase,
        StopsAtTheCulprit,
        SwallowsTheCulprit,
        BlamesEverybody,
        TearsWhenCancelled,
        RemembersTooEarly,
        ForgetsTheRest,
        WritesText,
        RemembersOps,
    ],
)
async def test_a_broken_sink_is_caught(sink):
    with pytest.raises(ContractViolation) as caught:
        await check(sink)
    assert caught.value.promise.partition(":")[0] == sink.promise
