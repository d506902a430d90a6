"""Ids of committed messages, most of which are known by their hashes."""

from __future__ import annotations

import sys

import pytest

from naviscope_ingest._core import core as core_module
from naviscope_ingest._core.committed import CommittedIds
from naviscope_ingest._core.core import Core
from naviscope_spi import EpochKey, EpochOptions, EpochRecord, Message, Seq


@pytest.mark.parametrize("step", [1, 7, 1_000, 30_000])
def test_what_was_folded_is_known_and_nothing_else(step):
    known = CommittedIds()
    for start in range(0, 30_000, step):
        known.update(dict.fromkeys(f"m{n}" for n in range(start, min(30_000, start + step))))
        known.fold(0)
    assert known.folded == 30_000
    assert not len(known)
    assert all(f"m{n}" in known for n in range(30_000))
    assert not any(f"m{n}" in known for n in range(30_000, 60_000))


def test_an_array_stays_small_and_an_id_takes_few_bytes():
    known = CommittedIds()
    for start in range(0, 200_000, 10_000):
        known.update(dict.fromkeys(f"m{n}" for n in range(start, start + 10_000)))
        known.fold(0)
    assert max(map(len, known._arrays)) < 2_000
    assert sum(map(sys.getsizeof, known._arrays)) / 200_000 < 10


def test_nothing_is_known_of_nothing():
    known = CommittedIds()
    assert "m" not in known
    known.fold(0)
    assert "m" not in known
    known["m"] = None
    assert "m" in known


def test_the_latest_stay_as_they_are():
    known = CommittedIds()
    known.update(dict.fromkeys("abcdef"))
    known.fold(2)
    assert ([*known], known.folded) == (["e", "f"], 4)
    known.fold(2)
    assert known.folded == 4
    assert all(each in known for each in "abcdef")


@pytest.mark.parametrize("keeps_outlines", [True, False])
def test_a_message_may_wait_for_one_that_committed_long_ago(monkeypatch, keeps_outlines):
    """The second has two parents, of which one fails: its case has to find the other among those that committed."""
    monkeypatch.setattr(core_module, "_RECENT", 3)
    monkeypatch.setattr(core_module, "_FOLDED", 1)
    core = Core(keeps_outlines=keeps_outlines)
    core.open_epoch(EpochRecord(EpochKey(1, "e"), "open", EpochOptions()))
    early = [Message(f"m{n}", None) for n in range(20)]
    core.accept(1, [Seq(n) for n in range(20)], early)
    for _ in range(4):
        seqs = core.take(5)
        core.hand_to_sink(seqs)
        core.commit(seqs)
    late = [Message("a", None, depends_on=["m2"]), Message("b", None, depends_on=["m3", "c"]), Message("c", None)]
    core.accept(1, [Seq(20), Seq(21), Seq(22)], late)
    assert core.take(10) == [20, 22]
    assert core.cancel(Seq(22))
    assert core.find(1, "b").end == "cancelled"
    assert core.drain().ended[-1].causes == frozenset({22})
    if keeps_outlines:
        done = core.epochs[1].done
        assert isinstance(done, CommittedIds)
        assert done.folded >= 15
