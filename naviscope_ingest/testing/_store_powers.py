"""Promises of the optional powers of a store, and of one that outlives its process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naviscope_ingest.testing._promises import Promise
from naviscope_ingest.testing._store_trial import StoreTrial, is_durable
from naviscope_ingest.testing._view import content
from naviscope_spi import (
    AnswersAtOnce,
    Dependency,
    Ended,
    PartlyRefused,
    Record,
    Resource,
    Session,
    SessionLost,
    Settlement,
    SupportsColocation,
    SupportsLetters,
    SupportsRecords,
    SupportsRetention,
    SupportsVerify,
    SupportsVisits,
    Waits,
)

__all__ = ["POWER_PROMISES"]

_LONG_AGO, _FAR_AHEAD = 0.0, 1e12


async def steps_that_do_not_wait_are_the_same_steps(trial: StoreTrial) -> None:
    """`pop_ready_nowait` and `commit_nowait` claim, commit and refuse as `pop_ready` and `settle` do."""
    store = trial.store
    assert isinstance(store, AnswersAtOnce)
    epoch = await trial.epoch()
    a, b, c = await trial.put(epoch, "a", "b", "c")
    async with trial.join() as session:
        leases = list(store.pop_ready_nowait(session, [b, a]))
        trial.equal([lease.seq for lease in leases], [b, a], "claimed, in order")
        trial.equal(list(await store.pop_ready(session, [a, b])), [], "claimed again")
        trial.equal(list(store.commit_nowait(session, leases[:1])), [], "refused")
        trial.equal(list(store.commit_nowait(session, leases)), [b], "refused the second time")
        await trial.settle(session, Settlement(committed=leases), refused=[b, a])
        (third,) = await trial.claim(session, [c])
        await trial.settle(session, Settlement(waits=[Waits(c)]))
        trial.equal(list(store.commit_nowait(session, [third])), [c], "refused without a live lease")
    trial.equal((await trial.view()).unfinished, {c}, "unfinished messages")
    await trial.raises(SessionLost, lambda: _at_once(store, session), "a claim of a session that left")


async def _at_once(store: AnswersAtOnce[Any], session: Session) -> object:
    return store.pop_ready_nowait(session, [])


async def records_are_read_back(trial: StoreTrial) -> None:
    """`read` returns the last value of each key that exists; None deletes; spaces are apart."""
    store = trial.store
    assert isinstance(store, SupportsRecords)
    async with trial.join() as session:
        records = [
            Record("s", "a", b"1"),
            Record("s", "b", b"\x00"),
            Record("t", "a", b"other"),
            Record("s", "a", b"2"),
        ]
        await trial.settle(session, Settlement(records=records))
        trial.equal(dict(await store.read("s", ["b", "a", "x"])), {"a": b"2", "b": b"\x00"}, "written")
        await trial.settle(session, Settlement(records=[Record("s", "a", None), Record("s", "x", None)]))
        trial.equal(dict(await store.read("s", ["a", "b"])), {"b": b"\x00"}, "deleted")
    trial.equal(dict(await store.read("t", ["a"])), {"a": b"other"}, "another space")
    trial.equal(dict(await store.read("nowhere", ["a"])), {}, "an unknown space")


async def records_ride_with_what_counts(trial: StoreTrial) -> None:
    """Records of a settlement whose messages are all refused are left out."""
    store = trial.store
    assert isinstance(store, SupportsRecords)
    (a,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as session:
        leases = await trial.claim(session, [a])
        await trial.settle(session, Settlement(committed=leases, records=[Record("s", "offset", b"1")]))
        await trial.settle(session, Settlement(records=[Record("s", "offset", b"2")]))
        late = Settlement(committed=leases, records=[Record("s", "offset", b"1")])
        await trial.settle(session, late, refused=[a])
    trial.equal(dict(await store.read("s", ["offset"])), {"offset": b"2"})


async def records_are_read_in_order(trial: StoreTrial) -> None:
    """`scan` returns the records of a space in order of their keys, page by page."""
    store = trial.store
    assert isinstance(store, SupportsRecords)
    keys = ["b", "a", "10", "9", "\u00e9", "\U0001f600", "\uffff", "B"]
    async with trial.join() as session:
        await trial.settle(session, Settlement(records=[Record("s", key, key.encode()) for key in keys]))
        await trial.settle(session, Settlement(records=[Record("t", "c", b"other")]))
    seen: list[str] = []
    while page := await store.scan("s", after=seen[-1] if seen else "", limit=3):
        trial.equal([key.encode() for key, _ in page], [value for _, value in page], "keys and values")
        trial.true(len(page) <= 3, "at most 3 records in a page of 3", len(page))
        seen += [key for key, _ in page]
    trial.equal(seen, sorted(keys), "the keys of all pages")
    trial.equal(list(await store.scan("nowhere")), [], "an unknown space")


async def letters_are_read_in_pages(trial: StoreTrial) -> None:
    """`letters` returns messages that ended dead or expired, in order of place, of one epoch or of all."""
    store = trial.store
    assert isinstance(store, SupportsLetters)
    one, two = await trial.epoch("one"), await trial.epoch("two")
    a, b, c = await trial.put(one, "a", "b", "c")
    (x,) = await trial.put(two, "x")
    d, e, f = await trial.put(one, "d", "e", "f")
    async with trial.join() as session:
        await trial.commit(session, a)
        ended = [Ended(f, "expired"), Ended(x, "dead", letter=b"x"), Ended(c, "skipped"), Ended(d, "cancelled")]
        await trial.settle(session, Settlement(ended=[*ended, Ended(b, "dead", causes=[x], letter=b"\xff\x00")]))
        trial.equal([each.seq for each in await store.letters()], [b, x, f], "all of them")
        trial.equal([each.seq for each in await store.letters(epoch=one.number)], [b, f], "those of one epoch")
        trial.equal([each.seq for each in await store.letters(limit=2)], [b, x], "the first page")
        trial.equal([each.seq for each in await store.letters(after=x, limit=2)], [f], "the next page")
        trial.equal([each.seq for each in await store.letters(epoch=one.number, after=b)], [f], "after the first")
        trial.equal(list(await store.letters(after=f)), [], "after the last")
        trial.equal(list(await store.letters(epoch=two.number + 1)), [], "those of an unknown epoch")
        first, other, _ = await store.letters()
        trial.equal((first.epoch, other.epoch, first.message.id, first.run), (one, two, "b", 0), "two letters")
        told = (first.ended.end, list(first.ended.causes), first.ended.letter, first.ended.discarded)
        trial.equal(told, ("dead", [x], b"\xff\x00", False), "the end of the first")
        trial.equal([await store.letter(each) for each in (a, c, d, e)], [None] * 4, "letters of the others")


async def a_letter_has_the_message_as_it_was_submitted(trial: StoreTrial) -> None:
    """`letter` returns the message untouched, and beside it the payload that a replay gave it."""
    store = trial.store
    assert isinstance(store, SupportsLetters)
    epoch = await trial.epoch()
    given = trial.message("a", 1, kind="k", key="lane", depends_on=["z"], priority=2, headers={"trace": "1"})
    (a,) = (await store.put(epoch, [given])).accepted
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "dead", letter=b"first")]))
        letter = await store.letter(a)
        assert letter is not None
        trial.equal((content(letter.message), letter.edited), (content(given), None), "the message")
        await trial.settle(session, Settlement(waits=[Waits(a, run=1, payload=trial.payload(2))]))
        trial.equal(
            (await store.letter(a), list(await store.letters())), (None, []), "the letter of a replayed message"
        )
        await trial.settle(session, Settlement(ended=[Ended(a, "expired", letter=b"second")]))
        letter = await store.letter(a)
        assert letter is not None and letter.edited is not None
        trial.equal((content(letter.message), letter.run), (content(given), 1), "the message, and the run that ended")
        trial.equal((letter.ended.end, letter.ended.letter), ("expired", b"second"), "its end")
        trial.equal(letter.edited.payload, trial.payload(2), "the payload of the replay")
        (page,) = await store.letters()
        trial.equal((page.seq, page.run, page.ended), (a, 1, letter.ended), "the letter in a page")


async def a_discarded_letter_is_gone(trial: StoreTrial) -> None:
    """A letter that was discarded is not read any more; the others are."""
    store = trial.store
    assert isinstance(store, SupportsLetters)
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "dead"), Ended(b, "dead")]))
        await trial.settle(session, Settlement(ended=[Ended(a, "dead", discarded=True)]))
    trial.equal((await store.letter(a), [each.seq for each in await store.letters()]), (None, [b]))


async def a_discarded_letter_pins_nothing(trial: StoreTrial) -> None:
    """An epoch whose dead letters were all discarded is pruned like any other."""
    store = trial.store
    assert isinstance(store, SupportsRetention)
    epoch = await trial.epoch("failed")
    a, b = await trial.put(epoch, "a", "b")
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "dead"), Ended(b, "expired")]))
        await trial.settle(session, Settlement(ended=[Ended(a, "dead", discarded=True)]))
        await store.mark_epoch(epoch, "seal")
        await trial.complete(session, epoch)
        await _prune_all(trial, store)
        trial.equal((await trial.record(epoch)).key, epoch, "the epoch of that name, with one letter left")
        await trial.settle(session, Settlement(ended=[Ended(b, "expired", discarded=True)]))
        await _prune_all(trial, store)
    trial.true((await trial.epoch("failed")).number > epoch.number, "a new epoch of that name", "the old one")


async def letters_are_there_after_reopening(trial: StoreTrial) -> None:
    """Dead letters, and that some were discarded, outlive the process."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    await trial.store.put(epoch, [trial.message("c", depends_on=["a", "b"])])
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "dead", letter=b"why"), Ended(b, "dead")]))
        await trial.settle(session, Settlement(ended=[Ended(b, "dead", discarded=True)]))
    await trial.reopen()
    store = trial.store
    assert isinstance(store, SupportsLetters)
    trial.equal([(each.seq, each.ended.letter) for each in await store.letters()], [(a, b"why")], "letters")
    view = await trial.view()
    trial.equal([view.ended[each].discarded for each in (a, b)], [False, True], "whether they were discarded")


