"""The runtime beside what one would write by hand, on the same graphs, in the same process, turn by turn.

Everybody gets the graph in the form they need before the clock starts: we as messages, graphlib and dask as ids,
asyncio as numbers. What it costs to make the messages is printed by itself. The clock then covers what a caller waits
for, from the first submit to the report. Everything is on: duplicates, conflicts, policies, the store, the sink,
reports. After the clock has stopped, each run is checked: every message ran once, after its parents, and the sink holds
every op. Bars are what this project wants to reach; a bar that is not reached says so.
"""

from __future__ import annotations

import gc
import random
import resource
import statistics
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from benchmarks.graphs import SIGNALS, TITLES, Graph, check_order, make, window_parents
from benchmarks.neighbours import HAS_DASK, time_asyncio, time_asyncio_traces, time_dask, time_graphlib
from benchmarks.turns import take_turns
from naviscope_ingest import (
    CommitBatch,
    Delivery,
    Dependency,
    Epoch,
    Executed,
    IngestRuntime,
    IntakeHandle,
    MemorySink,
    Message,
    Resource,
    RuntimeComponents,
)

PARTS = ("epochs", "W1", "W2", "W3", "W4", "W6", "W7", "stream")
TRACE: Sequence[tuple[int, ...]] = ((), (0,), (0,), (1, 2), (3,))
TRACE_IDS = ("start", "left", "right", "merge", "end")
CALLERS = 16
MOST_UNFINISHED = 20_000
OURS = ("runtime", "in batches", "one at a time")


class Singly:
    """Notes what ran, and hands the number to the sink."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    async def execute(self, message: Delivery[int]) -> Executed[int, int]:
        self.ran.append(message.payload)
        return Executed((message.payload,))


class Together:
    """Does the same for many messages at once."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    async def execute_batch(self, messages: Sequence[Delivery[int]]) -> Sequence[Executed[int, int]]:
        numbers = [message.payload for message in messages]
        self.ran += numbers
        return [Executed((number,)) for number in numbers]


def make_runtime(executor: Any, sink: Any) -> IngestRuntime[int, int]:
    return IngestRuntime(RuntimeComponents(executor=executor, commit_sink=sink))


def messages_of(graph: Graph) -> Iterator[Message[int]]:
    if graph.signals:
        for number, signal in enumerate(graph.signals):
            yield Message(graph.ids[number], number, depends_on=[Dependency.resource(f"r{signal}")])
    else:
        for number, above in enumerate(graph.parent_ids):
            yield Message(graph.ids[number], number, depends_on=above)


async def run_graph(intake: IntakeHandle[int], graph: Graph, messages: Sequence[Message[int]]) -> None:
    epoch = await intake.new_epoch()
    await epoch.submit(messages)
    if graph.signals:
        for signal in range(SIGNALS):
            await intake.notify_dependency_ready(Resource(f"r{signal}"))
    await epoch.seal()
    report = await epoch.wait()
    assert report.committed == len(graph), report


def time_runtime(graph: Graph, executor_type: type[Singly | Together] = Singly) -> float:
    """Run a graph as one epoch."""

    async def main() -> float:
        executor, sink = executor_type(), MemorySink[int]()
        messages = list(messages_of(graph))
        async with make_runtime(executor, sink).running() as intake:
            gc.collect()
            start = time.perf_counter()
            await run_graph(intake, graph, messages)
            elapsed = time.perf_counter() - start
        check_order(graph.parents, executor.ran)
        check_order(graph.parents, sink.ops)
        return elapsed

    return trio.run(main)


def time_batches(graph: Graph) -> float:
    return time_runtime(graph, Together)


def messages_of_trace(number: int) -> Sequence[Message[int]]:
    first = number * len(TRACE)
    return [
        Message(TRACE_IDS[node], first + node, depends_on=[TRACE_IDS[parent] for parent in above])
        for node, above in enumerate(TRACE)
    ]


