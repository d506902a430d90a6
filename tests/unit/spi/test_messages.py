"""Messages, resources, outcomes and the options of epochs refuse what is malformed when they are made."""

from __future__ import annotations

import math

import pytest
from attrs import fields
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

import naviscope_spi
from naviscope_spi import (
    MAX_DEPENDENCIES,
    Deferred,
    Dependency,
    EpochOptions,
    Executed,
    InvalidMessage,
    Message,
    Resource,
    check_depends_on,
)

# What takes dependencies.
ASKERS = {
    "check_depends_on": check_depends_on,
    "Message": lambda depends_on: Message("me", None, depends_on=depends_on).depends_on,
    "Deferred": lambda depends_on: Deferred(depends_on).depends_on,
}
EVERY_ASKER = pytest.mark.parametrize("ask", ASKERS.values(), ids=ASKERS)


@EVERY_ASKER
@pytest.mark.parametrize(
    ("depends_on", "text"),
    [
        ("fetch", "depends_on='fetch' is a bare string: write depends_on=['fetch']"),
        (b"fetch", "depends_on=b'fetch' is a bare string"),
        (Dependency.message("a"), "depends_on is a single Dependency: put it in a list"),
        (Dependency.any_of("a"), "depends_on is a single Dependency: put it in a list"),
        (None, "depends_on must be a list of ids or dependencies, not None"),
        (7, "depends_on must be a list of ids or dependencies, not 7"),
        (Message("a", None), "depends_on must be a list of ids or dependencies, not Message(id='a'"),
        ([Message("a", None)], "depends_on holds Message(id='a'"),
        ([None], "depends_on holds None: each entry is a message id or a Dependency"),
        ([b"a"], "depends_on holds b'a': each entry is a message id or a Dependency"),
        ([["a"]], "depends_on holds ['a']: each entry is a message id or a Dependency"),
        (["a", 5], "depends_on holds 5: each entry is a message id or a Dependency"),
        ([Resource("a")], "depends_on holds Resource(name='a'"),
        ([""], "the id in depends_on is empty"),
    ],
)
def test_what_is_no_list_of_dependencies_is_refused(ask, depends_on, text):
    with pytest.raises(InvalidMessage) as caught:
        ask(depends_on)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 300


@EVERY_ASKER
def test_a_message_has_at_most_a_hundred_thousand_dependencies(ask):
    ids = [f"m{i}" for i in range(MAX_DEPENDENCIES + 1)]
    assert len(ask([*ids[:-1], "m0"])) == 100_000
    with pytest.raises(InvalidMessage, match="depends_on has 100001 entries: at most 100000 are allowed"):
        ask(ids)


@EVERY_ASKER
@pytest.mark.parametrize("container", [list, tuple, iter, dict.fromkeys], ids=["list", "tuple", "iterator", "dict"])
def test_dependencies_become_a_tuple_in_their_order_without_repetitions(ask, container):
    resource = Dependency.resource("r")
    given_ = ["c", "a", resource, Dependency.message("a"), "b", Dependency.resource("r"), "c"]
    assert ask(container(given_)) == ("c", "a", resource, "b")


@EVERY_ASKER
@pytest.mark.parametrize(
    "other", [{"timeout": 1}, {"otherwise": "skip"}, {"on_unresolved": "wait"}, {"epoch": "night"}], ids=repr
)
def test_only_a_plain_dependency_on_a_message_equals_its_id(ask, other):
    chosen = Dependency.message("a", **other)
    assert ask(["a", Dependency.message("a"), chosen]) == ("a", chosen)


@pytest.mark.parametrize(
    "itself",
    [
        "me",
        Dependency.message("me"),
        Dependency.message("me", otherwise="run"),
        Dependency.any_of("a", "me"),
        Dependency.any_of("a", Dependency.any_of("b", "me")),
    ],
    ids=["plain", "message", "with a policy", "in a group", "in a nested group"],
)
def test_a_message_that_depends_on_itself_is_refused(itself):
    with pytest.raises(InvalidMessage, match="message 'me' depends on itself"):
        Message("me", None, depends_on=["a", itself])
    with pytest.raises(InvalidMessage, match="message 'me' depends on itself"):
        Message("me", None).check_dependencies([itself])


