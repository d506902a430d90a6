"""The ledger of a store in memory: everything it keeps, and every atomic step that changes it.

Nothing here waits. Trio switches tasks at checkpoints only, so a synchronous method is an atomic step, with no lock; it
is protected from KeyboardInterrupt, which could otherwise tear it. Steps look before they touch: what can be refused is
refused before anything is changed.

The hot path is `settle` with a few hundred committed leases. It touches one dictionary and one object per message, and
makes facts only if somebody reads. Leases are not indexed by session: there is one session at a time, so its end simply
looks at every message that has not ended.

A message leaves `_live` when it commits, so that `_live` is what can still be claimed, ended or replayed. Its id stays
with the epoch, for duplicates, until the epoch completes. Rejected: fingerprints instead of the messages of an
unfinished epoch. They would save memory, but most payloads are dictionaries, which cannot be hashed, and two of them
can be equal and encode differently.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast

import trio
from attrs import define, evolve, field, frozen

from naviscope_ingest.stores._feed import Feed, Reader
from naviscope_ingest.stores._kept import Kept, KeptEpoch, Scope, same_content
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
    Lease,
    Leased,
    Message,
    Position,
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
    refused: list[Seq] = field(factory=list)
    accepted: list[tuple[Seq, EpochKey, Any]] = field(factory=list)
    births: list[FactBody] = field(factory=list)
    fates: list[FactBody] = field(factory=list)
    others: list[FactBody] = field(factory=list)


class Ledger(Generic[P]):
    """What a store in memory keeps. Its methods are those of the contract, each a single step that does not wait.

    Args:
        keep_reports: of how many completed epochs the report is kept.
        wall: wall-clock time.
    """

    def __init__(self, keep_reports: int, wall: Callable[[], float]) -> None:
        self._keep_reports = keep_reports
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
        self._live: dict[Seq, Kept] = {}
        self._staged: dict[Seq, dict[str, Kept]] = {}
        self._resources: Scope = {}
        self._records: dict[str, dict[str, bytes]] = {}

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
        held = [kept for kept in self._live.values() if kept.lease is not None]
        # In company nobody can tell who brought the process down, and an outcome that is recorded no longer runs.
        if not clean and len(held) == 1 and held[0].advance().prepared is None:
            held[0].advance().crashes += 1
        for kept in held:
            kept.lease = None
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
        epoch = KeptEpoch(EpochRecord(key, "open", options))
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
        new = evolve(
            old,
            state="sealed" if old.state == "open" else old.state,
            cancel_requested=old.cancel_requested or mark == "cancel",
        )
        if new != old:
            epoch.record = new
            self._tell([EpochMarked(new)])
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
            fresh, conflicts = _sorted_out(messages, epoch, self._live, {})
        if fresh and epoch.record.state != "open":
            raise EpochSealed(epoch.key.name, messages[fresh[0]].id)
        born = self._keep(epoch, messages if len(fresh) == len(ids) else [messages[index] for index in fresh])
        self._enliven(epoch, born)
        if born:
            self._tell([_accepted(epoch, born)] if self._feed.readers else ())
        return PutReceipt([kept.seq for kept in born], fresh, len(messages) - len(fresh), conflicts)

    @_atomic
    def put_staged(self, key: EpochKey, messages: Sequence[Message[P]], parent: Lease[P]) -> PutReceipt:
        """Keep messages out of sight until their parent commits."""
        epoch = self._known(key)
        if epoch.key != parent.epoch:
            raise ValueError(f"message {parent.message.id!r} cannot stage into {key}: it belongs to {parent.epoch}")
        holder = self._live.get(parent.seq)
        if holder is None or not holder.is_held_by(parent):
            raise SessionLost(f"the lease of message {parent.message.id!r} is not live: nothing was staged")
        stage = self._staged.get(parent.seq, {})
        fresh, conflicts = _sorted_out(messages, epoch, self._live, stage)
        born = self._keep(epoch, [messages[index] for index in fresh])
        if born:
            self._staged.setdefault(parent.seq, stage).update({kept.message.id: kept for kept in born})
        return PutReceipt([kept.seq for kept in born], fresh, len(messages) - len(fresh), conflicts)

    @_atomic
    def pop_ready(self, session: Session, seqs: Sequence[Seq]) -> list[Lease[P]]:
        """Claim messages."""
        token = self._current(session).token
        live = self._live
        leases: list[Lease[P]] = []
        for seq in seqs:
            kept = live.get(seq)
            if kept is None or kept.lease is not None or kept.end is not None:
                continue
            if kept.progress is None:
                kept.lease = lease = Lease(seq, kept.epoch.record.key, kept.message, token)
                leases.append(lease)
            else:
                leases.append(kept.claim(token))
        if leases:
            self._tell([Leased([lease.seq for lease in leases], token)] if self._feed.readers else ())
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
    def settle(self, session: Session, settlement: Settlement[P]) -> Settled:
        """Apply a settlement."""
        leads = self._current(session).fence is not None
        if settlement.only_commits and not self._feed.readers and not self._staged:
            return self._settle_commits(settlement.committed)
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
            self._derive(step, settlement.derived, {kept.seq: kept.epoch for kept in done})
        if step.has_changed or not _names_messages(settlement):
            self._add_riders(step, settlement)
        if leads:
            for change in settlement.epochs:
                self._change_epoch(step, change)
        if self._staged:
            self._drop_orphans()
        if step.has_changed:
            self._tell([*step.births, *step.fates, *step.others])
        return Settled(self._feed.position, step.accepted, step.refused)

    def _settle_commits(self, committed: Sequence[Lease[P]]) -> Settled:
        """Settle commits that bring nothing and that nobody reads of, as most settlements are."""
        live = self._live
        refused: list[Seq] = []
        for lease in committed:
            seq = lease.seq
            kept = live.get(seq)
            if kept is None or not (kept.lease is lease or kept.is_held_by(lease)):
                refused.append(seq)
                continue
            del live[seq]
            epoch = kept.epoch
            epoch.done[seq] = kept.message
            epoch.unfinished -= 1
        if len(refused) != len(committed):
            self._feed.advance()
        return Settled(self._feed.position, (), refused)

    # The parts of a settlement follow, then what several steps need.

    def _commit(self, step: _Step, committed: Sequence[Lease[P]], values: Mapping[Seq, bytes]) -> list[Kept]:
        live = self._live
        done: list[Kept] = []
        for lease in committed:
            seq = lease.seq
            kept = live.get(seq)
            if kept is None or not (kept.lease is lease or kept.is_held_by(lease)):
                step.refused.append(seq)
                continue
            del live[seq]
            kept.epoch.done[seq] = kept.message
            kept.epoch.unfinished -= 1
            done.append(kept)
        if done:
            step.has_changed = True
            kept_values = _keep_values(done, values) if values else {}
            if step.is_heard:
                step.fates.append(Committed([kept.seq for kept in done], kept_values))
        return done

    def _end(self, step: _Step, ended: Ended, *, leads: bool) -> None:
        kept = self._reachable(ended.seq, leads=leads)
        if kept is None:
            step.refused.append(ended.seq)
            return
        epoch = kept.epoch
        kept.lease = None
        kept.end = ended.end
        kept.advance().ended = ended
        epoch.failed[ended.seq] = kept
        epoch.unfinished -= 1
        epoch.letters += ended.end in ("dead", "expired")
        step.has_changed = True
        step.fates.append(ended)

    def _wait(self, step: _Step, waits: Waits, *, leads: bool) -> None:
        kept = self._live.get(waits.seq)
        run = 0 if kept is None or kept.progress is None else kept.progress.run
        if kept is not None and kept.end is not None and waits.run > run and leads:
            self._revive(kept)
        elif waits.run == run:
            kept = self._reachable(waits.seq, leads=leads)
        else:
            kept = None
        if kept is None:
            step.refused.append(waits.seq)
        elif kept.wait(waits):
            step.has_changed = True
            step.fates.append(waits)

    def _revive(self, kept: Kept) -> None:
        epoch = kept.epoch
        del epoch.failed[kept.seq]
        epoch.unfinished += 1
        epoch.letters -= kept.end in ("dead", "expired")

    def _prepare(self, step: _Step, seq: Seq, outcome: bytes) -> None:
        kept = self._live.get(seq)
        if kept is None or kept.lease is None:
            step.refused.append(seq)
        elif kept.advance().prepared != outcome:
            kept.advance().prepared = outcome
            step.has_changed = True

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
        stage = self._staged.get(derived.parent, {}).values() if derived.staged else ()
        # An id may have become known since it was staged: then the one that is alive is the first.
        born = [kept for kept in stage if kept.message.id not in epoch.ids]
        for kept in born:
            kept.at = self._wall()
        self._enliven(epoch, born)
        fresh, _ = _sorted_out(derived.messages, epoch, self._live, {})
        more = self._keep(epoch, [derived.messages[index] for index in fresh])
        self._enliven(epoch, more)
        born += more
        if born:
            step.births.append(_accepted(epoch, born))
            step.accepted.extend((kept.seq, epoch.key, kept.message) for kept in born)

    def _add_riders(self, step: _Step, settlement: Settlement[P]) -> None:
        for scope, resource in settlement.ready:
            step.others.extend(self._provide(scope, resource))
        for record in settlement.records:
            self._record(record)
        step.has_changed = step.has_changed or bool(step.others or settlement.records)

    def _record(self, record: Record) -> None:
        space = self._records.setdefault(record.space, {})
        if record.value is not None:
            space[record.key] = record.value
            return
        space.pop(record.key, None)
        if not space:
            del self._records[record.space]

    def _change_epoch(self, step: _Step, change: EpochChange) -> None:
        epoch = self._epochs.get(change.epoch.number)
        if epoch is None or not _may_become(epoch, change.state):
            return
        old = epoch.record
        is_repair = change.state == "repairing"
        epoch.record = evolve(
            old,
            state=change.state,
            report=change.report or old.report,
            succeeded=None if is_repair else change.succeeded,
            # A repair lifts the cancellation: what was replayed is meant to run, and to derive.
            cancel_requested=old.cancel_requested and not is_repair,
        )
        step.has_changed = True
        step.others.append(EpochMarked(epoch.record))
        if change.state == "completed":
            epoch.completed_at = self._wall()
            if not epoch.letters:
                step.others.extend(self._free(epoch))

    def _free(self, epoch: KeptEpoch) -> Iterator[FactBody]:
        for seq in epoch.failed:
            del self._live[seq]
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
            holder = self._live.get(parent)
            if holder is None or holder.lease is None:
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

    def _reachable(self, seq: Seq, *, leads: bool) -> Kept | None:
        """Return a message that has not ended, if this session holds it, or leads and nobody holds it."""
        kept = self._live.get(seq)
        if kept is None or kept.end is not None:
            return None
        return kept if leads or kept.lease is not None else None

    def _keep(self, epoch: KeptEpoch, messages: Sequence[Message[P]]) -> list[Kept]:
        """Give messages their places. They are not alive yet."""
        first = self._last_seq + 1
        self._last_seq += len(messages)
        at = self._wall()
        seqs = cast("Sequence[Seq]", range(first, self._last_seq + 1))
        return [Kept(seq, epoch, message, at) for seq, message in zip(seqs, messages, strict=True)]

    def _enliven(self, epoch: KeptEpoch, born: Sequence[Kept]) -> None:
        """Make messages known."""
        if born:
            epoch.times.append((born[0].seq, born[0].at))
        epoch.ids.update({kept.message.id: kept.seq for kept in born})
        self._live.update({kept.seq: kept for kept in born})
        epoch.unfinished += len(born)

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
        records = self._records.get(space, {})
        return {key: records[key] for key in keys if key in records}

    def _recovery(self) -> Iterator[Sequence[FactBody]]:
        """Yield everything that is kept; ended messages too, since dependents, reports and replays need them."""
        epochs = self._epochs.values()
        yield [EpochOpened(epoch.record) for epoch in epochs]
        for epoch in epochs:
            for accepted in epoch.accepted(self._live):
                yield [accepted]
        for epoch in epochs:
            yield list(epoch.fates(self._live))
        yield [Provided(resource, None) for resource in self._resources.values()]
        yield [Provided(resource, epoch.key.number) for epoch in epochs for resource in epoch.scope.values()]


def _sorted_out(
    messages: Sequence[Message[Any]], epoch: KeptEpoch, live: Mapping[Seq, Kept], stage: Mapping[str, Kept]
) -> tuple[list[int], list[str]]:
    """Return the indexes of the messages that are new, and the ids that are known with another content."""
    fresh: dict[str, int] = {}
    conflicts: list[str] = []
    for index, message in enumerate(messages):
        name = message.id
        seq = epoch.ids.get(name)
        if seq is not None:
            known = epoch.message(seq, live)
        elif name in stage:
            known = stage[name].message
        elif name in fresh:
            known = messages[fresh[name]]
        else:
            fresh[name] = index
            continue
        if not same_content(known, message):
            conflicts.append(name)
    return list(fresh.values()), conflicts


def _accepted(epoch: KeptEpoch, born: Sequence[Kept]) -> Accepted[Any]:
    return Accepted(epoch.key, [kept.seq for kept in born], [kept.message for kept in born], born[0].at)


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


def _keep_values(done: Iterable[Kept], values: Mapping[Seq, bytes]) -> dict[Seq, bytes]:
    kept_values: dict[Seq, bytes] = {}
    for kept in done:
        value = values.get(kept.seq)
        if value is not None:
            kept.epoch.values[kept.seq] = kept_values[kept.seq] = value
    return kept_values
