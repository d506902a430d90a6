"""Promises of a store about settlements: ends, waits, replays, recorded outcomes and what rides with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naviscope_ingest.testing._promises import Promise
from naviscope_ingest.testing._store_trial import StoreTrial
from naviscope_ingest.testing._view import content
from naviscope_spi import Derived, Ended, Resource, Settlement, Waits

__all__ = ["SETTLEMENT_PROMISES"]


async def a_commit_counts_once(trial: StoreTrial) -> None:
    """A message commits once: the same settlement again is refused and changes nothing."""
    epoch = await trial.epoch()
    (a,) = await trial.put(epoch, "a")
    async with trial.join() as session:
        leases = await trial.claim(session, [a])
        settlement = Settlement(committed=leases, derived=[Derived(a, [trial.message("b")])])
        await trial.settle(session, settlement)
        again = await trial.settle(session, settlement, refused=[a])
        trial.equal(list(again.accepted), [], "derived messages of the second time")
        twice = Settlement(committed=leases, ended=[Ended(a, "dead")], waits=[Waits(a)], prepared={a: b"x"})
        await trial.store.settle(session, twice)
    trial.equal((await trial.view()).open_ids(epoch), ["b"], "unfinished messages")


async def a_commit_needs_a_live_lease(trial: StoreTrial) -> None:
    """A lease that was handed back, or that an end took, does not commit."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as session:
        leases = await trial.claim(session, [a, b])
        await trial.settle(session, Settlement(waits=[Waits(a)], ended=[Ended(b, "skipped")]))
        await trial.settle(session, Settlement(committed=leases), refused=[a, b])
    trial.equal((await trial.view()).unfinished, {a}, "unfinished messages")


async def a_refused_part_leaves_the_rest(trial: StoreTrial) -> None:
    """What is refused is left out with its derived messages and resources; the rest of the settlement counts."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    async with trial.join() as session:
        leases = await trial.claim(session, [a, b])
        await trial.settle(session, Settlement(waits=[Waits(a)]))
        derived = [
            Derived(a, [trial.message("of a")], ready=[Resource("of a")]),
            Derived(b, [trial.message("of b")], ready=[Resource("of b")]),
        ]
        await trial.settle(session, Settlement(committed=leases, derived=derived), refused=[a])
    view = await trial.view()
    trial.equal(view.open_ids(epoch), ["a", "of b"], "unfinished messages")
    seen = [view.version(name, epoch.number) for name in ("of a", "of b")]
    trial.equal(seen, [None, 0], "versions of the resources")


async def riders_count_once(trial: StoreTrial) -> None:
    """Resources and records of a settlement that comes again, and changes no message it names, are left out."""
    epoch = await trial.epoch()
    a, b, c, d = await trial.put(epoch, "a", "b", "c", "d")
    async with trial.join() as session:
        leases = await trial.claim(session, [a, b])
        riders = [(None, Resource("global", add=1)), (epoch.number, Resource("scoped", add=1))]
        committed = Settlement(
            committed=leases[:1], derived=[Derived(a, ready=[Resource("scoped", add=1)])], ready=riders
        )
        for settlement in (
            committed,
            Settlement(waits=[Waits(b, attempt=1)], ready=riders),
            Settlement(ended=[Ended(c, "dead")], ready=riders),
            Settlement(waits=[Waits(d, not_before=9.0)], ready=riders),
        ):
            await trial.store.settle(session, settlement)
            await trial.store.settle(session, settlement)
    view = await trial.view()
    trial.equal((view.version("global"), view.version("scoped", epoch.number)), (4, 5), "versions")


async def riders_come_with_one_that_counts(trial: StoreTrial) -> None:
    """Resources count when at least one message of the settlement does, or when it names none."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    ready = [(None, Resource("steps", add=1))]
    async with trial.join() as session:
        leases = await trial.claim(session, [a, b])
        await trial.settle(session, Settlement(waits=[Waits(a)]))
        await trial.settle(session, Settlement(committed=leases, ready=ready), refused=[a])
        await trial.settle(session, Settlement(ready=ready))
    trial.equal((await trial.view()).version("steps"), 2)


