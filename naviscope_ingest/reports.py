"""What an epoch came to, as callers see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from attrs import fields, frozen

from naviscope_ingest.errors import EpochFailed
from naviscope_spi import BadEnd, Dependency, EpochState, Seq

__all__ = ["EpochReport", "Failure", "MessageOutline", "Recovery", "SubmitReceipt"]


@frozen
class Failure:
    """A message that ended dead, cancelled or expired.

    Attributes:
        message_id: its id.
        end: how it ended.
        error: why, in words.
        causes: ids of the messages its end follows from; empty when it ended by itself.
    """

    message_id: str
    end: BadEnd
    error: str
    causes: Sequence[str] = ()


@frozen(kw_only=True)
class EpochReport:
    """How an epoch stands, or what it came to.

    Attributes:
        name: its name.
        number: its number, which is never used again.
        state: open, sealed, completed or repairing.
        is_blocked: whether all that remains waits for a person or the world.
        revision: how often it completed again after a repair.
        submitted: how many messages it has, derived ones included.
        unfinished: how many have not ended.
        committed, dead, skipped, cancelled, expired: how many ended so.
        duplicates: how many submits repeated a known id.
        conflicts: how many of those had another content.
        dropped: how many were left out because too much was to be done.
        failures: the first of the messages that ended dead, cancelled or expired.
        opened_at, sealed_at, completed_at: wall-clock times, as far as they are known.
    """

    name: str
    number: int
    state: EpochState
    is_blocked: bool = False
    revision: int = 0
    submitted: int = 0
    unfinished: int = 0
    committed: int = 0
    dead: int = 0
    skipped: int = 0
    cancelled: int = 0
    expired: int = 0
    duplicates: int = 0
    conflicts: int = 0
    dropped: int = 0
    failures: Sequence[Failure] = ()
    opened_at: float | None = None
    sealed_at: float | None = None
    completed_at: float | None = None

    @property
    def is_completed(self) -> bool:
        """Whether every message has ended and the epoch is sealed."""
        return self.state == "completed"

    @property
    def succeeded(self) -> bool:
        """Whether it completed and no message is dead, cancelled or expired."""
        return self.is_completed and not (self.dead or self.cancelled or self.expired)

    def encode(self) -> bytes:
        """Return it as a store keeps it."""
        return _encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> EpochReport:
        """Return a report that a store has kept."""
        kept = msgspec.json.decode(encoded)
        failures = tuple(_failure_of(each) for each in kept["failures"])
        return cls(failures=failures, **{name: kept[name] for name in _NAMES if name in kept})

    def raise_for_failures(self) -> EpochReport:
        """Return this report if no message is dead, cancelled or expired.

        Raises:
            EpochFailed: some are.
        """
        if self.dead or self.cancelled or self.expired:
            raise EpochFailed(self)
        return self


_NAMES: Final = tuple(each.name for each in fields(EpochReport) if each.name != "failures")
_encode: Final = msgspec.json.Encoder().encode


def _failure_of(kept: Mapping[str, Any] | Sequence[Any]) -> Failure:
    """Return a failure as it was kept; until format 3 that was a list of its values."""
    return Failure(**kept) if isinstance(kept, Mapping) else Failure(*kept)


@frozen(kw_only=True)
class MessageOutline:
    """What is known of a message that has not committed, but for its payload, which only its store has.

    Attributes:
        id: its id.
        epoch: the name of its epoch.
        kind: its kind.
        key: its key.
        priority: its priority.
        depends_on: what it waits or waited for.
        added: what deferrals added to that.
        not_before, expires_at: its times.
        run: how often it was replayed.
    """

    id: str
    epoch: str
    kind: str
    key: str | None
    priority: int
    depends_on: Sequence[str | Dependency]
    added: Sequence[str | Dependency]
    not_before: float | None
    expires_at: float | None
    run: int


@frozen
class Recovery:
    """What a runtime found in its store when it started; or has found so far, while it starts.

    Attributes:
        epochs: epochs that have not completed.
        unfinished: messages that have not ended.
        recorded: messages whose outcomes were recorded, and are committed before anything runs.
        suspects: messages that were running when the last process died; they run next, one at a time.
        messages: how many messages were read, also such that had ended.
        expected: how many there are to read; None if the store does not say.
        seconds: how long it took to read.
        is_over: whether everything was read.
    """

    epochs: int = 0
    unfinished: int = 0
    recorded: int = 0
    suspects: int = 0
    messages: int = 0
    expected: int | None = None
    seconds: float = 0.0
    is_over: bool = False


@frozen
class SubmitReceipt:
    """What a submit stored.

    Attributes:
        accepted: how many messages were new.
        duplicates: how many were known already; conflicts are among them.
        conflicts: ids that were known with another content, at most a thousand of them.
        last: the place of the last message that was accepted.
        dropped: how many were left out because too much was to be done.
    """

    accepted: int = 0
    duplicates: int = 0
    conflicts: Sequence[str] = ()
    last: Seq | None = None
    dropped: int = 0
