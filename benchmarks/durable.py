"""The durable store: what it costs beside bare SQLite, and how it behaves with a million messages.

W5 is W2 on a SQLite file with synchronous=FULL, and a sink that writes into the same file. Beside it runs bare SQLite:
every statement of every group that our run wrote, replayed into a fresh file with nothing around it. To be fair,

- the file is opened by the code that opens ours, so that schema, page cache, shared log index and sync are the same,
  and its log is copied into the file between groups when ours would be (a replay that never does so has less to write);
- what we do not sync, it does not: commits of nothing but claims;
- neighbours with the same SQL go into one `executemany`, as the sink has it (a call for each row would make bare SQLite
  slower than it is);
- what is bound stands ready in lists: nothing is read, encoded, hashed or decided.

A hundred layers are at least two hundred groups, a claim and a commit for each, whatever their width. With 10,000
messages bare SQLite spends most of its time in their syncs, with 100,000 it has ten times as many rows for the same
syncs. So the ratio falls with the size, although a message of ours costs the same. The last column says what bare
SQLite does without sync, which is what is left when the disk answers at once.
"""

from __future__ import annotations

import gc
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import apsw
import trio

from benchmarks import peers
from benchmarks.graphs import Graph, check_order, make
from benchmarks.runtime import Bars, messages_of, resident
from naviscope_ingest import Delivery, Dependency, Executed, IngestRuntime, MemorySink, Message, RuntimeConfig
from naviscope_ingest.sinks import Insert, SqliteSink
from naviscope_ingest.stores.sqlite.database import Database

PARTS = ("W5", "peers", "submitters", "waiting", "fan-out")
SCHEMA = "create table results (number integer primary key, value integer)"
WIDE = RuntimeConfig(max_in_flight=4096, commit_batch=2048, submit_chunk=2048)
ROOMY = 20_000
"""How many young objects a program may let come together before the garbage collector looks: usually 700."""


class Group(list[tuple[str, Any]]):
    """The statements of one transaction, and whether its commit was synced."""

    def __init__(self, statements: Iterable[tuple[str, Any]] = (), *, is_synced: bool = True) -> None:
        super().__init__(statements)
        self.is_synced = is_synced


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
    sink = SqliteSink(schema=SCHEMA)
    async with IngestRuntime.open(url, executor=executor, commit_sink=sink, config=WIDE) as intake:
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


def time_ours(graph: Graph, *, young: int | None = None) -> float:
    usual = gc.get_threshold()
    if young is not None:
        gc.set_threshold(young)
    try:
        return _time_ours(graph)
    finally:
        gc.set_threshold(*usual)


def _time_ours(graph: Graph) -> float:
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
    groups = [Group()]

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        if sql.startswith("pragma synchronous"):
            groups[-1].is_synced = sql.endswith("full")
        plain = re.sub(r"--.*|/\*.*?\*/", " ", sql).split(None, 1)
        word = plain[0].lower() if plain else ""
        if word == "commit":
            # As the last one, until it says otherwise.
            groups.append(Group(is_synced=groups[-1].is_synced))
        elif word in ("insert", "update", "delete", "replace", "create", "with"):
            groups[-1].append((sql, bindings))
        return True

    def watch(connection: apsw.Connection) -> None:
        if connection.filename.endswith("ingest.db"):
            connection.exec_trace = trace

    apsw.connection_hooks.append(watch)
    try:
        time_ours(graph)
    finally:
        apsw.connection_hooks.remove(watch)
    schema, *rest = groups
    assert any("create table state" in sql for sql, _ in schema), "the first group makes the tables"
    return [_joined(group) for group in rest if group]


def _joined(group: Group) -> Group:
    """Bring what is bound to neighbours with the same statement together."""
    joined = ((sql, [bindings for _, bindings in same]) for sql, same in groupby(group, key=itemgetter(0)))
    return Group(joined, is_synced=group.is_synced)


