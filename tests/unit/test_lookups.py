"""Look-ups in executors: remembered, shared, limited, and not in the way when the service is down."""

from __future__ import annotations

import pytest
import trio

from naviscope_ingest import BreakerPolicy, Lookup, Permanent, Transient


class Service:
    """Answers with its number of calls, or fails."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds
        self.error = None
        self.asked = []

    async def __call__(self, key):
        self.asked.append(key)
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return f"{key}{len(self.asked)}"


async def test_an_answer_is_remembered_for_a_while(autojump_clock):
    service = Service()
    lookup = Lookup(service, ttl=60)
    assert [await lookup.get("a"), await lookup.get("a")] == ["a1", "a1"]
    await trio.sleep(61)
    assert await lookup.get("a") == "a2"
    assert (lookup.calls, lookup.hits) == (2, 1)


async def test_nothing_is_remembered_if_it_is_told_so(autojump_clock):
    lookup = Lookup(Service(), ttl=0)
    assert [await lookup.get("a"), await lookup.get("a")] == ["a1", "a2"]


async def test_only_so_many_answers_are_remembered(autojump_clock):
    service = Service()
    lookup = Lookup(service, max_entries=2)
    for key in ("a", "b", "a", "c", "a", "b"):
        await lookup.get(key)
    assert service.asked == ["a", "b", "c", "b"]


async def test_those_who_ask_at_once_share_a_call(autojump_clock):
    service = Service(seconds=1)
    lookup = Lookup(service)
    answers = []
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(lambda: keep(answers, lookup))
    assert answers == ["a1"] * 50
    assert service.asked == ["a"]


async def keep(answers, lookup):
    answers.append(await lookup.get("a"))


async def test_a_cancelled_call_is_made_by_the_next_who_waits(autojump_clock):
    service = Service(seconds=2)
    lookup = Lookup(service)
    answers = []
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def first():
            with scope:
                await lookup.get("a")

        nursery.start_soon(first)
        await trio.sleep(0.5)
        nursery.start_soon(keep, answers, lookup)
        await trio.sleep(0.5)
        scope.cancel()
    assert answers == ["a2"]


async def test_a_call_has_a_time_limit(autojump_clock):
    lookup = Lookup(Service(seconds=100), timeout=3)
    with pytest.raises(Transient, match="longer than 3") as caught:
        await lookup.get("a")
    assert caught.value.error_kind == "timeout"
    assert trio.current_time() == pytest.approx(3)


async def test_an_old_answer_is_better_than_none(autojump_clock):
    service = Service()
    lookup = Lookup(service, ttl=10, stale_for=100)
    await lookup.get("a")
    service.error = ConnectionError("gone")
    await trio.sleep(50)
    assert await lookup.get("a") == "a1"
    assert lookup.stale == 1
    await trio.sleep(100)
    with pytest.raises(ConnectionError):
        await lookup.get("a")


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"otherwise": "default", "default": "none"}, "none"), ({"otherwise": "skip"}, None)],
)
async def test_there_is_something_else_when_there_is_no_answer(options, expected, autojump_clock):
    service = Service()
    service.error = ConnectionError("gone")
    assert await Lookup(service, **options).get("a") == expected


async def test_it_fails_fast_while_the_service_is_down(autojump_clock):
    service = Service(seconds=0.1)
    service.error = ConnectionError("gone")
    lookup = Lookup(service, breaker=BreakerPolicy(open_for=30))
    for _ in range(100):
        with pytest.raises((ConnectionError, Transient)):
            await lookup.get("a")
    assert len(service.asked) == 5
    assert trio.current_time() == pytest.approx(0.5)
    service.error = None
    await trio.sleep(30)
    for key in "abcd":
        assert await lookup.get(key)


async def test_an_error_of_the_question_does_not_open_the_breaker(autojump_clock):
    service = Service()
    service.error = Permanent("no such customer")
    lookup = Lookup(service)
    for _ in range(20):
        with pytest.raises(Permanent):
            await lookup.get("a")
    assert len(service.asked) == 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": -1},
        {"ttl": "60"},
        {"max_entries": 0},
        {"otherwise": "guess"},
        {"otherwise": "default"},
        {"default": 1},
    ],
    ids=str,
)
def test_a_lookup_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="Lookup"):
        Lookup(Service(), **wrong)
