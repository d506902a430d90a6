"""The same graphs without the runtime: graphlib, asyncio by hand, and dask if it is installed.

Each function builds what it needs from plain numbers, runs everything and returns the seconds that took. None of them
has ids, policies, a store, a sink, reports or explanations; they are what one would write without a library.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from importlib.util import find_spec

from benchmarks.graphs import SIGNALS, Graph, check_order

HAS_DASK = find_spec("dask") is not None


def time_graphlib(graph: Graph) -> float:
    """Loop over the standard library's sorter."""
    gc.collect()
    start = time.perf_counter()
    ran: list[int] = []
    sorter = TopologicalSorter(dict(enumerate(graph.parents)))
    sorter.prepare()
    while sorter.is_active():
        for number in sorter.get_ready():
            ran.append(number)
            sorter.done(number)
    elapsed = time.perf_counter() - start
    check_order(graph.parents, ran)
    return elapsed


def time_asyncio(graph: Graph) -> float:
    """Start a task for each message; each waits for the events of its parents and sets its own."""
    return asyncio.run(_asyncio_signals(graph) if graph.signals else _asyncio_graph(graph))


async def _asyncio_graph(graph: Graph) -> float:
    gc.collect()
    start = time.perf_counter()
    ran: list[int] = []
    done = [asyncio.Event() for _ in graph.parents]

    async def message(number: int, above: tuple[int, ...]) -> int:
        for parent in above:
            await done[parent].wait()
        ran.append(number)
        done[number].set()
        return number

    results = await asyncio.gather(*(message(number, above) for number, above in enumerate(graph.parents)))
    elapsed = time.perf_counter() - start
    check_order(graph.parents, ran)
    assert len(results) == len(graph)
    return elapsed


async def _asyncio_signals(graph: Graph) -> float:
    gc.collect()
    start = time.perf_counter()
    signals = [asyncio.Event() for _ in range(SIGNALS)]

    async def message(number: int, signal: int) -> int:
        await signals[signal].wait()
        return number

    tasks = [asyncio.ensure_future(message(number, signal)) for number, signal in enumerate(graph.signals)]
    await asyncio.sleep(0)
    for signal in signals:
        signal.set()
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks)
    elapsed = time.perf_counter() - start
    assert len(results) == len(graph)
    return elapsed


def time_asyncio_traces(count: int, parents: Sequence[tuple[int, ...]], callers: int) -> float:
    """Run many small graphs, a task and an event for each message, so many graphs at a time."""
    return asyncio.run(_asyncio_traces(count, parents, callers))


async def _asyncio_traces(count: int, parents: Sequence[tuple[int, ...]], callers: int) -> float:
    ran = 0

    async def message(done: list[asyncio.Event], number: int, above: tuple[int, ...]) -> None:
        nonlocal ran
        for parent in above:
            await done[parent].wait()
        ran += 1
        done[number].set()

    async def caller(traces: Iterator[int]) -> None:
        for _ in traces:
            done = [asyncio.Event() for _ in parents]
            await asyncio.gather(*(message(done, number, above) for number, above in enumerate(parents)))

    gc.collect()
    start = time.perf_counter()
    traces = iter(range(count))
    await asyncio.gather(*(caller(traces) for _ in range(callers)))
    elapsed = time.perf_counter() - start
    assert ran == count * len(parents)
    return elapsed


def _body(number: int, *above: int) -> int:
    return number


def time_dask(graph: Graph) -> float:
    """Hand the whole graph to dask's synchronous scheduler. Its keys are tuples, which it groups fastest."""
    import dask

    gc.collect()
    start = time.perf_counter()
    tasks = {
        ("m", number): (_body, number, *(("m", parent) for parent in above))
        for number, above in enumerate(graph.parents)
    }
    results = dask.get(tasks, list(tasks))
    elapsed = time.perf_counter() - start
    assert sorted(results) == list(range(len(graph)))
    return elapsed
