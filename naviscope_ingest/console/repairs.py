"""Operations on dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from attrs import asdict

from naviscope_ingest.console.batches import Intake, OneMessage
from naviscope_ingest.console.desk import operation
from naviscope_ingest.console.views import audit_view, group_view, letter_view, pairs_view, whole_letter_view

__all__: list[str] = []


class Filter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which letters; as `LetterFilter`, which checks it."""

    epoch: str | None = None
    message_id: str | None = None
    kind: str | None = None
    error_kind: str | None = None
    fingerprint: str | None = None
    end: str | None = None
    since: float | None = None
    until: float | None = None


class Find(Filter, kw_only=True, forbid_unknown_fields=True):
    """Which letters, and how many of them."""

    limit: int | None = None


class Replay(Filter, kw_only=True, forbid_unknown_fields=True):
    """Which letters are to run again, and how."""

    patch: dict[str, Any] | None = None
    payload: Any | msgspec.UnsetType = msgspec.UNSET
    per_second: float | None = None
    dry_run: bool = False
    who: str = ""
    reason: str = ""


class Discard(Filter, kw_only=True, forbid_unknown_fields=True):
    """Which letters are to be given up, and why."""

    reason: str
    dry_run: bool = False
    who: str = ""


class Export(Filter, kw_only=True, forbid_unknown_fields=True):
    """Which letters are to be taken elsewhere."""

    who: str = ""
    reason: str = ""


class Import(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Lines of an export, and where they go."""

    epoch: str
    lines: list[str]
    who: str = ""
    reason: str = ""


class Audit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which audit entries."""

    epoch: str | None = None
    message_id: str | None = None
    since: float = 0.0


def _where(given: Filter) -> Any:  # noqa: ANN401 - a LetterFilter, which its readers check
    values: Mapping[str, Any] = {name: getattr(given, name) for name in Filter.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


@operation("dead-letter.list")
async def list_letters(intake: Intake, given: Find) -> AsyncGenerator[dict[str, Any], None]:
    """Yield dead letters in the order in which their messages were accepted."""
    count = 0
    if given.limit == 0:
        return
    async for letter in intake.dead_letters.find(**_where(given)):
        yield letter_view(letter)
        count += 1
        if count == given.limit:
            return


@operation("dead-letter.group")
async def group_letters(intake: Intake, given: Filter) -> list[dict[str, Any]]:
    """Count letters that failed alike."""
    return [group_view(group) for group in await intake.dead_letters.groups(**_where(given))]


@operation("dead-letter.show")
async def show_letter(intake: Intake, given: OneMessage) -> dict[str, Any]:
    """Return one letter with its message and what was tried."""
    return whole_letter_view(await intake.dead_letters.show(given.epoch, given.id))


@operation("dead-letter.replay")
async def replay_letters(intake: Intake, given: Replay) -> dict[str, Any]:
    """Run letters again, and what they took down."""
    payload = {} if given.payload is msgspec.UNSET else {"payload": given.payload}
    receipt = await intake.dead_letters.replay(
        patch=given.patch,
        per_second=given.per_second,
        dry_run=given.dry_run,
        who=given.who,
        reason=given.reason,
        **payload,
        **_where(given),
    )
    return asdict(receipt) | {"first": pairs_view(receipt.first)}


@operation("dead-letter.discard")
async def discard_letters(intake: Intake, given: Discard) -> dict[str, Any]:
    """Give letters up."""
    receipt = await intake.dead_letters.discard(
        reason=given.reason, dry_run=given.dry_run, who=given.who, **_where(given)
    )
    return asdict(receipt) | {"first": pairs_view(receipt.first)}


@operation("dead-letter.export")
async def export_letters(intake: Intake, given: Export) -> AsyncGenerator[str, None]:
    """Yield letters as lines."""
    async for line in intake.dead_letters.export_lines(who=given.who, reason=given.reason, **_where(given)):
        yield line.rstrip("\n")


@operation("dead-letter.import")
async def import_letters(intake: Intake, given: Import) -> dict[str, Any]:
    """Submit exported letters as new messages of an epoch."""
    receipt = await intake.dead_letters.import_lines(given.epoch, given.lines, who=given.who, reason=given.reason)
    return {
        "accepted": receipt.accepted,
        "duplicates": receipt.duplicates,
        "conflicts": list(receipt.conflicts),
        "dropped": receipt.dropped,
    }


@operation("dead-letter.audit")
async def audit_letters(intake: Intake, given: Audit) -> AsyncGenerator[dict[str, Any], None]:
    """Yield who did what to which letter, the oldest first."""
    entries = intake.dead_letters.audit(since=given.since, epoch=given.epoch, message_id=given.message_id)
    async for entry in entries:
        yield audit_view(entry)
