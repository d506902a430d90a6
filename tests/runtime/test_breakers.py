"""Circuit breakers: while something is down, messages wait, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import BreakerPolicy, Executed, KindPolicy, MemoryStore, Message, Permanent, Transient
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import START, messages, started


class Downstream:
    """An executor whose service is down between two times."""

    def __init__(self, begins: float, ends: float) -> None:
        self.begins, self.ends = begins, ends
        self.calls: list[float] = []

    @property
    def is_down(self) -> bool:
        return self.begins <= trio.current_time() < self.ends

    async def execute(self, delivery: Any) -> Any:
        self.calls.append(trio.current_time())
        await trio.sleep(0.5)
        if self.is_down:
            raise ConnectionRefusedError(111, "nobody there")
        return Executed([delivery.id])

    def between(self, begins: float, ends: float) -> int:
        return sum(begins <= at < ends for at in self.calls)


async def test_an_outage_of_ten_minutes_loses_nothing_and_is_hardly_asked():
    executor = Downstream(10, 610)
    async with started(executor, max_in_flight=64) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*(f"m{n}" for n in range(10_000))))
        await epoch.seal()
        report = await epoch.wait()
    assert (report.committed, report.dead) == (10_000, 0)
    assert len(world.sink.ops) == len(set(world.sink.ops)) == 10_000
    # Those that were under way or started in the first second, and a probe every half minute.
    assert executor.between(10.6, 610) <= 100
    # One probe of half a second finds it is back, within half a minute; two more, then all of them.
    assert report.completed_at - START <= 610 + 32 + 10_000 / 64 * 0.5 + 5


async def test_while_it_is_open_messages_wait_and_say_so():
    executor = Downstream(0, 100)
    async with started(executor) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*(f"m{n}" for n in range(300))))
        await trio.sleep(20)
        reasons = [(await epoch.explain(name)).reasons[0] for name in ("m0", "m299")]
        assert {each.kind for each in reasons} == {"breaker"}
        assert "the breaker 'message' is open: ConnectionRefusedError" in reasons[0].text
        assert reasons[0].until == pytest.approx(START + 30.5, abs=0.1)
        await epoch.seal()
        assert (await epoch.wait()).committed == 300


async def test_other_kinds_go_on():
    executor = Downstream(0, 1_000)

    class Both:
        async def execute(self, delivery):
            return await executor.execute(delivery) if delivery.kind == "http" else Executed([delivery.id])

    async with started(Both()) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*(f"h{n}" for n in range(50)), kind="http"))
        await trio.sleep(5)
        await epoch.submit(messages(*(f"o{n}" for n in range(50)), kind="other"))
        await trio.sleep(5)
        assert len(world.sink.ops) == 50


async def test_kinds_that_need_the_same_share_a_breaker():
    executor = Downstream(0, 1_000)
    kinds = {kind: KindPolicy(breaker="api.example") for kind in ("get", "put")}
    async with started(executor, kinds=kinds) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages(*(f"g{n}" for n in range(10)), kind="get"))
        await trio.sleep(5)
        before = len(executor.calls)
        await epoch.submit(messages("p", kind="put"))
        await trio.sleep(5)
        # The first of a kind that nobody has seen may pass; it finds out.
        assert len(executor.calls) - before <= 1
        await epoch.submit(messages("p2", kind="put"))
        await trio.sleep(5)
        assert (await epoch.explain("p2")).reasons[0].kind == "breaker"


async def test_it_is_open_after_a_restart_too():
    store = MemoryStore(clock=TrioClock(START))
    executor = Downstream(0, 1_000)
    async with started(executor, store=store) as world:
        await world.intake.submit(await world.intake.new_epoch("e"), messages(*(f"m{n}" for n in range(50))))
        await trio.sleep(5)
    before = len(executor.calls)
    async with started(executor, store=store) as world:
        await trio.sleep(20)
        assert len(executor.calls) == before
        await trio.sleep(10)
        assert len(executor.calls) == before + 1


async def test_a_probe_asks_in_place_of_a_message():
    asked = []

    async def probe():
        asked.append(trio.current_time())
        if executor.is_down:
            raise ConnectionError("still down")

    executor = Downstream(0, 100)
    async with started(executor, breakers={"message": BreakerPolicy(probe=probe)}) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(50))))
    assert report.committed == 50
    assert len(asked) == 4
    assert executor.between(1, 100) == 0


@pytest.mark.parametrize("config", [{"breaker": None}, {"breakers": {"message": None}}], ids=str)
async def test_without_a_breaker_messages_fail_one_by_one(config):
    async with started(Downstream(0, 100), **config) as world:
        assert (await world.batch(*messages(*(f"m{n}" for n in range(50))))).dead == 50


async def test_errors_of_the_messages_themselves_do_not_open_it():
    async def work(delivery):
        raise Permanent("no such row")

    async with started(work) as world:
        assert (await world.batch(*messages(*(f"m{n}" for n in range(50))))).dead == 50


async def test_one_message_alone_does_not_open_it():
    async def work(delivery):
        if delivery.id == "bad":
            raise Transient("busy")
        await trio.sleep(5)
        return Executed([delivery.id])

    async with started(work) as world:
        report = await world.batch(*messages("bad", "a", "b"), Message("c", None, depends_on=["a"]))
    assert (report.committed, report.dead) == (3, 1)


@pytest.mark.parametrize(
    "wrong",
    [{"breaker": 5}, {"breakers": {"a": 5}}, {"breakers": 5}, {"sink_breaker": "no"}, {"kinds": {"a": 1}}],
    ids=str,
)
async def test_a_breaker_that_is_none_is_refused(wrong):
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        async with started(**wrong):
            pass
