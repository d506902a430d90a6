"""Outlines: the core keeps little of messages that a store has, and decides as it would with the whole of them."""

from __future__ import annotations

import sys

import pytest

from naviscope_ingest._core.outlines import Outline, Outlines
from naviscope_spi import Dependency, InvalidMessage, Message, Resource
from tests.unit.core.desk import Desk

ATTRIBUTES = ("id", "kind", "depends_on", "key", "priority", "not_before", "expires_at")
LONG = b"payload" * 20
RESOURCE = Dependency.resource("r", 3, external=True, otherwise="skip", timeout=7, on_unresolved="wait")


@pytest.mark.parametrize(
    "message",
    [
        Message("m", LONG),
        Message("m", LONG, "order", ["a", "b"]),
        Message("m", LONG, "order", [RESOURCE]),
        Message("m", LONG, "order", [RESOURCE, "a"]),
        Message("m", LONG, "order", [Dependency.any_of("a", Dependency.resource("s"))]),
        Message("m", LONG, "order", [RESOURCE], key="lane"),
        Message("m", LONG, priority=2, not_before=1.0, expires_at=2.0, headers={"trace": "x"}),
    ],
    ids=repr,
)
def test_an_outline_says_what_its_message_says(message):
    outline = Outlines().of(message)
    assert [getattr(outline, name) for name in ATTRIBUTES] == [getattr(message, name) for name in ATTRIBUTES]
    assert getattr(outline, "payload", None) is None


@pytest.mark.parametrize("payload", [7, 1.5, "short", b"short"])
def test_a_message_with_a_small_payload_is_its_own_outline(payload):
    message = Message("m", payload, depends_on=["a"])
    assert Outlines().of(message) is message
    headed = Message("m", payload, depends_on=["a"], headers={"trace": "x"})
    assert type(Outlines().of(headed)) is Outline
    waiting = Message("m", payload, depends_on=[RESOURCE])
    assert type(Outlines().of(waiting)) is Outline


def test_outlines_that_wait_for_one_resource_share_the_policy():
    outlines = Outlines()
    made = [outlines.of(Message(f"m{i}", None, depends_on=[RESOURCE.named(f"r{i}")])) for i in range(100)]
    assert all(type(outline) is Outline for outline in made)
    assert len({id(outline._like) for outline in made}) == 1
    assert [outline.depends_on[0].name for outline in made] == [f"r{i}" for i in range(100)]
    assert sys.getsizeof(made[0]) <= 64


def test_policies_beyond_what_is_remembered_are_kept_as_they_are(monkeypatch):
    monkeypatch.setattr("naviscope_ingest._core.outlines._MAX_SHARED", 1)
    outlines = Outlines()
    for version in (1, 2, 1):
        wanted = Dependency.resource("r", version)
        assert outlines.of(Message("m", None, depends_on=[wanted])).depends_on == (wanted,)


def test_a_deferral_in_vain_is_found_by_the_outline():
    outline = Outlines().of(Message("m", None, "order"))
    with pytest.raises(InvalidMessage, match="itself"):
        outline.check_dependencies(["m"])
    with pytest.raises(InvalidMessage, match="own kind"):
        outline.check_dependencies([Dependency.barrier("order")])


def test_a_core_keeps_no_message_that_it_needs_not():
    desk = Desk(keeps_outlines=True)
    message = Message("m", b"payload", depends_on=[Dependency.resource("r", 2)])
    desk.put(message)
    assert desk.nodes["m"].message is not message
    desk.core.provide(Resource("r", 1))
    assert desk.state("m") == "waiting"
    desk.core.provide(Resource("r", 2))
    assert desk.state("m") == "ready"
