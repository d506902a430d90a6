"""Messages as plain data: what is meant, and what is refused."""

import re

import pytest

from naviscope_ingest import Dependency, InvalidMessage
from naviscope_ingest.plain_messages import FIELDS, message_of, plain_dependency, time_of


def test_a_line_may_say_everything_that_a_message_has():
    message = message_of(
        {
            "id": "a",
            "payload": {"n": 1},
            "kind": "order",
            "depends_on": ["b", {"barrier": "customer"}],
            "key": "k",
            "priority": 3,
            "not_before": 10,
            "expires_at": "2026-11-18T20:00:00Z",
            "headers": {"tenant": "x"},
        }
    )
    assert (message.id, message.payload, message.kind, message.key) == ("a", {"n": 1}, "order", "k")
    assert message.depends_on == ("b", Dependency.barrier("customer"))
    assert (message.priority, message.not_before, message.expires_at) == (3, 10, 1795032000.0)
    assert dict(message.headers) == {"tenant": "x"}


def test_an_id_is_enough():
    message = message_of({"id": "a"})
    assert (message.payload, message.kind, message.depends_on) == (None, "message", ())


DEPENDENCIES = [
    ("a", "a"),
    ({"message": "a"}, "a"),
    ({"message": "a", "epoch": "monday"}, Dependency.message("a", "monday")),
    ({"resource": "r", "min_version": 3, "external": True}, Dependency.resource("r", 3, external=True)),
    ({"epoch": "sunday", "otherwise": "run"}, Dependency.epoch("sunday", otherwise="run")),
    ({"barrier": "k", "timeout": 5}, Dependency.barrier("k", timeout=5)),
    (
        {"any_of": ["a", {"resource": "r"}], "at_least": 2, "on_unresolved": "wait"},
        Dependency.any_of("a", Dependency.resource("r"), at_least=2, on_unresolved="wait"),
    ),
    (
        {"message": "a", "otherwise": {"skipped": "run", "dead": "hold"}},
        Dependency.message("a", otherwise={"skipped": "run", "dead": "hold"}),
    ),
]


@pytest.mark.parametrize(("plain", "meant"), DEPENDENCIES)
def test_a_dependency_means_the_same_there_and_back(plain, meant):
    assert message_of({"id": "x", "depends_on": [plain]}).depends_on == (meant,)
    assert message_of({"id": "x", "depends_on": [plain_dependency(meant)]}).depends_on == (meant,)


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ([], "it is a list"),
        (None, "it is null"),
        ({}, "it has no id"),
        ({"id": 3}, "message id must be a string"),
        ({"id": ""}, "message id is empty"),
        ({"id": "a", "payloda": 1}, "no field 'payloda': did you mean 'payload'?"),
        ({"id": "a", "x": 1}, "no field 'x': there are id, payload"),
        ({"id": "a", "depends_on": "b"}, "depends_on is a text"),
        ({"id": "a", "depends_on": [3]}, "depends_on holds a number"),
        ({"id": "a", "depends_on": [{}]}, "names none of message, resource, barrier, epoch, any_of"),
        ({"id": "a", "depends_on": [{"resource": "r", "version": 3}]}, "no field 'version': did you mean"),
        ({"id": "a", "depends_on": [{"resource": "r", "external": "yes"}]}, "external is a text"),
        ({"id": "a", "depends_on": [{"any_of": "b"}]}, "any_of is a text"),
        ({"id": "a", "depends_on": [{"any_of": []}]}, "at_least"),
        ({"id": "a", "depends_on": [{"message": "b", "otherwise": "rnu"}]}, "did you mean 'run'?"),
        ({"id": "a", "depends_on": ["a"]}, "a"),
        ({"id": "a", "priority": 1.5}, "priority=1.5"),
        ({"id": "a", "headers": {"a": 1}}, "header 'a'"),
        ({"id": "a", "not_before": "tomorrow"}, "not_before is 'tomorrow'"),
        ({"id": "a", "not_before": "2026-11-18T20:00:00"}, "say in which zone"),
        ({"id": "a", "expires_at": True}, "expires_at is True"),
    ],
)
def test_what_means_no_message_is_refused_with_the_field(plain, reason):
    with pytest.raises(InvalidMessage, match=re.escape(reason)):
        message_of(plain)


def test_nesting_has_a_limit():
    deep = "a"
    for _ in range(50):
        deep = {"any_of": [deep]}
    with pytest.raises(InvalidMessage, match="nested"):
        message_of({"id": "x", "depends_on": [deep]})


def test_times_with_zones_are_the_same_moment():
    assert time_of("t", "2026-11-18T21:00:00+01:00") == time_of("t", "2026-11-18T20:00:00Z") == 1795032000.0


def test_every_field_of_a_message_can_be_said():
    from attrs import fields

    from naviscope_ingest import Message

    assert list(FIELDS) == [each.name for each in fields(Message)]
