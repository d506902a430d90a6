"""The life of a runtime: which state may follow which."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from naviscope_ingest.errors import WrongState

__all__ = ["Lifecycle", "RuntimeState"]

RuntimeState: TypeAlias = Literal[
    "created", "starting", "running", "paused", "draining", "stopped", "failed", "at rest"
]

_NEXT: Final[dict[RuntimeState, tuple[RuntimeState, ...]]] = {
    "created": ("starting", "at rest"),
    "starting": ("running", "stopped", "failed"),
    "running": ("paused", "draining", "stopped", "failed"),
    "paused": ("running", "draining", "stopped", "failed"),
    "draining": ("stopped", "failed"),
    "at rest": ("stopped", "failed"),
    "stopped": (),
    "failed": (),
}


class Lifecycle:
    """Where a runtime is in its life.

    Attributes:
        state: the state.
    """

    def __init__(self) -> None:
        self.state: RuntimeState = "created"

    def go(self, state: RuntimeState, verb: str) -> None:
        """Go to a state.

        Args:
            state: which.
            verb: what was asked for, in words ("be paused").

        Raises:
            WrongState: it does not follow the present one.
        """
        if state not in _NEXT[self.state]:
            raise WrongState(self.state, verb, _NEXT[self.state])
        self.state = state

    def end(self, *, failed: bool) -> None:
        """Come to the end, from wherever it is. A failure is final."""
        if self.state != "failed":
            self.state = "failed" if failed else "stopped"
