"""The durable store: what it costs beside bare SQLite, and how it behaves with a million messages.

W5 is W2 on a SQLite file with synchronous=FULL, and a sink that writes into the same file. Beside it runs bare SQLite:
every statement of every group that our run wrote, replayed into a fresh file by the same driver with the same settings,
with nothing around it. And huey on SQLite, if it is installed: a queue of independent tasks, started parents first.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import apsw
import trio

from benchmarks.graphs import Graph, check_order, make
from benchmarks.runtime import Bars, messages_of
from naviscope_ingest import Delivery, Executed, IngestRuntime, RuntimeConfig
from naviscope_ingest.sinks import Insert, SqliteSink

PARTS = ("W5", "submitters", "waiting", "fan-out")
HAS_HUEY = find_spec("huey") is not None
SCHEMA = "create table results (number integer primary key, value integer)"
Group = list[tuple[str, Any]]


class Inserts:
    """Notes what ran, and inserts a row for it."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    async def execute(self, message: Delivery[int]) -> Executed[int, Insert]:
        self.ran.append(message.payload)
        return Executed((Insert("results", {"number": message.payload, "value": message.payload}),))


async def _run(url: str, graph: Graph) -> float:
    executor = Inserts()
    messages = list(messages_of(graph))
    config = RuntimeConfig(max_in_flight=4096, commit_batch=2048, submit_chunk=2048)
    async with IngestRuntime.open(
        url, executor=executor, commit_sink=SqliteSink(schema=SCHEMA), config=config
    ) as intake:
        gc.collect()
        start = time.perf_counter()
        epoch = await intake.new_epoch("job")
        await epoch.submit(messages)
        await epoch.seal()
        report = await epoch.wait()
        elapsed = time.perf_counter() - start
    assert report.committed == len(graph), report
    check_order(graph.parents, executor.ran)
    return elapsed


def time_ours(graph: Graph) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ingest.db")
        elapsed = trio.run(_run, f"sqlite:///{path}", graph)
        connection = apsw.Connection(str(path))
        count = connection.execute("select count(*) from results").get
        connection.close()
        assert count == len(graph), count
        return elapsed


def record(graph: Graph) -> list[Group]:
    """Run once more and write down every group, untimed."""
    groups: list[Group] = [[]]

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        if sql.lower().startswith("commit"):
            groups.append([])
        elif not sql.lower().startswith(("begin", "savepoint", "release", "pragma", "select")):
            groups[-1].append((sql, bindings))
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(watch)
    try:
        time_ours(graph)
    finally:
        apsw.connection_hooks.remove(watch)
    return [group for group in groups if group]


def time_raw(groups: Sequence[Group]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        connection = apsw.Connection(str(Path(folder, "raw.db")), statementcachesize=200)
        for pragma in ("journal_mode=wal", "synchronous=full", "wal_autocheckpoint=0", "locking_mode=exclusive"):
            connection.execute(f"pragma {pragma}").fetchall()
        gc.collect()
        start = time.perf_counter()
        for group in groups:
            connection.execute("begin immediate")
            for sql, bindings in group:
                connection.execute(sql, bindings)
            connection.execute("commit")
        elapsed = time.perf_counter() - start
        connection.close()
        return elapsed


def run_w5(bars: Bars, *, quick: bool) -> None:
    for size in (1_000, 10_000) if quick else (10_000, 100_000):
        graph = make("W2", size)
        groups = record(graph)
        ours, raw = [], []
        for _ in range(3):
            ours.append(time_ours(graph))
            raw.append(time_raw(groups))
        mine, bare = statistics.median(ours), statistics.median(raw)
        print(
            f"  W5 {size:>9,}: ours {size / mine / 1e3:.1f}k/s   bare SQLite, same {len(groups)} groups, "
            f"{sum(map(len, groups)):,} statements: {size / bare / 1e3:.1f}k/s (x {bare / mine:.2f})",
            flush=True,
        )
        bars.at_least(f"W5, {size:,}: x bare SQLite", bare / mine, 0.35)
