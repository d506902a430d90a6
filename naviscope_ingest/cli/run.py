"""`run`: an app as a process of its own, with signals, a control socket, a log, and restarts."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Literal

import click
import trio
from attrs import asdict, define, frozen
from rich.live import Live
from rich.text import Text

from naviscope_ingest._kernel.kernel import sole_error
from naviscope_ingest.cli.commands import Call, Duration, command
from naviscope_ingest.cli.epochs import outcome
from naviscope_ingest.cli.failures import Exit, Failure
from naviscope_ingest.cli.logs import logging_to
from naviscope_ingest.cli.screen import Column, Screen
from naviscope_ingest.cli.targets import load_app, url_of, where
from naviscope_ingest.cli.waiting import Pace
from naviscope_ingest.console import ControlUnavailable, is_supported, serve_control
from naviscope_ingest.console.views import report_view
from naviscope_ingest.errors import IngestError, RuntimeFailed, RuntimeStopped
from naviscope_ingest.handlers import Ingest
from naviscope_ingest.intake import IntakeHandle
from naviscope_spi import StoreRefused, SystemFailure

__all__ = ["backoffs", "declare_run"]

_log = logging.getLogger("naviscope_ingest")

_EVERY: Final = 0.25
_FIRST_DELAY, _LONGEST_DELAY, _STABLE = 1.0, 60.0, 300.0


@frozen
class _Options:
    """How an app is run."""

    until_idle: bool
    restarts: int
    drain_timeout: float | None
    serves: bool
    socket: str | None


@define
class _Ending:
    """How it ends.

    Attributes:
        signal: the signal that asked for it.
        reports: how the epochs stood that were worked on.
    """

    signal: int | None = None
    reports: tuple[Mapping[str, Any], ...] = ()


def declare_run(group: click.Group) -> None:
    """Add the command."""

    @command(group, "run", mode="none")
    @click.argument("app_name", metavar="MODULE:APP")
    @click.option("--store", "-s", metavar="FILE|URL", help="Another store than the app's own.")
    @click.option("--config", metavar="FILE", help="The configuration.  [env: NAVISCOPE_CONFIG]")
    @click.option("--until-idle", is_flag=True, help="End when nothing is left to do, with a report.")
    @click.option("--restart", is_flag=True, help="Start again when the runtime failed, after a growing delay.")
    @click.option("--max-restarts", type=click.IntRange(1), help="How often at most in a row.  [default: no limit]")
    @click.option("--drain-timeout", type=Duration(), help="How long what was started may take in the end.")
    @click.option("--control/--no-control", default=True, show_default=True, help="Serve a control socket.")
    @click.option("--socket", metavar="PATH", help="The control socket, if it is not to be beside the store.")
    @click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
    @click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
    )
    async def run(  # noqa: PLR0917 - options
        call: Call,
        app_name: str,
        until_idle: bool,
        restart: bool,
        max_restarts: int | None,
        drain_timeout: float | None,
        control: bool,
        log_format: Literal["text", "json"],
        log_level: str,
    ) -> Exit:
        """Run the app that MODULE:APP names: `shop:app` is `app` in shop.py of this folder.

        SIGTERM and Ctrl-C drain: nothing more is started, and what was started may finish. A second one stops at once.
        What did not finish goes on at the next start.
        """
        if max_restarts is not None and not restart:
            raise Failure("--max-restarts without --restart", "add --restart")
        app = load_app(app_name, _store(call), config=call.target.config)
        restarts = (1 << 30 if max_restarts is None else max_restarts) if restart else 0
        options = _Options(until_idle, restarts, drain_timeout, control, call.target.socket)
        with logging_to(call.screen.errors, log_format, log_level), _theirs(app_name):
            ending = await _keep_running(app, options, call.screen)
        return _finish(call.screen, ending, until_idle=until_idle)


@contextmanager
def _theirs(app_name: str) -> Iterator[None]:
    """Say of what the app's own code raises, such as a sink that cannot be opened, that it is the app's."""
    try:
        yield
    except (Failure, IngestError, StoreRefused, SystemFailure, OSError):
        raise
    except Exception as error:
        only = sole_error(error)
        if not isinstance(only, Exception) or isinstance(only, Failure | IngestError | StoreRefused | SystemFailure):
            raise
        raise Failure(f"{app_name} failed: {where(only)}", "--debug shows the traceback", Exit.FAILED) from error


def _store(call: Call) -> str | None:
    return None if call.target.store is None else url_of(call.target.store)


async def _keep_running(app: Ingest, options: _Options, screen: Screen) -> _Ending:
    """Run until somebody wants an end, or the runtime has failed once too often."""
    delays = backoffs()
    left = options.restarts
    while True:
        started = time.monotonic()
        try:
            return await _run_once(app, options, screen)
        except RuntimeFailed as error:
            if time.monotonic() - started > _STABLE:
                delays, left = backoffs(), options.restarts
            if not left:
                raise
            left -= 1
            delay = next(delays)
            cause = error.__cause__ or error
            _log.error("the runtime failed: %s; it starts again in %g s", cause, delay, extra={"delay": delay})
            ending = _Ending()
            if await _sleep_unless_asked(delay, ending):
                return ending


def backoffs() -> Iterator[float]:
    """Yield the delays before restarts, in seconds: each twice as long as the one before, up to a minute."""
    delay = _FIRST_DELAY
    while True:
        yield delay
        delay = min(_LONGEST_DELAY, 2 * delay)


async def _sleep_unless_asked(delay: float, ending: _Ending) -> bool:
    """Sleep; tell whether a signal asked for the end meanwhile."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        with trio.move_on_after(delay):
            async for number in signals:
                ending.signal = number
                return True
    return False


