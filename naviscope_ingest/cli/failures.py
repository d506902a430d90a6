"""How a command ends that could not do what it was asked to: one line with the reason, one with a hint, and a code."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import click

from naviscope_ingest.console import ControlUnavailable, Refused
from naviscope_ingest.console.desk import refused
from naviscope_ingest.errors import ConfigurationError, HandlerError, RuntimeFailed

__all__ = ["EXITS", "Exit", "Failure", "failure_of"]


class Exit(IntEnum):
    """What the exit code of a command means."""

    DONE = 0
    BAD_NEWS = 1
    WRONG_USE = 2
    NOT_YET = 3
    UNAVAILABLE = 4
    FAILED = 5
    BUG = 70
    INTERRUPTED = 130


EXITS: Final[Mapping[Exit, str]] = {
    Exit.DONE: "It was done, and all is well.",
    Exit.BAD_NEWS: "It was done, and the news is bad: messages ended dead, cancelled or expired, rows are damaged, a "
    "check of `doctor` failed.",
    Exit.WRONG_USE: "It was asked for in a wrong way, or of something that does not exist. Nothing was changed.",
    Exit.NOT_YET: "Not now: a time limit passed, intake is full, or `run --until-idle` ended with messages that wait "
    "for somebody.",
    Exit.UNAVAILABLE: "The store or its process cannot be reached: the file is locked, damaged or no store, or the "
    "process ended.",
    Exit.FAILED: "The runtime failed while it worked. What had not ended is kept by the store.",
    Exit.BUG: "A bug of ours. `--debug` shows where; please report it.",
    Exit.INTERRUPTED: "It was interrupted.",
}
"""Every exit code, for the reference."""


class Failure(Exception):  # noqa: N818 - it ends a command, and is no error of ours
    """A command that could not do what it was asked to.

    Args:
        reason: what is wrong, in one line.
        hint: what to do about it.
        code: the exit code.
    """

    def __init__(self, reason: str, hint: str = "", code: Exit = Exit.WRONG_USE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.code = code


_CODES: Final[Mapping[str, Exit]] = {
    "EpochTimeout": Exit.NOT_YET,
    "IntakeFull": Exit.NOT_YET,
    "RuntimeStopped": Exit.UNAVAILABLE,
    "ProcessEnded": Exit.UNAVAILABLE,
    "Busy": Exit.NOT_YET,
    "NotAllowed": Exit.UNAVAILABLE,
    "StoreLocked": Exit.UNAVAILABLE,
    "StoreUnavailable": Exit.UNAVAILABLE,
    "StoreCorrupt": Exit.UNAVAILABLE,
    "StoreFull": Exit.UNAVAILABLE,
    "StoreFailed": Exit.UNAVAILABLE,
    "StoreReadOnly": Exit.UNAVAILABLE,
    "NotAStore": Exit.UNAVAILABLE,
    "NewerFormat": Exit.UNAVAILABLE,
    "OlderFormat": Exit.UNAVAILABLE,
    "BackupFailed": Exit.UNAVAILABLE,
    "ControlUnavailable": Exit.UNAVAILABLE,
    "ConnectionRefusedError": Exit.UNAVAILABLE,
    "PermissionError": Exit.UNAVAILABLE,
    "RuntimeFailed": Exit.FAILED,
    "InternalError": Exit.BUG,
}

_HINTS: Final[Mapping[str, str]] = {
    "UnknownEpoch": "naviscope-ingest epoch list shows those that there are",
    "UnknownMessage": "naviscope-ingest epoch show EPOCH says what the epoch holds",
    "UnknownLetter": "naviscope-ingest dead-letter list shows those that there are",
    "InvalidFilter": "see naviscope-ingest dead-letter list --help",
    "ReplayInVain": "naviscope-ingest dead-letter show names what it follows from",
    "PatchRefused": "naviscope-ingest dead-letter show shows the payload as it is",
    "EpochSealed": "submit to another epoch: --epoch NAME",
    "EpochExists": "take another name",
    "EpochTimeout": "naviscope-ingest epoch show says what holds it",
    "IntakeFull": "try again in a while: what is accepted is known when it comes again",
    "Struck": "naviscope-ingest kind list shows what is struck, and kind unstrike lets it in again",
    "UnknownKind": "the kinds are those of the handlers of the app",
    "NoSuchKind": "naviscope-ingest kind list shows those that there are",
    "UnknownLimit": "naviscope-ingest limit list shows those that there are",
    "RuntimeStopped": "start one: naviscope-ingest run MODULE:APP",
    "ProcessEnded": "look at its log; naviscope-ingest doctor says whether the store is sound",
    "StoreLocked": "that process offers no control socket: stop it, or let it serve one (see serve_control)",
    "OlderFormat": "any command that changes something upgrades it, such as naviscope-ingest run",
    "StoreUnavailable": "naviscope-ingest doctor looks closer",
    "StoreCorrupt": "naviscope-ingest store verify names what is damaged; restore a backup",
    "StoreFull": "make room on the disk",
    "NotAStore": "name the file that an app or naviscope-ingest submit made",
    "RuntimeFailed": "what had not ended is kept: mend the cause and start again",
    "InternalError": "run it again with --debug, and report what it shows",
    "UnknownOperation": "the process runs another version of naviscope-ingest",
    "WrongState": "see naviscope-ingest kind list",
    "FileExistsError": "name a path that does not exist",
    "PermissionError": "run it as the user who owns the store",
    "InvalidMessage": "see naviscope-ingest submit --help for what a line may say",
    "PayloadNotEncodable": "see the annotation of the handler of that kind",
    "HandlerError": "see where the app is declared",
}


def failure_of(error: BaseException) -> Failure:
    """Return how a command ends by an error."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, ConfigurationError):
        return Failure(
            _sentence("; ".join(map(str, error.problems))), "naviscope-ingest config schema says what may be"
        )
    if isinstance(error, click.NoSuchOption):
        return Failure(f"there is no option {error.option_name}", _usage_hint(error))
    if isinstance(error, click.UsageError):
        return Failure(_sentence(error.format_message()), _usage_hint(error))
    if isinstance(error, click.ClickException):
        return Failure(_sentence(error.format_message()), "", Exit.WRONG_USE)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Failure("interrupted", "", Exit.INTERRUPTED)
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return failure_of(error.exceptions[0])
    if isinstance(error, Exception):
        return _of_refused(refused(error), error)
    return Failure(f"{type(error).__name__}: {error}", _HINTS["InternalError"], Exit.BUG)


def _of_refused(told: Refused, error: Exception) -> Failure:
    code = _CODES.get(told.type, Exit.WRONG_USE)
    hint = _HINTS.get(told.type, "")
    if isinstance(error, RuntimeFailed) and isinstance(error.__cause__, Exception):
        cause = error.__cause__
        return Failure(_sentence(f"the runtime failed: {type(cause).__name__}: {cause}"), hint, code)
    if isinstance(error, ControlUnavailable | HandlerError):
        hint = hint or "see the text above"
    return Failure(_sentence(told.text) or told.type, hint or "see --help", code)


def _sentence(text: str) -> str:
    """Put a text into one line."""
    return " ".join(text.split()).rstrip(".")


def _usage_hint(error: click.UsageError) -> str:
    possible = getattr(error, "possibilities", None)
    if possible:
        return f"did you mean {' or '.join(sorted(possible)[:3])}?"
    hint = getattr(error, "hint", None)
    if isinstance(hint, str):
        return hint
    path = error.ctx.command_path if error.ctx is not None else "naviscope-ingest"
    return f"see {path} --help"
