"""Settling: ends, waits, recorded outcomes, derived messages, resources, records and epochs, in one atomic step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from attrs import define, field

from naviscope_ingest._encoding import Content, decode_depends_on, encode_depends_on
from naviscope_ingest.stores.sqlite.entries import EpochRow, Held
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.recent import MessageRow
from naviscope_ingest.stores.sqlite.rows import CODES, COMMITTED, DISCARDED, decode_options, encode_causes, ended_of
from naviscope_ingest.stores.sqlite.stages import ALIVE, DROPPED, Birth, Joined, Lazy, Stage
from naviscope_ingest.stores.sqlite.steps import insert_messages, known_content, make_room, provide
from naviscope_ingest.stores.sqlite.uniques import forget_unique, has_uniques
from naviscope_spi import (
    Accepted,
    Committed,
    DependsOn,
    Derived,
    Ended,
    EpochChange,
    EpochKey,
    EpochMarked,
    FactBody,
    Lease,
    Message,
    Prepared,
    Record,
    Seq,
    Session,
    Settled,
    Settlement,
    Waits,
)

__all__ = ["settle"]

_CANCELLED = CODES["cancelled"]


@define
class _Step:
    """What a settlement did so far. A reader finds new messages first, so that no epoch looks empty too early."""

    has_changed: bool = False
    has_revived: bool = False
    unpinned: list[EpochRow] = field(factory=list)
    refused: list[Seq] = field(factory=list)
    accepted: list[Sequence[tuple[Seq, EpochKey, Any]]] = field(factory=list)
    births: list[FactBody] = field(factory=list)
    fates: list[FactBody] = field(factory=list)
    others: list[FactBody] = field(factory=list)


class _Progress(NamedTuple):
    """A row of `progress`, without place and hash."""

    run: int = 0
    attempt: int = 0
    crashes: int = 0
    not_before: float | None = None
    added: bytes | None = None
    prepared: bytes | None = None
    edited_codec: int | None = None
    edited: bytes | None = None

    @property
    def shown(self) -> tuple[object, ...]:
        """What makes a difference to others."""
        return self.run, self.attempt, self.not_before, self.added, self.prepared


def settle(
    ledger: Ledger, session: Session, settlement: Settlement[Any], contents: Sequence[Sequence[Content]], retain: float
) -> Settled:
    """Apply a settlement."""
    leads = ledger.current(session).fence is not None
    _check_parents(settlement)
    step = _Step()
    done = _commit(ledger, step, settlement.committed, settlement.values)
    for ended in settlement.ended:
        _end(ledger, step, ended, leads=leads)
    for waits in settlement.waits:
        _wait(ledger, step, waits, leads=leads)
    for seq, outcome in settlement.prepared.items():
        _prepare(ledger, step, seq, outcome)
    for derived, encoded in zip(settlement.derived, contents, strict=True):
        if derived.parent in done:
            _derive(ledger, step, derived, encoded, done[derived.parent])
    if step.has_changed or not _names_messages(settlement):
        _add_riders(ledger, step, settlement)
    if leads:
        for change in settlement.epochs:
            _change_epoch(ledger, step, change, retain)
    for epoch in step.unpinned:
        if epoch.state == "completed" and not (epoch.letters or epoch.unfinished or epoch.freed):
            _free(ledger, epoch, retain)
    if settlement.waits:
        ledger.tidy(is_revived=step.has_revived)
    if ledger.stages or ledger.contested:
        _drop_orphans(ledger)
    if step.has_changed:
        ledger.tell([*step.births, *step.fates, *step.others])
    return Settled(ledger.position, Joined(step.accepted) if step.accepted else (), step.refused)


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


def _commit(
    ledger: Ledger, step: _Step, committed: Sequence[Lease[Any]], values: Mapping[Seq, bytes]
) -> dict[Seq, int]:
    """Commit what is leased; return the epoch of each."""
    leases = ledger.leases
    token = ledger.state.token
    ended: dict[Seq, Held] = {}
    for lease in committed:
        seq = lease.seq
        held = leases.get(seq)
        if held is None or lease.token != token or held.run != lease.run or held.attempt != lease.attempt:
            step.refused.append(seq)
            continue
        del leases[seq]
        ended[seq] = held
        if held.has_progress:
            ledger.drop_row("progress", (seq,))
    if not ended:
        return {}
    ledger.end_leases(ended)
    done = {seq: held.epoch for seq, held in ended.items()}
    _write_commits(ledger, done, values)
    step.has_changed = True
    if ledger.is_heard:
        step.fates.append(Committed(list(done), {seq: values[seq] for seq in done if seq in values}))
    return done


def _write_commits(ledger: Ledger, done: Mapping[Seq, int], values: Mapping[Seq, bytes]) -> None:
    if values:
        rows = [("ends", seq, epoch, COMMITTED, values.get(seq), None, None) for seq, epoch in done.items()]
    else:
        rows = [("ends", seq, epoch, COMMITTED, None, None, None) for seq, epoch in done.items()]
    ledger.insert(rows)
    for number, count in Counter(done.values()).items():
        _epoch(ledger, number).unfinished -= count


def _epoch(ledger: Ledger, number: int) -> EpochRow:
    row = ledger.epoch(number)
    assert row is not None, "an epoch with unfinished messages is kept"
    return ledger.changing(row)


class _Seen(NamedTuple):
    """A message as it stands."""

    epoch: int
    end: int | None
    progress: _Progress | None


def _look(ledger: Ledger, seq: Seq) -> _Seen | None:
    found = fetch(
        ledger.connection,
        "select m.epoch, e.end, p.seq, p.run, p.attempt, p.crashes, p.not_before, p.added, p.prepared, p.edited_codec,"
        " p.edited from messages m left join ends e on e.seq = m.seq left join progress p on p.seq = m.seq"
        " where m.seq = ?",
        (seq,),
    )
    if not found or ledger.stages.at(seq) is not None:
        return None
    epoch, end, has, *progress = found[0]
    return _Seen(epoch, end, None if has is None else _Progress(*progress))


def _end(ledger: Ledger, step: _Step, ended: Ended, *, leads: bool) -> None:
    seq = ended.seq
    if ended.discarded:
        _discard(ledger, step, seq, leads=leads)
        return
    held = ledger.leases.get(seq)
    if held is not None:
        number = held.epoch
    else:
        seen = _look(ledger, seq) if leads else None
        if seen is None or seen.end is not None:
            step.refused.append(seq)
            return
        number = seen.epoch
    ledger.release(seq, is_ended=True)
    code = CODES[ended.end]
    ledger.recent.take((seq,))
    ledger.insert([("ends", seq, number, code, None, encode_causes(ended), ended.letter)])
    epoch = _epoch(ledger, number)
    epoch.unfinished -= 1
    epoch.letters += code in DISCARDED
    if code == _CANCELLED and has_uniques(ledger):
        forget_unique(ledger, seq)
    step.has_changed = True
    step.fates.append(ended)


def _discard(ledger: Ledger, step: _Step, seq: Seq, *, leads: bool) -> None:
    """Give a dead letter up: its end stays, and pins the epoch no longer."""
    rows = (
        fetch(ledger.connection, "select epoch, end, causes, letter from ends where seq = ?", (seq,)) if leads else []
    )
    if not rows or rows[0][1] not in DISCARDED:
        step.refused.append(seq)
        return
    number, end, causes, letter = rows[0]
    row = (seq, number, DISCARDED[end], None, causes, letter)
    ledger.put_row("ends", (seq,), row)
    epoch = _epoch(ledger, number)
    epoch.letters -= 1
    step.has_changed = True
    step.fates.append(ended_of(seq, *row[2:3], *row[4:]))
    step.unpinned.append(epoch)


def _wait(ledger: Ledger, step: _Step, waits: Waits, *, leads: bool) -> None:
    seq = waits.seq
    seen = _look(ledger, seq)
    run = 0 if seen is None or seen.progress is None else seen.progress.run
    if seen is None:
        step.refused.append(seq)
        return
    if seen.end not in (None, COMMITTED) and waits.run > run and leads and not _is_freed(ledger, seen.epoch):
        _revive(ledger, seq, seen)
        step.has_revived = True
    elif waits.run != run or seen.end is not None or not (leads or seq in ledger.leases):
        step.refused.append(seq)
        return
    now = seen.progress or _Progress()
    edited = None if waits.payload is None else _edited(ledger, waits)
    then = _after(now, waits, edited)
    changed = seq in ledger.leases or seen.end is not None or now.shown != then.shown
    ledger.release(seq, is_ended=False)
    ledger.recent.take((seq,))
    if then != (seen.progress or _Progress()):
        ledger.put_row("progress", (seq,), (seq, *then))
    if changed:
        step.has_changed = True
        step.fates.append(waits)


def _is_freed(ledger: Ledger, number: int) -> bool:
    epoch = ledger.epoch(number)
    return epoch is None or bool(epoch.freed)


def _edited(ledger: Ledger, waits: Waits) -> tuple[int, bytes]:
    ((name, head),) = fetch(ledger.connection, "select id, head from messages where seq = ?", (waits.seq,))
    return ledger.scribe.write_payload(name, ledger.scribe.kind_of(head), waits.payload)


def _after(now: _Progress, waits: Waits, edited: tuple[int, bytes] | None) -> _Progress:
    grows = waits.run > now.run
    added = now.added
    if waits.depends_on is not None:
        before: DependsOn = () if now.added is None else decode_depends_on(now.added)
        added = encode_depends_on(tuple(dict.fromkeys((*before, *waits.depends_on))))
    # A recorded outcome belongs to the attempt that made it: handed back it stays, run again it goes.
    is_same_attempt = (waits.run, waits.attempt) == (now.run, now.attempt) and waits.depends_on is None
    codec, payload = edited if grows and edited is not None else (now.edited_codec, now.edited)
    return _Progress(
        waits.run,
        waits.attempt,
        0 if grows else now.crashes,
        None if waits.not_before is None else float(waits.not_before),
        added,
        now.prepared if is_same_attempt else None,
        codec,
        payload,
    )


def _revive(ledger: Ledger, seq: Seq, seen: _Seen) -> None:
    ledger.drop_row("ends", (seq,))
    epoch = _epoch(ledger, seen.epoch)
    epoch.unfinished += 1
    epoch.letters -= seen.end in DISCARDED


def _prepare(ledger: Ledger, step: _Step, seq: Seq, outcome: bytes) -> None:
    held = ledger.leases.get(seq)
    if held is None:
        step.refused.append(seq)
        return
    seen = _look(ledger, seq) if held.has_progress else None
    now = (seen and seen.progress) or _Progress()
    if now.prepared != outcome:
        ledger.put_row("progress", (seq,), (seq, *now._replace(prepared=outcome)))
        ledger.note_progress(seq)
        step.has_changed = True
        step.fates.append(Prepared([seq]))


def _derive(ledger: Ledger, step: _Step, derived: Derived[Any], contents: Sequence[Content], number: int) -> None:
    epoch = ledger.epoch(number)
    assert epoch is not None, "an epoch with unfinished messages is kept"
    if not epoch.cancel:
        _bear(ledger, step, epoch, derived, contents)
    for resource in derived.ready:
        step.others.extend(provide(ledger, number, resource))


def _bear(ledger: Ledger, step: _Step, epoch: EpochRow, derived: Derived[Any], contents: Sequence[Content]) -> None:
    born = _bring_alive(ledger, epoch, derived.parent) if derived.staged else []
    messages: Sequence[Message[Any]] = derived.messages
    first = ledger.state.last_seq + 1
    are_different = len({message.id for message in messages}) == len(messages)
    if not (are_different and insert_messages(ledger, epoch, messages, contents, tell=False)):
        messages, fresh = _unknown(ledger, epoch, messages, contents)
        make_room(ledger, epoch.number, [message.id for message in messages])
        insert_messages(ledger, epoch, messages, fresh, tell=False)
    seqs = [Seq(first + index) for index in range(len(messages))]
    key, outline = epoch.key, ledger.scribe.outline
    if born:
        outlines = Lazy(born, lambda birth: outline(*birth[1:]))
        step.accepted.append(Lazy(born, lambda birth: (birth[0], key, outline(*birth[1:]))))
        step.births.append(Accepted(key, Lazy(born, itemgetter(0)), outlines, ledger.now))
    if messages:
        step.accepted.append([(seq, key, message) for seq, message in zip(seqs, messages, strict=True)])
        step.births.append(Accepted(key, seqs, messages, ledger.now))


def _unknown(
    ledger: Ledger, epoch: EpochRow, messages: Sequence[Message[Any]], contents: Sequence[Content]
) -> tuple[list[Message[Any]], list[Content]]:
    seen: set[str] = set()
    chosen: list[Message[Any]] = []
    fresh: list[Content] = []
    for message, content in zip(messages, contents, strict=True):
        if message.id not in seen and known_content(ledger, epoch.number, message.id) is None:
            seen.add(message.id)
            chosen.append(message)
            fresh.append(content)
    return chosen, fresh


def _bring_alive(ledger: Ledger, epoch: EpochRow, parent: Seq) -> Sequence[Birth]:
    """Make staged messages known. An id that became known since then is left out: the one that is alive was first."""
    stages = ledger.stages.of(parent)
    if not stages:
        return []
    chunks: Sequence[Sequence[Birth]] | None = ledger.births.pop(parent, None)
    if chunks is None:
        chunks = [_read_stage(ledger, stage) for stage in stages]
    born: Sequence[Birth] = Joined(chunks)
    if parent in ledger.contested:
        born = sorted([*born, *_win(ledger, epoch, parent)], key=itemgetter(0))
    for stage in stages:
        ledger.put_stage(stage._replace(state=ALIVE, at=ledger.now))
    epoch = ledger.changing(epoch)
    epoch.unfinished += len(born)
    if born and epoch.first_seq is None:
        epoch.first_seq = born[0][0]
    return born


def _read_stage(ledger: Ledger, stage: Stage) -> list[Birth]:
    statement = "select seq, id, head, rest from messages where seq between ? and ? order by seq"
    rows = fetch(ledger.connection, statement, (stage.first, stage.last))
    return [(seq, name, head, rest) for seq, name, head, rest in rows]


def _win(ledger: Ledger, epoch: EpochRow, parent: Seq) -> list[Birth]:
    """Take ids from other parents that have staged them too, and have not committed."""
    statement = "select seq, id, head, rest, codec, payload from staged where parent = ? order by seq"
    number, at = epoch.number, ledger.now
    alive: list[MessageRow] = []
    for seq, name, head, rest, codec, payload in fetch(ledger.connection, statement, (parent,)):
        if known_content(ledger, number, name) is None:
            alive.append(("messages", seq, number, name, at, head, rest, codec, payload))
    make_room(ledger, number, [row[3] for row in alive])
    ledger.insert(alive)
    return [(Seq(row[1]), row[3], row[5], row[6]) for row in alive]


def _drop_orphans(ledger: Ledger) -> None:
    """Drop what was staged under a lease that has ended."""
    for stage in ledger.stages.waiting():
        if stage.parent not in ledger.leases:
            ledger.put_stage(stage._replace(state=DROPPED))
            ledger.births.pop(Seq(stage.parent), None)
    for parent in [parent for parent in ledger.contested if parent not in ledger.leases]:
        rows = fetch(ledger.connection, "select mark from staged where parent = ?", (parent,))
        ledger.sums.add("staged", [mark for (mark,) in rows], -1)
        ledger.connection.execute("delete from staged where parent = ?", (parent,))
        ledger.contested.discard(parent)


def _add_riders(ledger: Ledger, step: _Step, settlement: Settlement[Any]) -> None:
    for scope, resource in settlement.ready:
        step.others.extend(provide(ledger, scope, resource))
    _record(ledger, settlement.records)
    step.has_changed = step.has_changed or bool(step.others or settlement.records)


def _record(ledger: Ledger, records: Iterable[Record]) -> None:
    for record in records:
        key = (record.space, record.key)
        if record.value is None:
            ledger.drop_row("records", key)
        else:
            ledger.put_row("records", key, (*key, record.value))


def _change_epoch(ledger: Ledger, step: _Step, change: EpochChange, retain: float) -> None:
    known = ledger.epoch(change.epoch.number)
    if known is None or not _may_become(known, change.state):
        return
    epoch = ledger.changing(known)
    is_repair = change.state == "repairing"
    epoch.state = change.state
    epoch.report = change.report or epoch.report
    epoch.succeeded = None if is_repair or change.succeeded is None else int(change.succeeded)
    # A repair lifts the cancellation: what was replayed is meant to run, and to derive.
    epoch.cancel = int(epoch.cancel and not is_repair)
    step.has_changed = True
    if not is_repair:
        _complete(ledger, epoch, retain)
    step.others.append(EpochMarked(epoch.record))


def _may_become(epoch: EpochRow, state: str) -> bool:
    """Whether a change is a step forward. One that comes again is none, nor is one that would bury a message."""
    if state == "completed":
        return epoch.state in ("sealed", "repairing") and not epoch.unfinished
    return epoch.state == "completed" and not epoch.freed


def _complete(ledger: Ledger, epoch: EpochRow, retain: float) -> None:
    epoch.completed_at = ledger.now
    epoch.prune_at = None
    if not epoch.letters:
        _free(ledger, epoch, retain)


def _free(ledger: Ledger, epoch: EpochRow, retain: float) -> None:
    """Let a completed epoch be removed some time: nothing in it can be replayed."""
    assert epoch.completed_at is not None
    epoch.freed = 1
    own = decode_options(epoch.options).retain
    # `prune` is asked by the store's own retention: an epoch with another one stands as if it completed then.
    epoch.prune_at = epoch.completed_at + (0.0 if own is None else float(own) - retain)
    rows = fetch(ledger.connection, "select name from resources where scope = ?", (epoch.number,))
    for (name,) in rows:
        ledger.drop_row("resources", (epoch.number, name))
