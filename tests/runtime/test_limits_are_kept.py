"""Caps and rates under adversarial timing, seen from outside: exceeded at no instant, used when there is work."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import trio

from naviscope_ingest import Cap, Deferred, Executed, IntakePolicy, KindPolicy, Message, Rate, RetryPolicy, Transient
from tests.runtime.worlds import started

KINDS = ("a", "b", "c")
NO_MARK = IntakePolicy(high_mark=1_000_000, low_mark=1)


class Gauge:
    """Counts what runs, by name, and for how long how many did."""

    def __init__(self):
        self.now = defaultdict(int)
        self.most = defaultdict(int)
        self.used = defaultdict(float)
        self._since = defaultdict(float)

    def add(self, name, by):
        moment = trio.current_time()
        self.used[name] += self.now[name] * (moment - self._since[name])
        self._since[name] = moment
        self.now[name] += by
        self.most[name] = max(self.most[name], self.now[name])


def draw_seconds(rng):
    """Draw how long an executor takes: nothing, a moment, all alike, or very long."""
    return rng.choice([0.0, 0.0, rng.random() / 100, 0.5, 0.5, rng.random() * 3])


@pytest.mark.parametrize("seed", range(12))
async def test_no_cap_is_exceeded_at_any_instant_and_all_are_used(seed):
    """Caps of kinds, tenants and all, while executors take any time, fail, defer, come back and bring more."""
    rng = random.Random(seed)
    caps = {kind: rng.randint(1, 6) for kind in KINDS}
    tenants, total = rng.randint(1, 4), rng.randint(6, 14)
    gauge = Gauge()
    tried = defaultdict(int)

    async def work(delivery):
        name, kind, tenant = delivery.id, delivery.message.kind, delivery.message.headers.get("tenant")
        names = ["all", kind, *([f"tenant {tenant}"] if tenant else [])]
        for each in names:
            gauge.add(each, 1)
        try:
            await trio.sleep(draw_seconds(rng))
        finally:
            for each in names:
                gauge.add(each, -1)
        tried[name] += 1
        fate = rng.random()
        if tried[name] == 1 and fate < 0.1:
            raise Transient("not yet", retry_after=rng.choice([None, 0.0, 0.3]))
        if tried[name] == 1 and fate < 0.2 and name != "m0":
            return Deferred(["m0"])
        return Executed([name], [Message(f"{name}.1", None, kind=rng.choice(KINDS))] if fate > 0.9 else ())

    kinds = {kind: KindPolicy(cap=cap, retry=RetryPolicy(initial_delay=0.1)) for kind, cap in caps.items()}
    limits = [Cap(tenants, by="headers.tenant"), Cap(total)]
    async with started(work, kinds=kinds, limits=limits, intake=NO_MARK, submit_chunk=rng.choice([1, 7, 512])) as world:
        epoch = await world.intake.new_epoch()
        for start in range(0, 600, 100):
            await epoch.submit(
                Message(
                    f"m{number}",
                    None,
                    kind=rng.choice(KINDS),
                    priority=rng.choice([0, 0, 0, 2, -1]),
                    key=rng.choice([None, None, None, "k"]),
                    headers={"tenant": rng.choice("xyz")} if rng.random() < 0.3 else {},
                )
                for number in range(start, start + 100)
            )
            await trio.sleep(rng.random())
        await epoch.seal()
        report = await epoch.wait()
        assert report.committed == report.submitted >= 600
    assert gauge.most.pop("all") <= total
    for name, most in gauge.most.items():
        assert most <= caps.get(name, tenants), name


@pytest.mark.parametrize("seed", range(6))
async def test_a_cap_is_used_while_there_is_work(seed):
    """While something waits at it, 95 % of its places and more are taken at any time."""
    rng = random.Random(seed)
    gauge, cap = Gauge(), rng.randint(1, 20)
    begun, is_nearly_done = 0, trio.Event()

    async def work(delivery):
        nonlocal begun
        if delivery.message.kind == "http":
            begun += 1
            if begun == 1_200:
                is_nearly_done.set()
            gauge.add("http", 1)
            await trio.sleep(draw_seconds(rng))
            gauge.add("http", -1)
        return Executed([delivery.id])

    async with started(work, limits=[Cap(cap, kind="http")], intake=NO_MARK) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message(f"m{n}", None, kind=rng.choice(["http", "other"])) for n in range(3_000))
        await is_nearly_done.wait()
        gauge.add("http", 0)
        assert gauge.used["http"] >= 0.95 * cap * trio.current_time()
        await epoch.cancel()


@pytest.mark.parametrize("seed", range(12))
async def test_no_rate_is_exceeded_in_any_window_and_all_of_it_is_used(seed):
    """Messages of different cost come in gusts; executors take any time, fail and come back."""
    rng = random.Random(seed)
    rate, burst = rng.choice([0.7, 5, 40]), rng.choice([3, 10])
    slow = Rate(rng.choice([20, 100]), per=60, burst=rng.choice([5, 15]), label="minute")
    costs = {"a": 1.0, "b": 2.5}
    spent: list[tuple[float, float]] = []
    tried = defaultdict(int)

    async def work(delivery):
        spent.append((trio.current_time(), costs[delivery.message.kind]))
        tried[delivery.id] += 1
        await trio.sleep(draw_seconds(rng))
        if tried[delivery.id] == 1 and rng.random() < 0.1:
            raise Transient("not yet", retry_after=rng.choice([None, 0.0, 0.3]))
        return Executed([delivery.id])

    fast = Rate(rate, burst=burst, cost=costs)
    async with started(work, limits=[fast, slow], intake=NO_MARK) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message(f"m{n}", None, kind=rng.choice("ab")) for n in range(1_000))
        lasts = 200.0
        await trio.sleep(lasts)
        await epoch.cancel()
    allowed = []
    for limit, amounts in ((fast, [cost for _, cost in spent]), (slow, [1.0] * len(spent))):
        per_second = limit.limit / limit.per
        # The window that ends here and takes most beyond what comes in during it.
        excess, before = 0.0, 0.0
        for (at, _), amount in zip(spent, amounts, strict=True):
            excess = max(0.0, excess - per_second * (at - before)) + amount
            before = at
            assert excess <= limit.capacity + 1e-6
        allowed.append(sum(amounts) / (limit.capacity + per_second * lasts))
    # The narrower of the two is what holds them up. A message that is not paid for yet may have saved up for.
    assert max(allowed) >= 0.95


async def test_what_was_saved_up_is_a_burst_and_no_more():
    starts: list[float] = []

    async def work(delivery):
        starts.append(trio.current_time())
        return Executed([delivery.id])

    async with started(work, limits=[Rate(1, burst=5)]) as world:
        for gust in range(5):
            # After a long silence the bucket is full, and not fuller.
            await trio.sleep(1_000)
            epoch = await world.intake.new_epoch()
            await epoch.submit(Message(f"m{gust}-{n}", None) for n in range(20))
            starts.clear()
            began = trio.current_time()
            await epoch.seal()
            await epoch.wait()
            assert [start - began for start in starts] == pytest.approx([0] * 5 + list(range(1, 16)), abs=0.01)
