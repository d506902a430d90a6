"""What it costs to be measured: W2 in memory with metrics for Prometheus and without, turn by turn."""

from __future__ import annotations

import gc
import time
from functools import partial

import trio

from benchmarks.graphs import Graph, check_order, make
from benchmarks.runtime import Bars, Singly, messages_of, run_graph
from benchmarks.turns import ratio, take_turns
from naviscope_ingest import IngestRuntime, MemorySink, RuntimeComponents
from naviscope_ingest.metrics import PrometheusMetrics

__all__ = ["run"]

_PAIRS = 15


def _time(graph: Graph, *, is_measured: bool) -> float:
    async def main() -> float:
        executor, sink = Singly(), MemorySink[int]()
        messages = list(messages_of(graph))
        metrics = PrometheusMetrics() if is_measured else None
        components = RuntimeComponents(executor=executor, commit_sink=sink, metrics=metrics)
        async with IngestRuntime(components).running() as intake:
            gc.collect()
            start = time.perf_counter()
            await run_graph(intake, graph, messages)
            elapsed = time.perf_counter() - start
        check_order(graph.parents, executor.ran)
        if metrics is not None:
            _check_counts(metrics, len(graph))
        return elapsed

    return trio.run(main)


def _check_counts(metrics: PrometheusMetrics, size: int) -> None:
    """See that every message was counted and timed."""
    sample = metrics.registry.get_sample_value
    labels = {"kind": "message"}
    assert sample("naviscope_ended_total", {**labels, "end": "committed"}) == size
    assert sample("naviscope_execute_seconds_count", labels) == size
    assert sample("naviscope_queue_seconds_count") == size


def run(*, quick: bool = False) -> None:
    """Print what metrics cost."""
    graph = make("W2", 5_000 if quick else 50_000)
    contenders = {name: partial(_time, graph, is_measured=name == "on") for name in ("off", "on")}
    taken = take_turns(contenders, _PAIRS)
    print(f"metrics: W2 of {len(graph):,} messages, {_PAIRS} pairs; speed with metrics ÷ without")
    bars = Bars()
    bars.at_least("Prometheus metrics on", ratio(taken, "on", "off"), 0.9)
    bars.show(quick=quick)
    print()