@pytest.mark.parametrize(
    "own",
    [
        Dependency.barrier("row"),
        Dependency.barrier("row", timeout=5),
        Dependency.any_of("a", Dependency.barrier("row")),
        Dependency.any_of(Dependency.any_of(Dependency.barrier("row"))),
    ],
    ids=["plain", "with a timeout", "in a group", "in a nested group"],
)
def test_a_message_that_waits_for_the_barrier_of_its_own_kind_is_refused(own):
    with pytest.raises(InvalidMessage) as caught:
        Message("me", None, kind="row", depends_on=[own])
    assert str(caught.value) == (
        "message 'me' of kind 'row' waits for the barrier of its own kind: "
        "it would wait for itself; give it another kind"
    )


def test_the_same_id_in_another_epoch_and_the_barrier_of_another_kind_are_fine():
    depends_on = (Dependency.message("me", "night"), Dependency.barrier("row"), Dependency.any_of("a", "b"))
    assert Message("me", None, kind="summary", depends_on=depends_on).depends_on == depends_on


@pytest.mark.parametrize("priority", [True, False, 1.0, "1", None, 2**31, -(2**31) - 1], ids=repr)
def test_a_priority_is_an_integer_of_32_bits(priority):
    with pytest.raises(InvalidMessage) as caught:
        Message("a", None, priority=priority)
    assert str(caught.value) == f"priority={priority!r}: it must be an integer of at most 32 bits; higher runs first"


@pytest.mark.parametrize("priority", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_a_priority_may_be_negative(priority):
    assert Message("a", None, priority=priority).priority == priority


@pytest.mark.parametrize("name", ["not_before", "expires_at"])
@pytest.mark.parametrize(
    "moment", [math.nan, math.inf, -math.inf, "soon", True, b"1", 10**400], ids=lambda m: str(m)[:5]
)
def test_a_time_is_a_finite_number_of_seconds(name, moment):
    with pytest.raises(InvalidMessage) as caught:
        Message("a", None, **{name: moment})
    assert str(caught.value).startswith(f"{name}=")
    assert str(caught.value).endswith(": give seconds since the Unix epoch as a number, or None")


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (None, "headers must be a mapping of strings, not None"),
        ([("a", "b")], "headers must be a mapping of strings, not [('a', 'b')]"),
        ({"a": 1}, "header 'a' = 1: names and values are strings"),
        ({1: "a"}, "header 1 = 'a': names and values are strings"),
        ({"a": None}, "header 'a' = None: names and values are strings"),
    ],
)
def test_headers_are_strings(headers, text):
    with pytest.raises(InvalidMessage) as caught:
        Message("a", None, headers=headers)
    assert str(caught.value) == text


def test_headers_are_a_copy_that_cannot_be_changed():
    headers = {"trace": "1"}
    message = Message("a", None, headers=headers)
    headers["trace"] = "2"
    assert message.headers == {"trace": "1"}
    with pytest.raises(TypeError):
        message.headers["trace"] = "3"


def test_a_message_is_frozen_and_compares_by_identity():
    message = Message("a", {"rows": [1]})
    with pytest.raises(FrozenInstanceError):
        message.id = "b"
    assert message != Message("a", {"rows": [1]})
    assert message in {message}


# Resources and values


@pytest.mark.parametrize("field", ["version", "add"])
@pytest.mark.parametrize("version", [True, 1.0, "1", None], ids=repr)
def test_the_version_of_a_resource_is_an_integer(field, version):
    with pytest.raises(InvalidMessage) as caught:
        Resource("r", **{field: version})
    assert str(caught.value) == f"a resource version must be an integer, not {version!r}"


@pytest.mark.parametrize("field", ["version", "add"])
def test_the_version_of_a_resource_is_not_negative(field):
    with pytest.raises(InvalidMessage, match="resource version -3 is negative"):
        Resource("r", **{field: -3})


def test_a_resource_is_set_or_counted_not_both():
    with pytest.raises(InvalidMessage, match="resource 'r' has both version= and add=: set it or count it"):
        Resource("r", 2, add=1)


