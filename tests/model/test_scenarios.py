"""Small stories whose ends are evident to a reader, played on the reference model."""

from __future__ import annotations

import pytest

from naviscope_spi import Dependency, Message, Resource
from tests.model.reference import Model


def message(name, *depends_on, kind="work", **options):
    return Message(name, None, kind=kind, depends_on=depends_on, **options)


class Story:
    """One model whose messages are called by their ids, which are unique over its epochs."""

    def __init__(self, *messages, **options):
        self.model = Model(**options)
        self.seqs = {}
        self.epoch(*messages)

    def epoch(self, *messages, name=None, seal=True, **options):
        number = len(self.model.epochs) + 1
        self.model.open_epoch(number, name or f"e{number}", **options)
        self.model.accept(number, self.numbered(messages))
        if seal:
            self.model.seal(number)
        self.wait()

    def numbered(self, messages):
        for each in messages:
            self.seqs[each.id] = len(self.seqs) + 1
        return [(self.seqs[each.id], each) for each in messages]

    def wait(self, seconds=0.0):
        self.model.advance(self.model.now + seconds)

    def start(self, name):
        self.model.start(self.seqs[name])

    def run(self, *names, derived=(), ready=()):
        for name in names:
            seq = self.seqs[name]
            self.model.start(seq)
            self.model.executed(seq)
            self.model.committed([seq], {seq: self.numbered(derived)}, {seq: ready})
            self.wait()

    def fail(self, name):
        self.start(name)
        self.model.failed(self.seqs[name])
        self.wait()

    def skip(self, name):
        self.start(name)
        self.model.skipped(self.seqs[name])
        self.wait()

    def replay(self, name):
        revived = self.model.replay(self.seqs[name])
        self.wait()
        return {each for each, seq in self.seqs.items() if seq in revived}

    def discard(self, name):
        self.model.discard(self.seqs[name])
        self.wait()

    def state(self, name):
        return self.model.entries[self.seqs[name]].state

    def states(self, *names):
        return [self.state(name) for name in names]

    def epochs(self):
        return [state for state, _, _ in self.model.snapshot().epochs.values()]


def test_a_merge_after_a_switch_runs_when_one_branch_was_skipped():
    story = Story(message("left"), message("right"), message("merge", Dependency.any_of("left", "right")))
    story.skip("left")
    assert story.state("merge") == "waiting"
    story.run("right", "merge")
    assert story.epochs() == ["completed"]


def test_a_merge_is_skipped_when_all_branches_were():
    story = Story(message("left"), message("right"), message("merge", Dependency.any_of("left", "right")))
    story.skip("left")
    story.skip("right")
    assert story.state("merge") == "skipped"


def test_an_unreachable_group_waits_until_no_member_can_die():
    both = Dependency.any_of("left", "right", at_least=2)
    story = Story(message("left"), message("right"), message("merge", both))
    story.skip("left")
    assert story.state("merge") == "waiting"
    story.fail("right")
    assert story.state("merge") == "dead"


def test_a_diamond_dies_below_its_dead_side_and_is_revived_as_a_whole():
    story = Story(message("top"), message("left", "top"), message("right", "top"), message("bottom", "left", "right"))
    story.run("top", "right")
    story.fail("left")
    assert story.states("right", "bottom") == ["committed", "dead"]
    assert story.epochs() == ["completed"]
    assert story.replay("left") == {"left", "bottom"}
    assert story.epochs() == ["repairing"]
    story.run("left", "bottom")
    assert story.model.snapshot().epochs == {1: ("completed", False, 1)}


def test_a_skip_waits_for_a_parent_that_could_still_fail():
    story = Story(message("mild"), message("harsh"), message("child", "mild", "harsh"))
    story.skip("mild")
    assert story.state("child") == "waiting"
    story.fail("harsh")
    assert story.state("child") == "dead"
    assert story.model.entries[story.seqs["child"]].causes == ({1, 2}, frozenset())


def test_a_cycle_of_two_dies_at_once_and_takes_its_children():
    story = Story(message("one", "two"), message("two", "one"), message("child", "one"))
    assert story.states("one", "two", "child") == ["dead", "dead", "dead"]
    assert story.model.entries[story.seqs["child"]].causes[0] == {1}


def test_a_cycle_through_a_barrier_dies_at_once():
    story = Story(message("one", Dependency.barrier("b")), message("two", "one", kind="b"))
    assert story.states("one", "two") == ["dead", "dead"]


def test_a_message_that_waits_for_its_own_epoch_is_a_cycle():
    story = Story(message("one", Dependency.epoch("e1")))
    assert story.state("one") == "dead"


@pytest.mark.parametrize(
    ("word", "end"), [("fail", "dead"), ("skip", "skipped"), ("run", "ready"), ("wait", "waiting")]
)
def test_a_ghost_is_resolved_after_the_grace(word, end):
    story = Story(message("one", Dependency.message("ghost", on_unresolved=word)))
    story.wait(4.9)
    assert story.state("one") == "waiting"
    story.wait(0.1)
    assert story.state("one") == end
    assert story.model.is_blocked(1) == (word == "wait")


def test_a_ghost_is_awaited_while_somebody_may_derive_it():
    story = Story(message("parent"), message("child", "ghost"))
    story.wait(100)
    assert story.state("child") == "waiting"
    story.run("parent", derived=[message("ghost")])
    story.run("ghost", "child")
    assert story.epochs() == ["completed"]


def test_a_held_message_runs_after_a_replay():
    story = Story(message("parent"), message("child", Dependency.message("parent", otherwise="hold")))
    story.fail("parent")
    assert story.state("child") == "held"
    assert story.model.is_blocked(1)
    assert story.replay("parent") == {"parent"}
    assert story.state("child") == "waiting"
    story.run("parent", "child")
    assert story.model.snapshot().epochs == {1: ("completed", False, 0)}


