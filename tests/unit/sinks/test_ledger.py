"""The ledger knows what was applied, on any driver that runs SQL."""

import sqlite3

import apsw
import pytest

from naviscope_ingest.sinks import Ledger
from naviscope_spi import Entry, EpochKey, task_key


def entry(name, epoch=1, store="store"):
    return Entry(task_key(store, epoch, name), EpochKey(epoch, "nightly"), name, "message", ())


def names(entries):
    return [each.message_id for each in entries]


@pytest.fixture(params=["apsw", "sqlite3"])
def database(request):
    if request.param == "apsw":
        connection = apsw.Connection(":memory:")
    else:
        connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(Ledger().schema)
    yield connection
    connection.close()


def test_an_entry_is_new_once(database):
    ledger = Ledger()
    assert names(ledger.claim(database, [entry("a"), entry("b")])) == ["a", "b"]
    assert names(ledger.claim(database, [entry("c"), entry("b"), entry("d"), entry("a")])) == ["c", "d"]


def test_of_two_with_one_key_the_first_counts(database):
    first, second = entry("a"), entry("a")
    assert Ledger().claim(database, [first, second]) == [first]
    assert Ledger().claim(database, [second]) == []


def test_sinks_have_ledgers_of_their_own(database):
    assert names(Ledger("one").claim(database, [entry("a")])) == ["a"]
    assert names(Ledger("two").claim(database, [entry("a")])) == ["a"]


def test_large_and_mixed_batches_are_fine(database):
    entries = [entry(f"m{number}", epoch=number % 3) for number in range(2_000)]
    ledger = Ledger()
    assert ledger.claim(database, entries) == entries
    assert ledger.claim(database, entries) == []
    assert ledger.claim(database, []) == []


def test_old_epochs_of_one_store_are_pruned_in_steps(database):
    ledger = Ledger()
    ledger.claim(database, [entry(f"m{number}", epoch) for number in range(5) for epoch in (1, 2, 3)])
    ledger.claim(database, [entry("x", 1, "stor"), entry("x", 1, "store2")])
    Ledger("other").claim(database, [entry("m1", 1)])
    assert ledger.prune(database, 3, store_id="store", limit=7) == 7
    assert ledger.prune(database, 3, store_id="store", limit=7) == 3
    assert ledger.prune(database, 3, store_id="store") == 0
    assert ledger.claim(database, [entry("m1", 3), entry("x", 1, "stor"), entry("x", 1, "store2")]) == []
    assert Ledger("other").claim(database, [entry("m1", 1)]) == []


@pytest.mark.parametrize("table", ["", "a b", "a;drop", 'a"'])
def test_the_name_of_the_table_is_checked(table):
    with pytest.raises(ValueError, match="use letters, digits and _"):
        Ledger(table=table)


@pytest.mark.parametrize("sink_id", ["", None])
def test_a_ledger_needs_a_name(sink_id):
    with pytest.raises(ValueError, match="give a name that tells this sink from others"):
        Ledger(sink_id)
