"""Damaged store files: documented errors, or a store whose rows are right; and what is refused was not touched."""

import random
from collections import Counter

import pytest

from naviscope_ingest import PayloadNotDecodable, PayloadNotEncodable, Permanent, SqliteStore, StoreFailed, StoreRefused
from naviscope_ingest.codecs import MsgspecCodec
from naviscope_ingest.sinks import Insert, SinkSet, SqliteSink, To
from naviscope_spi import CaughtUp, EpochOptions, Message
from tests.malformed import junk
from tests.unit.stores.sqlite.test_integrity import make_work

ROUNDS = 2_100


async def read_all(path):
    """Open a store, recover everything, claim what is there, verify it, and put something; return the findings."""
    async with SqliteStore.open(path, runner="inline", max_recent=0) as store:
        facts = store.facts(None)
        async for batch in facts:
            if isinstance(batch[-1].body, CaughtUp):
                break
        await facts.aclose()
        findings = await store.verify()
        async with store.join("test") as session:
            for seq in range(1, 40):
                for lease in await store.pop_ready(session, [seq]):
                    try:
                        assert lease.message.payload is not NotImplemented
                    except PayloadNotDecodable:
                        continue
        epoch = await store.open_epoch("more", EpochOptions())
        if epoch.sealed_at is None:
            await store.put(epoch.key, [Message("more", 1)])
    return findings


@pytest.fixture
async def good(tmp_path):
    path = tmp_path / "good.db"
    async with SqliteStore.open(path) as store:
        joining, _ = await make_work(store)
        await joining.__aexit__(None, None, None)
    return path.read_bytes()


async def test_a_damaged_file_is_refused_or_found_out_or_right(tmp_path, good):
    rng, ends = random.Random(1), Counter()
    path = tmp_path / "damaged.db"
    for number in range(ROUNDS):
        data = junk.damaged_bytes(rng, good)
        for each in tmp_path.glob("damaged.db*"):
            each.unlink()
        path.write_bytes(data)
        try:
            findings = await read_all(path)
        except StoreRefused:
            ends["refused"] += 1
            assert path.read_bytes() == data, f"round {number}: a file that was refused has changed"
        except StoreFailed:
            ends["failed"] += 1
        else:
            ends["found out" if findings else "right"] += 1
    assert ends["refused"] > 20, ends
    assert ends["failed"] > 20, ends
    assert ends["found out"] > 20, ends


def test_bytes_of_anything_are_no_payload():
    rng, codec = random.Random(2), MsgspecCodec({"a": int, "b": dict[str, list[int]]})
    refused = 0
    for _ in range(3_000):
        data = rng.randbytes(rng.choice((0, 1, 5, 50)))
        try:
            codec.decode(rng.choice("ab"), data)
        except PayloadNotDecodable:
            refused += 1
    assert refused >= 2_000


def test_values_of_anything_are_no_payload():

    rng, codec = random.Random(3), MsgspecCodec({"a": int, "b": dict[str, list[int]]})
    refused = 0
    for _ in range(3_000):
        try:
            codec.encode(rng.choice("ab"), junk.value(rng))
        except (PayloadNotEncodable, junk.HostileError):
            refused += 1
    assert refused >= 2_000


async def test_bytes_of_anything_are_no_ops(tmp_path):
    rng, refused = random.Random(4), 0
    sink = SqliteSink(tmp_path / "sink.db", "create table t (x)")
    good = sink.encode_ops([Insert("t", {"x": 1}), Insert("t", {"x": "text"})])
    several = SinkSet({"a": sink})
    whole = several.encode_ops([To("a", Insert("t", {"x": 1}))])
    for _ in range(3_500):
        ours, data = rng.choice([(sink, good), (several, whole)])
        try:
            ours.decode_ops(junk.damaged_bytes(rng, data))
        except Permanent:
            refused += 1
    assert refused >= 2_000
    await sink.aclose()
