"""A line that says how it goes, for those who look, and nothing for others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, nullcontext
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from naviscope_ingest.cli.screen import Screen, clean, span

__all__ = ["Pace", "epoch_line", "show_waiting"]

_WINDOW = 5.0


class Pace:
    """How quickly something grows, lately."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def rate(self, count: int) -> float:
        """Take a count, and return by how much it grew in a second."""
        now = time.monotonic()
        self._points.append((now, count))
        while self._points[0][0] < now - _WINDOW:
            self._points.popleft()
        then, before = self._points[0]
        return (count - before) / (now - then) if now - then >= 0.9 else 0.0


def epoch_line(report: Mapping[str, Any], rate: float) -> Group:
    """Return a picture of an epoch that is being worked on."""
    left = report["unfinished"]
    ended = report["submitted"] - left
    eta = f"about {span(left / rate)} left" if rate > 0 and left else ""
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    name = report["name"] if len(report["name"]) <= 24 else report["name"][:23] + "…"
    head.add_row(Text(clean(name), "bold"), ProgressBar(total=max(1, ended + left), completed=ended), Text(eta, "cyan"))
    state = "blocked" if report["is_blocked"] else report["state"]
    line = Text(f"  {ended:,} of {report['submitted']:,} ended · {rate:.0f}/s · {state}", no_wrap=True)
    if report["dead"]:
        line.append(f" · {report['dead']:,} dead", "red")
    return Group(head, line)


async def show_waiting(screen: Screen, reports: AsyncGenerator[Mapping[str, Any], None]) -> Mapping[str, Any]:
    """Show reports while they come, and return the last one."""
    report: Mapping[str, Any] = {}
    pace, is_seen = Pace(), screen.errors.is_terminal and not screen.is_json
    async with aclosing(reports):
        with Live(console=screen.errors, auto_refresh=False, transient=True) if is_seen else nullcontext() as live:
            async for each in reports:
                report = each
                if live is not None:
                    rate = pace.rate(report["submitted"] - report["unfinished"])
                    live.update(epoch_line(report, rate), refresh=True)
    return report
