"""Explanations: every kind of reason, in both directions, in words, and never too long."""

from __future__ import annotations

import pytest

from naviscope_ingest._core import State
from naviscope_ingest._core.explain import explain_epoch, explain_message
from naviscope_spi import Dependency, Ended, Message, Resource
from tests.unit.core.desk import Desk


def why(desk: Desk, name: str) -> list[tuple[str, str, str]]:
    """Return kind, text and release of each reason."""
    found = explain_message(desk.core, desk.nodes[name])
    return [(reason.kind, reason.text, reason.release) for reason in found.reasons]


def waits_for(dependency: str | Dependency) -> Desk:
    """Make x wait for something, beside a running message."""
    desk = Desk(epochs=2)
    desk.add("runs")
    desk.add("x", dependency)
    desk.start("runs")
    return desk


@pytest.mark.parametrize(
    ("dependency", "text", "release"),
    [
        ("runs", "message 'runs' is running", "it commits"),
        ("ghost", "message 'ghost' was never submitted", "it is submitted and commits"),
        (Dependency.message("runs", timeout=9), "message 'runs' is running", "it commits"),
        (
            Dependency.message("a", "e2"),
            "message 'a' of epoch 'e2' was never submitted",
            "it is submitted and commits",
        ),
        (
            Dependency.message("a", "nowhere"),
            "message 'a' of epoch 'nowhere': there is no such epoch",
            "an epoch of that name is opened",
        ),
        (Dependency.epoch("nowhere"), "epoch 'nowhere': there is no such epoch", "an epoch of that name is opened"),
        (Dependency.epoch("e2"), "epoch 'e2' is open, 0 unfinished", "it completes"),
        (Dependency.resource("r"), "resource 'r' was never provided", "somebody provides it"),
        (
            Dependency.resource("r", 2, external=True),
            "external resource 'r' (version 2 or later) was never provided",
            "somebody provides it",
        ),
        (
            Dependency.barrier("row"),
            "barrier of kind 'row' is closed: the epoch is not sealed",
            "the epoch is sealed",
        ),
    ],
    ids=str,
)
def test_an_open_dependency_says_how_its_target_stands(dependency, text, release):
    desk = waits_for(dependency)
    assert why(desk, "x") == [("dependency", text, release)]
    (reason,) = explain_message(desk.core, desk.nodes["x"]).reasons
    assert reason.dependency == dependency
    assert reason.blocker == (desk.seq("runs") if "runs" in text else None)


def test_a_resource_that_is_too_old_says_its_version():
    desk = waits_for(Dependency.resource("r", 5))
    desk.core.provide(Resource("r", 2))
    desk.core.provide(Resource("r", 3), 1)
    assert why(desk, "x")[0][1] == "resource 'r' (version 5 or later) is at version 3"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("row", "barrier of kind 'row' is closed: 1 of its kind are unfinished"),
        ("file", "barrier of kind 'row' is closed: unfinished messages may derive its kind"),
    ],
)
def test_a_closed_barrier_says_what_keeps_it_shut(kind, text):
    desk = Desk()
    desk.add("x", Dependency.barrier("row"), kind="summary")
    desk.add("other", kind=kind)
    desk.seal()
    assert why(desk, "x") == [("dependency", text, "they end")]


def test_only_the_open_members_of_a_group_are_named():
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.add(name)
    desk.add("x", Dependency.any_of("a", "b", "c", at_least=2))
    desk.commit("a")
    desk.end("b", "skipped")
    assert why(desk, "x") == [("dependency", "message 'c' is ready", "it commits")]


def test_a_bad_parent_may_wait_for_a_worse_one():
    desk = Desk()
    desk.add("skipped")
    desk.add("open")
    desk.add("x", "skipped", "open")
    desk.end("skipped", "skipped")
    assert why(desk, "x") == [
        (
            "worse",
            "message 'skipped' ended skipped: it will skip unless an open dependency says worse",
            "its other dependencies end",
        ),
        ("dependency", "message 'open' is ready", "it commits"),
    ]


def held(dependency: Dependency) -> Desk:
    desk = Desk(epochs=2)
    desk.add("a")
    desk.add("b", epoch=2)
    desk.add("x", dependency)
    desk.end("a")
    desk.end("b")
    desk.seal(2)
    desk.core.advance(5.0)
    assert desk.state("x") == "held"
    return desk


