"""What the core costs beside a bare topological sort: add and finish messages with two parents each."""

import gc
import time
from graphlib import TopologicalSorter

from naviscope_ingest._core import Core
from naviscope_spi import EpochKey, EpochOptions, EpochRecord, Message, Seq

BATCH = 512


def messages(count: int) -> list[Message[None]]:
    """Make a wide graph in which each message waits for two earlier ones."""
    return [
        Message(f"m{number}", None, depends_on=() if number < 4 else (f"m{number // 2}", f"m{number // 3}"))
        for number in range(count)
    ]


def time_core(batch: list[Message[None]]) -> float:
    """Accept everything in order, then take, hand to the sink and commit until nothing is left."""
    gc.collect()
    start = time.perf_counter()
    core = Core()
    core.open_epoch(EpochRecord(EpochKey(1, "bench"), "open", EpochOptions()))
    for at in range(0, len(batch), BATCH):
        chunk = batch[at : at + BATCH]
        core.accept(1, [Seq(at + offset) for offset in range(len(chunk))], chunk)
    core.seal(1)
    finished = 0
    while taken := core.take(BATCH):
        core.hand_to_sink(taken)
        core.commit(taken)
        core.advance(0.0)
        finished += len(taken)
    elapsed = time.perf_counter() - start
    assert finished == len(batch)
    assert core.epochs[1].is_completed
    return elapsed


def time_graphlib(batch: list[Message[None]]) -> float:
    """Do the same with the standard library's sorter, which knows ids and edges and nothing else."""
    gc.collect()
    start = time.perf_counter()
    sorter: TopologicalSorter[object] = TopologicalSorter()
    for message in batch:
        sorter.add(message.id, *message.depends_on)
    sorter.prepare()
    finished = 0
    while sorter.is_active():
        ready = sorter.get_ready()
        sorter.done(*ready)
        finished += len(ready)
    elapsed = time.perf_counter() - start
    assert finished == len(batch)
    return elapsed


def run(*, quick: bool = False) -> None:
    sizes = (1_000, 10_000, 100_000) if quick else (10_000, 100_000, 1_000_000)
    print("core: add and finish a message with two parents, beside graphlib")
    print(f"  {'messages':>9}  {'core µs':>8}  {'graphlib µs':>11}  {'ratio':>5}")
    per_message: dict[int, tuple[float, float]] = {}
    for size in sizes:
        batch = messages(size)
        repeats = max(1, min(5, 500_000 // size))
        core = min(time_core(batch) for _ in range(repeats)) / size * 1e6
        plain = min(time_graphlib(batch) for _ in range(repeats)) / size * 1e6
        per_message[size] = (core, plain)
        print(f"  {size:>9,}  {core:>8.2f}  {plain:>11.2f}  {core / plain:>5.2f}")
    core_growth = per_message[sizes[-1]][0] / per_message[sizes[0]][0]
    plain_growth = per_message[sizes[-1]][1] / per_message[sizes[0]][1]
    print(
        f"  growth from {sizes[0]:,} to {sizes[-1]:,}: core {core_growth:.2f}, graphlib {plain_growth:.2f},"
        f" core / graphlib {core_growth / plain_growth:.2f} (bar: 1.20)\n"
    )