def time_raw(groups: Sequence[Group], *, sync: bool = True) -> float:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(str(Path(folder, "raw.db")))
        database.open()
        connection = database.connection
        if not sync:
            connection.execute("pragma synchronous = off")
        gc.collect()
        start = time.perf_counter()
        for group in groups:
            if sync:
                database.sync(at_commit=group.is_synced)
            connection.execute("begin immediate")
            for sql, bindings in group:
                connection.executemany(sql, bindings)
            connection.execute("commit")
            database.checkpoint(is_idle=True)
        elapsed = time.perf_counter() - start
        database.close()
        return elapsed


def run_w5(bars: Bars, *, quick: bool) -> None:
    for size in (1_000, 10_000) if quick else (10_000, 100_000):
        graph = make("W2", size)
        groups = record(graph)
        ours, roomy, raw, unsynced = [], [], [], []
        for _ in range(5):
            ours.append(time_ours(graph))
            roomy.append(time_ours(graph, young=ROOMY))
            raw.append(time_raw(groups))
            unsynced.append(time_raw(groups, sync=False))
        mine, best, bare, free = map(statistics.median, (ours, roomy, raw, unsynced))
        statements = sum(len(bindings) for group in groups for _, bindings in group)
        print(
            f"  W5 {size:>9,}: ours {size / mine / 1e3:.1f}k/s, with a patient gc {size / best / 1e3:.1f}k/s   "
            f"bare SQLite, same {len(groups)} groups, {statements:,} statements: {size / bare / 1e3:.1f}k/s "
            f"(x {bare / mine:.2f}), without sync {size / free / 1e3:.1f}k/s",
            flush=True,
        )
        bars.at_least(f"W5, {size:,}: x bare SQLite", bare / mine, 0.35)


def run_peers(bars: Bars, *, quick: bool) -> None:
    """Compare messages a second: a peer has fewer messages to do, so that it comes to an end."""
    missing = [name for name in peers.NAMES if name not in peers.INSTALLED]
    if missing:
        print(f"  {', '.join(missing)}: not installed, so not compared; make bench installs them", flush=True)
    if not peers.INSTALLED:
        return
    few, many = 1_000, 10_000
    graph = make("W2", many)
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in peers.INSTALLED}
    for _ in range(1 if quick else 3):
        ours.append(many / time_ours(graph))
        for name, rates in theirs.items():
            rates.append(few / peers.time_peer(name, few))
    mine = statistics.median(ours)
    best = 0.0
    for name, rates in theirs.items():
        rate = statistics.median(rates)
        best = max(best, rate)
        print(
            f"  W5 beside {name} on SQLite: ours {mine / 1e3:.1f}k/s   {name} {rate:.0f}/s (x {mine / rate:.0f})",
            flush=True,
        )
    bars.at_least("W5: x the better peer", mine / best, 25, "{:.0f}")


class Nothing:
    """Does nothing; a fan-out brings many others."""

    async def execute(self, message: Delivery[Any]) -> Executed[Any, Any]:
        if message.kind != "fan":
            return Executed()
        return Executed(derived=(Message(f"d{number}", None) for number in range(message.payload)))


async def _submit_singly(url: str, tasks: int, each: int) -> float:
    async def submitter(number: int) -> None:
        for at in range(each):
            await epoch.submit(Message(f"m{number}-{at}", number))

    async with IngestRuntime.open(url, executor=Nothing(), commit_sink=MemorySink()) as intake:
        epoch = await intake.new_epoch("job")
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(submitter, number)
        elapsed = time.perf_counter() - start
        await epoch.seal()
        report = await epoch.wait()
    assert report.committed == tasks * each, report
    return elapsed


def run_submitters(bars: Bars, *, quick: bool) -> None:
    tasks, each = 1_000, 2 if quick else 20
    rates = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            elapsed = trio.run(_submit_singly, f"sqlite:///{Path(folder, 'ingest.db')}", tasks, each)
        rates.append(tasks * each / elapsed)
    rate = statistics.median(rates)
    print(f"  {tasks:,} submitters of one message at a time: {rate / 1e3:.1f}k acknowledged/s", flush=True)
    bars.at_least(f"{tasks:,} submitters: acknowledged/s", rate, 15_000, "{:.0f}")


