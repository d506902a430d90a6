"""The contracts around measurement.

A hook is called per batch, never per message; what is rare (a failure, a breaker, an epoch) has a hook of its own. What
changes all the time (how many messages are where) is not told at all: metrics ask for it when somebody asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from attrs import field, frozen

from naviscope_spi.errors import ErrorKind
from naviscope_spi.stores import EpochKey

__all__ = ["MeasuresFailures", "MeasuresLatency", "RuntimeMetrics", "Statistics"]


@frozen
class Statistics:
    """What a runtime is doing and has done.

    Attributes:
        state: created, starting, running, paused, draining, stopped or failed.
        epochs: epochs that are kept.
        unfinished: messages that have not ended.
        waiting: those of them that wait for something, or are held.
        in_flight: those that were started and not yet settled.
        workers: tasks that run executors.
        executed: attempts that executors answered.
        committed: messages that committed.
        batches: commit batches.
        backlog: messages that could run and have not been started.
        backpressure: whether intake is slow because there are too many of them.
        dropped: messages that were left out because of that.
        delayed: messages that wait for a time and for nothing else, such as that of a retry.
        faults: how often each fault has struck that is injected on purpose.
        epochs_in: how many of the epochs that are kept are open, sealed, blocked, repairing and completed.
    """

    state: str
    epochs: int
    unfinished: int
    waiting: int
    in_flight: int
    workers: int
    executed: int
    committed: int
    batches: int
    backlog: int = 0
    backpressure: bool = False
    dropped: int = 0
    delayed: int = 0
    faults: Mapping[str, int] = field(factory=dict)
    epochs_in: Mapping[str, int] = field(factory=dict)


class RuntimeMetrics(Protocol):
    """Hooks for measurement. Called per batch, never per message; must be quick and must not raise."""

    def attached(self, read: Callable[[], Statistics]) -> None:
        """A runtime begins to start. `read` says what it is doing now; call it when somebody asks, on any thread."""
        ...

    def submitted(self, epoch: EpochKey, accepted: int, duplicates: int, conflicts: int) -> None:
        """Messages were accepted."""
        ...

    def executed(self, kind: str, messages: int, seconds: Sequence[float]) -> None:
        """Executors answered for messages of one kind; `seconds` has how long each call took. Do not keep it."""
        ...

    def ended(self, end: str, kind: str, count: int) -> None:
        """Messages of one kind ended in one way."""
        ...

    def sink_committed(self, entries: int, seconds: float) -> None:
        """A sink made a batch visible."""
        ...

    def epoch_changed(self, epoch: EpochKey, state: str) -> None:
        """An epoch opened, was sealed, blocked, completed or repaired."""
        ...


@runtime_checkable
class MeasuresLatency(Protocol):
    """Metrics that want to know how long things take beside executors and sinks. Quick, and must not raise."""

    def queued(self, seconds: Sequence[float]) -> None:
        """Messages were started; `seconds` has how long each had been ready. Do not keep it."""
        ...

    def settled(self, messages: int, seconds: float) -> None:
        """The store settled a batch."""
        ...

    def recovered(self, messages: int, suspects: int, seconds: float) -> None:
        """A runtime has read what its store had kept: unfinished messages, and those that ran when the last one died.

        Also called when there was nothing.
        """
        ...


@runtime_checkable
class MeasuresFailures(Protocol):
    """Metrics that want to know what went wrong. Rare enough to be told of each; must be quick and must not raise."""

    def attempt_failed(self, kind: str, error_kind: ErrorKind) -> None:
        """An attempt of a message of a kind failed."""
        ...

    def attempt_retried(self, kind: str, delay: float) -> None:
        """A message whose attempt failed runs again, after so many seconds."""
        ...

    def sink_failed(self, error_kind: ErrorKind) -> None:
        """A sink did not commit a batch."""
        ...

    def sink_slow(self, seconds: float) -> None:
        """A sink took longer than it should."""
        ...

    def breaker_changed(self, name: str, state: Literal["closed", "open", "half-open"]) -> None:
        """A circuit breaker changed."""
        ...
