"""Dependencies check themselves, and resolve their policies, when they are made."""

from __future__ import annotations

import math

import pytest
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

from naviscope_spi import MAX_GROUP_DEPTH, MAX_GROUP_MEMBERS, Dependency, InvalidMessage, Message, OnMessage, Words

MAKERS = {
    "message": lambda **options: Dependency.message("a", **options),
    "resource": lambda **options: Dependency.resource("a", **options),
    "barrier": lambda **options: Dependency.barrier("a", **options),
    "epoch": lambda **options: Dependency.epoch("a", **options),
    "any_of": lambda **options: Dependency.any_of("a", "b", **options),
}
EVERY_KIND = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@EVERY_KIND
@pytest.mark.parametrize(
    ("otherwise", "text"),
    [
        ("skipp", "otherwise='skipp' is not a policy: did you mean 'skip'?"),
        ("folow", "otherwise='folow' is not a policy: did you mean 'follow'?"),
        ("zzz", "otherwise='zzz' is not a policy: it is one of 'follow', 'fail', 'skip', 'run', 'hold'"),
        ("cancel", "otherwise='cancel' is not a policy: it is one of 'follow', 'fail', 'skip', 'run', 'hold'"),
        (None, "otherwise=None is not a policy: it is one of"),
        (["skip"], "otherwise=['skip'] is not a policy: did you mean 'skip'?"),
        ({"dead": "runn"}, "otherwise='runn' is not a policy: did you mean 'run'?"),
        ({"ded": "run"}, "otherwise has the unknown end 'ded': did you mean 'dead'?"),
        ({"committed": "run"}, "unknown end 'committed': it is one of 'dead', 'skipped', 'cancelled', 'expired'"),
        ({7: "run"}, "otherwise has the unknown end 7: it is one of"),
        ({"skipped": "hold"}, "otherwise={'skipped': 'hold'}: only dead and expired parents can be replayed"),
        ({"cancelled": "hold"}, "otherwise={'cancelled': 'hold'}: only dead and expired parents can be replayed"),
    ],
)
def test_an_unknown_policy_is_refused_with_the_nearest_known_one(make, otherwise, text):
    with pytest.raises(InvalidMessage) as caught:
        make(otherwise=otherwise)
    assert text in str(caught.value)


@EVERY_KIND
@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("wiat", "on_unresolved='wiat' is unknown: did you mean 'wait'?"),
        ("hold", "on_unresolved='hold' is unknown: it is one of 'fail', 'run', 'skip', 'wait'"),
        (3, "on_unresolved=3 is unknown: it is one of 'fail', 'run', 'skip', 'wait'"),
    ],
)
def test_an_unknown_on_unresolved_is_refused_with_the_nearest_known_one(make, word, text):
    with pytest.raises(InvalidMessage) as caught:
        make(on_unresolved=word)
    assert text in str(caught.value)


@EVERY_KIND
@pytest.mark.parametrize("timeout", [True, False, "5", b"5", [5], 5j], ids=repr)
def test_a_timeout_is_a_number(make, timeout):
    with pytest.raises(InvalidMessage) as caught:
        make(timeout=timeout)
    assert str(caught.value) == f"timeout={timeout!r}: give seconds as a number, or None"


@EVERY_KIND
@pytest.mark.parametrize(
    "timeout", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, 10**400], ids=lambda each: str(each)[:5]
)
def test_a_timeout_is_finite_and_above_zero(make, timeout):
    with pytest.raises(InvalidMessage, match="it must be a finite number of seconds above zero"):
        make(timeout=timeout)


@EVERY_KIND
@pytest.mark.parametrize("timeout", [1, 0.001, 1e300])
def test_a_timeout_becomes_a_float(make, timeout):
    assert make(timeout=timeout).timeout == timeout
    assert type(make(timeout=timeout).timeout) is float


@pytest.mark.parametrize("version", [True, False, 1.0, "1", None], ids=repr)
def test_a_version_is_an_integer(version):
    with pytest.raises(InvalidMessage) as caught:
        Dependency.resource("r", version)
    assert str(caught.value) == f"a resource version must be an integer, not {version!r}"


def test_a_negative_version_is_refused():
    with pytest.raises(InvalidMessage, match="resource version -1 is negative: versions start at 0 and only grow"):
        Dependency.resource("r", -1)


def test_a_version_fits_into_64_bits():
    assert Dependency.resource("r", 2**63 - 1).min_version == 2**63 - 1
    with pytest.raises(InvalidMessage, match="resource version 9223372036854775808 is too large: at most"):
        Dependency.resource("r", 2**63)


def test_a_dependency_on_nothing_in_particular_is_refused():
    with pytest.raises(InvalidMessage, match=r"made by one of its functions: Dependency\.message\(id\)"):
        Dependency()


# Groups


@pytest.mark.parametrize(
    ("count", "members"), [(0, 2), (3, 2), (-1, 2), (True, 2), (1.0, 2), ("1", 2), (None, 2), (1, 0)]
)
def test_at_least_goes_from_one_to_the_number_of_members(count, members):
    with pytest.raises(InvalidMessage) as caught:
        Dependency.any_of(*"abcd"[:members], at_least=count)
    assert str(caught.value) == f"any_of(at_least={count!r}): it must be from 1 to its {members} members"


