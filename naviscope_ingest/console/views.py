"""What operations answer, as plain data: the same over the socket, in `--json`, and beneath every table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import asdict, fields

from naviscope_ingest._core.explain import EpochExplanation, MessageExplanation, Reason
from naviscope_ingest.dead_letters import AuditEntry, Letter, LetterGroup, WholeLetter
from naviscope_ingest.limits import LimitView
from naviscope_ingest.plain_messages import plain_dependency
from naviscope_ingest.reports import EpochReport
from naviscope_spi import Dependency, Message, PayloadNotDecodable

__all__ = [
    "audit_view",
    "epoch_view",
    "explanation_view",
    "group_view",
    "letter_view",
    "limit_view",
    "message_explanation_view",
    "message_view",
    "payload_view",
    "report_view",
    "whole_letter_view",
]


def _flat(value: Any) -> dict[str, Any]:  # noqa: ANN401 - an instance of an attrs class
    return asdict(value, recurse=False)


def report_view(report: EpochReport) -> dict[str, Any]:
    """Return a report."""
    failures = [_flat(each) | {"causes": list(each.causes)} for each in report.failures]
    return _flat(report) | {"succeeded": report.succeeded, "failures": failures}


def epoch_view(report: EpochReport) -> dict[str, Any]:
    """Return a report without its failures, for a list."""
    view = report_view(report)
    del view["failures"]
    return view


def _reason_view(reason: Reason) -> dict[str, Any]:
    wanted = reason.dependency
    dependency = plain_dependency(wanted) if isinstance(wanted, str | Dependency) else None
    return _flat(reason) | {"dependency": dependency}


def message_explanation_view(found: MessageExplanation) -> dict[str, Any]:
    """Return why a message is not done."""
    return _flat(found) | {
        "state": found.state.value,
        "reasons": [_reason_view(each) for each in found.reasons],
        "waiting": [{"epoch": epoch, "id": message_id} for message_id, epoch in found.waiting],
    }


def explanation_view(found: EpochExplanation) -> dict[str, Any]:
    """Return why an epoch is not done."""
    return _flat(found) | {
        "counts": dict(found.counts),
        "reasons": [{"text": text, "messages": count} for text, count in found.reasons],
        "examples": [message_explanation_view(each) for each in found.examples],
    }


def payload_view(payload: object) -> Any:  # noqa: ANN401 - plain data
    """Return a payload as plain data; what has no such form as a text that shows it."""
    try:
        return msgspec.to_builtins(payload, str_keys=True, enc_hook=repr)
    except Exception:
        return repr(payload)


def message_view(message: Message[Any]) -> dict[str, Any]:
    """Return a message."""
    try:
        payload = {"payload": payload_view(message.payload)}
    except PayloadNotDecodable as error:
        payload = {"payload": None, "payload_error": str(error)}
    return {
        "id": message.id,
        **payload,
        "kind": message.kind,
        "depends_on": [plain_dependency(each) for each in message.depends_on],
        "key": message.key,
        "priority": message.priority,
        "not_before": message.not_before,
        "expires_at": message.expires_at,
        "headers": dict(message.headers),
    }


def letter_view(letter: Letter) -> dict[str, Any]:
    """Return a dead letter for a list: what its message says is not in it."""
    details = letter.details
    return {
        "epoch": letter.epoch,
        "id": letter.message_id,
        "kind": letter.kind,
        "end": letter.end,
        "run": letter.run,
        "error": letter.error,
        "error_kind": details.kind,
        "fingerprint": details.fingerprint,
        "tried": details.tried,
        "accepted_at": letter.accepted_at,
        "ended_at": letter.ended_at,
    }


def whole_letter_view(letter: WholeLetter[Any]) -> dict[str, Any]:
    """Return a dead letter with its message and everything that was tried."""
    details = letter.details
    return letter_view(letter) | {
        "brings_back": letter.brings_back,
        "follows": letter.follows,
        "causes": [{"epoch": epoch, "id": message_id} for epoch, message_id in details.causes],
        "attempts": [_flat(each) for each in details.attempts],
        "worker": details.worker,
        "origin": dict(details.origin),
        "message": message_view(letter.message),
        "edited": None if letter.edited is None else message_view(letter.edited),
    }


def group_view(group: LetterGroup) -> dict[str, Any]:
    """Return a group of dead letters."""
    return _flat(group) | {"example": letter_view(group.example)}


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    """Return an audit entry."""
    return _flat(entry) | {"patch": payload_view(dict(entry.patch))}


def limit_view(view: LimitView) -> dict[str, Any]:
    """Return a limit as it is now."""
    limit: Any = view.limit
    found: dict[str, Any] = {each.name: getattr(limit, each.name) for each in fields(type(limit))}
    if isinstance(found.get("cost"), Mapping):
        found["cost"] = dict(found["cost"])
    return {"name": view.name, "sort": type(limit).__name__.lower(), **found, "used": view.used}


def pairs_view(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Return names of epochs and ids."""
    return [{"epoch": epoch, "id": message_id} for epoch, message_id in pairs]
