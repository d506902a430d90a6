"""What payloads may be, what comes back, and what is refused."""

from dataclasses import dataclass

import attrs
import pytest

from naviscope_ingest.codecs import MsgspecCodec
from naviscope_ingest.stores import SqliteStore
from naviscope_spi import EpochOptions, InvalidMessage, Message, PayloadNotDecodable, PayloadNotEncodable, Permanent


@attrs.define
class Order:
    number: int
    lines: list[str] = attrs.field(factory=list)


@dataclass
class OlderOrder:
    number: int
    gone: str


@attrs.define
class StrictOrder:
    number: int
    customer: str


async def put_one(store, payload, kind="order"):
    epoch = (await store.open_epoch("nightly", EpochOptions())).key
    return (await store.put(epoch, [Message("a", payload, kind)])).accepted


async def claim(store, seqs):
    async with store.join("test") as session:
        (lease,) = await store.pop_ready(session, seqs)
        return lease.message


async def test_a_declared_type_comes_back(tmp_path):
    codec = MsgspecCodec({"order": Order})
    async with SqliteStore.open(tmp_path / "a.db", codec=codec) as store:
        seqs = await put_one(store, Order(7, ["a"]))
        assert (await claim(store, seqs)).payload == Order(7, ["a"])


async def test_a_new_field_with_a_default_and_a_removed_field_read_old_rows(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db", codec=MsgspecCodec({"order": OlderOrder})) as store:
        seqs = await put_one(store, OlderOrder(7, "x"))
    async with SqliteStore.open(tmp_path / "a.db", codec=MsgspecCodec({"order": Order})) as store:
        assert (await claim(store, seqs)).payload == Order(7, [])


async def test_a_payload_that_cannot_be_decoded_is_kept_and_names_message_kind_and_field(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        seqs = await put_one(store, {"number": 7})
    async with SqliteStore.open(tmp_path / "a.db", codec=MsgspecCodec({"order": StrictOrder})) as store:
        message = await claim(store, seqs)
        assert (message.id, message.kind) == ("a", "order")
        with pytest.raises(PayloadNotDecodable, match=r"message 'a' of kind 'order': payload.*customer") as caught:
            _ = message.payload
        assert isinstance(caught.value, Permanent)
    async with SqliteStore.open(tmp_path / "a.db") as store:
        assert (await claim(store, seqs)).payload == {"number": 7}


class OtherCodec(MsgspecCodec):
    name = "other"


async def test_another_codec_does_not_decode_what_it_did_not_write(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db", codec=OtherCodec()) as store:
        seqs = await put_one(store, {"number": 7})
    async with SqliteStore.open(tmp_path / "a.db") as store:
        message = await claim(store, seqs)
        with pytest.raises(PayloadNotDecodable, match="codec 'other' wrote it"):
            _ = message.payload


async def test_bytes_are_kept_untouched(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db", codec=MsgspecCodec({"order": Order})) as store:
        seqs = await put_one(store, b"\x00\xffraw")
        assert (await claim(store, seqs)).payload == b"\x00\xffraw"


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (float("nan"), "payload"),
        ({"rows": [1.0, float("inf")]}, r"payload\.rows\[1\]"),
        (2**64, "payload"),
        ({"a": {"b": object()}}, r"payload\.a\.b"),
        ("\ud800", "payload"),
    ],
)
async def test_what_cannot_be_encoded_is_refused_before_anything_is_stored(tmp_path, payload, field):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        with pytest.raises(PayloadNotEncodable, match=f"message 'bad' of kind 'order': {field} cannot") as caught:
            await store.put(epoch, [Message("good", 1), Message("bad", payload, "order")])
        assert isinstance(caught.value, InvalidMessage)
        assert len((await store.put(epoch, [Message("good", 1)])).accepted) == 1


async def test_a_payload_of_another_type_than_declared_is_refused(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db", codec=MsgspecCodec({"order": Order})) as store:
        with pytest.raises(PayloadNotEncodable, match=r"payload\.number cannot be encoded"):
            await put_one(store, {"number": "seven"})


async def test_headers_that_cannot_be_encoded_are_refused(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        with pytest.raises(PayloadNotEncodable, match="message 'a' of kind 'message': headers"):
            await store.put(epoch, [Message("a", 1, headers={"x": "\ud800"})])


@pytest.mark.parametrize("payload", [b"x" * 101, "x" * 101])
async def test_a_payload_over_the_limit_is_refused_with_its_size(tmp_path, payload):
    async with SqliteStore.open(tmp_path / "a.db", max_payload=100) as store:
        with pytest.raises(InvalidMessage, match=r"message 'a' has 10\d bytes, and 100 are allowed"):
            await put_one(store, payload)


async def test_two_dictionaries_in_another_order_are_the_same(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        await store.put(epoch, [Message("a", {"x": 1, "y": 2}), Message("b", {"x": 1})])
        receipt = await store.put(epoch, [Message("a", {"y": 2, "x": 1}), Message("b", {"x": 2})])
        assert (receipt.duplicates, list(receipt.conflicts)) == (2, ["b"])


async def test_times_that_are_large_integers_are_kept(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = (await store.open_epoch("nightly", EpochOptions(deadline=10**30))).key
        seqs = (await store.put(epoch, [Message("a", 1, not_before=5, expires_at=10**300)])).accepted
        message = await claim(store, seqs)
        assert (message.not_before, message.expires_at) == (5, 1e300)
