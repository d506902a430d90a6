"""What a runtime says of itself when it is asked."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

__all__ = ["Statistics"]


@frozen
class Statistics:
    """What a runtime is doing and has done.

    Attributes:
        state: created, starting, running, paused, draining, stopped or failed.
        epochs: epochs that are kept.
        unfinished: messages that have not ended.
        waiting: those of them that wait or are held.
        in_flight: those that were started and not yet settled.
        workers: tasks that run executors.
        executed: attempts that executors answered.
        committed: messages that committed.
        batches: commit batches.
        backlog: messages that could run and have not been started.
        backpressure: whether intake is slow because there are too many of them.
        dropped: messages that were left out because of that.
        faults: how often each fault has struck that is injected on purpose.
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
    faults: Mapping[str, int] = field(factory=dict)
