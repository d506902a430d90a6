"""What parents and resources leave for those who waited, and what was passed although it is missing."""

from __future__ import annotations

import pytest

from naviscope_spi import Dependency, Resource
from tests.unit.core.desk import Desk


def values(desk: Desk, name: str) -> dict[str, bytes]:
    return desk.core.values(desk.seq(name))


@pytest.mark.parametrize(
    "dependency",
    ["parent", Dependency.message("parent", timeout=5), Dependency.message("parent", "e1")],
    ids=["plain", "with a timeout", "by epoch name"],
)
def test_the_value_of_a_parent_reaches_its_child(dependency):
    desk = Desk()
    desk.add("parent")
    desk.add("child", dependency)
    desk.commit("parent", value=b"42")
    assert values(desk, "child") == {"parent": b"42"}


def test_a_child_that_comes_after_the_commit_gets_the_value_too():
    desk = Desk()
    desk.add("parent")
    desk.commit("parent", value=b"42")
    desk.add("child", "parent")
    assert values(desk, "child") == {"parent": b"42"}


def test_a_value_crosses_epochs():
    desk = Desk(epochs=2)
    desk.add("parent")
    desk.add("child", Dependency.message("parent", "e1"), epoch=2)
    desk.commit("parent", value=b"far")
    assert values(desk, "child") == {"parent": b"far"}


def test_a_value_is_found_after_the_epoch_completed_and_until_it_is_forgotten():
    desk = Desk(epochs=2)
    desk.add("parent")
    desk.commit("parent", value=b"kept")
    desk.seal()
    desk.add("child", Dependency.message("parent", "e1"), epoch=2)
    assert values(desk, "child") == {"parent": b"kept"}
    desk.core.forget_epoch(1)
    assert values(desk, "child") == {}
    assert desk.state("child") == "ready", "what was told stays told"


def test_members_of_a_group_hand_over_what_they_left():
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.add(name)
    nested = Dependency.any_of("b", Dependency.any_of("c", Dependency.resource("r")))
    desk.add("child", Dependency.any_of("a", nested, at_least=2))
    desk.commit("a", value=b"1")
    desk.commit("b", value=b"2")
    desk.core.provide(Resource("r", value=b"3"))
    assert values(desk, "child") == {"a": b"1", "b": b"2", "r": b"3"}


def test_a_deferral_adds_values_to_those_that_were_there():
    desk = Desk()
    desk.add("parent")
    desk.add("child", "parent")
    desk.add("more")
    desk.commit("parent", value=b"1")
    desk.start("child")
    desk.core.defer(desk.seq("child"), ["more", Dependency.resource("r")])
    desk.commit("more", value=b"2", ready=[Resource("r", value=b"3")])
    assert desk.state("child") == "ready"
    assert values(desk, "child") == {"parent": b"1", "more": b"2", "r": b"3"}


def test_no_value_and_an_empty_value_differ():
    desk = Desk()
    for name, value in (("none", None), ("empty", b"")):
        desk.add(name)
        desk.commit(name, value=value)
    desk.add("child", "none", "empty")
    assert values(desk, "child") == {"empty": b""}


@pytest.mark.parametrize("end", ["dead", "skipped", "cancelled", "expired"])
def test_a_passed_dependency_is_unmet_and_has_no_value(end):
    desk = Desk()
    desk.add("good")
    desk.add("bad")
    passed = Dependency.message("bad", otherwise="run")
    desk.add("child", "good", passed)
    desk.commit("good", value=b"1")
    desk.end("bad", end)
    assert desk.state("child") == "ready"
    assert list(desk.core.unmet(desk.seq("child"))) == [passed]
    assert values(desk, "child") == {"good": b"1"}


@pytest.mark.parametrize(
    ("dependency", "wait"),
    [
        (Dependency.resource("r", timeout=5, otherwise="run"), 5.0),
        (Dependency.message("ghost", on_unresolved="run"), 5.0),
        (Dependency.any_of("ghost", "phantom", on_unresolved="run"), 5.0),
        (Dependency.barrier("other", timeout=5), 5.0),
    ],
    ids=["timeout", "unresolved", "unresolved group", "barrier"],
)
def test_what_was_given_up_is_unmet(dependency, wait):
    desk = Desk()
    desk.add("child", dependency)
    if isinstance(dependency, type(Dependency.barrier("x"))):
        desk.add("brings it", Dependency.resource("never", external=True), kind="other")
    desk.seal()
    desk.core.advance(wait)
    assert desk.state("child") == "ready"
    assert list(desk.core.unmet(desk.seq("child"))) == [dependency]


def test_unmet_dependencies_of_deferrals_are_listed_with_the_earlier_ones():
    desk = Desk()
    for name in ("one", "two"):
        desk.add(name)
    first, second = (Dependency.message(name, otherwise="run") for name in ("one", "two"))
    desk.add("child", first)
    desk.end("one")
    desk.start("child")
    desk.core.defer(desk.seq("child"), [second])
    desk.end("two")
    assert list(desk.core.unmet(desk.seq("child"))) == [first, second]


def test_a_new_run_begins_without_unmet_dependencies():
    desk = Desk()
    desk.add("bad")
    desk.add("child", Dependency.message("bad", otherwise="run"))
    desk.end("bad")
    desk.end("child")
    desk.core.replay(desk.seq("bad"))
    desk.core.replay(desk.seq("child"))
    desk.commit("bad", value=b"at last")
    assert list(desk.core.unmet(desk.seq("child"))) == []
    assert values(desk, "child") == {"bad": b"at last"}
