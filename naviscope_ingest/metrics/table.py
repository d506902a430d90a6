"""Every metric there is: name, type, labels and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from attrs import frozen

__all__ = ["METRICS", "Metric", "metrics_page"]


@frozen
class Metric:
    """One metric.

    Attributes:
        name: as it is exposed; that of a counter ends in "_total".
        type: counter, gauge or histogram.
        text: what it counts or measures.
        labels: its labels.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    text: str
    labels: Sequence[str] = ()


METRICS: Final[Sequence[Metric]] = (
    Metric("naviscope_submitted_total", "counter", "Messages submitted: accepted, duplicate or conflict.", ("result",)),
    Metric("naviscope_dropped_total", "counter", "Messages left out because intake was slow."),
    Metric("naviscope_executed_total", "counter", "Messages that executors answered for.", ("kind",)),
    Metric(
        "naviscope_ended_total",
        "counter",
        "Messages that ended: committed, dead, skipped, cancelled or expired.",
        ("kind", "end"),
    ),
    Metric("naviscope_dead_letters_total", "counter", "Messages that ended dead or expired.", ("kind",)),
    Metric(
        "naviscope_failed_attempts_total", "counter", "Attempts that failed, by the kind of error.", ("kind", "error")
    ),
    Metric("naviscope_retries_total", "counter", "Attempts that are followed by another.", ("kind",)),
    Metric("naviscope_queue_seconds", "histogram", "How long messages were ready before they were started."),
    Metric("naviscope_execute_seconds", "histogram", "How long calls of executors took.", ("kind",)),
    Metric("naviscope_commit_seconds", "histogram", "How long the sink took for a batch, failures included."),
    Metric("naviscope_commit_entries", "histogram", "How many entries a batch for the sink had."),
    Metric("naviscope_settle_seconds", "histogram", "How long the store took to settle a batch."),
    Metric(
        "naviscope_sink_failures_total",
        "counter",
        "Batches that the sink did not commit, by the kind of error.",
        ("error",),
    ),
    Metric("naviscope_slow_commits_total", "counter", "Commits that took longer than `slow_sink_seconds`."),
    Metric(
        "naviscope_last_settled_timestamp_seconds",
        "gauge",
        "When a batch was settled last, by the wall clock; 0 if none was.",
    ),
    Metric(
        "naviscope_breaker_state",
        "gauge",
        'Circuit breakers: 1 for the state they are in, closed, open or half-open. That of the sink is "sink".',
        ("breaker", "state"),
    ),
    Metric("naviscope_breaker_opened_total", "counter", "How often circuit breakers opened.", ("breaker",)),
    Metric(
        "naviscope_epochs_total",
        "counter",
        "What happened to epochs: opened, sealed, blocked, completed or repairing.",
        ("event",),
    ),
    Metric(
        "naviscope_epochs", "gauge", "Epochs that are kept: open, sealed, blocked, repairing or completed.", ("state",)
    ),
    Metric(
        "naviscope_messages",
        "gauge",
        "Messages that have not ended: waiting for something, delayed until a time, ready, or in_flight.",
        ("state",),
    ),
    Metric("naviscope_backpressure", "gauge", "Whether intake is slow because too much is ready: 1 or 0."),
    Metric("naviscope_workers", "gauge", "Tasks that run executors."),
    Metric(
        "naviscope_runtime_state",
        "gauge",
        "1 for the state the runtime is in: created, starting, running, paused, draining, stopped or failed.",
        ("state",),
    ),
    Metric(
        "naviscope_injected_faults_total",
        "counter",
        "Faults that struck because somebody injects them on purpose: never in production.",
        ("fault",),
    ),
    Metric("naviscope_recoveries_total", "counter", "Starts, each of which reads what the store has kept."),
    Metric("naviscope_recovery_seconds", "gauge", "How long the last start took to read what was kept."),
    Metric(
        "naviscope_recovered_messages",
        "gauge",
        "What the last start found: unfinished messages, and suspects among them, which ran when a process died.",
        ("what",),
    ),
)

_HEAD = """\
# Metrics

<!-- Written by `make docs` from the code; do not edit. -->

What `PrometheusMetrics` exposes. How to set it up, alerts and a dashboard are in
[monitor it](../howto/monitor-it.md).

| name | type | labels | meaning |
|---|---|---|---|
"""

_TAIL = """
Epochs and message ids are never labels. `kind` and `breaker` take the names that the program gives; after the first
100 of each, which `PrometheusMetrics(max_names=...)` changes, further ones are counted as `other`.

A histogram has `_bucket`, `_sum` and `_count`. Durations have bounds from 0.1 ms to 5 minutes, sizes from 1 to 4,096.
`naviscope_execute_seconds` counts calls, and a batch executor answers for many messages in one; what comes to many
messages is `naviscope_executed_total`. Throughput is `rate(naviscope_ended_total{end="committed"}[1m])`.

Gauges are read from the runtime when they are scraped, and are as it is then.
"""


def metrics_page() -> str:
    """Return the page of documentation, in Markdown."""
    rows = [f"| `{each.name}` | {each.type} | {', '.join(each.labels)} | {each.text} |\n" for each in METRICS]
    return _HEAD + "".join(rows) + _TAIL
