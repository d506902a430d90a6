"""Every error a user can meet that does not mean a decision, under `IngestError`.

The errors that mean a decision (`Transient`, `Permanent`, …) live in `naviscope_spi.errors`. So do the refusals of a
store and `InvalidMessage`, because stores and messages know only the contracts; they are named here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from naviscope_spi.errors import (
    EpochExists,
    EpochSealed,
    InvalidMessage,
    PartlyRefused,
    PayloadNotDecodable,
    PayloadNotEncodable,
    Permanent,
    StoreFailed,
    StoreRefused,
    UnknownEpoch,
    UnknownOption,
)

if TYPE_CHECKING:
    from naviscope_ingest.reports import EpochReport
    from naviscope_ingest.settings.origins import Problem

__all__ = [
    "BadOutcome",
    "BarrierPassed",
    "ConfigurationError",
    "ContractViolation",
    "EpochExists",
    "EpochFailed",
    "EpochSealed",
    "EpochTimeout",
    "HandlerError",
    "ImportRefused",
    "IngestError",
    "IntakeFull",
    "InternalError",
    "InvalidFaults",
    "InvalidFilter",
    "InvalidMessage",
    "NoSuchKind",
    "OutcomeNotDecodable",
    "OutcomeNotEncodable",
    "PartlyRefused",
    "PatchRefused",
    "PayloadNotDecodable",
    "PayloadNotEncodable",
    "ReplayInVain",
    "RuntimeFailed",
    "RuntimeStopped",
    "SinkMisbehaved",
    "StoreFailed",
    "StoreRefused",
    "Struck",
    "UnknownEpoch",
    "UnknownKind",
    "UnknownLetter",
    "UnknownLimit",
    "UnknownMessage",
    "UnknownOption",
    "WrongState",
]


class IngestError(Exception):
    """The base of the errors of the runtime."""


class InternalError(IngestError):
    """A bug of ours: something that cannot happen did. Please report it with the text."""


class ContractViolation(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """An implementation broke a promise of its contract. Raised by the `check_*` functions.

    Args:
        promise: the promise, as a sentence.
        seen: what the implementation did.
        expected: what it should have done.
    """

    def __init__(self, promise: str, *, seen: object, expected: object) -> None:
        super().__init__(f"{promise}\n  expected: {_shown(expected)}\n  seen:     {_shown(seen)}")
        self.promise = promise
        self.seen = seen
        self.expected = expected


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


class ConfigurationError(IngestError, ValueError):
    """A configuration cannot be used: a key is unknown, a value wrong, or a file unreadable. Nothing of it holds.

    The text has one line for each problem: where it stands, the key, what is wrong.

    Args:
        problems: all that is wrong.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class HandlerError(IngestError, TypeError):
    """A handler or an app is declared in a way that cannot work. Raised where it is declared, or at the start."""


class UnknownKind(InvalidMessage):
    """No handler is declared for a message. Nothing was stored.

    Args:
        message_id: the message.
        kind: its kind.
        known: the kinds that have one.
        close: which of them may be meant.
    """

    def __init__(self, message_id: str, kind: str, known: Sequence[str], close: Sequence[str] = ()) -> None:
        hint = f"did you mean {close[0]!r}?" if close else f"there are handlers for {', '.join(map(repr, known))}"
        super().__init__(f"message {message_id!r} is of kind {kind!r}, which has no handler: {hint}")
        self.message_id = message_id
        self.kind = kind
        self.known = known


