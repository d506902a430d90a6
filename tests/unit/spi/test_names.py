"""Ids, kinds, keys, epoch names and resource names share one check."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_spi import MAX_NAME_BYTES, Dependency, InvalidMessage, Message, Resource, check_name

# Everything that takes a name, with what the error calls it.
NAMED: dict[str, tuple[Callable[[object], object], str]] = {
    "id": (lambda name: Message(name, None), "message id"),
    "kind": (lambda name: Message("a", None, kind=name), "kind"),
    "key": (lambda name: Message("a", None, key=name), "key"),
    "plain dependency": (lambda name: Message("a", None, depends_on=[name]), "id in depends_on"),
    "message dependency": (Dependency.message, "id of a message dependency"),
    "epoch of a message": (lambda name: Dependency.message("a", name), "epoch of a message dependency"),
    "member": (Dependency.any_of, "id of a message dependency"),
    "resource dependency": (Dependency.resource, "resource name"),
    "barrier": (Dependency.barrier, "kind of a barrier"),
    "epoch": (Dependency.epoch, "epoch name"),
    "resource": (Resource, "resource name"),
}
EVERYWHERE = pytest.mark.parametrize(("make", "what"), NAMED.values(), ids=NAMED)


class Colour(Enum):
    RED = "red"


class OldName(str, Enum):  # noqa: UP042 - such enums exist, and print differently from a StrEnum
    FETCH = "fetch"


class NewName(StrEnum):
    FETCH = "fetch"


@EVERYWHERE
def test_an_empty_name_is_refused(make, what):
    with pytest.raises(InvalidMessage, match=f"the {what} is empty: give it at least one character"):
        make("")


@EVERYWHERE
@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "\N{GRINNING FACE}" * 64, "x" * 100_000, "x" * 300 + "\ud800"])
def test_a_name_of_more_than_255_bytes_is_refused(make, what, name):
    size = len(name.encode(errors="surrogatepass"))
    with pytest.raises(InvalidMessage, match=f"the {what} '.* has {size} bytes: at most 255 are allowed") as caught:
        make(name)
    assert len(str(caught.value)) < 200


@EVERYWHERE
@pytest.mark.parametrize(
    "character", ["\x00", "\n", "\t", "\x7f", "\x9f", "\u2028", "\u2029", "\ud800"], ids=lambda each: f"{ord(each):x}"
)
def test_a_control_character_is_refused_and_named(make, what, character):
    with pytest.raises(InvalidMessage) as caught:
        make(f"a{character}b")
    assert str(caught.value).startswith(f"the {what} 'a")
    assert str(caught.value).endswith(f"has a control character or line separator: {character!r}")


@EVERYWHERE
@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "\N{GRINNING FACE}" * 63, " ", "a b", "a:b", "ü/1", "\u202e"])
def test_every_other_string_of_at_most_255_bytes_is_a_name(make, what, name):
    make(name)


@pytest.mark.parametrize(
    ("make", "what"),
    # None has a meaning for a key and for the epoch of a message; what is no string is no id elsewhere.
    [pair for name, pair in NAMED.items() if name not in ("key", "epoch of a message", "plain dependency", "member")],
)
@pytest.mark.parametrize("name", [None, 5, b"a", Colour.RED, ["a"]], ids=repr)
def test_what_is_not_a_string_is_refused_with_its_type(make, what, name):
    with pytest.raises(InvalidMessage, match=f"the {what} must be a string, not {type(name).__name__}: "):
        make(name)


@pytest.mark.parametrize("name", [OldName.FETCH, NewName.FETCH], ids=["str and Enum", "StrEnum"])
def test_a_string_of_another_type_becomes_a_plain_one(name):
    """Otherwise `str(id)` and `f"{id}"`, and with them task keys, would not be what the id is equal to."""
    message = Message(name, None, kind=name, key=name, depends_on=["a"])
    dependency = Dependency.message(name, name)
    found = [
        *(message.id, message.kind, message.key),
        *Message("a", None, depends_on=[name]).depends_on,
        *(dependency.id, dependency.epoch_name),
        Dependency.resource(name).name,
        Dependency.barrier(name).kind,
        Dependency.epoch(name).name,
        Resource(name).name,
        check_name("name", name),
    ]
    assert {(type(each), str(each)) for each in found} == {(str, "fetch")}


@given(st.text("aé\N{GRINNING FACE}\n\u2028", max_size=300) | st.text())
def test_a_name_is_returned_as_it_is_or_refused(name):
    is_usable = 0 < len(name.encode()) <= MAX_NAME_BYTES and not {category(each) for each in name} & {"Cc", "Zl", "Zp"}
    if is_usable:
        assert check_name("name", name) is name
    else:
        with pytest.raises(InvalidMessage, match="the name"):
            check_name("name", name)