@pytest.mark.parametrize(
    "member",
    [
        Dependency.message("a", otherwise="skip"),
        Dependency.resource("a", timeout=5),
        Dependency.epoch("a", on_unresolved="wait"),
        Dependency.barrier("a", otherwise="follow"),
        Dependency.any_of("a", otherwise="run"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_member_with_a_policy_of_its_own_is_refused(member):
    with pytest.raises(InvalidMessage) as caught:
        Dependency.any_of("b", member)
    assert str(caught.value).startswith(
        f"{member.describe()} inside any_of carries its own otherwise, timeout or on_un"
    )
    assert "give them to any_of instead" in str(caught.value)


@pytest.mark.parametrize(
    "member", [None, 5, ["a", "b"], b"a", Message("a", None)], ids=lambda each: type(each).__name__
)
def test_a_member_is_a_dependency_or_an_id(member):
    with pytest.raises(InvalidMessage, match="a member of any_of must be a Dependency or a message id, not "):
        Dependency.any_of(member)


def nested(depth: int) -> Dependency:
    group = Dependency.any_of("a")
    for _ in range(depth - 1):
        group = Dependency.any_of(group)
    return group


def test_groups_nest_eight_deep():
    assert nested(MAX_GROUP_DEPTH).depth == 8
    with pytest.raises(InvalidMessage, match="any_of is nested 9 deep: at most 8 are allowed"):
        nested(MAX_GROUP_DEPTH + 1)


def test_a_group_has_at_most_ten_thousand_members():
    names = [f"m{i}" for i in range(MAX_GROUP_MEMBERS + 1)]
    assert len(Dependency.any_of(*names[:-1]).members) == 10_000
    with pytest.raises(InvalidMessage, match="any_of has 10001 members: at most 10000 are allowed"):
        Dependency.any_of(*names)


def test_plain_strings_in_a_group_are_messages():
    group = Dependency.any_of("a", Dependency.message("b"), at_least=2)
    assert group.members == (OnMessage(id="a"), OnMessage(id="b"))


# Good input


@pytest.mark.parametrize(
    ("otherwise", "words"),
    [
        ("follow", ("fail", "skip", "cancel", "fail")),
        ("fail", ("fail", "fail", "fail", "fail")),
        ("skip", ("skip", "skip", "skip", "skip")),
        ("run", ("run", "run", "run", "run")),
        ("hold", ("hold", "skip", "cancel", "hold")),
        ({}, ("fail", "skip", "cancel", "fail")),
        ({"dead": "run"}, ("run", "skip", "cancel", "fail")),
        ({"skipped": "run", "dead": "hold"}, ("hold", "run", "cancel", "fail")),
        ({"expired": "hold", "cancelled": "fail"}, ("fail", "skip", "fail", "hold")),
        ({"dead": "follow", "skipped": "fail", "cancelled": "skip"}, ("fail", "fail", "skip", "fail")),
    ],
)
@EVERY_KIND
def test_a_policy_is_resolved_into_one_word_for_each_end(make, otherwise, words):
    found = make(otherwise=otherwise).otherwise
    assert found == words
    assert found == Words(*words)
    assert [found.on(end) for end in ("dead", "skipped", "cancelled", "expired")] == list(words)


def test_a_barrier_passes_every_end_by_default_and_the_others_follow():
    assert {name: make().otherwise for name, make in MAKERS.items()} == {
        name: Words("run", "run", "run", "run") if name == "barrier" else Words() for name in MAKERS
    }


@EVERY_KIND
@pytest.mark.parametrize("option", [{"otherwise": "skip"}, {"timeout": 1}, {"on_unresolved": "wait"}])
def test_a_dependency_is_plain_unless_something_was_chosen(make, option):
    assert make().is_plain
    assert not make(**option).is_plain


@EVERY_KIND
def test_a_dependency_is_frozen_and_compares_by_content(make):
    one, other = make(timeout=5), make(timeout=5.0)
    assert one == other
    assert hash(one) == hash(other)
    assert one != make(timeout=6)
    with pytest.raises(FrozenInstanceError):
        one.timeout = 7


@pytest.mark.parametrize(
    ("dependency", "text"),
    [
        (Dependency.message("a"), "message 'a'"),
        (Dependency.message("a", "night"), "message 'a' of epoch 'night'"),
        (Dependency.resource("r"), "resource 'r'"),
        (Dependency.resource("r", 3), "resource 'r' (version 3 or later)"),
        (Dependency.resource("r", external=True), "external resource 'r'"),
        (Dependency.barrier("row"), "barrier of kind 'row'"),
        (Dependency.epoch("night"), "epoch 'night'"),
        (Dependency.any_of("a", "b", at_least=2), "2 of 2: message 'a', message 'b'"),
        (Dependency.any_of(Dependency.any_of("a"), Dependency.epoch("e")), "1 of 2: 1 of 1: message 'a', epoch 'e'"),
        (
            Dependency.any_of(*"abcdefg"),
            "1 of 7: message 'a', message 'b', message 'c', message 'd', message 'e' and 2 more",
        ),
    ],
)
def test_a_dependency_is_named_in_words(dependency, text):
    assert dependency.describe() == text


@given(st.integers(1, 12), st.integers(-2, 14))
def test_a_group_exists_if_its_count_can_be_reached(members, at_least):
    names = [f"m{i}" for i in range(members)]
    if 1 <= at_least <= members:
        assert Dependency.any_of(*names, at_least=at_least).at_least == at_least
    else:
        with pytest.raises(InvalidMessage):
            Dependency.any_of(*names, at_least=at_least)