@pytest.mark.parametrize(
    ("dependency", "text", "release", "blocker"),
    [
        (
            Dependency.message("a", otherwise="hold"),
            "held: message 'a' ended dead",
            "replay or discard the dead letter",
            "a",
        ),
        (
            Dependency.any_of("a", otherwise="hold"),
            "held: too many failed of 1 of 1: message 'a'",
            "replay or discard the dead letters among them",
            None,
        ),
        (
            Dependency.epoch("e2", otherwise="hold"),
            "held: epoch 'e2' ended dead",
            "repair that epoch by a replay",
            None,
        ),
        (
            Dependency.resource("r", timeout=5, otherwise="hold"),
            "held: resource 'r' did not come within 5.0 seconds",
            "it comes after all, or the message is cancelled",
            None,
        ),
    ],
    ids=["message", "group", "epoch", "timeout"],
)
def test_a_held_message_says_what_would_release_it(dependency, text, release, blocker):
    desk = held(dependency)
    assert why(desk, "x") == [("held", text, release)]
    (reason,) = explain_message(desk.core, desk.nodes["x"]).reasons
    assert reason.blocker == (None if blocker is None else desk.seq(blocker))


def test_a_delayed_message_says_until_when():
    desk = Desk()
    desk.add("later", not_before=7.5)
    desk.add("again")
    desk.start("again")
    desk.core.retry(desk.seq("again"), 3.25)
    assert why(desk, "later") == [("timer", "it may not start before 7.500", "that time comes")]
    assert why(desk, "again") == [("timer", "it is tried again at 3.250", "that time comes")]
    assert explain_message(desk.core, desk.nodes["again"]).reasons[0].until == 3.25


def test_a_ready_message_waits_for_a_worker_or_for_its_lane():
    desk = Desk()
    for name in ("a", "b"):
        desk.add(name, key="k")
    assert why(desk, "a") == [
        ("queue", "it is ready and waits for a worker", "a worker is free and its turn comes"),
    ]
    assert why(desk, "b") == [("lane", "its lane 'k' is taken by message 'a'", "that message ends")]
    desk.take()
    assert why(desk, "b") == [("lane", "its lane 'k' is taken by message 'a'", "that message ends")]
    assert explain_message(desk.core, desk.nodes["b"]).reasons[0].blocker == desk.seq("a")


def test_what_is_at_work_says_where():
    desk = Desk()
    desk.add("a")
    desk.start("a")
    assert why(desk, "a") == [("running", "its executor runs", "the executor answers")]
    desk.core.hand_to_sink([desk.seq("a")])
    assert why(desk, "a") == [("committing", "its outcome is with the sink", "the sink commits")]


@pytest.mark.parametrize(
    ("depends_on", "end", "text"),
    [
        (["bad"], "dead", "it ended dead: message 'bad' ended dead"),
        ([Dependency.message("bad", otherwise="skip")], "skipped", "it ended skipped: message 'bad' ended dead"),
        (
            [Dependency.any_of("bad", "ok", at_least=2)],
            "dead",
            "it ended dead: too many failed of 2 of 2: message 'bad'",
        ),
        (["ghost"], "dead", "it ended dead: nothing alive can bring message 'ghost'"),
        ([Dependency.epoch("nowhere")], "dead", "it ended dead: nothing alive can bring epoch 'nowhere'"),
        ([Dependency.message("no", "e2")], "dead", "message 'no' of epoch 'e2' does not exist, and its epoch is comp"),
        (
            [Dependency.resource("r", timeout=2)],
            "dead",
            "it ended dead: resource 'r' did not come within 2.0 seconds",
        ),
        (["y"], "dead", "it ended dead: it waits in a circle: 'x' → 'y' → 'x'"),
    ],
    ids=["parent", "skip", "group", "ghost", "no epoch", "lost", "timeout", "circle"],
)
def test_an_ended_message_says_why_it_ended(depends_on, end, text):
    desk = Desk(epochs=2)
    desk.core.seal(2)
    desk.add("bad")
    desk.add("ok")
    desk.add("x", *depends_on)
    desk.add("y", "x")
    desk.end("bad")
    desk.commit("ok")
    desk.seal()
    desk.core.advance(2.0)
    desk.core.advance(5.0)
    assert desk.state("x") == end
    ((kind, said, _),) = why(desk, "x")
    assert kind == "ended"
    assert text in said


