"""What a person sees: progress while it works, and a report in the end.

In a pipe there is no progress, only the report. Colours are rich's business, which honours NO_COLOR and knows whether
it writes to a terminal.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from naviscope_ingest import Epoch, EpochExplanation, EpochReport
from naviscope_spi import EpochKey, Statistics

from .names import Resolver
from .tables import Index

__all__ = ["Tally", "show_progress", "show_report", "show_uses"]

_EVERY = 0.2
_WINDOW = 5.0
_SHOWN = 8
_WORK = {"declare": "files read", "resolve": "modules resolved", "summarize": "packages summarized"}


class Tally:
    """Counts what ended, by kind; a `RuntimeMetrics`."""

    def __init__(self) -> None:
        self.ended_by: Counter[tuple[str, str]] = Counter()

    def committed(self, kind: str) -> int:
        """How many messages of a kind committed in this run."""
        return self.ended_by["committed", kind]

    def ended(self, end: str, kind: str, count: int) -> None:
        self.ended_by[end, kind] += count

    def submitted(self, epoch: EpochKey, accepted: int, duplicates: int, conflicts: int) -> None: ...
    def attached(self, read: Callable[[], Statistics]) -> None: ...
    def executed(self, kind: str, messages: int, seconds: Sequence[float]) -> None: ...
    def sink_committed(self, entries: int, seconds: float) -> None: ...
    def epoch_changed(self, epoch: EpochKey, state: str) -> None: ...


class _Pace:
    """How quickly messages end, lately."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def rate(self, ended: int) -> float:
        now = time.monotonic()
        self._points.append((now, ended))
        while self._points[0][0] < now - _WINDOW:
            self._points.popleft()
        then, before = self._points[0]
        # Too little to tell the future from is no pace.
        return (ended - before) / (now - then) if now - then >= 1.0 and ended - before >= 10 else 0.0


async def show_progress(
    epoch: Epoch[object], title: str, *, tally: Tally, database: Path, console: Console
) -> EpochReport:
    """Wait for an epoch, and show how it goes if somebody watches."""
    if not console.is_terminal:
        return await epoch.wait()
    pace = _Pace()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        async for report in epoch.progress(every=_EVERY):
            if not report.is_completed:
                picture = _picture(
                    title, report, await epoch.explain(), tally, pace.rate(_ended(report)), unread(database)
                )
                live.update(picture, refresh=True)
    return epoch.report


def _ended(report: EpochReport) -> int:
    return report.submitted - report.unfinished


def unread(database: Path) -> int:
    """Return how many files are still to be read. Each of them will bring a message that resolves its names."""
    with Index.open(database) as index:
        if not index.rows("SELECT 1 FROM sqlite_schema WHERE name = 'module'"):
            return 0
        ((count,),) = index.rows("SELECT count(*) FROM module WHERE hash IS NULL")
        return int(count)


def _picture(  # noqa: PLR0917 - what there is to see
    title: str, report: EpochReport, why: EpochExplanation, tally: Tally, rate: float, to_come: int
) -> Group:
    ended, left = _ended(report), report.unfinished + to_come
    eta = f"about {left / rate:.0f} s left" if rate > 0 else "…"
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(title, "bold"), ProgressBar(total=max(1, ended + left), completed=ended), Text(eta, "cyan"))
    done = [f"{tally.committed(kind)} {text}" for kind, text in _WORK.items()]
    counts = why.counts
    now = f"{rate:.0f}/s · {counts['running']} running · {counts['ready']} ready · {counts['waiting']} waiting"
    bad = Text(f" · {report.dead} dead", "red") if report.dead else Text("")
    lines = [head, Text("  " + " · ".join(done)), Text("  " + now).append_text(bad)]
    waited = [(text.removeprefix("waiting for "), count) for text, count in why.reasons if text.startswith("waiting")]
    if waited:
        shown = ", ".join(f"{text.removeprefix('resource ')} ({count})" for text, count in waited[:_SHOWN])
        lines.append(Text(f"  waited for: {shown}", "dim", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def show_report(
    reports: list[EpochReport], *, root: Path, database: Path, tally: Tally, seconds: float, console: Console
) -> None:
    """Print what was done and what is in the index now."""
    work = [f"{tally.committed(kind)} {text}" for kind, text in _WORK.items()]
    with Index.open(database) as index:
        ((modules, lines),) = index.rows("SELECT count(*), total(lines) FROM module WHERE hash IS NOT NULL")
        counts = {table: index.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("definition", "use")}  # noqa: S608 - names of ours
        ((followed,),) = index.rows("SELECT count(*) FROM use JOIN link USING (module, name)")
        packages = index.rows(
            "SELECT package, modules, lines, definitions, uses, followed FROM summary ORDER BY uses DESC"
        )
        missing = index.rows(
            "SELECT imported, min(path), count(*) FROM missing JOIN module ON name = module GROUP BY 1 ORDER BY 1"
        )
    console.print(Text(f"Indexed {root} in {seconds:.1f} s", "bold"), soft_wrap=True)
    console.print(f"This run: {', '.join(work)}.", highlight=False)
    console.print(
        f"The index: {modules:,} modules, {lines:,.0f} lines, {counts['definition']:,} definitions, "
        f"{counts['use']:,} uses of names, {followed:,} of them followed to a definition.",
        highlight=False,
    )
    console.print()
    console.print(_packages(packages))
    errors = {failure.error for report in reports for failure in report.failures}
    unread = [error.removeprefix("Permanent: ").removeprefix(f"{root}/") for error in sorted(errors)]
    _list(console, f"{len(unread)} files could not be read:", unread)
    imported = [f"{name}, by {path}" + (f" and {count - 1} more" if count > 1 else "") for name, path, count in missing]
    _list(console, f"{len(imported)} modules are imported and do not exist in the tree:", imported)


def _list(console: Console, heading: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(f"\n{heading}", highlight=False)
    for line in lines[:_SHOWN]:
        console.print(Text(f"  {line}"), no_wrap=True, overflow="ellipsis")
    if len(lines) > _SHOWN:
        console.print(f"  … and {len(lines) - _SHOWN} others", highlight=False)


def _packages(rows: list[tuple[object, ...]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("package")
    for heading in ("modules", "lines", "definitions", "uses", "followed"):
        table.add_column(heading, justify="right")
    for package, *numbers in rows[:_SHOWN]:
        table.add_row(str(package), *(f"{int(str(number)):,}" for number in numbers))
    if len(rows) > _SHOWN:
        table.add_row(Text(f"… and {len(rows) - _SHOWN} others", "dim"))
    return table


def show_uses(database: Path, name: str, console: Console) -> bool:
    """Print where a name is defined, and who uses it; tell whether it is known."""
    with Index.open(database) as index:
        target = Resolver(index).resolve(name)
        if target is None or not target.is_exact:
            console.print(f"{name} is not in the index")
            return False
        places = index.where(target)
        uses = index.uses(target)
    calls = [use for use in uses if use.is_call]
    console.print(Text(f"Where is {name} defined?", "bold"))
    for path, line, _ in places:
        console.print(f"  {path}:{line}", highlight=False, soft_wrap=True)
    console.print(Text(f"Who calls {name}? ", "bold").append(f"{len(calls)} calls, {len(uses)} uses", "not bold dim"))
    for use in calls[:_SHOWN]:
        console.print(f"  {use.path}:{use.line}", highlight=False, soft_wrap=True)
    if len(calls) > _SHOWN:
        console.print(f"  … and {len(calls) - _SHOWN} others")
    return True
