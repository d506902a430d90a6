"""`submit`: JSON lines into an epoch, with progress for those who look."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec
import trio
from attrs import define, field, frozen
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from naviscope_ingest.cli.commands import Call, Duration, Moment, command
from naviscope_ingest.cli.failures import Exit, Failure, failure_of
from naviscope_ingest.console import Refused
from naviscope_ingest.plain_messages import FIELDS, message_of
from naviscope_spi import InvalidMessage

__all__ = ["declare_submit"]

_CHUNK: Final = 500
_CHUNK_BYTES: Final = 8 * 1024 * 1024
_LONGEST: Final = 32 * 1024 * 1024
"""The longest line, in bytes."""

_FIELDS = "\n\n".join(f"{name}: {meaning}" for name, meaning in FIELDS.items())

_HELP: Final = f"""Submit messages from FILES of JSON lines, or from the standard input.

Each line is an object:

{_FIELDS}

A dependency is an id, or an object such as {{"resource": "rates", "min_version": 3}}, {{"barrier": "order"}},
{{"message": "a", "epoch": "monday"}}, {{"epoch": "sunday"}} or {{"any_of": ["a", "b"], "at_least": 1}}, each with
otherwise, timeout and on_unresolved.

Lines are stored {_CHUNK} at a time. If one of them is bad, nothing of its {_CHUNK} is stored, and the error says file
and line. The same files can be submitted again: what is known already is counted, and not stored twice.
"""


@frozen
class _Line:
    """One line that means a message."""

    file: str
    number: int
    plain: Mapping[str, Any]
    size: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


@define
class _Total:
    """What the chunks came to."""

    lines: int = 0
    accepted: int = 0
    duplicates: int = 0
    dropped: int = 0
    conflicts: list[str] = field(factory=list)

    def add(self, lines: Sequence[_Line], receipt: Mapping[str, Any]) -> None:
        self.lines += len(lines)
        self.accepted += receipt["accepted"]
        self.duplicates += receipt["duplicates"]
        self.dropped += receipt["dropped"]
        self.conflicts += receipt["conflicts"][: 1_000 - len(self.conflicts)]

    def view(self, report: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "epoch": report["name"],
            "number": report["number"],
            "state": report["state"],
            "lines": self.lines,
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "conflicts": self.conflicts,
            "dropped": self.dropped,
        }


def declare_submit(group: click.Group) -> None:
    """Add the command."""

    @command(group, "submit", mode="make")
    @click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
    @click.option("--epoch", "-e", help="Its name; one is made up unless it is given.")
    @click.option("--keep-open", is_flag=True, help="Do not seal the epoch: more will come.")
    @click.option("--kind", help="The kind of messages whose line names none.")
    @click.option("--strict", is_flag=True, help="An id that is known with another content is an error.")
    @click.option("--unique-for", type=Duration(), help="Remember kind and id for so long, over all epochs.")
    @click.option("--deadline", type=Moment(), help="What has not ended then expires.")
    @click.option("--wait", "waits", is_flag=True, help="Wait until the epoch has completed.")
    async def submit(call: Call, files: tuple[str, ...], **options: Any) -> Exit:  # noqa: ANN401 - the options above
        return await _submit(call, files or ("-",), options)

    submit.help = _HELP


async def _submit(call: Call, files: Sequence[str], options: Mapping[str, Any]) -> Exit:
    if files == ("-",) and sys.stdin.isatty():
        raise Failure("there is nothing to read", "name a file, or pipe JSON lines in")
    if options["waits"] and options["keep_open"]:
        raise Failure("--wait with --keep-open would wait for ever", "leave one of them out")
    total = _Total()
    with ExitStack() as stack:
        progress = _Progress(call, files)
        stack.callback(progress.stop)
        lines = stack.enter_context(closing(_read(files, options["kind"])))
        # The first chunk is read before anything is made: a file that is no JSON leaves nothing behind.
        chunk = await _next(lines)
        opened = await call.desk.ask("epoch.open", name=options["epoch"], deadline=options["deadline"])
        while chunk:
            try:
                receipt = await call.desk.ask(
                    "submit",
                    epoch=opened["name"],
                    messages=[line.plain for line in chunk],
                    strict=options["strict"],
                    unique_for=options["unique_for"],
                )
                total.add(chunk, receipt)
                progress.advance(chunk, total)
                chunk = await _next(lines)
            except (Refused, Failure) as error:
                raise _with_place(error, chunk, total, opened["name"]) from error
    verb = "epoch.show" if options["keep_open"] else "epoch.seal"
    found = await call.desk.ask(verb, epoch=opened["name"])
    report = found["report"] if options["keep_open"] else found
    return await _finish(call, total, report, waits=options["waits"])


async def _finish(call: Call, total: _Total, report: Mapping[str, Any], *, waits: bool) -> Exit:
    from naviscope_ingest.cli.epochs import say_report
    from naviscope_ingest.cli.waiting import show_waiting

    if waits:
        report = await show_waiting(call.screen, call.desk.stream("epoch.wait", epoch=report["name"]))
    if call.screen.is_json:
        call.screen.data(total.view(report) | ({"report": report} if waits else {}))
    else:
        more = f", {total.dropped:,} dropped" if total.dropped else ""
        call.screen.say(
            f"epoch {report['name']!r}: {total.accepted:,} accepted, {total.duplicates:,} known already{more}"
        )
        for each in total.conflicts[:10]:
            call.screen.note(f"conflict: {each} was known with another content, which counts", "yellow")
        if waits:
            say_report(call, report)
        else:
            call.note_rest()
    if waits:
        return Exit.DONE if report["succeeded"] else Exit.BAD_NEWS
    return Exit.BAD_NEWS if total.dropped else Exit.DONE


def _with_place(error: Refused | Failure, chunk: Sequence[_Line], total: _Total, epoch: str) -> Failure:
    """Say which line is wrong, as well as that can be told, and what was stored before."""
    failure = failure_of(error)
    place = ""
    if isinstance(error, Refused):
        culprit = error.facts.get("message_id")
        lines = [line for line in chunk if line.plain.get("id") == culprit] if culprit is not None else []
        place = f"{(lines or chunk)[0].place}{'' if lines else ' and what follows'}: "
    stored = f"; {total.lines:,} lines before were stored in epoch {epoch!r}" if total.lines else "; nothing was stored"
    return Failure(f"{place}{failure.reason}{stored}", failure.hint, failure.code)


async def _next(lines: Iterator[list[_Line]]) -> list[_Line]:
    return await trio.to_thread.run_sync(partial(next, lines, []), abandon_on_cancel=True)


def _read(files: Sequence[str], kind: str | None) -> Generator[list[_Line], None, None]:
    """Yield the lines of all files, chunk by chunk. A chunk with a bad line is not yielded."""
    chunk: list[_Line] = []
    size = 0
    for line in itertools.chain.from_iterable(_lines(name, kind) for name in files):
        chunk.append(line)
        size += line.size
        if len(chunk) == _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _lines(name: str, kind: str | None) -> Iterator[_Line]:
    with ExitStack() as stack:
        file: IO[bytes] = sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))
        shown = "stdin" if name == "-" else name
        for number in itertools.count(1):
            line = file.readline(_LONGEST + 1)
            if not line:
                return
            if len(line) > _LONGEST:
                raise Failure(f"{shown}:{number}: the line is longer than {_LONGEST:,} bytes", "store it elsewhere")
            if not line.isspace():
                yield _Line(shown, number, _checked(line, f"{shown}:{number}", kind), len(line))


def _checked(line: bytes, place: str, kind: str | None) -> Mapping[str, Any]:
    try:
        plain = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Failure(f"{place}: it is no JSON: {error}", 'each line is one object, such as {"id": "a"}') from error
    if kind is not None and isinstance(plain, dict):
        plain.setdefault("kind", kind)
    try:
        message_of(plain)
    except InvalidMessage as error:
        raise Failure(f"{place}: {error}", "see naviscope-ingest submit --help for what a line may say") from error
    assert isinstance(plain, dict)
    return plain


class _Progress:
    """Shows how far it is, to those who look."""

    def __init__(self, call: Call, files: Sequence[str]) -> None:
        self._progress: Progress | None = None
        self._task = TaskID(0)
        if not call.screen.errors.is_terminal or call.screen.is_json:
            return
        total = None if "-" in files else sum(Path(each).stat().st_size for each in files)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=call.screen.errors,
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("reading", total=total)

    def advance(self, chunk: Sequence[_Line], total: _Total) -> None:
        if self._progress is not None:
            text = f"{total.accepted:,} accepted" + (f", {total.duplicates:,} known" if total.duplicates else "")
            self._progress.update(self._task, advance=sum(line.size for line in chunk), description=text)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
