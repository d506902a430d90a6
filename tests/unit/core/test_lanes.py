"""Lanes: of the ready messages of a key, the one accepted first runs, and only one at a time."""

from __future__ import annotations

import pytest

from naviscope_spi import Dependency, Ended, Message
from tests.unit.core.desk import Desk


def lane(*names: str, epochs: int = 1, **options) -> Desk:
    desk = Desk(epochs=epochs, **options)
    for name in names:
        desk.add(name, key="k")
    return desk


def test_one_message_of_a_key_runs_at_a_time_in_order_of_acceptance():
    desk = lane("a", "b", "c")
    order = []
    for _ in range(3):
        (name,) = desk.take()
        assert desk.take() == []
        order.append(name)
        desk.core.commit([desk.seq(name)])
    assert order == ["a", "b", "c"]


def test_messages_of_other_keys_and_of_none_are_not_held_up():
    desk = lane("a", "b")
    desk.add("other", key="q")
    desk.add("free")
    assert desk.take() == ["a", "other", "free"]


def test_a_lane_goes_over_all_epochs():
    desk = Desk(epochs=2)
    desk.add("late", key="k", epoch=2)
    desk.add("later", key="k", epoch=1)
    assert desk.take() == ["late"]
    desk.core.commit([desk.seq("late")])
    assert desk.take() == ["later"]


def test_the_lane_is_kept_until_the_settlement():
    desk = lane("a", "b")
    desk.take()
    desk.core.hand_to_sink([desk.seq("a")])
    assert desk.take() == []
    desk.core.commit([desk.seq("a")])
    assert desk.take() == ["b"]


def test_a_message_that_waits_has_no_place_in_its_lane():
    desk = Desk()
    desk.add("a", "parent", key="k")
    desk.add("b", key="k")
    desk.add("parent")
    assert desk.take() == ["b", "parent"]
    desk.core.commit([desk.seq("parent")])
    desk.add("c", key="k")
    desk.core.commit([desk.seq("b")])
    assert desk.take() == ["a"], "accepted before c, and ready by now"


def test_the_head_carries_the_highest_priority_that_waits_in_its_lane():
    desk = Desk()
    desk.add("head", key="k")
    desk.add("usual", priority=1)
    desk.add("urgent", key="k", priority=9)
    assert desk.take() == ["head", "usual"]
    desk.core.commit([desk.seq("head")])
    assert desk.take() == ["urgent"]


def test_the_priority_of_a_cancelled_message_is_carried_no_longer():
    desk = Desk()
    desk.add("head", key="k")
    desk.add("urgent", key="k", priority=9)
    desk.core.cancel(desk.seq("urgent"))
    desk.start("head")
    desk.core.release([desk.seq("head")])
    desk.add("usual", priority=1)
    assert desk.take() == ["usual", "head"]


@pytest.mark.parametrize(("lanes", "taken"), [("block", []), ("pass", ["b"])])
def test_a_retry_blocks_its_lane_unless_others_may_pass(lanes, taken):
    desk = lane("a", "b", lanes=lanes)
    desk.take()
    desk.core.retry(desk.seq("a"), 5.0)
    assert desk.take() == taken


def test_after_a_retry_the_message_starts_in_the_lane_it_kept():
    desk = lane("a", "b")
    desk.take()
    desk.core.retry(desk.seq("a"), 5.0)
    desk.core.advance(5.0)
    assert desk.take() == ["a"]


def test_a_retry_that_let_others_pass_waits_for_its_turn():
    desk = lane("a", "b", "c", lanes="pass")
    desk.take()
    desk.core.retry(desk.seq("a"), 5.0)
    assert desk.take() == ["b"]
    desk.core.advance(5.0)
    assert desk.take() == []
    desk.core.commit([desk.seq("b")])
    assert desk.take() == ["a"], "it was accepted before c"


FREEING = {
    "commit": lambda desk: desk.core.commit([desk.seq("a")]),
    "death": lambda desk: desk.core.end(Ended(desk.seq("a"), "dead")),
    "cancelling": lambda desk: desk.core.cancel(desk.seq("a")),
    "deferral": lambda desk: desk.core.defer(desk.seq("a"), [Dependency.resource("r")]),
}


@pytest.mark.parametrize("free", FREEING.values(), ids=FREEING)
def test_an_end_or_a_deferral_of_the_holder_frees_the_lane(free):
    desk = lane("a", "b")
    assert desk.take() == ["a"]
    free(desk)
    assert desk.take() == ["b"]


def test_cancelling_a_retry_frees_the_lane():
    desk = lane("a", "b")
    desk.take()
    desk.core.retry(desk.seq("a"), 5.0)
    desk.core.cancel(desk.seq("a"))
    assert desk.take() == ["b"]


def test_cancelling_the_head_before_it_started_lets_the_next_one_start():
    desk = lane("a", "b")
    desk.core.cancel(desk.seq("a"))
    assert desk.take() == ["b"]


def test_a_held_message_is_outside_its_lane():
    desk = Desk()
    desk.add("parent")
    desk.add("a", Dependency.message("parent", otherwise="hold"), key="k")
    desk.add("b", key="k")
    desk.end("parent")
    assert desk.state("a") == "held"
    assert desk.take() == ["b"]


def test_a_deferred_message_comes_back_to_its_lane_by_its_place():
    desk = lane("a", "b", "c")
    desk.take()
    desk.core.defer(desk.seq("a"), ["p"])
    desk.add("p")
    assert desk.take() == ["b", "p"]
    desk.core.commit([desk.seq("p")])
    desk.core.commit([desk.seq("b")])
    assert desk.take() == ["a"]


def test_a_lane_goes_away_with_its_last_message():
    desk = Desk()
    desk.put(*(Message(f"m{i}", None, key=f"k{i}") for i in range(100)))
    assert len(desk.core.schedule.lanes) == 100
    desk.core.commit(desk.core.take(100))
    assert len(desk.core.schedule.lanes) == 0


def test_a_message_that_may_not_start_yet_says_so():
    desk = lane("a", "b")
    assert [desk.core.may_start(desk.nodes[name]) for name in "ab"] == [True, False]
    desk.take()
    assert [desk.core.may_start(desk.nodes[name]) for name in "ab"] == [False, False]
    desk.core.commit([desk.seq("a")])
    assert desk.core.may_start(desk.nodes["b"])


def test_a_message_in_retry_keeps_its_place_if_a_recovery_tells_of_another_that_held_the_lane_before():
    desk = lane("first")
    desk.core.begin_recovery()
    desk.add("other", Dependency.resource("once"), key="k")
    desk.add("last", key="k")
    # What is told of each message is the last that became of it, message by message, and not in the order of events.
    for name in ("other", "last"):
        desk.core.claim([desk.seq(name)])
        desk.core.retry(desk.seq(name), desk.core.now)
    for name in ("first", "last"):
        desk.end(name)
    desk.core.end_recovery()
    assert desk.take() == ["other"]
