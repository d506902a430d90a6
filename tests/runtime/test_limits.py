"""Caps and rates in a running runtime: never exceeded, and used when there is work."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import trio

from naviscope_ingest import AdaptiveLimit, Cap, Executed, KindPolicy, Message, Rate, RuntimeConfig
from tests.runtime.worlds import START, naps, started


class Watch:
    """Notes how many run at once, by whatever a test counts by, and when each started."""

    def __init__(self, seconds=1.0, by=lambda delivery: delivery.message.kind):
        self.now = Counter()
        self.most = Counter()
        self.starts = []
        self.seconds = seconds
        self.by = by

    async def __call__(self, delivery):
        what = self.by(delivery)
        self.now[what] += 1
        self.most[what] = max(self.most[what], self.now[what])
        self.starts.append((trio.current_time(), what))
        await trio.sleep(self.seconds)
        self.now[what] -= 1
        return Executed([delivery.message.id])


def of_kind(kind: str, count: int, **fields) -> list[Message[None]]:
    return [Message(f"{kind}{n}", None, kind=kind, **fields) for n in range(count)]


async def test_a_cap_of_a_kind_is_kept_and_used():
    watch = Watch()
    async with started(watch, limits=[Cap(4, kind="http")]) as world:
        await world.batch(*of_kind("http", 40), *of_kind("sql", 40))
        assert world.clock.wall() - START == 10
    assert watch.most == {"http": 4, "sql": 40}


async def test_a_cap_by_tenant_and_one_by_kind_hold_together():
    watch = Watch(by=lambda delivery: delivery.message.headers["tenant"])
    async with started(watch, limits=[Cap(2, by="headers.tenant"), Cap(5)]) as world:
        for tenant in ("x", "y", "z"):
            await world.batch(*of_kind(tenant, 10, headers={"tenant": tenant}))
    assert set(watch.most.values()) == {2}


async def test_a_rate_is_kept_and_used_by_workers_that_are_busy_for_long():
    """Whoever asked for work is busy when the next token comes; somebody else must start it."""
    watch = Watch(seconds=50)
    async with started(watch, limits=[Rate(4, burst=1)]) as world:
        await world.batch(*of_kind("http", 101))
        assert world.clock.wall() - START == pytest.approx(75, abs=0.01)
    times = [at for at, _ in watch.starts]
    assert times == pytest.approx([n / 4 for n in range(101)], abs=0.001)


async def test_who_waits_for_a_token_holds_no_worker():
    async with started(naps(1), limits=[Rate(1, kind="slow")], max_in_flight=2) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(of_kind("slow", 10))
        await trio.sleep(0.5)
        await world.batch(*of_kind("quick", 2), name="quick")
        assert world.clock.wall() - START <= 2.5
        assert world.runtime.statistics().in_flight <= 1
        await epoch.cancel()


async def test_an_epoch_is_not_idle_while_a_rate_holds_its_messages():
    async with started(naps(0), limits=[Rate(1)]) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(of_kind("m", 4))
        await world.intake.wait_idle()
        assert world.clock.wall() - START == pytest.approx(3)
        assert epoch.report.committed == 4


async def test_explain_says_which_gate_holds_a_message_and_until_when():
    async with started(naps(10), limits=[Cap(1, kind="http"), Rate(1, per=60, kind="sql")]) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([*of_kind("http", 2), *of_kind("sql", 2)])
        await trio.sleep(1)
        [cap] = (await epoch.explain("http1")).reasons
        assert (cap.kind, cap.until) == ("cap", None)
        assert "cap of 1 for kind 'http'" in cap.text
        [rate] = (await epoch.explain("sql1")).reasons
        assert rate.kind == "rate"
        assert rate.until == pytest.approx(START + 60)
        counted = dict((await epoch.explain()).reasons)
        assert counted["the rate of 0.0166667 a second for kind 'sql' is used up"] == 1
        await epoch.cancel()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cap(0), "Cap(limit=0): give a whole number of at least 1"),
        (lambda: Cap(True), "give a whole number"),
        (lambda: Cap(1, by="payload.x"), '"headers.<name>"'),
        (lambda: Cap(1, kind=7), "the name of a kind"),
        (lambda: Rate(0), "give a number above 0"),
        (lambda: Rate(float("nan")), "give a number above 0"),
        (lambda: Rate(5, per=-1), "give a number above 0"),
        (lambda: Rate(5, burst=2, cost=3), "none would ever start"),
        (lambda: Rate(5, cost={"a": 0}), "give a number above 0"),
        (lambda: Rate(5, burst=0), "give a number above 0"),
        (lambda: Rate(5, cost=-1), "give a number above 0"),
        (lambda: Rate(float("inf")), "give a number above 0"),
        (lambda: AdaptiveLimit(least=5, start=3), "least=5, start=3, most=64): they must be in this order"),
        (lambda: AdaptiveLimit(most=0), "give a whole number of at least 1"),
        (lambda: AdaptiveLimit(decrease=1), "give a number between 0 and 1"),
        (lambda: AdaptiveLimit(cooldown=0), "give a number above 0"),
        (lambda: KindPolicy(cap=0), "KindPolicy(cap=0): give a whole number of at least 1"),
        (lambda: KindPolicy(weight=0), "KindPolicy(weight=0"),
        (lambda: KindPolicy(rates=Rate(5)), "give a list of rates"),
        (lambda: KindPolicy(rates=[Rate(5, kind="http")]), "leave kind= out"),
        (lambda: KindPolicy(rates=[Rate(5), Rate(9)]), "give all but one of them a label="),
        (lambda: RuntimeConfig(limits=[Cap(1), Cap(2)]), "two limits are called 'cap'"),
        (lambda: RuntimeConfig(limits=Cap(1)), "give a list of limits"),
        (lambda: RuntimeConfig(epoch_cap=0), "whole number of at least 1"),
        (lambda: RuntimeConfig(ageing=0), "give seconds above 0"),
    ],
)
def test_impossible_limits_are_refused_when_they_are_made(make, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        make()