@pytest.mark.parametrize("make", [Executed, lambda value: Resource("r", value=value)], ids=["Executed", "Resource"])
class TestValues:
    @pytest.mark.parametrize(
        "value", ["text", bytearray(b"x"), memoryview(b"x"), 5, [b"x"]], ids=lambda v: type(v).__name__
    )
    def test_a_value_is_bytes(self, make, value):
        with pytest.raises(InvalidMessage, match=f"a value is bytes, not {type(value).__name__}: encode it first"):
            make(value=value)

    def test_a_value_has_at_most_64_kib(self, make):
        assert len(make(value=b"x" * 65_536).value) == 65_536
        with pytest.raises(InvalidMessage, match="the value has 65537 bytes: at most 65536 are allowed; keep it small"):
            make(value=b"x" * 65_537)

    def test_no_value_and_an_empty_one_differ(self, make):
        assert make(value=None).value is None
        assert make(value=b"").value == b""


# Options of an epoch


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weight": 0}, "weight=0: it must be an integer above zero"),
        ({"weight": -1}, "weight=-1: it must be an integer above zero"),
        ({"weight": 1.5}, "weight=1.5: it must be an integer above zero"),
        ({"weight": True}, "weight=True: it must be an integer above zero"),
        ({"deadline": math.nan}, "deadline=nan: give seconds since the Unix epoch as a number, or None"),
        ({"deadline": "noon"}, "deadline='noon': give seconds since the Unix epoch as a number, or None"),
        ({"retain": -1}, "retain=-1: give seconds as a number that is not negative, or None"),
        ({"retain": math.inf}, "retain=inf: give seconds as a number that is not negative, or None"),
        ({"retain": "1d"}, "retain='1d': give seconds as a number that is not negative, or None"),
        ({"on_unresolved": "wiat"}, "on_unresolved='wiat' is unknown: did you mean 'wait'?"),
        ({"if_exists": "join"}, 'if_exists=\'join\': it is "rejoin" or "refuse"'),
    ],
)
def test_malformed_options_of_an_epoch_are_refused(options, text):
    with pytest.raises(InvalidMessage) as caught:
        EpochOptions(**options)
    assert str(caught.value) == text


names = st.text("abc", min_size=1, max_size=2)
dependencies = st.one_of(
    names,
    st.builds(Dependency.message, names, st.none() | names, otherwise=st.sampled_from(["follow", "run"])),
    st.builds(Dependency.resource, names, st.integers(0, 2)),
)


@given(st.lists(dependencies))
def test_checking_dependencies_twice_changes_nothing(depends_on):
    once = check_depends_on(depends_on)
    assert check_depends_on(once) == once
    assert len(set(once)) == len(once)
    assert set(once) == set(check_depends_on(reversed(depends_on)))


def test_everything_public_has_a_name_in_the_package():
    assert len(set(naviscope_spi.__all__)) == len(naviscope_spi.__all__)
    assert all(hasattr(naviscope_spi, name) for name in naviscope_spi.__all__)


def test_a_known_message_is_as_it_was():
    depends_on = ("a", Dependency.barrier("row"))
    made = Message("b", 7, "order", depends_on, "key", 3, 1.0, 2.0, {"trace": "x"})
    known = Message.known("b", 7, "order", depends_on, "key", 3, 1.0, 2.0, {"trace": "x"})
    names = [each.name for each in fields(Message)]
    assert [getattr(known, name) for name in names] == [getattr(made, name) for name in names]
    plain = Message.known("b", 7, "order")
    assert [getattr(plain, name) for name in names] == [getattr(Message("b", 7, "order"), name) for name in names]


def test_an_outline_is_the_message_without_what_only_executors_need():
    made = Message("b", 7, "order", ["a"], "key", 3, 1.0, 2.0, {"trace": "x"})
    outline = made.outline()
    assert (outline.payload, outline.headers) == (None, {})
    same = [each.name for each in fields(Message) if each.name not in ("payload", "headers")]
    assert [getattr(outline, name) for name in same] == [getattr(made, name) for name in same]
