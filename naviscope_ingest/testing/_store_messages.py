"""Promises of a store about putting and claiming messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import trio
import trio.testing

from naviscope_ingest.testing._promises import Promise, cancel_after
from naviscope_ingest.testing._store_trial import StoreTrial, finishes_calls
from naviscope_ingest.testing._view import content, outline
from naviscope_spi import (
    Dependency,
    EpochKey,
    EpochOptions,
    EpochSealed,
    Lease,
    Message,
    PutReceipt,
    Resource,
    Seq,
    Settlement,
)

__all__ = ["MESSAGE_PROMISES"]

# A call is cancelled after its first, second, … checkpoint; most are through after a few.
_CANCELLATIONS = 10
_UNKNOWN = Seq(2**40)


async def places_follow_the_order(trial: StoreTrial) -> None:
    """New messages get growing places in the order they were given, over all epochs."""
    one, other = await trial.epoch(), await trial.epoch()
    seqs: list[Seq] = []
    for epoch, names in ((one, "ab"), (other, "ab"), (one, "cd")):
        receipt = await trial.store.put(epoch, [trial.message(name) for name in names])
        trial.equal(list(receipt.indexes), [0, 1], "indexes")
        trial.equal((receipt.duplicates, list(receipt.conflicts)), (0, []), "duplicates and conflicts")
        seqs += receipt.accepted
    trial.equal(len(seqs), 6, "accepted messages")
    trial.true(all(a < b for a, b in pairwise(seqs)), "growing places", seqs)


async def an_empty_put_is_fine(trial: StoreTrial) -> None:
    """Putting nothing stores nothing, also when the epoch is sealed."""
    epoch = await trial.epoch()
    for _ in range(2):
        receipt = await trial.store.put(epoch, [])
        trial.equal((list(receipt.accepted), list(receipt.indexes), receipt.duplicates), ([], [], 0))
        await trial.store.mark_epoch(epoch, "seal")


async def a_known_id_is_a_duplicate(trial: StoreTrial) -> None:
    """An id that is known, from before or from the same call, is counted and not stored again."""
    epoch = await trial.epoch()
    (a,) = await trial.put(epoch, "a")
    receipt = await trial.store.put(epoch, [trial.message(name) for name in ("a", "b", "b", "c")])
    trial.equal((len(receipt.accepted), list(receipt.indexes)), (2, [1, 3]), "accepted and indexes")
    trial.equal((receipt.duplicates, list(receipt.conflicts)), (2, []), "duplicates and conflicts")
    async with trial.join() as session:
        await trial.commit(session, a)
    again = await trial.store.put(epoch, [trial.message("a")])
    trial.equal((list(again.accepted), again.duplicates, list(again.conflicts)), ([], 1, []), "after its commit")
    trial.equal((await trial.view()).open_ids(epoch), ["b", "c"], "unfinished messages")


async def another_content_is_a_conflict(trial: StoreTrial) -> None:
    """The same id with another kind, payload, depends_on or key is a conflict, and the first stays."""
    epoch = await trial.epoch()
    first = trial.message("a", 1, kind="load", depends_on=["x"], key="k")
    (seq,) = (await trial.store.put(epoch, [first])).accepted
    others = {
        "kind": trial.message("a", 1, kind="save", depends_on=["x"], key="k"),
        "payload": trial.message("a", 2, kind="load", depends_on=["x"], key="k"),
        "depends_on": trial.message("a", 1, kind="load", depends_on=["y"], key="k"),
        "key": trial.message("a", 1, kind="load", depends_on=["x"], key="l"),
    }
    for what, other in others.items():
        receipt = await trial.store.put(epoch, [other, trial.message(f"new-{what}")])
        trial.equal((list(receipt.conflicts), receipt.duplicates), (["a"], 1), f"another {what}")
        trial.equal(list(receipt.indexes), [1], f"indexes with another {what}")
    same = trial.message("a", 1, kind="load", depends_on=["x"], key="k", priority=9, headers={"trace": "2"})
    receipt = await trial.store.put(epoch, [same])
    trial.equal((list(receipt.conflicts), receipt.duplicates), ([], 1), "another priority and headers")
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [seq])
    trial.equal(content(lease.message), content(first), "the message that was first")


async def an_id_belongs_to_its_epoch(trial: StoreTrial) -> None:
    """The same id in two epochs is two messages."""
    one, other = await trial.epoch(), await trial.epoch()
    await trial.put(one, "a")
    await trial.put(other, "a")
    view = await trial.view()
    trial.equal((view.ids(one), view.ids(other)), (["a"], ["a"]))


async def a_sealed_epoch_takes_no_unknown_id(trial: StoreTrial) -> None:
    """An epoch that is not open raises EpochSealed for the first unknown id; nothing of that call is stored."""
    epoch = await trial.epoch()
    await trial.put(epoch, "a")
    await trial.store.mark_epoch(epoch, "seal")
    call = [trial.message(name) for name in ("a", "b", "c")]
    error = await trial.raises(EpochSealed, lambda: trial.store.put(epoch, call))
    trial.equal(getattr(error, "message_id", None), "b", "the id that the error names")
    trial.equal((await trial.view()).ids(epoch), ["a"], "stored messages")
    receipt = await trial.store.put(epoch, [trial.message("a")])
    trial.equal((list(receipt.accepted), receipt.duplicates), ([], 1), "a known id")
    cancelled = await trial.epoch()
    await trial.store.mark_epoch(cancelled, "cancel")
    await trial.raises(EpochSealed, lambda: trial.store.put(cancelled, call), "a cancelled epoch")


async def a_message_comes_back_whole(trial: StoreTrial) -> None:
    """A lease gives back every field of a message as it was put; facts do too, but may leave the payload out."""
    epoch = await trial.epoch("nightly")
    group = Dependency.any_of("p", Dependency.resource("r", 2), at_least=2, otherwise="hold", timeout=5.0)
    given = trial.message(
        "ünï:✓ id",
        7,
        kind="load",
        depends_on=[
            "a",
            Dependency.message("b", "other", otherwise={"skipped": "run"}),
            group,
            Dependency.barrier("x"),
        ],
        key="k",
        priority=-5,
        not_before=1.5,
        expires_at=2e9,
        headers={"trace": "1", "source": "ü"},
    )
    (seq,) = (await trial.store.put(epoch, [given])).accepted
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [seq])
        trial.equal((lease.seq, lease.epoch, lease.token), (seq, epoch, session.token), "place, epoch and token")
        trial.equal((lease.run, lease.attempt, lease.crashes, lease.prepared), (0, 0, 0, None), "a first lease")
        trial.equal(content(lease.message), content(given), "in the lease")
    key, message = (await trial.view()).messages[seq]
    trial.equal((key, outline(message)), (epoch, outline(given)), "in the facts")
    trial.true(message.payload in (None, given.payload), "the payload or None in the facts", message.payload)


async def a_claim_keeps_the_order(trial: StoreTrial) -> None:
    """A claim answers in the order of `seqs`, and leaves out unknown and repeated ones."""
    epoch = await trial.epoch()
    a, b, c = await trial.put(epoch, "a", "b", "c")
    async with trial.join() as session:
        leases = await trial.store.pop_ready(session, [c, _UNKNOWN, a, c, b])
        trial.equal([lease.message.id for lease in leases], ["c", "a", "b"])
        trial.equal(list(await trial.store.pop_ready(session, [])), [], "an empty claim")


async def a_message_has_one_lease(trial: StoreTrial) -> None:
    """A message that is leased or has ended is left out of a claim."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    async with trial.join() as session:
        await trial.claim(session, [a])
        trial.equal(list(await trial.store.pop_ready(session, [a])), [], "a leased message")
        await trial.commit(session, b)
        trial.equal(list(await trial.store.pop_ready(session, [b])), [], "a committed message")


