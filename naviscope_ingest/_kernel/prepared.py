"""Outcomes that are recorded before a sink elsewhere is called.

Between the sink's commit and the settlement the process may die. The sink knows its task keys, so nothing is applied
twice; but an executor that runs again may answer something else, and then what the sink applied and what the store
learns of (derived messages, resources, a value) belong to different answers. So a durable store is told the outcome
first, and after a crash that outcome is committed, without a second run.

A record is a byte for its format and MessagePack: the sink's own bytes for the ops, messages as stores write them, and
plain fields for the rest. What a message without ops brings is not recorded: the settlement is its only effect.
Executors could have been asked to be deterministic instead; those who call other systems cannot be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from naviscope_ingest._encoding import RAW, Content, Scribe
from naviscope_ingest._kernel.outcomes import Batch, describe_error
from naviscope_ingest.codecs import MsgspecCodec
from naviscope_ingest.errors import OutcomeNotDecodable, OutcomeNotEncodable, SinkMisbehaved
from naviscope_spi import (
    AppliesInside,
    CommitSink,
    DeferredStore,
    EncodesOps,
    EncodesPayloads,
    Executed,
    Lease,
    Message,
    PayloadNotDecodable,
    PayloadNotEncodable,
    Resource,
    Seq,
    SystemFailure,
)

__all__ = ["MAX_RECORD", "Recorder", "recorder_for", "refuser_for", "scribe_for"]

MAX_RECORD = 256 * 1024 * 1024
"""The largest outcome that is recorded, in bytes."""

_FORMAT = b"\x01"

T = TypeVar("T")


class _Record(msgspec.Struct, array_like=True, gc=False):
    """An outcome as it is written."""

    codec: str
    ops: bytes
    derived: list[tuple[str, bytes, bytes | None, int, bytes]]
    ready: list[tuple[str, int, int, bytes | None]]
    value: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


def scribe_for(store: DeferredStore[Any]) -> Scribe | None:
    """Return what writes messages as a durable store does; None for one that survives nothing."""
    if store.info.durability == "none":
        return None
    codec = store.codec if isinstance(store, EncodesPayloads) else MsgspecCodec()
    return Scribe(codec, sys.maxsize if store.info.max_payload is None else store.info.max_payload)


def refuser_for(
    scribe: Scribe | None, check: Callable[[Sequence[Message[Any]]], None] | None
) -> Callable[[Message[Any]], object] | None:
    """Return what raises for a derived message that store or executor would refuse; None if both take everything."""
    if check is None:
        return None if scribe is None else scribe.write

    def refuse(message: Message[Any]) -> None:
        check([message])
        if scribe is not None:
            scribe.write(message)

    return refuse


def recorder_for(
    sink: CommitSink[Any], scribe: Scribe | None, needs: Callable[[str], bool] | None = None
) -> Recorder | None:
    """Return what records outcomes for a sink, or None if there is no need or no way.

    Args:
        sink: where results become visible. One inside the store needs no record; one that cannot encode its ops has
            none.
        scribe: writes derived messages. There is none for a store that survives nothing, which needs no record.
        needs: tells whether outcomes of a kind are recorded; all are, unless it is given.
    """
    if scribe is None or isinstance(sink, AppliesInside) or not isinstance(sink, EncodesOps):
        return None
    return Recorder(sink, scribe, needs)


class Recorder:
    """Writes outcomes down and reads them back.

    Args:
        sink: encodes its ops.
        scribe: encodes derived messages, as the store does.
        needs: tells whether outcomes of a kind are recorded; all are, unless it is given.
    """

    def __init__(self, sink: EncodesOps[Any], scribe: Scribe, needs: Callable[[str], bool] | None = None) -> None:
        self._sink = sink
        self._scribe = scribe
        self._needs = needs

    def record(self, batch: Batch) -> dict[Seq, bytes]:
        """Return the outcomes of a batch that the sink will see and the store does not know yet.

        Messages whose outcomes cannot be written are taken out of the batch, and end dead.
        """
        records: dict[Seq, bytes] = {}
        ops = {(entry.epoch.number, entry.message_id): entry.ops for entry in batch.entries}
        rest = batch.rest
        refused: list[tuple[Lease[Any], OutcomeNotEncodable]] = []
        for lease in batch.leases:
            own = ops.get((lease.epoch.number, lease.message.id))
            if own is None or lease.prepared is not None:
                continue
            if self._needs is not None and not self._needs(lease.message.kind):
                continue
            brings = None if rest is None else rest.derived.get(lease.seq)
            value = None if rest is None else rest.values.get(lease.seq)
            messages, ready = ((), ()) if brings is None else (brings.messages, brings.ready)
            try:
                records[lease.seq] = self.encode(lease.message, Executed(own, messages, ready, value))
            except OutcomeNotEncodable as error:
                refused.append((lease, error))
        for lease, reason in refused:
            batch.refuse(lease, reason)
        return records

    def encode(self, message: Message[Any], outcome: Executed[Any, Any]) -> bytes:
        """Return an outcome as bytes.

        Raises:
            OutcomeNotEncodable: a part of it cannot be encoded, or it is too large.
            SinkMisbehaved: the sink made something else than bytes of its ops.
            SystemFailure: the sink says that nothing can succeed.
        """

        def fail(field: str, error: Exception) -> Exception:
            if isinstance(error, PayloadNotEncodable):
                return OutcomeNotEncodable(message.id, message.kind, f"{field}.{error.field}", error.reason)
            return OutcomeNotEncodable(message.id, message.kind, field, describe_error(error))

        ops: object = _part("ops", fail, self._sink.encode_ops, outcome.ops)
        if not isinstance(ops, bytes):
            raise SinkMisbehaved(f"{type(self._sink).__name__}.encode_ops returned {ops!r:.80}: it must return bytes")
        derived = [
            _part(f"derived[{index}]", fail, self._scribe.write, each) for index, each in enumerate(outcome.derived)
        ]
        ready = [(each.name, each.version, each.add, each.value) for each in outcome.ready]
        record = _Record(self._scribe.codec_name, ops, derived, ready, outcome.value)
        data = _part("the whole", fail, _encode, record)
        if len(data) >= MAX_RECORD:
            raise OutcomeNotEncodable(
                message.id,
                message.kind,
                "the whole",
                f"it has {len(data)} bytes, and {MAX_RECORD} are allowed: let several messages derive what one does, "
                "or use a sink that writes inside the store",
            )
        return _FORMAT + data

    def decode(self, message: Message[Any], data: bytes) -> Executed[Any, Any]:
        """Return the outcome that was recorded for a message.

        Raises:
            OutcomeNotDecodable: these bytes are none any more.
            SinkMisbehaved: the sink made something else than ops of its bytes.
            SystemFailure: the sink says that nothing can succeed.
        """

        def fail(field: str, error: Exception) -> Exception:
            if isinstance(error, PayloadNotDecodable):
                return OutcomeNotDecodable(message.id, message.kind, f"{field}.{error.field}", error.reason)
            return OutcomeNotDecodable(message.id, message.kind, field, describe_error(error))

        if data[:1] != _FORMAT:
            raise OutcomeNotDecodable(message.id, message.kind, "the whole", "it is in a format of another version")
        record = _part("the whole", fail, _decode, data[1:])
        ops: object = _part("ops", fail, self._sink.decode_ops, record.ops)
        if not isinstance(ops, Sequence) or isinstance(ops, str | bytes):
            raise SinkMisbehaved(f"{type(self._sink).__name__}.decode_ops returned {ops!r:.80}: it must return ops")

        def read(content: Content) -> Message[Any]:
            if content[3] != RAW and record.codec != self._scribe.codec_name:
                raise ValueError(f"codec {record.codec!r} wrote it, and the runtime has {self._scribe.codec_name!r}")
            found = self._scribe.read(*content)
            # A payload that cannot be decoded says so when it is read.
            _ = found.payload
            return found

        def provide(name: str, version: int, add: int, value: bytes | None) -> Resource:
            return Resource(name, version, add=add, value=value)

        derived = [_part(f"derived[{index}]", fail, read, each) for index, each in enumerate(record.derived)]
        ready = [_part(f"ready[{index}]", fail, provide, *each) for index, each in enumerate(record.ready)]
        return _part("value", fail, Executed, ops, derived, ready, record.value)


def _part(field: str, fail: Callable[[str, Exception], Exception], make: Callable[..., T], *given: object) -> T:
    """Encode or decode a part of an outcome; a failure names the part. Codec and sink are others' code."""
    try:
        return make(*given)
    except SystemFailure:
        raise
    except Exception as error:
        raise fail(field, error) from error
