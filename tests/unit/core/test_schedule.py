"""The order in which ready messages start: by priority, in turns between epochs, first ready first."""

from __future__ import annotations

import pytest

from naviscope_spi import Message
from tests.unit.core.desk import Desk


def fill(desk: Desk, epoch: int, count: int, **fields) -> None:
    desk.put(*(Message(f"{epoch}-{i}", None, **fields) for i in range(count)), epoch=epoch)


def test_a_higher_priority_starts_first_in_every_epoch():
    desk = Desk(epochs=2)
    for priority in (0, -5, 7, 1):
        desk.add(f"one {priority}", priority=priority)
        desk.add(f"two {priority}", priority=priority, epoch=2)
    expected = [f"{epoch} {priority}" for priority in (7, 1, 0, -5) for epoch in ("one", "two")]
    assert desk.take() == expected


def test_a_higher_priority_that_becomes_ready_later_starts_next():
    desk = Desk()
    fill(desk, 1, 10)
    assert desk.take(3) == ["1-0", "1-1", "1-2"]
    desk.add("urgent", priority=1)
    desk.add("late", priority=-1)
    assert desk.take(2) == ["urgent", "1-3"]
    assert desk.take()[-1] == "late"


def test_within_an_epoch_what_is_ready_first_starts_first():
    desk = Desk()
    desk.add("child", "parent")
    desk.add("parent")
    desk.add("other")
    assert desk.take(1) == ["parent"]
    desk.commit("parent")
    assert desk.take() == ["other", "child"]


@pytest.mark.parametrize("batch", [1, 7, 64, 1_000])
def test_a_small_epoch_is_done_early_beside_a_large_one(batch):
    desk = Desk(epochs=2)
    fill(desk, 1, 10_000)
    fill(desk, 2, 100)
    started: list[str] = []
    while taken := desk.take(batch):
        started += taken
    assert len(started) == 10_100
    last = max(index for index, name in enumerate(started) if name.startswith("2-"))
    # Turn by turn: about as many of the large epoch have started by then, and a quantum more.
    assert last < 300


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (5, 2)])
def test_epochs_share_in_proportion_to_their_weights(weights):
    desk = Desk(epochs=0)
    for number, weight in enumerate(weights, 1):
        desk.open(number, weight=weight)
        fill(desk, number, 5_000)
    taken = [name[0] for _ in range(100) for name in desk.take(32)]
    shares = [taken.count(str(number)) / len(taken) for number in (1, 2)]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=0.05)


def test_turns_are_kept_when_few_are_taken_at_a_time():
    """An epoch does not start over with every call."""
    desk = Desk(epochs=3)
    for number in (1, 2, 3):
        fill(desk, number, 200)
    started = [name[0] for _ in range(300) for name in desk.take(1)]
    assert all(abs(started.count(number) - 100) <= 32 for number in "123")


@pytest.mark.parametrize("key", [None, "k"])
def test_what_was_handed_back_starts_before_what_never_started(key):
    desk = Desk()
    desk.add("first", key=key)
    fill(desk, 1, 3)
    assert desk.take(1) == ["first"]
    desk.core.release([desk.seq("first")])
    assert desk.state("first") == "ready"
    assert desk.take(1) == ["first"]


def test_handed_back_messages_do_not_jump_over_a_higher_priority():
    desk = Desk()
    desk.add("usual")
    assert desk.take() == ["usual"]
    desk.add("urgent", priority=1)
    desk.core.release([desk.seq("usual")])
    assert desk.take() == ["urgent", "usual"]


def test_entries_of_messages_that_ended_or_started_otherwise_are_void():
    desk = Desk()
    fill(desk, 1, 5)
    desk.core.cancel(desk.seq("1-0"))
    desk.start("1-2")
    desk.end("1-3", "skipped")
    assert desk.take(10) == ["1-1", "1-4"]
    assert desk.take(10) == []


def test_a_message_is_taken_once_however_often_it_became_ready():
    """Handed back and started elsewhere, it has several entries; one of them counts."""
    desk = Desk()
    desk.add("x")
    for _ in range(3):
        desk.start("x")
        desk.core.release([desk.seq("x")])
    assert desk.take(10) == ["x"]
    assert desk.take(10) == []


def test_taking_none_changes_nothing():
    desk = Desk()
    desk.add("x")
    assert desk.take(0) == []
    assert desk.state("x") == "ready"
    assert desk.take(1) == ["x"]


def test_what_is_taken_runs_since_now():
    desk = Desk()
    desk.add("x")
    desk.core.advance(7.0)
    desk.take()
    assert (desk.state("x"), desk.nodes["x"].since) == ("running", 7.0)
