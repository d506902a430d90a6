"""Gates: caps, rates and doors keep ready messages from starting, and let them go in order when there is room."""

from __future__ import annotations

import random

import pytest

from naviscope_ingest import Cap, Rate
from naviscope_ingest._core.explain import explain_message
from naviscope_ingest._core.gates import Bucket
from naviscope_spi import Message
from tests.unit.core.desk import Desk


def fill(desk: Desk, count: int, *, prefix: str = "m", epoch: int = 1, **fields) -> list[str]:
    names = [f"{prefix}{i}" for i in range(count)]
    desk.put(*(Message(name, None, **fields) for name in names), epoch=epoch)
    return names


def desk_with(*limits: Cap | Rate, epochs: int = 1, **options) -> Desk:
    desk = Desk(epochs=epochs, **options)
    for limit in limits:
        desk.core.control.put(limit)
    return desk


def settle(desk: Desk, *names: str) -> None:
    seqs = [desk.seq(name) for name in names]
    desk.core.hand_to_sink(seqs)
    desk.core.commit(seqs)


def reasons(desk: Desk, name: str) -> list[tuple[str, float | None]]:
    return [(reason.kind, reason.until) for reason in explain_message(desk.core, desk.nodes[name]).reasons]


# Caps


def test_a_cap_lets_so_many_start_and_one_more_for_each_that_settles():
    desk = desk_with(Cap(2, kind="http"))
    fill(desk, 5, kind="http")
    fill(desk, 2, prefix="other")
    assert desk.take() == ["m0", "m1", "other0", "other1"]
    assert desk.take() == []
    assert not desk.core.schedule.has_ready()
    settle(desk, "m1")
    assert desk.take() == ["m2"]
    settle(desk, "m0", "m2")
    assert desk.take() == ["m3", "m4"]


@pytest.mark.parametrize("how", ["commit", "dead", "release", "retry", "defer", "cancel"])
def test_a_slot_is_freed_however_a_message_leaves_its_worker(how):
    desk = desk_with(Cap(1))
    fill(desk, 2)
    desk.add("last", priority=-1)
    assert desk.take() == ["m0"]
    if how == "commit":
        settle(desk, "m0")
    elif how == "dead":
        desk.end("m0")
    elif how == "release":
        desk.core.release([desk.seq("m0")])
    elif how == "retry":
        desk.core.retry(desk.seq("m0"), 10.0)
    elif how == "defer":
        desk.core.defer(desk.seq("m0"), ["last"])
    else:
        desk.core.cancel(desk.seq("m0"))
    # What came back goes first.
    assert desk.take() == (["m0"] if how == "release" else ["m1"])
    assert desk.take() == []


def test_a_cap_of_all_messages_counts_every_kind():
    desk = desk_with(Cap(3))
    fill(desk, 3, kind="a", prefix="a")
    fill(desk, 3, kind="b", prefix="b")
    assert len(desk.take()) == 3


def test_a_cap_by_an_expression_counts_each_value_for_itself():
    desk = desk_with(Cap(1, by="headers.tenant"))
    for tenant in ("x", "y"):
        fill(desk, 2, prefix=tenant, headers={"tenant": tenant})
    fill(desk, 2, prefix="free")
    assert sorted(desk.take()) == ["free0", "free1", "x0", "y0"]
    settle(desk, "y0")
    assert desk.take() == ["y1"]


def test_values_that_are_gone_leave_nothing_behind():
    desk = desk_with(Cap(1, by="headers.tenant"), Rate(10, by="id"))
    for number in range(3_000):
        desk.add(f"m{number}", headers={"tenant": str(number)})
        desk.core.advance(float(number))
        settle(desk, *desk.take())
    regulation = desk.core.schedule.regulation
    assert regulation is not None
    assert all(len(keyed.gates) <= 1_100 for keyed in regulation._keyed.values())
    assert not desk.core.schedule.slots


def test_an_epoch_has_a_cap_of_its_own_or_the_one_that_all_have():
    desk = Desk(epochs=3)
    desk.core.control.cap_epochs(2)
    desk.core.control.cap_epoch(desk.epoch(3), 1)
    for number in (1, 2, 3):
        fill(desk, 4, prefix=f"e{number}-", epoch=number)
    assert sorted(name[:2] for name in desk.take()) == ["e1", "e1", "e2", "e2", "e3"]
    desk.core.control.cap_epoch(desk.epoch(3), None)
    assert [name[:2] for name in desk.take()] == ["e3"]


