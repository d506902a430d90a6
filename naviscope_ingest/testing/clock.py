"""A clock for tests that run in virtual time."""

from __future__ import annotations

import trio

__all__ = ["TrioClock"]


class TrioClock:
    """Wall-clock time that follows the clock of the trio run.

    Under `trio.testing.MockClock(autojump_threshold=0)` everything that waits for a time runs in virtual time:
    timeouts, retries, deadlines, and the times in reports. Give the same clock to the runtime and to its store.

    Args:
        start: the wall-clock time when the clock of the trio run shows zero, in seconds since the Unix epoch.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._start = start

    def wall(self) -> float:
        """Return the start plus the seconds of the trio run's clock."""
        return self._start + trio.current_time()

    def monotonic(self) -> float:
        """Return seconds of the trio run's clock, the one that trio sleeps by."""
        return trio.current_time()
