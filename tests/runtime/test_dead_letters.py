"""Dead letters as a caller meets them: found, shown, replayed, edited, discarded, taken elsewhere."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import trio

from naviscope_ingest import (
    Dependency,
    EpochFailed,
    Executed,
    Fatal,
    ImportRefused,
    InvalidFilter,
    Message,
    PatchRefused,
    Permanent,
    ReplayInVain,
    UnknownEpoch,
    UnknownLetter,
)
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import START, WaitingStore, answers, failures, messages, started


async def found(letters, **where):
    return [letter.message_id async for letter in letters.find(**where)]


async def noted(letters, **where):
    return [(each.action, each.message_id, each.run) async for each in letters.audit(**where)]


class Mended:
    """An executor that refuses messages until it is mended, and keeps what it was given."""

    def __init__(self, *bad):
        self.bad = set(bad)
        self.seen = []

    async def execute(self, delivery):
        self.seen.append((delivery.id, delivery.run, delivery.payload))
        await trio.lowlevel.checkpoint()
        if delivery.id in self.bad:
            raise Permanent(f"no such thing as {delivery.id!r}")
        return Executed(ops=[delivery.id])


# Finding.


async def test_letters_are_found_by_what_they_are():
    work = answers({"a": Fatal("one"), "b": ValueError("two"), "c": Fatal("one")})
    async with started(work) as world:
        await world.batch(*messages("a", "fine"), Message("b", None, kind="other"), name="first")
        await trio.sleep(50)
        await world.batch(*messages("c"), name="second")
        letters = world.intake.dead_letters
        assert await found(letters) == ["a", "b", "c"]
        assert await found(letters, epoch="first") == ["a", "b"]
        assert await found(letters, epoch=await world.intake.get_epoch("second")) == ["c"]
        assert await found(letters, kind="other") == ["b"]
        assert await found(letters, message_id="c") == ["c"]
        assert await found(letters, end="expired") == []
        second = (await letters.show("second", "c")).ended_at
        assert await found(letters, since=second) == ["c"]
        assert await found(letters, until=second) == ["a", "b"]
        one = (await letters.show("first", "a")).details.fingerprint
        assert await found(letters, fingerprint=one) == ["a", "c"]
        assert await letters.count(fingerprint=one, epoch="first") == 1


async def test_letters_are_counted_by_what_they_have_in_common():
    work = answers({"a": Fatal("row 7 is bad"), "b": ValueError("other"), "c": Fatal("row 12 is bad")})
    async with started(work) as world:
        await world.batch(*messages("b", "a"))
        await trio.sleep(60)
        await world.batch(*messages("c"))
        large, small = await world.intake.dead_letters.groups()
        assert (large.count, large.example.message_id, small.count) == (2, "a", 1)
        assert large.last_seen - large.first_seen >= 60
        assert large.fingerprint == large.example.details.fingerprint != small.fingerprint


async def test_a_letter_is_shown_with_its_message_and_what_it_took_down():
    async with started({"a": Fatal("broken")}) as world:
        await world.batch(
            Message("a", {"url": "x"}, headers={"traceparent": "t"}), *messages("b", depends_on=["a"]), name="e"
        )
        letters = world.intake.dead_letters
        whole = await letters.show("e", "a")
        assert (whole.message.payload, whole.payload, whole.edited) == ({"url": "x"}, {"url": "x"}, None)
        assert (whole.brings_back, whole.follows, whole.run, whole.end) == (2, False, 0, "dead")
        assert "broken" in whole.error
        assert whole.details.origin == {"traceparent": "t"}
        follower = await letters.show("e", "b")
        assert (follower.follows, follower.details.causes) == (True, (("e", "a"),))


async def test_more_letters_than_a_page_are_all_found_and_replayed():
    count = 1_234
    executor = Mended(*(f"m{n}" for n in range(count)))
    async with started(executor) as world:
        report = await world.batch(*messages(*(f"m{n}" for n in range(count))), name="e")
        assert report.dead == count
        letters = world.intake.dead_letters
        assert await letters.count() == count
        executor.bad.clear()
        receipt = await letters.replay(epoch="e")
        assert (receipt.letters, receipt.revived, len(receipt.first)) == (count, count, 100)
        assert (await world.intake.wait_epoch("e")).succeeded
        assert len(world.sink.ops) == count


# Replaying.


async def test_a_replayed_letter_turns_the_report_good():
    executor = Mended("a")
    async with started(executor) as world:
        first = await world.batch(
            *messages("a", "x"), *messages("b", depends_on=["a"]), *messages("c", depends_on=["b"]), name="e"
        )
        assert (first.dead, first.revision, first.succeeded) == (3, 0, False)
        executor.bad.clear()
        letters = world.intake.dead_letters
        receipt = await letters.replay(epoch="e", message_id="a", who="anna", reason="mended")
        assert (receipt.letters, receipt.revived, receipt.followers) == (1, 3, 0)
        report = await world.intake.wait_epoch("e")
        assert (report.dead, report.committed, report.revision, report.succeeded) == (0, 4, 1, True)
        assert (report.failures, report.completed_at) == ((), first.completed_at)
        assert await found(letters) == []
        assert [op for op in world.sink.ops if op != "x"] == ["a", "b", "c"]
        (entry,) = [each async for each in letters.audit()]
        assert (entry.who, entry.reason, entry.action, entry.message_id) == ("anna", "mended", "replay", "a")
        assert (entry.epoch, entry.run, entry.messages) == ("e", 0, 3)


async def test_what_is_not_replayed_stays_in_the_report():
    executor = Mended("a", "b", "c")
    async with started(executor) as world:
        await world.batch(*messages("a", "b", "c"), name="e")
        executor.bad.discard("b")
        await world.intake.dead_letters.replay(epoch="e", message_id="b")
        assert failures(await world.intake.wait_epoch("e")).keys() == {"a", "c"}
        await world.intake.dead_letters.replay(epoch="e", message_id="a")
        report = await world.intake.wait_epoch("e")
        assert (failures(report).keys(), report.revision) == ({"a", "c"}, 2)


async def test_a_letter_that_fails_again_is_replayed_once_by_each_call():
    executor = Mended("a", "b")
    async with started(executor) as world:
        await world.batch(*messages("a", "b"), name="e")
        letters = world.intake.dead_letters
        for run in (1, 2):
            assert (await letters.replay(epoch="e")).letters == 2
            await world.intake.wait_epoch("e")
            assert [letter.run async for letter in letters.find()] == [run, run]
        assert await noted(letters, message_id="a") == [("replay", "a", 0), ("replay", "a", 1)]
        assert [run for name, run, _ in executor.seen if name == "a"] == [0, 1, 2]


async def test_a_group_an_epoch_and_a_filter_are_replayed():
    work = {name: [Fatal(f"bad {name[0]}"), Executed(ops=[name])] for name in ("x-1", "x-2", "y-1", "y-2")}
    async with started(work) as world:
        await world.batch(*messages("x-1", "y-1"), name="one")
        await world.batch(*messages("x-2", "y-2"), name="two")
        letters = world.intake.dead_letters
        fingerprint = (await letters.show("one", "x-1")).details.fingerprint
        assert (await letters.replay(fingerprint=fingerprint)).first == (("one", "x-1"), ("two", "x-2"))
        assert (await letters.replay(epoch="one")).first == (("one", "y-1"),)
        assert (await letters.replay(since=0)).first == (("two", "y-2"),)
        assert await letters.count() == 0
        for name in ("one", "two"):
            assert (await world.intake.wait_epoch(name)).succeeded


async def test_a_dry_run_says_what_would_come_back_and_does_nothing():
    executor = Mended("a", "z")
    async with started(executor) as world:
        await world.batch(
            *messages("a", "z"), *messages("b", depends_on=["a"]), *messages("c", depends_on=["b"]), name="e"
        )
        letters = world.intake.dead_letters
        receipt = await letters.replay(epoch="e", dry_run=True)
        assert (receipt.letters, receipt.revived, receipt.followers, receipt.is_dry) == (2, 4, 2, True)
        assert receipt.first == (("e", "a"), ("e", "z"))
        gone = await letters.discard(epoch="e", reason="tidy", dry_run=True)
        assert (gone.letters, gone.is_dry) == (4, True)
        assert await letters.count() == 4
        assert await noted(letters) == []
        assert world.intake.report("e").revision == 0


async def test_a_replay_keeps_to_its_rate():
    executor = Mended(*"abcdefghij")
    async with started(executor) as world:
        await world.batch(*messages(*"abcdefghij"), name="e")
        executor.bad.clear()
        before = world.clock.wall()
        await world.intake.dead_letters.replay(epoch="e", per_second=2)
        assert 4.5 <= world.clock.wall() - before <= 5.5
        times = [each.at - before async for each in world.intake.dead_letters.audit()]
        assert all(abs(at - n / 2) < 0.01 for n, at in enumerate(times))


async def test_a_follower_is_replayed_with_its_cause_and_not_alone():
    async with started({"a": [Fatal("broken")]}) as world:
        await world.batch(*messages("b", depends_on=["a"]), *messages("a"), name="e")
        letters = world.intake.dead_letters
        with pytest.raises(ReplayInVain, match="'b' ended because of 'a' of epoch 'e'") as caught:
            await letters.replay(epoch="e", message_id="b")
        assert caught.value.causes == [("e", "a")]
        receipt = await letters.replay(epoch="e")
        assert (receipt.letters, receipt.revived, receipt.followers) == (1, 2, 1)
        assert (await world.intake.wait_epoch("e")).succeeded


async def test_a_replay_reaches_other_epochs():
    async with started({"a": [Fatal("broken")]}) as world:
        await world.batch(*messages("a"), name="one")
        report = await world.batch(*messages("b", depends_on=[Dependency.message("a", epoch="one")]), name="two")
        assert report.dead == 1
        receipt = await world.intake.dead_letters.replay(epoch="one")
        assert receipt.revived == 2
        for name in ("one", "two"):
            again = await world.intake.wait_epoch(name)
            assert (again.succeeded, again.revision) == (True, 1)


async def test_a_closure_larger_than_a_step_comes_back_whole(monkeypatch):
    monkeypatch.setattr("naviscope_ingest._kernel.repairs._STEP", 7)
    executor = Mended("root", "other")
    async with started(executor) as world:
        children = [Message(f"c{n}", None, depends_on=["root"]) for n in range(40)]
        report = await world.batch(*messages("other", "root"), *children, name="e")
        assert report.dead == 42
        executor.bad.clear()
        receipt = await world.intake.dead_letters.replay(epoch="e")
        assert (receipt.letters, receipt.revived, receipt.followers) == (2, 42, 40)
        report = await world.intake.wait_epoch("e")
        assert (report.succeeded, report.committed, report.revision) == (True, 42, 1)


async def test_letters_that_share_what_they_took_down_come_back_in_several_steps(monkeypatch):
    """What one step revived has gone on when the next is planned, and is not revived again."""
    monkeypatch.setattr("naviscope_ingest._kernel.repairs._STEP", 4)
    executor = Mended("a", "b", "c")
    async with started(executor, store=WaitingStore(TrioClock(START))) as world:
        shared = [Message(f"s{n}", None, depends_on=["a", "b", "c"]) for n in range(3)]
        await world.batch(*messages("a", "b", "c"), *shared, name="e")
        executor.bad.clear()
        receipt = await world.intake.dead_letters.replay(epoch="e", kind="message")
        assert (receipt.letters, receipt.followers) == (3, 3)
        report = await world.intake.wait_epoch("e")
        assert (report.succeeded, report.committed) == (True, 6)
        assert sorted(name for name, run, _ in executor.seen if run) == ["a", "b", "c", "s0", "s1", "s2"]


async def test_what_dies_while_a_replay_is_written_comes_back_too():
    """A child is submitted while its dead parent is being revived: it follows the end that is just being lifted."""
    executor = Mended("a")
    async with started(executor) as world:
        epoch = await world.intake.new_epoch("e")
        await epoch.submit(messages("a"))
        await world.intake.wait_idle()
        executor.bad.clear()
        membership = world.runtime._kernel._membership
        write = membership.write

        async def write_and_submit(settlement):
            settled = await write(settlement)
            membership.write = write
            await epoch.submit(messages("b", depends_on=["a"]))
            return settled

        membership.write = write_and_submit
        receipt = await world.intake.dead_letters.replay(epoch="e", message_id="a")
        assert receipt.letters == 1
        await epoch.seal()
        assert (await epoch.wait()).committed == 2


class Died(Exception):  # noqa: N818 - it is no error of ours
    """The process ends here."""


@pytest.mark.parametrize("parts", range(8))
async def test_a_replay_that_dies_between_two_writes_was_whole_or_not_at_all(monkeypatch, parts):
    """A closure of several settlements, cut off after any of them, and the runtime started again on the same store."""
    monkeypatch.setattr("naviscope_ingest._kernel.repairs._STEP", 3)
    executor = Mended("root")
    async with started(executor) as world:
        children = [Message(f"c{n}", None, depends_on=["root" if n < 5 else f"c{n - 5}"]) for n in range(15)]
        await world.batch(*messages("root"), *children, name="e")
        executor.bad.clear()
        membership, left, store = world.runtime._kernel._membership, parts, world.store
        write = membership.write

        async def write_or_die(settlement):
            nonlocal left
            if not left:
                raise Died
            left -= 1
            return await write(settlement)

        membership.write = write_or_die
        with suppress(Died):
            await world.intake.dead_letters.replay(epoch="e", message_id="root")
        membership.write = write
    async with started(executor, store=store) as world:
        report = await world.intake.wait_epoch("e")
        letters = world.intake.dead_letters
        # There are 16 messages, so 6 parts, and the letter is in the last.
        if parts < 6:
            assert (report.dead, await noted(letters), executor.seen[1:]) == (16, [], [])
            assert (await letters.replay(epoch="e", message_id="root")).revived == 16
            report = await world.intake.wait_epoch("e")
        assert report.succeeded
        assert await noted(letters) == [("replay", "root", 0)]
        assert sorted(name for name, _, _ in executor.seen[1:]) == sorted(["root", *(f"c{n}" for n in range(15))])


async def test_a_replay_that_is_cancelled_was_whole_or_not_at_all():
    """A store that takes its time, and a caller who gives up at any moment."""
    for moment in range(12):
        executor = Mended("a", "b")
        clock = TrioClock(START)
        async with started(executor, store=WaitingStore(clock)) as world:
            await world.batch(*messages("a", "b"), *messages("c", depends_on=["a"]), name="e")
            executor.bad.clear()
            letters = world.intake.dead_letters
            with trio.move_on_after(moment * 0.0005):
                await letters.replay(epoch="e")
            done = [name for _, name, _ in await noted(letters)]
            assert done in ([], ["a", "b"])
            assert (await letters.replay(epoch="e")).letters == 2 - len(done)
            report = await world.intake.wait_epoch("e")
            assert (report.succeeded, report.committed) == (True, 3)


async def test_two_who_replay_the_same_replay_each_letter_once():
    names = [f"m{n}" for n in range(250)]
    executor = Mended(*names)
    async with started(executor, store=WaitingStore(TrioClock(START))) as world:
        await world.batch(*messages(*names), name="e")
        executor.bad.clear()
        letters, receipts = world.intake.dead_letters, []

        async def replay():
            receipts.append(await letters.replay(epoch="e"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replay)
            nursery.start_soon(replay)
        assert sum(receipt.letters for receipt in receipts) == 250
        assert (await world.intake.wait_epoch("e")).succeeded
        assert sorted(name for _, name, _ in await noted(letters)) == sorted(names)
        assert len(executor.seen) == 500


async def test_an_epoch_completes_and_is_repaired_while_others_work():
    """Replays, commits and completions at once: every message commits once, and every report comes out good."""
    names = [f"m{n}" for n in range(40)]
    executor = Mended(*names)
    async with started(executor, store=WaitingStore(TrioClock(START))) as world:
        letters = world.intake.dead_letters
        await world.batch(*messages(*names), name="one")
        across = [Message(f"x-{name}", None, depends_on=[Dependency.message(name, epoch="one")]) for name in names]
        executor.bad.clear()
        epoch = await world.intake.new_epoch("two")

        async def submit():
            for message in across:
                await epoch.submit([message])
            await epoch.seal()

        async def replay():
            for name in names:
                await letters.replay(epoch="one", message_id=name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            nursery.start_soon(replay)
        for name in ("one", "two"):
            report = await world.intake.wait_epoch(name)
            assert (report.succeeded, report.committed) == (True, 40)
        assert await letters.count() == 0
        assert sorted(world.sink.ops) == sorted([*names, *(message.id for message in across)])


async def test_an_ended_message_says_how_it_is_brought_back():
    async with started({"a": Fatal("broken")}) as world:
        report = await world.batch(*messages("a"), name="e")
        with pytest.raises(EpochFailed, match=r"intake\.dead_letters shows and replays"):
            report.raise_for_failures()
        (reason,) = (await world.intake.explain("e", "a")).reasons
        assert "intake.dead_letters" in reason.release
        await world.intake.dead_letters.discard(epoch="e", message_id="a", reason="no")


async def test_an_expired_message_is_replayed_after_its_time():
    async with started() as world:
        report = await world.batch(Message("late", None, expires_at=START - 1), name="e")
        assert report.expired == 1
        letters = world.intake.dead_letters
        assert await found(letters, end="expired") == ["late"]
        await letters.replay(epoch="e")
        assert (await world.intake.wait_epoch("e")).succeeded


async def test_letters_come_back_after_a_restart():
    executor = Mended("a")
    async with started(executor) as world:
        await world.batch(*messages("a"), *messages("b", depends_on=["a"]), name="e")
        store = world.store
    executor.bad.clear()
    async with started(executor, store=store) as world:
        letters = world.intake.dead_letters
        assert await found(letters) == ["a", "b"]
        assert (await letters.replay(epoch="e")).revived == 2
        report = await world.intake.wait_epoch("e")
        assert (report.succeeded, report.revision) == (True, 1)
        assert await noted(letters) == [("replay", "a", 0)]


async def test_a_letter_pins_its_epoch_however_many_complete_after_it():
    executor = Mended("a")
    async with started(executor, keep_reports=2) as world:
        await world.batch(*messages("a"), name="pinned")
        for n in range(5):
            await world.batch(*messages("x"), name=f"e{n}")
        executor.bad.clear()
        assert (await world.intake.dead_letters.replay(epoch="pinned")).letters == 1
        assert (await world.intake.wait_epoch("pinned")).succeeded


# Editing.


@dataclass
class Line:
    amount: int


@dataclass
class Order:
    url: str
    lines: list[Line] = field(default_factory=list)


async def test_a_payload_is_edited_by_paths_and_the_original_is_kept():
    async with started({"a": [Fatal("broken"), Fatal("still")]}) as world:
        await world.batch(Message("a", Order("htp://x", [Line(1), Line(2)])), name="e")
        letters = world.intake.dead_letters
        await letters.replay(epoch="e", message_id="a", patch={"url": "http://x", "lines.1.amount": 5})
        await world.intake.wait_epoch("e")
        whole = await letters.show("e", "a")
        assert whole.payload == Order("http://x", [Line(1), Line(5)])
        assert whole.message.payload == Order("htp://x", [Line(1), Line(2)])
        (entry,) = [each async for each in letters.audit()]
        assert entry.patch == {"url": "http://x", "lines.1.amount": 5}
        await letters.replay(epoch="e", message_id="a", patch={"lines.0": {"amount": 9}})
        assert (await world.intake.wait_epoch("e")).succeeded


async def test_the_executor_gets_the_edited_payload():
    executor = Mended("a")
    async with started(executor) as world:
        await world.batch(Message("a", {"n": 1, "keep": 2}), name="e")
        await world.intake.dead_letters.replay(epoch="e", message_id="a", patch={"n": 3})
        await world.intake.wait_epoch("e")
        await world.intake.dead_letters.replay(epoch="e", message_id="a", payload={"whole": True})
        await world.intake.wait_epoch("e")
        assert [payload for _, _, payload in executor.seen] == [
            {"n": 1, "keep": 2},
            {"n": 3, "keep": 2},
            {"whole": True},
        ]


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"ulr": "x"}, "Order has no field 'ulr': did you mean 'url'"),
        ({"url": 5}, r"the result is no Order: Expected `str`, got `int`"),
        ({"lines.2.amount": 5}, "'2' is no place in a list of 2"),
        ({"lines.0.amount": "many"}, "the result is no Line: Expected `int`, got `str`"),
        ({"url.host": "x"}, "which has none"),
        ({}, "not empty"),
        ({"": 1}, "a path is names and numbers"),
    ],
)
async def test_a_patch_that_does_not_fit_changes_nothing(patch, says):
    executor = Mended("a")
    async with started(executor) as world:
        await world.batch(Message("a", Order("x", [Line(1), Line(2)])), name="e")
        letters = world.intake.dead_letters
        with pytest.raises(PatchRefused, match=says):
            await letters.replay(epoch="e", message_id="a", patch=patch)
        assert await found(letters) == ["a"]
        assert await noted(letters) == []
        assert (await letters.show("e", "a")).edited is None


async def test_a_patch_is_tried_on_all_letters_before_the_first_is_replayed():
    executor = Mended("a", "b")
    async with started(executor) as world:
        await world.batch(Message("a", {"n": 1}), Message("b", {"m": 1}), name="e")
        letters = world.intake.dead_letters
        with pytest.raises(PatchRefused, match="of message 'b' is refused: there is no key 'n'"):
            await letters.replay(epoch="e", patch={"n": 2})
        assert await found(letters) == ["a", "b"]
        with pytest.raises(PatchRefused, match="a whole payload is for one message"):
            await letters.replay(epoch="e", payload=1)
        with pytest.raises(PatchRefused, match="not both"):
            await letters.replay(epoch="e", message_id="a", payload=1, patch={"n": 2})
        with pytest.raises(PatchRefused, match="None stands for"):
            await letters.replay(epoch="e", message_id="a", payload=None)


# Discarding.


async def test_a_discarded_letter_lets_those_it_holds_follow_and_pins_nothing():
    async with started({"a": Fatal("broken")}) as world:
        epoch = await world.intake.new_epoch("e")
        await epoch.submit(messages("a"))
        await epoch.submit(messages("b", depends_on=[Dependency.message("a", otherwise="hold")]))
        await epoch.seal()
        assert (await epoch.wait(until="blocked")).is_blocked
        letters = world.intake.dead_letters
        receipt = await letters.discard(epoch="e", message_id="a", reason="nobody needs it", who="anna")
        assert (receipt.letters, receipt.first) == (1, (("e", "a"),))
        report = await epoch.wait()
        assert (report.dead, report.succeeded) == (2, False)
        assert await found(letters) == ["b"]
        with pytest.raises(UnknownLetter, match="it was discarded"):
            await letters.replay(epoch="e", message_id="a")
        await letters.discard(epoch="e", reason="nor this")
        assert world.store.statistics().letters == 0
        assert world.store.statistics().messages == 0
        assert world.intake.report("e").dead == 2
        entries = [each async for each in letters.audit(epoch="e")]
        assert [(each.who, each.reason) for each in entries] == [("anna", "nobody needs it"), ("", "nor this")]


async def test_a_discard_is_known_after_a_restart():
    async with started({"a": Fatal("broken")}) as world:
        epoch = await world.intake.new_epoch("e")
        await epoch.submit(messages("a"))
        await world.intake.wait_idle()
        await world.intake.dead_letters.discard(epoch="e", reason="no")
        store = world.store
    async with started(store=store) as world:
        epoch = await world.intake.get_epoch("e")
        await epoch.submit(messages("b", depends_on=[Dependency.message("a", otherwise="hold")]))
        await epoch.seal()
        assert (await epoch.wait()).dead == 2
        assert await found(world.intake.dead_letters) == ["b"]


# Taking letters elsewhere.


async def test_exported_letters_are_imported_elsewhere():
    async with started({"a": Fatal("broken")}) as world:
        payload = {"url": "x", "rows": [1, None, 2.5]}
        await world.batch(Message("a", payload, kind="k", key="lane", priority=3, headers={"h": "1"}), name="e")
        await world.batch(Message("b", b"\x00\xff", depends_on=["missing"]), name="f", on_unresolved="fail")
        letters = world.intake.dead_letters
        lines = [line async for line in letters.export_lines(who="anna")]
        assert [(each.action, each.messages) async for each in letters.audit()] == [("export", 2)]
        assert all(line.endswith("\n") for line in lines)
        assert json.loads(lines[0])["payload"] == {"json": payload}
    executor = Mended()
    async with started(executor) as world:
        epoch = await world.intake.new_epoch("again")
        edited = lines[0].replace('"url":"x"', '"url":"y"')
        receipt = await world.intake.dead_letters.import_lines(epoch, [edited, "\n", lines[1].encode()], reason="try")
        assert (receipt.accepted, receipt.duplicates) == (2, 0)
        await epoch.submit(messages("missing"))
        await epoch.seal()
        assert (await epoch.wait()).succeeded
        assert {name: payload for name, _, payload in executor.seen} == {
            "a": {"url": "y", "rows": [1, None, 2.5]},
            "b": b"\x00\xff",
            "missing": None,
        }
        names = [name for name, _, _ in executor.seen]
        assert names.index("missing") < names.index("b")
        (entry,) = [each async for each in world.intake.dead_letters.audit()]
        assert (entry.action, entry.epoch, entry.messages, entry.reason) == ("import", "again", 2, "try")


def line_with(**changes):
    fields = {
        "format": 1,
        "store": "s",
        "epoch": "e",
        "id": "a",
        "kind": "message",
        "payload": {"json": 1},
        "letter": {"error": "x", "tried": 1},
    }
    return json.dumps({key: value for key, value in (fields | changes).items() if value is not ...})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("not json", "line 2: it is no dead letter: JSON is malformed"),
        ("[1]", "line 2: it is no dead letter: Expected `object`"),
        (line_with(format=2), "line 2: it has format 2, and this version reads 1"),
        (line_with(id=...), "line 2: it is no dead letter: Object missing required field `id`"),
        (line_with(idd="b"), "unknown field `idd`"),
        (line_with(id=""), "line 2: "),
        (line_with(payload={}), "payload is"),
        (line_with(payload={"base64": "%%", "codec": "bytes"}), "malformed"),
        (line_with(payload={"base64": "AA==", "codec": "mine"}), "codec 'mine' wrote its payload"),
        (line_with(letter={}, depends_on=[["?", [], 1]]), "dependencies or its payload are malformed"),
        (line_with(id="first", payload={"json": 2}), "line 2: message 'first' stands in line 1 with another content"),
        (5, "line 2: it is 5"),
    ],
)
async def test_an_import_is_checked_before_anything_is_submitted(line, says):
    async with started() as world:
        epoch = await world.intake.new_epoch("e")
        with pytest.raises(ImportRefused, match=says) as caught:
            await world.intake.dead_letters.import_lines(epoch, [line_with(id="first"), line])
        assert caught.value.line == 2
        assert epoch.report.submitted == 0
        with pytest.raises(ImportRefused, match="is not lines"):
            await world.intake.dead_letters.import_lines(epoch, line_with())


# Bad input.


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"epocj": "e"}, "epocj: there is no such filter: did you mean 'epoch'"),
        ({"colour": "red"}, "there are epoch, message_id"),
        ({"error_kind": "time_out"}, "did you mean 'timeout'"),
        ({"end": "skipped"}, "there is no 'skipped'"),
        ({"since": "yesterday"}, "give seconds since the Unix epoch"),
        ({"kind": 5}, "give a text"),
        ({"epoch": 5.5}, "give the name of an epoch, or its handle"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(where, says):
    async with started() as world:
        letters = world.intake.dead_letters
        with pytest.raises(InvalidFilter, match=says):
            letters.find(**where)
        for call in (letters.count, letters.groups, letters.replay):
            with pytest.raises(InvalidFilter, match=says):
                await call(**where)
        with pytest.raises(InvalidFilter, match=says):
            await letters.discard(reason="x", **where)
        with pytest.raises(InvalidFilter, match=says):
            letters.export_lines(**where)


async def test_what_has_no_letter_is_refused_with_how_it_stands():
    async with started({"bad": Fatal("x")}) as world:
        await world.batch(*messages("fine", "bad"), name="e")
        letters = world.intake.dead_letters
        for name, says in (("fine", "it committed"), ("nobody", "there is no such message")):
            for call in (letters.show("e", name), letters.replay(epoch="e", message_id=name)):
                with pytest.raises(UnknownLetter, match=says):
                    await call
            with pytest.raises(UnknownLetter, match=says):
                await letters.discard(epoch="e", message_id=name, reason="x")
        with pytest.raises(UnknownEpoch):
            await letters.replay(epoch="nowhere")
        with pytest.raises(InvalidFilter, match="name what to replay"):
            await letters.replay()
        with pytest.raises(InvalidFilter, match="name what to discard"):
            await letters.discard(reason="x")
        with pytest.raises(InvalidFilter, match="say why"):
            await letters.discard(epoch="e", reason=" ")
        for rate in (0, -1, "fast", float("nan")):
            with pytest.raises(InvalidFilter, match="per_second"):
                await letters.replay(epoch="e", per_second=rate)
        assert await found(letters) == ["bad"]
        assert await noted(letters) == []


async def test_audit_entries_are_kept_until_they_are_deleted():
    executor = Mended("a")
    async with started(executor) as world:
        await world.batch(*messages("a"), name="e")
        letters = world.intake.dead_letters
        for _ in range(3):
            await trio.sleep(10)
            await letters.replay(epoch="e")
            await world.intake.wait_epoch("e")
        entries = [each async for each in letters.audit()]
        assert await letters.forget_audit(entries[2].at) == 2
        assert await noted(letters) == [("replay", "a", 2)]
        assert await noted(letters, since=entries[2].at) == [("replay", "a", 2)]
        assert await noted(letters, since=entries[2].at + 1) == []
