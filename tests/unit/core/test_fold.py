"""Facts of a store, folded into a new core: what is believed, and what is decided only when all is known."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from naviscope_ingest._core import Core, Fold
from naviscope_spi import (
    Accepted,
    CaughtUp,
    Committed,
    Dependency,
    Ended,
    EpochForgotten,
    EpochKey,
    EpochMarked,
    EpochOpened,
    EpochOptions,
    EpochRecord,
    EpochState,
    FactBody,
    Leased,
    Message,
    Provided,
    Resource,
    Seq,
    SessionEnded,
    Waits,
)

KEY = EpochKey(1, "e1")
NOW = 100.0
A, B, C = Seq(1), Seq(2), Seq(3)


def record(state: EpochState = "open", key: EpochKey = KEY, *, deadline: float | None = None, **fields) -> EpochRecord:
    return EpochRecord(key, state, EpochOptions(deadline=deadline), **fields)


def opened(*args, **fields) -> EpochOpened:
    return EpochOpened(record(*args, **fields))


def marked(*args, **fields) -> EpochMarked:
    return EpochMarked(record(*args, **fields))


def accepted(*messages: Message, first: int = 1, key: EpochKey = KEY, at: float = 0.0) -> Accepted:
    return Accepted(key, [Seq(first + index) for index in range(len(messages))], messages, at)


def message(name: str, *depends_on: str | Dependency, **fields) -> Message:
    return Message(name, None, depends_on=depends_on, **fields)


def tell(fold: Fold, core: Core, facts: Iterable[FactBody], now: float = NOW) -> None:
    for fact in facts:
        core.tell_time(now)
        fold(fact)


def recovered(*facts: FactBody, now: float = NOW, **options) -> Core:
    core = Core(**options)
    tell(Fold(core), core, [*facts, CaughtUp()], now)
    core.advance(now)
    return core


def states(core: Core, *seqs: Seq) -> list[str]:
    nodes = [core.node(seq) for seq in seqs]
    return ["gone" if node is None else node.end or node.state.value for node in nodes]


def test_nothing_is_decided_before_all_facts_are_known():
    core = Core()
    fold = Fold(core)
    facts = [
        opened("sealed"),
        accepted(message("a", "b"), message("b", "a"), message("c", "ghost", expires_at=1.0)),
        Ended(B, "dead"),
        marked("sealed", cancel_requested=True),
    ]
    tell(fold, core, facts)
    assert not core.drain()
    assert states(core, A, B, C) == ["waiting", "dead", "waiting"]
    assert core.take(10) == []
    fold(CaughtUp())
    assert {each.seq: each.end for each in core.drain().ended} == {A: "cancelled", C: "cancelled"}


FACTS = [
    opened(),
    accepted(message("a"), message("b", "a"), message("c", Dependency.resource("r"), key="k")),
    Leased([A], 7),
    Committed([A], {A: b"value"}),
    Provided(Resource("r", 2, value=b"provided"), 1),
    Leased([B], 7),
    Ended(B, "dead"),
    marked("sealed"),
]


def test_facts_that_come_twice_change_nothing():
    once, twice = recovered(*FACTS), recovered(*(fact for fact in FACTS for _ in range(2)), *FACTS)
    for core in (once, twice):
        assert states(core, A, B, C) == ["gone", "dead", "ready"]
        assert core.epochs[1].counts() == once.epochs[1].counts()
        assert core.epochs[1].submitted == 3
        assert core.graph.resources.version(1, "r") == 2


def test_values_are_found_after_a_restart():
    core = recovered(*FACTS, accepted(message("d", "a", Dependency.resource("r")), first=4))
    assert core.values(Seq(4)) == {"a": b"value", "r": b"provided"}


def test_a_history_is_news_once_everything_else_was_told():
    """Fold goes on after a recovery; then the core decides at each fact."""
    core = Core()
    fold = Fold(core)
    tell(
        fold, core, [opened(), CaughtUp(), accepted(message("a"), message("b", "a")), Leased([A], 1), Ended(A, "dead")]
    )
    assert [each.seq for each in core.drain().ended] == [B]


def test_a_session_that_ended_frees_what_it_had_leased_and_nothing_else():
    core = recovered(
        opened(),
        accepted(message("a"), message("b"), message("c")),
        Leased([A, B], 1),
        Leased([C], 2),
        Committed([B]),
        SessionEnded(1, clean=False),
    )
    assert states(core, A, B, C) == ["ready", "gone", "running"]


# What later facts say is believed, whatever time it is now


def test_what_was_with_the_sink_when_its_epoch_was_cancelled_has_committed():
    core = recovered(
        opened(), accepted(message("a"), message("b")), Leased([A], 1), marked("sealed", cancel_requested=True),
        Ended(B, "cancelled"), Committed([A]),
    )  # fmt: skip
    assert states(core, A, B) == ["gone", "cancelled"]
    assert core.epochs[1].ends["committed"] == 1
    assert core.epochs[1].is_completed


def test_what_was_handed_back_before_it_expired_may_have_committed_since():
    core = recovered(
        opened(), accepted(message("a", expires_at=50.0)), Leased([A], 1), SessionEnded(1, clean=False),
        Leased([A], 2), Committed([A]),
    )  # fmt: skip
    assert states(core, A) == ["gone"]
    assert core.epochs[1].ends["committed"] == 1


def test_what_was_handed_back_and_has_expired_since_expires():
    core = recovered(opened(), accepted(message("a", expires_at=50.0)), Leased([A], 1), SessionEnded(1, clean=False))
    assert states(core, A) == ["expired"]


def test_a_timeout_counts_from_acceptance():
    dependency = Dependency.resource("r", timeout=30, otherwise="skip")
    facts = [opened(), accepted(message("a", dependency), at=80.0)]
    assert states(recovered(*facts, now=109.0), A) == ["waiting"]
    assert states(recovered(*facts, now=110.0), A) == ["skipped"]


def test_a_message_that_waited_for_a_parent_and_was_deferred_does_not_start_by_the_parent():
    """Its parent's commit freed it long ago; now it waits for something else."""
    core = recovered(
        opened(), accepted(message("a"), message("b", "a")), Leased([A], 1), Committed([A]), Leased([B], 1),
        Waits(B, ("c",)),
    )  # fmt: skip
    assert states(core, B) == ["waiting"]