async def _wait(url: str, count: int) -> None:
    """Submit messages that wait, each for a resource of its own, and say how much memory that takes."""

    def messages() -> Any:
        for number in range(count):
            wanted = Dependency.resource(f"r{number}", timeout=86_400, external=True)
            yield Message(f"m{number}", number.to_bytes(8, "big") * 125, depends_on=[wanted])

    async with IngestRuntime.open(url, executor=Nothing(), commit_sink=MemorySink(), config=WIDE) as intake:
        epoch = await intake.new_epoch("job")
        start = time.perf_counter()
        await epoch.submit(messages())
        print(f"{resident():.0f} {time.perf_counter() - start:.1f}", flush=True)


async def _restart(url: str) -> None:
    start = time.perf_counter()
    async with IngestRuntime.open(url, executor=Nothing(), commit_sink=MemorySink(), config=WIDE) as intake:
        found = intake.runtime.recovery
        print(f"{resident():.0f} {time.perf_counter() - start:.1f} {found.unfinished}", flush=True)


def run_waiting(bars: Bars, *, quick: bool) -> None:
    count = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'ingest.db')}"
        memory, seconds = _in_a_process("wait", url, count)
        print(f"  {count:,} waiting, 1 KB, a resource and a timeout each: {memory} MB resident ({seconds} s to submit)")
        bars.at_most(f"{count:,} waiting messages: MB resident", float(memory), 600 * count / 1_000_000)
        memory, seconds, found = _in_a_process("restart", url, count)
        assert int(found) == count, found
        print(f"  restart with them: {seconds} s, {memory} MB", flush=True)
        bars.at_most(f"restart with {count:,} unfinished: seconds", float(seconds), 20 * count / 1_000_000)


def _in_a_process(what: str, url: str, count: int) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.durable", what, url, str(count)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


async def _fan_out(url: str, count: int) -> tuple[float, float, float]:
    """Derive many messages from one, and run them all.

    Returns:
        the longest that somebody else waited for the store meanwhile, the longest that a task which only sleeps for a
        millisecond slept, and how long all of it took. Somebody is always waiting for each of them, so that no hold
        falls between two looks.
    """
    store_waited = loop_held = 0.0

    async def ask_store() -> None:
        nonlocal store_waited
        while True:
            start = time.perf_counter()
            await intake.runtime.store.read("probe", ["x"])  # type: ignore[attr-defined]  # it is a SQLite store
            store_waited = max(store_waited, time.perf_counter() - start)

    async def ask_loop() -> None:
        nonlocal loop_held
        while True:
            start = time.perf_counter()
            await trio.sleep(0.001)
            loop_held = max(loop_held, time.perf_counter() - start - 0.001)

    async with IngestRuntime.open(url, executor=Nothing(), commit_sink=MemorySink()) as intake:
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_store)
            nursery.start_soon(ask_loop)
            async with intake.epoch("job") as epoch:
                await epoch.submit(Message("fan", count, kind="fan"))
            nursery.cancel_scope.cancel()
        assert epoch.report.committed == count + 1, epoch.report
    return store_waited, loop_held, time.perf_counter() - start


def run_fan_out(bars: Bars, *, quick: bool) -> None:
    count = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        store, loop, seconds = trio.run(_fan_out, f"sqlite:///{Path(folder, 'ingest.db')}", count)
    print(
        f"  {count:,} derived from one parent and run, in {seconds:.0f} s, {resident():.0f} MB: another call waited "
        f"{store * 1e3:.0f} ms at most, another task {loop * 1e3:.0f} ms",
        flush=True,
    )
    bars.at_most("fan-out: longest wait for the store, in ms", store * 1e3, 50)
    bars.at_most("fan-out: longest hold of the loop, in ms", loop * 1e3, 50)


def run(*, quick: bool = False, only: Collection[str] = ()) -> None:
    print("durable: SQLite, synchronous=FULL")
    bars = Bars()
    for part, run_part in zip(PARTS, (run_w5, run_peers, run_submitters, run_waiting, run_fan_out), strict=True):
        if not only or part in only:
            run_part(bars, quick=quick)
    bars.show(quick=quick)
    print()


if __name__ == "__main__":
    if sys.argv[1] == "wait":
        trio.run(_wait, sys.argv[2], int(sys.argv[3]))
    else:
        trio.run(_restart, sys.argv[2])
