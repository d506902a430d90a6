"""Stores keep the contract, and the check notices when one does not."""

import time
from collections.abc import AsyncIterator

import pytest
import trio
from attrs import evolve

from naviscope_ingest.errors import ContractViolation
from naviscope_ingest.stores import MemoryStore
from naviscope_ingest.stores._ledger import Ledger
from naviscope_ingest.testing import check_deferred_store
from naviscope_ingest.testing.deferred_store import STORE_PROMISES
from naviscope_spi import (
    Accepted,
    AnyOf,
    Committed,
    Ended,
    OnMessage,
    PartlyRefused,
    PutReceipt,
    Resource,
    Session,
    SessionEnded,
    SessionLost,
    Settled,
    Settlement,
    StoreInfo,
)
from tests.contract.factories import opens, reopens


@pytest.mark.parametrize("promise", STORE_PROMISES, ids=lambda promise: promise.name)
async def test_the_store_in_memory_keeps_the_promise(promise):
    await check_deferred_store(opens(MemoryStore), only=[promise.name])


async def test_payloads_may_be_of_any_type():
    await check_deferred_store(opens(MemoryStore), payload=lambda number: {"number": number, "rows": [number]})


class LeanRecovery(MemoryStore):
    """Recovers no more than the contract asks for, through an async generator."""

    async def facts(self, after=None) -> AsyncIterator:
        reader = super().facts()
        is_news = False
        while True:
            batch = await anext(reader)
            yield batch if is_news else [fact for fact in map(self.needed, batch) if fact is not None]
            is_news = is_news or "CaughtUp" in str(batch[-1])

    def needed(self, fact):
        body = fact.body
        if isinstance(body, Accepted):
            pairs = [pair for pair in zip(body.seqs, body.messages, strict=True) if self.is_needed(body.epoch, pair)]
            return evolve(fact, body=evolve(body, seqs=[s for s, _ in pairs], messages=[m for _, m in pairs]))
        if isinstance(body, Committed):
            return evolve(fact, body=evolve(body, seqs=[seq for seq in body.seqs if self.is_named(seq)]))
        if isinstance(body, Ended):
            return fact if self.is_named(body.seq) else None
        return fact

    def is_needed(self, epoch, pair):
        seq, _ = pair
        return seq in self.unfinished() or self.is_named(seq)

    def unfinished(self):
        progress = self._ledger._progress
        return [seq for seq in self._ledger._live if seq not in progress or progress[seq].ended is None]

    def is_named(self, seq):
        return any(named == seq for waiting in self.unfinished() for named in self.named(waiting))

    def named(self, waiting):
        own, progress = self._ledger._live[waiting], self._ledger._progress.get(waiting)
        added = (progress.added if progress else None) or ()
        for name, epoch in ids_in([*own.messages[waiting].depends_on, *added]):
            home = own if epoch is None else self._ledger._names.get(epoch)
            if home is not None and name in home.ids:
                yield home.ids[name]


def ids_in(dependencies):
    for each in dependencies:
        if isinstance(each, str):
            yield each, None
        elif isinstance(each, OnMessage):
            yield each.id, each.epoch_name
        elif isinstance(each, AnyOf):
            yield from ids_in(each.members)


async def test_a_recovery_may_leave_out_what_nobody_needs():
    await check_deferred_store(opens(LeanRecovery))


class Reopened(MemoryStore):
    """Stands for a durable store: the test keeps the object where a file would keep the data."""

    def __init__(self):
        super().__init__()
        self._info = StoreInfo(self._info.store_id, "process")


async def test_a_durable_store_is_opened_again():
    await check_deferred_store(reopens(Reopened))


class Colocated(MemoryStore):
    async def settle_with(self, session, settlement, apply):
        await trio.lowlevel.checkpoint()
        held = self._ledger._leases
        refused = [lease.seq for lease in settlement.committed if held.get(lease.seq) is not lease]
        if refused and len(refused) < len(settlement.committed):
            raise PartlyRefused(refused)
        if not refused:
            apply(None)
        return self._ledger.settle(session, settlement)

    async def verify(self):
        await trio.lowlevel.checkpoint()
        return []


async def test_optional_powers_are_checked():
    await check_deferred_store(opens(Colocated))


