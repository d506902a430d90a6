"""Promises of a store about derived messages, staged ones among them."""

from __future__ import annotations

from collections.abc import Sequence

from naviscope_ingest.testing._promises import Promise
from naviscope_ingest.testing._store_trial import StoreTrial
from naviscope_ingest.testing._view import content, outline
from naviscope_spi import Derived, Resource, Seq, Session, SessionLost, Settlement, Waits

__all__ = ["DERIVED_PROMISES"]


async def derived_messages_come_with_their_parent(trial: StoreTrial) -> None:
    """Derived messages are accepted with the commit of their parent, in list order, by a sealed epoch too."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    await trial.store.mark_epoch(epoch, "seal")
    derived = [
        Derived(a, [trial.message("a1", 1), trial.message("a2", 2)]),
        Derived(b, [trial.message("b1", 3)], ready=[Resource("table", 2, value=b"v")]),
    ]
    async with trial.join() as session:
        settled = await trial.commit(session, a, b, derived=derived)
        seen = [(key, content(message)) for _, key, message in settled.accepted]
        given = [(epoch, content(message)) for each in derived for message in each.messages]
        trial.equal(seen, given, "accepted by the settlement")
        seqs = [seq for seq, _, _ in settled.accepted]
        trial.true(b < seqs[0] < seqs[1] < seqs[2], "growing places", seqs)
        claimed = [content(lease.message) for lease in await trial.claim(session, seqs)]
        trial.equal(claimed, [each for _, each in given], "in the leases")
    view = await trial.view()
    told = [outline(view.messages[seq][1]) for seq in seqs]
    trial.equal(told, [outline(message) for each in derived for message in each.messages], "in the facts")
    trial.equal(view.version("table", epoch.number), 2, "the version of the parent's resource")


async def the_first_of_a_derived_id_wins(trial: StoreTrial) -> None:
    """A derived id that is known, or comes twice, is left out."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    derived = [
        Derived(a, [trial.message("b", 9), trial.message("c", 1), trial.message("c", 2)]),
        Derived(b, [trial.message("c", 3), trial.message("d")]),
    ]
    async with trial.join() as session:
        settled = await trial.commit(session, a, b, derived=derived)
        trial.equal([message.id for _, _, message in settled.accepted], ["c", "d"], "accepted")
        trial.equal(settled.accepted[0][2].payload, trial.payload(1), "the payload of the first")
    trial.equal((await trial.view()).open_ids(epoch), ["c", "d"], "unfinished messages")


