"""How the options of epochs become columns, and what a reader of rows asks of dependencies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naviscope_ingest._encoding import encodable_number
from naviscope_spi import AnyOf, Dependency, EpochOptions, InvalidMessage, OnMessage

__all__ = ["decode_options", "encode_options", "messages_named"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def messages_named(depends_on: Sequence[str | Dependency]) -> list[tuple[str, str]]:
    """Return (epoch name, id) of every message of another epoch that is named, also in groups."""
    named: list[tuple[str, str]] = []
    for each in depends_on:
        if isinstance(each, OnMessage):
            if each.epoch_name is not None:
                named.append((each.epoch_name, each.id))
        elif isinstance(each, AnyOf):
            named += messages_named(each.members)
    return named


def encode_options(options: EpochOptions) -> bytes:
    """Return the options of an epoch as bytes.

    Raises:
        InvalidMessage: the weight has more than 64 bits.
    """
    if options.weight >= 2**63:
        raise InvalidMessage(f"weight={options.weight!r:.80}: this store keeps at most 63 bits")
    retain, deadline = encodable_number(options.retain), encodable_number(options.deadline)
    return _encode([options.if_exists, deadline, options.on_unresolved, retain, options.weight])


def decode_options(data: bytes) -> EpochOptions:
    """Return the options that these bytes stand for."""
    return EpochOptions(*_decode(data))
