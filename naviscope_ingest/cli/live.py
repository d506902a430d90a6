"""`limit list|set|remove` and `kind list|pause|resume|strike|unstrike`: what is changed while a process runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from naviscope_ingest.cli.commands import Call, Group, command
from naviscope_ingest.cli.failures import Exit, Failure
from naviscope_ingest.cli.screen import Cell, Column

__all__ = ["kind", "limit"]

_LIMITS: Final = (
    Column("limit", is_wide=True),
    Column("at most"),
    Column("used", is_number=True),
)


@click.group(cls=Group)
def limit() -> None:
    """Caps and rates of a process that runs."""


@click.group(cls=Group)
def kind() -> None:
    """Kinds of messages: pause, resume and refuse them."""


def _need_process(call: Call, what: str) -> None:
    """Refuse what belongs to a process, where none runs."""
    if not call.is_running:
        raise Failure(
            f"no process works on this store, and {what} go with the process",
            "start one: naviscope-ingest run MODULE:APP; lasting ones belong into its configuration",
            Exit.UNAVAILABLE,
        )


def _row(found: Mapping[str, Any]) -> Sequence[Cell]:
    most = f"{found['limit']:g}"
    if found["sort"] == "rate":
        most += f" in {found['per']:g} s" + (f", burst {found['burst']:g}" if found["burst"] else "")
    if found["by"]:
        most += f" for each {found['by']}"
    return found["name"], most, "" if found["used"] is None else str(found["used"])


def _say_limits(call: Call, found: Sequence[Mapping[str, Any]]) -> None:
    if call.screen.is_json:
        call.screen.data(found)
    else:
        call.screen.table(_LIMITS, [_row(each) for each in found])


@command(limit, "list", mode="ask")
async def list_limits(call: Call) -> None:
    """List the limits in force, and how far they are used."""
    _need_process(call, "limits")
    _say_limits(call, await call.desk.ask("limit.list"))


@command(limit, "set", mode="ask")
@click.argument("name")
@click.argument("number", type=float)
@click.option("--per", type=float, default=1.0, show_default=True, help="Of a rate: in how many seconds.")
@click.option("--burst", type=float, help="Of a rate: how many at once.")
@click.option("--by", metavar="EXPRESSION", help='"key", "id" or "headers.NAME": each value has a limit of its own.')
async def set_limit(  # noqa: PLR0917 - options
    call: Call, name: str, number: float, per: float, burst: float | None, by: str | None
) -> None:
    """Set a limit: NAME is max_in_flight, cap:KIND, rate:KIND, cap, rate, or epoch:NAME.

    It holds at once, and until the process ends.
    """
    _need_process(call, "limits")
    sort, _, whose = name.partition(":")
    if sort not in ("max_in_flight", "cap", "rate", "epoch") or (sort == "epoch" and not whose):
        raise Failure(f"there is no limit {name!r}", "name max_in_flight, cap:KIND, rate:KIND, cap, rate or epoch:NAME")
    if sort != "rate" and (burst is not None or per != 1.0):
        raise Failure("--per and --burst are for rates", f"leave them out, or set rate:{whose or 'KIND'}")
    found = await call.desk.ask(
        "limit.set",
        sort=sort,
        limit=number,
        kind=whose or None if sort in ("cap", "rate") else None,
        epoch=whose if sort == "epoch" else None,
        by=by,
        per=per,
        burst=burst,
    )
    _say_limits(call, found)


@command(limit, "remove", mode="ask")
@click.argument("name")
async def remove_limit(call: Call, name: str) -> None:
    """Take a limit away."""
    _need_process(call, "limits")
    _say_limits(call, await call.desk.ask("limit.remove", name=name))


@command(kind, "list", mode="ask")
async def list_kinds(call: Call) -> None:
    """List the kinds that are known, what is left to do of each, and what holds them."""
    found = await call.desk.ask("kind.list")
    if call.screen.is_json:
        call.screen.data(found)
        return
    rows = [(each["kind"], each["unfinished"], ("; ".join(each["held_by"]), "yellow")) for each in found]
    columns = (Column("kind", is_wide=True), Column("left", is_number=True), Column("held by", is_wide=True))
    call.screen.table(columns, rows, empty="no kinds")


@command(kind, "pause", mode="ask")
@click.argument("name", metavar="[KIND]", required=False)
@click.option("--reason", default="", help="Why: explanations say so.")
async def pause_kind(call: Call, name: str | None, reason: str) -> None:
    """Start nothing more of a kind; without KIND, of any. What runs goes on, and messages still come in."""
    _need_process(call, "pauses")
    answer = await call.desk.ask("kind.pause", kind=name, reason=reason)
    _say(call, answer, f"{_whom(name)} is paused")


@command(kind, "resume", mode="ask")
@click.argument("name", metavar="[KIND]", required=False)
async def resume_kind(call: Call, name: str | None) -> None:
    """Start again what was paused."""
    _need_process(call, "pauses")
    _say(call, await call.desk.ask("kind.resume", kind=name), f"{_whom(name)} is resumed")


@command(kind, "strike", mode="ask")
@click.argument("name", metavar="[KIND]", required=False)
@click.option("--id", "pattern", help="Only ids like this pattern, such as import-*.")
@click.option("--reason", default="", help="Why: those who are refused are told.")
async def strike_kind(call: Call, name: str | None, pattern: str | None, reason: str) -> None:
    """Refuse messages of a kind, or whose ids match a pattern, when they are submitted."""
    _need_process(call, "strikes")
    if name is None and pattern is None:
        raise Failure("it is not said what to refuse", "name a kind, or --id 'import-*'")
    answer = await call.desk.ask("kind.strike", kind=name, id=pattern, reason=reason)
    _say(call, answer, "struck: " + "; ".join(answer["struck"]))


@command(kind, "unstrike", mode="ask")
@click.argument("name", metavar="[KIND]", required=False)
@click.option("--id", "pattern", help="The pattern of ids that was struck.")
async def unstrike_kind(call: Call, name: str | None, pattern: str | None) -> None:
    """Let in again what was struck."""
    _need_process(call, "strikes")
    answer = await call.desk.ask("kind.unstrike", kind=name, id=pattern)
    _say(call, answer, "struck: " + ("; ".join(answer["struck"]) or "nothing"))


def _whom(name: str | None) -> str:
    return "everything" if name is None else f"kind {name!r}"


def _say(call: Call, answer: object, text: str) -> None:
    if call.screen.is_json:
        call.screen.data(answer)
    else:
        call.screen.say(text)