def test_a_held_message_follows_a_discard():
    story = Story(message("parent"), message("child", Dependency.message("parent", otherwise="hold")))
    story.fail("parent")
    story.discard("parent")
    assert story.state("child") == "dead"
    assert story.replay("parent") == {"parent", "child"}


def test_a_failure_crosses_epochs_and_so_does_its_replay():
    story = Story(message("parent"), message("other"))
    story.epoch(message("child", Dependency.message("parent", "e1")), message("after", "child"))
    story.epoch(message("last", Dependency.epoch("e2")))
    story.run("other")
    story.fail("parent")
    assert story.states("child", "after", "last") == ["dead", "dead", "dead"]
    assert story.epochs() == ["completed"] * 3
    assert story.replay("parent") == {"parent", "child", "after", "last"}
    story.run("parent", "child", "after", "last")
    assert story.model.snapshot().epochs == dict.fromkeys((1, 2, 3), ("completed", False, 1))


def test_a_barrier_waits_for_what_is_derived_on_the_way():
    story = Story(message("scan"), message("sum", Dependency.barrier("part"), kind="sum"), derives={"sum": ()})
    story.run("scan", derived=[message("part", kind="part")])
    assert story.state("sum") == "waiting"
    story.run("part", "sum")
    assert story.epochs() == ["completed"]


def test_a_barrier_opens_at_idle_although_its_waiters_might_derive():
    story = Story(message("sum", Dependency.barrier("part"), kind="sum"))
    assert story.model.snapshot().opened == {(1, "part")}
    assert story.state("sum") == "ready"


def test_a_late_message_of_a_passed_barrier_kills_its_parent():
    story = Story(message("sum", Dependency.barrier("part"), kind="sum"))
    story.run("sum", derived=[message("late", kind="part")])
    assert story.state("sum") == "dead"
    assert story.seqs["late"] not in story.model.entries


def test_a_replay_closes_the_barrier_again_but_not_for_those_it_let_through():
    story = Story(
        message("part", kind="part"),
        message("through", Dependency.barrier("part"), Dependency.message("part", otherwise="hold"), kind="sum"),
        derives={"part": (), "sum": ()},
    )
    story.fail("part")
    assert story.state("through") == "held"
    story.replay("part")
    assert story.model.snapshot().opened == frozenset()
    assert [word for _, word in story.model.dependency_status(2)] == ["satisfied", "open"]


@pytest.mark.parametrize(
    ("policy", "end"), [("follow", "dead"), ("skip", "skipped"), ("run", "ready"), ("hold", "held")]
)
def test_a_timeout_is_a_parent_that_expired(policy, end):
    story = Story(message("parent"), message("child", Dependency.message("parent", otherwise=policy, timeout=3)))
    story.wait(2.9)
    assert story.state("child") == "waiting"
    story.wait(0.2)
    assert story.state("child") == end


def test_a_held_timeout_is_mended_by_a_late_parent():
    story = Story(message("parent"), message("child", Dependency.message("parent", otherwise="hold", timeout=3)))
    story.wait(3)
    story.run("parent", "child")
    assert story.epochs() == ["completed"]


def test_a_lane_is_kept_during_a_retry_and_left_by_a_deferral():
    story = Story(message("one", key="k"), message("two", key="k"))
    story.start("one")
    story.model.retry(1, 2.0)
    assert story.model.runnable() == []
    story.wait(2)
    assert story.model.runnable() == [1]
    story.start("one")
    story.model.deferred(1, ["two"])
    assert story.model.runnable() == [2]


def test_what_is_staged_lives_only_by_the_commit():
    story = Story(message("parent"))
    story.start("parent")
    story.model.stage(1, [(2, message("lost"))])
    story.model.release([1])
    story.start("parent")
    story.model.stage(1, [(3, message("child"))])
    story.model.executed(1)
    assert story.model.unfinished() == [1]
    story.model.committed([1], {}, {})
    assert story.model.unfinished() == [3]


def test_resources_of_an_epoch_and_of_the_world_are_not_summed():
    story = Story(message("maker"), message("user", Dependency.resource("r", 3, external=True)))
    story.model.provide(Resource("r", 2))
    story.run("maker", ready=[Resource("r", add=2)])
    assert story.state("user") == "waiting"
    story.model.provide(Resource("r", add=1))
    assert story.state("user") == "ready"


def test_a_cancelled_epoch_lets_the_sink_finish_but_derives_nothing():
    story = Story(message("sinking"), message("running"), message("waiting", "sinking"))
    for name in ("sinking", "running"):
        story.start(name)
    story.model.executed(1)
    story.model.cancel_epoch(1)
    assert story.states("sinking", "running", "waiting") == ["committing", "cancelled", "cancelled"]
    story.model.committed([1], {1: [(9, message("child"))]}, {})
    assert story.state("sinking") == "committed"
    assert 9 not in story.model.entries
    assert story.epochs() == ["completed"]


def test_a_deadline_expires_what_comes_later_until_a_replay_lifts_it():
    story = Story()
    story.epoch(message("early"), seal=False, deadline=5.0)
    story.wait(5)
    story.model.accept(2, story.numbered([message("late")]))
    story.model.seal(2)
    assert story.states("early", "late") == ["expired", "expired"]
    story.replay("late")
    story.run("late")
    assert story.state("late") == "committed"


@pytest.mark.parametrize("name", ["replay", "discard"])
def test_only_dead_and_expired_messages_are_replayed_or_discarded(name):
    story = Story(message("good"), message("idle"))
    story.run("good")
    story.skip("idle")
    for seq in (1, 2):
        with pytest.raises(ValueError, match="only dead and expired"):
            getattr(story.model, name)(seq)