async def pruning_forgets_completed_epochs(trial: StoreTrial) -> None:
    """`prune` removes epochs completed before a time; their names are free, and their numbers are not used again."""
    store = trial.store
    assert isinstance(store, SupportsRetention)
    unfinished, done = await trial.epoch("unfinished"), await trial.epoch("done")
    async with trial.join() as session:
        (a,) = await trial.put(done, "a")
        await trial.put(unfinished, "a")
        await trial.commit(session, a)
        await store.mark_epoch(done, "seal")
        await trial.complete(session, done)
    trial.equal(await store.prune(_LONG_AGO, 100), 0, "removed with a time long ago")
    await _prune_all(trial, store)
    view = await trial.view()
    trial.equal(set(view.epochs), {unfinished.number}, "epochs that are left")
    trial.equal(view.ids(unfinished), ["a"], "messages of the unfinished epoch")
    again = await trial.epoch("done")
    trial.true(again.number > done.number, f"a number above {done.number}", again.number)


async def pruning_spares_dead_letters(trial: StoreTrial) -> None:
    """An epoch with a dead message is not pruned."""
    store = trial.store
    assert isinstance(store, SupportsRetention)
    epoch = await trial.epoch("failed")
    (a,) = await trial.put(epoch, "a")
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "dead", letter=b"why")]))
        await store.mark_epoch(epoch, "seal")
        await trial.complete(session, epoch)
        await _prune_all(trial, store)
        trial.equal((await trial.record(epoch)).key, epoch, "the epoch of that name")
        await trial.settle(session, Settlement(waits=[Waits(a, run=1)]))


