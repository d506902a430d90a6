"""Promises of a store about sessions, and about what comes back when one ends."""

from __future__ import annotations

from collections.abc import Sequence

from naviscope_ingest.testing._promises import Promise
from naviscope_ingest.testing._store_trial import StoreTrial, can_crash, is_alone, is_shared
from naviscope_spi import Derived, Resource, SessionLost, Settlement, Waits

__all__ = ["SESSION_PROMISES"]


async def sessions_differ_and_fences_grow(trial: StoreTrial) -> None:
    """Every session has a token of its own, and the fence grows with every leader."""
    sessions = []
    for _ in range(3):
        async with trial.join() as session:
            sessions.append(session)
    trial.equal(len({session.token for session in sessions}), 3, "different tokens")
    fences = [session.fence or 0 for session in sessions]
    trial.true(fences[0] < fences[1] < fences[2], "growing fences", fences)


async def leaving_hands_leases_back(trial: StoreTrial) -> None:
    """A session that leaves hands its leases back; no crash is counted and no attempt is spent."""
    (seq,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as session:
        await trial.claim(session, [seq])
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [seq])
        trial.equal((lease.attempt, lease.crashes, lease.token), (0, 0, session.token), "attempt, crashes, token")
    trial.equal((await trial.view()).leases, {}, "leases that facts tell of")


async def leaving_by_an_error_hands_leases_back(trial: StoreTrial) -> None:
    """A session whose block raises hands its leases back as well, and the error passes."""
    (seq,) = await trial.put(await trial.epoch(), "a")

    async def fail() -> None:
        async with trial.join() as session:
            await trial.claim(session, [seq])
            raise LookupError

    await trial.raises(LookupError, fail)
    async with trial.join() as session:
        (lease,) = await trial.claim(session, [seq])
        trial.equal(lease.crashes, 0, "crashes")


async def an_ended_session_is_lost(trial: StoreTrial) -> None:
    """Claims and settlements of a session that has ended raise SessionLost, and nothing is applied."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as former:
        leases = await trial.claim(former, [a])
    late = Settlement(committed=leases, ready=[(None, Resource("late"))], derived=[Derived(a, [trial.message("c")])])
    for _ in range(2):
        await trial.raises(SessionLost, lambda: trial.store.settle(former, late), "settle")
        await trial.raises(SessionLost, lambda: trial.store.settle(former, Settlement()), "settle nothing")
        await trial.raises(SessionLost, lambda: trial.store.pop_ready(former, [b]), "pop_ready")
    view = await trial.view()
    trial.equal((view.unfinished, view.resources), ({a, b}, {}), "unfinished messages and resources")


async def a_late_lease_is_refused(trial: StoreTrial) -> None:
    """A lease of a session that has ended does not count in a settlement of another session."""
    (a,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as former:
        late = await trial.claim(former, [a])
    async with trial.join() as session:
        await trial.settle(session, Settlement(committed=late), refused=[a])
        leases = await trial.claim(session, [a])
        await trial.settle(session, Settlement(committed=late), refused=[a])
        await trial.settle(session, Settlement(committed=leases))


async def joining_ends_the_session_before(trial: StoreTrial) -> None:
    """A store that is not shared has one session: joining ends the one before."""
    async with trial.join() as former, trial.join() as session:
        await trial.raises(SessionLost, lambda: trial.store.pop_ready(former, []), "the session before")
        trial.equal(list(await trial.store.pop_ready(session, [])), [], "the present session")


async def a_dead_session_is_lost(trial: StoreTrial) -> None:
    """The leases of a session that died are free, its late calls raise SessionLost, and its end is told as unclean."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.reading() as reader, trial.join() as former:
        late = await trial.claim(former, [a, b])
        await trial.crash(former)
        async with trial.join() as session:
            settlement = Settlement(committed=late)
            await trial.raises(SessionLost, lambda: trial.store.settle(former, settlement), "settle")
            await trial.raises(SessionLost, lambda: trial.store.pop_ready(former, [a]), "pop_ready")
            await trial.claim(session, [a, b])
            await reader.until(lambda view: former.token in view.sessions)
            trial.equal(reader.view.sessions[former.token], False, "whether facts call its end clean")


