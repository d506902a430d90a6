"""What flow control costs: W2 with nothing configured beside the kernel without its code path, and with much in use.

The kernel without the code path is this one with the plain order put in place: `take` goes straight to the queues of
priority 0, intake asks nothing, commits free nothing. Both run turn by turn, so that a slow moment meets both.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import trio

from benchmarks.graphs import Graph, check_order, make
from benchmarks.runtime import Bars, Singly, messages_of, run_graph
from naviscope_ingest import (
    Cap,
    IngestRuntime,
    IntakePolicy,
    KindPolicy,
    MemorySink,
    Message,
    RuntimeComponents,
    RuntimeConfig,
)

PAIRS = 15

MUCH = RuntimeConfig(
    kinds={"a": KindPolicy(cap=200, weight=3), "b": KindPolicy(cap=100)},
    limits=[Cap(250)],
    intake=IntakePolicy(high_mark=10_000_000, low_mark=5_000),
)


def _strip(runtime: IngestRuntime[Any, Any]) -> None:
    """Take flow control out of the way of a runtime that has nothing configured."""
    kernel = runtime._kernel
    schedule, workers = kernel.core.schedule, kernel._workers

    def take(limit: int) -> list[Any]:
        taken: list[Any] = []
        schedule._usual.take(limit, schedule._pick, kernel.core.now, taken)
        return taken

    workers.take = take
    kernel._pressure.is_near = lambda count: False  # type: ignore[method-assign]  # measured without what it asks


def _in_use(graph: Graph) -> list[Message[int]]:
    """Spread a graph over two kinds, three priorities and some lanes."""
    return [
        Message(
            graph.ids[number],
            number,
            kind="ab"[number % 2],
            priority=number % 3,
            key=f"lane {number % 1_000}" if number % 10 == 0 else None,
            depends_on=above,
        )
        for number, above in enumerate(graph.parent_ids)
    ]


def _time(graph: Graph, messages: list[Message[int]], config: RuntimeConfig | None, *, stripped: bool = False) -> float:
    async def main() -> float:
        executor, sink = Singly(), MemorySink[int]()
        runtime = IngestRuntime(RuntimeComponents(executor=executor, commit_sink=sink), config)
        if stripped:
            _strip(runtime)
        async with runtime.running() as intake:
            gc.collect()
            start = time.perf_counter()
            await run_graph(intake, graph, messages)
            elapsed = time.perf_counter() - start
        check_order(graph.parents, executor.ran)
        return elapsed

    return trio.run(main)


def run(*, quick: bool = False) -> None:
    """Print what flow control costs."""
    graph = make("W2", 10_000 if quick else 50_000)
    plain, spread = list(messages_of(graph)), _in_use(graph)
    contenders: list[tuple[str, Callable[[], float]]] = [
        ("stripped", lambda: _time(graph, plain, None, stripped=True)),
        ("nothing configured", lambda: _time(graph, plain, None)),
        ("much in use", lambda: _time(graph, spread, MUCH)),
    ]
    taken: dict[str, list[float]] = {name: [] for name, _ in contenders}
    for _ in range(PAIRS):
        for name, once in contenders:
            taken[name].append(once())
    medians = {name: statistics.median(times) for name, times in taken.items()}
    print(f"flow control, W2 of {len(graph):,} messages, medians of {PAIRS} turns")
    for name, seconds in medians.items():
        print(f"  {name:<20} {len(graph) / seconds:>10,.0f}/s   {medians['stripped'] / seconds:.2f} times")
    bars = Bars()
    bars.at_least(
        "nothing configured beside the stripped kernel", medians["stripped"] / medians["nothing configured"], 0.95
    )
    bars.at_least("priorities, kinds, caps and lanes in use", medians["stripped"] / medians["much in use"], 0.6)
    bars.show(quick=quick)