class SharedLedger(Ledger):
    """Stands for a store that several processes join."""

    def __init__(self, keep_reports, max_whole, wall):
        super().__init__(keep_reports, max_whole, wall)
        self.members = {}
        self.acting = None

    def enter(self, *, lead):
        leads = lead and all(member.fence is None for member in self.members.values())
        self._joined += 1
        self._fence += leads
        session = Session(self._joined, self._fence if leads else None)
        self.members[session.token] = session
        return session

    def leave(self, session, *, clean=True):
        if self.members.pop(session.token, None) is None:
            return
        held = [seq for seq, lease in self._leases.items() if lease.token == session.token]
        if not clean and len(held) == 1 and self._advance(held[0]).prepared is None:
            self._advance(held[0]).crashes += 1
        for seq in held:
            del self._leases[seq]
        self._drop_orphans()
        self._tell([SessionEnded(session.token, clean)])

    def _current(self, session):
        if session.token not in self.members:
            raise SessionLost
        return session

    def settle(self, session, settlement):
        self.acting = session
        return super().settle(session, settlement)

    def commit(self, session, leases):
        return self.settle(session, Settlement(leases)).refused

    def is_theirs(self, token):
        return token != self.acting.token

    def _commit(self, step, committed, values):
        step.refused += [lease.seq for lease in committed if self.is_theirs(lease.token)]
        mine = [lease for lease in committed if not self.is_theirs(lease.token)]
        return super()._commit(step, mine, values)

    def _reachable(self, seq, *, leads):
        epoch, lease = super()._reachable(seq, leads=leads), self._leases.get(seq)
        return None if lease is not None and self.is_theirs(lease.token) else epoch


def shared(ledger):
    store = MemoryStore()
    store._ledger = ledger(10_000, 100, time.time)
    store._info = StoreInfo("shared", "none", is_shared=True)
    return store


async def kill(store, session):
    store._ledger.leave(session, clean=False)


@pytest.mark.parametrize("options", [{}, {"kill": kill}], ids=["", "with crashes"])
async def test_a_shared_store_has_several_sessions(options):
    await check_deferred_store(opens(lambda: shared(SharedLedger)), **options)


class Generous(SharedLedger):
    """Lets everybody settle with everybody's lease."""

    def is_theirs(self, token):
        return False


async def test_a_shared_store_that_does_not_look_at_the_token_is_caught():
    with pytest.raises(ContractViolation, match="a_lease_belongs_to_one_of_several"):
        await check_deferred_store(opens(lambda: shared(Generous)))


async def test_a_promise_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="there is no promise no_such_promise"):
        await check_deferred_store(opens(MemoryStore), only=["no_such_promise"])


def breaks(promise):
    """Say which promise a broken store, or a store with a broken ledger, breaks first."""

    def decorate(broken):
        broken.promise = promise
        BROKEN.append(broken)
        return broken

    return decorate


BROKEN = []


@breaks("info_stays_the_same")
class ChangesItsId(MemoryStore):
    @property
    def info(self):
        return evolve(super().info, store_id=f"{self._ledger._feed.position}")


@breaks("a_name_rejoins_its_epoch")
class OpensANameTwice(Ledger):
    def open_epoch(self, name, options):
        if options.if_exists == "rejoin":
            self._names.pop(name, None)
        return super().open_epoch(name, options)


@breaks("every_epoch_gets_a_number_and_a_name")
class UsesANumberTwice(Ledger):
    def open_epoch(self, name, options):
        self._last_epoch = min(self._last_epoch, 2)
        return super().open_epoch(name, options)


@breaks("marks_seal_and_can_be_repeated")
class CancelsWithoutSealing(Ledger):
    def mark_epoch(self, key, mark):
        before = self._known(key).record.state
        record = super().mark_epoch(key, mark)
        if mark == "cancel":
            record = self._known(key).record = evolve(record, state=before)
        return record


@breaks("an_epoch_knows_its_times")
class ForgetsWhenItWasSealed(Ledger):
    def mark_epoch(self, key, mark):
        before = self._known(key).record.state
        record = super().mark_epoch(key, mark)
        if mark == "cancel" and before == "sealed":
            record = self._known(key).record = evolve(record, sealed_at=None)
        return record


@breaks("an_epoch_completes_once")
class TakesASecondReport(Ledger):
    def _change_epoch(self, step, change):
        epoch = self._epochs[change.epoch.number]
        if epoch.record.state == "completed" and change.state == "completed":
            epoch.record = evolve(epoch.record, report=change.report)
        super()._change_epoch(step, change)


@breaks("a_completion_waits_for_every_message")
class BuriesMessages(Ledger):
    def _change_epoch(self, step, change):
        self._epochs[change.epoch.number].unfinished = 0
        super()._change_epoch(step, change)


