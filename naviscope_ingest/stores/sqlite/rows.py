"""How ends and the options of epochs become columns, and what a reader of rows asks of dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from naviscope_ingest._encoding import encodable_number
from naviscope_spi import AnyOf, Dependency, Ended, EpochOptions, InvalidMessage, OnMessage, Seq

__all__ = [
    "CODES",
    "COMMITTED",
    "DISCARDED",
    "decode_options",
    "encode_causes",
    "encode_options",
    "ended_of",
    "messages_named",
]

COMMITTED: Final = 0

CODES: Final = {"committed": COMMITTED, "dead": 1, "skipped": 2, "cancelled": 3, "expired": 4}
"""The number of each end in the column `end`."""

DISCARDED: Final = {1: 5, 4: 6}
"""What dead and expired become when the letter is discarded. So those that pin their epoch are told by the number."""

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


_ENDS: Final = {code: (end, False) for end, code in CODES.items()} | {5: ("dead", True), 6: ("expired", True)}


def ended_of(seq: Seq, code: int, causes: bytes | None, letter: bytes | None) -> Ended:
    """Return the end that these columns stand for."""
    end, is_discarded = _ENDS[code]
    seqs, epochs = ([], []) if causes is None else _decode(causes)
    return Ended(seq, cast("Any", end), seqs, epochs, letter, is_discarded)


def encode_causes(ended: Ended) -> bytes | None:
    """Return what an end follows from as bytes, None for nothing."""
    return _encode([list(ended.causes), list(ended.epoch_causes)]) if ended.causes or ended.epoch_causes else None


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
