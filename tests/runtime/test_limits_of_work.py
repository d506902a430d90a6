"""Time limits and delivery modes of kinds, for single messages and batches."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import (
    Deferred,
    Executed,
    KindPolicy,
    MemoryStore,
    Message,
    RetryPolicy,
    RuntimeFailed,
    SystemFailure,
    Transient,
)
from naviscope_ingest.testing import TrioClock
from tests.runtime.test_failures import letters_of, the_letter
from tests.runtime.test_prepared import Disk
from tests.runtime.worlds import START, Playing, failures, messages, naps, started

ONCE = {"once": KindPolicy(delivery="at_most_once")}


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


class Together:
    """Runs batches by a function of one message."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.batches: list[list[str]] = []

    async def execute_batch(self, deliveries: Any) -> Any:
        self.batches.append([each.id for each in deliveries])
        return [await self.work(each) for each in deliveries]


async def test_an_executor_that_takes_too_long_is_cancelled_and_tried_again():
    async with started({"slow": naps(100)}, kinds={"message": KindPolicy(timeout=5)}) as world:
        report = await world.batch(*messages("slow", "quick"))
        letter = await the_letter(world.store)
    assert (report.committed, report.dead) == (1, 1)
    assert (letter.kind, letter.tried) == ("timeout", 3)
    assert "longer than 5 seconds" in letter.error
    assert [round(each.at - START) for each in letter.attempts] == [5, 10, 15]


async def test_kinds_without_a_limit_take_as_long_as_they_like():
    async with started({"a": naps(1_000)}, kinds={"http": KindPolicy(timeout=5)}) as world:
        assert (await world.batch(*messages("a"))).committed == 1


async def test_a_batch_that_takes_too_long_is_run_in_halves_until_the_slow_one_is_alone():
    async def work(delivery):
        if delivery.id == "m5":
            await trio.sleep_forever()
        return Executed([delivery.id])

    policy = KindPolicy(timeout=5, retry=RetryPolicy(max_attempts=1))
    async with started(Together(work), other_kinds=policy) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(16))))
    assert (report.committed, list(failures(report))) == (15, ["m5"])


async def test_a_message_that_is_cancelled_while_its_limit_runs_ends_cancelled():
    async with started({"a": naps(100)}, other_kinds=KindPolicy(timeout=50)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await epoch.seal()
        await trio.sleep(1)
        await epoch.cancel("a")
        assert (await epoch.wait()).cancelled == 1


# At most once.


@pytest.mark.parametrize("error", [Transient("busy"), ValueError("bug"), Transient(retry_after=1)], ids=repr)
async def test_what_is_delivered_at_most_once_is_not_tried_again(error):
    async with started({"a": error}, kinds=ONCE) as world:
        assert (await world.batch(Message("a", None, kind="once"))).dead == 1
        assert world.executor.seen == ["a"]


async def test_the_store_knows_that_a_message_was_begun_before_it_is():
    class Watching(MemoryStore[Any]):
        begun: tuple[int, ...] = ()

        async def settle(self, session, settlement):
            self.begun += tuple(settlement.prepared)
            return await super().settle(session, settlement)

    seen = []

    async def work(delivery):
        seen.append(len(store.begun))
        return Executed([delivery.id])

    store = Watching(clock=TrioClock(START))
    async with started(work, store=store, kinds=ONCE, max_in_flight=1) as world:
        assert (await world.batch(*messages("a", "b", kind="once"))).committed == 2
        assert (await world.batch(*messages("c"))).committed == 1
    assert seen == [1, 2, 2]


async def dies_while_running(disk: Any, executor: Any, delivery: str) -> Any:
    """Go on with the file as a process that died while "a" ran would leave it."""
    kinds = {"once": KindPolicy(delivery=delivery)}
    running = trio.Event()

    async def hang(each):
        running.set()
        await trio.sleep_forever()

    hanging = Together(hang) if isinstance(executor, Together) else Playing(hang)
    async with disk.store() as store, started(hanging, store=store, kinds=kinds, drain_timeout=0) as world:
        epoch = await world.intake.new_epoch("e")
        await epoch.submit(messages("a", kind="once"))
        await epoch.seal()
        await running.wait()
        disk.kill()
    async with disk.store() as store, started(executor, store=store, kinds=kinds) as world:
        return await world.intake.wait_epoch("e"), await letters_of(store)


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_what_was_begun_when_the_process_died_is_not_begun_again(disk, is_batch):
    async def work(delivery):
        raise AssertionError("it ran twice")

    report, letters = await dies_while_running(disk, Together(work) if is_batch else Playing(work), "at_most_once")
    assert report.dead == 1
    (letter,) = letters.values()
    assert "was begun and did not finish" in letter.error


@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
async def test_in_the_other_modes_it_runs_again(disk, mode):
    report, letters = await dies_while_running(disk, Playing(), mode)
    assert (report.committed, letters) == (1, {})


async def test_a_batch_that_raises_is_not_run_again_in_halves_at_most_once():
    async def work(delivery):
        raise Transient("busy")

    executor = Together(work)
    async with started(executor, kinds=ONCE) as world:
        assert (await world.batch(*messages("a", "b", kind="once"))).dead == 2
    assert executor.batches == [["a", "b"]]


async def test_a_message_that_says_it_cannot_run_yet_may_be_begun_again():
    turns = [Deferred(["go"])]

    async def work(delivery):
        return turns.pop() if delivery.id == "a" and turns else Executed([delivery.id])

    async with started(work, kinds=ONCE) as world:
        report = await world.batch(Message("a", None, kind="once"), *messages("go"))
        assert report.committed == 2


async def test_stopping_the_runtime_uses_up_the_one_delivery():
    store = MemoryStore(clock=TrioClock(START))
    with pytest.raises(RuntimeFailed):
        async with started({"a": SystemFailure("down")}, store=store, kinds=ONCE) as world:
            epoch = await world.intake.new_epoch("e")
            await epoch.submit(messages("a", kind="once"))
            await epoch.seal()
            await trio.sleep(10)
    async with started(store=store, kinds=ONCE) as world:
        assert (await world.intake.wait_epoch("e")).dead == 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"timeout": 0}, "timeout=0.*seconds above zero"),
        ({"timeout": "5s"}, "timeout='5s'"),
        ({"delivery": "twice"}, "delivery='twice'.*'at_most_once'"),
    ],
    ids=str,
)
def test_an_impossible_policy_of_a_kind_is_refused(wrong, text):
    with pytest.raises(ValueError, match=text):
        KindPolicy(**wrong)
