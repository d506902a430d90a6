"""Live control and the life of a runtime: limits, pauses, strikes, drains, and what is not possible when."""

from __future__ import annotations

import logging
import re

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from naviscope_ingest import (
    AdaptiveLimit,
    Cap,
    Executed,
    IngestRuntime,
    KindPolicy,
    MemorySink,
    MemoryStore,
    Message,
    NoSuchKind,
    Rate,
    RuntimeComponents,
    RuntimeConfig,
    Struck,
    Transient,
    UnknownEpoch,
    UnknownLimit,
    WrongState,
)
from naviscope_ingest.testing import TrioClock
from naviscope_spi import Fact, Position, ResourceForgotten
from tests.runtime.test_limits import Watch, of_kind
from tests.runtime.worlds import START, Playing, naps, started


async def test_limits_are_shown_and_changed_while_messages_run(caplog):
    caplog.set_level(logging.INFO, "naviscope_ingest")
    watch = Watch()
    kinds = {"http": KindPolicy(cap=2, rates=[Rate(100)])}
    async with started(watch, kinds=kinds, limits=[Cap(50)]) as world:
        limits = world.runtime.limits
        epoch = await world.intake.new_epoch()
        await epoch.submit(of_kind("http", 12))
        await trio.sleep(0.5)
        shown = {view.name: (view.limit.limit, view.used) for view in limits}
        assert shown == {"max_in_flight": (256, 2), "cap": (50, 2), "cap:http": (2, 2), "rate:http": (100, None)}
        limits.set(Cap(5, kind="http"))
        await trio.sleep(1)
        assert watch.most["http"] == 5
        limits.remove("cap:http")
        with pytest.raises(UnknownLimit, match=r"'cap:http'.*'cap', 'rate:http'"):
            limits.remove("cap:http")
        limits.set_max_in_flight(1)
        assert limits.show()[0].limit == Cap(1)
        await epoch.seal()
        await epoch.wait()
    changes = [record.change for record in caplog.records if hasattr(record, "change")]
    assert changes[0].startswith("limit cap:http is Cap(limit=5")
    assert changes[1:] == ["limit cap:http is gone", "max_in_flight is 1"]


