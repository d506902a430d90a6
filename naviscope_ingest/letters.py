"""The dead letter: what is kept of a message that ended dead or expired, beside the message itself.

The store keeps the message as it was submitted, and with its end some bytes that it does not look into. This is what
those bytes say: why it ended, what was tried and when, and where it came from. They begin with a byte that no text has
and the number of the format; what follows is JSON. Ends that are no failures (skipped, cancelled) keep their reason as
plain text, as every end did before this format; `DeadLetter.decode` reads both.

Everything has a limit, so that a million messages that fail alike do not fill the disk with what they have in common.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec
from attrs import field, frozen

from naviscope_spi import ErrorKind

__all__ = [
    "MAX_ATTEMPTS",
    "MAX_CAUSES",
    "MAX_STACK",
    "MAX_TEXT",
    "ORIGIN_HEADERS",
    "AttemptRecord",
    "DeadLetter",
    "fingerprint_of",
    "origin_of",
    "printable",
    "reason_of",
]

MAX_ATTEMPTS: Final = 10
"""How many attempts a letter lists: the last ones."""

MAX_STACK: Final = 4_096
"""How much of a stack is kept of each attempt, in characters: its end, which is where it happened."""

MAX_TEXT: Final = 2_048
"""How much of an error's text is kept, in characters."""

MAX_CAUSES: Final = 20
"""How many causes a letter names."""

ORIGIN_HEADERS: Final[tuple[str, ...]] = (
    "traceparent",
    "tracestate",
    "b3",
    "x-b3-",
    "x-request-id",
    "x-correlation-id",
    "source",
)
"""How headers begin that say where a message came from; upper and lower case are the same. `source` covers
coordinates such as `source.topic`, `source.partition` and `source.offset`."""

_MAX_ORIGIN: Final = 20
_MAX_HEADER: Final = 256
_FORMAT: Final = b"\xff1"


@frozen(kw_only=True)
class AttemptRecord:
    """One attempt that failed.

    Attributes:
        at: when it failed, by the wall clock.
        error: the error in one line.
        kind: what sort of error.
        stack: where it was raised, bounded.
        attempt: which attempt of the run it was, from 1. One that spends none has the number of the next.
        worker: who made it: the name of the runtime and its session.
    """

    at: float
    error: str
    kind: ErrorKind
    stack: str = ""
    attempt: int = 1
    worker: str = ""


@frozen(kw_only=True)
class DeadLetter:
    """Why a message ended, and what was tried before.

    Attributes:
        error: the last error, or the decision that ended it, in one line.
        kind: what sort of error; None if that is not known, as in letters of an older format.
        fingerprint: the same for failures that are alike: a short hash over the kind of error, its type, its text
            without what differs from message to message, and the function that raised it.
        attempts: the last attempts of the last run, oldest first.
        tried: how many attempts failed in that run, those included that are no longer listed.
        worker: who ended it: the name of the runtime and its session.
        causes: epoch and id of the messages that its end follows from.
        origin: the headers that say where it came from: see `ORIGIN_HEADERS`.
        ended_at: when it ended, by the wall clock.
    """

    error: str = ""
    kind: ErrorKind | None = None
    fingerprint: str = ""
    attempts: tuple[AttemptRecord, ...] = ()
    tried: int = 0
    worker: str = ""
    causes: tuple[tuple[str, str], ...] = ()
    origin: Mapping[str, str] = field(factory=dict)
    ended_at: float | None = None

    def encode(self) -> bytes:
        """Return it as a store keeps it."""
        return _FORMAT + _encode(self)

    @classmethod
    def decode(cls, kept: bytes | None) -> DeadLetter:
        """Return what a store has kept with an end. Nothing at all, and plain text, are letters too.

        Raises:
            ValueError: it was written by a later version, or is damaged.
        """
        if not kept:
            return cls()
        if kept[:1] != _FORMAT[:1]:
            text = kept.decode(errors="replace")
            return cls(error=text, fingerprint=fingerprint_of(None, *_type_and_text(text)))
        if kept[:2] != _FORMAT:
            raise ValueError(
                f"this dead letter has format {kept[1:2].decode(errors='replace')!r}, and this version reads 1: "
                "use the version that wrote it, or a later one"
            )
        try:
            return _decode(kept[2:])
        except msgspec.MsgspecError as error:
            raise ValueError(f"this dead letter is damaged: {error}") from error


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DeadLetter).decode

# What differs between errors that are alike: what stands in quotes, and whatever has a digit in it.
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBERED: Final = re.compile(r"[\w.:+-]*\d[\w.:+-]*")


def fingerprint_of(kind: ErrorKind | None, error_type: str, text: str, where: str = "") -> str:
    """Return a short hash that failures have in common when they are alike.

    Args:
        kind: what sort of error.
        error_type: the name of its class.
        text: what it says. Numbers and what stands in quotes do not count.
        where: the function that raised it.
    """
    common = _NUMBERED.sub("#", _QUOTED.sub("''", text[:MAX_TEXT]))
    parts = "\0".join((kind or "", error_type, common, where))
    return blake2b(parts.encode(errors="replace"), digest_size=8).hexdigest()


def _type_and_text(line: str) -> tuple[str, str]:
    """Part an error that was put into one line."""
    name, colon, text = line.partition(": ")
    return (name, text) if colon and name.isidentifier() else ("", line)


def origin_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that say where a message came from, bounded in number and length."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if name.lower().startswith(ORIGIN_HEADERS):
            found[printable(name[:_MAX_HEADER])] = printable(value[:_MAX_HEADER])
            if len(found) == _MAX_ORIGIN:
                break
    return found


def printable(text: str) -> str:
    """Return text that can be written: halves of characters, which Python's strings may hold, are spelt out."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def reason_of(kept: bytes | None) -> str:
    """Return why a message ended, in one line, from what a store has kept with its end; never raises."""
    try:
        return DeadLetter.decode(kept).error
    except ValueError as error:
        return str(error)
