"""Epochs complete when they are sealed and every message has ended, by sets and not by counting."""

from __future__ import annotations

import pytest

from naviscope_ingest._core import Refused
from naviscope_ingest._core.explain import explain_epoch
from naviscope_spi import Dependency, Ended, EpochKey, EpochOptions, EpochRecord, Message, Resource
from tests.unit.core.desk import Desk


def test_an_empty_epoch_completes_when_it_is_sealed():
    desk = Desk()
    assert desk.epoch().state == "open"
    desk.seal()
    assert desk.epoch().state == "completed"
    assert desk.epoch().succeeded
    assert desk.events() == [("e1", "completed")]


def test_an_epoch_completes_once():
    desk = Desk()
    desk.add("a")
    desk.commit("a")
    desk.seal()
    desk.seal()
    desk.core.commit([desk.seq("a")])
    desk.core.cancel_epoch(1)
    desk.core.advance(100.0)
    assert desk.events() == [("e1", "completed")]


def test_an_open_epoch_does_not_complete():
    desk = Desk()
    desk.add("a")
    desk.commit("a")
    assert desk.epoch().state == "open"
    assert desk.events() == []


def test_repeated_facts_neither_complete_an_epoch_early_nor_keep_it_open():
    desk = Desk()
    messages = [Message(name, None) for name in "abc"]
    desk.put(*messages)
    a, b, c = (desk.seq(name) for name in "abc")
    desk.seal()
    for _ in range(3):
        desk.core.accept(1, [a, b, c], messages)
        desk.core.count_duplicates(1, 3)
        desk.core.claim([a])
        desk.core.hand_to_sink([a])
        desk.core.commit([a])
        desk.core.end(Ended(b, "dead"))
        desk.core.end(Ended(a, "dead"))
    assert desk.epoch().state == "sealed"
    assert desk.epoch().unfinished == 1
    desk.core.commit([c, c, a, b])
    assert desk.epoch().state == "completed"
    assert desk.epoch().counts() == {
        **dict.fromkeys(("waiting", "held", "delayed", "ready", "running", "committing"), 0),
        **{"committed": 2, "dead": 1, "skipped": 0, "cancelled": 0, "expired": 0},
    }
    assert desk.epoch().submitted == 3
    assert desk.epoch().duplicates == 9


def test_a_known_id_is_not_accepted_under_another_place():
    desk = Desk()
    desk.add("a")
    desk.core.accept(1, [99], [Message("a", None)])
    desk.commit("a")
    desk.core.accept(1, [100], [Message("a", None)])
    desk.seal()
    assert desk.epoch().state == "completed"
    assert desk.epoch().submitted == 1


def test_the_last_message_does_not_complete_the_epoch_if_it_derives():
    desk = Desk()
    desk.add("a")
    desk.seal()
    desk.commit("a", derived=[Message("b", None)])
    assert desk.epoch().state == "sealed"
    desk.commit("b")
    assert desk.epoch().state == "completed"


@pytest.mark.parametrize(
    ("ends", "succeeded"),
    [
        ([], True),
        (["skipped", "skipped"], True),
        (["dead"], False),
        (["cancelled"], False),
        (["expired", "skipped"], False),
    ],
)
def test_an_epoch_succeeded_if_nothing_died_expired_or_was_cancelled(ends, succeeded):
    desk = Desk(epochs=2)
    desk.add("good")
    desk.add("waits", Dependency.epoch("e1"), epoch=2)
    for index, end in enumerate(ends):
        desk.add(str(index))
        desk.end(str(index), end)
    desk.commit("good")
    desk.seal()
    assert desk.epoch().succeeded is succeeded
    assert desk.state("waits") == ("ready" if succeeded else "dead")


def test_a_cancelled_epoch_that_lost_nothing_has_succeeded():
    desk = Desk(epochs=2)
    desk.add("a")
    desk.add("waits", Dependency.epoch("e1"), epoch=2)
    desk.start("a")
    desk.core.hand_to_sink([desk.seq("a")])
    desk.core.cancel_epoch(1)
    assert desk.epoch().state == "sealed"
    desk.core.commit([desk.seq("a")])
    assert (desk.epoch().state, desk.epoch().succeeded) == ("completed", True)
    assert desk.state("waits") == "ready"


def test_those_who_wait_for_a_cancelled_epoch_are_cancelled():
    desk = Desk(epochs=2)
    desk.add("a")
    desk.add("waits", Dependency.epoch("e1"), epoch=2)
    desk.core.cancel_epoch(1)
    assert desk.states() == ["cancelled", "cancelled"]
    assert desk.nodes["waits"].rare.epoch_causes == {1}


def test_a_repair_completes_the_epoch_again_with_a_higher_revision():
    desk = Desk()
    desk.add("a")
    desk.seal()
    for revision in (0, 1, 2):
        desk.end("a")
        assert (desk.epoch().state, desk.epoch().revision) == ("completed", revision)
        assert desk.events() == [("e1", "completed")]
        desk.core.replay(desk.seq("a"))
        assert (desk.epoch().state, desk.epoch().revision) == ("repairing", revision)
        assert desk.events() == [("e1", "repairing")]
    desk.commit("a")
    assert (desk.epoch().revision, desk.epoch().succeeded) == (3, True)


def test_a_replay_before_completion_is_no_repair():
    desk = Desk()
    desk.add("a")
    desk.add("b")
    desk.end("a")
    desk.seal()
    desk.core.replay(desk.seq("a"))
    assert desk.epoch().state == "sealed"
    desk.commit("a", "b")
    assert (desk.epoch().state, desk.epoch().revision) == ("completed", 0)


