"""The ledger of a store in memory: everything it keeps, and every atomic step that changes it.

Nothing here waits. Trio switches tasks at checkpoints only, so a synchronous method is an atomic step, with no lock; it
is protected from KeyboardInterrupt, which could otherwise tear it. Steps look before they touch: what can be refused is
refused before anything is changed.

The hot path is `commit` with one lease or a few hundred. It touches two dictionaries per message and makes facts
only if somebody reads. Leases are not indexed by session: there is one session at a time, and all of them are its own.

A message leaves `_live` when it commits, so that `_live` is what can still be claimed, ended or replayed. What is
needed for duplicates stays with the epoch until it completes: the message, or its id and a digest. Rejected: digests
of all messages at once. Most epochs are small, and a comparison of payloads tells more than one of digests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import trio
from attrs import define, evolve, field, frozen
from sortedcontainers import SortedDict, SortedSet

from naviscope_ingest.stores._feed import Feed, Reader
from naviscope_ingest.stores._kept import KeptEpoch, Progress, Scope, is_same_claim, same_content
from naviscope_spi import (
    Accepted,
    Committed,
    Derived,
    Ended,
    EpochChange,
    EpochExists,
    EpochForgotten,
    EpochKey,
    EpochMarked,
    EpochOpened,
    EpochOptions,
    EpochRecord,
    EpochSealed,
    FactBody,
    KeptLetter,
    Lease,
    Leased,
    Message,
    Position,
    Prepared,
    Provided,
    PutReceipt,
    Record,
    Resource,
    ResourceForgotten,
    Seq,
    Session,
    SessionEnded,
    SessionLost,
    Settled,
    Settlement,
    UnknownEpoch,
    Waits,
)

__all__ = ["Ledger", "StoreStatistics"]

P = TypeVar("P")

_atomic = trio.lowlevel.enable_ki_protection


@frozen
class StoreStatistics:
    """What a store in memory holds now.

    Attributes:
        epochs: epochs that are kept, those of which only the report is left included.
        messages: messages whose ids are kept.
        unfinished: those of them that have not ended.
        letters: those of them that ended dead or expired.
        staged: messages that wait for the commit of their parent.
        readers: those who read facts.
    """

    epochs: int
    messages: int
    unfinished: int
    letters: int
    staged: int
    readers: int


@define
class _Step:
    """What one settlement did so far. A reader finds new messages first, so that no epoch looks empty too early."""

    is_heard: bool
    has_changed: bool = False
    unpinned: list[KeptEpoch] = field(factory=list)
    refused: list[Seq] = field(factory=list)
    accepted: list[tuple[Seq, EpochKey, Any]] = field(factory=list)
    births: list[FactBody] = field(factory=list)
    fates: list[FactBody] = field(factory=list)
    others: list[FactBody] = field(factory=list)


class _Unique(NamedTuple):
    """A message that is remembered beyond its epoch."""

    until: float
    epoch: int
    seq: Seq


class Ledger(Generic[P]):
    """What a store in memory keeps. Its methods are those of the contract, each a single step that does not wait.

    Args:
        keep_reports: of how many completed epochs the report is kept.
        max_whole: how many committed messages of an epoch are kept whole.
        wall: wall-clock time.
    """

    def __init__(self, keep_reports: int, max_whole: int, wall: Callable[[], float]) -> None:
        self._keep_reports = keep_reports
        self._max_whole = max_whole
        self._wall = wall
        self._feed = Feed()
        self._session: Session | None = None
        self._joined = 0
        self._fence = 0
        self._last_seq = 0
        self._last_epoch = 0
        self._epochs: dict[int, KeptEpoch] = {}
        self._names: dict[str, KeptEpoch] = {}
        self._reports: OrderedDict[int, KeptEpoch] = OrderedDict()
        # Of every message that has not committed, its epoch; its lease, if it is claimed; and what became of it, if it
        # did not stay as it was accepted.
        self._live: dict[Seq, KeptEpoch] = {}
        self._leases: dict[Seq, Lease[P]] = {}
        self._progress: dict[Seq, Progress] = {}
        # By parent: messages that are not alive yet, in their places.
        self._staged: dict[Seq, dict[Seq, Message[P]]] = {}
        self._resources: Scope = {}
        self._records: dict[str, SortedDict[str, bytes]] = {}
        # Dead letters, for those who read them: by place, and by epoch and place.
        self._letters: SortedSet[Seq] = SortedSet()
        self._letters_of: SortedSet[tuple[int, float]] = SortedSet()
        # Ids that are remembered beyond their epoch, by kind and id; and when each is forgotten, the next one first.
        self._uniques: dict[tuple[str, str], _Unique] = {}
        self._until: list[tuple[float, tuple[str, str]]] = []

    def statistics(self) -> StoreStatistics:
        """Count what is held now. Takes time with the number of epochs, not of messages."""
        epochs = self._epochs.values()
        return StoreStatistics(
            epochs=len(epochs),
            messages=sum(len(epoch.ids) for epoch in epochs),
            unfinished=sum(epoch.unfinished for epoch in epochs),
            letters=sum(epoch.letters for epoch in epochs),
            staged=sum(map(len, self._staged.values())),
            readers=len(self._feed.readers),
        )

    @_atomic
    def enter(self, *, lead: bool) -> Session:
        """Begin a session. The one before, if it did not leave, is thought dead."""
        if self._session is not None:
            self._end_session(self._session, clean=False)
        self._joined += 1
        self._fence += lead
        self._session = Session(self._joined, self._fence if lead else None)
        return self._session

    def leave(self, session: Session) -> None:
        """End a session cleanly, unless it has ended already."""
        if self._session is session:
            self._end_session(session, clean=True)

    @_atomic
    def _end_session(self, session: Session, *, clean: bool) -> None:
        # In company nobody can tell who brought the process down, and an outcome that is recorded no longer runs.
        if not clean and len(self._leases) == 1:
            alone = self._advance(next(iter(self._leases)))
            alone.crashes += alone.prepared is None
        self._leases.clear()
        self._staged.clear()
        self._session = None
        self._tell([SessionEnded(session.token, clean)])

    @_atomic
    def open_epoch(self, name: str | None, options: EpochOptions) -> EpochRecord:
        """Open an epoch, or rejoin the kept one of that name."""
        known = None if name is None else self._names.get(name)
        if known is not None:
            if options.if_exists == "refuse":
                raise EpochExists(known.key.name)
            return known.record
        self._last_epoch += 1
        key = EpochKey(self._last_epoch, name or self._unused_name(self._last_epoch))
        epoch = KeptEpoch(EpochRecord(key, "open", options, opened_at=self._wall()))
        self._epochs[key.number] = self._names[key.name] = epoch
        self._tell([EpochOpened(epoch.record)])
        return epoch.record

    def _unused_name(self, number: int) -> str:
        name = f"epoch-{number}"
        while name in self._names:
            name += "+"
        return name

    @_atomic
    def mark_epoch(self, key: EpochKey, mark: Literal["seal", "cancel"]) -> EpochRecord:
        """Seal an epoch, or ask for its cancellation."""
        epoch = self._known(key)
        old = epoch.record
        if old.state == "completed":
            return old
        cancels = mark == "cancel" and not old.cancel_requested
        if old.state == "open" or cancels:
            seals = old.state == "open"
            epoch.record = EpochRecord(
                old.key,
                "sealed" if seals else old.state,
                old.options,
                old.cancel_requested or cancels,
                old.succeeded,
                old.report,
                old.opened_at,
                self._wall() if seals else old.sealed_at,
            )
            self._tell([EpochMarked(epoch.record)])
        return epoch.record

    @_atomic
    def put(self, key: EpochKey, messages: Sequence[Message[P]]) -> PutReceipt:
        """Accept messages."""
        epoch = self._known(key)
        ids = [message.id for message in messages]
        fresh: Sequence[int] = range(len(ids))
        conflicts: list[str] = []
        # Nearly always all of them are new, which sets find out quicker than a look at each.
        if len(set(ids)) != len(ids) or not epoch.ids.keys().isdisjoint(ids):
            fresh, conflicts = _sorted_out(messages, epoch, {})
        if fresh and epoch.record.state != "open":
            raise EpochSealed(epoch.key.name, messages[fresh[0]].id)
        new = messages if len(fresh) == len(ids) else [messages[index] for index in fresh]
        seqs = self._places(len(new))
        if seqs:
            at = self._enliven(epoch, seqs, new, ids if new is messages else None)
            self._tell([Accepted(epoch.key, seqs, new, at)] if self._feed.readers else ())
        return PutReceipt(seqs, fresh, len(messages) - len(fresh), conflicts)

    @_atomic
    def put_unique(self, key: EpochKey, messages: Sequence[Message[P]], seconds: float) -> PutReceipt:
        """Accept messages that were not accepted so in another epoch before, and remember them."""
        number, now = self._known(key).key.number, self._wall()
        while self._until and self._until[0][0] <= now:
            until, name = heappop(self._until)
            if name in self._uniques and self._uniques[name].until == until:
                del self._uniques[name]
        kept = [
            index
            for index, message in enumerate(messages)
            if self._uniques.get((message.kind, message.id), _Unique(0, number, Seq(0))).epoch == number
        ]
        receipt = self.put(key, [messages[index] for index in kept])
        indexes = [kept[index] for index in receipt.indexes]
        until = now + seconds
        for seq, index in zip(receipt.accepted, indexes, strict=True):
            if until > now:
                name = (messages[index].kind, messages[index].id)
                self._uniques[name] = _Unique(until, number, seq)
                heappush(self._until, (until, name))
        return PutReceipt(receipt.accepted, indexes, len(messages) - len(indexes), receipt.conflicts)

    @_atomic
    def put_staged(self, key: EpochKey, messages: Sequence[Message[P]], parent: Lease[P]) -> PutReceipt:
        """Keep messages out of sight until their parent commits."""
        epoch = self._known(key)
        if epoch.key != parent.epoch:
            raise ValueError(f"message {parent.message.id!r} cannot stage into {key}: it belongs to {parent.epoch}")
        lease = self._leases.get(parent.seq)
        if lease is None or not is_same_claim(lease, parent):
            raise SessionLost(f"the lease of message {parent.message.id!r} is not live: nothing was staged")
        stage = self._staged.get(parent.seq, {})
        fresh, conflicts = _sorted_out(messages, epoch, {message.id: message for message in stage.values()})
        seqs = self._places(len(fresh))
        if seqs:
            new = zip(seqs, (messages[index] for index in fresh), strict=True)
            self._staged.setdefault(parent.seq, stage).update(new)
        return PutReceipt(seqs, fresh, len(messages) - len(fresh), conflicts)

    @_atomic
    def pop_ready(self, session: Session, seqs: Sequence[Seq]) -> list[Lease[P]]:
        """Claim messages."""
        if session is not self._session:
            session = self._current(session)
        token = session.token
        live, held, progress = self._live, self._leases, self._progress
        leases: list[Lease[P]] = []
        for seq in seqs:
            epoch = live.get(seq)
            if epoch is None or seq in held:
                continue
            if progress and (now := progress.get(seq)) is not None:
                if now.ended is not None:
                    continue
                message = now.edited or epoch.messages[seq]
                lease = Lease(seq, epoch.key, message, token, now.run, now.attempt, now.crashes, now.prepared)
            else:
                lease = Lease(seq, epoch.record.key, epoch.messages[seq], token)
            held[seq] = lease
            leases.append(lease)
        if leases:
            self._feed.position += 1  # type: ignore[assignment]  # as `advance` does
            if self._feed.readers:
                self._feed.publish([Leased([lease.seq for lease in leases], token)])
        return leases

    @_atomic
    def notify_ready(self, resources: Sequence[Resource]) -> Position:
        """Provide resources globally."""
        provided = [fact for resource in resources for fact in self._provide(None, resource)]
        if provided:
            self._tell(provided)
        return self._feed.position

    @_atomic
    def forget_ready(self, names: Sequence[str]) -> Position:
        """Take global resources back."""
        known = [name for name in names if self._resources.pop(name, None) is not None]
        if known:
            self._tell([ResourceForgotten(name) for name in known])
        return self._feed.position

    @_atomic
    def prune(self, before: float, limit: int) -> int:
        """Forget epochs that completed before a time, the oldest first."""
        forgotten: list[FactBody] = []
        while self._reports and len(forgotten) < limit:
            oldest = next(iter(self._reports.values()))
            if oldest.completed_at is None or oldest.completed_at >= before:
                break
            forgotten.append(self._forget_oldest())
        if forgotten:
            self._tell(forgotten)
        return len(forgotten)

    @_atomic
    def commit(self, session: Session, leases: Sequence[Lease[P]]) -> Sequence[Seq]:
        """Commit messages that bring nothing, as most do; return those that are refused."""
        if session is not self._session:
            session = self._current(session)
        if self._feed.readers or self._staged:
            return self.settle(session, Settlement(leases)).refused
        live, held, progress = self._live, self._leases, self._progress
        refused: list[Seq] = []
        for lease in leases:
            seq = lease.seq
            mine = held.get(seq)
            if mine is not lease and (mine is None or not is_same_claim(mine, lease)):
                refused.append(seq)
                continue
            del held[seq]
            live.pop(seq).unfinished -= 1
            if progress:
                progress.pop(seq, None)
        if len(refused) != len(leases):
            self._feed.position += 1  # type: ignore[assignment]  # as `advance` does
        return refused

    @_atomic
    def settle(self, session: Session, settlement: Settlement[P]) -> Settled:
        """Apply a settlement."""
        if session is not self._session:
            session = self._current(session)
        leads = session.fence is not None
        _check_parents(settlement)
        step = _Step(is_heard=bool(self._feed.readers))
        done = self._commit(step, settlement.committed, settlement.values)
        for ended in settlement.ended:
            self._end(step, ended, leads=leads)
        for waits in settlement.waits:
            self._wait(step, waits, leads=leads)
        for seq, outcome in settlement.prepared.items():
            self._prepare(step, seq, outcome)
        if settlement.derived:
            self._derive(step, settlement.derived, done)
        if step.has_changed or not _names_messages(settlement):
            self._add_riders(step, settlement)
        if leads:
            for change in settlement.epochs:
                self._change_epoch(step, change)
        for epoch in step.unpinned:
            if epoch.record.state == "completed" and not (epoch.letters or epoch.unfinished or epoch.is_freed):
                step.others.extend(self._free(epoch))
        if self._staged:
            self._drop_orphans()
        if step.has_changed:
            self._tell([*step.births, *step.fates, *step.others])
        return Settled(self._feed.position, step.accepted, step.refused)

    # The parts of a settlement follow, then what several steps need.

    def _commit(self, step: _Step, committed: Sequence[Lease[P]], values: Mapping[Seq, bytes]) -> dict[Seq, KeptEpoch]:
        done: dict[Seq, KeptEpoch] = {}
        for lease in committed:
            seq = lease.seq
            mine = self._leases.get(seq)
            if mine is None or not is_same_claim(mine, lease):
                step.refused.append(seq)
                continue
            del self._leases[seq]
            self._progress.pop(seq, None)
            done[seq] = epoch = self._live.pop(seq)
            epoch.unfinished -= 1
        if done:
            step.has_changed = True
            kept_values = _keep_values(done, values) if values else {}
            if step.is_heard:
                step.fates.append(Committed(list(done), kept_values))
        return done

    def _end(self, step: _Step, ended: Ended, *, leads: bool) -> None:
        seq = ended.seq
        if ended.discarded:
            self._discard(step, seq, leads=leads)
            return
        epoch = self._reachable(seq, leads=leads)
        if epoch is None:
            step.refused.append(seq)
            return
        self._leases.pop(seq, None)
        self._advance(seq).ended = ended
        epoch.failed[seq] = None
        epoch.unfinished -= 1
        if ended.end in ("dead", "expired"):
            epoch.letters += 1
            self._letters.add(seq)
            self._letters_of.add((epoch.key.number, seq))
        if ended.end == "cancelled" and self._uniques:
            name = (epoch.messages[seq].kind, epoch.messages[seq].id)
            if name in self._uniques and self._uniques[name].seq == seq:
                del self._uniques[name]
        step.has_changed = True
        step.fates.append(ended)

    def _discard(self, step: _Step, seq: Seq, *, leads: bool) -> None:
        if not leads or seq not in self._letters:
            step.refused.append(seq)
            return
        epoch, now = self._live[seq], self._progress[seq]
        assert now.ended is not None
        now.ended = evolve(now.ended, discarded=True)
        self._drop_letter(seq, epoch)
        step.has_changed = True
        step.fates.append(now.ended)
        step.unpinned.append(epoch)

    def _wait(self, step: _Step, waits: Waits, *, leads: bool) -> None:
        seq = waits.seq
        epoch, now = self._live.get(seq), self._progress.get(seq, Progress())
        if epoch is not None and now.ended is not None and waits.run > now.run and leads:
            self._revive(seq, epoch)
        elif waits.run == now.run:
            epoch = self._reachable(seq, leads=leads)
        else:
            epoch = None
        if epoch is None:
            step.refused.append(seq)
            return
        lease = self._leases.pop(seq, None)
        self._progress[seq] = then = now.then(waits, epoch.messages[seq])
        if lease is not None or now.ended is not None or not now.shows(then):
            step.has_changed = True
            step.fates.append(waits)

    def _revive(self, seq: Seq, epoch: KeptEpoch) -> None:
        del epoch.failed[seq]
        epoch.unfinished += 1
        if seq in self._letters:
            self._drop_letter(seq, epoch)

    def _drop_letter(self, seq: Seq, epoch: KeptEpoch) -> None:
        epoch.letters -= 1
        self._letters.remove(seq)
        self._letters_of.remove((epoch.key.number, seq))

    def _prepare(self, step: _Step, seq: Seq, outcome: bytes) -> None:
        if seq not in self._leases:
            step.refused.append(seq)
        elif self._advance(seq).prepared != outcome:
            self._advance(seq).prepared = outcome
            step.has_changed = True
            step.fates.append(Prepared([seq]))

    def _derive(self, step: _Step, derived: Iterable[Derived[P]], parents: Mapping[Seq, KeptEpoch]) -> None:
        for each in derived:
            epoch = parents.get(each.parent)
            if epoch is None:
                continue
            if not epoch.record.cancel_requested:
                self._bear(step, epoch, each)
            for resource in each.ready:
                step.others.extend(self._provide(epoch.key.number, resource))

    def _bear(self, step: _Step, epoch: KeptEpoch, derived: Derived[P]) -> None:
        stage = self._staged.get(derived.parent, {}) if derived.staged else {}
        # An id may have become known since it was staged: then the one that is alive is the first.
        born = {seq: message for seq, message in stage.items() if message.id not in epoch.ids}
        for seqs in _runs(born):
            self._enliven(epoch, seqs, [born[seq] for seq in seqs])
        fresh, _ = _sorted_out(derived.messages, epoch, {})
        more = [derived.messages[index] for index in fresh]
        places = self._places(len(more))
        if places:
            self._enliven(epoch, places, more)
            born.update(zip(places, more, strict=True))
        if born:
            step.births.append(Accepted(epoch.key, list(born), list(born.values()), self._wall()))
            step.accepted.extend((seq, epoch.key, message) for seq, message in born.items())

    def _add_riders(self, step: _Step, settlement: Settlement[P]) -> None:
        for scope, resource in settlement.ready:
            step.others.extend(self._provide(scope, resource))
        for record in settlement.records:
            self._record(record)
        step.has_changed = step.has_changed or bool(step.others or settlement.records)

    def _record(self, record: Record) -> None:
        space = self._records.get(record.space)
        if record.value is not None:
            if space is None:
                space = self._records[record.space] = SortedDict()
            space[record.key] = record.value
        elif space is not None:
            space.pop(record.key, None)
            if not space:
                del self._records[record.space]

    def _change_epoch(self, step: _Step, change: EpochChange) -> None:
        epoch = self._epochs.get(change.epoch.number)
        if epoch is None or not _may_become(epoch, change.state):
            return
        old = epoch.record
        is_repair = change.state == "repairing"
        epoch.record = EpochRecord(
            old.key,
            change.state,
            old.options,
            # A repair lifts the cancellation: what was replayed is meant to run, and to derive.
            cancel_requested=old.cancel_requested and not is_repair,
            succeeded=None if is_repair else change.succeeded,
            report=change.report or old.report,
            opened_at=old.opened_at,
            sealed_at=old.sealed_at,
        )
        step.has_changed = True
        if step.is_heard:
            step.others.append(EpochMarked(epoch.record))
        if change.state == "completed":
            epoch.completed_at = self._wall()
            if not epoch.letters:
                step.others.extend(self._free(epoch))

    def _free(self, epoch: KeptEpoch) -> Iterator[FactBody]:
        for seq in epoch.failed:
            del self._live[seq]
            del self._progress[seq]
        epoch.free()
        self._reports[epoch.key.number] = epoch
        while len(self._reports) > self._keep_reports:
            yield self._forget_oldest()

    def _forget_oldest(self) -> EpochForgotten:
        number, epoch = self._reports.popitem(last=False)
        del self._epochs[number]
        del self._names[epoch.key.name]
        return EpochForgotten(epoch.key)

    def _drop_orphans(self) -> None:
        # Staged messages live as long as the lease of their parent, and there are few such parents.
        for parent in list(self._staged):
            if parent not in self._leases:
                del self._staged[parent]

    def _tell(self, bodies: Iterable[FactBody]) -> None:
        """End an atomic step: move on, and hand out its facts if anybody reads."""
        self._feed.advance()
        if self._feed.readers:
            self._feed.publish(bodies)

    def _current(self, session: Session) -> Session:
        """Return the session as the store knows it."""
        if self._session is None or self._session.token != session.token:
            raise SessionLost(f"session {session.token} has ended: it left, or another one joined after it")
        return self._session

    def _known(self, key: EpochKey) -> KeptEpoch:
        epoch = self._epochs.get(key.number)
        if epoch is None:
            raise UnknownEpoch(key.name)
        return epoch

    def _reachable(self, seq: Seq, *, leads: bool) -> KeptEpoch | None:
        """Return the epoch of a message that has not ended, if this session holds it, or leads."""
        now = self._progress.get(seq)
        if now is not None and now.ended is not None:
            return None
        return self._live.get(seq) if leads or seq in self._leases else None

    def _advance(self, seq: Seq) -> Progress:
        """Return what became of a message, which from now on is kept."""
        return self._progress.setdefault(seq, Progress())

    def _places(self, count: int) -> Sequence[Seq]:
        """Give out places. As a tuple: a range makes a new number for each dictionary that it is put into."""
        first = self._last_seq + 1
        self._last_seq += count
        return cast("Sequence[Seq]", (*range(first, self._last_seq + 1),))

    def _enliven(
        self, epoch: KeptEpoch, seqs: Sequence[Seq], messages: Sequence[Message[P]], ids: Sequence[str] | None = None
    ) -> float:
        """Make messages known whose places follow each other; return when that was."""
        at = self._wall()
        epoch.add(seqs, messages, [message.id for message in messages] if ids is None else ids, at)
        epoch.shrink(self._live, 3 * len(seqs), self._max_whole)
        self._live.update(dict.fromkeys(seqs, epoch))
        return at

    def _provide(self, number: int | None, resource: Resource) -> Iterator[Provided]:
        """Provide a resource, globally or in the scope of an epoch; yield what it now is, if that is news."""
        scope = self._scope(number)
        if scope is None:
            return
        now = _merged(scope.get(resource.name), resource)
        if now is not None:
            scope[resource.name] = now
            yield Provided(now, number)

    def _scope(self, number: int | None) -> Scope | None:
        if number is None:
            return self._resources
        epoch = self._epochs.get(number)
        return None if epoch is None or epoch.is_freed else epoch.scope

    def facts(self, after: Position | None) -> Reader:
        """Read facts, from the present position or from the start."""
        if after is not None and after == self._feed.position:
            return self._feed.follow()
        return self._feed.recover(self._recovery())

    def read(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the values of those keys that exist."""
        records: Mapping[str, bytes] = self._records.get(space) or {}
        return {key: records[key] for key in keys if key in records}

    def scan(self, space: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return a page of records, in order of their keys."""
        records = self._records.get(space)
        if records is None:
            return []
        return [(key, records[key]) for key in islice(records.irange(after, inclusive=(False, True)), limit)]

    def letters(self, number: int | None, after: Seq, limit: int) -> list[KeptLetter[P]]:
        """Return a page of dead letters, in order of place."""
        seqs: Iterable[Seq]
        if number is None:
            seqs = self._letters.irange(after, inclusive=(False, True))
        else:
            found = self._letters_of.irange((number, after), (number, inf), inclusive=(False, True))
            seqs = (cast("Seq", seq) for _, seq in found)
        return [self._letter(seq) for seq in islice(seqs, limit)]

    def letter(self, seq: Seq) -> KeptLetter[P] | None:
        """Return one dead letter."""
        return self._letter(seq) if seq in self._letters else None

    def _letter(self, seq: Seq) -> KeptLetter[P]:
        epoch, now = self._live[seq], self._progress[seq]
        assert now.ended is not None
        at = epoch.accepted_at(seq)
        return KeptLetter(seq, epoch.key, epoch.messages[seq], now.ended, now.run, at, now.edited)

    def _recovery(self) -> Iterator[Sequence[FactBody]]:
        """Yield everything that is kept; ended messages too, since dependents, reports and replays need them."""
        epochs = self._epochs.values()
        yield [EpochOpened(epoch.record) for epoch in epochs]
        for epoch in epochs:
            for accepted in epoch.accepted():
                yield [accepted]
        for epoch in epochs:
            yield list(epoch.fates(self._live, self._progress, self._leases))
        yield [Provided(resource, None) for resource in self._resources.values()]
        yield [Provided(resource, epoch.key.number) for epoch in epochs for resource in epoch.scope.values()]


def _sorted_out(
    messages: Sequence[Message[Any]], epoch: KeptEpoch, stage: Mapping[str, Message[Any]]
) -> tuple[list[int], list[str]]:
    """Return the indexes of the messages that are new, and the ids that are known with another content."""
    fresh: dict[str, int] = {}
    conflicts: list[str] = []
    for index, message in enumerate(messages):
        name = message.id
        is_same = epoch.holds(message)
        if is_same is None:
            known = stage.get(name) or (messages[fresh[name]] if name in fresh else None)
            if known is None:
                fresh[name] = index
                continue
            is_same = same_content(known, message)
        if not is_same:
            conflicts.append(name)
    return list(fresh.values()), conflicts


def _runs(seqs: Iterable[Seq]) -> Iterator[Sequence[Seq]]:
    """Part places, which grow, into runs that follow each other."""
    run: list[Seq] = []
    for seq in seqs:
        if run and seq != run[-1] + 1:
            yield run
            run = []
        run.append(seq)
    if run:
        yield run


def _merged(old: Resource | None, new: Resource) -> Resource | None:
    """Return what a resource becomes, or None if it stays as it is."""
    if old is None:
        return Resource(new.name, new.version + new.add, value=new.value)
    version = max(old.version, new.version) + new.add
    if version == old.version:
        return None
    return Resource(new.name, version, value=old.value if new.value is None else new.value)


def _may_become(epoch: KeptEpoch, state: str) -> bool:
    """Whether a change is a step forward. One that comes again is none, nor is one that would bury a message."""
    now = epoch.record.state
    if state == "completed":
        return now in ("sealed", "repairing") and not epoch.unfinished
    return now == "completed" and not epoch.is_freed


def _check_parents(settlement: Settlement[Any]) -> None:
    if not (settlement.derived or settlement.values):
        return
    committed = {lease.seq for lease in settlement.committed}
    named = {each.parent for each in settlement.derived} | settlement.values.keys()
    if not named <= committed:
        raise ValueError(
            f"derived or values name messages {sorted(named - committed)[:5]}, which are not among committed: "
            "only a message that commits with this settlement can bring something"
        )


def _names_messages(settlement: Settlement[Any]) -> bool:
    return bool(settlement.committed or settlement.ended or settlement.waits or settlement.prepared)


def _keep_values(done: Mapping[Seq, KeptEpoch], values: Mapping[Seq, bytes]) -> dict[Seq, bytes]:
    kept_values = {seq: values[seq] for seq in done if seq in values}
    for seq, value in kept_values.items():
        done[seq].values[seq] = value
    return kept_values
