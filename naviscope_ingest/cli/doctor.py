"""`doctor`: looks at everything that may be wrong around a store, and says what to do."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

import apsw
import click
from attrs import asdict, frozen

from naviscope_ingest.cli.commands import Call, command
from naviscope_ingest.cli.failures import Exit, Failure, failure_of
from naviscope_ingest.cli.screen import some
from naviscope_ingest.cli.stores import size
from naviscope_ingest.cli.targets import Target, environment, load_app
from naviscope_ingest.console import control_path, is_served
from naviscope_ingest.errors import ConfigurationError
from naviscope_ingest.intake import IntakeHandle
from naviscope_ingest.runtime import IngestRuntime
from naviscope_ingest.settings import load_settings
from naviscope_ingest.stores.sqlite.lockfile import holder_of

__all__ = ["Finding", "declare_doctor"]

_LEAST_SQLITE: Final = (3, 51, 3)
"""Earlier ones can damage a file that two connections write to or checkpoint at once."""

_LEAST_ROOM: Final = 512 * 1024 * 1024
_LARGE_LOG: Final = 128 * 1024 * 1024

_STYLES: Final = {"good": "green", "note": "yellow", "bad": "bold red"}


@frozen
class Finding:
    """One thing that was looked at.

    Attributes:
        what: the thing.
        verdict: good; worth a note; bad.
        text: how it is.
        cure: what to do, if it is not good.
    """

    what: str
    verdict: Literal["good", "note", "bad"]
    text: str
    cure: str = ""


def declare_doctor(group: click.Group) -> None:
    """Add the command."""

    @command(group, "doctor", mode="none")
    @click.option("--store", "-s", metavar="FILE|URL", help="The store.  [env: NAVISCOPE_STORE]")
    @click.option("--config", metavar="FILE", help="The configuration.  [env: NAVISCOPE_CONFIG]")
    @click.option("--app", "-a", metavar="MODULE:APP", help="An app, to see whether it can be loaded.")
    async def doctor(call: Call) -> Exit:
        """Look at Python, SQLite, the store, its process, its disk and its permissions, and say what to do."""
        findings = [*_environment(), *_configuration(call.target), *_app(call.target)]
        file = _file(call.target, findings)
        if file is not None:
            findings += _around(file)
            if file.exists():
                findings += await _inside(file)
        if call.screen.is_json:
            call.screen.data([asdict(each) for each in findings])
        else:
            _say(call, findings)
        return Exit.BAD_NEWS if any(each.verdict == "bad" for each in findings) else Exit.DONE


def _say(call: Call, findings: list[Finding]) -> None:
    width = max(len(each.what) for each in findings)
    for each in findings:
        call.screen.say(f"{each.verdict:<4}  {each.what:<{width}}  {each.text}", _STYLES[each.verdict])
        if each.cure:
            call.screen.say(f"{'':<4}  {'':<{width}}  → {each.cure}")


def _environment() -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding("python", "good", f"{python} on {platform.system()}")
    sqlite = apsw.sqlite_lib_version()
    if tuple(map(int, sqlite.split("."))) < _LEAST_SQLITE:
        yield Finding("sqlite", "bad", sqlite, "pip install -U apsw: this one can damage files")
    else:
        yield Finding("sqlite", "good", f"{sqlite}, by apsw {apsw.apsw_version()}")
    names = ("naviscope-ingest", "trio", "msgspec")
    yield Finding("packages", "good", ", ".join(f"{name} {_version(name)}" for name in names))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _configuration(target: Target) -> Iterator[Finding]:
    try:
        settings = load_settings(target.config, environ=environment())
    except ConfigurationError as error:
        for problem in error.problems:
            yield Finding("configuration", "bad", str(problem), "see docs/reference/configuration.md")
        return
    said = [each for each in settings.entries if each.origin.source != "default"]
    file = f"{settings.file}, " if settings.file is not None else ""
    yield Finding("configuration", "good", f"{file}{some(len(said), 'value')} other than the defaults")


def _app(target: Target) -> Iterator[Finding]:
    if target.app is None:
        return
    try:
        app = load_app(target.app, config=target.config)
    except Failure as failure:
        yield Finding("app", "bad", failure.reason, failure.hint)
        return
    if app.handlers:
        yield Finding("app", "good", f"handlers for {', '.join(app.handlers)}; its store is {app.url}")
    else:
        yield Finding("app", "bad", f"{target.app} has no handlers", "declare some with @app.handler(kind)")


def _file(target: Target, findings: list[Finding]) -> Path | None:
    try:
        file = target.file
    except Failure as failure:
        if target.app is None:
            findings.append(Finding("store", "note", failure.reason, failure.hint))
        return None
    if file is None:
        findings.append(Finding("store", "note", f"{target.url} is no file: there is nothing to look at"))
    return file


def _around(file: Path) -> Iterator[Finding]:
    """Look at the file from outside."""
    if not file.exists():
        if file.parent.is_dir():
            yield Finding("store", "note", f"there is no {file}", "naviscope-ingest run and submit make one")
        else:
            yield Finding("store", "bad", f"there is no folder {file.parent}", f"mkdir -p {file.parent}")
            return
    yield _room(file)
    yield from _permissions(file)
    yield _process(file)
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and (length := log.stat().st_size) > _LARGE_LOG:
        cure = "a reader keeps it from being copied, or its process died: the next start copies it"
        yield Finding("log", "note", f"{log.name} has {size(length)}", cure)


def _room(file: Path) -> Finding:
    free = shutil.disk_usage(file.parent).free
    length = file.stat().st_size if file.exists() else 0
    if free < max(_LEAST_ROOM, length // 10):
        return Finding("disk", "bad", f"{size(free)} free, and the store has {size(length)}", "make room")
    return Finding("disk", "good", f"{size(free)} free, and the store has {size(length)}")


def _permissions(file: Path) -> Iterator[Finding]:
    if not os.access(file.parent, os.W_OK):
        yield Finding("folder", "bad", f"{file.parent} cannot be written to", "log and lock stand beside the file")
    if not file.exists():
        return
    if not os.access(file, os.R_OK | os.W_OK):
        yield Finding("file", "bad", f"{file} cannot be written to", f"run as its owner, or chmod u+rw {file}")
    elif file.stat().st_mode & stat.S_IWOTH:
        yield Finding("file", "note", f"everybody may write to {file}", f"chmod o-w {file}")
    else:
        yield Finding("file", "good", f"mode {stat.S_IMODE(file.stat().st_mode):o}")


def _process(file: Path) -> Finding:
    holder, control = holder_of(file), control_path(file)
    if holder is None:
        if control.exists():
            cure = "its process died; the next start replaces it"
            return Finding("process", "note", f"none, and {control.name} is left over", cure)
        return Finding("process", "good", "none: the store is at rest")
    if is_served(control):
        return Finding("process", "good", f"{holder}, with a control socket")
    cure = "commands that change something need it to be stopped, or to serve one: serve_control(intake)"
    return Finding("process", "note", f"{holder}, without a control socket", cure)


async def _inside(file: Path) -> list[Finding]:
    """Look into the file."""
    try:
        intake: IntakeHandle[Any]
        async with IngestRuntime.at_rest(f"sqlite:///{file}", read_only=True) as intake:
            reports, found = intake.epochs(), intake.runtime.recovery
    except Exception as error:
        failure = failure_of(error)
        return [Finding("store", "bad", failure.reason, failure.hint)]
    left = sum(report.unfinished for report in reports)
    findings = [Finding("store", "good", f"{some(len(reports), 'epoch')}, {some(left, 'message')} unfinished")]
    if found.suspects and holder_of(file) is None:
        text = f"{some(found.suspects, 'message')} running when the last process died"
        findings.append(Finding("crash", "note", text, "the next start runs them one at a time"))
    dead = [report for report in reports if report.dead or report.expired]
    if dead:
        text = f"in {some(len(dead), 'epoch')}, now or before, such as {dead[-1].name}"
        findings.append(Finding("dead letters", "note", text, "naviscope-ingest dead-letter group"))
    blocked = [report for report in reports if report.is_blocked]
    if blocked:
        text = f"{some(len(blocked), 'epoch')} waiting for somebody, such as {blocked[0].name}"
        findings.append(Finding("blocked", "note", text, f"naviscope-ingest epoch show {blocked[0].name}"))
    return findings