async def _prune_all(trial: StoreTrial, store: SupportsRetention) -> None:
    for _ in range(100):
        removed = await store.prune(_FAR_AHEAD, 1)
        trial.true(0 <= removed <= 1, "at most 1 row in a step of 1", removed)
        if not removed:
            return
    trial.fail("it goes on", "pruning comes to an end")


async def a_sound_store_verifies(trial: StoreTrial) -> None:
    """`verify` finds nothing wrong with a store that nobody tampered with."""
    store = trial.store
    assert isinstance(store, SupportsVerify)
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as session:
        await trial.commit(session, a)
        await trial.settle(session, Settlement(ended=[Ended(b, "dead")], ready=[(None, Resource("r"))]))
    trial.equal(list(await store.verify()), [])


async def a_colocated_settlement_is_one_step(trial: StoreTrial) -> None:
    """`settle_with` calls `apply` once inside its transaction; if that raises, nothing happened."""
    store = trial.store
    assert isinstance(store, SupportsColocation)
    (a,) = await trial.put(await trial.epoch(), "a")
    calls: list[Any] = []

    def refuse(transaction: object) -> None:
        raise LookupError

    async with trial.join() as session:
        settlement = Settlement(committed=await trial.claim(session, [a]))
        await trial.raises(LookupError, lambda: store.settle_with(session, settlement, refuse))
        trial.equal((await trial.view()).unfinished, {a}, "unfinished after apply raised")
        settled = await store.settle_with(session, settlement, calls.append)
        trial.equal((list(settled.refused), len(calls)), ([], 1), "refused messages and calls of apply")
    trial.equal((await trial.view()).unfinished, set(), "unfinished afterwards")


