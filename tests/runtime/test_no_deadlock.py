"""Whatever limits, marks, lanes, priorities and submits from executors are thrown together, everything settles."""

from __future__ import annotations

import random

import pytest
import trio

from naviscope_ingest import (
    AdaptiveLimit,
    Cap,
    Deferred,
    Executed,
    IntakeFull,
    IntakePolicy,
    KindPolicy,
    Message,
    Rate,
    Transient,
)
from tests.runtime.worlds import started

KINDS = ("a", "b", "c")


def draw_config(rng: random.Random) -> dict[str, object]:
    """Draw limits, down to one of everything."""
    kinds = {}
    for kind in KINDS:
        kinds[kind] = KindPolicy(
            cap=rng.choice([None, 1, 2, 5]),
            rates=[Rate(rng.choice([0.5, 3, 50]), burst=rng.choice([1, 4]))] if rng.random() < 0.4 else (),
            weight=rng.choice([1, 1, 3]),
            adaptive=AdaptiveLimit(start=1, most=4) if rng.random() < 0.2 else None,
        )
    limits: list[Cap | Rate] = [Cap(rng.choice([1, 2]), by="headers.tenant")] if rng.random() < 0.5 else []
    if rng.random() < 0.3:
        limits.append(Rate(rng.choice([1, 20]), by="key", burst=1))
    high = rng.choice([1, 2, 10, 1_000])
    return {
        "kinds": kinds,
        "limits": limits,
        "epoch_cap": rng.choice([None, 1, 3]),
        "intake": IntakePolicy(high_mark=high, low_mark=rng.randrange(high)),
        "max_in_flight": rng.choice([1, 2, 256]),
        "submit_chunk": rng.choice([1, 3, 512]),
        "lanes": rng.choice(["block", "pass"]),
        "ageing": rng.choice([1.0, 60.0]),
    }


def draw_message(rng: random.Random, number: int) -> Message[None]:
    # Some wait for what comes much later.
    depends_on = [f"m{rng.randrange(60)}"] if rng.random() < 0.3 else []
    return Message(
        f"m{number}",
        None,
        kind=rng.choice(KINDS),
        key=rng.choice([None, None, "k", "l"]),
        priority=rng.choice([0, 0, 1, -3]),
        headers={"tenant": rng.choice("xy")} if rng.random() < 0.5 else {},
        depends_on=[each for each in depends_on if each != f"m{number}"],
    )


@pytest.mark.parametrize("seed", range(40))
async def test_everything_settles(seed):
    rng = random.Random(seed)
    tried: dict[str, int] = {}

    async def work(delivery):
        name, kind = delivery.message.id, delivery.message.kind
        tried[name] = tried.get(name, 0) + 1
        running[kind] = running.get(kind, 0) + 1
        cap = config["kinds"][kind].cap
        assert cap is None or running[kind] <= cap
        try:
            await trio.sleep(rng.choice([0, 0, 0.5]))
        finally:
            running[kind] -= 1
        fate = rng.random()
        if tried[name] == 1 and fate < 0.1:
            raise Transient("not yet", retry_after=rng.choice([None, 0.5]), error_kind="rate_limit")
        if tried[name] == 1 and fate < 0.2:
            return Deferred([f"m{rng.randrange(60)}x"] if fate < 0.15 else ["m0"]) if name != "m0" else Executed()
        if fate < 0.4:
            try:
                await epochs[0].submit(Message(f"inside {name}", None, kind=rng.choice(KINDS)))
            except IntakeFull:
                refused.append(name)
        derived = [Message(f"{name}.{n}", None, kind=rng.choice(KINDS)) for n in range(rng.choice([0, 0, 2, 6]))]
        return Executed([name], derived if name.count(".") < 2 else ())

    running: dict[str, int] = {}
    refused: list[str] = []
    config = draw_config(rng)
    async with started(work, **config) as world:
        epochs = [await world.intake.new_epoch(f"e{n}", weight=rng.choice([1, 5])) for n in range(2)]

        async def produce(epoch, numbers):
            for number in numbers:
                await epoch.submit(draw_message(rng, number))

        async with trio.open_nursery() as nursery:
            for epoch in epochs:
                nursery.start_soon(produce, epoch, range(60))
        await world.intake.wait_idle()
        for epoch in epochs:
            await epoch.seal()
        for epoch in epochs:
            report = await epoch.wait()
            assert report.unfinished == 0
    assert not world.runtime._kernel.core.schedule.slots
