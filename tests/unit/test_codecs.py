"""The codec of payloads: what comes back, and what is refused."""

from dataclasses import dataclass
from typing import TypedDict

import attrs
import msgspec
import pytest

from naviscope_ingest.codecs import MsgspecCodec
from naviscope_spi import PayloadNotDecodable, PayloadNotEncodable


@attrs.define
class Attrs:
    x: int
    y: str = "y"


@dataclass
class Data:
    x: int
    y: str = "y"


class Struct(msgspec.Struct):
    x: int
    y: str = "y"


class Typed(TypedDict):
    x: int
    y: str


@pytest.mark.parametrize(
    ("declared", "payload"),
    [(Attrs, Attrs(1)), (Data, Data(1)), (Struct, Struct(1)), (Typed, {"x": 1, "y": "y"}), (list[int], [1, 2])],
)
def test_a_declared_type_comes_back(declared, payload):
    codec = MsgspecCodec({"kind": declared})
    assert codec.decode("kind", codec.encode("kind", payload)) == payload
    default = MsgspecCodec(default=declared)
    assert default.decode("any", default.encode("any", payload)) == payload


@pytest.mark.parametrize("payload", [None, True, -(2**63), 2**64 - 1, 1.5, "ü", b"x", [1, [2]], {"a": {1: None}}])
def test_plain_data_comes_back(payload):
    codec = MsgspecCodec()
    assert codec.decode("kind", codec.encode("kind", payload)) == payload


@pytest.mark.parametrize("declared", [Attrs, Data, Struct])
def test_a_new_optional_field_and_a_removed_one_read_old_bytes(declared):
    old = MsgspecCodec().encode("kind", {"x": 1, "gone": [1]})
    assert MsgspecCodec({"kind": declared}).decode("kind", old) == declared(1, "y")


@pytest.mark.parametrize("number", ["nan", "-nan", "inf", "-inf"])
def test_what_is_not_finite_is_refused_by_its_path(number):
    with pytest.raises(PayloadNotEncodable) as caught:
        MsgspecCodec().encode("kind", {"rows": [{"price": float(number)}]})
    assert (caught.value.kind, caught.value.field) == ("kind", "payload.rows[0].price")
    with pytest.raises(PayloadNotEncodable, match=r"payload\.y"):
        MsgspecCodec().encode("kind", Data(1, float(number)))


def test_bytes_that_look_like_a_number_that_is_not_finite_are_kept():
    payload = {"raw": b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"}
    assert MsgspecCodec().decode("kind", MsgspecCodec().encode("kind", payload)) == payload


@pytest.mark.parametrize("payload", [2**64, -(2**63) - 1, object(), {"a": object()}, {"a": 1j}])
def test_what_has_no_form_is_refused(payload):
    with pytest.raises(PayloadNotEncodable):
        MsgspecCodec().encode("kind", payload)


def test_what_contains_itself_is_refused():
    payload = []
    payload.append(payload)
    with pytest.raises(PayloadNotEncodable, match="contains itself"):
        MsgspecCodec().encode("kind", payload)


@pytest.mark.parametrize(
    ("data", "field"), [(b"\x81\xa1x\xa1s", "payload.x"), (b"\x80", "payload"), (b"\x81", "payload"), (b"", "payload")]
)
def test_what_cannot_be_decoded_names_kind_and_field(data, field):
    with pytest.raises(PayloadNotDecodable) as caught:
        MsgspecCodec({"order": Attrs}).decode("order", data)
    assert (caught.value.kind, caught.value.field) == ("order", field)
