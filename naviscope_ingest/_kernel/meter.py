"""What the metrics are told. Without metrics it costs one comparison per batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from naviscope_ingest._core import Core, Decided
from naviscope_ingest._kernel.outcomes import Batch
from naviscope_spi import Clock, EpochKey, ErrorKind, MeasuresFailures, PutReceipt, RuntimeMetrics

__all__ = ["Meter"]


class Meter:
    """Counts and times what happens, for the user's metrics.

    Args:
        metrics: whom to tell; None for nobody.
        clock: where time comes from.
        core: knows the kinds of messages.

    Attributes:
        is_on: whether anybody is told. Callers on the hot path ask before they call.
    """

    def __init__(self, metrics: RuntimeMetrics | None, clock: Clock, core: Core) -> None:
        self.is_on = metrics is not None
        self._metrics: Any = metrics
        self._failures = metrics if isinstance(metrics, MeasuresFailures) else None
        self._clock = clock
        self._core = core
        # By kind: how many were executed since the last commit, and how long that took.
        self._timed: dict[str, tuple[int, float]] = {}

    def now(self) -> float:
        """Return the time to measure from, if anybody wants to know."""
        return self._clock.monotonic() if self.is_on else 0.0

    def executed(self, kind: str, count: int, started: float) -> None:
        """Note how long an executor took."""
        known, seconds = self._timed.get(kind, (0, 0.0))
        self._timed[kind] = (known + count, seconds + self._clock.monotonic() - started)

    def sink_committed(self, entries: int, started: float) -> None:
        """Tell how long a sink took."""
        self._metrics.sink_committed(entries, self._clock.monotonic() - started)

    def batch(self, batch: Batch, depths: Mapping[str, int]) -> None:
        """Tell what a batch came to, and how many messages are where."""
        for kind, (count, seconds) in self._timed.items():
            self._metrics.executed(kind, count, seconds)
        self._timed.clear()
        ends = Counter(("committed", lease.message.kind) for lease in batch.leases)
        if batch.rest is not None:
            ends.update((ended.end, lease.message.kind) for lease, ended, _ in batch.rest.ended)
        self._ended(ends)
        self._metrics.observed(depths)

    def decided(self, decided: Iterable[Decided]) -> None:
        """Tell of messages that the core ended."""
        if self.is_on:
            nodes = ((each.end, self._core.node(each.seq)) for each in decided)
            self._ended(Counter((end, node.message.kind) for end, node in nodes if node is not None))

    def failed(self, kind: str, error_kind: ErrorKind) -> None:
        """Tell of an attempt that failed."""
        if self._failures is not None:
            self._failures.attempt_failed(kind, error_kind)

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
