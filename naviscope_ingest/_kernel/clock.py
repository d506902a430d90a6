"""The system's clock."""

from __future__ import annotations

import time

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
