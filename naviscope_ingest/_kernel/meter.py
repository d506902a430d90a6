"""What the metrics are told. Without metrics it costs one comparison per batch.

With metrics, a message costs two looks at the clock's own function, an append, and a share of what is done for its
batch: durations are gathered in lists, and counted when a batch has been settled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from naviscope_ingest._core import Core, Decided
from naviscope_ingest._core.breaker import BreakerState
from naviscope_ingest._kernel.clock import SystemClock
from naviscope_ingest._kernel.outcomes import Batch
from naviscope_ingest.reports import Recovery
from naviscope_spi import (
    Clock,
    EpochKey,
    ErrorKind,
    MeasuresFailures,
    MeasuresLatency,
    PutReceipt,
    RuntimeMetrics,
    Statistics,
)

__all__ = ["Meter"]


class Meter:
    """Counts and times what happens, for the user's metrics.

    Args:
        metrics: whom to tell; None for nobody.
        clock: where time comes from.
        core: knows the kinds of messages.

    Attributes:
        is_on: whether anybody is told. Callers on the hot path ask before they call.
        now: tells the time to measure from. Only differences mean anything.
        timed: how long calls of executors took since the last batch, by kind. Workers that run one message at a time
            append to it.
    """

    def __init__(self, metrics: RuntimeMetrics | None, clock: Clock, core: Core) -> None:
        self.is_on = metrics is not None
        self.now: Callable[[], float] = clock.monotonic
        self.timed: defaultdict[str, list[float]] = defaultdict(list)
        self._metrics: Any = metrics
        self._latency = metrics if isinstance(metrics, MeasuresLatency) else None
        self._failures = metrics if isinstance(metrics, MeasuresFailures) else None
        self._clock = clock
        self._core = core
        self._queued: list[float] = []
        # By kind: messages beyond one for each call.
        self._in_company: Counter[str] = Counter()

    def begin(self, read: Callable[[], Statistics]) -> None:
        """Tell that a runtime starts. Called within its trio run."""
        if not self.is_on:
            return
        if isinstance(self._clock, SystemClock):
            self.now = self._clock.reader()
        if self._latency is not None:
            self._queued = self._core.schedule.measure()
        self._metrics.attached(read)

    def recovered(self, found: Recovery) -> None:
        """Tell what a start has found."""
        if self._latency is not None:
            self._latency.recovered(found.unfinished, found.suspects, found.seconds)

    def executed(self, kind: str, count: int, started: float) -> None:
        """Note how long an executor took for messages that ran together."""
        self.timed[kind].append(self.now() - started)
        self._in_company[kind] += count - 1

    def sink_committed(self, entries: int, started: float) -> None:
        """Tell how long a sink took."""
        self._metrics.sink_committed(entries, self.now() - started)

    def batch(self, batch: Batch, messages: int, settling: float) -> None:
        """Tell what a batch came to.

        Args:
            batch: the batch.
            messages: how many answers it had.
            settling: when the store was about to be told.
        """
        if self._latency is not None:
            self._latency.settled(messages, self.now() - settling)
            if self._queued:
                self._latency.queued(self._queued)
                self._queued.clear()
        for kind, seconds in self.timed.items():
            self._metrics.executed(kind, len(seconds) + self._in_company[kind], seconds)
        self.timed.clear()
        self._in_company.clear()
        kinds = [lease.message.kind for lease in batch.leases]
        if kinds and kinds.count(kinds[0]) == len(kinds):
            self._metrics.ended("committed", kinds[0], len(kinds))
        else:
            self._ended(Counter(("committed", kind) for kind in kinds))
        if batch.rest is not None and batch.rest.ended:
            self._ended(Counter((ended.end, lease.message.kind) for lease, ended, _ in batch.rest.ended))

    def decided(self, decided: Iterable[Decided]) -> None:
        """Tell of messages that the core ended."""
        if self.is_on:
            nodes = ((each.end, self._core.node(each.seq)) for each in decided)
            self._ended(Counter((end, node.message.kind) for end, node in nodes if node is not None))

    def failed(self, kind: str, error_kind: ErrorKind) -> None:
        """Tell of an attempt that failed."""
        if self._failures is not None:
            self._failures.attempt_failed(kind, error_kind)

    def retried(self, kind: str, delay: float) -> None:
        """Tell of a message that runs again."""
        if self._failures is not None:
            self._failures.attempt_retried(kind, delay)

    def sink_failed(self, error_kind: ErrorKind) -> None:
        """Tell of a batch that a sink did not commit."""
        if self._failures is not None:
            self._failures.sink_failed(error_kind)

    def sink_slow(self, seconds: float) -> None:
        """Tell of a sink that took long."""
        if self._failures is not None:
            self._failures.sink_slow(seconds)

    def breaker_changed(self, name: str, state: BreakerState) -> None:
        """Tell of a circuit breaker."""
        if self._failures is not None:
            self._failures.breaker_changed(name, state)

    def epoch(self, key: EpochKey, state: str) -> None:
        """Tell what became of an epoch."""
        if self.is_on:
            self._metrics.epoch_changed(key, state)

    def submitted(self, key: EpochKey, receipt: PutReceipt) -> None:
        """Tell what was submitted."""
        if self.is_on:
            self._metrics.submitted(key, len(receipt.accepted), receipt.duplicates, len(receipt.conflicts))

    def _ended(self, ends: Mapping[tuple[str, str], int]) -> None:
        for (end, kind), count in ends.items():
            self._metrics.ended(end, kind, count)
