"""`epoch list|show|wait|seal|cancel` and `message show|explain|cancel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from naviscope_ingest.cli.commands import Call, Duration, Group, command
from naviscope_ingest.cli.failures import Exit
from naviscope_ingest.cli.screen import Cell, Column, moment, some, span
from naviscope_ingest.cli.waiting import show_waiting

__all__ = ["epoch", "message", "outcome", "say_report"]

_COLUMNS: Final = (
    Column("epoch", is_wide=True),
    Column("state"),
    Column("messages", is_number=True),
    Column("left", is_number=True),
    Column("done", 2, is_number=True),
    Column("dead", is_number=True),
    Column("skipped", 4, is_number=True),
    Column("cancelled", 3, is_number=True),
    Column("expired", 3, is_number=True),
    Column("opened", 6),
    Column("completed", 5),
)

_STATES: Final = ("open", "sealed", "completed", "repairing", "unfinished", "failed")


@click.group(cls=Group)
def epoch() -> None:
    """Batches of messages."""


@click.group(cls=Group)
def message() -> None:
    """Single messages."""


def outcome(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return how an epoch stands, with a style."""
    if report["state"] == "completed":
        return ("completed", "green") if report["succeeded"] else ("failed", "red")
    if report["is_blocked"]:
        return "blocked", "yellow"
    return str(report["state"]), "cyan"


def _bad(count: int) -> Cell:
    return (f"{count:,}", "red") if count else "0"


def _row(report: Mapping[str, Any]) -> Sequence[Cell]:
    return (
        report["name"],
        outcome(report),
        report["submitted"],
        report["unfinished"],
        report["committed"],
        _bad(report["dead"]),
        report["skipped"],
        _bad(report["cancelled"]),
        _bad(report["expired"]),
        moment(report["opened_at"]),
        moment(report["completed_at"]),
    )