async def a_colocated_settlement_writes_for_all_or_none(trial: StoreTrial) -> None:
    """`settle_with` does nothing if some of its messages are refused, and does not call `apply` if all are."""
    store = trial.store
    assert isinstance(store, SupportsColocation)
    a, b = await trial.put(await trial.epoch(), "a", "b")
    calls: list[Any] = []
    async with trial.join() as session:
        leases = await trial.claim(session, [a, b])
        await trial.settle(session, Settlement(committed=leases[:1]))
        both = Settlement(committed=leases)
        error = await trial.raises(PartlyRefused, lambda: store.settle_with(session, both, calls.append))
        trial.equal(list(getattr(error, "refused", [])), [a], "the places that the error names")
        trial.equal(((await trial.view()).unfinished, calls), ({b}, []), "unfinished messages, and calls of apply")
        settled = await store.settle_with(session, Settlement(committed=leases[:1]), calls.append)
        trial.equal((list(settled.refused), calls), ([a], []), "refused messages and calls of apply, of a repetition")
        await store.settle_with(session, Settlement(committed=leases[1:]), calls.append)
        trial.equal(len(calls), 1, "calls of apply for the rest")


async def everything_is_there_after_reopening(trial: StoreTrial) -> None:
    """A durable store that was closed and is opened again has everything, and uses no number twice."""
    info = trial.store.info
    epoch = await trial.epoch("nightly")
    given = trial.message("b", 5, depends_on=["a", Dependency.resource("r", 2)], headers={"trace": "1"})
    (a,) = await trial.put(epoch, "a")
    (b,) = (await trial.store.put(epoch, [given])).accepted
    opened_at = (await trial.record(epoch)).opened_at
    async with trial.join() as former:
        await trial.commit(former, a)
        await trial.claim(former, [b])
        await trial.settle(former, Settlement(waits=[Waits(b, attempt=2)], ready=[(epoch.number, Resource("r", 1))]))
        await trial.store.notify_ready([Resource("global", 3, value=b"v")])
    await trial.reopen()
    trial.equal(trial.store.info.store_id, info.store_id, "store_id")
    trial.equal(await trial.epoch("nightly"), epoch, "the epoch of that name")
    trial.equal((await trial.record(epoch)).opened_at, opened_at, "opened_at")
    view = await trial.view()
    trial.equal((view.unfinished, view.ends.get(a)), ({b}, "committed"), "unfinished messages, and the end of a")
    versions = (view.version("r", epoch.number), view.version("global"), view.resources[None, "global"].value)
    trial.equal(versions, (1, 3, b"v"), "resources")
    (c,) = await trial.put(epoch, "c")
    trial.true(c > b, f"a place above {b}", c)
    trial.true((await trial.epoch()).number > epoch.number, f"a number above {epoch.number}", "a lower one")
    again = await trial.store.put(epoch, [trial.message("a"), given])
    trial.equal((again.duplicates, list(again.conflicts)), (2, []), "duplicates and conflicts")
    async with trial.join() as session:
        trial.true(session.token != former.token, "a new token", session.token)
        (lease,) = await trial.claim(session, [b])
        trial.equal((lease.attempt, content(lease.message)), (2, content(given)), "the lease")


