"""A runtime that breaks on purpose: every fault happens where it should, and costs what the real thing would."""

import logging

import pytest

from naviscope_ingest import (
    Executed,
    KindPolicy,
    Lookup,
    MemorySink,
    RetryPolicy,
    RuntimeConfig,
    RuntimeFailed,
    SystemFailure,
)
from naviscope_ingest.faults import Fault, Faults
from naviscope_ingest.testing import TrioClock
from naviscope_spi import StoreFailed
from tests.runtime.worlds import START, TroubledSink, WaitingStore, chain, failures, messages, started

PATIENT = KindPolicy(retry=RetryPolicy(max_attempts=30, initial_delay=0.1, max_delay=1.0))
IDS = [f"m{number}" for number in range(200)]


def with_faults(text, **config):
    return {"faults": Faults.parse(text), "other_kinds": PATIENT, "breaker": None, **config}


@pytest.mark.parametrize("what", ["error", "connection", "timeout", "5xx", "429", "busy=2", "slow=3"])
@pytest.mark.parametrize("point", ["executor", "message", "sink"])
async def test_a_fault_that_passes_changes_nothing_in_the_end(point, what):
    async with started(**with_faults(f"{point}:0.2:{what}", commit_batch=8)) as world:
        report = await world.batch(*messages(*IDS))
        counted = world.runtime.statistics().faults
    assert report.succeeded, report.failures[:3]
    assert sorted(world.sink.ops) == sorted(IDS)
    assert sum(counted.values()) > 3


async def test_several_faults_strike_in_one_run():
    text = "executor:0.1:5xx,executor:0.1:busy,sink:0.1:timeout,commit:0.2:slow,store:0.2:slow=2,sink:0.1:connection"
    async with started(**with_faults(text, commit_batch=4)) as world:
        report = await world.batch(*chain(100))
        counted = world.runtime.statistics().faults
    assert (report.committed, world.sink.ops) == (100, [f"m{number}" for number in range(100)])
    assert list(counted) == text.split(",")
    assert all(counted.values())


@pytest.mark.parametrize("make", [lambda clock: None, WaitingStore])
async def test_a_slow_store_changes_nothing_in_the_end(make):
    async with started(store=make(TrioClock(START)), **with_faults("store:0.5:slow,commit:0.5:slow")) as world:
        report = await world.batch(*chain(50))
    assert (report.committed, len(world.sink.ops)) == (50, 50)


async def test_the_same_seed_strikes_the_same():
    async def run(seed):
        async with started(**with_faults(f"seed={seed},executor:0.2:permanent")) as world:
            return failures(await world.batch(*messages(*IDS))).keys()

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)


async def test_only_the_kind_is_struck_that_is_named():
    async with started(**with_faults("http:1:permanent")) as world:
        report = await world.batch(*messages("a", "b", kind="http"), *messages("c", "d"))
    assert failures(report).keys() == {"a", "b"}


@pytest.mark.parametrize(("what", "runs"), [("timeout", 3), ("connection", 0)])
async def test_a_timeout_comes_after_the_work_was_done(what, runs):
    thrice = KindPolicy(retry=RetryPolicy(max_attempts=3))
    async with started(**with_faults(f"executor:1:{what}", other_kinds=thrice)) as world:
        report = await world.batch(*messages("a"))
    assert (world.executor.seen, report.dead) == (["a"] * runs, 1)


async def test_a_sink_that_forgets_what_it_knows_is_found_by_timeouts():
    class Forgetful(MemorySink):
        async def commit(self, batch):
            self._ends.clear()
            await super().commit(batch)

    async with started(sink=Forgetful(), **with_faults("sink:0.5:timeout")) as world:
        assert (await world.batch(*messages(*IDS))).succeeded
        assert len(world.sink.ops) > len(IDS)


async def test_a_refusal_costs_one_message_each():
    async with started(sink=TroubledSink(), **with_faults("sink:0.2:refuse", commit_batch=4)) as world:
        report = await world.batch(*messages(*IDS))
        counted = world.runtime.statistics().faults["sink:0.2:refuse"]
    assert report.dead == counted > 0
    assert report.committed == len(IDS) - counted


async def test_batches_are_struck_message_by_message():
    class Batching:
        async def execute_batch(self, deliveries):
            return [Executed(ops=[delivery.id]) for delivery in deliveries]

    async with started(Batching(), **with_faults("executor:0.1:5xx")) as world:
        report = await world.batch(*messages(*IDS))
        counted = world.runtime.statistics().faults["executor:0.1:5xx"]
    assert report.committed == len(IDS)
    assert counted > 5


async def test_a_look_up_is_struck_only_where_faults_are():
    async def ask(key):
        return key.upper()

    lookup = Lookup(ask, ttl=0, otherwise="skip", breaker=None)

    async def work(delivery):
        return Executed(ops=[await lookup.get(delivery.id)])

    async with started(work, **with_faults("lookup:0.5:5xx")) as world:
        await world.batch(*messages(*IDS))
        counted = world.runtime.statistics().faults["lookup:0.5:5xx"]
    assert world.sink.ops.count(None) == counted > 10
    async with started(work) as world:
        await world.batch(*messages(*IDS))
        assert world.runtime.statistics().faults == {}
    assert None not in world.sink.ops


@pytest.mark.parametrize(
    ("point", "error"),
    [("executor", SystemFailure), ("sink", SystemFailure), ("store", StoreFailed), ("commit", StoreFailed)],
)
async def test_a_stop_ends_the_runtime_and_says_that_it_was_on_purpose(point, error):
    with pytest.raises((RuntimeFailed, StoreFailed)) as caught:
        async with started(**with_faults(f"{point}:1:stop", poison_failures=100)) as world:
            await world.batch(*messages("a"))
    # A store tells whoever called it, which may have been the block.
    cause = caught.value if point == "store" else caught.value.__cause__
    assert isinstance(cause, error)
    assert "on purpose" in str(cause)


async def test_a_store_that_was_stopped_stays_so():
    async with started(**with_faults("store:1:stop")) as world:
        for _ in range(3):
            with pytest.raises(StoreFailed):
                await world.intake.new_epoch()
        assert world.runtime.statistics().faults == {"store:1:stop": 1}


async def test_a_runtime_is_loud_about_its_faults(caplog):
    caplog.set_level(logging.WARNING)
    async with started(**with_faults("seed=7,sink:0:error")) as world:
        await world.batch(*messages("a"))
    first, last = caplog.messages[0], caplog.messages[-1]
    assert first == "FAULTS ARE ON: this runtime breaks on purpose, by seed 7: sink:0:error"
    assert last == "faults that were injected on purpose: sink:0:error 0 times"


async def test_a_runtime_without_faults_has_nothing_in_its_way(caplog):
    async with started() as world:
        kernel = world.runtime._kernel
        assert kernel.store is world.store
        assert kernel._committer._sink is world.sink
        assert kernel._workers._executor is world.executor
        await world.batch(*messages("a"))
    assert not [each for each in caplog.messages if "FAULTS" in each]


@pytest.mark.parametrize("faults", ["sink:0.1:error", [Fault("sink", 0.1, "error")], 7])
def test_a_configuration_takes_faults_and_nothing_else(faults):
    with pytest.raises(ValueError, match="give Faults, such as"):
        RuntimeConfig(faults=faults)