def time_traces(count: int, callers: int) -> float:
    """Run many epochs of five messages, so many at a time."""

    async def trace(intake: IntakeHandle[int], messages: Sequence[Message[int]]) -> None:
        epoch = await intake.new_epoch()
        await epoch.submit(messages)
        await epoch.seal()
        report = await epoch.wait()
        assert report.committed == len(TRACE), report

    async def caller(intake: IntakeHandle[int], traces: Iterator[Sequence[Message[int]]]) -> None:
        for messages in traces:
            await trace(intake, messages)

    async def main() -> float:
        executor, sink = Singly(), MemorySink[int]()
        traces = iter([messages_of_trace(number) for number in range(count)])
        async with make_runtime(executor, sink).running() as intake:
            gc.collect()
            start = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(caller, intake, traces)
            elapsed = time.perf_counter() - start
        parents = [tuple(first + parent for parent in above) for first in range(0, count * 5, 5) for above in TRACE]
        check_order(parents, executor.ran)
        check_order(parents, sink.ops)
        return elapsed

    return trio.run(main)


# What is printed.


@define
class Bars:
    """The ratios that have a bar, as they are measured."""

    lines: list[tuple[str, str, str, bool]] = field(factory=list)

    def at_least(self, what: str, value: float, bar: float, form: str = "{:.2f}") -> None:
        self.lines.append((what, form.format(value), f"≥ {form.format(bar)}", value >= bar))

    def at_most(self, what: str, value: float, bar: float) -> None:
        self.lines.append((what, f"{value:.2f}", f"≤ {bar:.2f}", value <= bar))

    def within(self, what: str, value: float, part: float) -> None:
        self.lines.append((what, f"{value:.2f}", f"1 ± {part:.2f}", abs(value - 1) <= part))

    def show(self, *, quick: bool) -> None:
        if not self.lines:
            return
        note = " (they are meant for full sizes, these were a tenth)" if quick else ""
        print(f"  bars{note}")
        for what, value, bar, is_reached in self.lines:
            print(f"    {what:<58} {value:>8}  {bar:>10}  {'reached' if is_reached else 'not reached'}")


Contender = tuple[str, Callable[[Graph], float]]


def medians(graph: Graph, contenders: Sequence[Contender], repeats: int) -> dict[str, float]:
    """Time the contenders turn by turn."""
    taken = take_turns({name: partial(run_once, graph) for name, run_once in contenders}, repeats)
    return {name: statistics.median(times) for name, times in taken.items()}


def show_line(title: str, count: int, seconds: dict[str, float]) -> None:
    """Print how many there were per second, and how many times as fast the runtime is as each neighbour."""
    ours = seconds["runtime"]
    shown = [f"{name} {_rate(count / each)}{_times(name, each / ours)}" for name, each in seconds.items()]
    print(f"  {title:<42} {count:>9,}  " + "   ".join(shown), flush=True)


def _rate(per_second: float) -> str:
    return f"{per_second / 1e3:.0f}k/s" if per_second >= 1e4 else f"{per_second / 1e3:.1f}k/s"


def _times(name: str, ratio: float) -> str:
    return "" if name in OURS else f" (x {ratio:.2f})"


# The parts.


def contenders_for(name: str, size: int, smallest: int) -> list[Contender]:
    """Choose who runs a workload. A million asyncio tasks, or more than 10,000 of dask's, take gigabytes."""
    found: list[Contender] = [("runtime", time_runtime)]
    if name == "W1":
        found.append(("in batches", time_batches))
    if name != "W6":
        found.append(("graphlib", time_graphlib))
    if size <= smallest * 10:
        found.append(("asyncio", time_asyncio))
    if HAS_DASK and name != "W6" and size == smallest:
        found.append(("dask", time_dask))
    return found


def run_workload(name: str, bars: Bars, *, quick: bool) -> None:
    smallest = 1_000 if quick else 10_000
    sizes = [smallest, smallest * 10, smallest * 100]
    results: dict[int, dict[str, float]] = {}
    for size in sizes:
        repeats = 5 if size > smallest else 7
        graph = make(name, size)
        results[size] = medians(graph, contenders_for(name, size, smallest), repeats)
        show_line(f"{name} {TITLES[name]}", size, results[size])
        if size == sizes[1]:
            start = time.perf_counter()
            made = sum(1 for _ in messages_of(graph))
            print(f"  {'':<42} making a message takes {(time.perf_counter() - start) / made * 1e6:.1f} µs")
        del graph
    _judge(name, bars, sizes, results)