@command(epoch, "list", mode="ask")
@click.argument("name", required=False)
@click.option("--state", type=click.Choice(_STATES), help="Only epochs in this state.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
async def list_epochs(call: Call, name: str | None, state: str | None, limit: int) -> None:
    """List epochs, the newest first; with NAME those whose name has that in it."""
    found = await call.desk.ask("epoch.list", name=name, state=state, limit=limit)
    if call.screen.is_json:
        call.screen.data(found)
        return
    call.screen.table(_COLUMNS, [_row(each) for each in found], empty="no epochs")
    if len(found) == limit:
        call.screen.note(f"the newest {limit} are shown: --limit shows more")


def say_report(call: Call, report: Mapping[str, Any]) -> None:
    """Print what an epoch came to, or how it stands."""
    counts = [f"{report[name]:,} {name}" for name in ("committed", "dead", "skipped", "cancelled", "expired")]
    left = f"{report['unfinished']:,} unfinished" if report["unfinished"] else ""
    call.screen.facts(
        [
            ("epoch", f"{report['name']} (number {report['number']})"),
            ("state", outcome(report)),
            ("messages", f"{report['submitted']:,}"),
            ("", ", ".join([each for each in counts if not each.startswith("0 ")] + ([left] if left else []))),
            ("duplicates", f"{report['duplicates']:,}" if report["duplicates"] else None),
            ("conflicts", (f"{report['conflicts']:,}", "yellow") if report["conflicts"] else None),
            ("dropped", (f"{report['dropped']:,}", "yellow") if report["dropped"] else None),
            ("repaired", some(report["revision"], "time") if report["revision"] else None),
            ("opened", moment(report["opened_at"])),
            ("sealed", moment(report["sealed_at"])),
            ("completed", _completed(report)),
        ]
    )
    for failure in report["failures"][:20]:
        causes = f" (because of {', '.join(failure['causes'][:3])})" if failure["causes"] else ""
        call.screen.say(f"  {failure['end']}: {failure['message_id']}: {failure['error']}{causes}", "red")
    bad = report["dead"] + report["cancelled"] + report["expired"]
    if bad > 20:
        call.screen.say(f"  … and {bad - 20:,} others: naviscope-ingest dead-letter group shows what they share", "dim")


def _completed(report: Mapping[str, Any]) -> str:
    at, since = report["completed_at"], report["opened_at"]
    if at is None:
        return ""
    return moment(at) + (f", after {span(at - since)}" if since is not None and at >= since else "")


@command(epoch, "show", mode="ask")
@click.argument("name", metavar="EPOCH")
async def show_epoch(call: Call, name: str) -> Exit | None:
    """Show how an epoch stands, and what holds it if it is not done."""
    found = await call.desk.ask("epoch.show", epoch=name)
    if call.screen.is_json:
        call.screen.data(found)
        return None
    say_report(call, found["report"])
    why = found["why"]
    if why is not None:
        if why["reasons"]:
            call.screen.say("")
            call.screen.say("what holds it:", "bold")
        for reason in why["reasons"]:
            call.screen.say(f"  {reason['messages']:>7,}  {reason['text']}")
        call.note_rest()
    return None


@command(epoch, "wait", mode="ask")
@click.argument("name", metavar="EPOCH")
@click.option("--timeout", type=Duration(), help="How long to wait at most.")
@click.option("--until", type=click.Choice(["completed", "blocked"]), default="completed", show_default=True)
async def wait_for_epoch(call: Call, name: str, timeout: float | None, until: str) -> Exit:
    """Wait until an epoch has completed, and show its report.

    "blocked" ends as well when all that remains waits for a person or the world.
    """
    report = await show_waiting(call.screen, call.desk.stream("epoch.wait", epoch=name, timeout=timeout, until=until))
    if call.screen.is_json:
        call.screen.data(report)
    else:
        say_report(call, report)
    if report["state"] != "completed":
        return Exit.NOT_YET
    return Exit.DONE if report["succeeded"] else Exit.BAD_NEWS


@command(epoch, "seal", mode="change")
@click.argument("name", metavar="EPOCH")
async def seal_epoch(call: Call, name: str) -> None:
    """Take no more messages into an epoch, so that it can complete."""
    _done(call, await call.desk.ask("epoch.seal", epoch=name), "sealed")


@command(epoch, "cancel", mode="change")
@click.argument("name", metavar="EPOCH")
@click.option("--yes", is_flag=True, help="Do not ask.")
async def cancel_epoch(call: Call, name: str, yes: bool) -> None:
    """Seal an epoch and cancel what has not ended."""
    report = (await call.desk.ask("epoch.show", epoch=name))["report"]
    if not yes and call.screen.is_terminal and report["unfinished"]:
        click.confirm(f"cancel {some(report['unfinished'], 'message')} of epoch {name!r}?", abort=True, err=True)
    _done(call, await call.desk.ask("epoch.cancel", epoch=name), "cancelled")


def _done(call: Call, report: Mapping[str, Any], what: str) -> None:
    if call.screen.is_json:
        call.screen.data(report)
        return
    ended = f", {some(report['cancelled'], 'message')} cancelled" if report["cancelled"] else ""
    call.screen.say(f"epoch {report['name']!r} is {what}{ended}: {outcome(report)[0]}")


@command(message, "show", mode="ask")
@click.argument("epoch_name", metavar="EPOCH")
@click.argument("message_id", metavar="ID")
async def show_message(call: Call, epoch_name: str, message_id: str) -> None:
    """Show what a message is and how it stands."""
    found = await call.desk.ask("message.show", epoch=epoch_name, id=message_id)
    if call.screen.is_json:
        call.screen.data(found)
        return
    known, letter = found["message"] or {}, found["dead_letter"] or {}
    waits = known.get("depends_on", []) + known.get("added", [])
    call.screen.facts(
        [
            ("message", f"{found['id']} of epoch {found['epoch']}"),
            ("state", _state(found)),
            ("since", moment(found["since"])),
            ("kind", known.get("kind")),
            ("key", known.get("key")),
            ("priority", str(known["priority"]) if known.get("priority") else None),
            ("depends on", ", ".join(map(say_dependency, waits))),
            ("not before", moment(known.get("not_before"))),
            ("expires at", moment(known.get("expires_at"))),
            ("run", str(found["run"]) if found["run"] else None),
            ("error", (letter["error"], "red") if letter else None),
        ]
    )
    if letter:
        call.screen.note(f"naviscope-ingest dead-letter show {epoch_name} {message_id} shows payload and attempts")
    elif found["state"] != "ended":
        call.screen.note(f"naviscope-ingest message explain {epoch_name} {message_id} says what holds it")


def _state(found: Mapping[str, Any]) -> Cell:
    styles = {"committed": "green", "dead": "red", "expired": "red", "cancelled": "red", "skipped": "yellow"}
    return (found["end"], styles.get(found["end"], "")) if found["end"] else (str(found["state"]), "cyan")


def say_dependency(plain: Any) -> str:  # noqa: ANN401 - a text or an object
    """Return a dependency in words."""
    if isinstance(plain, str):
        return plain
    word = next(iter(plain))
    if word == "any_of":
        return f"{plain['at_least']} of ({', '.join(map(say_dependency, plain['any_of']))})"
    more = f" of epoch {plain['epoch']}" if word == "message" and "epoch" in plain else ""
    version = f" from version {plain['min_version']}" if plain.get("min_version") else ""
    return f"{word} {plain[word]}{more}{version}"


@command(message, "explain", mode="ask")
@click.argument("epoch_name", metavar="EPOCH")
@click.argument("message_id", metavar="ID")
async def explain_message(call: Call, epoch_name: str, message_id: str) -> None:
    """Say why a message is not done: what holds it, what would release it, and what waits for it."""
    found = await call.desk.ask("message.explain", epoch=epoch_name, id=message_id)
    if call.screen.is_json:
        call.screen.data(found)
        return
    call.screen.facts(
        [
            ("message", f"{found['id']} of epoch {found['epoch']}"),
            ("state", _state(found)),
            ("since", moment(found["since"])),
        ]
    )
    for reason in found["reasons"]:
        release = f"; released when {reason['release']}" if reason["release"] and not found["end"] else ""
        until = f" (until {moment(reason['until'])})" if reason["until"] else ""
        call.screen.say(f"  {reason['kind']}: {reason['text']}{until}{release}")
    if found["more_reasons"]:
        call.screen.say(f"  … and {found['more_reasons']:,} others", "dim")
    if found["waiting"]:
        ids = ", ".join(each["id"] for each in found["waiting"][:10])
        count = len(found["waiting"]) + found["more_waiting"]
        call.screen.say(f"waiting for it: {count:,}: {ids}{' …' if count > 10 else ''}")
    if not found["end"]:
        call.note_rest()


@command(message, "cancel", mode="change")
@click.argument("epoch_name", metavar="EPOCH")
@click.argument("message_id", metavar="ID")
async def cancel_message(call: Call, epoch_name: str, message_id: str) -> Exit:
    """Cancel a message that has not ended."""
    found = await call.desk.ask("message.cancel", epoch=epoch_name, id=message_id)
    if call.screen.is_json:
        call.screen.data(found)
    elif found["cancelled"]:
        call.screen.say(f"message {message_id!r} is cancelled")
    else:
        call.screen.say(f"message {message_id!r} has ended, or is being committed: nothing was changed", "yellow")
    return Exit.DONE if found["cancelled"] else Exit.BAD_NEWS