async def test_a_kind_is_paused_and_resumed_and_explain_says_why():
    async with started(naps(1)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([*of_kind("http", 2), *of_kind("sql", 2)])
        world.runtime.pause("http", reason="maintenance until noon")
        await trio.sleep(10)
        assert sorted(world.sink.ops) == ["sql0", "sql1"]
        await epoch.submit(Message("late", None, kind="http"))
        await trio.sleep(10)
        [reason] = (await epoch.explain("late")).reasons
        assert (reason.kind, "maintenance until noon" in reason.text) == ("pause", True)
        world.runtime.resume("http")
        await epoch.seal()
        assert (await epoch.wait(20)).committed == 5


async def test_the_whole_runtime_is_paused_and_resumed():
    async with started(naps(1)) as world:
        world.runtime.pause(reason="coffee")
        assert world.runtime.state == "paused"
        epoch = await world.intake.new_epoch()
        await epoch.submit(of_kind("m", 3))
        await trio.sleep(100)
        assert epoch.report.committed == 0
        with pytest.raises(WrongState, match="is paused, so it cannot be paused"):
            world.runtime.pause()
        world.runtime.resume()
        assert world.runtime.state == "running"
        await epoch.seal()
        assert (await epoch.wait()).committed == 3


async def test_what_cannot_be_paused_or_resumed_says_so():
    async with started(kinds={"http": KindPolicy()}) as world:
        with pytest.raises(NoSuchKind, match="did you mean 'http'"):
            world.runtime.pause("htpt")
        with pytest.raises(WrongState, match="kind 'http', which is not paused"):
            world.runtime.resume("http")
        with pytest.raises(WrongState, match="is running, so it cannot be resumed"):
            world.runtime.resume()
        world.runtime.pause("http")
        world.runtime.resume("http")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda runtime: runtime.limits.set(5), ValueError, "5 is no limit: give a Cap or a Rate"),
        (lambda runtime: runtime.limits.set(Cap(5, kind="htpt")), NoSuchKind, "did you mean 'http'"),
        (lambda runtime: runtime.limits.set(Rate(5, kind="htpt")), NoSuchKind, "did you mean 'http'"),
        (lambda runtime: runtime.limits.set_weight("htpt", 2), NoSuchKind, "did you mean 'http'"),
        (lambda runtime: runtime.limits.set_weight("http", 0), ValueError, "weight=0: give a whole number"),
        (lambda runtime: runtime.limits.set_max_in_flight(0), ValueError, "max_in_flight=0"),
        (lambda runtime: runtime.limits.set_max_in_flight(True), ValueError, "max_in_flight=True"),
        (lambda runtime: runtime.limits.set_epoch_cap("nightly", 0), ValueError, "epoch cap=0"),
        (lambda runtime: runtime.limits.set_epoch_cap("nihgtly", 5), UnknownEpoch, "nihgtly"),
        (lambda runtime: runtime.limits.remove("cap:http"), UnknownLimit, "cap:http"),
        (lambda runtime: runtime.pause("htpt"), NoSuchKind, "did you mean 'http'"),
        (lambda runtime: runtime.pause(7), ValueError, "kind=7: give the name of a kind"),
        (lambda runtime: runtime.resume("htpt"), NoSuchKind, "did you mean 'http'"),
        (lambda runtime: runtime.resume("http"), WrongState, "which is not paused"),
        (lambda runtime: runtime.resume(), WrongState, "is running, so it cannot be resumed"),
        (lambda runtime: runtime.strike(), ValueError, "give a kind"),
        (lambda runtime: runtime.strike(7), ValueError, "strike(kind=7): give a string"),
        (lambda runtime: runtime.strike(id=""), ValueError, "strike(id=''): give a string"),
        (lambda runtime: runtime.stop(-1), ValueError, "timeout=-1: give seconds, zero or more"),
        (lambda runtime: runtime.stop(float("nan")), ValueError, "timeout=nan"),
        (lambda runtime: runtime.stop("5"), ValueError, "timeout='5'"),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused_and_changes_nothing(change, error, said):
    async with started(kinds={"http": KindPolicy()}) as world:
        await world.intake.new_epoch("nightly")
        before = world.runtime.limits.show(), world.runtime.struck, world.runtime.state
        with pytest.raises(error, match=re.escape(said)):
            change(world.runtime)
        assert before == (world.runtime.limits.show(), world.runtime.struck, world.runtime.state)
        report = await world.batch(Message("a", None, kind="http"))
        assert report.committed == 1


async def test_struck_messages_are_refused_until_they_are_let_in_again():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        world.runtime.strike("http", reason="the service is gone")
        world.runtime.strike(id="bad-*")
        with pytest.raises(Struck, match=r"kind 'http' was struck .the service is gone."):
            await epoch.submit([Message("a", None), Message("b", None, kind="http")])
        with pytest.raises(Struck, match="ids like 'bad-"):
            await epoch.submit(Message("bad-1", None))
        with pytest.raises(ValueError, match="give a kind"):
            world.runtime.strike()
        assert world.runtime.struck == ["kind 'http'", "ids like 'bad-*'"]
        assert world.runtime.unstrike("http")
        assert not world.runtime.unstrike("http")
        await epoch.submit(Message("b", None, kind="http"))
        assert epoch.report.submitted == 1
        await epoch.cancel()


