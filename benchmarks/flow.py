"""What flow control costs: W2 with nothing configured beside the kernel without its code path, and with much in use.

The kernel without the code path is this one with the plain order put in place: `take` goes straight to the queues of
priority 0, intake asks nothing, commits free nothing. Both run turn by turn, so that a slow moment meets both.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import trio

from benchmarks.graphs import Graph, check_order, make
from benchmarks.runtime import Bars, Singly, messages_of, run_graph
from benchmarks.turns import ratio, take_turns
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

__all__ = ["run"]

_PAIRS = 15

MUCH = RuntimeConfig(
    kinds={"a": KindPolicy(cap=200, weight=3), "b": KindPolicy(cap=100)},
    limits=[Cap(250)],
    intake=IntakePolicy(high_mark=10_000_000, low_mark=5_000),
)


def _strip(runtime: IngestRuntime[Any, Any]) -> None:
    """Take flow control out of the way of a runtime that has nothing configured."""
    kernel = runtime._kernel
    schedule, workers, door = kernel.core.schedule, kernel._workers, kernel.door

    def take(limit: int) -> list[Any]:
        taken: list[Any] = []
        schedule._usual.take(limit, schedule._pick, kernel.core.now, taken)
        return taken

    async def put(page: Any, messages: Any, unique_for: Any = None, *, may_wait: bool = True) -> Any:
        door._check_running()
        page.submits += 1
        try:
            stored = door._store.put(page.key, messages)
            receipt = await (door._membership.ask(stored) if door._membership.waits else stored)
            door._tell_core(page, messages, receipt)
        finally:
            page.submits -= 1
            if not page.submits:
                page.tell()
        await door._follow_up()
        return receipt, 0

    workers.take = take
    door.put = put  # type: ignore[method-assign]  # measured without what stands before it


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
    contenders = {
        "stripped": lambda: _time(graph, plain, None, stripped=True),
        "nothing configured": lambda: _time(graph, plain, None),
        "much in use": lambda: _time(graph, spread, MUCH),
    }
    taken = take_turns(contenders, _PAIRS)
    print(f"flow control: W2 of {len(graph):,} messages, {_PAIRS} turns; speed beside the kernel without its code path")
    for name, seconds in taken.items():
        rate = len(graph) / statistics.median(seconds)
        print(f"  {name:<20} {rate:>10,.0f}/s   {ratio(taken, name, 'stripped'):.2f} times")
    bars = Bars()
    bars.at_least("nothing configured", ratio(taken, "nothing configured", "stripped"), 0.95)
    bars.at_least("priorities, kinds, caps and lanes in use", ratio(taken, "much in use", "stripped"), 0.6)
    bars.show(quick=quick)
    print()