@breaks("only_the_leader_completes")
class LetsAnyoneLead(Ledger):
    def enter(self, *, lead):
        session = super().enter(lead=lead)
        self._session = evolve(session, fence=1)
        return session

    def leave(self, session):
        super().leave(self._session)


@breaks("a_dead_letter_outlives_completion")
class DropsDeadLetters(Ledger):
    def _change_epoch(self, step, change):
        self._epochs[change.epoch.number].letters = 0
        super()._change_epoch(step, change)


@breaks("a_scope_belongs_to_its_epoch")
class SharesScopes(Ledger):
    def _scope(self, number):
        return self._resources


@breaks("a_known_id_is_a_duplicate")
class StoresAKnownIdAgain(Ledger):
    def put(self, key, messages):
        for message in messages:
            self._known(key).ids.pop(message.id, None)
        return super().put(key, messages)


@breaks("another_content_is_a_conflict")
class SeesNoConflict(Ledger):
    def put(self, key, messages):
        return evolve(super().put(key, messages), conflicts=())


@breaks("a_sealed_epoch_takes_no_unknown_id")
class TakesUnknownIdsWhenSealed(Ledger):
    def put(self, key, messages):
        epoch = self._known(key)
        record, epoch.record = epoch.record, evolve(epoch.record, state="open")
        try:
            return super().put(key, messages)
        finally:
            epoch.record = record


@breaks("a_message_comes_back_whole")
class LosesHeaders(Ledger):
    def put(self, key, messages):
        return super().put(key, [evolve(message, headers={}) for message in messages])


@breaks("a_claim_keeps_the_order")
class SortsClaims(Ledger):
    def pop_ready(self, session, seqs):
        return super().pop_ready(session, sorted(seqs))


@breaks("a_message_has_one_lease")
class LeasesTwice(Ledger):
    def pop_ready(self, session, seqs):
        for seq in seqs:
            self._leases.pop(seq, None)
        return super().pop_ready(session, seqs)


@breaks("a_cancelled_put_is_whole_or_not_at_all")
class PutsInTwoSteps(MemoryStore):
    async def put(self, epoch, messages, *, staged_by=None):
        if staged_by is not None or len(messages) < 20:
            return await super().put(epoch, messages, staged_by=staged_by)
        one = await super().put(epoch, messages[:10])
        two = await super().put(epoch, messages[10:])
        indexes = [*one.indexes, *(index + 10 for index in two.indexes)]
        return PutReceipt([*one.accepted, *two.accepted], indexes, one.duplicates + two.duplicates)


@breaks("a_cancelled_settlement_is_whole_or_not_at_all")
class SettlesInTwoSteps(MemoryStore):
    async def settle(self, session, settlement):
        await trio.lowlevel.checkpoint()
        first = await super().settle(session, evolve(settlement, ready=()))
        await trio.lowlevel.checkpoint()
        await super().settle(session, Settlement(ready=settlement.ready))
        return first


@breaks("every_call_is_a_checkpoint")
class PutsWithoutACheckpoint(MemoryStore):
    async def put(self, epoch, messages, *, staged_by=None):
        if staged_by is not None:
            return await super().put(epoch, messages, staged_by=staged_by)
        return self._ledger.put(epoch, messages)


@breaks("sessions_differ_and_fences_grow")
class KeepsItsFence(Ledger):
    def enter(self, *, lead):
        self._fence = 0
        return super().enter(lead=lead)


@breaks("a_cancelled_claim_is_whole_or_not_at_all")
class KeepsLeasesOfTheDeparted(Ledger):
    def _end_session(self, session, *, clean):
        leases = dict(self._leases)
        super()._end_session(session, clean=clean)
        self._leases.update(leases)


@breaks("an_ended_session_is_lost")
class TrustsEverySession(Ledger):
    def _current(self, session):
        return Session(session.token, session.fence)


@breaks("a_late_lease_is_refused")
class SettlesWithoutALease(Ledger):
    def settle(self, session, settlement):
        self._current(session)
        for lease in settlement.committed:
            if lease.seq in self._live:
                self._leases[lease.seq] = lease
        return super().settle(session, settlement)


@breaks("a_dead_session_is_lost")
class CallsEveryEndClean(Ledger):
    def _end_session(self, session, *, clean):
        super()._end_session(session, clean=True)


@breaks("joining_ends_the_session_before")
class LetsTheFormerStay(Ledger):
    def _current(self, session):
        if self._session is None:
            return super()._current(session)
        return session if session.token <= self._joined else super()._current(session)


@breaks("leaving_late_changes_nothing")
class LeavesForOthers(MemoryStore):
    def join(self, who, *, lead=True):
        return HandsBackEverything(self, super().join(who, lead=lead))


