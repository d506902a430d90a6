"""Outcomes become bytes and come back, whole; what cannot be is named by message and field."""

from __future__ import annotations

import dataclasses
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_ingest import Dependency, Executed, MemorySink, MemoryStore, Message, MsgspecCodec, Resource
from naviscope_ingest._encoding import Scribe
from naviscope_ingest._kernel import prepared
from naviscope_ingest._kernel.outcomes import Batch
from naviscope_ingest._kernel.prepared import Recorder, recorder_for, scribe_for
from naviscope_ingest.errors import OutcomeNotDecodable, OutcomeNotEncodable, SinkMisbehaved
from naviscope_ingest.sinks import Insert, SqliteSink
from naviscope_spi import Derived, Entry, EpochKey, Lease, Seq, SystemFailure

PARENT = Message("parent", None, kind="load")


@dataclasses.dataclass
class Order:
    number: int
    lines: list[str]


class Plain:
    """A sink of plain ops."""

    def encode_ops(self, ops):
        return msgspec.msgpack.encode(ops)

    def decode_ops(self, data):
        return msgspec.msgpack.decode(data)


class Other(MsgspecCodec):
    name = "other"


def make(sink=None, codec=None):
    return Recorder(sink or Plain(), Scribe(codec or MsgspecCodec({"order": Order}), sys.maxsize))


def fields(message):
    """A message does not compare by content."""
    return {name: getattr(message, name) for name in Message.__slots__ if not name.startswith("__")}


def round_trip(outcome, recorder=None):
    recorder = recorder or make()
    data = recorder.encode(PARENT, outcome)
    back = recorder.decode(PARENT, data)
    assert recorder.encode(PARENT, back) == data
    return back


DEPENDENCIES = [
    "plain",
    Dependency.message("a", epoch="other", otherwise={"skipped": "run"}),
    Dependency.message("z", otherwise="hold", timeout=3.5),
    Dependency.resource("r", 7, external=True),
    Dependency.barrier("row", otherwise="fail"),
    Dependency.epoch("night"),
    Dependency.any_of("x", Dependency.any_of(Dependency.resource("s"), "y"), at_least=2, on_unresolved="wait"),
]


def test_everything_comes_back():
    derived = [
        Message("a", Order(1, ["x"]), kind="order"),
        Message("b", {"plain": [1, None, 2.5, b"raw"]}, "line", DEPENDENCIES, "key", -3, 1.5, 2**70, {"trace": "é"}),
        Message("c", b"\x00untouched"),
        Message("d", None),
    ]
    ready = [Resource("schema", 7, value=b"v"), Resource("done", add=3), Resource("plain")]
    back = round_trip(Executed(["op", 1, b"\xff"], derived, ready, b"value"))
    assert list(back.ops) == ["op", 1, b"\xff"]
    assert [fields(each) for each in back.derived] == [fields(each) for each in derived]
    assert (list(back.ready), back.value) == (ready, b"value")


def test_little_comes_back_as_little():
    back = round_trip(Executed(["op"]))
    assert (list(back.ops), list(back.derived), list(back.ready), back.value) == (["op"], [], [], None)


names = st.text("ab:é", min_size=1, max_size=5)
payloads = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
payloads = payloads.filter(lambda each: "inf" not in repr(each))
derived_messages = st.builds(
    Message,
    names,
    payloads,
    names,
    st.lists(names.map(lambda name: name + "!"), max_size=3),
    st.none() | names,
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.floats(-1e300, 1e300),
    st.none() | st.integers(-(2**80), 2**80).map(float),
    st.dictionaries(st.text(), st.text(), max_size=2),
)
resources = st.builds(Resource, names, st.integers(0, 2**31), value=st.none() | st.binary(max_size=20))


@given(st.lists(derived_messages, max_size=3), st.lists(resources, max_size=3), st.none() | st.binary(max_size=20))
def test_any_outcome_comes_back(derived, ready, value):
    back = round_trip(Executed([1], derived, ready, value))
    assert [fields(each) for each in back.derived] == [fields(each) for each in derived]
    assert (list(back.ready), back.value) == (ready, value)


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        (Executed([object()]), "ops"),
        (Executed([1], [Message("a", 1), Message("b", {"rows": [1, object()]})]), "derived[1].payload.rows[1]"),
        (Executed([1], [Message("a", float("nan"))]), "derived[0].payload"),
        (Executed([1], [Message("a", 1, headers={"x": "\ud800"})]), "derived[0].headers"),
        (Executed([1], [Message("a", {"number": "one"}, kind="order")]), "derived[0].payload.number"),
    ],
)
def test_what_cannot_be_recorded_is_named(outcome, field):
    with pytest.raises(OutcomeNotEncodable) as caught:
        make().encode(PARENT, outcome)
    error = caught.value
    assert (error.message_id, error.kind, error.field) == ("parent", "load", field)
    assert f"message 'parent' of kind 'load': {field} of its outcome cannot be recorded" in str(error)


def test_an_outcome_has_a_limit(monkeypatch):
    monkeypatch.setattr(prepared, "MAX_RECORD", 100)
    assert make().encode(PARENT, Executed(["x"]))
    with pytest.raises(OutcomeNotEncodable, match=r"it has \d+ bytes, and 100 are allowed"):
        make().encode(PARENT, Executed(["x" * 100]))


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x02\x90", b"\x01\x95garbage", b"\x01\xc0", b"\x01\xc1", b"\xff" * 20]
)
def test_bytes_that_are_no_outcome_are_refused(data):
    with pytest.raises(OutcomeNotDecodable, match="'parent' of kind 'load': the whole of its recorded outcome"):
        make().decode(PARENT, data)