def test_an_end_without_a_reason_is_told_plainly():
    desk = Desk()
    desk.add("a")
    desk.end("a", "skipped")
    assert why(desk, "a") == [("ended", "it ended skipped", "")]
    explanation = explain_message(desk.core, desk.nodes["a"])
    assert (explanation.state, explanation.end) == (State.ENDED, "skipped")


def test_an_error_of_the_executor_is_the_reason():
    desk = Desk()
    desk.add("a")
    desk.core.end(Ended(desk.seq("a"), "dead"), "ValueError('no such column')")
    assert why(desk, "a")[0][1] == "it ended dead: ValueError('no such column')"


def test_those_who_wait_for_a_message_are_listed_by_id_and_epoch():
    desk = Desk(epochs=2)
    desk.add("a")
    desk.add("plain", "a")
    desk.add("group", Dependency.any_of("a", "ghost"))
    desk.add("far", Dependency.message("a", "e1"), epoch=2)
    desk.add("twice", "a", Dependency.any_of("a"))
    desk.add("gone", "a")
    desk.core.cancel(desk.seq("gone"))
    found = explain_message(desk.core, desk.nodes["a"])
    assert list(found.waiting) == [("plain", "e1"), ("group", "e1"), ("far", "e2"), ("twice", "e1")]
    assert found.more_waiting == 0


def test_lists_are_bounded_and_the_rest_is_counted():
    desk = Desk()
    desk.put(*(Message(f"p{i}", None) for i in range(50)))
    desk.add("child", *(f"p{i}" for i in range(50)))
    desk.put(*(Message(f"c{i}", None, depends_on=["p0"]) for i in range(30)))
    child, parent = (explain_message(desk.core, desk.nodes[name]) for name in ("child", "p0"))
    assert (len(child.reasons), child.more_reasons) == (20, 30)
    assert (len(parent.waiting), parent.more_waiting) == (20, 11)


def test_an_epoch_counts_its_messages_and_names_the_most_frequent_reasons():
    desk = Desk()
    desk.add("gate", not_before=9.0)
    desk.put(*(Message(f"w{i}", None, depends_on=["gate"]) for i in range(5)))
    desk.put(*(Message(f"r{i}", None, depends_on=[Dependency.resource("r")]) for i in range(2)))
    desk.add("dead")
    desk.end("dead")
    found = explain_epoch(desk.core, desk.epoch())
    assert (found.name, found.state, found.is_blocked) == ("e1", "open", False)
    assert {name: count for name, count in found.counts.items() if count} == {"waiting": 7, "delayed": 1, "dead": 1}
    assert list(found.reasons) == [
        ("waiting for message 'gate'", 5),
        ("waiting for resource 'r'", 2),
        ("the epoch is not sealed: more messages may come", 1),
        ("waiting for a time", 1),
    ]
    assert found.examples[0].id == "gate", "others wait for it"


def test_the_explanation_of_a_large_epoch_is_bounded():
    desk = Desk()
    desk.put(*(Message(f"m{i}", None, depends_on=[f"ghost{i}"]) for i in range(200)))
    found = explain_epoch(desk.core, desk.epoch(), looked_at=100)
    assert (len(found.reasons), len(found.examples)) == (20, 20)
    assert found.counts["waiting"] == 200


def test_a_blocked_epoch_says_so():
    desk = Desk()
    desk.add("x", Dependency.resource("approval", external=True))
    desk.seal()
    found = explain_epoch(desk.core, desk.epoch())
    assert found.is_blocked
    assert list(found.reasons) == [("waiting for external resource 'approval'", 1)]


def test_a_completed_epoch_has_no_reasons():
    desk = Desk()
    desk.add("x")
    desk.commit("x")
    desk.seal()
    found = explain_epoch(desk.core, desk.epoch())
    assert (found.state, list(found.reasons), list(found.examples)) == ("completed", [], [])
    assert found.counts["committed"] == 1
