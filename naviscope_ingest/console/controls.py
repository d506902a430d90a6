"""Operations on a runtime that runs: its limits, pauses and strikes; and on its store."""

from __future__ import annotations

import os
import time
from typing import Any, Literal

import msgspec
from attrs import asdict

from naviscope_ingest._core.limits import Cap, Rate
from naviscope_ingest.console.batches import Intake, Nothing
from naviscope_ingest.console.desk import operation
from naviscope_ingest.console.views import limit_view
from naviscope_ingest.errors import IngestError, WrongState
from naviscope_spi import StoreRefused, SupportsBackup, SupportsRetention, SupportsVerify

__all__: list[str] = []

_PRUNE_STEP = 1_000


class SetLimit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A limit to be set: the number of all messages in flight, a cap or a rate, or the cap of one epoch."""

    sort: Literal["max_in_flight", "cap", "rate", "epoch"]
    limit: float
    kind: str | None = None
    by: str | None = None
    per: float = 1.0
    burst: float | None = None
    label: str = ""
    epoch: str | None = None


class LimitName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which limit."""

    name: str


class Pause(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which kind, None for all of them, and why."""

    kind: str | None = None
    reason: str = ""


class Strike(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is refused at intake: a kind, ids like a pattern, or both."""

    kind: str | None = None
    id: str | None = None
    reason: str = ""


class Backup(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a copy goes."""

    path: str


class Prune(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is forgotten: epochs that completed longer ago than this; what they say themselves unless it is given."""

    older_than: float | None = None


@operation("process.status")
async def status(intake: Intake, given: Nothing) -> dict[str, Any]:
    """Say how the process is doing."""
    runtime = intake.runtime
    return {
        "pid": os.getpid(),
        "name": runtime.config.name,
        "store_id": runtime.store.info.store_id,
        "statistics": asdict(runtime.statistics()),
        "recovery": asdict(runtime.recovery),
        "struck": list(runtime.struck),
    }


@operation("limit.list")
async def list_limits(intake: Intake, given: Nothing) -> list[dict[str, Any]]:
    """Return every limit in force."""
    return [limit_view(each) for each in intake.runtime.limits]


def _running(intake: Intake, verb: str) -> None:
    """Refuse what would be forgotten at once."""
    if intake.runtime.state == "at rest":
        raise WrongState("at rest", verb, ("running",))


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError(f"limit={value!r}: give a whole number")
    return int(value)


@operation("limit.set")
async def set_limit(intake: Intake, given: SetLimit) -> list[dict[str, Any]]:
    """Set a limit, and return every limit in force."""
    _running(intake, "change limits")
    limits = intake.runtime.limits
    if given.sort == "max_in_flight":
        limits.set_max_in_flight(_whole(given.limit))
    elif given.sort == "epoch":
        if given.epoch is None:
            raise ValueError("epoch: name the epoch")
        limits.set_epoch_cap(given.epoch, _whole(given.limit))
    elif given.sort == "cap":
        limits.set(Cap(_whole(given.limit), given.kind, given.by))
    else:
        limits.set(Rate(given.limit, given.per, given.burst, given.kind, given.by, label=given.label))
    return [limit_view(each) for each in limits]


@operation("limit.remove")
async def remove_limit(intake: Intake, given: LimitName) -> list[dict[str, Any]]:
    """Take a limit away, and return every limit in force."""
    _running(intake, "change limits")
    intake.runtime.limits.remove(given.name)
    return [limit_view(each) for each in intake.runtime.limits]


@operation("kind.list")
async def list_kinds(intake: Intake, given: Nothing) -> list[dict[str, Any]]:
    """Return the kinds that are known, with what holds them."""
    return [asdict(each) for each in intake.runtime.kinds()]


@operation("kind.pause")
async def pause(intake: Intake, given: Pause) -> dict[str, Any]:
    """Start nothing more of a kind."""
    _running(intake, "be paused")
    intake.runtime.pause(given.kind, reason=given.reason)
    return {"paused": given.kind, "state": intake.runtime.state}


@operation("kind.resume")
async def resume(intake: Intake, given: Pause) -> dict[str, Any]:
    """Start again what was paused."""
    _running(intake, "be resumed")
    intake.runtime.resume(given.kind)
    return {"resumed": given.kind, "state": intake.runtime.state}


@operation("kind.strike")
async def strike(intake: Intake, given: Strike) -> dict[str, Any]:
    """Refuse a kind, or ids like a pattern, at intake."""
    _running(intake, "refuse messages")
    intake.runtime.strike(given.kind, id=given.id, reason=given.reason)
    return {"struck": list(intake.runtime.struck)}


@operation("kind.unstrike")
async def unstrike(intake: Intake, given: Strike) -> dict[str, Any]:
    """Let in again what was struck."""
    _running(intake, "let messages in")
    if not intake.runtime.unstrike(given.kind, id=given.id):
        struck = "; ".join(intake.runtime.struck) or "nothing"
        raise IngestError(f"that is not struck: struck is {struck}")
    return {"struck": list(intake.runtime.struck)}


@operation("store.info")
async def store_info(intake: Intake, given: Nothing) -> dict[str, Any]:
    """Say what the store is and what it holds."""
    store = intake.runtime.store
    reports = intake.epochs()
    dead = [report for report in reports if report.dead or report.expired]
    return {
        **asdict(store.info),
        "type": type(store).__name__,
        "epochs": len(reports),
        "unfinished_epochs": sum(not report.is_completed for report in reports),
        "unfinished": sum(report.unfinished for report in reports),
        "epochs_with_dead_letters": len(dead),
        "retain": store.retain if isinstance(store, SupportsRetention) else None,
    }


@operation("store.verify")
async def verify(intake: Intake, given: Nothing) -> dict[str, Any]:
    """Check every row of the store."""
    store = intake.runtime.store
    if not isinstance(store, SupportsVerify):
        raise StoreRefused(f"{type(store).__name__} cannot check itself: it has no verify()")
    return {"findings": list(await store.verify())}


@operation("store.backup")
async def backup(intake: Intake, given: Backup) -> dict[str, Any]:
    """Copy the store."""
    store = intake.runtime.store
    if not isinstance(store, SupportsBackup):
        raise StoreRefused(f"{type(store).__name__} cannot copy itself: it has no backup()")
    await store.backup(given.path)
    return {"path": given.path}


@operation("store.prune")
async def prune(intake: Intake, given: Prune) -> dict[str, Any]:
    """Forget what nobody needs any more."""
    store = intake.runtime.store
    if not isinstance(store, SupportsRetention):
        raise StoreRefused(f"{type(store).__name__} forgets nothing: it has no prune()")
    age = store.retain if given.older_than is None else given.older_than
    if not age >= 0:
        raise ValueError(f"older_than={age!r}: give seconds, zero or more")
    removed, before = 0, time.time() - age
    while step := await store.prune(before, _PRUNE_STEP):
        removed += step
    return {"removed": removed}
