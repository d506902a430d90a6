"""Times: they act in order, and go away with the message that waited for them."""

from __future__ import annotations

import random

import pytest

from naviscope_ingest._core.timers import Timer, TimerKind, Timers
from naviscope_spi import Dependency, Ended, Message, Resource
from tests.unit.core.desk import Desk

TIMED = {
    "expires_at": {"expires_at": 50.0},
    "not_before": {"not_before": 50.0},
    "timeout": {"depends_on": [Dependency.resource("r", timeout=50)]},
    "several": {
        "expires_at": 60.0,
        "not_before": 50.0,
        "depends_on": [
            Dependency.resource("r", timeout=40),
            Dependency.any_of("p", Dependency.resource("r"), timeout=30),
        ],
    },
}


def timers(desk: Desk) -> int:
    return len(desk.core._transitions.timers)


def settle_all(desk: Desk) -> None:
    desk.core.provide(Resource("r"))
    desk.core.advance(55.0)
    desk.core.commit(desk.core.take(1_000))


ENDINGS = {
    "cancelled": lambda desk: [desk.core.cancel(node.seq) for node in desk.nodes.values()],
    "ended by a fact": lambda desk: [desk.core.end(Ended(node.seq, "dead")) for node in desk.nodes.values()],
    "committed by a fact": lambda desk: desk.core.commit([node.seq for node in desk.nodes.values()]),
    "epoch cancelled": lambda desk: desk.core.cancel_epoch(1),
    "run to its end": settle_all,
    "overtaken by time": lambda desk: desk.core.advance(1_000.0),
}


@pytest.mark.parametrize("fields", TIMED.values(), ids=TIMED)
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_no_timer_outlives_its_message(fields, ending):
    desk = Desk()
    desk.put(*(Message(f"m{i}", None, **fields) for i in range(50)))
    assert timers(desk) >= 50
    ending(desk)
    if desk.core.take(1_000):
        # not_before has passed; what is ready now has no timer left but for its expiry.
        desk.core.commit([node.seq for node in desk.nodes.values()])
    assert timers(desk) == 0
    assert desk.core.next_due is None


def test_timeouts_go_when_the_dependencies_are_satisfied():
    desk = Desk()
    desk.add("x", Dependency.resource("r", timeout=5), Dependency.resource("s", timeout=9))
    assert timers(desk) == 2
    desk.core.provide(Resource("r"))
    desk.core.provide(Resource("s"))
    assert (desk.state("x"), timers(desk)) == ("ready", 0)
    desk.core.advance(100.0)
    assert desk.state("x") == "ready"


def test_a_retry_leaves_no_timer_once_it_is_due_or_was_started():
    desk = Desk()
    desk.add("a")
    desk.add("b")
    desk.start("a", "b")
    for name in "ab":
        desk.core.retry(desk.seq(name), 5.0)
    desk.start("b")
    desk.core.advance(5.0)
    assert desk.states() == ["ready", "running"]
    assert timers(desk) == 0


def test_next_due_is_the_earliest_of_all_times():
    desk = Desk(epochs=0)
    desk.open(1, deadline=30.0)
    assert desk.core.next_due == 30.0
    desk.add("late", expires_at=20.0)
    assert desk.core.next_due == 20.0
    desk.add("delayed", not_before=10.0)
    desk.add("times out", Dependency.resource("r", timeout=5))
    assert desk.core.next_due == 5.0
    desk.core.advance(5.0)
    assert desk.core.next_due == 10.0
    desk.core.advance(10.0)
    assert desk.core.next_due == 20.0
    desk.core.advance(20.0)
    assert desk.core.next_due == 30.0
    desk.core.advance(30.0)
    assert desk.core.next_due is None


def test_the_end_of_a_grace_period_is_due():
    desk = Desk(stall_grace=5.0)
    desk.add("x", "ghost")
    desk.core.advance(2.0)
    assert desk.core.next_due is None
    desk.seal()
    assert desk.core.next_due == 7.0
    desk.core.advance(7.0)
    assert desk.state("x") == "dead"
    assert desk.core.next_due is None


def test_a_grace_period_begins_again_when_the_epoch_moved_in_between():
    desk = Desk(stall_grace=5.0)
    desk.add("x", "ghost")
    desk.add("y")
    desk.end("y")
    desk.seal()
    desk.core.advance(4.0)
    desk.core.replay(desk.seq("y"))
    desk.commit("y")
    desk.core.advance(4.0)
    desk.core.advance(5.0)
    assert desk.state("x") == "waiting"
    assert desk.core.next_due == 9.0
    desk.core.advance(9.0)
    assert desk.state("x") == "dead"


def test_time_does_not_go_back():
    desk = Desk()
    desk.core.advance(10.0)
    desk.core.advance(3.0)
    assert desk.core.now == 10.0


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"expires_at": 5.0}, "expired"),
        ({"depends_on": [Dependency.resource("r", timeout=5, otherwise="skip")]}, "skipped"),
    ],
)
def test_a_time_has_passed_when_now_is_equal(fields, end):
    desk = Desk()
    desk.put(Message("x", None, **fields))
    desk.core.advance(4.999)
    assert desk.state("x") in ("ready", "waiting")
    desk.core.advance(5.0)
    assert desk.state("x") == end


