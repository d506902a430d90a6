"""What happens when attempts fail: another attempt, a dead letter, a stop; and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import (
    Classified,
    Classifier,
    DeadLetter,
    Dependency,
    Executed,
    Fatal,
    KindPolicy,
    MemoryStore,
    Message,
    Permanent,
    RetryPolicy,
    RuntimeFailed,
    SystemFailure,
    Transient,
)
from naviscope_ingest.testing import TrioClock
from naviscope_spi import CaughtUp, Ended
from tests.runtime.worlds import START, TroubledSink, WaitingStore, failures, messages, started

NO_JITTER = RetryPolicy(jitter=0.0)


async def letters_of(store: Any) -> dict[int, DeadLetter]:
    """Return the dead letters that a store keeps, by place."""
    found: dict[int, DeadLetter] = {}
    facts = store.facts(None)
    async for batch in facts:
        for fact in batch:
            if isinstance(fact.body, Ended):
                found[fact.body.seq] = DeadLetter.decode(fact.body.letter)
        if isinstance(batch[-1].body, CaughtUp):
            break
    await facts.aclose()
    return found


async def the_letter(store: Any) -> DeadLetter:
    (letter,) = (await letters_of(store)).values()
    return letter


async def histories(store: Any) -> list[str]:
    """Return the places whose history is kept."""
    return sorted(await store.read("attempts", [str(n) for n in range(50)]))


# Letters.


async def test_a_letter_has_every_attempt_with_time_error_and_stack():
    def fail():
        raise ConnectionRefusedError(111, "nobody there")

    async def work(delivery):
        await trio.sleep(1)
        fail()

    headers = {"traceparent": "00-1", "colour": "red"}
    async with started(work, kinds={"message": KindPolicy(retry=NO_JITTER)}, name="host-7") as world:
        report = await world.batch(Message("a", None, headers=headers))
        letter = await the_letter(world.store)
    text = "ConnectionRefusedError: [Errno 111] nobody there"
    assert failures(report) == {"a": ("dead", text)}
    assert (letter.error, letter.kind, letter.tried) == (text, "connection", 3)
    assert [each.attempt for each in letter.attempts] == [1, 2, 3]
    assert [each.at - START for each in letter.attempts] == pytest.approx([1.0, 2.1, 3.3], abs=1e-6)
    assert all(each.stack.endswith(text) and "in test_a_letter_has" in each.stack for each in letter.attempts)
    assert letter.worker.startswith("host-7 ")
    assert letter.origin == {"traceparent": "00-1"}
    assert letter.ended_at == pytest.approx(START + 3.3, abs=1e-6)


async def test_only_the_last_attempts_are_kept_and_their_stacks_are_bounded():
    def fail(depth):
        if depth:
            fail(depth - 1)
        raise Transient("x" * 10_000)

    async def work(delivery):
        fail(50)

    policy = KindPolicy(retry=RetryPolicy(max_attempts=25))
    async with started(work, other_kinds=policy) as world:
        await world.batch(*messages("a"))
        letter = await the_letter(world.store)
    assert (letter.tried, [each.attempt for each in letter.attempts]) == (25, list(range(16, 26)))
    assert len(letter.encode()) < 100_000
    assert max(len(each.stack) for each in letter.attempts) == 4_096


async def test_alike_failures_share_a_fingerprint_and_others_do_not():
    async def work(delivery):
        if delivery.id == "c":
            raise Permanent("something else")
        raise Permanent(f"row {len(delivery.id)} of {delivery.id!r} is bad")

    async with started(work) as world:
        await world.batch(*messages("a", "bb", "c"))
        a, b, c = (each.fingerprint for each in (await letters_of(world.store)).values())
    assert a == b != c


async def test_a_message_that_follows_another_names_it():
    async with started({"a": Fatal("no")}) as world:
        await world.batch(*messages("a"), Message("child", None, depends_on=["a"]), name="nightly")
        _, child = (await letters_of(world.store)).values()
    assert (child.kind, child.causes) == ("dependency", (("nightly", "a"),))


async def test_what_expires_in_retry_keeps_what_was_tried():
    async with started({"a": Transient("busy", retry_after=10)}) as world:
        report = await world.batch(Message("a", None, expires_at=START + 5))
        letter = await the_letter(world.store)
        assert await histories(world.store) == []
    assert report.expired == 1
    assert (letter.kind, [each.error for each in letter.attempts]) == ("expired", ["Transient: busy"])


async def test_what_a_sink_refuses_after_retries_keeps_what_was_tried():
    async with started({"a": [Transient("busy")]}, sink=TroubledSink(bad=["a"])) as world:
        await world.batch(*messages("a"))
        letter = await the_letter(world.store)
        assert await histories(world.store) == []
    assert [each.error for each in letter.attempts] == ["Transient: busy", "ValueError: cannot write ['a']"]


async def test_an_error_that_cannot_be_printed_or_written_makes_a_letter_all_the_same():
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    work = {"a": Fatal(OddError()), "b": Permanent("half a character: \ud800")}
    async with started(work) as world:
        report = await world.batch(*messages("a", "b"))
        assert {each.error for each in (await letters_of(world.store)).values()} == {
            text for _, text in failures(report).values()
        }


# Histories.


async def test_a_history_is_kept_while_a_message_is_in_retry_and_goes_when_it_commits():
    async with started({"a": [Transient("busy", retry_after=10)]}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a", "b"))
        await epoch.seal()
        await trio.sleep(1)
        assert len(await histories(world.store)) == 1
        assert (await epoch.wait()).committed == 2
        assert await histories(world.store) == []


@pytest.mark.parametrize("end", ["cancel", "die"])
async def test_a_history_goes_when_its_message_ends_otherwise(end):
    async with started({"a": [Transient(retry_after=10), Fatal("no")]}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await epoch.seal()
        await trio.sleep(1)
        if end == "cancel":
            await epoch.cancel("a")
        await epoch.wait()
        assert await histories(world.store) == []


@pytest.mark.parametrize("make", [MemoryStore, WaitingStore])
async def test_attempts_and_the_time_since_the_first_survive_a_restart(make):
    store = make(clock=TrioClock(START))
    policy = KindPolicy(retry=RetryPolicy(max_attempts=100, initial_delay=40, max_delay=40, jitter=0, max_elapsed=100))
    work = {"a": Transient("busy")}
    async with started(work, store=store, other_kinds=policy) as world:
        await world.intake.submit(await world.intake.new_epoch("e"), messages("a"))
        await trio.sleep(41)
    async with started(work, store=store, other_kinds=policy) as world:
        await trio.sleep(1)
        assert (await world.intake.explain("e", "a")).reasons[0].until == pytest.approx(START + 80, abs=0.1)
        await world.intake.seal_epoch("e")
        report = await world.intake.wait_epoch("e")
        letter = await the_letter(store)
    assert report.dead == 1
    # The fourth would have begun after the hundredth second.
    assert [each.at - START for each in letter.attempts] == pytest.approx([0, 40, 80], abs=0.1)
    assert len({each.worker for each in letter.attempts}) == 2


async def test_failures_that_spend_no_attempt_are_bounded_by_the_time_since_the_first():
    policy = KindPolicy(retry=RetryPolicy(max_elapsed=100))
    async with started({"a": Transient(retry_after=30)}, other_kinds=policy) as world:
        assert (await world.batch(*messages("a"))).dead == 1
        letter = await the_letter(world.store)
    assert [each.at - START for each in letter.attempts] == pytest.approx([0, 30, 60, 90], abs=0.1)


async def test_nothing_is_kept_of_messages_that_never_fail():
    class Watching(MemoryStore[Any]):
        async def settle(self, session, settlement):
            assert not settlement.records
            return await super().settle(session, settlement)

    async with started({"a": Executed(value=b"v")}, store=Watching(clock=TrioClock(START))) as world:
        assert (await world.batch(*messages("a", "b"))).committed == 2


# Policies.


async def test_each_kind_has_its_own_policy():
    tries: dict[str, int] = {}

    async def work(delivery):
        tries[delivery.kind] = tries.get(delivery.kind, 0) + 1
        raise Transient("busy")

    kinds = {
        "http": KindPolicy(retry=RetryPolicy(max_attempts=5)),
        "once": KindPolicy(retry=RetryPolicy(max_attempts=1)),
    }
    async with started(work, kinds=kinds) as world:
        await world.batch(*(Message(kind, None, kind=kind) for kind in ("http", "once", "other")))
    assert tries == {"http": 5, "once": 1, "other": 3}


async def test_the_users_classifier_decides():
    classifier = Classifier({KeyError: Classified("permanent", "not_found")})
    async with started({"a": KeyError("x")}, classifier=classifier) as world:
        report = await world.batch(*messages("a"))
        letter = await the_letter(world.store)
    assert (report.dead, letter.kind, letter.tried) == (1, "not_found", 1)


async def test_an_unknown_error_is_tried_as_often_as_a_transient_one():
    async with started({"a": [ValueError("hiccup"), ValueError("hiccup")], "b": ValueError("bug")}) as world:
        report = await world.batch(*messages("a", "b"))
        letter = await the_letter(world.store)
    assert (report.committed, report.dead) == (1, 1)
    assert (letter.kind, letter.tried) == ("bug", 3)


async def test_a_group_of_errors_is_one_failure():
    group = ExceptionGroup("two calls", [TimeoutError(), Permanent("no such row")])
    async with started({"a": group}) as world:
        assert (await world.batch(*messages("a"))).dead == 1
        assert (await the_letter(world.store)).tried == 1


# Messages that stop the runtime.


async def stop_again_and_again(store: Any, times: int, pause: float, **config: Any) -> int:
    """Start runtimes on a store in which message "a" stops them; return how many were stopped."""
    stopped = 0
    for _ in range(times):
        try:
            async with started({"a": SystemFailure("disk gone")}, store=store, **config) as world:
                epoch = await world.intake.new_epoch("e")
                await epoch.submit(messages("a", "b"))
                await epoch.seal()
                await epoch.wait()
                break
        except (SystemFailure, RuntimeFailed):
            stopped += 1
            await trio.sleep(pause)
    return stopped


async def test_a_message_that_stops_the_runtime_again_and_again_is_poison():
    store = MemoryStore(clock=TrioClock(START))
    assert await stop_again_and_again(store, 10, pause=1) == 4
    letter = await the_letter(store)
    assert (letter.kind, letter.tried) == ("poison", 5)
    assert "disk gone" in letter.error


async def test_a_message_that_stops_the_runtime_now_and_then_is_not():
    store = MemoryStore(clock=TrioClock(START))
    assert await stop_again_and_again(store, 10, pause=20) == 10
    assert not await letters_of(store)


async def test_a_group_that_stops_the_runtime_condemns_nobody():
    class Together:
        async def execute_batch(self, deliveries):
            if len(deliveries) > 1:
                raise SystemFailure("all of you")
            return [Executed([each.id]) for each in deliveries]

    store = MemoryStore(clock=TrioClock(START))
    for _ in range(10):
        with pytest.raises((SystemFailure, RuntimeFailed)):
            async with started(Together(), store=store) as world:
                epoch = await world.intake.new_epoch("e")
                await epoch.submit(messages("a", "b"))
                await epoch.seal()
                await epoch.wait()
    assert not await letters_of(store)


async def test_a_dependent_of_a_message_in_retry_waits_for_it():
    async with started({"a": [Transient(retry_after=10)]}) as world:
        report = await world.batch(*messages("a"), Message("c", None, depends_on=[Dependency.message("a")]))
        assert report.committed == 2
        assert list(world.sink.ops) == ["a", "c"]