async def overlapping_puts_accept_an_id_once(trial: StoreTrial) -> None:
    """Of puts that overlap, one stores an id and the others find a duplicate."""
    epoch = await trial.epoch()
    receipts: list[PutReceipt] = []

    async def put() -> None:
        receipts.append(await trial.store.put(epoch, [trial.message(f"m{number}") for number in range(20)]))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(put)
    seqs = [seq for receipt in receipts for seq in receipt.accepted]
    trial.equal((len(seqs), len(set(seqs))), (20, 20), "accepted messages, and different places")
    trial.equal(sum(receipt.duplicates for receipt in receipts), 80, "duplicates")


async def overlapping_claims_give_one_lease(trial: StoreTrial) -> None:
    """Of claims that overlap, one gets the message."""
    epoch = await trial.epoch()
    seqs = await trial.put(epoch, *(f"m{number}" for number in range(20)))
    claimed: list[Seq] = []
    async with trial.join() as session:

        async def claim() -> None:
            claimed.extend(lease.seq for lease in await trial.store.pop_ready(session, seqs))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(claim)
    trial.equal(sorted(claimed), seqs)


async def a_cancelled_put_is_whole_or_not_at_all(trial: StoreTrial) -> None:
    """Cancelled at any checkpoint, a put happened whole or not at all, and a repeat heals it."""
    for checkpoints in range(_CANCELLATIONS):
        epoch = await trial.epoch()
        messages = [trial.message(f"m{number}") for number in range(20)]
        await cancel_after(checkpoints, partial(trial.store.put, epoch, messages))
        stored = len((await trial.view()).ids(epoch))
        trial.true(stored in (0, 20), "0 or 20 stored messages", stored)
        receipt = await trial.store.put(epoch, messages)
        trial.equal(len(receipt.accepted), 20 - stored, "accepted by the repeat")


