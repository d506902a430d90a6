"""Metrics for Prometheus.

Hooks only add to dictionaries and lists; what Prometheus wants to see is made of them when it asks. So a runtime that
is measured pays for counting, and not for locks and label look-ups of a client library; durations of a batch are sorted
into buckets together.

Rejected: counters and histograms of the client library. An observation costs it a lock and a walk over the buckets,
about a microsecond, and a message costs the runtime three.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from naviscope_ingest.metrics.table import METRICS
from naviscope_spi import EpochKey, ErrorKind, Statistics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["PrometheusMetrics"]

_SECONDS: Final = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_SIZES: Final = (1, 4, 16, 64, 128, 256, 512, 1024, 4096)
_FEW: Final = 16
_STATES: Final = ("created", "starting", "running", "paused", "draining", "stopped", "failed")
_BREAKER_STATES: Final = ("closed", "open", "half-open")
_EPOCH_STATES: Final = ("open", "sealed", "blocked", "repairing", "completed")


class _Histogram:
    """Counts between bounds, and a sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def add_all(self, values: Sequence[float]) -> None:
        """Count many values: together, if that is less work."""
        bounds, counts = self._bounds, self.counts
        self.sum += sum(values)
        if len(values) < _FEW:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
        elif max(values) <= bounds[0]:
            counts[0] += len(values)
        else:
            ordered = sorted(values)
            before = 0
            for index, bound in enumerate(bounds):
                upto = bisect_right(ordered, bound, before)
                counts[index] += upto - before
                before = upto
            counts[-1] += len(ordered) - before

    def buckets(self) -> list[tuple[str, float]]:
        """Return what Prometheus expects: for each bound, how many were not above it."""
        total, found = 0, []
        # A copy, for a scrape may come on another thread.
        for bound, count in zip((*map(float, self._bounds), None), [*self.counts], strict=True):
            total += count
            found.append(("+Inf" if bound is None else str(bound), float(total)))
        return found