async def values_are_kept_with_the_commit(trial: StoreTrial) -> None:
    """What a message leaves for its dependents comes with the fact of its commit, as news and in a recovery."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    await trial.store.put(epoch, [trial.message("waits", depends_on=["a", "b"])])
    async with trial.reading() as reader, trial.join() as session:
        leases = await trial.claim(session, [a, b])
        settled = await trial.settle(session, Settlement(committed=leases, values={a: b"\x00value"}))
        await reader.up_to(settled.position)
        trial.equal(reader.view.values, {a: b"\x00value"}, "as news")
    trial.equal((await trial.view()).values, {a: b"\x00value"}, "in a recovery")


async def an_end_is_kept_whole(trial: StoreTrial) -> None:
    """An end is told with its causes and its letter; ending again is refused."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    names_both = trial.message("waits", depends_on=["a", "b"])
    await trial.store.put(epoch, [names_both])
    ended = [Ended(a, "dead", letter=b"\x00why"), Ended(b, "cancelled", causes=[a], epoch_causes=[epoch.number])]
    async with trial.join() as session:
        await trial.claim(session, [a])
        await trial.settle(session, Settlement(ended=ended))
        await trial.settle(session, Settlement(ended=[Ended(a, "skipped"), Ended(b, "dead")]), refused=[a, b])
    view = await trial.view()
    seen = [
        (each.end, list(each.causes), list(each.epoch_causes), each.letter) for each in (view.ended[a], view.ended[b])
    ]
    trial.equal(seen, [("dead", [], [], b"\x00why"), ("cancelled", [a], [epoch.number], None)])


async def only_the_leader_touches_what_nobody_leased(trial: StoreTrial) -> None:
    """Without a lease, a session without a fence can neither end a message nor set it waiting; with one it can."""
    a, b, c, d = await trial.put(await trial.epoch(), "a", "b", "c", "d")
    async with trial.join(lead=False) as worker:
        parts: Settlement[Any] = Settlement(ended=[Ended(a, "dead")], waits=[Waits(b, attempt=3)], prepared={c: b"x"})
        await trial.settle(worker, parts, refused=[a, b, c])
        await trial.claim(worker, [d])
        await trial.settle(worker, Settlement(ended=[Ended(d, "dead")]))
    view = await trial.view()
    trial.equal((view.unfinished, view.waits), ({a, b, c}, {}), "unfinished messages and waits")
    async with trial.join() as leader:
        await trial.settle(leader, Settlement(ended=[Ended(a, "expired")], waits=[Waits(b, attempt=3)]))
        (lease,) = await trial.claim(leader, [b])
        trial.equal(lease.attempt, 3, "the attempt that the leader set")


async def waits_end_the_lease(trial: StoreTrial) -> None:
    """A message that waits is free again, with the attempt, time and added dependencies it was given."""
    (a,) = (await trial.store.put(await trial.epoch(), [trial.message("a", depends_on=["x"])])).accepted
    async with trial.join() as session:
        await trial.claim(session, [a])
        await trial.settle(session, Settlement(waits=[Waits(a, depends_on=("y",), not_before=12.5, attempt=1)]))
        view = await trial.view()
        seen = view.waits[a]
        trial.equal((seen.not_before, seen.attempt, seen.run), (12.5, 1, 0), "not_before, attempt and run")
        trial.equal((view.added[a], view.leases), (("y",), {}), "added dependencies and leases")
        await trial.claim(session, [a])
        await trial.settle(session, Settlement(waits=[Waits(a, depends_on=("z",), attempt=1)]))
        (lease,) = await trial.claim(session, [a])
        trial.equal((lease.attempt, lease.message.id), (1, "a"), "the next lease")
    trial.equal((await trial.view()).added[a], ("y", "z"), "dependencies of both deferrals")


