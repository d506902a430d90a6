"""Promises of a store about epochs."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from naviscope_ingest.testing._promises import Promise
from naviscope_ingest.testing._store_trial import StoreTrial
from naviscope_spi import (
    Ended,
    EpochChange,
    EpochExists,
    EpochKey,
    EpochOptions,
    Resource,
    Settlement,
    UnknownEpoch,
    Waits,
)

__all__ = ["EPOCH_PROMISES"]

_NOWHERE = EpochKey(2**31, "nowhere")


async def info_stays_the_same(trial: StoreTrial) -> None:
    """`info` is constant, and its store_id has no colon, which parts task keys."""
    info = trial.store.info
    trial.true(bool(info.store_id) and ":" not in info.store_id, "a store_id without a colon", info.store_id)
    trial.true(info.durability in ("none", "process", "power"), "none, process or power", info.durability)
    await trial.epoch()
    trial.equal(trial.store.info, info)


async def a_new_store_is_empty(trial: StoreTrial) -> None:
    """A store that is opened under a new name has no epochs, messages or resources."""
    view = await trial.view()
    trial.equal((view.epochs, view.messages, view.resources), ({}, {}, {}))


async def every_epoch_gets_a_number_and_a_name(trial: StoreTrial) -> None:
    """Every epoch has a number and a name of its own; one that is opened without a name gets one."""
    keys = [await trial.epoch("nightly"), await trial.epoch(), await trial.epoch(), await trial.epoch("daily")]
    trial.equal([keys[0].name, keys[3].name], ["nightly", "daily"])
    trial.equal(len({key.number for key in keys}), 4, "different numbers")
    trial.equal(len({key.name for key in keys}), 4, "different names")
    trial.equal((await trial.record(keys[1])).state, "open")


async def a_name_rejoins_its_epoch(trial: StoreTrial) -> None:
    """A kept name rejoins its epoch in whatever state it is, with the options it was opened with."""
    options = EpochOptions(deadline=2e9, on_unresolved="wait", retain=60.0, weight=3)
    opened = await trial.store.open_epoch("nightly", options)
    trial.equal((opened.state, opened.options, opened.cancel_requested), ("open", options, False))
    await trial.store.mark_epoch(opened.key, "seal")
    again = await trial.store.open_epoch("nightly", EpochOptions())
    trial.equal((again.key, again.state, again.options), (opened.key, "sealed", options))


async def a_taken_name_can_be_refused(trial: StoreTrial) -> None:
    """`if_exists="refuse"` opens a new name and raises EpochExists for a taken one."""
    refuse = EpochOptions(if_exists="refuse")
    await trial.store.open_epoch("nightly", refuse)
    await trial.raises(EpochExists, lambda: trial.store.open_epoch("nightly", refuse))


async def marks_seal_and_can_be_repeated(trial: StoreTrial) -> None:
    """Sealing and cancelling both seal, return the epoch, and change nothing the second time."""
    sealed, cancelled = await trial.epoch("sealed"), await trial.epoch("cancelled")
    for _ in range(2):
        record = await trial.store.mark_epoch(sealed, "seal")
        trial.equal((record.key, record.state, record.cancel_requested), (sealed, "sealed", False), "sealed")
    for _ in range(2):
        record = await trial.store.mark_epoch(cancelled, "cancel")
        trial.equal((record.key, record.state, record.cancel_requested), (cancelled, "sealed", True), "cancelled")
    record = await trial.store.mark_epoch(cancelled, "seal")
    trial.equal((record.state, record.cancel_requested), ("sealed", True), "sealed after it was cancelled")
    trial.equal((await trial.view()).epochs[cancelled.number], record, "as facts tell it")


async def an_epoch_knows_its_times(trial: StoreTrial) -> None:
    """An epoch has the time at which it was opened and the first time it was sealed, and keeps them for good."""
    opened = await trial.store.open_epoch("nightly", EpochOptions())
    trial.true(opened.opened_at is not None, "a time for opened_at", opened.opened_at)
    trial.equal(opened.sealed_at, None, "sealed_at of an open epoch")
    sealed = await trial.store.mark_epoch(opened.key, "seal")
    trial.true(sealed.sealed_at is not None, "a time for sealed_at", sealed.sealed_at)
    times = (opened.opened_at, sealed.sealed_at)
    await trial.store.mark_epoch(opened.key, "cancel")
    async with trial.join() as session:
        await trial.complete(session, opened.key)
    record = await trial.record(opened.key)
    trial.equal((record.opened_at, record.sealed_at), times, "the times of a completed epoch")
    trial.equal((await trial.view()).epochs[opened.key.number], record, "as facts tell it")


async def an_unknown_epoch_is_refused(trial: StoreTrial) -> None:
    """Marking an unknown epoch, or putting into one, raises UnknownEpoch."""
    await trial.raises(UnknownEpoch, lambda: trial.store.mark_epoch(_NOWHERE, "seal"), "mark_epoch")
    await trial.raises(UnknownEpoch, lambda: trial.store.put(_NOWHERE, [trial.message("a")]), "put")


async def an_epoch_completes_once(trial: StoreTrial) -> None:
    """A completion keeps its report and its success, and a completion that comes again changes nothing."""
    epoch = await trial.epoch("nightly")
    async with trial.join() as session:
        (seq,) = await trial.put(epoch, "a")
        await trial.commit(session, seq)
        await trial.store.mark_epoch(epoch, "seal")
        trial.equal((await trial.record(epoch)).succeeded, None, "succeeded before it completed")
        for report, succeeded in ((b"first", False), (b"second", True)):
            change = EpochChange(epoch, "completed", report, succeeded)
            await trial.settle(session, Settlement(epochs=[change]))
    record = await trial.record(epoch)
    trial.equal((record.state, record.report, record.succeeded), ("completed", b"first", False))
    trial.equal((await trial.store.mark_epoch(epoch, "seal")).state, "completed", "sealed again")


async def an_empty_epoch_completes(trial: StoreTrial) -> None:
    """A sealed epoch without messages can complete."""
    epoch = await trial.epoch("empty")
    await trial.store.mark_epoch(epoch, "seal")
    async with trial.join() as session:
        await trial.complete(session, epoch)
    trial.equal((await trial.record(epoch)).state, "completed")


async def a_last_end_completes_in_the_same_settlement(trial: StoreTrial) -> None:
    """The settlement that ends the last messages of an epoch can complete it too."""
    epoch = await trial.epoch("nightly")
    a, b = await trial.put(epoch, "a", "b")
    await trial.store.mark_epoch(epoch, "seal")
    async with trial.join() as session:
        leases = await trial.claim(session, [a])
        change = EpochChange(epoch, "completed", b"report")
        await trial.settle(session, Settlement(committed=leases, ended=[Ended(b, "skipped")], epochs=[change]))
    trial.equal((await trial.record(epoch)).state, "completed")


async def a_completion_waits_for_every_message(trial: StoreTrial) -> None:
    """A completion is left out while the epoch is open or has a message that has not ended."""
    open_one, sealed = await trial.epoch("open"), await trial.epoch("sealed")
    await trial.put(sealed, "a")
    await trial.store.mark_epoch(sealed, "seal")
    async with trial.join() as session:
        await trial.complete(session, open_one)
        await trial.complete(session, sealed)
    trial.equal((await trial.record(open_one)).state, "open")
    trial.equal((await trial.record(sealed)).state, "sealed")


async def only_the_leader_completes(trial: StoreTrial) -> None:
    """A session without a fence completes no epoch."""
    epoch = await trial.epoch("nightly")
    await trial.store.mark_epoch(epoch, "seal")
    async with trial.join(lead=False) as session:
        await trial.complete(session, epoch)
    trial.equal((await trial.record(epoch)).state, "sealed")


async def a_dead_letter_outlives_completion(trial: StoreTrial) -> None:
    """A dead message, and what it took down, can be replayed after its epoch completed; then it completes again."""
    epoch = await trial.epoch("nightly")
    parent, dead, child = await trial.put(epoch, "parent", "dead", "child")
    async with trial.join() as session:
        await trial.commit(session, parent)
        ended = [Ended(dead, "dead", letter=b"why"), Ended(child, "skipped", causes=[dead])]
        await trial.settle(session, Settlement(ended=ended))
        await trial.store.mark_epoch(epoch, "seal")
        await trial.complete(session, epoch, b"first")
        waits = [Waits(dead, run=1), Waits(child, run=1)]
        await trial.settle(session, Settlement(waits=waits, epochs=[EpochChange(epoch, "repairing", b"first")]))
        trial.equal((await trial.record(epoch)).state, "repairing")
        await trial.commit(session, dead, child)
        await trial.complete(session, epoch, b"second")
    record = await trial.record(epoch)
    trial.equal((record.state, record.report), ("completed", b"second"))


async def options_are_kept_whole(trial: StoreTrial) -> None:
    """Facts tell every epoch with its options."""
    options = EpochOptions(if_exists="refuse", deadline=2e9, on_unresolved="skip", retain=1.5, weight=2)
    record = await trial.store.open_epoch("nightly", options)
    seen = (await trial.view()).epochs[record.key.number]
    trial.equal(evolve(seen.options, if_exists="refuse"), options)


async def a_scope_belongs_to_its_epoch(trial: StoreTrial) -> None:
    """A resource in the scope of an epoch is not global, nor that of another epoch."""
    one, other = await trial.epoch("one"), await trial.epoch("other")
    async with trial.join() as session:
        ready = [(one.number, Resource("table", 3)), (None, Resource("table", 1))]
        await trial.settle(session, Settlement(ready=ready))
    view = await trial.view()
    seen = [view.version("table", scope) for scope in (one.number, other.number, None)]
    trial.equal(seen, [3, None, 1])


EPOCH_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(info_stays_the_same),
    Promise(a_new_store_is_empty),
    Promise(every_epoch_gets_a_number_and_a_name),
    Promise(a_name_rejoins_its_epoch),
    Promise(a_taken_name_can_be_refused),
    Promise(options_are_kept_whole),
    Promise(marks_seal_and_can_be_repeated),
    Promise(an_epoch_knows_its_times),
    Promise(an_unknown_epoch_is_refused),
    Promise(an_epoch_completes_once),
    Promise(an_empty_epoch_completes),
    Promise(a_last_end_completes_in_the_same_settlement),
    Promise(a_completion_waits_for_every_message),
    Promise(only_the_leader_completes),
    Promise(a_dead_letter_outlives_completion),
    Promise(a_scope_belongs_to_its_epoch),
)
