"""What a producer costs in memory that is ten times as fast as the consumer.

A process of its own measures first how fast the producer submits while nothing runs. Then it sends messages of 1 KB to
a consumer that is paced at a tenth of that, and looks every so often at the memory it takes. With backpressure that
follows the high mark: what is stored and not started. The store in memory also has to know every id of an unfinished
epoch, to tell duplicates, with a digest of its content; it keeps as many messages whole as the mark allows.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import astuple, define

from benchmarks.runtime import Bars, resident
from naviscope_ingest import (
    CommitBatch,
    Delivery,
    Executed,
    IngestRuntime,
    IntakeHandle,
    IntakePolicy,
    Message,
    RuntimeComponents,
    RuntimeConfig,
)
from naviscope_ingest.stores import open_store

__all__ = ["run"]

TIMES_FASTER = 10
PAYLOAD = 1_000
HIGH_MARK = 20_000
FULL = HIGH_MARK * PAYLOAD / 1e6
BYTES_EACH = {"memory": 120, "sqlite": 20}


class Paced:
    """An executor and sink that does nothing, at a pace."""

    def __init__(self) -> None:
        self.seconds_each = 0.0
        self.committed = 0
        self._free_at = 0.0

    async def execute_batch(self, messages: Sequence[Delivery[bytes]]) -> Sequence[Executed[bytes, bytes]]:
        self._free_at = max(self._free_at, trio.current_time()) + len(messages) * self.seconds_each
        await trio.sleep_until(self._free_at)
        return [Executed()] * len(messages)

    async def commit(self, batch: CommitBatch[bytes]) -> None:
        self.committed += len(batch.entries)


@define
class Found:
    """What one run found.

    Attributes:
        submitted: how many messages a second the producer submits while nothing runs.
        pace: how many a second the consumer takes.
        seconds: how long all of it took.
        start: MB resident before the first message.
        early: the most while the first fifth of the messages ended.
        peak: the most at any time.
        backlog: the most messages that were ready and not started.
    """

    submitted: float
    pace: float
    seconds: float
    start: float
    early: float
    peak: float
    backlog: float


def _messages(count: int, prefix: str = "m") -> Iterator[Message[bytes]]:
    for number in range(count):
        yield Message(f"{prefix}{number}", number.to_bytes(8, "big") * (PAYLOAD // 8))


@asynccontextmanager
async def _running(url: str, paced: Paced, high_mark: int) -> AsyncIterator[IntakeHandle[bytes]]:
    policy = IntakePolicy(high_mark=high_mark, low_mark=high_mark // 4, max_waiting=10_000_000)
    options = {"max_whole": high_mark} if url == "memory://" else {}
    async with open_store(url, **options) as store:
        components = RuntimeComponents(executor=paced, commit_sink=paced, store=store)
        async with IngestRuntime(components, RuntimeConfig(intake=policy)).running() as intake:
            yield intake


async def _measure(url: str, count: int, high_mark: int) -> Found:
    paced = Paced()
    async with _running(url, paced, high_mark) as intake:
        runtime = intake.runtime
        runtime.pause()
        async with intake.epoch("warm-up") as epoch:
            start = time.perf_counter()
            probe = min(HIGH_MARK, high_mark) // 2
            await epoch.submit(_messages(probe))
            submitted = probe / (time.perf_counter() - start)
            runtime.resume()
        paced.seconds_each = TIMES_FASTER / submitted
        gc.collect()
        begin, early, peak, backlog = resident(), 0.0, 0.0, 0.0
        epoch = await intake.new_epoch("job")

        async def watch() -> None:
            nonlocal early, peak, backlog
            while True:
                peak = max(peak, resident())
                if epoch.report.committed < count / 5:
                    early = peak
                backlog = max(backlog, runtime.statistics().backlog)
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            start = time.perf_counter()
            await epoch.submit(_messages(count))
            await epoch.seal()
            report = await epoch.wait()
            seconds = time.perf_counter() - start
            nursery.cancel_scope.cancel()
        assert report.committed == count, report
    return Found(submitted, count / seconds, seconds, begin, early, peak, backlog)


def measure(kind: str, count: int, high_mark: int = HIGH_MARK) -> Found:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.intake", kind, str(count), str(high_mark)]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Found(*map(float, words))


def _main(kind: str, count: int, high_mark: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = "memory://" if kind == "memory" else f"sqlite:///{Path(folder, 'ingest.db')}"
        found = trio.run(_measure, url, count, high_mark)
    print(*astuple(found))


def run(*, quick: bool = False) -> None:
    """Print what backpressure makes of a fast producer."""
    count = 100_000 if quick else 1_000_000
    print(f"intake: {count:,} messages of 1 KB from a producer that is {TIMES_FASTER} times as fast as the consumer")
    bars = Bars()
    for kind, most_each in BYTES_EACH.items():
        found = measure(kind, count)
        each = (found.peak - found.early) * 1e6 / (count * 0.8)
        print(
            f"  {kind:<7} producer {found.submitted / 1e3:.0f}k/s alone, consumer {found.pace / 1e3:.1f}k/s; backlog "
            f"{found.backlog:,.0f} at most; resident {found.start:.0f} MB at the start, {found.early:.0f} after a "
            f"fifth, {found.peak:.0f} at most: {each:.0f} bytes for each further message",
            flush=True,
        )
        bars.at_most(f"{kind}: most backlog ÷ high mark", found.backlog / HIGH_MARK, 1.05)
        if kind == "sqlite":
            bars.at_most("sqlite: MB up to a fifth ÷ payloads up to the mark", (found.early - found.start) / FULL, 3.0)
        bars.at_most(f"{kind}: bytes for each message after that", each, most_each)
    bars.show(quick=quick)
    print()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