async def a_replay_starts_the_next_run(trial: StoreTrial) -> None:
    """Waits with a higher run bring an ended message back to life, edited if need be."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "dead"), Ended(b, "expired")]))
        edited = trial.payload(99)
        await trial.settle(session, Settlement(waits=[Waits(a, run=1, payload=edited), Waits(b, run=1)]))
        one, two = await trial.claim(session, [a, b])
        trial.equal((one.run, one.attempt, two.run), (1, 0, 1), "runs and attempt")
        trial.equal(content(one.message), content(trial.message("a", 99)), "the edited message")
        trial.equal(content(two.message), content(trial.message("b")), "the other message")
        await trial.settle(session, Settlement(committed=[one], ended=[Ended(b, "dead")]))
    trial.equal((await trial.view()).unfinished, set(), "unfinished after the second run")


async def a_replay_names_a_higher_run(trial: StoreTrial) -> None:
    """An ended message stays ended for waits of its own run or an earlier one, or without a fence."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "dead")]))
        await trial.settle(session, Settlement(waits=[Waits(a, run=0)]), refused=[a])
        await trial.settle(session, Settlement(waits=[Waits(a, run=1)]))
        await trial.settle(session, Settlement(ended=[Ended(a, "dead")]))
        await trial.settle(session, Settlement(waits=[Waits(a, run=1)]), refused=[a])
        await trial.settle(session, Settlement(waits=[Waits(b, run=1)]), refused=[b])
    async with trial.join(lead=False) as worker:
        await trial.settle(worker, Settlement(waits=[Waits(a, run=2)]), refused=[a])
    trial.equal((await trial.view()).unfinished, {b})


async def a_discard_keeps_the_end(trial: StoreTrial) -> None:
    """The leader discards a dead letter: its end stays as it was, and says so. Once, and nothing else is discarded."""
    epoch = await trial.epoch()
    a, b = await trial.put(epoch, "a", "b")
    (c,) = (await trial.store.put(epoch, [trial.message("c", depends_on=["a"])])).accepted
    async with trial.join() as session:
        await trial.settle(
            session, Settlement(ended=[Ended(a, "dead", causes=[b], letter=b"why"), Ended(b, "skipped")])
        )
    discard: Settlement[Any] = Settlement(ended=[Ended(a, "dead", discarded=True)])
    async with trial.join(lead=False) as worker:
        await trial.settle(worker, discard, refused=[a])
    async with trial.join() as session:
        none: Settlement[Any] = Settlement(ended=[Ended(b, "dead", discarded=True), Ended(c, "dead", discarded=True)])
        await trial.settle(session, none, refused=[b, c])
        trial.true(not (await trial.view()).ended[a].discarded, "a letter that is not discarded yet", "a discarded one")
        async with trial.reading() as reader:
            settled = await trial.settle(session, discard)
            await reader.up_to(settled.position)
            trial.true(reader.view.ended[a].discarded, "news of the discard", reader.view.ended[a])
        await trial.settle(session, discard, refused=[a])
        view = await trial.view()
        told = view.ended[a]
        trial.equal((told.end, list(told.causes), told.letter, told.discarded), ("dead", [b], b"why", True), "the end")
        trial.equal(view.unfinished, {c}, "unfinished messages")
        await trial.settle(session, Settlement(waits=[Waits(a, run=1)]))
        await trial.settle(session, Settlement(ended=[Ended(a, "dead", letter=b"again")]))
        trial.true(not (await trial.view()).ended[a].discarded, "a new end, not discarded", "a discarded one")


async def committed_is_final(trial: StoreTrial) -> None:
    """A committed message is never replayed, nor ended in another way."""
    epoch = await trial.epoch()
    (a,) = await trial.put(epoch, "a")
    await trial.store.put(epoch, [trial.message("b", depends_on=["a"])])
    async with trial.join() as session:
        await trial.commit(session, a)
        await trial.settle(session, Settlement(waits=[Waits(a, run=1)]), refused=[a])
        await trial.settle(session, Settlement(ended=[Ended(a, "dead")]), refused=[a])
        trial.equal(list(await trial.store.pop_ready(session, [a])), [], "claimed again")
    trial.equal((await trial.view()).ends, {a: "committed"})


