"""What it costs to be ready for failures when nothing fails: the same graph with all of it off and on, turn by turn.

Off, kinds have no breakers and the sink has none. On, the kind has a policy of its own, breakers are armed, and the
classifier has rules. What a time limit costs stands beside it: each message then runs in a scope that can be cancelled.
"""

from __future__ import annotations

import gc
import time
from functools import partial

import trio

from benchmarks.graphs import Graph, check_order, make
from benchmarks.runtime import Bars, Singly, messages_of, run_graph
from benchmarks.turns import ratio, take_turns
from naviscope_ingest import (
    BreakerPolicy,
    Classified,
    Classifier,
    IngestRuntime,
    KindPolicy,
    MemorySink,
    RetryPolicy,
    RuntimeComponents,
    RuntimeConfig,
)

__all__ = ["run"]

_PAIRS = 15

OFF = RuntimeConfig(breaker=None, sink_breaker=None)
ON = RuntimeConfig(
    kinds={"message": KindPolicy(retry=RetryPolicy(max_attempts=5), breaker="service")},
    breakers={"service": BreakerPolicy()},
    classifier=Classifier({KeyError: Classified("permanent", "not_found")}),
)
LIMITED = RuntimeConfig(kinds={"message": KindPolicy(timeout=30)})


def _time(graph: Graph, config: RuntimeConfig) -> float:
    async def main() -> float:
        executor, sink = Singly(), MemorySink[int]()
        messages = list(messages_of(graph))
        components = RuntimeComponents(executor=executor, commit_sink=sink)
        async with IngestRuntime(components, config).running() as intake:
            gc.collect()
            start = time.perf_counter()
            await run_graph(intake, graph, messages)
            elapsed = time.perf_counter() - start
        check_order(graph.parents, executor.ran)
        return elapsed

    return trio.run(main)


def run(*, quick: bool = False) -> None:
    graph = make("W2", 2_000 if quick else 20_000)
    configs = {"off": OFF, "on": ON, "limited": LIMITED}
    taken = take_turns({name: partial(_time, graph, config) for name, config in configs.items()}, _PAIRS)
    print(f"failures: W2 of {len(graph):,} messages, {_PAIRS} turns; speed with the feature ÷ without")
    print(f"  with a time limit for each message: {ratio(taken, 'limited', 'off'):.2f}")
    bars = Bars()
    bars.at_least("policies and breakers, nothing fails", ratio(taken, "on", "off"), 0.92)
    bars.show(quick=quick)
    print()
