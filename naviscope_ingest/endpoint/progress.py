"""Whether a runtime makes progress, decided from what it says of itself now and then.

Alive is not enough: a runtime may turn and turn while every executor hangs. It gets on when there is nothing to do, or
when something was executed or settled since it was last looked at. It is looked at regularly, and not only when
somebody asks: else work that has just begun after a long rest would look as if it had hung for all that time.
"""

from __future__ import annotations

from attrs import frozen

from naviscope_spi import Statistics

__all__ = ["Health", "Progress"]

_WORKING = ("running", "paused")


@frozen
class Health:
    """How a runtime is.

    Attributes:
        is_ready: whether it works, and gets on.
        state: the state of the runtime.
        reason: why it is not ready; empty if it is.
    """

    is_ready: bool
    state: str
    reason: str = ""


class Progress:
    """Watches one runtime.

    Args:
        stall_after: for how many seconds nothing may be executed or settled while there is something to do.
    """

    def __init__(self, stall_after: float) -> None:
        self._stall_after = stall_after
        self._seen: tuple[int, int] | None = None
        self._since = 0.0

    def look(self, seen: Statistics, now: float) -> Health:
        """Take a look, and say how it is."""
        marks = (seen.executed, seen.batches)
        is_idle = not seen.in_flight and not seen.backlog
        if is_idle or marks != self._seen or seen.state == "paused":
            self._seen, self._since = marks, now
        if seen.state not in _WORKING:
            return Health(False, seen.state, f"the runtime is {seen.state}")
        stalled = now - self._since
        if stalled < self._stall_after:
            return Health(True, seen.state)
        return Health(
            False,
            seen.state,
            f"nothing was executed or settled for {stalled:.0f} seconds: {seen.in_flight} messages are in flight and "
            f"{seen.backlog} are ready",
        )