async def a_recorded_outcome_comes_back(trial: StoreTrial) -> None:
    """An outcome that was recorded comes with the next lease, after a hand-back too, and goes with its attempt."""
    (a,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as session:
        await trial.claim(session, [a])
        await trial.settle(session, Settlement(prepared={a: b"\x00outcome"}))
        trial.equal((await trial.view()).prepared, {a}, "prepared, as a recovery tells it")
    trial.equal((await trial.view()).prepared, {a}, "prepared, as a recovery tells it after the session left")
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [a])
        trial.equal(lease.prepared, b"\x00outcome", "after the session left")
        await trial.settle(session, Settlement(waits=[Waits(a)]))
        (lease,) = await trial.claim(session, [a])
        trial.equal(lease.prepared, b"\x00outcome", "handed back with the same attempt")
        await trial.settle(session, Settlement(waits=[Waits(a, attempt=1)]))
        (lease,) = await trial.claim(session, [a])
        trial.equal(lease.prepared, None, "in the next attempt")
        trial.equal((await trial.view()).prepared, set(), "prepared, as a recovery tells it in the next attempt")


async def a_recorded_outcome_ends_nothing(trial: StoreTrial) -> None:
    """Recording an outcome keeps the lease, which then commits."""
    (a,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as session:
        leases = await trial.claim(session, [a])
        await trial.settle(session, Settlement(prepared={a: b"outcome"}))
        trial.equal(list(await trial.store.pop_ready(session, [a])), [], "claimed by another")
        await trial.settle(session, Settlement(committed=leases))


async def an_empty_settlement_is_fine(trial: StoreTrial) -> None:
    """A settlement of nothing changes nothing."""
    async with trial.join() as session:
        settled = await trial.settle(session, Settlement())
    trial.equal(list(settled.accepted), [])


async def versions_only_grow(trial: StoreTrial) -> None:
    """A lower version of a resource changes nothing; a counted one grows by what is added."""
    for resource in (Resource("set", 5), Resource("set", 3), Resource("zero"), Resource("count", add=2)):
        await trial.store.notify_ready([resource])
    position = await trial.store.notify_ready([Resource("count", add=1), Resource("count", add=1)])
    view = await trial.view()
    trial.equal([view.version(name) for name in ("set", "zero", "count")], [5, 0, 4], "versions of set, zero, count")
    trial.true(view.position >= position, f"a recovery up to position {position}", view.position)


async def a_resource_keeps_its_value(trial: StoreTrial) -> None:
    """The value of a resource is told with it; a version that is not higher does not change it."""
    await trial.store.notify_ready([Resource("r", 2, value=b"\x00two")])
    await trial.store.notify_ready([Resource("r", 1, value=b"one"), Resource("r", 2, value=b"again")])
    trial.equal((await trial.view()).resources[None, "r"].value, b"\x00two", "after a lower version")
    await trial.store.notify_ready([Resource("r", 3, value=b"three")])
    resource = (await trial.view()).resources[None, "r"]
    trial.equal((resource.version, resource.value), (3, b"three"), "after a higher one")


SETTLEMENT_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(a_commit_counts_once),
    Promise(a_commit_needs_a_live_lease),
    Promise(a_refused_part_leaves_the_rest),
    Promise(riders_count_once),
    Promise(riders_come_with_one_that_counts),
    Promise(values_are_kept_with_the_commit),
    Promise(an_end_is_kept_whole),
    Promise(only_the_leader_touches_what_nobody_leased),
    Promise(waits_end_the_lease),
    Promise(a_replay_starts_the_next_run),
    Promise(a_replay_names_a_higher_run),
    Promise(a_discard_keeps_the_end),
    Promise(committed_is_final),
    Promise(a_recorded_outcome_comes_back),
    Promise(a_recorded_outcome_ends_nothing),
    Promise(an_empty_settlement_is_fine),
    Promise(versions_only_grow),
    Promise(a_resource_keeps_its_value),
)