@given(st.data())
def test_a_damaged_record_is_refused_or_read(data):
    """Whatever the bytes, there is no other error than the one that ends the message."""
    outcome = Executed([1], [Message("b", {"a": [1]}, "line", DEPENDENCIES, headers={"h": "v"})], [Resource("r", 7)])
    record = bytearray(make().encode(PARENT, outcome))
    record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(make().decode(PARENT, bytes(record)), Executed)
    except OutcomeNotDecodable as error:
        assert error.message_id == "parent"


def test_a_payload_whose_type_has_changed_is_named():
    data = make(codec=MsgspecCodec()).encode(PARENT, Executed([1], [Message("a", {"number": "x"}, kind="order")]))
    with pytest.raises(OutcomeNotDecodable) as caught:
        make().decode(PARENT, data)
    assert caught.value.field == "derived[0].payload.number"
    assert "replay the message or discard it" in str(caught.value)


def test_another_codec_does_not_try():
    data = make().encode(PARENT, Executed([1], [Message("a", b"raw"), Message("b", 1)]))
    with pytest.raises(OutcomeNotDecodable, match=r"derived\[1\] .*'msgspec' wrote it, and the runtime has 'other'"):
        make(codec=Other()).decode(PARENT, data)
    raw = make().encode(PARENT, Executed([1], [Message("a", b"raw")]))
    assert make(codec=Other()).decode(PARENT, raw).derived[0].payload == b"raw"


class Odd(Plain):
    """A sink that answers as told."""

    def __init__(self, answer):
        self.answer = answer

    def encode_ops(self, ops):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    decode_ops = encode_ops


@pytest.mark.parametrize("answer", [None, "text", 7])
def test_a_sink_that_makes_no_bytes_or_ops_stops_the_runtime(answer):
    data = make().encode(PARENT, Executed([1]))
    with pytest.raises(SinkMisbehaved, match=r"Odd\.encode_ops returned .*: it must return bytes"):
        make(Odd(answer)).encode(PARENT, Executed([1]))
    with pytest.raises(SinkMisbehaved, match=r"Odd\.decode_ops returned .*: it must return ops"):
        make(Odd(answer)).decode(PARENT, data)


def test_a_system_failure_of_the_sink_is_no_message_s_fault():
    data = make().encode(PARENT, Executed([1]))
    with pytest.raises(SystemFailure):
        make(Odd(SystemFailure("no"))).encode(PARENT, Executed([1]))
    with pytest.raises(SystemFailure):
        make(Odd(SystemFailure("no"))).decode(PARENT, data)
    with pytest.raises(OutcomeNotDecodable, match="ops of its recorded outcome cannot be decoded: KeyError: 'x'"):
        make(Odd(KeyError("x"))).decode(PARENT, data)


def test_only_a_sink_elsewhere_that_encodes_on_a_durable_store_is_recorded(tmp_path):
    assert scribe_for(MemoryStore()) is None
    scribe = Scribe(MsgspecCodec(), 1_000)
    elsewhere = SqliteSink(tmp_path / "results.db")
    assert isinstance(recorder_for(elsewhere, scribe), Recorder)
    assert recorder_for(elsewhere, None) is None
    assert recorder_for(SqliteSink(), scribe) is None
    assert recorder_for(MemorySink(), scribe) is None


def batch_of(*outcomes, recorded=()):
    """A batch as it is planned: messages a, b, … with their outcomes; None is one without ops."""
    batch, key = Batch(), EpochKey(1, "night")
    for index, outcome in enumerate(outcomes):
        name = "abcdef"[index]
        lease = Lease(Seq(index), key, Message(name, None), 1, prepared=b"known" if name in recorded else None)
        batch.leases.append(lease)
        if outcome is None:
            continue
        batch.entries.append(Entry(f"s:1:{name}", key, name, "message", outcome.ops))
        if outcome.derived or outcome.ready:
            batch.more().derived[lease.seq] = Derived(lease.seq, outcome.derived, 0, outcome.ready)
        if outcome.value is not None:
            batch.more().values[lease.seq] = outcome.value
    return batch


def test_a_batch_is_recorded_with_what_its_messages_bring():
    outcome = Executed([1], [Message("child", 5)], [Resource("r")], b"v")
    batch, recorder = batch_of(outcome, None, Executed([2]), Executed([3]), recorded="d"), make()
    records = recorder.record(batch)
    assert records == {0: recorder.encode(PARENT, outcome), 2: recorder.encode(PARENT, Executed([2]))}
    assert len(batch.leases) == 4


def test_what_cannot_be_recorded_leaves_the_batch_before_the_sink_sees_it():
    bad = Executed([1], [Message("child", object())], value=b"v")
    batch = batch_of(Executed([1]), bad, Executed([object()]), Executed([2]))
    assert list(make().record(batch)) == [0, 3]
    assert [entry.message_id for entry in batch.entries] == ["a", "d"]
    assert ([lease.seq for lease in batch.leases], batch.rest.derived, batch.rest.values) == ([0, 3], {}, {})
    assert [(failed.lease.seq, failed.is_final) for failed in batch.rest.failed] == [(1, True), (2, True)]
    assert str(batch.rest.failed[0].error).startswith("message 'b' of kind 'message': derived[0].payload")


def test_ops_of_the_sqlite_sink_come_back(tmp_path):
    ops = [Insert("t", {"a": 1})]
    assert round_trip(Executed(ops), make(SqliteSink(tmp_path / "results.db"))).ops == ops