async def test_an_adaptive_limit_goes_up_while_all_is_well_and_down_when_a_service_says_no():
    refusing = False
    limit = AdaptiveLimit(start=2, most=10, cooldown=0.5)

    async def work(delivery):
        await trio.sleep(1)
        if refusing:
            raise Transient("429", error_kind="rate_limit")
        return Executed([delivery.message.id])

    async with started(work, kinds={"http": KindPolicy(adaptive=limit)}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(of_kind("http", 300))

        def cap():
            return {view.name: view.limit.limit for view in world.runtime.limits}["adaptive:http"]

        assert cap() == 2
        await trio.sleep(15.5)
        assert cap() == 10
        refusing = True
        await trio.sleep(4)
        assert cap() == 1
        refusing = False
        await epoch.seal()
        assert (await epoch.wait()).committed == 300


async def test_a_service_that_says_when_to_come_back_pauses_its_kind():
    refused: list[str] = []

    async def work(delivery):
        if delivery.message.kind == "http" and not refused:
            refused.append(delivery.message.id)
            raise Transient("429", error_kind="rate_limit", retry_after=30)
        return Executed([trio.current_time()])

    kinds = {"http": KindPolicy(adaptive=AdaptiveLimit(start=1, most=1))}
    async with started(work, kinds=kinds) as world:
        await world.batch(*of_kind("http", 5), *of_kind("sql", 5))
        assert sorted(world.sink.ops) == pytest.approx([0] * 5 + [30] * 5)


# Life


async def test_a_drain_finishes_what_was_started_and_keeps_the_rest_twice_over():
    store = MemoryStore(clock=TrioClock(START))
    left = 300
    for _ in range(2):
        sink: MemorySink[str] = MemorySink()
        components = RuntimeComponents(executor=Playing(naps(1)), commit_sink=sink, store=store, clock=TrioClock(START))
        runtime = IngestRuntime(components, RuntimeConfig(max_in_flight=100))
        async with trio.open_nursery() as nursery:
            intake = await nursery.start(runtime.run_forever)
            epoch = await intake.new_epoch("all")
            if left == 300:
                await epoch.submit(of_kind("m", 300))
            await trio.sleep(0.5)
            assert await runtime.drain() is True
            assert await runtime.drain() is True
        assert runtime.state == "stopped"
        left -= 100
        assert len(sink.ops) == 100
    runtime = IngestRuntime(RuntimeComponents(executor=Playing(naps(1)), commit_sink=MemorySink(), store=store))
    async with runtime.running() as intake:
        epoch = await intake.get_epoch("all")
        await epoch.seal()
        assert (await epoch.wait()).committed == 300


async def test_a_drain_that_takes_too_long_says_so():
    async with started(naps(1_000)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(of_kind("m", 3))
        await wait_all_tasks_blocked()
        assert await world.runtime.drain(5) is False


async def test_states_follow_each_other_only_as_they_may():
    components = RuntimeComponents(executor=Playing(naps(0)), commit_sink=MemorySink())
    runtime = IngestRuntime(components)
    assert runtime.state == "created"
    with pytest.raises(WrongState, match="is created, so it cannot be drained"):
        await runtime.drain()
    with pytest.raises(WrongState, match="is created, so it cannot be paused: from there it can go to 'starting'"):
        runtime.pause()
    async with runtime.running():
        assert runtime.state == "running"
        with pytest.raises(WrongState, match="is running, so it cannot be started"):
            await runtime.run_forever()
    assert runtime.state == "stopped"
    with pytest.raises(WrongState, match="a runtime runs once"):
        runtime.pause()


@pytest.mark.parametrize("seconds", [4, float("inf")], ids=["slow", "hanging"])
async def test_a_start_that_takes_too_long_fails(seconds):
    class SlowStore(MemoryStore):
        async def facts(self, after):
            while True:
                await trio.sleep(seconds)
                yield [Fact(Position(0), ResourceForgotten("x"))]

    components = RuntimeComponents(executor=Playing(naps(0)), commit_sink=MemorySink(), store=SlowStore())
    runtime = IngestRuntime(components, RuntimeConfig(start_timeout=10))
    with pytest.raises(Exception, match="the start took longer than 10 seconds"):
        async with runtime.running():
            pass
    assert runtime.state == "failed"
    assert trio.current_time() <= 12
