"""How ops for tables become bytes, and come back, for outcomes that are recorded before they are committed.

MessagePack, each op tagged with its name. Nothing in it could be executed but the SQL that an `Execute` was given, and
an op that comes back checks itself as a new one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from naviscope_ingest.sinks.sql_ops import Delete, Execute, Insert, InvalidOp, SqlOp, SqlValue, Upsert

__all__ = ["decode_sql_ops", "encode_sql_ops"]

_PLAIN: Final = frozenset({str, bytes, int, float, type(None)})

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, str, Any, Any]]).decode


def encode_sql_ops(ops: Sequence[SqlOp]) -> bytes:
    """Return ops as bytes.

    Raises:
        InvalidOp: one of them is no op for tables, or holds a value that no column takes.
    """
    encoded = [_fields(op) for op in ops]
    try:
        return _encode(encoded)
    except (OverflowError, ValueError):
        # An integer beyond 64 bits, or text that is no Unicode. Which op it is, is only looked for now.
        for op, fields in zip(ops, encoded, strict=True):
            try:
                _encode(fields)
            except (OverflowError, ValueError) as error:
                raise InvalidOp(f"{_shown(op)}: {error}") from error
        raise


def decode_sql_ops(data: bytes) -> Sequence[SqlOp]:
    """Return the ops that these bytes stand for.

    Raises:
        InvalidOp: they stand for none.
    """
    try:
        fields = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOp(f"these bytes are no ops: {error}") from error
    return [_op(*each) for each in fields]


def _fields(op: object) -> tuple[str, str, Any, Any]:
    # A class that adds something to an op would come back without it.
    kind = type(op)
    if kind is Insert:
        assert isinstance(op, Insert)
        return "insert", _name(op.table), _row(op, op.row), None
    if kind is Upsert:
        assert isinstance(op, Upsert)
        key = [op.key] if isinstance(op.key, str) else op.key
        return "upsert", _name(op.table), _row(op, op.row), [_name(column) for column in key]
    if kind is Delete:
        assert isinstance(op, Delete)
        return "delete", _name(op.table), _row(op, op.key), None
    if kind is Execute:
        assert isinstance(op, Execute)
        given = op.parameters
        return "execute", _name(op.sql), _row(op, given) if isinstance(given, Mapping) else _values(op, given), None
    raise InvalidOp(f"{_shown(op)} cannot be recorded: it is neither Insert, Upsert, Delete nor Execute")


def _op(name: str, text: str, values: Any, key: Any) -> SqlOp:  # noqa: ANN401 - what the bytes hold, checked by the ops
    match name:
        case "insert":
            return Insert(text, values)
        case "upsert":
            return Upsert(text, values, key)
        case "delete":
            return Delete(text, values)
        case "execute":
            return Execute(text, values)
        case _:
            raise InvalidOp(f"an op of the unknown sort {name!r:.80}")


def _name(name: str) -> str:
    return name if type(name) is str else str.__str__(name)


def _row(op: object, row: Mapping[str, SqlValue]) -> dict[str, SqlValue]:
    return {_name(column): value if type(value) in _PLAIN else _value(op, value) for column, value in row.items()}


def _values(op: object, values: Sequence[SqlValue]) -> list[SqlValue]:
    return [value if type(value) in _PLAIN else _value(op, value) for value in values]


def _value(op: object, value: object) -> SqlValue:
    """Return a value of a class of its own as what the database sees in it."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidOp(
        f"{_shown(op)}: a value of type {type(value).__name__} cannot be recorded: give str, bytes, int, float or None"
    )


def _shown(op: object) -> str:
    return f"{op!r:.80}"
