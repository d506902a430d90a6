"""Sinks that fail: tried again, left alone, searched for culprits; no good message dies."""

from __future__ import annotations

import math

import pytest
import trio

from naviscope_ingest import (
    BreakerPolicy,
    CommitBatch,
    Executed,
    MemorySink,
    RetryPolicy,
    RuntimeFailed,
    SinkRejected,
    SystemFailure,
    Transient,
)
from tests.runtime.worlds import START, TroubledSink, failures, messages, started

IDS = [f"m{n}" for n in range(1_000)]
BAD = ["m7", "m500", "m999"]


def gathered() -> dict:
    """Settings that put a thousand outcomes into one commit batch."""
    return {"commit_batch": 1_000, "max_in_flight": 1_000, "submit_chunk": 1_000}


async def test_three_bad_ones_of_a_thousand_are_found_in_few_commits():
    sink = TroubledSink(bad=BAD)
    async with started(sink=sink, **gathered()) as world:
        report = await world.batch(*messages(*IDS))
    assert (report.committed, sorted(failures(report))) == (997, sorted(BAD))
    assert len(sink.batches[0]) == 1_000
    assert len(sink.batches) - 1 <= 2 * math.log2(1_000) * len(BAD)
    assert len(sink.ops) == len(set(sink.ops)) == 997


async def test_a_sink_that_knows_them_needs_one_more_commit():
    class Knowing(TroubledSink):
        async def commit(self, batch: CommitBatch) -> None:
            bad = {entry.task_key: ValueError("bad") for entry in batch.entries if entry.message_id in BAD}
            if bad:
                self.batches.append([entry.message_id for entry in batch.entries])
                raise SinkRejected(bad)
            await super().commit(batch)

    sink = Knowing()
    async with started(sink=sink, **gathered()) as world:
        report = await world.batch(*messages(*IDS))
    assert (report.committed, sorted(failures(report)), len(sink.batches)) == (997, sorted(BAD), 2)


async def test_a_foreign_error_that_passes_is_waited_out():
    sink = TroubledSink(*[ConnectionResetError("gone")] * 5)
    async with started(sink=sink) as world:
        assert (await world.batch(*messages("a"))).committed == 1


class Down(MemorySink):
    """A sink that is down for ten minutes."""

    calls = 0

    async def commit(self, batch: CommitBatch) -> None:
        self.calls += 1
        await trio.lowlevel.checkpoint()
        if 10 <= trio.current_time() < 610:
            raise Transient("down")
        await super().commit(batch)


async def test_an_outage_of_a_sink_loses_nothing_and_calls_it_rarely():
    async def work(delivery):
        await trio.sleep(0.5)
        return Executed([delivery.id])

    sink = Down()
    async with started(work, sink=sink, max_in_flight=100, commit_batch=100) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*(f"m{n}" for n in range(10_000))))
        await epoch.seal()
        await trio.sleep(10)
        before = sink.calls
        await trio.sleep(590)
        assert sink.calls - before <= 100
        assert world.runtime.statistics().in_flight <= 100
        reasons = dict((await epoch.explain()).reasons)
        # Also of those that have answered since, and are not in a batch yet.
        assert reasons["its outcome waits: the breaker of the sink is open: Transient: down"] == 100
        assert "its executor runs" not in reasons
        report = await epoch.wait()
        # At most one time of the breaker after the sink is back, and half a second for each hundred.
        assert trio.current_time() <= 610 + 30 + 50
    assert (report.committed, report.dead) == (10_000, 0)
    assert len(sink.ops) == len(set(sink.ops)) == 10_000


async def test_a_probe_is_asked_before_the_sink_is():
    asked = []

    async def probe():
        asked.append(trio.current_time())
        if len(asked) < 3:
            raise ConnectionError("still down")

    sink = TroubledSink(*[Transient("down")] * 8)
    async with started(sink=sink, sink_breaker=BreakerPolicy(probe=probe)) as world:
        assert (await world.batch(*messages("a"))).committed == 1
    assert len(asked) == 3
    assert len(sink.batches) == 9


async def test_without_a_breaker_a_sink_is_called_at_the_longest_delay():
    sink = TroubledSink(*[Transient("down")] * 20)
    async with started(sink=sink, sink_breaker=None) as world:
        assert (await world.batch(*messages("a"))).committed == 1
        assert world.clock.wall() - START == pytest.approx(25.4 + 13 * 60, rel=0.1)


async def test_a_sink_may_stop_the_runtime():
    with pytest.raises(RuntimeFailed):
        async with started(sink=TroubledSink(SystemFailure("disk gone"))) as world:
            await world.intake.submit(await world.intake.new_epoch(), messages("a"))
            await trio.sleep(10)


class Counting:
    """Metrics that count what went wrong."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self.seen.append((name, *args))

    def attempt_failed(self, *args) -> None:
        self.seen.append(("attempt_failed", *args))

    def sink_failed(self, *args) -> None:
        self.seen.append(("sink_failed", *args))

    def sink_slow(self, *args) -> None:
        self.seen.append(("sink_slow", *args))

    def breaker_changed(self, *args) -> None:
        self.seen.append(("breaker_changed", *args))


async def test_a_slow_sink_is_reported(caplog):
    class Slow(MemorySink):
        async def commit(self, batch: CommitBatch) -> None:
            await trio.sleep(8)
            await super().commit(batch)

    metrics = Counting()
    async with started(sink=Slow(), metrics=metrics) as world:
        await world.batch(*messages("a"))
    assert ("sink_slow", pytest.approx(8.0)) in metrics.seen
    assert "Slow took 8.0 s to commit 1 entries" in caplog.text


async def test_metrics_hear_of_failures_and_breakers():
    metrics = Counting()
    async with started({"a": [Transient("x")]}, sink=TroubledSink(*[Transient("down")] * 8), metrics=metrics) as world:
        for each in "abcd":
            await world.batch(*messages(each))
    changes = [each[2] for each in metrics.seen if each[0] == "breaker_changed"]
    assert changes == ["open", "half-open", "closed"]
    assert ("attempt_failed", "message", "server") in metrics.seen
    assert ("sink_failed", "server") in metrics.seen


async def test_a_sink_that_was_down_is_left_alone_after_a_restart_too():
    calls: list[float] = []

    class Dead(MemorySink):
        async def commit(self, batch: CommitBatch) -> None:
            calls.append(trio.current_time())
            await trio.lowlevel.checkpoint()
            raise Transient("down")

    class Back(MemorySink):
        async def commit(self, batch: CommitBatch) -> None:
            calls.append(trio.current_time())
            await super().commit(batch)

    policy = {"sink_retry": RetryPolicy(max_attempts=1), "sink_breaker": BreakerPolicy(open_for=30, successes=1)}
    async with started(sink=Dead(), **policy) as world:
        epoch = await world.intake.new_epoch("e")
        await epoch.submit(messages("a"))
        await epoch.seal()
        await trio.sleep(10)
        world.runtime.stop(timeout=0)
    (down,) = calls
    async with started(sink=Back(), store=world.store, **policy) as again:
        await trio.sleep(5)
        (reason,) = (await again.intake.explain("e", "a")).reasons
        assert "the breaker of the sink is open" in reason.text
        assert (await again.intake.wait_epoch("e")).committed == 1
        assert calls[1] >= down + 30
    async with started(sink=Back(), store=world.store, **policy) as third:
        await third.batch(*messages("b"))
        assert calls[2] - calls[1] < 30
