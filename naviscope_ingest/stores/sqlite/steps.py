"""The atomic steps of a SQLite store, but for settlements. Each is a function of the ledger, run by the writer.

The rules are those of the store in memory. A step looks before it touches, so that what it refuses needs no undoing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import apsw

from naviscope_ingest._encoding import Content
from naviscope_ingest.stores.sqlite.entries import EpochRow, Held
from naviscope_ingest.stores.sqlite.errors import StoreCorrupt
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.marks import mark_of
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.recent import MessageRow
from naviscope_ingest.stores.sqlite.rows import encode_options
from naviscope_ingest.stores.sqlite.stages import WAITS, Stage
from naviscope_spi import (
    Accepted,
    EpochExists,
    EpochKey,
    EpochMarked,
    EpochOpened,
    EpochOptions,
    EpochRecord,
    EpochSealed,
    Lease,
    Leased,
    Message,
    Position,
    Provided,
    PutReceipt,
    Resource,
    ResourceForgotten,
    Seq,
    Session,
    SessionEnded,
    SessionLost,
)

__all__ = [
    "enter",
    "forget_ready",
    "insert_messages",
    "known_content",
    "leave",
    "make_room",
    "mark_epoch",
    "notify_ready",
    "open_epoch",
    "pop_ready",
    "provide",
    "put",
    "put_staged",
    "read_records",
    "scan_records",
    "visit",
]

GLOBAL = 0
"""The scope of global resources: no epoch has this number."""


def enter(ledger: Ledger, who: str, *, lead: bool) -> Session:
    """Begin a session. The one before, if it did not leave, is thought dead."""
    state = ledger.state
    if state.token is not None:
        _end_session(ledger, state.token, clean=False)
    state.last_token += 1
    state.last_fence += lead
    state.token, state.fence = state.last_token, state.last_fence if lead else None
    state.who, state.since = who, ledger.now
    return Session(state.token, state.fence)


def visit(ledger: Ledger, who: str) -> tuple[Session, bool]:
    """Go on in place of a session that did not leave, or begin one; tell whether it is new."""
    state = ledger.state
    if state.token is None:
        return enter(ledger, who, lead=True), True
    return Session(state.token, state.fence), False


def leave(ledger: Ledger, session: Session) -> None:
    """End a session cleanly, unless it has ended already."""
    if ledger.state.token == session.token:
        _end_session(ledger, session.token, clean=True)


def _end_session(ledger: Ledger, token: int, *, clean: bool) -> None:
    # In company nobody can tell who brought the process down, and an outcome that is recorded no longer runs.
    if not clean and len(ledger.leases) == 1:
        _count_crash(ledger, next(iter(ledger.leases)))
    ledger.release_all()
    state = ledger.state
    state.token = state.fence = state.who = state.since = None
    ledger.tell([SessionEnded(token, clean)])


def _count_crash(ledger: Ledger, seq: Seq) -> None:
    found = fetch(ledger.connection, "select * from progress where seq = ?", (seq,))
    run, attempt, crashes, *rest, prepared, edited_codec, edited = found[0][1:-1] if found else _NO_PROGRESS
    if prepared is None:
        row = (seq, run, attempt, crashes + 1, *rest, prepared, edited_codec, edited)
        ledger.put_row("progress", (seq,), row)


_NO_PROGRESS: tuple[Any, ...] = (0, 0, 0, None, None, None, None, None)


def open_epoch(ledger: Ledger, name: str | None, options: EpochOptions) -> EpochRecord:
    """Open an epoch, or rejoin the kept one of that name."""
    known = None if name is None else ledger.epoch_by_name(name)
    if known is not None:
        if options.if_exists == "refuse":
            raise EpochExists(known.name)
        return known.record
    encoded = encode_options(options)
    ledger.state.last_epoch += 1
    number = ledger.state.last_epoch
    row = EpochRow(number, name or _unused_name(ledger, number), "open", encoded, opened_at=ledger.now)
    ledger.add_epoch(row)
    ledger.tell([EpochOpened(row.record)])
    return row.record


def _unused_name(ledger: Ledger, number: int) -> str:
    name = f"epoch-{number}"
    while ledger.epoch_by_name(name) is not None:
        name += "+"
    return name


def mark_epoch(ledger: Ledger, key: EpochKey, mark: Literal["seal", "cancel"]) -> EpochRecord:
    """Seal an epoch, or ask for its cancellation. A completed one stays as it is."""
    row = ledger.known(key)
    cancel = int(row.cancel or mark == "cancel")
    state = "sealed" if row.state == "open" else row.state
    if row.state != "completed" and (state, cancel) != (row.state, row.cancel):
        row = ledger.changing(row)
        if row.state == "open":
            row.sealed_at = ledger.now
        row.state, row.cancel = state, cancel
        ledger.tell([EpochMarked(row.record)])
    return row.record


def put(ledger: Ledger, key: EpochKey, messages: Sequence[Message[Any]], contents: Sequence[Content]) -> PutReceipt:
    """Accept messages."""
    epoch = ledger.known(key)
    if epoch.state == "open":
        ids = {content[0] for content in contents}
        if len(ids) == len(contents) and insert_messages(ledger, epoch, messages, contents):
            last = ledger.state.last_seq
            seqs = [Seq(seq) for seq in range(last - len(contents) + 1, last + 1)]
            return PutReceipt(seqs, range(len(contents)))
    fresh, conflicts = _sorted_out(ledger, epoch, contents)
    if fresh and epoch.state != "open":
        raise EpochSealed(epoch.name, contents[fresh[0]][0])
    first = ledger.state.last_seq + 1
    make_room(ledger, epoch.number, [contents[index][0] for index in fresh])
    if not insert_messages(ledger, epoch, [messages[index] for index in fresh], [contents[index] for index in fresh]):
        raise StoreCorrupt(
            f"{ledger.database.path}: the index of ids does not agree with the messages: restore a backup"
        )
    seqs = [Seq(first + index) for index in range(len(fresh))]
    return PutReceipt(seqs, fresh, len(contents) - len(fresh), conflicts)


def insert_messages(
    ledger: Ledger, epoch: EpochRow, messages: Sequence[Message[Any]], contents: Sequence[Content], *, tell: bool = True
) -> bool:
    """Add messages to an epoch; return False, with nothing added, if one of the ids is known."""
    if not contents:
        return True
    at = ledger.now
    first = ledger.state.last_seq + 1
    number = epoch.number
    rows: list[MessageRow] = [
        ("messages", seq, number, name, at, head, rest, codec, payload)
        for seq, (name, head, rest, codec, payload) in enumerate(contents, first)
    ]
    try:
        ledger.insert(rows)
    except apsw.ConstraintError:
        # A statement that fails has done nothing, but those before it have.
        ledger.connection.execute("delete from messages where seq >= ?", (first,))
        return False
    ledger.recent.add(rows)
    ledger.state.last_seq += len(rows)
    epoch = ledger.changing(epoch)
    epoch.unfinished += len(rows)
    if epoch.first_seq is None:
        epoch.first_seq = first
    if tell:
        told = [Accepted(epoch.key, [Seq(row[1]) for row in rows], messages, at)] if ledger.is_heard else []
        ledger.tell(told)
    return True


def known_content(ledger: Ledger, epoch: int, name: str, parent: Seq | None = None) -> tuple[bytes, int, bytes] | None:
    """Return head, codec and payload of a message, None if the id is not known.

    Args:
        ledger: where to look.
        epoch: the epoch.
        name: the id.
        parent: what this one has staged is known too.
    """
    statement = "select seq, head, codec, payload from messages where epoch = ? and id = ?"
    found = fetch(ledger.connection, statement, (epoch, name))
    if found:
        stage = ledger.stages.at(found[0][0])
        if stage is None or (stage.parent == parent and stage.state == WAITS):
            return found[0][1:]
    if parent in ledger.contested:
        statement = "select head, codec, payload from staged where parent = ? and id = ?"
        found = fetch(ledger.connection, statement, (parent, name))
        return found[0] if found else None
    return None


def make_room(ledger: Ledger, epoch: int, names: Sequence[str]) -> None:
    """Let staged messages of these ids go: they come alive elsewhere. None of the ids is known."""
    if not ledger.stages:
        return
    for name in names:
        rows = fetch(ledger.connection, "select seq, mark from messages where epoch = ? and id = ?", (epoch, name))
        stage = ledger.stages.at(rows[0][0]) if rows else None
        if stage is not None:
            ledger.drop_messages(rows)
            ledger.births.pop(Seq(stage.parent), None)


def _sorted_out(
    ledger: Ledger, epoch: EpochRow, contents: Sequence[Content], parent: Seq | None = None
) -> tuple[list[int], list[str]]:
    """Return the indexes of the messages that are new, and the ids that are known with another content."""
    fresh: dict[str, int] = {}
    conflicts: list[str] = []
    for index, (name, head, _, codec, payload) in enumerate(contents):
        known = known_content(ledger, epoch.number, name, parent)
        if known is None and name in fresh:
            _, first_head, _, first_codec, first_payload = contents[fresh[name]]
            known = (first_head, first_codec, first_payload)
        if known is None:
            fresh[name] = index
        elif known[0] != head or not ledger.scribe.same_payload(name, head, (known[1], known[2]), (codec, payload)):
            conflicts.append(name)
    return list(fresh.values()), conflicts


def put_staged(ledger: Ledger, key: EpochKey, contents: Sequence[Content], parent: Lease[Any]) -> PutReceipt:
    """Keep messages out of sight until their parent commits."""
    epoch = ledger.known(key)
    if epoch.key != parent.epoch:
        raise ValueError(f"message {parent.message.id!r} cannot stage into {key}: it belongs to {parent.epoch}")
    held = ledger.leases.get(parent.seq)
    mine = (parent.token, parent.run, parent.attempt)
    if held is None or mine != (ledger.state.token, held.run, held.attempt):
        raise SessionLost(f"the lease of message {parent.message.id!r} is not live: nothing was staged")
    fresh, conflicts = _sorted_out(ledger, epoch, contents, parent.seq)
    first = ledger.state.last_seq + 1
    chosen = [(Seq(seq), contents[index]) for seq, index in enumerate(fresh, first)]
    if chosen:
        _stage(ledger, epoch, parent.seq, chosen)
    return PutReceipt([seq for seq, _ in chosen], fresh, len(contents) - len(fresh), conflicts)


def _stage(ledger: Ledger, epoch: EpochRow, parent: Seq, chosen: Sequence[tuple[Seq, Content]]) -> None:
    contested = _contested(ledger, epoch.number, [content[0] for _, content in chosen])
    number, at = epoch.number, ledger.now
    rows: list[MessageRow] = []
    others: list[tuple[Any, ...]] = []
    for seq, (name, head, rest, codec, payload) in chosen:
        if name in contested:
            others.append(("staged", seq, parent, number, name, at, head, rest, codec, payload))
        else:
            rows.append(("messages", seq, number, name, at, head, rest, codec, payload))
    ledger.insert(rows)
    ledger.insert(others)
    before = ledger.stages.of(parent)
    first, last = chosen[0][0], chosen[-1][0]
    if before and before[-1].last == first - 1:
        ledger.put_stage(before[-1]._replace(last=last))
    else:
        ledger.put_stage(Stage(first, last, parent, number, WAITS))
    ledger.state.last_seq = last
    if others:
        ledger.contested.add(parent)
    births = tuple((seq, name, head, rest) for seq, (name, head, rest, _, _) in chosen if name not in contested)
    if not before:
        ledger.births[parent] = [births]
    elif parent in ledger.births:
        ledger.births[parent].append(births)


def _contested(ledger: Ledger, epoch: int, names: Sequence[str]) -> set[str]:
    """Return the ids that another parent has staged; those of a stage that was dropped are let go."""
    contested = set()
    for name in names if ledger.stages else ():
        rows = fetch(ledger.connection, "select seq from messages where epoch = ? and id = ?", (epoch, name))
        stage = ledger.stages.at(rows[0][0]) if rows else None
        if stage is not None and stage.state == WAITS:
            contested.add(name)
        elif stage is not None:
            make_room(ledger, epoch, [name])
    return contested


_CLAIM = (
    "select m.seq, m.epoch, m.id, m.at, m.head, m.rest, m.codec, m.payload, m.mark,"
    " p.run, p.attempt, p.crashes, p.prepared, p.edited_codec, p.edited"
    " from carray(?) c join messages m on m.seq = c.value"
    " left join ends e on e.seq = m.seq left join progress p on p.seq = m.seq where e.seq is null"
)


def pop_ready(ledger: Ledger, session: Session, seqs: Sequence[Seq]) -> list[Lease[Any]]:
    """Claim messages."""
    token = ledger.current(session).token
    leases = ledger.leases
    wanted = [seq for seq in dict.fromkeys(seqs) if seq not in leases]
    if ledger.stages:
        wanted = [seq for seq in wanted if ledger.stages.at(seq) is None]
    if not wanted:
        return []
    claim = _Claim(ledger, token)
    recent = ledger.recent.take(wanted)
    claim.take_recent(recent)
    if len(recent) < len(wanted):
        claim.read([seq for seq in wanted if seq not in claim.held])
    if not claim.held:
        return []
    ledger.state.last_claim = claim.number
    ledger.lease(claim.held)
    claimed = claim.claimed
    if recent and len(recent) < len(claimed):
        by_seq = {lease.seq: lease for lease in claimed}
        claimed = [by_seq[seq] for seq in wanted if seq in by_seq]
    ledger.tell([Leased([lease.seq for lease in claimed], token)] if ledger.is_heard else ())
    return claimed


class _Claim:
    """A claim that is being made.

    Attributes:
        number: of its row.
        claimed: the leases.
        held: what is remembered of them.
    """

    def __init__(self, ledger: Ledger, token: int) -> None:
        self.number = ledger.state.last_claim + 1
        self.claimed: list[Lease[Any]] = []
        self.held: dict[Seq, Held] = {}
        self._ledger = ledger
        self._token = token
        self._epochs: dict[int, tuple[EpochKey, Held]] = {}

    def _epoch(self, number: int) -> tuple[EpochKey, Held]:
        """Return the key of an epoch, and what is remembered of its messages that never ran."""
        known = self._epochs.get(number)
        if known is None:
            known = self._epochs[number] = (_key(self._ledger, number), Held(self.number, number, 0, 0, False))
        return known

    def take_recent(self, rows: Sequence[MessageRow]) -> None:
        """Claim messages that are remembered."""
        claimed, held, token, epochs = self.claimed, self.held, self._token, self._epochs
        messages = self._ledger.scribe.read_all([(row[3], row[5], row[6], row[7], row[8]) for row in rows])
        for row, message in zip(rows, messages, strict=True):
            seq, epoch = Seq(row[1]), row[2]
            key, fresh = epochs.get(epoch) or self._epoch(epoch)
            claimed.append(Lease(seq, key, message, token))
            held[seq] = fresh

    def read(self, seqs: Sequence[Seq]) -> None:
        """Claim messages whose rows have to be read."""
        path, read = self._ledger.database.path, self._ledger.scribe.read
        for row in fetch(self._ledger.connection, _CLAIM, (apsw.carray(array("q", seqs)),)):
            seq, epoch, name, _, head, rest, codec, payload = values = row[:8]
            mark, run, attempt, crashes, prepared, edited_codec, edited = row[8:]
            if mark != mark_of("messages", *values):
                raise StoreCorrupt(f"{path}: message {name!r} at place {seq} does not match its hash")
            key, fresh = self._epoch(epoch)
            if run is None:
                self.claimed.append(Lease(seq, key, read(name, head, rest, codec, payload), self._token))
                self.held[seq] = fresh
                continue
            if edited is not None:
                codec, payload = edited_codec, edited
            message = read(name, head, rest, codec, payload)
            self.claimed.append(Lease(seq, key, message, self._token, run, attempt, crashes, prepared))
            self.held[seq] = Held(self.number, epoch, run, attempt, True)


def _key(ledger: Ledger, number: int) -> EpochKey:
    row = ledger.epoch(number)
    if row is None:
        raise StoreCorrupt(f"{ledger.database.path}: there are messages of epoch {number}, which is missing")
    return row.key


def notify_ready(ledger: Ledger, resources: Sequence[Resource]) -> Position:
    """Provide resources globally."""
    provided = [fact for resource in resources for fact in provide(ledger, None, resource)]
    return ledger.tell(provided) if provided else ledger.position


def provide(ledger: Ledger, number: int | None, resource: Resource) -> Iterator[Provided]:
    """Provide a resource, globally or in the scope of an epoch; yield what it now is, if that is news."""
    if number is not None:
        epoch = ledger.epoch(number)
        if epoch is None or epoch.freed:
            return
    scope = GLOBAL if number is None else number
    statement = "select version, value from resources where scope = ? and name = ?"
    found = fetch(ledger.connection, statement, (scope, resource.name))
    old = Resource(resource.name, found[0][0], value=found[0][1]) if found else None
    now = _merged(old, resource)
    if now is not None:
        ledger.put_row("resources", (scope, now.name), (scope, now.name, now.version, now.value))
        yield Provided(now, number)


def _merged(old: Resource | None, new: Resource) -> Resource | None:
    """Return what a resource becomes, or None if it stays as it is."""
    if old is None:
        return Resource(new.name, new.version + new.add, value=new.value)
    version = max(old.version, new.version) + new.add
    if version == old.version:
        return None
    return Resource(new.name, version, value=old.value if new.value is None else new.value)


def forget_ready(ledger: Ledger, names: Sequence[str]) -> Position:
    """Take global resources back."""
    known = [name for name in dict.fromkeys(names) if ledger.drop_row("resources", (GLOBAL, name))]
    return ledger.tell([ResourceForgotten(name) for name in known]) if known else ledger.position


def read_records(ledger: Ledger, space: str, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the values of those keys that exist."""
    statement = "select value from records where space = ? and key = ?"
    found = ((key, fetch(ledger.connection, statement, (space, key))) for key in keys)
    return {key: rows[0][0] for key, rows in found if rows}


def scan_records(ledger: Ledger, space: str, after: str, limit: int) -> list[tuple[str, bytes]]:
    """Return a page of records, in order of their keys."""
    statement = "select key, value from records where space = ? and key > ? order by key limit ?"
    return [(key, value) for key, value in fetch(ledger.connection, statement, (space, after, limit))]