def _judge(name: str, bars: Bars, sizes: Sequence[int], results: dict[int, dict[str, float]]) -> None:
    small, large = results[sizes[0]], results[sizes[1]]
    label = f"{name}, {sizes[1]:,}"
    if name == "W1":
        bars.at_least(f"{label}, in batches: x asyncio", large["asyncio"] / large["in batches"], 3.0)
    elif name == "W2":
        bars.at_least(f"{label}: x asyncio", large["asyncio"] / large["runtime"], 2.5)
        bars.at_least(f"{label}: x graphlib", large["graphlib"] / large["runtime"], 0.5)
        if "dask" in small:
            bars.at_least(f"W2, {sizes[0]:,}: x dask", small["dask"] / small["runtime"], 15.0)
        scale = sizes[2] / sizes[0]
        ours, theirs = (results[sizes[2]][who] / small[who] / scale for who in ("runtime", "graphlib"))
        print(
            f"  growth of a message's cost from {sizes[0]:,} to {sizes[2]:,}: runtime {ours:.2f}, graphlib {theirs:.2f}"
        )
        bars.at_most(f"growth {sizes[0]:,} → {sizes[2]:,}: ÷ graphlib's", ours / theirs, 1.2)
    elif name == "W3":
        bars.at_least(f"{label}: x asyncio", large["asyncio"] / large["runtime"], 1.2)