def test_what_another_process_or_a_recovery_started_counts():
    desk = desk_with(Cap(2))
    fill(desk, 4)
    desk.start("m3")
    assert desk.take() == ["m0"]
    desk.core.release([desk.seq("m3")])
    assert desk.take() == ["m3"]


def test_messages_that_run_when_a_cap_comes_count_against_it():
    desk = Desk()
    fill(desk, 10)
    assert len(desk.take(4)) == 4
    desk.core.control.put(Cap(5))
    assert desk.take() == ["m4"]
    settle(desk, "m0", "m4")
    assert desk.take() == ["m5", "m6"]


def test_a_cap_is_raised_lowered_and_taken_away_while_messages_wait():
    desk = desk_with(Cap(1))
    fill(desk, 10)
    assert desk.take() == ["m0"]
    assert desk.take() == []
    desk.core.control.put(Cap(3))
    assert desk.take() == ["m1", "m2"]
    desk.core.control.put(Cap(2))
    settle(desk, "m0")
    assert desk.take() == []
    settle(desk, "m1")
    assert desk.take() == ["m3"]
    desk.core.control.drop("cap")
    assert len(desk.take()) == 6


# Rates


def test_a_rate_starts_a_burst_and_then_one_whenever_a_token_comes():
    desk = desk_with(Rate(2, burst=3, kind="http"))
    fill(desk, 10, kind="http")
    assert len(desk.take()) == 3
    assert desk.take() == []
    assert desk.core.next_due == pytest.approx(0.5)
    desk.core.advance(0.49)
    assert desk.take() == []
    desk.core.advance(desk.core.next_due)
    assert desk.take() == ["m3"]
    desk.core.advance(10.0)
    assert len(desk.take()) == 3


def test_several_rates_hold_at_once():
    desk = desk_with(Rate(10, burst=2), Rate(60, per=60, burst=5, label="minute"))
    fill(desk, 100)
    started = 0
    for tenth in range(300):
        desk.core.advance(tenth / 10)
        started += len(desk.take())
    assert started == 5 + 29


def test_kinds_that_pay_differently_share_a_bucket():
    desk = desk_with(Rate(10, cost={"search": 5}))
    fill(desk, 10, kind="search", prefix="s")
    assert len(desk.take()) == 2
    fill(desk, 10, kind="get", prefix="g")
    desk.core.advance(0.3)
    assert desk.take() == ["g0", "g1", "g2"]


@pytest.mark.parametrize("start", [0.0, 1_763_483_400.25])
@pytest.mark.parametrize("rate", [0.3, 7, 1_000, 33_333])
def test_a_rate_is_used_up_and_never_exceeded_whatever_the_clock_rounds(start, rate):
    desk = Desk()
    desk.core.tell_time(start)
    desk.core.control.put(Rate(rate, burst=1))
    fill(desk, 300)
    times: list[float] = []
    while len(times) < 200:
        times += [desk.core.now] * len(desk.take())
        assert desk.core.next_due is not None
        desk.core.advance(desk.core.next_due)
    assert times[-1] - times[0] == pytest.approx(199 / rate, rel=0.02, abs=1e-3)
    assert all(later - first >= 9 / rate * (1 - 1e-6) - 1e-6 for first, later in zip(times, times[9:], strict=False))


def test_a_clock_that_goes_back_brings_no_tokens_and_takes_none():
    bucket = Bucket(rate=1.0, capacity=3.0, now=100.0)
    bucket.spend(3.0, 100.0)
    assert bucket.tokens(50.0) == 0.0
    assert bucket.tokens(51.0) == 1.0
    assert bucket.tokens(100.0) == 3.0


# Doors


def test_a_closed_door_parks_a_kind_until_it_is_opened():
    desk = Desk()
    fill(desk, 2, kind="http")
    fill(desk, 1, prefix="other")
    desk.core.control.close("http", "pause", "pause", "maintenance")
    assert desk.take() == ["other0"]
    assert reasons(desk, "m0") == [("pause", None)]
    assert desk.core.control.open("http", "pause")
    assert desk.take() == ["m0", "m1"]
    assert not desk.core.control.open("http", "pause")


def test_a_door_before_every_kind_is_before_kinds_that_come_later():
    desk = Desk()
    desk.core.control.close(None, "pause", "pause", "")
    fill(desk, 2, kind="new")
    assert desk.take() == []
    desk.core.control.open(None, "pause")
    assert len(desk.take()) == 2


