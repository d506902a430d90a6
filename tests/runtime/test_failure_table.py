"""Error by policy: what happens, no cell left out; and many messages of which some fail in every way."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from naviscope_ingest import (
    BreakerPolicy,
    Executed,
    Fatal,
    KindPolicy,
    Permanent,
    RetryPolicy,
    RuntimeFailed,
    SystemFailure,
    Transient,
)
from tests.runtime.test_failures import letters_of
from tests.runtime.worlds import START, messages, started

POLICIES = {
    "default": KindPolicy(),
    "one attempt": KindPolicy(retry=RetryPolicy(max_attempts=1)),
    "little time": KindPolicy(retry=RetryPolicy(max_attempts=10, initial_delay=20, max_elapsed=30, jitter=0)),
    "at most once": KindPolicy(delivery="at_most_once"),
    "time limit": KindPolicy(timeout=5),
}


class StatusError(Exception):
    """An error that carries an HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


async def hang(delivery: Any) -> Any:
    await trio.sleep(60)
    return Executed([delivery.id])


ERRORS: dict[str, Any] = {
    "transient": Transient("busy"),
    "come back in 20 s": Transient(retry_after=20),
    "permanent": Permanent("no"),
    "unknown": ValueError("what"),
    "not found": StatusError(404),
    "server": StatusError(503),
    "group": ExceptionGroup("two", [TimeoutError(), Permanent("no")]),
    "fatal outcome": Fatal("no"),
    "no outcome": 42,
    "hangs a minute": hang,
    "stops": SystemFailure("disk gone"),
}

DEAD_AT_ONCE = ("dead", 1)
TABLE: dict[str, dict[str, tuple[str, int]]] = {
    "transient": dict(zip(POLICIES, [("dead", 3), DEAD_AT_ONCE, ("dead", 2), DEAD_AT_ONCE, ("dead", 3)], strict=True)),
    # It comes back for ever, for a day; a limit on the time ends it; "at most once" means once.
    "come back in 20 s": dict(
        zip(POLICIES, [("waits", 6), ("waits", 6), ("dead", 2), DEAD_AT_ONCE, ("waits", 6)], strict=True)
    ),
    "permanent": dict.fromkeys(POLICIES, DEAD_AT_ONCE),
    "unknown": dict(zip(POLICIES, [("dead", 3), DEAD_AT_ONCE, ("dead", 2), DEAD_AT_ONCE, ("dead", 3)], strict=True)),
    "not found": dict.fromkeys(POLICIES, DEAD_AT_ONCE),
    "server": dict(zip(POLICIES, [("dead", 3), DEAD_AT_ONCE, ("dead", 2), DEAD_AT_ONCE, ("dead", 3)], strict=True)),
    "group": dict.fromkeys(POLICIES, DEAD_AT_ONCE),
    "fatal outcome": dict.fromkeys(POLICIES, DEAD_AT_ONCE),
    "no outcome": dict.fromkeys(POLICIES, DEAD_AT_ONCE),
    "hangs a minute": {**dict.fromkeys(POLICIES, ("committed", 1)), "time limit": ("dead", 3)},
    "stops": dict.fromkeys(POLICIES, ("stopped", 1)),
}


def test_no_cell_is_left_out():
    assert TABLE.keys() == ERRORS.keys()
    assert all(row.keys() == POLICIES.keys() for row in TABLE.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("error", ERRORS)
async def test_an_error_under_a_policy(error, policy):
    expected, attempts = TABLE[error][policy]
    try:
        async with started({"a": ERRORS[error]}, other_kinds=POLICIES[policy], drain_timeout=0) as world:
            epoch = await world.intake.new_epoch()
            await epoch.submit(messages("a"))
            await trio.sleep(110)
            report = epoch.report
            ends = {"dead": report.dead, "committed": report.committed, "waits": report.unfinished}
            assert ends == {**dict.fromkeys(ends, 0), expected: 1}
    except RuntimeFailed:
        assert expected == "stopped"
    assert len(world.executor.seen) == attempts


class Mixed:
    """Work of which a part fails in each way, by the id of the message.

    Attributes:
        ways: how each message fails.
        attempts: how often each was tried alone.
    """

    def __init__(self, count: int) -> None:
        rng = random.Random(5)
        ids = [f"m{n}" for n in range(count)]
        rng.shuffle(ids)
        self.ways: dict[str, str] = {}
        for way, part in (("transient", 0.07), ("permanent", 0.01), ("hang", 0.001)):
            for _ in range(int(count * part)):
                self.ways[ids.pop()] = way
        self.attempts: dict[str, int] = {}

    async def one(self, delivery: Any) -> Any:
        way = self.ways.get(delivery.id)
        if way == "transient" and not delivery.attempt:
            raise Transient("busy", error_kind="rate_limit")
        if way == "permanent":
            raise Permanent("no")
        if way == "hang":
            await trio.sleep_forever()
        return Executed([delivery.id])


class MixedSingly(Mixed):
    async def execute(self, delivery: Any) -> Any:
        self.attempts[delivery.id] = self.attempts.get(delivery.id, 0) + 1
        return await self.one(delivery)


class MixedTogether(Mixed):
    async def execute_batch(self, deliveries: Any) -> Any:
        if len(deliveries) == 1:
            self.attempts[deliveries[0].id] = self.attempts.get(deliveries[0].id, 0) + 1
        return [await self.one(each) for each in deliveries]


@pytest.mark.parametrize("breaker", [None, BreakerPolicy()], ids=["no breaker", "breaker"])
@pytest.mark.parametrize("make", [MixedSingly, MixedTogether])
async def test_of_ten_thousand_messages_only_those_die_that_must(make, breaker):
    executor = make(10_000)
    ids = [f"m{n}" for n in range(10_000)]
    async with started(executor, other_kinds=KindPolicy(timeout=10), breaker=breaker) as world:
        report = await world.batch(*messages(*ids))
        letters = await letters_of(world.store)
    must_die = {name for name, way in executor.ways.items() if way != "transient"}
    assert len(must_die) == 110
    assert (report.submitted, report.unfinished) == (10_000, 0)
    assert (report.committed, report.dead) == (9_890, 110)
    assert sorted(world.sink.ops) == sorted(set(ids) - must_die)
    # Once those that hang are the only ones left, they open the breaker; what is under way then spends nothing.
    tried = {"permanent": (1,), "hang": (3,) if breaker is None else (3, 4)}
    assert all(each.tried in (1, *tried["hang"]) for each in letters.values())
    assert all(executor.attempts[name] in tried[executor.ways[name]] for name in must_die)
    if make is MixedSingly:
        assert all(executor.attempts[name] == 2 for name, way in executor.ways.items() if way == "transient")
    assert world.clock.wall() - START < 10_000
