"""Ops of the sinks become bytes and come back."""

import enum
import math
from datetime import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_ingest.sinks import Delete, Execute, Insert, InvalidOp, MemorySink, SinkSet, SqliteSink, To, Upsert
from naviscope_spi import EncodesOps, Permanent

columns = st.text("abc", min_size=1, max_size=2)
values = st.none() | st.text() | st.binary() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
rows = st.dictionaries(columns, values, min_size=1, max_size=4)
ops = st.one_of(
    st.builds(Insert, columns, rows),
    rows.map(lambda row: Upsert("t", row, list(row)[:2])),
    st.builds(Delete, columns, rows),
    st.builds(Execute, st.just("select 1"), st.lists(values, max_size=3) | st.dictionaries(columns, values)),
)


@pytest.fixture
def sink(tmp_path):
    return SqliteSink(tmp_path / "results.db")


def statements(found):
    return [op.statement() for op in found]


@given(st.lists(ops, max_size=5))
def test_any_ops_come_back(given_ops):
    sink = SqliteSink("never-opened.db")
    back = sink.decode_ops(sink.encode_ops(given_ops))
    assert [type(op) for op in back] == [type(op) for op in given_ops]
    assert statements(back) == statements(given_ops)
    # The order of columns is part of an op.
    assert [list(op.row) for op in back if isinstance(op, Insert)] == [
        list(op.row) for op in given_ops if isinstance(op, Insert)
    ]


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Metres(float):
    pass


def test_values_come_back_as_the_database_sees_them(sink):
    row = {"a": Colour.RED, "b": Size.LARGE, "c": True, "d": Metres(1.5), "e": bytearray(b"x"), "f": memoryview(b"y")}
    ops = [Insert("t", row), Upsert("t", {"a": 1}, "a"), Execute("select ?", (math.inf,)), Insert(Colour.RED, row)]
    one, two, three, four = sink.decode_ops(sink.encode_ops(ops))
    assert one == Insert("t", {"a": "red", "b": 3, "c": 1, "d": 1.5, "e": b"x", "f": b"y"})
    assert {type(value) for value in one.row.values()} == {str, int, float, bytes}
    assert (two.statement(), three.parameters, four.table) == (ops[1].statement(), [math.inf], "red")


class Special(Insert):
    pass


@pytest.mark.parametrize(
    "op",
    [
        "not an op",
        None,
        Special("t", {"a": 1}),
        Insert("t", {"a": datetime(2026, 1, 1)}),
        Insert("t", {"a": [1]}),
        Insert("t", {"a": 2**64}),
        Insert("t", {"a": "\ud800"}),
        Execute("select ?", [object()]),
        Execute("select :a", {"a": 1j}),
    ],
)
def test_what_no_column_takes_is_refused(sink, op):
    with pytest.raises(InvalidOp) as caught:
        sink.encode_ops([Insert("t", {"a": 1}), op])
    assert f"{op!r:.80}" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80",
        *(
            msgspec.msgpack.encode([each])
            for each in (
                ["merge", "t", {"a": 1}, None],
                ["insert", "t", {}, None],
                ["insert", "naviscope_ledger", {"a": 1}, None],
                ["insert", "t", [1], None],
                ["upsert", "t", {"a": 1}, ["b"]],
                ["execute", "insert or rollback into t values (1)", [], None],
                ["insert", "t"],
                "text",
            )
        ),
    ],
)
def test_bytes_that_are_no_ops_are_refused(sink, data):
    with pytest.raises(InvalidOp):
        sink.decode_ops(data)


def test_a_set_encodes_if_all_its_sinks_do(sink):
    both = SinkSet({"rows": sink, "audit": SqliteSink("audit.db")})
    assert isinstance(both, EncodesOps)
    assert not isinstance(SinkSet({"rows": sink, "audit": MemorySink()}), EncodesOps)
    rows, audit = Insert("t", {"a": 1}), Insert("u", {"b": 2})
    back = both.decode_ops(both.encode_ops([To("rows", rows), To("audit", audit), To("rows", audit)]))
    assert back == [To("rows", rows), To("rows", audit), To("audit", audit)]


def test_a_set_refuses_what_belongs_to_no_sink(sink):
    both = SinkSet({"rows": sink})
    for op in (To("nowhere", 1), "loose"):
        with pytest.raises(Permanent, match=r"goes nowhere: write To\(name, op\) with 'rows'"):
            both.encode_ops([op])
    data = SinkSet({"gone": sink}).encode_ops([To("gone", Insert("t", {"a": 1}))])
    with pytest.raises(Permanent, match="ops for sink 'gone', which this set does not have"):
        both.decode_ops(data)
    with pytest.raises(Permanent, match="no ops of a set"):
        both.decode_ops(b"\xc1")


def test_a_sink_inside_the_store_is_no_part_of_a_set():
    with pytest.raises(ValueError, match="sink 'rows' writes inside the store's transaction"):
        SinkSet({"rows": SqliteSink(), "other": MemorySink()})