def test_times_act_in_their_order_however_late_they_are_told():
    """At 3 the parent expires and its child dies of it; the child's own timeout at 4 comes too late to matter."""
    desk = Desk()
    desk.add("parent", Dependency.resource("r"), expires_at=3.0)
    desk.add("child", Dependency.message("parent", timeout=4, otherwise={"expired": "skip", "dead": "fail"}))
    desk.add("other", Dependency.message("parent", timeout=2, otherwise={"expired": "skip", "dead": "fail"}))
    desk.core.advance(100.0)
    assert desk.states() == ["expired", "skipped", "skipped"]
    assert desk.nodes["child"].rare.causes == {desk.seq("parent")}
    assert desk.nodes["other"].rare.causes == frozenset()


def test_at_the_same_instant_a_deadline_acts_before_expiry_timeout_and_start():
    desk = Desk(epochs=0)
    desk.open(1, deadline=5.0)
    desk.add("x", Dependency.resource("r", timeout=5, otherwise="skip"))
    desk.add("y", not_before=5.0)
    desk.core.advance(5.0)
    assert desk.states() == ["expired", "expired"]


def test_a_deadline_stops_what_runs_and_spares_what_is_with_the_sink():
    desk = Desk(epochs=0)
    desk.open(1, deadline=5.0)
    for name in ("running", "committing", "ready"):
        desk.add(name)
    desk.start("running", "committing")
    desk.core.hand_to_sink([desk.seq("committing")])
    desk.core.advance(5.0)
    assert desk.states() == ["expired", "committing", "expired"]
    assert desk.core.drain().stop == [desk.seq("running")]
    assert desk.epoch().state == "open", "a deadline does not seal"
    desk.add("late")
    assert desk.state("late") == "expired"


def test_an_epoch_opened_after_its_deadline_expires_what_it_gets():
    desk = Desk(epochs=0)
    desk.core.advance(10.0)
    desk.open(1, deadline=5.0)
    desk.add("x")
    assert desk.state("x") == "expired"


def test_the_deadline_of_a_completed_epoch_does_nothing():
    desk = Desk(epochs=0)
    desk.open(1, deadline=5.0)
    desk.add("x")
    desk.end("x")
    desk.seal()
    desk.core.advance(5.0)
    desk.core.replay(desk.seq("x"))
    assert desk.state("x") == "ready"


@pytest.mark.parametrize("seed", range(5))
def test_timers_come_out_in_the_order_of_a_sorted_list(seed):
    """Thousands of timers, many of them at the same instant: by time, then kind, then number, then dependency."""
    rng = random.Random(seed)
    timers, expected = Timers(), set()
    for _ in range(20_000):
        timer = Timer(float(rng.randrange(50)), TimerKind(rng.randrange(4)), rng.randrange(2_000), rng.randrange(3))
        if timer in expected:
            expected.remove(timer)
            timers.drop(*timer)
        elif rng.random() < 0.8:
            expected.add(timer)
            timers.set(*timer)
        else:
            # One that is not there.
            timers.drop(*timer)
    assert len(timers) == len(expected)
    assert timers.next_due == min(expected).when
    assert [timers.pop_due(30.0) for _ in expected if timers.next_due <= 30.0] == sorted(
        timer for timer in expected if timer.when <= 30.0
    )
    assert timers.pop_due(30.0) is None


def test_the_largest_numbers_fit_into_a_timer():
    timers = Timers()
    largest = Timer(1e300, TimerKind.GATE, 2**43 - 1, 2**17 - 1)
    timers.set(*largest)
    assert timers.pop_due(1e301) == largest


def test_timers_that_were_called_off_leave_nothing():
    timers = Timers()
    for number in range(100_000):
        timers.set(5.0, TimerKind.EXPIRY, number)
    for number in reversed(range(100_000)):
        timers.drop(5.0, TimerKind.EXPIRY, number)
    assert (len(timers), timers.next_due, timers._blocks) == (0, None, [])


def test_a_timeout_counts_from_acceptance_also_when_trouble_comes_first():
    """A message that counts its one resource gets a case when nothing alive can bring that; its time goes on."""
    desk = Desk(stall_grace=1.0)
    desk.core.advance(10.0)
    wanted = Dependency.resource("r", timeout=20, otherwise={"expired": "hold"})
    desk.add("x", wanted)
    assert (desk.nodes["x"].case, desk.core.next_due) == (None, 30.0)
    desk.seal()
    desk.core.advance(29.0)
    assert (desk.state("x"), desk.core.next_due) == ("waiting", 30.0)
    desk.core.advance(30.0)
    assert desk.state("x") == "held"
    desk.core.provide(Resource("r"))
    assert (desk.state("x"), timers(desk)) == ("ready", 0)
