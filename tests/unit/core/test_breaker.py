"""When a circuit breaker opens and closes."""

from __future__ import annotations

import pytest

from naviscope_ingest._core.breaker import Breaker, BreakerPolicy


def opened(policy=None):
    breaker = Breaker(policy or BreakerPolicy())
    breaker.trip(0.0)
    return breaker


def test_so_many_failures_within_the_window_open_it():
    breaker = Breaker(BreakerPolicy())
    assert [breaker.failed(float(n)) for n in range(5)] == [False] * 4 + [True]
    assert (breaker.state, breaker.until) == ("open", 34.0)


def test_failures_of_one_message_alone_do_not():
    breaker = Breaker(BreakerPolicy())
    assert not any(breaker.failed(n * 0.1, who=7) for n in range(50))
    assert breaker.failed(5.0, who=8)


def test_failures_that_are_far_apart_do_not():
    breaker = Breaker(BreakerPolicy())
    assert not any(breaker.failed(n * 3.0) for n in range(100))


def test_failures_that_are_a_small_part_of_the_calls_do_not():
    breaker = Breaker(BreakerPolicy())
    for n in range(1_000):
        assert not breaker.failed(n * 0.01)
        breaker.succeeded(3, n * 0.01)
    assert breaker.state == "closed"


def test_a_busy_service_that_goes_down_is_cut_off_after_a_few_calls():
    breaker = Breaker(BreakerPolicy())
    breaker.failed(0.0)
    breaker.succeeded(100_000, 1.0)
    failures = next(n for n in range(1, 100) if breaker.failed(1.0 + n * 0.001))
    assert failures <= 10


def test_successes_are_of_interest_only_after_a_failure():
    breaker = Breaker(BreakerPolicy())
    assert not breaker.is_alert
    breaker.failed(0.0)
    assert breaker.is_alert
    breaker.succeeded(1, 11.0)
    assert not breaker.is_alert


def test_what_comes_back_while_it_is_open_says_nothing():
    breaker = opened()
    assert not breaker.failed(5.0)
    assert not breaker.succeeded(10, 5.0)
    assert (breaker.state, breaker.until) == ("open", 30.0)


def test_half_open_a_failure_opens_it_again():
    breaker = opened()
    breaker.half_open()
    assert breaker.failed(31.0)
    assert (breaker.state, breaker.until) == ("open", 61.0)


def test_half_open_so_many_successes_close_it():
    breaker = opened()
    breaker.half_open()
    assert [breaker.succeeded(1, 31.0 + n) for n in range(3)] == [False, False, True]
    assert (breaker.state, breaker.is_alert) == ("closed", False)


def test_successes_before_a_failure_do_not_count_for_the_next_trial():
    breaker = opened()
    breaker.half_open()
    breaker.succeeded(2, 31.0)
    breaker.failed(32.0)
    breaker.half_open()
    assert not breaker.succeeded(2, 63.0)


@pytest.mark.parametrize(
    "impossible",
    [{"failures": 0}, {"window": 0}, {"open_for": -1}, {"successes": 0}, {"share": 1.5}, {"share": 0}, {"window": "1"}],
    ids=str,
)
def test_an_impossible_policy_is_refused_and_named(impossible):
    with pytest.raises(ValueError, match=r"BreakerPolicy\(" + next(iter(impossible))):
        BreakerPolicy(**impossible)
