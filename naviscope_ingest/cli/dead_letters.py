"""`dead-letter list|group|show|replay|discard|export|import|audit`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
import trio

from naviscope_ingest.cli.commands import Call, Group, Moment, command, operator
from naviscope_ingest.cli.failures import Exit, Failure
from naviscope_ingest.cli.screen import Column, moment, some
from naviscope_ingest.failures import ERROR_KINDS

__all__ = ["dead_letter"]

C = TypeVar("C", bound=Callable[..., Any])

_COLUMNS: Final = (
    Column("epoch", 4, is_wide=True),
    Column("id", is_wide=True),
    Column("kind", 3),
    Column("end", 6),
    Column("ended", 5),
    Column("tried", 7, is_number=True),
    Column("error", is_wide=True),
)

_GROUPS: Final = (
    Column("fingerprint"),
    Column("letters", is_number=True),
    Column("error kind", 4),
    Column("last seen", 5),
    Column("example", 3, is_wide=True),
    Column("error", is_wide=True),
)


@click.group("dead-letter", cls=Group)
def dead_letter() -> None:
    """Messages that ended dead or expired: find, mend, replay, discard them."""


def _filters(function: C) -> C:
    """Add the options that say which letters."""
    options = (
        click.option("--epoch", "-e", help="Of this epoch."),
        click.option("--id", "message_id", help="Of the message with this id."),
        click.option("--kind", help="Of messages of this kind."),
        click.option(
            "--error-kind",
            type=click.Choice(ERROR_KINDS),
            metavar="KIND",
            help=f"With this kind of error: {', '.join(ERROR_KINDS)}.",
        ),
        click.option("--fingerprint", help="That failed alike: see dead-letter group."),
        click.option("--end", type=click.Choice(["dead", "expired"]), help="That ended so."),
        click.option("--since", type=Moment(), help="That ended since this time: 2026-11-18T20:00:00Z, or 2h."),
        click.option("--until", type=Moment(), help="That ended before this time."),
    )
    decorated = function
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def _where(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filters.items() if value is not None}


def _check_any(where: Mapping[str, Any], verb: str, *, is_all: bool) -> dict[str, Any]:
    """Refuse to change every letter by a slip."""
    if is_all and where:
        raise Failure("--all and other filters exclude each other", "leave one of them out")
    if not where and not is_all:
        raise Failure(f"it is not said which letters to {verb}", "name some, such as --epoch NAME; --all means all")
    return {"since": 0.0} if is_all else dict(where)


@command(dead_letter, "list", mode="ask")
@_filters
@click.option("--limit", type=click.IntRange(1), help="How many at most.  [default: 100; all with --json]")
async def list_letters(call: Call, limit: int | None, **filters: Any) -> None:  # noqa: ANN401 - the options above
    """List dead letters, in the order in which their messages were accepted. `--json` prints one on each line."""
    most = limit if call.screen.is_json or limit is not None else 100
    rows = []
    async for letter in call.desk.stream("dead-letter.list", **_where(filters), limit=most):
        if call.screen.is_json:
            call.screen.line(letter)
            continue
        rows.append(
            (
                letter["epoch"],
                letter["id"],
                letter["kind"],
                letter["end"],
                moment(letter["ended_at"]),
                letter["tried"],
                (letter["error"], "red"),
            )
        )
    if not call.screen.is_json:
        call.screen.table(_COLUMNS, rows, empty="no dead letters")
        if len(rows) == most:
            call.screen.note(f"the first {most} are shown: --limit shows more, dead-letter group counts all")


@command(dead_letter, "group", mode="ask")
@_filters
async def group_letters(call: Call, **filters: Any) -> None:  # noqa: ANN401 - the options above
    """Count dead letters that failed alike, the largest group first."""
    groups = await call.desk.ask("dead-letter.group", **_where(filters))
    if call.screen.is_json:
        call.screen.data(groups)
        return
    rows = [
        (
            group["fingerprint"],
            group["count"],
            group["error_kind"] or "",
            moment(group["last_seen"]),
            f"{group['example']['epoch']} {group['example']['id']}",
            (group["example"]["error"], "red"),
        )
        for group in groups
    ]
    call.screen.table(_GROUPS, rows, empty="no dead letters")


@command(dead_letter, "show", mode="ask")
@click.argument("epoch_name", metavar="EPOCH")
@click.argument("message_id", metavar="ID")
async def show_letter(call: Call, epoch_name: str, message_id: str) -> None:
    """Show one dead letter: its message, its payload and every attempt that is kept."""
    letter = await call.desk.ask("dead-letter.show", epoch=epoch_name, id=message_id)
    if call.screen.is_json:
        call.screen.data(letter)
        return
    message, edited = letter["message"], letter["edited"]
    causes = ", ".join(f"{each['id']} of {each['epoch']}" for each in letter["causes"])
    back = some(letter["brings_back"], "message")
    call.screen.facts(
        [
            ("message", f"{letter['id']} of epoch {letter['epoch']}"),
            ("end", (letter["end"], "red")),
            ("ended", moment(letter["ended_at"])),
            ("error", (letter["error"], "red")),
            ("error kind", letter["error_kind"]),
            ("fingerprint", letter["fingerprint"]),
            ("kind", letter["kind"]),
            ("run", str(letter["run"])),
            ("tried", some(letter["tried"], "time")),
            ("because of", causes),
            ("a replay", "in vain: replay what it follows from" if letter["follows"] else f"brings back {back}"),
            ("payload", message.get("payload_error") or _json(message["payload"])),
            ("edited", None if edited is None else _json(edited["payload"])),
            ("headers", _json(message["headers"]) if message["headers"] else None),
        ]
    )
    for attempt in letter["attempts"]:
        call.screen.say("")
        call.screen.say(f"attempt {attempt['attempt']} at {moment(attempt['at'])}, by {attempt['worker']}", "bold")
        for line in (attempt["stack"] or attempt["error"]).splitlines():
            call.screen.say(f"  {line}", "dim")


def _json(value: Any) -> str:  # noqa: ANN401 - plain data
    return msgspec.json.encode(value).decode()


@command(dead_letter, "replay", mode="change")
@_filters
@click.option("--all", "is_all", is_flag=True, help="All letters.")
@click.option("--patch", "patches", multiple=True, metavar="PATH=JSON", help="Replace a part of the payload.")
@click.option("--payload", metavar="JSON", help="A whole new payload, for one message.")
@click.option("--per-second", type=float, help="How many letters in a second at most.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--reason", default="", help="Why, for the audit.")
@click.option("--who", default=operator, show_default="the user", help="Who, for the audit.")
async def replay_letters(  # noqa: PLR0917 - options
    call: Call,
    is_all: bool,
    patches: tuple[str, ...],
    payload: str | None,
    per_second: float | None,
    dry_run: bool,
    reason: str,
    who: str,
    **filters: Any,  # noqa: ANN401 - the options above
) -> Exit:
    """Run letters again, and everything that their ends took down.

    --patch lines.3.amount=5 replaces a part of each payload; what it names must be there. A value is JSON, or else a
    text.
    """
    where = _check_any(_where(filters), "replay", is_all=is_all)
    more: dict[str, Any] = {}
    if patches:
        more["patch"] = dict(map(_patch, patches))
    if payload is not None:
        more["payload"] = _read_json("--payload", payload)
    receipt = await call.desk.ask(
        "dead-letter.replay", **where, **more, per_second=per_second, dry_run=dry_run, who=who, reason=reason
    )
    if call.screen.is_json:
        call.screen.data(receipt)
    else:
        done, brought = ("would be replayed", "would bring") if dry_run else ("replayed", "brought")
        call.screen.say(
            f"{some(receipt['letters'], 'letter')} {done}, which {brought} back {some(receipt['revived'], 'message')}"
        )
        if receipt["followers"]:
            call.screen.say(f"{receipt['followers']:,} only followed from others, and come back with those", "dim")
        if receipt["letters"] and not dry_run:
            call.note_rest()
    return Exit.DONE if receipt["letters"] else Exit.BAD_NEWS


def _patch(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not (path and equals):
        raise Failure(f"--patch {text}: it names no path and value", "write --patch lines.3.amount=5")
    try:
        return path, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return path, value


def _read_json(option: str, text: str) -> Any:  # noqa: ANN401 - plain data
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Failure(f"{option} is no JSON: {error}", "write a text in quotes: --payload '\"text\"'") from error


@command(dead_letter, "discard", mode="change")
@_filters
@click.option("--all", "is_all", is_flag=True, help="All letters.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--who", default=operator, show_default="the user", help="Who, for the audit.")
async def discard_letters(
    call: Call,
    is_all: bool,
    dry_run: bool,
    reason: str,
    who: str,
    **filters: Any,  # noqa: ANN401 - the options above
) -> Exit:
    """Give letters up: they stay dead, and cannot be replayed any more."""
    where = _check_any(_where(filters), "discard", is_all=is_all)
    receipt = await call.desk.ask("dead-letter.discard", **where, dry_run=dry_run, who=who, reason=reason)
    if call.screen.is_json:
        call.screen.data(receipt)
    else:
        call.screen.say(f"{some(receipt['letters'], 'letter')} {'would be ' if dry_run else ''}discarded")
    return Exit.DONE if receipt["letters"] else Exit.BAD_NEWS


@command(dead_letter, "export", mode="change")
@_filters
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="A file; the standard output unless given.")
@click.option("--reason", default="", help="Why, for the audit.")
@click.option("--who", default=operator, show_default="the user", help="Who, for the audit.")
async def export_letters(
    call: Call,
    output: str | None,
    reason: str,
    who: str,
    **filters: Any,  # noqa: ANN401 - the options above
) -> None:
    """Print letters as JSON lines, to be read, edited and imported elsewhere. It leaves an audit entry."""
    count = 0
    lines = call.desk.stream("dead-letter.export", **_where(filters), who=who, reason=reason)
    if output is None:
        async for line in lines:
            call.screen.text(line)
        return
    async with await trio.open_file(output, "x", encoding="utf-8") as file:
        async for line in lines:
            await file.write(f"{line}\n")
            count += 1
    call.screen.note(f"{some(count, 'letter')} in {output}")


@command(dead_letter, "import", mode="make")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--epoch", "-e", required=True, help="The epoch that they go to; made if there is none.")
@click.option("--keep-open", is_flag=True, help="Do not seal the epoch.")
@click.option("--reason", default="", help="Why, for the audit.")
@click.option("--who", default=operator, show_default="the user", help="Who, for the audit.")
async def import_letters(  # noqa: PLR0917 - options
    call: Call, file: str, epoch: str, keep_open: bool, reason: str, who: str
) -> None:
    """Submit exported letters as new messages of an epoch. All lines are checked before any is submitted."""
    text = await trio.to_thread.run_sync(sys.stdin.read if file == "-" else Path(file).read_text)
    await call.desk.ask("epoch.open", name=epoch)
    receipt = await call.desk.ask("dead-letter.import", epoch=epoch, lines=text.splitlines(), who=who, reason=reason)
    if not keep_open:
        await call.desk.ask("epoch.seal", epoch=epoch)
    if call.screen.is_json:
        call.screen.data(receipt)
        return
    call.screen.say(f"{receipt['accepted']:,} letters imported, {receipt['duplicates']:,} known already")
    call.note_rest()


@command(dead_letter, "audit", mode="ask")
@click.option("--epoch", "-e", help="Of this epoch.")
@click.option("--id", "message_id", help="Of the message with this id.")
@click.option("--since", type=Moment(), default=0.0, help="Since this time.")
async def audit_letters(call: Call, epoch: str | None, message_id: str | None, since: float) -> None:
    """Say who replayed, discarded, exported or imported what, and why. `--json` prints one entry on each line."""
    rows = []
    async for entry in call.desk.stream("dead-letter.audit", epoch=epoch, message_id=message_id, since=since):
        if call.screen.is_json:
            call.screen.line(entry)
            continue
        what = f"{entry['epoch']} {entry['message_id']}".strip()
        rows.append((moment(entry["at"]), entry["who"], entry["action"], what, entry["messages"], entry["reason"]))
    if not call.screen.is_json:
        columns = (
            Column("at"),
            Column("who"),
            Column("did"),
            Column("what", is_wide=True),
            Column("messages", 3, is_number=True),
            Column("why", 2, is_wide=True),
        )
        call.screen.table(columns, rows, empty="no entries")
