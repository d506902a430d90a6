"""Operations on epochs and messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal

import msgspec
import trio

from naviscope_ingest.console.desk import operation
from naviscope_ingest.console.views import (
    epoch_view,
    explanation_view,
    message_explanation_view,
    message_view,
    report_view,
    whole_letter_view,
)
from naviscope_ingest.errors import EpochTimeout, UnknownLetter, UnknownMessage
from naviscope_ingest.intake import IntakeHandle
from naviscope_ingest.plain_messages import message_of, plain_dependency
from naviscope_ingest.reports import MessageOutline
from naviscope_spi import InvalidMessage

__all__: list[str] = []

_EVERY = 0.5
"""How often somebody who waits for an epoch is told how it stands, in seconds."""


class ManyEpochs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which epochs."""

    state: Literal["open", "sealed", "completed", "repairing", "unfinished", "failed"] | None = None
    name: str | None = None
    limit: int | None = None


class OneEpoch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which epoch."""

    epoch: str


class NewEpoch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An epoch to open; as for `IntakeHandle.new_epoch`."""

    name: str | None = None
    deadline: float | None = None
    on_unresolved: Literal["fail", "run", "skip", "wait"] | None = None
    retain: float | None = None
    weight: int = 1
    cap: int | None = None
    if_exists: Literal["rejoin", "refuse"] = "rejoin"


class Wait(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to wait for."""

    epoch: str
    timeout: float | None = None
    until: Literal["completed", "blocked"] = "completed"


class Submit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to submit: messages as plain data."""

    epoch: str
    messages: list[Any]
    strict: bool = False
    unique_for: float | None = None


class OneMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which message."""

    epoch: str
    id: str


class Nothing(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Nothing in particular."""


Intake = IntakeHandle[Any]


@operation("epoch.list")
async def list_epochs(intake: Intake, given: ManyEpochs) -> list[dict[str, Any]]:
    """Report on epochs, the newest first."""
    found = []
    for report in sorted(intake.epochs(), key=lambda each: -each.number):
        is_meant = (
            given.state is None
            or given.state == report.state
            or (given.state == "unfinished" and not report.is_completed)
            or (given.state == "failed" and bool(report.dead or report.cancelled or report.expired))
        )
        if is_meant and (given.name is None or given.name in report.name):
            found.append(epoch_view(report))
            if len(found) == given.limit:
                break
    return found


@operation("epoch.show")
async def show_epoch(intake: Intake, given: OneEpoch) -> dict[str, Any]:
    """Report on one epoch, and say what holds it if it is not done."""
    report = intake.report(given.epoch)
    why = None if report.is_completed else explanation_view(await intake.explain(given.epoch))
    return {"report": report_view(report), "why": why}


@operation("epoch.open")
async def open_epoch(intake: Intake, given: NewEpoch) -> dict[str, Any]:
    """Open an epoch, or rejoin one."""
    options = msgspec.structs.asdict(given)
    epoch = await intake.new_epoch(options.pop("name"), **options)
    return report_view(epoch.report)


@operation("epoch.seal")
async def seal_epoch(intake: Intake, given: OneEpoch) -> dict[str, Any]:
    """Take no more messages into an epoch."""
    await intake.seal_epoch(given.epoch)
    return report_view(intake.report(given.epoch))


@operation("epoch.cancel")
async def cancel_epoch(intake: Intake, given: OneEpoch) -> dict[str, Any]:
    """Cancel what has not ended in an epoch."""
    await intake.cancel_epoch(given.epoch)
    return report_view(intake.report(given.epoch))


@operation("epoch.wait")
async def wait_for_epoch(intake: Intake, given: Wait) -> AsyncGenerator[dict[str, Any], None]:
    """Report on an epoch every now and then, until it has completed; the last report is the final one."""
    deadline = trio.current_time() + (float("inf") if given.timeout is None else given.timeout)
    report = intake.report(given.epoch)
    yield report_view(report)
    while not (report.is_completed or (given.until == "blocked" and report.is_blocked)):
        left = deadline - trio.current_time()
        if left <= 0:
            assert given.timeout is not None
            raise EpochTimeout(report, given.timeout)
        with trio.move_on_after(min(_EVERY, left)):
            await intake.wait_epoch(given.epoch, until=given.until)
        report = intake.report(given.epoch)
        yield report_view(report)


@operation("submit")
async def submit(intake: Intake, given: Submit) -> dict[str, Any]:
    """Submit messages. If one of them is wrong, none is stored."""
    messages = []
    for index, plain in enumerate(given.messages):
        try:
            messages.append(message_of(plain))
        except InvalidMessage as error:
            raise InvalidMessage(f"message {index}: {error}") from error
    receipt = await intake.submit(given.epoch, messages, strict=given.strict, unique_for=given.unique_for)
    return {
        "accepted": receipt.accepted,
        "duplicates": receipt.duplicates,
        "conflicts": list(receipt.conflicts),
        "dropped": receipt.dropped,
    }


@operation("message.show")
async def show_message(intake: Intake, given: OneMessage) -> dict[str, Any]:
    """Say what a message is, how it stands, and what is known of its failure."""
    why = await intake.explain(given.epoch, given.id)
    found = {"epoch": given.epoch, "id": given.id, "state": why.state.value, "end": why.end, "since": why.since}
    outline = intake.outline(given.epoch, given.id)
    letter = None
    if why.end in ("dead", "expired"):
        # It may have been discarded, or replayed in this moment.
        try:
            letter = await intake.dead_letters.show(given.epoch, given.id)
        except UnknownLetter:
            letter = None
    if letter is not None:
        found["since"] = letter.ended_at
    return found | {
        "message": _outline_view(outline) if letter is None else message_view(letter.message),
        "run": None if outline is None else outline.run,
        "dead_letter": None if letter is None else whole_letter_view(letter),
    }


def _outline_view(outline: MessageOutline | None) -> dict[str, Any] | None:
    if outline is None:
        return None
    return {
        "id": outline.id,
        "kind": outline.kind,
        "depends_on": [plain_dependency(each) for each in outline.depends_on],
        "added": [plain_dependency(each) for each in outline.added],
        "key": outline.key,
        "priority": outline.priority,
        "not_before": outline.not_before,
        "expires_at": outline.expires_at,
    }


@operation("message.explain")
async def explain_message(intake: Intake, given: OneMessage) -> dict[str, Any]:
    """Say why a message is not done."""
    return message_explanation_view(await intake.explain(given.epoch, given.id))


@operation("message.cancel")
async def cancel_message(intake: Intake, given: OneMessage) -> dict[str, Any]:
    """Cancel a message that has not ended."""
    if intake.report(given.epoch).is_completed and intake.outline(given.epoch, given.id) is None:
        raise UnknownMessage(given.epoch, given.id)
    return {"cancelled": await intake.cancel(given.epoch, given.id)}
