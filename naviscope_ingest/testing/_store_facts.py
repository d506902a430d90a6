"""Promises of a store about its feed of facts: recovery, news and their order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import trio
import trio.testing
from attrs import evolve

from naviscope_ingest.testing._promises import Promise
from naviscope_ingest.testing._store_trial import FactReader, StoreTrial
from naviscope_ingest.testing._view import View
from naviscope_spi import (
    Accepted,
    CaughtUp,
    Committed,
    Dependency,
    Derived,
    Ended,
    EpochChange,
    EpochKey,
    EpochMarked,
    Provided,
    Resource,
    Session,
    Settlement,
    Waits,
)

__all__ = ["FACT_PROMISES"]


async def a_recovery_ends_with_caught_up(trial: StoreTrial) -> None:
    """A recovery, also of an empty store, ends with one CaughtUp; what was known comes before it."""
    for expected in ([], ["a"], ["a", "b"]):
        async with trial.reading() as reader:
            bodies = [fact.body for batch in reader.batches for fact in batch]
            trial.equal([type(body) for body in bodies].count(CaughtUp), 1, "CaughtUp facts")
            trial.true(isinstance(bodies[-1], CaughtUp), "CaughtUp at the end", bodies[-1])
            names = [message.id for _, message in reader.view.messages.values()]
            trial.equal(names, expected, "messages before CaughtUp")
        await trial.put(await trial.epoch("nightly"), "ab"[len(expected) : len(expected) + 1] or "c")


async def news_come_in_commit_order(trial: StoreTrial) -> None:
    """News come in the order of the steps; all facts of one step have one position and come in one batch."""
    async with trial.reading() as reader:
        after = len(reader.batches)
        epoch = await trial.epoch("nightly")
        async with trial.join() as session:
            (a,) = await trial.put(epoch, "a")
            ready = [(None, Resource("r"))]
            leases = await trial.claim(session, [a])
            derived = [Derived(a, [trial.message("b")])]
            settled = await trial.settle(session, Settlement(committed=leases, derived=derived, ready=ready))
            await trial.store.mark_epoch(epoch, "seal")
        await reader.until(lambda view: view.state(epoch) == "sealed")
    batches = reader.batches[after:]
    positions = [fact.position for batch in batches for fact in batch]
    trial.true(all(a <= b for a, b in pairwise(positions)), "positions that never go back", positions)
    trial.true(all(batches), "no empty batch", "an empty batch")
    trial.true(
        all(a[-1].position < b[0].position for a, b in pairwise(batches)),
        "each step in one batch",
        [[fact.position for fact in batch] for batch in batches],
    )
    step = {type(fact.body) for batch in batches for fact in batch if fact.position == settled.position}
    trial.equal(step, {Accepted, Committed, Provided}, "facts at the position of the settlement")


async def facts_of_messages_say_when(trial: StoreTrial) -> None:
    """Messages are told with the wall-clock time of their acceptance, the same as news and in a recovery."""
    async with trial.reading() as reader:
        epoch = await trial.epoch()
        (a,) = await trial.put(epoch, "a")
        await reader.message(a)
        news = _accepted_at(reader)
    async with trial.reading() as reader:
        trial.equal(_accepted_at(reader), news, "time of acceptance")
    trial.true(bool(news) and news[0] > 0, "a time", news)


def _accepted_at(reader: FactReader) -> list[float]:
    return [fact.body.at for batch in reader.batches for fact in batch if isinstance(fact.body, Accepted)]


async def a_waiting_reader_wakes(trial: StoreTrial) -> None:
    """A reader that waits gets news when they come, and every reader gets them."""
    woken: list[int] = []
    epoch = await trial.epoch()

    async def read(number: int) -> None:
        async with trial.reading() as reader:
            await reader.until(lambda view: view.ids(epoch) == ["a"])
            woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(read, number)
        await trio.testing.wait_all_tasks_blocked()
        trial.equal(woken, [], "readers that woke before there were news")
        await trial.put(epoch, "a")
    trial.equal(sorted(woken), [0, 1, 2])


async def a_position_goes_on(trial: StoreTrial) -> None:
    """A reader that comes back with its last position misses nothing, be it by news or by a new recovery."""
    epoch = await trial.epoch("nightly")
    view = await trial.view()
    for name in "abc":
        (seq,) = await trial.put(epoch, name)
        async with trial.going_on(view, view.position) as reader:
            await reader.message(seq)
    async with trial.going_on(view, view.position) as reader:
        (seq,) = await trial.put(epoch, "d")
        await reader.message(seq)
    trial.equal(view.ids(epoch), ["a", "b", "c", "d"])


async def a_cancelled_reader_misses_nothing(trial: StoreTrial) -> None:
    """A reader that was cancelled while it waited goes on from its position."""
    epoch = await trial.epoch("nightly")
    async with trial.reading() as reader:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.until, lambda view: bool(view.messages))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        (seq,) = await trial.put(epoch, "a")
    async with trial.going_on(reader.view, reader.view.position) as reader:
        await reader.message(seq)


async def a_recovery_tells_the_ends_that_are_named(trial: StoreTrial) -> None:
    """A recovery tells the ends of the messages that an unfinished one names, directly or in a group."""
    one, other = await trial.epoch("one"), await trial.epoch("other")
    a, b, c = await trial.put(one, "a", "b", "c")
    (d,) = await trial.put(other, "d")
    far = Dependency.message("d", "other")
    group = Dependency.any_of("c", Dependency.any_of(far, "x"))
    (w,) = (await trial.store.put(one, [trial.message("w", depends_on=["a", "b", group])])).accepted
    async with trial.join() as session:
        await trial.commit(session, a, d)
        await trial.settle(session, Settlement(ended=[Ended(b, "skipped"), Ended(c, "dead", letter=b"why")]))
    view = await trial.view()
    trial.equal(view.ends, {a: "committed", b: "skipped", c: "dead", d: "committed"})
    trial.equal([view.messages[seq][1].id for seq in (a, b, c, d, w)], ["a", "b", "c", "d", "w"], "messages")


async def a_recovery_tells_added_dependencies(trial: StoreTrial) -> None:
    """A recovery tells dependencies that a deferral added, and the ends of the messages they name."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as session:
        await trial.commit(session, a)
        await trial.claim(session, [b])
        await trial.settle(session, Settlement(waits=[Waits(b, depends_on=("a", Dependency.resource("r", 2)))]))
    view = await trial.view()
    trial.equal((view.added[b], view.ends.get(a)), (("a", Dependency.resource("r", 2)), "committed"))