async def a_cancelled_epoch_takes_no_derived_message(trial: StoreTrial) -> None:
    """An epoch whose cancellation was asked for takes no derived message; the parent commits all the same."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    async with trial.join() as session:
        one, two = await trial.claim(session, [a, b])
        await trial.store.put(epoch, [trial.message("staged")], staged_by=two)
        await trial.store.mark_epoch(epoch, "cancel")
        derived = [Derived(a, [trial.message("derived")]), Derived(b, staged=1)]
        settled = await trial.settle(session, Settlement(committed=[one, two], derived=derived))
        trial.equal(list(settled.accepted), [], "accepted")
    trial.equal((await trial.view()).unfinished, set(), "unfinished messages")


async def staged_messages_are_invisible(trial: StoreTrial) -> None:
    """Staged messages are neither told nor claimed before their parent commits; a sealed epoch takes them."""
    epoch = await trial.epoch("nightly")
    (a,) = await trial.put(epoch, "a")
    await trial.store.mark_epoch(epoch, "seal")
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [a])
        staged = [trial.message("s1", 1), trial.message("s2", 2)]
        receipt = await trial.store.put(epoch, staged, staged_by=lease)
        trial.equal((list(receipt.indexes), receipt.duplicates), ([0, 1], 0), "indexes and duplicates")
        trial.equal(list(await trial.store.pop_ready(session, list(receipt.accepted))), [], "claimed")
        trial.equal((await trial.view()).ids(epoch), ["a"], "messages that facts tell of")
        again = await trial.store.put(epoch, [*staged, trial.message("s3", 3)], staged_by=lease)
        trial.equal((list(again.indexes), again.duplicates), ([2], 2), "staged again")


async def staged_messages_come_alive_with_their_parent(trial: StoreTrial) -> None:
    """The commit of the parent brings staged messages alive, in order, before its other derived messages."""
    epoch = await trial.epoch()
    (a,) = await trial.put(epoch, "a")
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [a])
        await trial.store.put(epoch, [trial.message("s1"), trial.message("s2")], staged_by=lease)
        await trial.store.put(epoch, [trial.message("s3"), trial.message("a")], staged_by=lease)
        derived = [Derived(a, [trial.message("d")], staged=3)]
        settled = await trial.settle(session, Settlement(committed=[lease], derived=derived))
        trial.equal([message.id for _, _, message in settled.accepted], ["s1", "s2", "s3", "d"], "accepted")
        await trial.claim(session, [seq for seq, _, _ in settled.accepted])
    trial.equal(sorted((await trial.view()).open_ids(epoch)), ["d", "s1", "s2", "s3"], "messages that facts tell of")


async def a_staged_id_does_not_block_another(trial: StoreTrial) -> None:
    """An id that is only staged can be put; then that one is the first, and the staged one is left out."""
    epoch = await trial.epoch()
    (a,) = await trial.put(epoch, "a")
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [a])
        await trial.store.put(epoch, [trial.message("x", 1), trial.message("y", 1)], staged_by=lease)
        (x,) = (await trial.store.put(epoch, [trial.message("x", 2)])).accepted
        settled = await trial.settle(session, Settlement(committed=[lease], derived=[Derived(a, staged=2)]))
        trial.equal([message.id for _, _, message in settled.accepted], ["y"], "accepted")
        (kept,) = await trial.claim(session, [x])
        trial.equal(kept.message.payload, trial.payload(2), "the payload of x")


async def staged_messages_go_with_the_lease(trial: StoreTrial) -> None:
    """Staged messages are gone when their parent's lease ends in another way than by its commit."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    async with trial.join() as session:
        for lease in await trial.claim(session, [a, b]):
            await trial.store.put(epoch, [trial.message(f"lost of {lease.message.id}")], staged_by=lease)
        await trial.settle(session, Settlement(waits=[Waits(a)]))
        await _commit_with_one_staged(trial, session, a, "after it was handed back")
    async with trial.join() as session:
        await _commit_with_one_staged(trial, session, b, "after its session left")


async def _commit_with_one_staged(trial: StoreTrial, session: Session, seq: Seq, about: str) -> None:
    (lease,) = await trial.claim(session, [seq])
    await trial.store.put(lease.epoch, [trial.message(f"kept {seq}")], staged_by=lease)
    settled = await trial.settle(session, Settlement(committed=[lease], derived=[Derived(seq, staged=1)]))
    trial.equal([message.id for _, _, message in settled.accepted], [f"kept {seq}"], f"accepted {about}")


async def staging_needs_a_live_lease(trial: StoreTrial) -> None:
    """Staging under a lease that is not live raises SessionLost, and nothing is stored."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    async with trial.join() as session:
        one, two = await trial.claim(session, [a, b])
        await trial.settle(session, Settlement(committed=[one]))
        stage = [trial.message("s")]
        await trial.raises(SessionLost, lambda: trial.store.put(epoch, stage, staged_by=one), "after its commit")
    await trial.raises(SessionLost, lambda: trial.store.put(epoch, stage, staged_by=two), "after its session")
    trial.equal((await trial.view()).unfinished, {b}, "unfinished messages")


DERIVED_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(derived_messages_come_with_their_parent),
    Promise(the_first_of_a_derived_id_wins),
    Promise(staged_messages_are_invisible),
    Promise(staged_messages_come_alive_with_their_parent),
    Promise(a_staged_id_does_not_block_another),
    Promise(staged_messages_go_with_the_lease),
    Promise(staging_needs_a_live_lease),
    Promise(a_cancelled_epoch_takes_no_derived_message),
)
