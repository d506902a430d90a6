"""The system's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

__all__ = ["SystemClock"]


class SystemClock:
    """Wall-clock time of the system, and monotonic time of the trio run.

    `wall` is asked for every batch, so it is the system's function itself.
    """

    wall = staticmethod(time.time)

    def monotonic(self) -> float:
        """Return seconds of the trio run's clock, the one that trio sleeps by."""
        return trio.current_time()

    def reader(self) -> Callable[[], float]:
        """Return what tells how time passes in this trio run, for those who ask for every message.

        Only differences mean anything. Unless a test has put another clock in its place, trio's own is the system's
        counter and an offset, and asking the counter itself takes a third of the time.
        """
        clock = trio.lowlevel.current_clock()
        is_the_counter = type(clock).__module__.startswith("trio.") and type(clock).__name__ == "SystemClock"
        return time.perf_counter if is_the_counter else clock.current_time
