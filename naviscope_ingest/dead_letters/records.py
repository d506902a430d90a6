"""What callers get to see of dead letters: letters, groups, receipts, audit entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from attrs import field, frozen

from naviscope_ingest.letters import DeadLetter
from naviscope_spi import ErrorKind, KeptLetter, Message, Seq

__all__ = ["AuditEntry", "DiscardReceipt", "Letter", "LetterGroup", "ReplayReceipt", "WholeLetter", "letter_of"]

P = TypeVar("P")


@frozen(kw_only=True)
class Letter:
    """A dead letter in a list.

    Attributes:
        seq: the message's place in the store.
        epoch: the name of its epoch.
        epoch_number: the number of its epoch.
        message_id: the message's id.
        kind: the message's kind.
        end: dead or expired.
        run: the run that ended so, from 0; a replay is the next one.
        accepted_at: when the message was accepted, by the wall clock.
        details: why it ended, and what was tried.
    """

    seq: Seq
    epoch: str
    epoch_number: int
    message_id: str
    kind: str
    end: Literal["dead", "expired"]
    run: int
    accepted_at: float
    details: DeadLetter

    @property
    def error(self) -> str:
        """The last error, or the decision that ended it, in one line."""
        return self.details.error

    @property
    def ended_at(self) -> float:
        """When it ended; if that is not known, when the message was accepted."""
        return self.accepted_at if self.details.ended_at is None else self.details.ended_at


@frozen(kw_only=True)
class WholeLetter(Letter, Generic[P]):
    """A dead letter with its message.

    Attributes:
        message: as it was submitted. Reading a payload that cannot be decoded raises `PayloadNotDecodable`.
        edited: the message with the payload that a replay gave it; None if none did.
        brings_back: how many messages a replay would bring back, this one included.
        follows: whether it only followed from other letters: they must be replayed, not this one.
    """

    message: Message[P]
    edited: Message[P] | None
    brings_back: int
    follows: bool

    @property
    def payload(self) -> P:
        """The payload that the next run would get."""
        return (self.edited or self.message).payload


@frozen(kw_only=True)
class LetterGroup:
    """Letters that failed alike.

    Attributes:
        fingerprint: what they have in common.
        error_kind: what sort of error, if it is known.
        count: how many there are.
        first_seen, last_seen: when the first and the last of them ended.
        example: the first of them, by place.
    """

    fingerprint: str
    error_kind: ErrorKind | None
    count: int
    first_seen: float
    last_seen: float
    example: Letter


@frozen(kw_only=True)
class ReplayReceipt:
    """What a replay did, or would do.

    Attributes:
        letters: how many letters were replayed.
        revived: how many messages came back to life, what the letters had taken down included.
        followers: how many letters were left alone because they only followed from others: they come back with those.
        first: names of epochs and ids of the first letters.
        is_dry: whether nothing was done.
    """

    letters: int = 0
    revived: int = 0
    followers: int = 0
    first: Sequence[tuple[str, str]] = ()
    is_dry: bool = False


@frozen(kw_only=True)
class DiscardReceipt:
    """What a discard did, or would do.

    Attributes:
        letters: how many letters were given up.
        first: names of epochs and ids of the first of them.
        is_dry: whether nothing was done.
    """

    letters: int = 0
    first: Sequence[tuple[str, str]] = ()
    is_dry: bool = False


@frozen(kw_only=True)
class AuditEntry:
    """Who did what, when, to which letter, and why.

    Attributes:
        at: when, by the wall clock.
        who: who asked for it.
        action: what was done.
        reason: why, in words.
        epoch: the name of the epoch, or of the one that an import went to.
        message_id: the message; empty for an export or import, which are of many.
        run: the run that was replayed or discarded.
        messages: how many messages a replay brought back, or an export or import had.
        patch: the parts of the payload that were replaced, by path; "" is the whole.
    """

    at: float
    who: str
    action: Literal["replay", "discard", "export", "import"]
    reason: str = ""
    epoch: str = ""
    message_id: str = ""
    run: int = 0
    messages: int = 0
    patch: Mapping[str, Any] = field(factory=dict)


def letter_of(kept: KeptLetter[Any]) -> Letter:
    """Return a letter as a list shows it. One that cannot be read says so."""
    try:
        details = DeadLetter.decode(kept.ended.letter)
    except ValueError as error:
        details = DeadLetter(error=str(error))
    end: Any = kept.ended.end
    return Letter(
        seq=kept.seq,
        epoch=kept.epoch.name,
        epoch_number=kept.epoch.number,
        message_id=kept.message.id,
        kind=kept.message.kind,
        end=end,
        run=kept.run,
        accepted_at=kept.accepted_at,
        details=details,
    )