async def _run_once(app: Ingest, options: _Options, screen: Screen) -> _Ending:
    ending = _Ending()
    with trio.CancelScope() as scope:
        async with app.running() as intake, trio.open_nursery() as nursery:
            # Before anybody can find the socket: whoever does may well send a signal.
            await nursery.start(_obey_signals, intake, options, ending, scope)
            async with _controlled(intake, options):
                before = {report.number for report in intake.epochs() if report.is_completed}
                nursery.start_soon(_show, intake, screen)
                if options.until_idle:
                    await _until_idle(intake)
                else:
                    await intake.runtime.wait_ended()
                reports = [report for report in intake.epochs() if report.number not in before]
                ending.reports = tuple(report_view(report) for report in reports)
            nursery.cancel_scope.cancel()
    return ending


@asynccontextmanager
async def _controlled(intake: IntakeHandle[Any], options: _Options) -> AsyncIterator[None]:
    """Serve a control socket if there can be one."""
    has_place = options.socket is not None or getattr(intake.runtime.store, "path", None) is not None
    if not (options.serves and has_place and is_supported()):
        yield
        return
    try:
        async with serve_control(intake, options.socket):
            yield
    except ControlUnavailable as error:
        raise Failure(
            str(error), "--socket names another place, --no-control does without", Exit.UNAVAILABLE
        ) from error


async def _until_idle(intake: IntakeHandle[Any]) -> None:
    # Whoever asked for the end meanwhile gets it: then it never becomes quiet.
    with suppress(RuntimeStopped):
        await intake.wait_quiet()
        return
    await intake.runtime.wait_ended()


async def _obey_signals(
    intake: IntakeHandle[Any],
    options: _Options,
    ending: _Ending,
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Drain at the first signal, and stop at once at the second."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            if ending.signal is not None:
                _log.warning("stopping at once: what was started is handed back")
                scope.cancel()
                return
            ending.signal = number
            name = signal.Signals(number).name
            _log.info("%s: what was started may finish, nothing else is started", name, extra={"signal": name})
            intake.runtime.stop(options.drain_timeout)


async def _show(intake: IntakeHandle[Any], screen: Screen) -> None:
    """Show how it goes, if somebody looks."""
    if not screen.errors.is_terminal:
        return
    pace = Pace()
    with Live(console=screen.errors, auto_refresh=False, transient=True) as live:
        while True:
            seen = asdict(intake.runtime.statistics())
            live.update(_line(seen, pace.rate(seen["committed"])), refresh=True)
            await trio.sleep(_EVERY)


def _line(seen: Mapping[str, Any], rate: float) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis").append(seen["state"], "bold cyan")
    line.append(
        f" · {seen['committed']:,} committed · {rate:.0f}/s · {seen['in_flight']:,} running · "
        f"{seen['backlog']:,} ready · {seen['waiting']:,} waiting"
    )
    return line.append(" · intake is slow", "yellow") if seen["backpressure"] else line


_COLUMNS: Final = (
    Column("epoch", is_wide=True),
    Column("state"),
    Column("messages", is_number=True),
    Column("left", is_number=True),
    Column("committed", 1, is_number=True),
    Column("dead", is_number=True),
    Column("other ends", 2, is_number=True),
)


def _finish(screen: Screen, ending: _Ending, *, until_idle: bool) -> Exit:
    """Report what was done, and say it by the exit code."""
    reports = ending.reports
    if until_idle and screen.is_json:
        screen.data({"epochs": list(reports), "signal": ending.signal})
    elif until_idle:
        rows = [
            (
                each["name"],
                outcome(each),
                each["submitted"],
                each["unfinished"],
                each["committed"],
                (str(each["dead"]), "red") if each["dead"] else "0",
                each["skipped"] + each["cancelled"] + each["expired"],
            )
            for each in reports
        ]
        screen.table(_COLUMNS, rows, empty="there was nothing to do")
    if ending.signal == signal.SIGINT:
        return Exit.INTERRUPTED
    if not until_idle or ending.signal is not None:
        return Exit.DONE
    if any(each["dead"] or each["cancelled"] or each["expired"] for each in reports):
        return Exit.BAD_NEWS
    return Exit.NOT_YET if any(each["unfinished"] for each in reports) else Exit.DONE
