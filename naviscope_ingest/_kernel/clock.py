"""The system's clock."""

from __future__ import annotations

import time

import trio

__all__ = ["SystemClock"]


class SystemClock:
    """Wall-clock time of the system, and monotonic time of the trio run."""

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of the trio run's clock, the one that trio sleeps by."""
        return trio.current_time()