def run_traces(bars: Bars, *, quick: bool) -> None:
    count = 10_000 if quick else 100_000
    taken: dict[str, list[float]] = {"runtime": [], "one at a time": [], "asyncio": []}
    for _ in range(5):
        taken["runtime"].append(time_traces(count, CALLERS))
        taken["one at a time"].append(time_traces(count // 10, 1) * 10)
        taken["asyncio"].append(time_asyncio_traces(count, TRACE, CALLERS))
    seconds = {name: statistics.median(times) for name, times in taken.items()}
    show_line(f"W7 {TITLES['W7']}, {CALLERS} at a time", count, seconds)
    bars.at_least(f"W7, {count:,} epochs, {CALLERS} at a time: epochs/s", count / seconds["runtime"], 10_000, "{:.0f}")


class Tap:
    """A sink that keeps the numbers, tells how far it is, and when each tenth was reached.

    It has no index by task key: that would grow with the stream, and it is the runtime that must not.
    """

    def __init__(self, total: int) -> None:
        self.ops: list[int] = []
        self.count = 0
        self.moved = trio.Event()
        self.tenths: list[float] = []
        self._step = total // 10

    async def commit(self, batch: CommitBatch[int]) -> None:
        for entry in batch.entries:
            self.ops += entry.ops
        self.count += len(batch.entries)
        while self.count >= self._step * (len(self.tenths) + 1):
            self.tenths.append(time.perf_counter())
        self.moved.set()
        self.moved = trio.Event()


def time_stream(parents: Sequence[tuple[int, ...]]) -> list[float]:
    """Stream messages, few of them unfinished at a time; return how long each tenth took."""
    count = len(parents)

    async def messages(sink: Tap) -> AsyncIterator[Message[int]]:
        for number, above in enumerate(parents):
            while number - sink.count >= MOST_UNFINISHED:
                await sink.moved.wait()
            yield Message(f"m{number}", number, depends_on=[f"m{parent}" for parent in above])

    async def main() -> list[float]:
        executor, sink = Singly(), Tap(count)
        async with make_runtime(executor, sink).running() as intake:
            gc.collect()
            start = time.perf_counter()
            epoch: Epoch[int] = await intake.new_epoch()
            await epoch.submit(messages(sink))
            await epoch.seal()
            report = await epoch.wait()
        assert report.committed == count, report
        check_order(parents, executor.ran)
        check_order(parents, sink.ops)
        return [end - begin for begin, end in zip([start, *sink.tenths], sink.tenths, strict=False)]

    return trio.run(main)


def run_stream(bars: Bars, *, quick: bool) -> None:
    count = 100_000 if quick else 1_000_000
    rng = random.Random(count)
    parents = [window_parents(number, rng) for number in range(count)]
    runs = [time_stream(parents) for _ in range(5)]
    tenths = [statistics.median(run[at] for run in runs) for at in range(10)]
    shown = " ".join(_rate(count / 10 / each) for each in tenths)
    print(f"  stream of {count:,}, at most {MOST_UNFINISHED:,} unfinished; by tenths: {shown}", flush=True)
    # A full garbage collection falls into some tenths and not into others, so halves are compared.
    ratio = statistics.median(sum(run[:5]) / sum(run[5:]) for run in runs)
    bars.within("stream: speed of the second half ÷ the first", ratio, 0.15)


class Ticks:
    """A sink and executor that remember, for one epoch, which numbers they saw; their memory does not grow."""

    def __init__(self, count: int) -> None:
        self.executed = bytearray(count)
        self.committed = bytearray(count)

    async def execute(self, message: Delivery[int]) -> Executed[int, int]:
        self.executed[message.payload] += 1
        return Executed((message.payload,))

    async def commit(self, batch: CommitBatch[int]) -> None:
        for entry in batch.entries:
            for number in entry.ops:
                self.committed[number] += 1

    def check(self) -> None:
        for seen in (self.executed, self.committed):
            assert seen.count(1) == len(seen)
            seen[:] = bytes(len(seen))


def resident() -> float:
    """Return the memory this process takes, in MB; where the system does not tell, the most it ever took."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def time_epochs(graph: Graph) -> tuple[list[float], list[float]]:
    """Run a graph ten times through one runtime; return the seconds of each, and the memory after each."""

    async def main() -> tuple[list[float], list[float]]:
        ticks = Ticks(len(graph))
        messages = list(messages_of(graph))
        seconds, memory = [], []
        async with make_runtime(ticks, ticks).running() as intake:
            for _ in range(10):
                gc.collect()
                start = time.perf_counter()
                await run_graph(intake, graph, messages)
                seconds.append(time.perf_counter() - start)
                ticks.check()
                gc.collect()
                memory.append(resident())
        return seconds, memory

    return trio.run(main)


def run_epochs(bars: Bars, *, quick: bool) -> None:
    graph = make("W2", 10_000 if quick else 100_000)
    runs = [time_epochs(graph) for _ in range(3)]
    tenths = [statistics.median(seconds[at] for seconds, _ in runs) for at in range(10)]
    memory = runs[0][1]
    print(f"  ten epochs of {len(graph):,} (W2) through one runtime")
    print(f"    speed of each:        {' '.join(_rate(len(graph) / each) for each in tenths)}")
    print(f"    resident after each:  {' '.join(f'{each:.0f}' for each in memory)} MB", flush=True)
    ratio = statistics.median(seconds[0] / seconds[-1] for seconds, _ in runs)
    bars.within("ten epochs: speed of the tenth ÷ the first", ratio, 0.15)
    worst = max((each / memory[1] for each in memory[2:]), key=lambda part: abs(part - 1))
    bars.within("ten epochs: memory, farthest from that after the second", worst, 0.10)


def run(*, quick: bool = False, only: Collection[str] = ()) -> None:
    print("runtime: how many per second; (x n): so many times as fast as that neighbour")
    if not HAS_DASK:
        print("  dask is not installed: no comparison with it")
    bars = Bars()
    # Memory comes first: what other parts leave behind would hide what this one takes.
    for part in PARTS:
        if only and part not in only:
            continue
        if part == "epochs":
            run_epochs(bars, quick=quick)
        elif part == "stream":
            run_stream(bars, quick=quick)
        elif part == "W7":
            run_traces(bars, quick=quick)
        else:
            run_workload(part, bars, quick=quick)
    bars.show(quick=quick)
    print()