# Going on


def test_a_deferral_is_waited_for_and_the_message_is_ready_when_it_is_satisfied():
    core = recovered(opened(), accepted(message("a"), message("b")), Waits(A, ("b",), attempt=2))
    assert states(core, A) == ["waiting"]
    core.claim([B])
    core.commit([B])
    assert states(core, A) == ["ready"]
    assert core.node(A).rare.attempts == 2


def test_a_deferral_for_what_was_waited_for_before_hands_the_message_back():
    core = recovered(
        opened(), accepted(message("a"), message("b")), Leased([B], 1), Committed([B]),
        Leased([A], 1), Waits(A, ("b",)), Leased([A], 1), Waits(A, ("b",), attempt=1),
    )  # fmt: skip
    assert states(core, A) == ["ready"]


def test_a_retry_waits_for_its_time_and_keeps_its_lane():
    core = recovered(
        opened(), accepted(message("a", key="k"), message("b", key="k")), Waits(A, not_before=130.0, attempt=1)
    )
    assert states(core, A, B) == ["delayed", "ready"]
    assert core.take(10) == []
    core.advance(130.0)
    assert core.take(10) == [A]
    assert core.node(A).rare.attempts == 1


def test_a_retry_after_a_deferral_waits_for_its_time_only():
    """A store that keeps no history tells both in one fact."""
    core = recovered(
        opened(),
        accepted(message("a", key="k"), message("b")),
        Committed([B], {B: b"value"}),
        Waits(A, ("b", Dependency.message("never", otherwise="run")), not_before=130.0, attempt=1),
    )
    assert states(core, A) == ["delayed"]
    core.advance(130.0)
    assert core.take(10) == [A]
    assert core.values(A) == {"b": b"value"}


def test_a_deferral_does_not_take_the_lane_of_a_message_in_retry():
    core = recovered(
        opened(),
        accepted(message("a", key="k"), message("b", key="k")),
        Waits(A, not_before=130.0, attempt=1),
        Waits(B, (Dependency.resource("r"),)),
        Provided(Resource("r"), None),
    )
    assert states(core, A, B) == ["delayed", "ready"]
    assert core.take(10) == []


# Replays


def test_a_replay_brings_an_ended_message_back_and_names_its_run():
    core = recovered(opened(), accepted(message("a")), Ended(A, "dead"), Waits(A, run=3))
    assert states(core, A) == ["ready"]
    assert core.node(A).run == 3


def test_a_message_in_a_later_run_is_known_by_its_waits_alone():
    core = recovered(opened(), accepted(message("a")), Waits(A, run=3), Ended(A, "dead"))
    assert states(core, A) == ["dead"]
    assert core.node(A).run == 3
    core.replay(A)
    assert core.node(A).run == 4


ACCOUNTS = pytest.mark.parametrize("end", [[Ended(A, "expired")], []], ids=["whole account", "short account"])