def test_blocked_is_announced_once_until_something_moves():
    desk = Desk()
    desk.add("a", Dependency.resource("approval", external=True))
    desk.seal()
    for now in (1.0, 2.0, 50.0):
        desk.core.advance(now)
    assert desk.epoch().is_blocked
    assert desk.events() == [("e1", "blocked")]
    desk.core.provide(Resource("approval"))
    assert not desk.epoch().is_blocked
    desk.start("a")
    desk.core.defer(desk.seq("a"), [Dependency.resource("again", external=True)])
    desk.core.advance(51.0)
    assert desk.events() == [("e1", "blocked")]


def test_an_epoch_in_which_something_else_moves_is_not_blocked():
    desk = Desk()
    desk.add("a", Dependency.resource("approval", external=True))
    desk.add("b", Dependency.message("c"))
    desk.add("c")
    desk.seal()
    assert not desk.epoch().is_blocked
    desk.commit("c")
    desk.commit("b")
    desk.core.advance(1.0)
    assert desk.epoch().is_blocked


def test_a_completed_epoch_cannot_be_cancelled():
    desk = Desk()
    desk.seal()
    desk.core.cancel_epoch(1)
    assert not desk.epoch().was_cancelled


def test_a_message_accepted_into_a_cancelled_epoch_ends_cancelled():
    desk = Desk()
    desk.add("parent")
    desk.start("parent")
    desk.core.hand_to_sink([desk.seq("parent")])
    desk.core.cancel_epoch(1)
    desk.add("late")
    assert desk.state("late") == "cancelled"
    assert desk.epoch().state == "sealed"


def test_an_epoch_is_forgotten_with_its_ids_and_only_after_completion():
    desk = Desk()
    desk.add("a")
    with pytest.raises(Refused, match="epoch 'e1' is open: only a completed epoch can be forgotten"):
        desk.core.forget_epoch(1)
    desk.end("a")
    desk.seal()
    desk.core.forget_epoch(1)
    desk.core.forget_epoch(1)
    assert desk.core.node(desk.seq("a")) is None
    with pytest.raises(Refused, match="there is no epoch 1: it was never opened, or it was forgotten"):
        desk.core.seal(1)


def test_a_name_means_the_next_epoch_once_its_epoch_was_forgotten():
    desk = Desk(epochs=0)
    desk.open(1, name="night")
    desk.open(2, name="day")
    desk.core.seal(1)
    desk.core.forget_epoch(1)
    desk.add("waits", Dependency.message("a", "night"), epoch=2)
    assert desk.state("waits") == "waiting"
    desk.open(3, name="night")
    desk.add("a", epoch=3)
    desk.commit("a")
    assert desk.state("waits") == "ready"


def test_what_an_earlier_process_found_is_kept_of_an_epoch_whose_messages_are_gone():
    desk = Desk()
    desk.add("waits", Dependency.epoch("old"))
    desk.add("waits too", Dependency.epoch("bad"))
    for number, name, succeeded in ((2, "old", True), (3, "bad", False)):
        desk.core.open_epoch(EpochRecord(EpochKey(number, name), "completed", EpochOptions(), succeeded=succeeded))
    assert desk.states() == ["ready", "dead"]


def test_an_unknown_id_of_a_completed_epoch_is_unresolved_at_once_and_open_again_after_a_repair():
    desk = Desk(epochs=3)
    desk.add("bad")
    desk.end("bad")
    desk.add("hopes", Dependency.message("ghost", "e1", on_unresolved="wait"), epoch=2)
    desk.seal(1)
    desk.add("late", Dependency.message("ghost", "e1"), epoch=2)
    assert desk.states("hopes", "late") == ["waiting", "dead"]
    desk.core.replay(desk.seq("bad"))
    desk.add("waits", Dependency.message("ghost", "e1"), epoch=2)
    assert desk.state("waits") == "waiting"
    desk.commit("bad", derived=[Message("ghost", None)])
    desk.commit("ghost")
    assert desk.states("hopes", "waits") == ["ready", "ready"]


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_an_epoch_that_expects_derived_messages_is_not_done_and_keeps_its_barriers_shut(is_asked_before):
    desk = Desk(derives={"file": ["row"], "row": [], "total": []})
    barrier = Message("total", None, kind="total", depends_on=[Dependency.barrier("row")])
    desk.add("file", kind="file")
    if is_asked_before:
        desk.put(barrier)
    desk.core.expect(1, "file")
    desk.commit("file")
    if not is_asked_before:
        desk.put(barrier)
    desk.seal()
    assert (desk.state("total"), desk.epoch().unfinished, desk.epoch().is_blocked) == ("waiting", 2, False)
    reasons = dict(explain_epoch(desk.core, desk.epoch()).reasons)
    assert reasons["derived messages of a committed parent are still coming in"] == 1
    desk.add("row", kind="row")
    desk.core.expect_no_more(1, "file")
    assert desk.state("total") == "waiting"
    desk.commit("row")
    assert desk.state("total") == "ready"
    desk.commit("total")
    assert desk.epoch().is_completed


def test_an_epoch_completes_when_the_last_expected_message_turns_out_to_be_known():
    desk = Desk()
    desk.add("file")
    desk.core.expect(1, "message")
    desk.commit("file")
    desk.seal()
    assert not desk.epoch().is_completed
    desk.core.expect_no_more(1, "message")
    assert desk.epoch().is_completed