def test_a_door_opens_at_its_time():
    desk = Desk()
    desk.core.control.close("http", "service", "retry-after", "it asked for 30 s", 30.0)
    fill(desk, 2, kind="http")
    assert desk.take() == []
    assert desk.core.next_due == 30.0
    assert reasons(desk, "m0") == [("retry-after", 30.0)]
    desk.core.advance(30.0)
    assert desk.take() == ["m0", "m1"]


def test_a_half_open_door_lets_one_through_at_a_time():
    desk = Desk()
    fill(desk, 6, kind="http")
    assert desk.take(2) == ["m0", "m1"]
    desk.core.control.close("http", "breaker", "breaker", "5 failures", 10.0, then="half-open")
    assert desk.take() == []
    desk.core.advance(10.0)
    # Who started before is not counted.
    assert desk.take() == ["m2"]
    assert desk.take() == []
    assert reasons(desk, "m3") == [("breaker", None)]
    settle(desk, "m0")
    assert desk.take() == []
    settle(desk, "m2")
    assert desk.take() == ["m3"]
    desk.core.control.open("http", "breaker")
    assert desk.take() == ["m4", "m5"]


def test_kinds_that_share_a_door_are_on_trial_together():
    desk = Desk()
    desk.core.control.half_open("a", "db", "breaker", "it was down")
    desk.core.control.share("a", "db", "b")
    fill(desk, 2, kind="a", prefix="a")
    fill(desk, 2, kind="b", prefix="b")
    assert desk.take() == ["a0"]
    settle(desk, "a0")
    assert len(desk.take()) == 1


def test_all_doors_of_a_kind_must_be_open():
    desk = Desk()
    fill(desk, 1, kind="http")
    desk.core.control.close("http", "one", "pause", "")
    desk.core.control.close("http", "two", "breaker", "")
    desk.core.control.open("http", "one")
    assert desk.take() == []
    desk.core.control.open("http", "two")
    assert desk.take() == ["m0"]


# Order


def test_parked_messages_keep_priority_and_fairness():
    desk = desk_with(Cap(1), epochs=2)
    fill(desk, 1_000, prefix="big")
    assert desk.take() == ["big0"]
    fill(desk, 10, prefix="small", epoch=2)
    desk.add("urgent", priority=5)
    settle(desk, "big0")
    started: list[str] = []
    while taken := desk.take():
        started += taken
        settle(desk, *taken)
    assert started[0] == "urgent"
    assert started.index("small9") < 100


def test_kinds_share_by_weight_whatever_epochs_they_are_in():
    desk = Desk(epochs=2)
    desk.core.control.weigh({"a": 3})
    fill(desk, 3_000, kind="a", prefix="a")
    fill(desk, 3_000, kind="b", prefix="b", epoch=2)
    started = [name[0] for _ in range(200) for name in desk.take(10)]
    assert started.count("a") / len(started) == pytest.approx(0.75, abs=0.03)


def test_nothing_waits_for_ever_behind_what_is_urgent_all_the_time():
    desk = Desk(ageing=10.0)
    desk.add("patient")
    fill(desk, 10, prefix="urgent-", priority=3)
    for second in range(100):
        desk.core.advance(float(second))
        desk.add(f"new{second}", priority=3)
        if "patient" in desk.take(1):
            break
    # Thirty seconds of waiting are worth three priorities; those that came before it has caught up go first.
    assert 30 <= second <= 45


@pytest.mark.parametrize("limits", [(), (Cap(10_000),)])
def test_what_is_void_does_not_hide_what_is_urgent(limits):
    desk = desk_with(*limits, epochs=2)
    desk.add("void", priority=1)
    desk.add("urgent", priority=1, epoch=2)
    fill(desk, 100)
    desk.core.cancel(desk.seq("void"))
    assert desk.take(1) == ["urgent"]


def test_a_lane_waits_at_the_gates_of_its_head():
    desk = desk_with(Cap(1, kind="slow"))
    desk.add("blocker", kind="slow")
    assert desk.take() == ["blocker"]
    desk.add("first", kind="slow", key="k")
    desk.add("second", kind="quick", key="k")
    assert desk.take() == []
    assert reasons(desk, "first")[0][0] == "cap"
    assert reasons(desk, "second")[0][0] == "lane"
    settle(desk, "blocker")
    assert desk.take() == ["first"]
    settle(desk, "first")
    assert desk.take() == ["second"]


def test_a_lane_whose_head_changed_stands_where_the_new_head_belongs():
    desk = desk_with(Cap(1, kind="slow"))
    desk.add("waiting", "parent", kind="quick", key="k")
    desk.add("parent", kind="other")
    desk.add("blocker", kind="slow")
    desk.add("head", kind="slow", key="k")
    assert desk.take() == ["parent", "blocker"]
    settle(desk, "parent")
    assert desk.take() == ["waiting"]
    settle(desk, "waiting")
    settle(desk, "blocker")
    assert desk.take() == ["head"]


