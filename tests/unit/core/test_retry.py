"""When a failed attempt is followed by another."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_ingest._core import RetryPolicy


def test_delays_double_up_to_the_longest():
    policy = RetryPolicy(max_attempts=9, initial_delay=1.0, multiplier=2.0, max_delay=10.0, jitter=0.0)
    assert [policy.delay(spent, elapsed=0.0) for spent in range(1, 9)] == [1, 2, 4, 8, 10, 10, 10, 10]


@pytest.mark.parametrize(("spent", "is_followed"), [(1, True), (2, True), (3, False), (4, False)])
def test_there_are_at_most_so_many_attempts(spent, is_followed):
    assert (RetryPolicy(max_attempts=3).delay(spent, elapsed=0.0) is not None) is is_followed


@pytest.mark.parametrize(("elapsed", "is_followed"), [(0.0, True), (55.0, True), (59.99, False), (1e9, False)])
@pytest.mark.parametrize("retry_after", [None, 5.0])
def test_no_attempt_begins_after_max_elapsed(elapsed, is_followed, retry_after):
    policy = RetryPolicy(max_elapsed=60.0)
    assert (policy.delay(1, elapsed, retry_after=retry_after) is not None) is is_followed


def test_what_the_other_side_asks_for_is_kept_to_and_outlasts_the_attempts():
    policy = RetryPolicy(max_attempts=2, max_delay=1.0)
    assert policy.delay(50, elapsed=0.0, chance=1.0, retry_after=120.0) == 120.0


@pytest.mark.parametrize("retry_after", [0.0, -3.0, 0.001])
def test_the_other_side_cannot_ask_for_an_attempt_at_once(retry_after):
    """Asked for all the time, it would keep the runtime busy with nothing else."""
    assert RetryPolicy().delay(1, elapsed=0.0, retry_after=retry_after) == pytest.approx(0.01)


def test_chance_adds_at_most_the_jitter():
    policy = RetryPolicy(initial_delay=10.0, jitter=0.5)
    assert [policy.delay(1, 0.0, chance) for chance in (0.0, 0.5, 1.0)] == [10.0, 12.5, 15.0]


def test_one_attempt_means_no_retry():
    assert RetryPolicy(max_attempts=1).delay(1, elapsed=0.0) is None


@given(
    spent=st.integers(0, 10**6),
    chance=st.floats(0, 1),
    multiplier=st.floats(1, 100),
    initial=st.floats(0, 1e3),
    longest=st.floats(0, 1e3),
)
def test_a_delay_is_never_negative_nor_longer_than_allowed(spent, chance, multiplier, initial, longest):
    policy = RetryPolicy(
        max_attempts=10**9, initial_delay=min(initial, longest), multiplier=multiplier, max_delay=longest, jitter=0.1
    )
    delay = policy.delay(spent, 0.0, chance)
    assert delay is not None
    assert 0 <= delay <= longest * 1.1 + 1e-9
    assert math.isfinite(delay)


@pytest.mark.parametrize(
    "impossible",
    [
        {"max_attempts": 0},
        {"max_attempts": 2.5},
        {"max_attempts": True},
        {"initial_delay": -1},
        {"initial_delay": 60, "max_delay": 30},
        {"multiplier": 0.5},
        {"jitter": -0.1},
        {"max_delay": math.nan, "initial_delay": 0},
        {"max_elapsed": "a day"},
    ],
    ids=str,
)
def test_an_impossible_policy_is_refused_and_named(impossible):
    with pytest.raises(ValueError, match=r"RetryPolicy\(" + next(iter(impossible))):
        RetryPolicy(**impossible)