async def leaving_late_changes_nothing(trial: StoreTrial) -> None:
    """A session that leaves after it was ended takes nothing from the one that came after it."""
    (a,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as former:
        await trial.claim(former, [a])
        after = trial.store.join("after")
        session = await after.__aenter__()
        leases = await trial.claim(session, [a])
    await trial.settle(session, Settlement(committed=leases))
    await after.__aexit__(None, None, None)


async def a_crash_counts_for_what_ran_alone(trial: StoreTrial) -> None:
    """A message that was the only one leased when its session died counts a crash; among others it counts none."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as first:
        await trial.claim(first, [a])
        await trial.crash(first)
        async with trial.join() as second:
            one, two = await trial.claim(second, [a, b])
            trial.equal((one.crashes, two.crashes), (1, 0), "crashes after it ran alone")
            await trial.crash(second)
            async with trial.join() as third:
                one, two = await trial.claim(third, [a, b])
                trial.equal((one.crashes, two.crashes), (1, 0), "crashes after both ran")


async def a_recorded_outcome_is_no_crash(trial: StoreTrial) -> None:
    """A message whose outcome was recorded when its session died comes back with it and counts no crash."""
    (a,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as former:
        await trial.claim(former, [a])
        await trial.settle(former, Settlement(prepared={a: b"outcome"}))
        await trial.crash(former)
        async with trial.join() as session:
            (lease,) = await trial.claim(session, [a])
            trial.equal((lease.prepared, lease.crashes), (b"outcome", 0), "prepared and crashes")


async def a_crash_keeps_attempt_and_run(trial: StoreTrial) -> None:
    """After a crash the lease comes back with the attempt and run it had."""
    (a,) = await trial.put(await trial.epoch(), "a")
    async with trial.join() as former:
        await trial.claim(former, [a])
        await trial.settle(former, Settlement(waits=[Waits(a, attempt=2)]))
        await trial.claim(former, [a])
        await trial.crash(former)
        async with trial.join() as session:
            (lease,) = await trial.claim(session, [a])
            trial.equal((lease.attempt, lease.run), (2, 0), "attempt and run")


async def ends_of_sessions_are_told(trial: StoreTrial) -> None:
    """A reader is told that a session ended cleanly."""
    async with trial.reading() as reader:
        async with trial.join() as session:
            pass
        await reader.until(lambda view: session.token in view.sessions)
        trial.equal(reader.view.sessions[session.token], True, "clean")


async def a_lease_belongs_to_one_of_several(trial: StoreTrial) -> None:
    """In a shared store a message leased to one live session is neither claimed nor settled by another; one leads."""
    a, b = await trial.put(await trial.epoch(), "a", "b")
    async with trial.join() as leader, trial.store.join("other") as other:
        trial.equal(other.fence, None, "the fence of the second session")
        mine, theirs = await trial.claim(leader, [a]), await trial.claim(other, [b])
        trial.equal(list(await trial.store.pop_ready(other, [a])), [], "claimed by the other")
        await trial.settle(other, Settlement(committed=[*mine, *theirs]), refused=[a])
        await trial.settle(leader, Settlement(committed=mine))


SESSION_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(sessions_differ_and_fences_grow),
    Promise(leaving_hands_leases_back),
    Promise(leaving_by_an_error_hands_leases_back),
    Promise(an_ended_session_is_lost),
    Promise(a_late_lease_is_refused),
    Promise(joining_ends_the_session_before, when=is_alone),
    Promise(a_dead_session_is_lost, when=can_crash),
    Promise(leaving_late_changes_nothing, when=is_alone),
    Promise(a_crash_counts_for_what_ran_alone, when=can_crash),
    Promise(a_recorded_outcome_is_no_crash, when=can_crash),
    Promise(a_crash_keeps_attempt_and_run, when=can_crash),
    Promise(ends_of_sessions_are_told),
    Promise(a_lease_belongs_to_one_of_several, when=is_shared),
)
