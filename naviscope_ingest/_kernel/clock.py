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
        """Return what `monotonic` asks in this trio run, for those who ask for every message."""
        return trio.lowlevel.current_clock().current_time