async def a_recovery_tells_the_run_that_ended(trial: StoreTrial) -> None:
    """A message that ended after a replay is told with its run, so that the next replay can name a higher one."""
    epoch = await trial.epoch()
    (a,) = await trial.put(epoch, "a")
    await trial.store.put(epoch, [trial.message("w", depends_on=["a"])])
    async with trial.join() as session:
        for run in (1, 2):
            await trial.settle(session, Settlement(ended=[Ended(a, "dead")]))
            await trial.settle(session, Settlement(waits=[Waits(a, run=run)]))
        await trial.settle(session, Settlement(ended=[Ended(a, "dead", letter=b"again")]))
        view = await trial.view()
        trial.equal((view.run(a), view.ends.get(a)), (2, "dead"), "run and end")
        await trial.settle(session, Settlement(waits=[Waits(a, run=3)]))


async def a_completion_is_told_with_the_last_end(trial: StoreTrial) -> None:
    """A settlement that ends the last message and completes its epoch tells both at one position, with the report."""
    epoch = await trial.epoch("nightly")
    (a,) = await trial.put(epoch, "a")
    await trial.store.mark_epoch(epoch, "seal")
    async with trial.reading() as reader, trial.join() as session:
        leases = await trial.claim(session, [a])
        change = EpochChange(epoch, "completed", b"report")
        settled = await trial.settle(session, Settlement(committed=leases, epochs=[change]))
        await reader.until(lambda view: view.state(epoch) == "completed")
    step = [fact.body for batch in reader.batches for fact in batch if fact.position == settled.position]
    trial.equal({type(body) for body in step}, {Committed, EpochMarked}, "facts at the position of the settlement")
    trial.equal(reader.view.epochs[epoch.number].report, b"report", "the report that is told")


async def news_and_recovery_agree(trial: StoreTrial) -> None:
    """A reader of all news and a reader that recovers afterwards know the same of what has not ended."""
    async with trial.reading() as reader:
        one, other = await trial.epoch("one"), await trial.epoch("other")
        async with trial.join() as session:
            await _work(trial, session, one, other)
            # The last step is one that every reader can see.
            await reader.up_to(await trial.store.notify_ready([Resource("last")]))
            trial.equal(_known(reader.view), _known(await trial.view()))


async def _work(trial: StoreTrial, session: Session, one: EpochKey, other: EpochKey) -> None:
    """Do something of everything."""
    a, b, c, d = await trial.put(one, "a", "b", "c", "d")
    e, f = await trial.put(other, "e", "f")
    await trial.commit(session, a, derived=[Derived(a, [trial.message("a1")], ready=[Resource("table", 2)])])
    (lease,) = await trial.claim(session, [b])
    await trial.store.put(one, [trial.message("b1"), trial.message("b2")], staged_by=lease)
    await trial.settle(session, Settlement(committed=[lease], derived=[Derived(b, staged=2)], values={b: b"v"}))
    await trial.claim(session, [c, e])
    await trial.settle(session, Settlement(waits=[Waits(c, depends_on=("a", "x"), not_before=5.0, attempt=1)]))
    await trial.settle(session, Settlement(ended=[Ended(d, "dead", letter=b"why"), Ended(f, "skipped")]))
    await trial.settle(session, Settlement(waits=[Waits(d, run=1)]))
    await trial.store.mark_epoch(other, "cancel")
    await trial.settle(session, Settlement(ready=[(one.number, Resource("count", add=3))]))
    await trial.store.notify_ready([Resource("file", 7, value=b"path")])


def _known(view: View) -> dict[str, object]:
    unfinished = view.unfinished
    # A recovery tells added dependencies at once, news one by one: they are compared on their own.
    waits = {seq: evolve(view.waits[seq], depends_on=None) for seq in unfinished & view.waits.keys()}
    return {
        "epochs": view.epochs,
        "unfinished": sorted(
            (key.number, seq, message.id) for seq in unfinished for key, message in [view.messages[seq]]
        ),
        "waits": waits,
        "added": {seq: view.added[seq] for seq in unfinished & view.added.keys()},
        "resources": view.resources,
    }


FACT_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(a_recovery_ends_with_caught_up),
    Promise(news_come_in_commit_order),
    Promise(facts_of_messages_say_when),
    Promise(a_waiting_reader_wakes),
    Promise(a_position_goes_on),
    Promise(a_cancelled_reader_misses_nothing),
    Promise(a_recovery_tells_the_ends_that_are_named),
    Promise(a_recovery_tells_added_dependencies),
    Promise(a_recovery_tells_the_run_that_ended),
    Promise(a_completion_is_told_with_the_last_end),
    Promise(news_and_recovery_agree),
)