class HandsBackEverything:
    def __init__(self, store, joining):
        self.store, self.joining = store, joining

    async def __aenter__(self):
        return await self.joining.__aenter__()

    async def __aexit__(self, *exc_info):
        self.store._ledger._leases.clear()
        return await self.joining.__aexit__(*exc_info)


@breaks("a_crash_counts_for_what_ran_alone")
class CountsNoCrash(Ledger):
    def enter(self, *, lead):
        session = super().enter(lead=lead)
        for progress in self._progress.values():
            progress.crashes = 0
        return session


@breaks("a_recorded_outcome_is_no_crash")
class ForgetsOutcomes(Ledger):
    def _prepare(self, step, seq, outcome):
        pass


@breaks("a_commit_counts_once")
class HidesTheSecondCommit(Ledger):
    def settle(self, session, settlement):
        settled = super().settle(session, settlement)
        ended = {seq for epoch in self._epochs.values() for seq in epoch.messages if seq not in self._live}
        return evolve(settled, refused=[seq for seq in settled.refused if seq not in ended])


@breaks("riders_count_once")
class CountsRidersAgain(Ledger):
    def settle(self, session, settlement):
        settled = super().settle(session, evolve(settlement, ready=(), records=()))
        rest = super().settle(session, Settlement(ready=settlement.ready, records=settlement.records))
        return Settled(rest.position, settled.accepted, settled.refused)


@breaks("values_are_kept_with_the_commit")
class LosesValues(Ledger):
    def _commit(self, step, committed, values):
        return super()._commit(step, committed, {})


@breaks("an_end_is_kept_whole")
class LosesLetters(Ledger):
    def _end(self, step, ended, *, leads):
        super()._end(step, evolve(ended, letter=None), leads=leads)


@breaks("waits_end_the_lease")
class ForgetsDeferrals(Ledger):
    def _wait(self, step, waits, *, leads):
        super()._wait(step, evolve(waits, depends_on=None), leads=leads)


@breaks("a_replay_starts_the_next_run")
class IgnoresEdits(Ledger):
    def _wait(self, step, waits, *, leads):
        super()._wait(step, evolve(waits, payload=None), leads=leads)


@breaks("versions_only_grow")
class LowersVersions(Ledger):
    def _provide(self, number, resource):
        if resource.version:
            self._scope(number).pop(resource.name, None)
        return super()._provide(number, resource)


@breaks("derived_messages_come_with_their_parent")
class RefusesDerivedWhenSealed(Ledger):
    def _bear(self, step, epoch, derived):
        if epoch.record.state == "open":
            super()._bear(step, epoch, derived)


@breaks("staged_messages_are_invisible")
class ShowsStagedMessages(Ledger):
    def put_staged(self, key, messages, parent):
        epoch = self._known(key)
        record, epoch.record = epoch.record, evolve(epoch.record, state="open")
        receipt = self.put(key, messages)
        epoch.record = record
        return receipt


@breaks("staged_messages_go_with_the_lease")
class KeepsStagedMessages(Ledger):
    def _drop_orphans(self):
        pass


@breaks("a_cancelled_epoch_takes_no_derived_message")
class DerivesIntoCancelledEpochs(Ledger):
    def _derive(self, step, derived, parents):
        for epoch in parents.values():
            epoch.record = evolve(epoch.record, cancel_requested=False)
        super()._derive(step, derived, parents)


@breaks("news_come_in_commit_order")
class TellsAStepInPieces(Ledger):
    def _tell(self, bodies):
        for body in bodies:
            super()._tell([body])


@breaks("a_waiting_reader_wakes")
class WakesOneReader(Ledger):
    def _tell(self, bodies):
        self._feed.advance()
        for identity in list(self._feed.readers)[1:]:
            del self._feed.readers[identity]
        self._feed.publish(bodies)


@breaks("a_recovery_tells_the_run_that_ended")
class ForgetsTheRun(Ledger):
    def _recovery(self):
        for chunk in super()._recovery():
            ended = {body.seq for body in chunk if isinstance(body, Ended)}
            yield [body for body in chunk if isinstance(body, Ended) or getattr(body, "seq", None) not in ended]


@breaks("a_resource_keeps_its_value")
class LosesValuesOfResources(Ledger):
    def notify_ready(self, resources):
        return super().notify_ready([Resource(each.name, each.version, add=each.add) for each in resources])


@breaks("records_are_read_back")
class NeverDeletesRecords(Ledger):
    def _record(self, record):
        if record.value is not None:
            super()._record(record)


