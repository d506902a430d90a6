"""Several sinks behind one: each op says where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from attrs import evolve, frozen

from naviscope_spi import (
    AppliesInside,
    CommitBatch,
    CommitSink,
    EncodesOps,
    Entry,
    Permanent,
    SinkRejected,
    SystemFailure,
)

__all__ = ["SinkSet", "To"]

Op = TypeVar("Op")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


@frozen
class To(Generic[Op]):
    """An op for one of several sinks.

    Attributes:
        sink: the name the sink has in its `SinkSet`.
        op: what that sink gets.
    """

    sink: str
    op: Op


class SinkSet:
    """Routes ops to sinks by name; a message commits when every sink it has ops for has committed.

    Ops are `To(name, op)`. Sinks commit one after the other, in the order they were given. There is no transaction over
    several systems: if a later one fails, the batch comes again, and the earlier ones, which know the task keys, change
    nothing. A message that one sink refuses ends dead although another may have applied its part.

    Args:
        sinks: the sinks by name.

    Attributes:
        encode_ops: there if every sink is an `EncodesOps`, so that the set is one too: returns the ops of one message
            as bytes.
        decode_ops: likewise: returns the ops that these bytes stand for, those of one sink after the other.
    """

    encode_ops: Callable[[Sequence[To[Any]]], bytes]
    decode_ops: Callable[[bytes], Sequence[To[Any]]]

    def __init__(self, sinks: Mapping[str, CommitSink[Any]]) -> None:
        if not sinks:
            raise ValueError("SinkSet({}): give at least one sink, by name")
        for name, sink in sinks.items():
            if isinstance(sink, AppliesInside):
                raise ValueError(
                    f"SinkSet: sink {name!r} writes inside the store's transaction, which cannot be shared: give it a "
                    "place of its own, or make it the only sink"
                )
        self._sinks = dict(sinks)
        self._encoders = {name: sink for name, sink in self._sinks.items() if isinstance(sink, EncodesOps)}
        if len(self._encoders) == len(self._sinks):
            self.encode_ops = self._encode_ops
            self.decode_ops = self._decode_ops

    async def commit(self, batch: CommitBatch[To[Any]]) -> None:
        """Let every sink commit its part of the batch.

        Raises:
            SinkRejected: an op names no sink of this set, or a sink refuses its part.
            SystemFailure: a sink returned something: nobody can tell whether it applied its part.
        """
        parts = self._split(batch)
        for name, entries in parts.items():
            answer: object = await self._commit(self._sinks[name], CommitBatch(entries, batch.batch_id))
            if answer is not None:
                raise SystemFailure(f"sink {name!r} returned {answer!r:.80} from commit: it must return None")

    async def _commit(self, sink: CommitSink[Any], batch: CommitBatch[Any]) -> object:
        commit: Any = sink.commit
        return await commit(batch)

    def _split(self, batch: CommitBatch[To[Any]]) -> dict[str, list[Entry[Any]]]:
        """Return the entries of each sink that has any, in the order of the sinks."""
        parts: dict[str, list[Entry[Any]]] = {name: [] for name in self._sinks}
        strays: dict[str, BaseException] = {}
        for entry in batch.entries:
            ops: dict[str, list[Any]] = {}
            for op in entry.ops:
                if isinstance(op, To) and op.sink in parts:
                    ops.setdefault(op.sink, []).append(op.op)
                else:
                    strays[entry.task_key] = self._stray(op)
            for name, own in ops.items():
                parts[name].append(evolve(entry, ops=own))
        if strays:
            raise SinkRejected(strays)
        return {name: entries for name, entries in parts.items() if entries}

    def _stray(self, op: object) -> Permanent:
        known = ", ".join(map(repr, self._sinks))
        return Permanent(f"op {op!r:.80} goes nowhere: write To(name, op) with {known}")

    def _encode_ops(self, ops: Sequence[To[Any]]) -> bytes:
        parts: dict[str, list[Any]] = {}
        for op in ops:
            if not isinstance(op, To) or op.sink not in self._sinks:
                raise self._stray(op)
            parts.setdefault(op.sink, []).append(op.op)
        return _encode({name: self._encoders[name].encode_ops(part) for name, part in parts.items()})

    def _decode_ops(self, data: bytes) -> Sequence[To[Any]]:
        try:
            parts = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Permanent(f"these bytes are no ops of a set of sinks: {error}") from error
        gone = [name for name in parts if name not in self._sinks]
        if gone:
            raise Permanent(f"there are ops for sink {gone[0]!r:.80}, which this set does not have")
        return [To(name, op) for name, part in parts.items() for op in self._encoders[name].decode_ops(part)]