async def a_call_that_began_is_answered(trial: StoreTrial) -> None:
    """A store that finishes its calls answers a put that is cancelled on its way; one that raised did nothing."""
    for checkpoints in range(_CANCELLATIONS):
        epoch = await trial.epoch()
        answers: list[PutReceipt] = []

        async def put(epoch: EpochKey, answers: list[PutReceipt]) -> None:
            answers.append(await trial.store.put(epoch, [trial.message("a")]))

        await cancel_after(checkpoints, partial(put, epoch, answers))
        stored = len((await trial.view()).ids(epoch))
        trial.equal(stored, len(answers), "stored by a put that was cancelled")


async def a_cancelled_settlement_is_whole_or_not_at_all(trial: StoreTrial) -> None:
    """Cancelled at any checkpoint, a settlement happened whole or not at all."""
    async with trial.join() as session:
        for checkpoints in range(_CANCELLATIONS):
            epoch = await trial.epoch()
            seqs = await trial.put(epoch, *(f"m{number}" for number in range(20)))
            leases = await trial.claim(session, seqs)
            settlement = Settlement(committed=leases, ready=[(None, Resource("steps", add=1))])
            before = (await trial.view()).version("steps") or 0
            await cancel_after(checkpoints, partial(trial.store.settle, session, settlement))
            view = await trial.view()
            committed = len(set(seqs) - view.unfinished)
            trial.true(committed in (0, 20), "0 or 20 committed messages", committed)
            steps = (view.version("steps") or 0) - before
            trial.equal(steps, int(committed > 0), "resources that came with them")


async def a_cancelled_claim_is_whole_or_not_at_all(trial: StoreTrial) -> None:
    """Cancelled at any checkpoint, a claim that took something is handed back when the session leaves."""
    for checkpoints in range(_CANCELLATIONS):
        seqs = await trial.put(await trial.epoch(), *(f"m{number}" for number in range(20)))
        async with trial.join() as session:
            await cancel_after(checkpoints, partial(trial.store.pop_ready, session, seqs))
            left = len(await trial.store.pop_ready(session, seqs))
            trial.true(left in (0, 20), "0 or 20 messages that can still be claimed", left)
        async with trial.join() as session:
            await trial.claim(session, seqs)


async def every_call_is_a_checkpoint(trial: StoreTrial) -> None:
    """Every async method but pop_ready and settle is a checkpoint, also when it has nothing to do."""
    epoch = await trial.epoch("nightly")
    async with trial.join():
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "open_epoch": lambda: trial.store.open_epoch("nightly", EpochOptions()),
            "mark_epoch": lambda: trial.store.mark_epoch(epoch, "seal"),
            "put": lambda: trial.store.put(epoch, []),
            "notify_ready": lambda: trial.store.notify_ready([]),
        }
        for name, call in calls.items():
            await _expect_checkpoint(trial, name, call)


async def _expect_checkpoint(trial: StoreTrial, name: str, call: Callable[[], Awaitable[object]]) -> None:
    try:
        with trio.testing.assert_checkpoints():
            await call()
    except AssertionError:
        trial.fail("it is none", "a checkpoint", name)


def _forged(message: Message[Any], real: Lease[Any]) -> Lease[Any]:
    return Lease(_UNKNOWN, real.epoch, message, real.token)


async def an_unknown_message_is_refused(trial: StoreTrial) -> None:
    """A settlement that names a message the store does not know leaves it out."""
    epoch = await trial.epoch()
    (a,) = await trial.put(epoch, "a")
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [a])
        forged = _forged(trial.message("b"), lease)
        await trial.settle(session, Settlement(committed=[forged, lease]), refused=[_UNKNOWN])
    trial.equal((await trial.view()).unfinished, set(), "unfinished messages")


MESSAGE_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(places_follow_the_order),
    Promise(an_empty_put_is_fine),
    Promise(a_known_id_is_a_duplicate),
    Promise(another_content_is_a_conflict),
    Promise(an_id_belongs_to_its_epoch),
    Promise(a_sealed_epoch_takes_no_unknown_id),
    Promise(a_message_comes_back_whole),
    Promise(a_claim_keeps_the_order),
    Promise(a_message_has_one_lease),
    Promise(an_unknown_message_is_refused),
    Promise(overlapping_puts_accept_an_id_once),
    Promise(overlapping_claims_give_one_lease),
    Promise(a_cancelled_put_is_whole_or_not_at_all),
    Promise(a_call_that_began_is_answered, when=finishes_calls),
    Promise(a_cancelled_settlement_is_whole_or_not_at_all),
    Promise(a_cancelled_claim_is_whole_or_not_at_all),
    Promise(every_call_is_a_checkpoint),
)