class PrometheusMetrics:
    """Counts and times a runtime for Prometheus. Give it to one runtime at a time.

    Args:
        registry: where it is registered; one of its own unless it is given.
        max_names: how many kinds, and how many breakers, have labels of their own. What comes later is "other".

    Attributes:
        registry: where it is registered.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, max_names: int = 100) -> None:
        if isinstance(max_names, bool) or not isinstance(max_names, int) or max_names < 1:
            raise ValueError(f"PrometheusMetrics(max_names={max_names!r}): give a whole number of at least 1")
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise ImportError('metrics need a library: pip install "naviscope-ingest[metrics]"') from error
        self.registry = CollectorRegistry() if registry is None else registry
        self._max_names = max_names
        self._names: dict[str, str] = {}
        self._breaker_names: dict[str, str] = {}
        self._read: Callable[[], Statistics] | None = None
        self._submitted: Counter[str] = Counter()
        self._executed: Counter[str] = Counter()
        self._ended: Counter[tuple[str, ...]] = Counter()
        self._failed: Counter[tuple[str, ...]] = Counter()
        self._retried: Counter[str] = Counter()
        self._sink_failed: Counter[str] = Counter()
        self._slow = 0
        self._breakers: dict[str, str] = {}
        self._opened: Counter[str] = Counter()
        self._epochs: Counter[str] = Counter()
        self._dropped = 0
        self._recoveries = 0
        self._recovery_seconds = 0.0
        self._recovered = {"unfinished": 0, "suspects": 0}
        self._last_settled = 0.0
        self._queue = _Histogram(_SECONDS)
        self._execute: dict[str, _Histogram] = {}
        self._commit = _Histogram(_SECONDS)
        self._sizes = _Histogram(_SIZES)
        self._settle = _Histogram(_SECONDS)
        self.registry.register(self)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return everything in the registry as text, and the type of that text.

        Args:
            accept: the `Accept` header of the request; it decides between the format of Prometheus and OpenMetrics.
        """
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    # What the runtime tells

    def attached(self, read: Callable[[], Statistics]) -> None:
        """A runtime begins to start."""
        if self._read is not None:
            # It counts from zero, and the one before does not count any more.
            self._dropped += self._read().dropped
        self._read = read

    def submitted(self, epoch: EpochKey, accepted: int, duplicates: int, conflicts: int) -> None:
        """Messages were accepted."""
        counted = self._submitted
        counted["accepted"] += accepted
        counted["duplicate"] += duplicates - conflicts
        counted["conflict"] += conflicts

    def executed(self, kind: str, messages: int, seconds: Sequence[float]) -> None:
        """Executors answered."""
        kind = self._name(kind)
        self._executed[kind] += messages
        histogram = self._execute.get(kind)
        if histogram is None:
            histogram = self._execute[kind] = _Histogram(_SECONDS)
        histogram.add_all(seconds)

    def ended(self, end: str, kind: str, count: int) -> None:
        """Messages ended."""
        self._ended[self._name(kind), end] += count

    def sink_committed(self, entries: int, seconds: float) -> None:
        """A sink had a batch."""
        self._commit.add(seconds)
        self._sizes.add(entries)

    def epoch_changed(self, epoch: EpochKey, state: str) -> None:
        """An epoch changed."""
        self._epochs[state] += 1

    def queued(self, seconds: Sequence[float]) -> None:
        """Messages were started."""
        self._queue.add_all(seconds)

    def settled(self, messages: int, seconds: float) -> None:
        """The store settled a batch."""
        self._settle.add(seconds)
        self._last_settled = time.time()

    def recovered(self, messages: int, suspects: int, seconds: float) -> None:
        """A runtime has read what its store had kept."""
        self._recoveries += 1
        self._recovery_seconds = seconds
        self._recovered = {"unfinished": messages, "suspects": suspects}

    def attempt_failed(self, kind: str, error_kind: ErrorKind) -> None:
        """An attempt failed."""
        self._failed[self._name(kind), error_kind] += 1

    def attempt_retried(self, kind: str, delay: float) -> None:
        """It runs again."""
        self._retried[self._name(kind)] += 1

    def sink_failed(self, error_kind: ErrorKind) -> None:
        """A sink did not commit a batch."""
        self._sink_failed[error_kind] += 1

    def sink_slow(self, seconds: float) -> None:
        """A sink took long."""
        self._slow += 1

    def breaker_changed(self, name: str, state: Literal["closed", "open", "half-open"]) -> None:
        """A circuit breaker changed."""
        name = _bounded(self._breaker_names, name, self._max_names)
        self._breakers[name] = state
        self._opened[name] += state == "open"

    def _name(self, kind: str) -> str:
        return self._names.get(kind) or _bounded(self._names, kind, self._max_names)

    # What Prometheus asks for

    def collect(self) -> Iterator[Any]:
        """Yield every metric. The registry calls it when it is scraped."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families: dict[str, Any] = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        values = self._values()
        for metric in METRICS:
            family = families[metric.type](metric.name, metric.text, labels=metric.labels)
            for labels, value in values[metric.name].items():
                if isinstance(value, _Histogram):
                    family.add_metric(labels, buckets=value.buckets(), sum_value=value.sum)
                else:
                    family.add_metric(labels, value)
            yield family

    def _values(self) -> Mapping[str, Mapping[tuple[str, ...], Any]]:
        """Return the values of every metric, by labels."""
        now = None if self._read is None else self._read()
        dead = Counter[str]()
        for (kind, end), count in self._ended.copy().items():
            if end in ("dead", "expired"):
                dead[kind] += count
        return {
            "naviscope_submitted_total": _by_one(self._submitted),
            "naviscope_dropped_total": {(): self._dropped + (0 if now is None else now.dropped)},
            "naviscope_executed_total": _by_one(self._executed),
            "naviscope_ended_total": self._ended.copy(),
            "naviscope_dead_letters_total": _by_one(dead),
            "naviscope_failed_attempts_total": self._failed.copy(),
            "naviscope_retries_total": _by_one(self._retried),
            "naviscope_queue_seconds": {(): self._queue},
            "naviscope_execute_seconds": _by_one(self._execute),
            "naviscope_commit_seconds": {(): self._commit},
            "naviscope_commit_entries": {(): self._sizes},
            "naviscope_settle_seconds": {(): self._settle},
            "naviscope_sink_failures_total": _by_one(self._sink_failed),
            "naviscope_slow_commits_total": {(): self._slow},
            "naviscope_last_settled_timestamp_seconds": {(): self._last_settled},
            "naviscope_breaker_state": {
                (name, each): int(each == state)
                for name, state in self._breakers.copy().items()
                for each in _BREAKER_STATES
            },
            "naviscope_breaker_opened_total": _by_one(self._opened),
            "naviscope_epochs_total": _by_one(self._epochs),
            "naviscope_recoveries_total": {(): self._recoveries},
            "naviscope_recovery_seconds": {(): self._recovery_seconds},
            "naviscope_recovered_messages": _by_one(self._recovered),
            **_present(now),
        }


def _present(now: Statistics | None) -> Mapping[str, Mapping[tuple[str, ...], float]]:
    """Return what a runtime is asked for; empty as long as there is none."""
    if now is None:
        names = ("epochs", "messages", "backpressure", "workers", "runtime_state", "injected_faults_total")
        return {f"naviscope_{name}": {} for name in names}
    ready = now.unfinished - now.waiting - now.delayed - now.in_flight
    messages = {"waiting": now.waiting, "delayed": now.delayed, "ready": max(0, ready), "in_flight": now.in_flight}
    return {
        "naviscope_epochs": {(state,): now.epochs_in.get(state, 0) for state in _EPOCH_STATES},
        "naviscope_messages": _by_one(messages),
        "naviscope_backpressure": {(): int(now.backpressure)},
        "naviscope_workers": {(): now.workers},
        "naviscope_injected_faults_total": _by_one(now.faults),
        "naviscope_runtime_state": {(state,): int(state == now.state) for state in _STATES},
    }


def _by_one(values: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    # A copy first, for a scrape may come on another thread.
    return {(label,): value for label, value in dict(values).items()}


def _bounded(known: dict[str, str], name: str, most: int) -> str:
    """Return a name, or "other" for names that came after the first so many."""
    found = known.get(name)
    if found is None:
        if len(known) >= most:
            return "other"
        found = known[name] = name
    return found
