"""The command line of the example."""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio
from rich.console import Console

from naviscope_ingest import Epoch, EpochReport, Ingest, IntakeHandle, RuntimeStopped
from naviscope_ingest.faults import VARIABLE, Faults, InvalidFaults

from .pipeline import SURVEY, make_app
from .screen import Tally, show_progress, show_report, show_uses
from .tables import Index

STDLIB = Path(sysconfig.get_path("stdlib"))
FOLDER = Path(".code-index")

Show: TypeAlias = Callable[[Epoch[object], str], Awaitable[EpochReport]]
"""Waits for an epoch under a title."""


def read_arguments(given: Sequence[str] | None, prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Index a Python source tree: where is it defined, and who uses it?",
        epilog="Start it again at any time: it goes on where it was, and does again what an edit touched. "
        f"{VARIABLE}=declare:0.05:5xx,commit:0.01:crash breaks it on purpose.",
    )
    parser.add_argument(
        "--path", type=Path, default=STDLIB, help="the folder that would be on the path (default: the standard library)"
    )
    parser.add_argument(
        "--database", type=Path, help=f"the file of the index (default: one for each tree, in {FOLDER})"
    )
    parser.add_argument("--without-tests", action="store_true", help="leave out folders named test and tests")
    parser.add_argument(
        "--find", metavar="NAME", action="append", default=[], help="show definition and callers of a name afterwards"
    )
    arguments = parser.parse_args(given)
    arguments.path = arguments.path.resolve()
    if not arguments.path.is_dir():
        parser.error(f"{arguments.path} is no folder: name the one that holds your packages")
    try:
        arguments.faults = Faults.from_environment()
    except InvalidFaults as error:
        parser.error(str(error))
    return arguments


def database_for(path: Path, *, with_tests: bool) -> Path:
    """Return the file for a tree: each has its own, so that one run does not remove what another found."""
    tree = hashlib.blake2b(f"{path} {with_tests}".encode(), digest_size=4).hexdigest()
    FOLDER.mkdir(exist_ok=True)
    return FOLDER / f"{path.name}-{tree}.sqlite3"


async def stop_on_signal(intake: IntakeHandle[object], *, task_status: trio.TaskStatus[None]) -> None:
    """Stop in order at the first Ctrl-C. A second one does not wait, and does no harm either."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            intake.runtime.stop(timeout=5)
            return


async def work(intake: IntakeHandle[object], show: Show) -> list[EpochReport] | None:
    """Finish what an earlier run left, then look what there is to do; return None if it was interrupted."""
    reports = []
    try:
        for left in [report for report in intake.epochs() if not report.is_completed]:
            epoch = await intake.get_epoch(left.name)
            await epoch.seal()
            reports.append(await show(epoch, "Going on"))
        epoch = await intake.new_epoch()
        await epoch.submit(SURVEY)
        await epoch.seal()
        reports.append(await show(epoch, "Indexing"))
    except RuntimeStopped:
        return None
    return reports


async def run(app: Ingest, show: Show) -> list[EpochReport] | None:
    async with app.running() as intake, trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal, intake)
        reports = await work(intake, show)
        nursery.cancel_scope.cancel()
    return reports


def examples_of(database: Path) -> list[str]:
    """Return names worth asking for: json.dumps, or else what is called most."""
    with Index.open(database) as index:
        if index.rows("SELECT 1 FROM definition WHERE module = 'json' AND name = 'dumps'"):
            return ["json.dumps"]
        most = index.rows(
            "SELECT target_module || '.' || target_name FROM link JOIN use USING (module, name) "
            "WHERE is_call AND is_exact AND target_name != '' GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
        )
    return [str(name) for (name,) in most]


def main(given: Sequence[str] | None = None, *, prog: str = "python -m examples.code_index") -> int:
    arguments = read_arguments(given, prog)
    database = arguments.database or database_for(arguments.path, with_tests=not arguments.without_tests)
    console, tally, started = Console(), Tally(), time.perf_counter()
    app = make_app(
        arguments.path,
        database.absolute(),
        with_tests=not arguments.without_tests,
        metrics=tally,
        faults=arguments.faults,
    )
    reports = trio.run(run, app, partial(show_progress, tally=tally, database=database, console=console))
    if reports is None:
        print("interrupted: start it again, and it goes on", file=sys.stderr)
        return 130
    seconds = time.perf_counter() - started
    show_report(reports, root=arguments.path, database=database, tally=tally, seconds=seconds, console=console)
    is_known = True
    for name in arguments.find or examples_of(database):
        console.print()
        is_known &= show_uses(database, name, console)
    console.print(f"\nThe index is {database}: open it with any SQLite.", highlight=False, soft_wrap=True)
    return 0 if is_known else 1


if __name__ == "__main__":
    sys.exit(main())
