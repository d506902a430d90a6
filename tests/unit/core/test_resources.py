"""Resources: versions in scopes, and who waits for them."""

from __future__ import annotations

import pytest

from naviscope_spi import Dependency, Message, Resource
from tests.unit.core.desk import Desk
from tests.unit.core.timing import ratio


def provided(desk: Desk, name: str, scope: int | None = None) -> int | None:
    return desk.core.graph.resources.version(scope, name)


@pytest.mark.parametrize(
    ("steps", "version"),
    [
        ([Resource("r", 3), Resource("r", 2)], 3),
        ([Resource("r", 3), Resource("r", 5)], 5),
        ([Resource("r", 3), Resource("r")], 3),
        ([Resource("r")], 0),
        ([Resource("r", add=2)], 2),
        ([Resource("r", add=2), Resource("r", add=3)], 5),
        ([Resource("r", 4), Resource("r", add=1)], 5),
        ([Resource("r"), Resource("r", add=1)], 1),
    ],
)
def test_a_version_only_grows(steps, version):
    desk = Desk()
    for resource in steps:
        desk.core.provide(resource)
    assert provided(desk, "r") == version


def test_a_resource_that_nobody_provided_does_not_satisfy_version_zero():
    desk = Desk()
    desk.add("x", Dependency.resource("r"))
    assert desk.state("x") == "waiting"
    desk.core.provide(Resource("r"))
    assert desk.state("x") == "ready"


def test_what_an_executor_provides_is_seen_in_its_epoch_only():
    desk = Desk(epochs=2)
    desk.add("maker")
    desk.add("same", Dependency.resource("r"))
    desk.add("other", Dependency.resource("r"), epoch=2)
    desk.commit("maker", ready=[Resource("r")])
    assert desk.states("same", "other") == ["ready", "waiting"]
    desk.core.provide(Resource("r"))
    assert desk.state("other") == "ready"


def test_versions_of_both_scopes_are_not_added_up():
    desk = Desk()
    desk.add("x", Dependency.resource("r", 4))
    desk.core.provide(Resource("r", add=2))
    desk.core.provide(Resource("r", add=2), 1)
    assert desk.state("x") == "waiting"
    desk.core.provide(Resource("r", add=2), 1)
    assert desk.state("x") == "ready"


def test_a_message_that_comes_later_finds_what_was_provided_before():
    desk = Desk()
    desk.core.provide(Resource("r", 2))
    desk.add("content", Dependency.resource("r", 2))
    desk.add("wants more", Dependency.resource("r", 3))
    assert desk.states() == ["ready", "waiting"]


def test_waiters_are_released_by_version_whatever_order_they_came_in():
    desk = Desk()
    for version in (3, 1, 4, 2, 2):
        desk.add(f"v{version} {len(desk.nodes)}", Dependency.resource("r", version))
    released = []
    for _ in range(4):
        desk.core.provide(Resource("r", add=1))
        released.append([name[:2] for name in desk.take()])
    assert released == [["v1"], ["v2", "v2"], ["v3"], ["v4"]]


def test_a_jump_of_versions_releases_all_below_in_order_of_version():
    desk = Desk()
    for version in (5, 1, 3):
        desk.add(f"v{version}", Dependency.resource("r", version))
    desk.core.provide(Resource("r", 4))
    assert desk.take() == ["v1", "v3"]
    assert desk.state("v5") == "waiting"


def test_what_was_satisfied_stays_satisfied_when_the_resource_is_taken_back():
    desk = Desk()
    desk.add("x", Dependency.resource("r"), "parent")
    desk.add("parent")
    desk.core.provide(Resource("r"))
    desk.core.forget_resource("r")
    desk.add("late", Dependency.resource("r"))
    desk.commit("parent")
    assert desk.states("x", "late") == ["ready", "waiting"]


def test_a_replayed_message_finds_what_its_epoch_provided():
    desk = Desk()
    desk.add("maker")
    desk.add("x", Dependency.resource("r"))
    desk.commit("maker", ready=[Resource("r", 1)])
    desk.end("x")
    desk.seal()
    assert desk.epoch().is_completed
    desk.core.replay(desk.seq("x"))
    assert desk.state("x") == "ready"


def test_the_resources_of_an_epoch_go_with_it():
    desk = Desk()
    desk.add("maker")
    desk.commit("maker", ready=[Resource("r", 1)])
    desk.seal()
    assert provided(desk, "r", 1) == 1
    desk.core.forget_epoch(1)
    assert provided(desk, "r", 1) is None


def test_the_value_of_the_epoch_comes_before_the_global_one():
    desk = Desk()
    desk.add("x", Dependency.resource("r"))
    desk.core.provide(Resource("r", 9, value=b"everywhere"))
    assert desk.core.values(desk.seq("x")) == {"r": b"everywhere"}
    desk.core.provide(Resource("r", 1, value=b"here"), 1)
    assert desk.core.values(desk.seq("x")) == {"r": b"here"}


@pytest.mark.parametrize(
    ("later", "value"),
    [
        (Resource("r", 1, value=b"same version"), b"old"),
        (Resource("r", 0, value=b"lower version"), b"old"),
        (Resource("r", 2), b"old"),
        (Resource("r", 2, value=b"new"), b"new"),
        (Resource("r", add=1, value=b"new"), b"new"),
    ],
)
def test_a_value_changes_with_the_version(later, value):
    desk = Desk()
    desk.add("x", Dependency.resource("r"))
    desk.core.provide(Resource("r", 1, value=b"old"))
    desk.core.provide(later)
    assert desk.core.values(desk.seq("x")) == {"r": value}


def count_up(waiters: int) -> None:
    desk = Desk()
    desk.put(*(Message(f"m{i}", None, depends_on=[Dependency.resource("r", i)]) for i in range(1, waiters + 1)))
    for _ in range(waiters):
        desk.core.provide(Resource("r", add=1))
        (seq,) = desk.core.take(10)
        desk.core.commit([seq])
    assert not desk.epoch().unfinished


def test_a_waiter_costs_the_same_however_many_wait_for_other_versions():
    # Ten times as many take ten times as long; if each step looked at all who wait, a hundred times.
    assert ratio(lambda: count_up(20_000), lambda: count_up(2_000)) < 30


@pytest.mark.parametrize(
    "depends_on",
    [
        [Dependency.resource("r", 1)],
        [Dependency.resource("r", 1, timeout=5)],
        [Dependency.resource("r", 1), Dependency.resource("s")],
    ],
    ids=["one", "one with a timeout", "several"],
)
@pytest.mark.parametrize("others", [0, 2])
def test_a_message_that_is_cancelled_waits_for_no_resource_any_more(depends_on, others):
    desk = Desk()
    desk.add("x", *depends_on)
    for number in range(others):
        desk.add(f"y{number}", Dependency.resource("r", 2))
    desk.core.cancel(desk.seq("x"))
    if not others:
        assert desk.core.graph.resources._waiters == {}
    desk.core.provide(Resource("r", 1))
    assert desk.states() == ["cancelled", *["waiting"] * others]
    desk.core.provide(Resource("r", 2))
    assert desk.states() == ["cancelled", *["ready"] * others]
    assert desk.core.graph.resources._waiters == {}


def test_an_epoch_that_only_waited_for_a_resource_moves_again():
    desk = Desk()
    desk.add("x", Dependency.resource("r", external=True))
    desk.seal()
    assert desk.epoch().is_blocked
    desk.core.provide(Resource("r"))
    desk.core.advance(desk.core.now)
    assert (desk.state("x"), desk.epoch().is_blocked) == ("ready", False)