@ACCOUNTS
def test_timeouts_begin_again_with_a_replay_whose_time_is_unknown(end):
    dependency = Dependency.resource("r", timeout=30)
    core = recovered(opened(), accepted(message("a", dependency)), *end, Waits(A, run=1))
    assert states(core, A) == ["waiting"]
    core.advance(NOW + 29)
    assert states(core, A) == ["waiting"]
    core.advance(NOW + 30)
    assert states(core, A) == ["dead"]


@ACCOUNTS
def test_a_message_that_was_replayed_after_it_had_expired_runs(end):
    core = recovered(opened(), accepted(message("a", expires_at=50.0)), *end, Waits(A, run=1))
    assert states(core, A) == ["ready"]
    core.claim([A])
    core.release([A])
    assert states(core, A) == ["ready"]


@ACCOUNTS
def test_a_message_that_was_replayed_expires_in_time(end):
    core = recovered(opened(), accepted(message("a", expires_at=150.0)), *end, Waits(A, run=1))
    assert states(core, A) == ["ready"]
    core.advance(150.0)
    assert states(core, A) == ["expired"]


@ACCOUNTS
def test_a_message_that_was_replayed_after_the_deadline_runs(end):
    core = recovered(opened(deadline=50.0), accepted(message("a")), *end, Waits(A, run=1))
    assert states(core, A) == ["ready"]


def test_a_deadline_that_passed_meanwhile_ends_what_is_left():
    core = recovered(opened(deadline=50.0), accepted(message("a")), Leased([A], 1), SessionEnded(1, clean=False))
    assert states(core, A) == ["expired"]


# Epochs

HISTORY = [
    opened(),
    accepted(message("a")),
    marked("sealed"),
    Ended(A, "dead"),
    marked("completed", succeeded=False),
    Waits(A, run=1),
    marked("repairing"),
]


def test_an_epoch_under_repair_is_known_as_such():
    core = recovered(*HISTORY)
    assert core.epochs[1].state == "repairing"
    assert not core.drain(), "nothing new was decided"


def test_a_repair_that_completed_has_a_higher_revision():
    core = recovered(*HISTORY, Committed([A]), marked("completed", succeeded=True))
    assert (core.epochs[1].state, core.epochs[1].revision, core.epochs[1].succeeded) == ("completed", 1, True)


def test_an_epoch_that_was_cancelled_during_its_repair_is_cancelled():
    core = recovered(*HISTORY, Leased([A], 1), marked("repairing", cancel_requested=True), SessionEnded(1, clean=True))
    assert states(core, A) == ["cancelled"]
    assert core.epochs[1].was_cancelled


def test_a_repair_lifts_the_cancellation():
    core = recovered(
        opened(), accepted(message("a")), Ended(A, "dead"), marked("sealed", cancel_requested=True),
        marked("completed", cancel_requested=True, succeeded=False), Waits(A, run=1), marked("repairing"),
    )  # fmt: skip
    assert states(core, A) == ["ready"]
    assert not core.epochs[1].was_cancelled


OTHER = EpochKey(2, "e2")


def test_an_epoch_that_was_forgotten_told_those_who_waited_for_it():
    core = recovered(
        opened(),
        opened(key=OTHER),
        accepted(message("waits", Dependency.epoch("e1"), Dependency.resource("r")), key=OTHER),
        accepted(message("a"), first=2),
        Committed([B]),
        marked("completed", succeeded=True),
        EpochForgotten(KEY),
    )
    assert 1 not in core.epochs
    core.provide(Resource("r"))
    assert states(core, A) == ["ready"]


def test_a_completed_epoch_whose_messages_are_gone_tells_whether_it_succeeded():
    for succeeded, state in ((True, "ready"), (False, "dead")):
        core = recovered(
            opened("completed", succeeded=succeeded),
            opened(key=OTHER),
            accepted(message("waits", Dependency.epoch("e1")), key=OTHER),
        )
        assert states(core, A) == [state]


# What is not recorded


def test_a_barrier_that_opened_because_nothing_else_moved_is_shut_after_a_restart_while_something_moves():
    barrier = Dependency.barrier("row")
    facts = [
        opened("sealed"),
        accepted(message("a", barrier, kind="x"), message("b", barrier, kind="x")),
    ]
    core = recovered(*facts)
    assert states(core, A, B) == ["ready", "ready"]
    core = recovered(*facts, Leased([A], 1))
    assert states(core, A, B) == ["running", "waiting"]
    core.commit([A])
    core.advance(NOW)
    assert states(core, B) == ["ready"]


def test_a_grace_period_begins_again_with_a_restart():
    core = recovered(opened("sealed"), accepted(message("a", "ghost")), stall_grace=5.0)
    core.advance(NOW + 4.9)
    assert states(core, A) == ["waiting"]
    core.advance(NOW + 5.0)
    assert states(core, A) == ["dead"]
