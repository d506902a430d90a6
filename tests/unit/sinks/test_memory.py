"""What the sink in memory does beyond the contract: what it shows and counts."""

import pytest

from naviscope_ingest.sinks import MemorySink
from naviscope_spi import CommitBatch, Entry, EpochKey, task_key


def entry(name, *ops):
    return Entry(task_key("store", 1, name), EpochKey(1, "nightly"), name, "message", ops)


class Faulty:
    """Ops that cannot be read to their end."""

    def __iter__(self):
        yield "half"
        raise RuntimeError("torn")


async def test_entries_are_shown_in_commit_order_and_by_task_key():
    sink = MemorySink()
    await sink.commit(CommitBatch([entry("b", 1), entry("a", 2, 3)]))
    assert list(sink.ops) == [1, 2, 3]
    assert [each.message_id for each in sink.entries] == ["b", "a"]
    assert sink.by_task_key["store:1:a"].ops == (2, 3)


async def test_every_commit_is_counted_even_one_that_changes_nothing():
    sink = MemorySink()
    for _ in range(3):
        await sink.commit(CommitBatch([entry("a", 1)]))
    assert (sink.commits, len(sink.ops)) == (3, 1)


async def test_of_two_entries_with_one_task_key_the_first_is_kept():
    sink = MemorySink()
    await sink.commit(CommitBatch([entry("a", 1), entry("a", 2)]))
    assert list(sink.ops) == [1]


async def test_ops_that_raise_leave_nothing_behind():
    sink = MemorySink()
    bad = Entry("store:1:b", EpochKey(1, "nightly"), "b", "message", Faulty())
    with pytest.raises(RuntimeError, match="torn"):
        await sink.commit(CommitBatch([entry("a", 1), bad]))
    assert (list(sink.ops), sink.entries, sink.commits) == ([], [], 0)


async def test_what_is_shown_cannot_be_changed_by_key():
    with pytest.raises(TypeError):
        MemorySink().by_task_key["a"] = entry("a")