def test_void_entries_at_a_closed_gate_do_not_count_as_parked():
    desk = Desk()
    fill(desk, 3, kind="http")
    desk.core.control.close("http", "pause", "pause", "")
    assert desk.take() == []
    assert desk.core.schedule.has_parked()
    for name in ("m0", "m1", "m2"):
        desk.core.cancel(desk.seq(name))
    assert not desk.core.schedule.has_parked()


def test_a_completed_epoch_leaves_no_branches_behind():
    desk = desk_with(Cap(4), Cap(1, by="key"), epochs=0)
    for number in range(1, 50):
        desk.open(number)
        fill(desk, 5, prefix=f"e{number}-", epoch=number, key=str(number), priority=number)
        desk.seal(number)
        while taken := desk.take():
            settle(desk, *taken)
    branches = desk.core.schedule._branches
    assert branches is not None
    assert (len(branches._roots), len(desk.core.schedule.levels)) == (0, 0)


# Everything at once


@pytest.mark.parametrize("seed", range(60))
def test_whatever_limits_are_set_and_changed_everything_starts_and_nothing_exceeds_them(seed):
    """Random caps, rates, doors, priorities, lanes, retries and changes: the rest of time brings every message home."""
    rng = random.Random(seed)
    desk = Desk(epochs=3, lanes=rng.choice(["block", "pass"]), ageing=rng.choice([1.0, 60.0]))
    kinds = ["a", "b", "c"]
    caps = {kind: rng.randint(1, 4) for kind in kinds}
    for kind in kinds:
        if rng.random() < 0.7:
            desk.core.control.put(Cap(caps[kind], kind=kind))
        else:
            caps[kind] = 10_000
        if rng.random() < 0.5:
            desk.core.control.put(Rate(rng.uniform(0.5, 20), kind=kind, burst=rng.randint(1, 5)))
    tenants = rng.random() < 0.5
    if tenants:
        desk.core.control.put(Cap(1, by="headers.tenant"))
    if rng.random() < 0.3:
        desk.core.control.weigh({"a": 3, "b": 2})
    if rng.random() < 0.3:
        desk.core.control.cap_epochs(2)
    running: list[str] = []
    total = 0
    left = 150
    for step in range(20_000):
        while left and rng.random() < 0.3:
            left -= 1
            total += 1
            desk.add(
                f"m{total}",
                kind=rng.choice(kinds),
                epoch=rng.randint(1, 3),
                priority=rng.choice([0, 0, 0, 1, -2]),
                key=rng.choice([None, None, "k", "l"]),
                headers={"tenant": rng.choice("xyz")} if rng.random() < 0.6 else {},
            )
        if rng.random() < 0.02:
            desk.core.control.close(rng.choice([*kinds, None]), "p", "pause", "", desk.core.now + rng.random())
        if rng.random() < 0.01:
            kind = rng.choice(kinds)
            caps[kind] = rng.randint(1, 4)
            desk.core.control.put(Cap(caps[kind], kind=kind))
            caps[kind] = max(caps[kind], sum(desk.nodes[name].message.kind == kind for name in running))
        running += desk.take(rng.randint(1, 10))
        for kind in kinds:
            assert sum(desk.nodes[name].message.kind == kind for name in running) <= caps[kind]
        if tenants:
            held = [t for name in running if (t := desk.nodes[name].message.headers.get("tenant")) is not None]
            assert len(held) == len(set(held))
        rng.shuffle(running)
        while running and rng.random() < 0.6:
            name = running.pop()
            fate = rng.random()
            if fate < 0.8:
                settle(desk, name)
            elif fate < 0.9:
                desk.core.retry(desk.seq(name), desk.core.now + rng.random())
            else:
                desk.core.release([desk.seq(name)])
        for kind in kinds:
            caps[kind] = caps[kind] if caps[kind] == 10_000 else min(caps[kind], 10_000)
        if not running and not desk.core.schedule.has_ready():
            if not left and all(epoch.unfinished == 0 for epoch in desk.core.epochs.values()):
                break
            due = desk.core.next_due
            assert due is not None or left, f"nothing moves any more in step {step}"
            desk.core.advance(desk.core.now if due is None else max(due, desk.core.now))
    assert all(epoch.unfinished == 0 for epoch in desk.core.epochs.values())
    assert not desk.core.schedule.slots