@breaks("records_are_read_in_order")
class ScansInOrderOfWriting(Ledger):
    def scan(self, space, after, limit):
        return [(key, value) for key, value in reversed(super().scan(space, "", 100)) if key > after][:limit]


@breaks("a_discard_keeps_the_end")
class ForgetsWhyItWasDiscarded(Ledger):
    def _discard(self, step, seq, *, leads):
        super()._discard(step, seq, leads=leads)
        now = self._progress[seq]
        if now.ended is not None and now.ended.discarded:
            now.ended = Ended(seq, now.ended.end, discarded=True)


@breaks("letters_are_read_in_pages")
class ListsAllThatFailed(Ledger):
    def letters(self, number, after, limit):
        found = [epoch.failed for epoch in self._epochs.values() if number in (None, epoch.key.number)]
        return [self._letter(seq) for seq in sorted(seq for each in found for seq in each) if seq > after][:limit]


@breaks("a_letter_has_the_message_as_it_was_submitted")
class ShowsTheEditedMessage(Ledger):
    def _letter(self, seq):
        found = super()._letter(seq)
        return evolve(found, message=found.edited or found.message)


@breaks("a_discarded_letter_is_gone")
class ListsWhatWasDiscarded(Ledger):
    def letters(self, number, after, limit):
        ends = {seq: now.ended for seq, now in self._progress.items() if now.ended is not None}
        found = sorted(seq for seq, ended in ends.items() if ended.end in ("dead", "expired") and seq > after)
        return [self._letter(seq) for seq in found if number in (None, self._live[seq].key.number)][:limit]


@breaks("a_discarded_letter_pins_nothing")
class PinsForEver(Ledger):
    def _discard(self, step, seq, *, leads):
        super()._discard(step, seq, leads=leads)
        step.unpinned.clear()


@breaks("pruning_spares_dead_letters")
class PrunesDeadLetters(Ledger):
    def prune(self, before, limit):
        for number, epoch in self._epochs.items():
            if epoch.record.state == "completed":
                self._reports[number] = epoch
        return super().prune(before, limit)


@breaks("pruning_forgets_completed_epochs")
class UsesForgottenNumbersAgain(Ledger):
    def prune(self, before, limit):
        removed = super().prune(before, limit)
        self._last_epoch = max(self._epochs, default=0)
        return removed


@breaks("a_sound_store_verifies")
class DistrustsItself(Colocated):
    async def verify(self):
        return ["record 1 is not what it was"]


@breaks("a_colocated_settlement_writes_for_all_or_none")
class WritesForTheRefused(MemoryStore):
    async def settle_with(self, session, settlement, apply):
        await trio.lowlevel.checkpoint()
        apply(None)
        return self._ledger.settle(session, settlement)


@breaks("a_colocated_settlement_is_one_step")
class SettlesBeforeItApplies(Colocated):
    async def settle_with(self, session, settlement, apply):
        settled = await self.settle(session, settlement)
        apply(None)
        return settled


@breaks("a_call_that_began_is_answered")
class OnlySaysItFinishes(MemoryStore):
    @property
    def info(self):
        return evolve(super().info, finishes_calls=True)

    async def put(self, epoch, messages, *, staged_by=None):
        receipt = await super().put(epoch, messages, staged_by=staged_by)
        await trio.lowlevel.checkpoint()
        return receipt


@breaks("an_id_is_remembered_beyond_its_epoch")
class RemembersNothing(Ledger):
    def put_unique(self, key, messages, seconds):
        return self.put(key, messages)


@breaks("a_cancelled_message_is_not_remembered")
class RemembersTheCancelled(Ledger):
    def _end(self, step, ended, *, leads):
        uniques, self._uniques = self._uniques, {}
        super()._end(step, ended, leads=leads)
        self._uniques = uniques


@breaks("an_id_is_remembered_for_its_time")
class RemembersForEver(Ledger):
    def put_unique(self, key, messages, seconds):
        return super().put_unique(key, messages, 1e9)


@breaks("everything_is_there_after_reopening")
class OnlySaysItIsDurable(Reopened):
    pass


def made(broken):
    """Make a broken store, or a store with a broken ledger."""
    if not issubclass(broken, Ledger):
        return broken()
    store = MemoryStore()
    store._ledger = broken(10_000, 100, time.time)
    return store


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
async def test_a_broken_store_is_caught(broken, autojump_clock):
    with pytest.raises(ContractViolation) as caught:
        await check_deferred_store(opens(lambda: made(broken)))
    assert caught.value.promise.partition(":")[0] == broken.promise