async def a_visit_hides_no_crash(trial: StoreTrial) -> None:
    """A visitor settles in place of a session that died; the next to join learns of that session as if without it."""
    store = trial.store
    assert isinstance(store, SupportsVisits)
    a, b, c = await trial.put(await trial.epoch(), "a", "b", "c")
    async with trial.join() as former:
        await trial.claim(former, [a])
        async with store.visit("visitor") as visitor:
            trial.equal(visitor.token, former.token, "the token of the visitor")
            await trial.settle(visitor, Settlement(ended=[Ended(b, "cancelled")]))
        trial.equal(set((await trial.view()).leases), {a}, "leases after the visit")
        async with trial.join() as session:
            (lease,) = await trial.claim(session, [a])
            trial.equal(lease.crashes, 1, "crashes of what ran alone")
    async with store.visit("visitor") as visitor:
        await trial.settle(visitor, Settlement(ended=[Ended(c, "cancelled")]))
    await trial.raises(SessionLost, lambda: store.settle(visitor, Settlement()), "a visitor that left")
    trial.equal((await trial.view()).ends.get(c), "cancelled", "the end of c")


def _supports(power: type) -> Any:  # noqa: ANN401 - a predicate for any trial
    return lambda trial: isinstance(trial.store, power)


POWER_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(steps_that_do_not_wait_are_the_same_steps, when=_supports(AnswersAtOnce)),
    Promise(records_are_read_back, when=_supports(SupportsRecords)),
    Promise(records_ride_with_what_counts, when=_supports(SupportsRecords)),
    Promise(records_are_read_in_order, when=_supports(SupportsRecords)),
    Promise(letters_are_read_in_pages, when=_supports(SupportsLetters)),
    Promise(a_letter_has_the_message_as_it_was_submitted, when=_supports(SupportsLetters)),
    Promise(a_discarded_letter_is_gone, when=_supports(SupportsLetters)),
    Promise(pruning_forgets_completed_epochs, when=_supports(SupportsRetention)),
    Promise(pruning_spares_dead_letters, when=_supports(SupportsRetention)),
    Promise(a_discarded_letter_pins_nothing, when=_supports(SupportsRetention)),
    Promise(a_sound_store_verifies, when=_supports(SupportsVerify)),
    Promise(a_visit_hides_no_crash, when=_supports(SupportsVisits)),
    Promise(a_colocated_settlement_is_one_step, when=_supports(SupportsColocation)),
    Promise(a_colocated_settlement_writes_for_all_or_none, when=_supports(SupportsColocation)),
    Promise(everything_is_there_after_reopening, when=is_durable),
    Promise(
        letters_are_there_after_reopening, when=lambda trial: is_durable(trial) and _supports(SupportsLetters)(trial)
    ),
)