class RuntimeStopped(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """The runtime takes no more work: it was stopped, or has not been started."""


class RuntimeFailed(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """The runtime ended by an error, which is the cause of this one. What had not ended is kept by the store."""


class EpochTimeout(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """An epoch did not complete in time.

    Args:
        report: how it stood then.
        timeout: how long was waited, in seconds.
    """

    def __init__(self, report: EpochReport, timeout: float) -> None:
        super().__init__(
            f"epoch {report.name!r} is {report.state} after {timeout} seconds, {report.unfinished} of "
            f"{report.submitted} messages are unfinished: await intake.explain(epoch) says what holds them"
        )
        self.report = report
        self.timeout = timeout


class EpochFailed(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """An epoch completed with messages that are dead, cancelled or expired.

    Args:
        report: what happened.
    """

    def __init__(self, report: EpochReport) -> None:
        first = report.failures[0] if report.failures else None
        super().__init__(
            f"epoch {report.name!r} did not succeed: {report.dead} dead, {report.cancelled} cancelled, "
            f"{report.expired} expired of {report.submitted}"
            + ("" if first is None else f"; first {first.message_id!r}: {first.error}")
            + ("; intake.dead_letters shows and replays what is dead" if report.dead or report.expired else "")
        )
        self.report = report


class WrongState(IngestError, RuntimeError):  # noqa: N818 - reads as a sentence where it is raised
    """A runtime was asked for what it cannot do in its present state.

    Args:
        state: the state it is in.
        verb: what was asked for, in words.
        possible: the states that may follow.
    """

    def __init__(self, state: str, verb: str, possible: Sequence[str]) -> None:
        ways = "a runtime runs once, make a new one" if not possible else f"from there it can go to {_listed(possible)}"
        super().__init__(f"this runtime is {state}, so it cannot {verb}: {ways}")
        self.state = state


class IntakeFull(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """There is no room for more messages or epochs now.

    Args:
        limit: which limit ("high_mark", "max_waiting", "max_unfinished", "max_open_epochs").
        most: its number.
        present: how many there are.
        retry_after: in how many seconds it may be worth trying again.
    """

    def __init__(self, limit: str, most: int, present: int, retry_after: float) -> None:
        super().__init__(
            f"intake is full: {limit} is {most} and {present} are there; try again in about {retry_after:.2g} s, "
            f"or raise IntakePolicy({limit}=...)"
        )
        self.limit = limit
        self.most = most
        self.present = present
        self.retry_after = retry_after


class Struck(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """A message was refused because somebody struck its kind, or ids like its own.

    Args:
        message_id: the message.
        rule: what was struck.
        reason: why.
    """

    def __init__(self, message_id: str, rule: str, reason: str) -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"message {message_id!r} is refused: {rule} was struck{why}; runtime.unstrike lets it in again"
        )
        self.message_id = message_id
        self.rule = rule
        self.reason = reason


class NoSuchKind(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """No message has that kind, and nothing is configured for it.

    Args:
        kind: the kind.
        known: the kinds that are known.
    """

    def __init__(self, kind: str, known: Sequence[str]) -> None:
        near = get_close_matches(kind, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(
            f"kind {kind!r} is unknown: {hint}known are {_listed(sorted(known)) or 'none'}; "
            "RuntimeConfig(kinds={...}) makes a kind known before its first message"
        )
        self.kind = kind


class UnknownLimit(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """There is no limit of that name.

    Args:
        name: the name.
        known: the names that are known.
    """

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no limit {name!r}: there are {_listed(sorted(known)) or 'none'}")
        self.name = name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


class UnknownMessage(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """The epoch has no message of that id.

    Args:
        epoch: the name of the epoch.
        message_id: the id.
    """

    def __init__(self, epoch: str, message_id: str) -> None:
        super().__init__(f"epoch {epoch!r} has no message {message_id!r}: it was never submitted, or its id is freed")
        self.epoch = epoch
        self.message_id = message_id


class UnknownLetter(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """A message has no dead letter.

    Args:
        epoch: the name of the epoch.
        message_id: the id.
        stands: how it stands instead, in words.
    """

    def __init__(self, epoch: str, message_id: str, stands: str) -> None:
        super().__init__(f"message {message_id!r} of epoch {epoch!r} has no dead letter: {stands}")
        self.epoch = epoch
        self.message_id = message_id
        self.stands = stands


class ReplayInVain(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """A dead letter only followed from others, and would do so again.

    Args:
        message_id: the message.
        causes: names of epochs and ids of the messages that it followed from.
    """

    def __init__(self, message_id: str, causes: Sequence[tuple[str, str]]) -> None:
        named = ", ".join(f"{cause!r} of epoch {epoch!r}" for epoch, cause in causes[:5]) or "an epoch that failed"
        super().__init__(
            f"message {message_id!r} ended because of {named}, and would end so again: replay that, which brings this "
            "one back too"
        )
        self.message_id = message_id
        self.causes = causes


class InvalidFaults(IngestError, ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """Faults that a runtime should inject cannot be read, or cannot happen. Nothing was started.

    Args:
        part: which part.
        reason: what is wrong with it.
        allowed: what is allowed there.
        near: what was written in place of something allowed.
        source: where it was written.
    """

    def __init__(
        self, part: str, reason: str, allowed: Sequence[str], *, near: str | None = None, source: str = "faults"
    ) -> None:
        close = () if near is None else get_close_matches(near, allowed, 1)
        hint = f", perhaps {close[0]!r} was meant" if close else ""
        super().__init__(f"{source}: {part!r:.200}: {reason:.300}{hint}; allowed: {', '.join(allowed)}")
        self.part = part
        self.reason = reason
        self.allowed = allowed
        self.near = near
        self.source = source


class InvalidFilter(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """A filter for dead letters names a key that does not exist, or has a value that no letter can have.

    Args:
        key: the key.
        reason: what is wrong with it.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)
        self.key = key
        self.reason = reason


class PatchRefused(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """An edited payload does not fit. Nothing was changed.

    Args:
        path: the path of the patch that is wrong; empty if it is the whole.
        reason: why.
        message_id: the message, if it is known.
    """

    def __init__(self, path: str, reason: str, message_id: str = "") -> None:
        where = f"patch {path!r}" if path else "the edited payload"
        super().__init__(f"{where}{f' of message {message_id!r}' if message_id else ''} is refused: {reason}")
        self.path = path
        self.reason = reason
        self.message_id = message_id


class ImportRefused(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """A line of an import is no dead letter, or does not fit the others. Nothing was submitted.

    Args:
        line: the number of the line, from 1.
        reason: what is wrong with it.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}; nothing was submitted")
        self.line = line
        self.reason = reason


class BadOutcome(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """An executor answered something that is no outcome. The message ends dead, for the executor would do it again."""


class BarrierPassed(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """A message derived into a kind whose barrier had opened: those who waited have run without what it brings.

    Args:
        kind: the kind of the parent.
        derived: the kind whose barrier had opened.
    """

    def __init__(self, kind: str, derived: str) -> None:
        super().__init__(
            f"a message of kind {kind!r} derived one of kind {derived!r} after the barrier of {derived!r} had opened: "
            f"say what kinds derive, RuntimeConfig(derives={{{kind!r}: [{derived!r}], ...}}), and barriers wait for it"
        )
        self.kind = kind
        self.derived = derived


class SinkMisbehaved(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """A sink returned what it must not: nobody can tell what became of the batch. The runtime stops."""


class OutcomeNotEncodable(IngestError, Permanent):  # noqa: N818 - reads as a sentence where it is raised
    """An outcome cannot be recorded before it is committed, so the sink did not see it. The message ends dead.

    Args:
        message_id: the message.
        kind: its kind.
        field: which part of the outcome ("ops", "derived[3].payload.lines").
        reason: why.
    """

    def __init__(self, message_id: str, kind: str, field: str, reason: str) -> None:
        super().__init__(
            f"message {message_id!r} of kind {kind!r}: {field} of its outcome cannot be recorded: {reason}; "
            "the sink has not seen it"
        )
        self.message_id = message_id
        self.kind = kind
        self.field = field
        self.reason = reason


class OutcomeNotDecodable(IngestError, Permanent):  # noqa: N818 - reads as a sentence where it is raised
    """An outcome that was recorded before a crash cannot be read any more. The message ends dead and is kept.

    Args:
        message_id: the message.
        kind: its kind.
        field: which part of the outcome ("ops", "derived[3].payload.lines").
        reason: why.
    """

    def __init__(self, message_id: str, kind: str, field: str, reason: str) -> None:
        super().__init__(
            f"message {message_id!r} of kind {kind!r}: {field} of its recorded outcome cannot be decoded: {reason}; "
            "the sink may have applied it before the process ended: look there, then replay the message or discard it"
        )
        self.message_id = message_id
        self.kind = kind
        self.field = field
        self.reason = reason
