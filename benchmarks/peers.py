"""W5 by others that keep their state in a SQLite file: huey and DBOS, if they are installed, as `make bench` does.

Neither takes a graph, so the client hands over one layer after the other and waits for its results: the dependencies
are then in the client's memory, and only DBOS finds its way back into the graph after a crash. Both are driven as is
best for them: huey by two consumer threads in a process of their own that look every few milliseconds, with fsync; DBOS
by one workflow whose steps are gathered, without a queue to be polled.

Each run is a process of its own: `python -m benchmarks.peers huey 1000` prints the seconds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.graphs import Graph, make

NAMES = ("huey", "dbos")
INSTALLED = [name for name in NAMES if find_spec(name) is not None]
Layers = Sequence[Sequence[int]]


def time_peer(name: str, size: int) -> float:
    """Let a peer run W2 in a process of its own; return the seconds it took."""
    command = [sys.executable, "-m", "benchmarks.peers", name, str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def layers_of(graph: Graph) -> Layers:
    """Sort messages by how long the longest way to them is: none of a layer depends on another."""
    depth: list[int] = []
    for above in graph.parents:
        depth.append(1 + max((depth[parent] for parent in above), default=-1))
    layers: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for number, at in enumerate(depth):
        layers[at].append(number)
    return layers


def _huey_on(path: str) -> tuple[Any, Callable[[int], Any]]:
    from huey import SqliteHuey

    huey = SqliteHuey("bench", filename=path, fsync=True)

    def message(number: int) -> int:
        return number

    return huey, huey.task(name="message")(message)


def consume(path: str) -> None:
    """Run huey's consumer until the process is ended."""
    huey, _ = _huey_on(path)
    huey.create_consumer(
        workers=2, worker_type="thread", initial_delay=0.002, max_delay=0.01, backoff=1.1, periodic=False
    ).run()


@contextmanager
def _consumer(path: str) -> Any:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.peers", "consume", path], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def run_huey(layers: Layers, folder: str) -> float:
    path = str(Path(folder, "huey.db"))
    _, message = _huey_on(path)

    def result(handle: Any) -> int:
        # Its own way to wait begins with a tenth of a second.
        while (value := handle.get()) is None:
            time.sleep(0.001)
        return int(value)

    with _consumer(path):
        result(message(1))
        start = time.perf_counter()
        for layer in layers:
            handles = [message(number) for number in layer]
            assert [result(handle) for handle in handles] == list(layer)
        return time.perf_counter() - start


def run_dbos(layers: Layers, folder: str) -> float:
    from dbos import DBOS

    url = f"sqlite:///{Path(folder, 'dbos.db')}"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

    @DBOS.step()
    async def message(number: int) -> int:
        return number

    @DBOS.workflow()
    async def job() -> None:
        for layer in layers:
            assert await asyncio.gather(*(message(number) for number in layer)) == list(layer)

    DBOS.launch()
    try:
        start = time.perf_counter()
        asyncio.run(job())
        return time.perf_counter() - start
    finally:
        DBOS.destroy()


def main(what: str, given: str) -> None:
    if what == "consume":
        consume(given)
        return
    layers = layers_of(make("W2", int(given)))
    with tempfile.TemporaryDirectory() as folder:
        print((run_huey if what == "huey" else run_dbos)(layers, folder), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
