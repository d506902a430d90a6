"""The ledger of a SQLite store: what the writer remembers between steps, and the rows it changes.

Everything is in the file. In memory are only the counters of the `state` row, the sums, the epochs that were used last,
and the leases of the present session: so a claim or a commit of a hundred messages is a few statements. Leases can live
in memory because they end with the process anyway. What outlives it is which messages were being worked on: a row of
`claims` for each claim, whose messages that have not ended are exactly those that were leased when the process died.

Rows that change once in a group (`state`, `sums`, epochs) are written once, before COMMIT. If a request fails after it
changed something, its savepoint is rolled back and `undo` puts memory right; if a COMMIT fails, `load` reads everything
again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import apsw

from naviscope_ingest._encoding import Scribe
from naviscope_ingest.stores.sqlite.database import Database
from naviscope_ingest.stores.sqlite.entries import EPOCH_COLUMNS, STATE_COLUMNS, EpochRow, Held, State
from naviscope_ingest.stores.sqlite.errors import StoreCorrupt
from naviscope_ingest.stores.sqlite.marks import COMMIT_FACTOR, Sums, Totals, commit_base, mark_of, marks_of
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.recent import Recent
from naviscope_ingest.stores.sqlite.stages import DROPPED, Birth, Stage, Stages
from naviscope_spi import EpochKey, FactBody, Position, Seq, Session, SessionLost, UnknownEpoch

__all__ = ["Ledger"]

# How many epochs are remembered. One that is not there is read.
_EPOCHS = 1_000
# How many rows one statement inserts: each statement lets go of the interpreter, and gets it back when others let it.
_ROWS = 50

# How many numbers of epochs a copy leaves out at least, where the clock does not say more.
_NUMBERS = 1_000_000


class Ledger:
    """What the writer knows, and short ways to change rows.

    Attributes:
        state: the counters.
        sums: of the row hashes.
        recent: messages that were put lately, and never claimed.
        leases: by place.
        stages: what is staged and not alive.
        births: what a parent has staged, chunk by chunk, as its commit will tell it. What is not there is read.
        contested: the places of messages that have staged ids which others have staged too.
        news: the facts of the present step.
        now: the wall-clock time of the present step.
        hears: tells whether anybody reads facts.
        is_heard: what it told when the present request began.
        must_commit: whether somebody else may have written, who cannot be counted.
    """

    def __init__(
        self, database: Database, scribe: Scribe, wall: Callable[[], float], new_id: str, max_recent: int = 0
    ) -> None:
        self.database = database
        self.scribe = scribe
        self.wall = wall
        self.sums = Sums()
        self.recent = Recent(max_recent)
        self.state = State(new_id)
        self.leases: dict[Seq, Held] = {}
        self.stages = Stages()
        self.births: dict[Seq, list[tuple[Birth, ...]]] = {}
        self.contested: set[Seq] = set()
        self.news: list[FactBody] = []
        self.now = 0.0
        self.hears: Callable[[], bool] = lambda: False
        self.is_heard = False
        self.must_commit = False
        self._written: tuple[Any, ...] = ()
        self._changes = 0
        self._claims: dict[int, int] = {}
        self._stale: set[int] = set()
        self._epochs: dict[int, EpochRow] = {}
        self._dirty: set[int] = set()
        self._new_names: dict[str, int] = {}
        self._before: dict[int, tuple[Any, ...] | None] = {}
        self._saved: Totals = {}
        self._first_seq = 0
        self._saved_births: dict[Seq, list[tuple[Birth, ...]]] = {}
        self._leases_changed = False

    def on(self, connection: apsw.Connection) -> Ledger:
        """Return a ledger of another file, by its connection."""
        database = Database(self.database.path)
        database.adopt(connection)
        return Ledger(database, self.scribe, self.wall, self.state.store_id)

    @property
    def connection(self) -> apsw.Connection:
        """The connection that writes."""
        return self.database.connection

    # What is read from the file, and written at the end of a group.

    def load(self) -> None:
        """Read everything that is remembered from the file, which may be new."""
        rows = fetch(self.connection, f"select {', '.join(STATE_COLUMNS)}, mark from state")  # noqa: S608 - names of ours
        if rows:
            state = State(*rows[0][:-1])
            if state.row() != rows[0]:
                raise StoreCorrupt(f"{self.database.path}: the state row does not match its hash: restore a backup")
            self.state = state
        self.sums.load(self.connection)
        self.recent.clear()
        self._epochs.clear()
        self._dirty.clear()
        self._new_names.clear()
        self._load_codecs()
        self.load_leases()

    def _load_codecs(self) -> None:
        names = dict(fetch(self.connection, "select number, name from codecs"))
        numbers = {name: number for number, name in names.items()}
        mine = self.scribe.codec_name
        if mine not in numbers and not self.database.read_only:
            numbers[mine] = max(names, default=0) + 1
            self.connection.execute("insert into codecs values (?, ?)", (numbers[mine], mine))
            names[numbers[mine]] = mine
        self.scribe.codec_number = numbers.get(mine, -1)
        self.scribe.codec_names = names

    def load_leases(self) -> None:
        """Read from `claims` which messages are leased."""
        self.leases = {}
        self._claims = {}
        self._stale = set()
        claims = fetch(self.connection, "select number, seqs from claims order by number")
        for number, seqs in claims:
            rows = fetch(
                self.connection,
                "select m.seq, m.epoch, coalesce(p.run, 0), coalesce(p.attempt, 0), p.seq is not null"
                " from carray(?) c join messages m on m.seq = c.value"
                " left join ends e on e.seq = m.seq left join progress p on p.seq = m.seq where e.seq is null",
                (apsw.carray(array("q", seqs)),),
            )
            held = {seq: Held(number, epoch, run, attempt, bool(has)) for seq, epoch, run, attempt, has in rows}
            self._claims[number] = len(held)
            self.leases.update(held)
        self.stages = Stages.load(self.connection, with_alive=False)
        self.births = {}
        self.contested = {parent for (parent,) in fetch(self.connection, "select distinct parent from staged")}
        self._leases_changed = False

    def begin(self) -> None:
        """Begin a request."""
        self._before = {}
        self._saved = self.sums.saved()
        self._first_seq = self.state.last_seq + 1
        self._saved_births = dict(self.births)
        self._leases_changed = False
        self.news = []
        self.is_heard = self.hears()
        self.now = self.wall()

    def undo(self) -> None:
        """Forget what a request changed, after its rows were rolled back."""
        self.sums.restore(self._saved)
        self.recent.take(range(self._first_seq, self.state.last_seq + 1))
        for number, saved in self._before.items():
            if saved is None:
                self._new_names.pop(self._epochs.pop(number).name, None)
                self._dirty.discard(number)
            else:
                self._epochs[number] = EpochRow(*saved)
        if self._leases_changed:
            self.load_leases()
            self.births = self._saved_births

    def begin_group(self) -> None:
        """Note how things stand before a group."""
        self.must_commit = False
        self._written = self.state.row()
        self._changes = self.connection.total_changes()

    @property
    def has_changed(self) -> bool:
        """Whether the group has changed anything."""
        return (
            self.must_commit
            or bool(self._dirty)
            or self.state.row() != self._written
            or self.connection.total_changes() != self._changes
        )

    def flush(self) -> None:
        """Write what is written once in a group."""
        for number in self._dirty:
            self._write_epoch(self._epochs[number])
        self._dirty.clear()
        self._new_names.clear()
        if len(self._epochs) > _EPOCHS:
            self._epochs.clear()
        self.state.commits += 1
        self.sums.write(self.connection)
        row = self.state.row()
        marks = ", ".join("?" * len(row))
        self.connection.execute(f"insert or replace into state values (1, {marks})", row)  # noqa: S608 - question marks

    def go_on_from_copy(self) -> None:
        """See to it that a copy gives no epoch a number that the original, or another copy, has given since.

        Numbers go on from the time in microseconds: nobody opens epochs faster than that. The id of the store stays:
        what the copy has as unfinished may have been committed since, and a ledger elsewhere knows it by its task key.
        """
        if self.state.is_copy:
            self.state.is_copy = 0
            self.state.last_epoch = max(self.state.last_epoch + _NUMBERS, int(self.wall() * 1_000_000))

    def tell(self, bodies: Iterable[FactBody] = ()) -> Position:
        """End an atomic step that changed something."""
        self.state.position += 1
        if self.is_heard:
            self.news.extend(bodies)
        return Position(self.state.position)

    @property
    def position(self) -> Position:
        """Where the last step stands."""
        return Position(self.state.position)

    # Sessions, epochs and leases.

    def current(self, session: Session) -> Session:
        """Return the session as the store knows it.

        Raises:
            SessionLost: it has ended.
        """
        if self.state.token is None or self.state.token != session.token:
            raise SessionLost(f"session {session.token} has ended: it left, or another one joined after it")
        return Session(self.state.token, self.state.fence)

    def epoch(self, number: int) -> EpochRow | None:
        """Return an epoch to look at."""
        row = self._epochs.get(number)
        if row is None:
            names = ", ".join((*EPOCH_COLUMNS, "mark"))
            found = fetch(self.connection, f"select {names} from epochs where number = ?", (number,))  # noqa: S608
            if not found:
                return None
            row = EpochRow(*found[0])
            if row.mark != mark_of("epochs", *row.values()):
                raise StoreCorrupt(f"{self.database.path}: epoch {number} does not match its hash: restore a backup")
            self._epochs[number] = row
        return row

    def known(self, key: EpochKey) -> EpochRow:
        """Return an epoch to look at.

        Raises:
            UnknownEpoch: there is none.
        """
        row = self.epoch(key.number)
        if row is None:
            raise UnknownEpoch(key.name)
        return row

    def changing(self, row: EpochRow) -> EpochRow:
        """Return an epoch to change; it is written with the group."""
        if row.number not in self._before:
            self._before[row.number] = row.saved()
        self._epochs[row.number] = row
        self._dirty.add(row.number)
        return row

    def epoch_by_name(self, name: str) -> EpochRow | None:
        """Return the kept epoch of a name."""
        number = self._new_names.get(name)
        if number is not None:
            return self.epoch(number)
        found = fetch(self.connection, "select number from epochs where name = ?", (name,))
        return self.epoch(found[0][0]) if found else None

    def add_epoch(self, row: EpochRow) -> None:
        """Add a new epoch."""
        self._before[row.number] = None
        self._new_names[row.name] = row.number
        self.changing(row)

    def drop_epoch(self, row: EpochRow) -> None:
        """Remove an epoch; its messages are removed later, step by step."""
        self.connection.execute("delete from epochs where number = ?", (row.number,))
        self.connection.execute("insert into pruned values (?)", (row.number,))
        self.sums.swap("epochs", row.mark, None)
        self._epochs.pop(row.number, None)
        self._new_names.pop(row.name, None)
        self._dirty.discard(row.number)

    def _write_epoch(self, row: EpochRow) -> None:
        old = row.mark
        values = row.values()
        row.mark = mark_of("epochs", *values)
        marks = ", ".join("?" * (len(values) + 1))
        self.connection.execute(f"insert or replace into epochs values ({marks})", (*values, row.mark))  # noqa: S608
        self.sums.swap("epochs", old, row.mark)

    def lease(self, held: dict[Seq, Held]) -> None:
        """Remember leases of one claim, in memory and in the file."""
        number = next(iter(held.values())).claim
        seqs = array("q", held).tobytes()
        self._leases_changed = True
        self.leases.update(held)
        self._claims[number] = len(held)
        self.put_row("claims", (number,), (number, seqs))

    def release(self, seq: Seq, *, is_ended: bool) -> Held | None:
        """End a lease. If its message goes on, `tidy` has to take it out of its claim."""
        held = self.leases.pop(seq, None)
        if held is None:
            return None
        self._leases_changed = True
        left = self._claims[held.claim] - 1
        if left:
            self._claims[held.claim] = left
            if not is_ended:
                self._stale.add(held.claim)
        else:
            self._drop_claim(held.claim)
        return held

    def end_leases(self, ended: Mapping[Seq, Held]) -> None:
        """Forget leases that were taken out of `leases`, because their messages have ended."""
        self._leases_changed = True
        for claim, count in Counter([held.claim for held in ended.values()]).items():
            self._claims[claim] -= count
            if not self._claims[claim]:
                self._drop_claim(claim)

    def _drop_claim(self, number: int) -> None:
        del self._claims[number]
        self._stale.discard(number)
        self.drop_row("claims", (number,))

    def tidy(self, *, is_revived: bool) -> None:
        """Rewrite the claims whose rows name a message that is alive and not leased, as one that was revived may be."""
        if is_revived:
            self._stale.update(self._claims)
        for number in self._stale:
            seqs = array("q", [seq for seq, held in self.leases.items() if held.claim == number])
            self.put_row("claims", (number,), (number, seqs.tobytes()))
        self._stale.clear()

    def note_progress(self, seq: Seq) -> None:
        """Remember that a leased message has a row in `progress`."""
        self._leases_changed = True
        self.leases[seq] = self.leases[seq]._replace(has_progress=True)

    def release_all(self) -> None:
        """End all leases, and what was staged under them."""
        self._leases_changed = True
        self.leases = {}
        self._claims = {}
        self._stale = set()
        self.contested = set()
        for table in ("claims", "staged"):
            amount, total = self.sums.of(table)
            if amount or total:
                self.connection.execute(f"delete from {table}")  # noqa: S608 - a name of ours
                self.sums.clear(table)
        for stage in self.stages.waiting():
            self.put_stage(stage._replace(state=DROPPED))
        self.births = {}

    def put_stage(self, stage: Stage) -> None:
        """Write a stage."""
        self._leases_changed = True
        self.put_row("stages", (stage.first,), tuple(stage))
        self.stages.put(stage)

    def drop_stage(self, stage: Stage) -> None:
        """Delete a stage that has no messages left."""
        self._leases_changed = True
        self.drop_row("stages", (stage.first,))
        self.stages.remove(stage)

    def drop_messages(self, rows: Sequence[tuple[int, int]]) -> None:
        """Delete messages that never came alive, by place and hash."""
        seqs = apsw.carray(array("q", [seq for seq, _ in rows]))
        self.connection.execute("delete from messages where seq in (select value from carray(?))", (seqs,))
        self.sums.add("messages", [mark for _, mark in rows], -1)

    # Rows.

    def put_row(self, table: str, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Write a row of a table whose first columns are its key; its hash is the last column."""
        old = self.mark_at(table, key)
        mark = mark_of(table, *values)
        marks = ", ".join("?" * (len(values) + 1))
        self.connection.execute(f"insert or replace into {table} values ({marks})", (*values, mark))  # noqa: S608
        self.sums.swap(table, old, mark)

    def drop_row(self, table: str, key: tuple[Any, ...]) -> bool:
        """Delete a row; return whether it was there."""
        old = self.mark_at(table, key)
        if old is None:
            return False
        self.connection.execute(f"delete from {table} where {_KEYS[table]}", key)  # noqa: S608 - names of ours
        self.sums.swap(table, old, None)
        return True

    def mark_at(self, table: str, key: tuple[Any, ...]) -> int | None:
        """Return the hash of a row, None if it is not there."""
        found = fetch(self.connection, f"select mark from {table} where {_KEYS[table]}", key)  # noqa: S608
        return found[0][0] if found else None

    def insert(self, rows: Sequence[tuple[Any, ...]], marks: Sequence[int] | None = None) -> None:
        """Insert rows of one table as they are hashed, with its name first; many with each statement.

        Args:
            rows: the rows.
            marks: their hashes, if those are not the usual ones.
        """
        if not rows:
            return
        table = rows[0][0]
        marks = marks_of(rows) if marks is None else marks
        start = 0
        while start < len(rows):
            left = len(rows) - start
            # Few different sizes, so that each statement is compiled once.
            size = _ROWS if left >= _ROWS else 8 if left >= 8 else 1
            bindings: list[Any] = []
            for row, mark in zip(rows[start : start + size], marks[start : start + size], strict=True):
                bindings += row[1:]
                bindings.append(mark)
            self.connection.execute(_insertion(table, size), bindings)
            start += size
        self.sums.add(table, marks)

    def insert_commits(self, epoch: int, seqs: Sequence[int]) -> None:
        """Insert the ends of messages that committed and left nothing, all in one statement."""
        places = apsw.carray(array("q", seqs))
        self.connection.execute(_COMMITS, (places, epoch, commit_base(epoch)))
        self.sums.add_commits(epoch, seqs)


_COMMITS = (
    f"insert into ends (seq, epoch, end, mark) select value, ?2, 0, value * {COMMIT_FACTOR} + ?3"  # noqa: S608 - ours
    " from carray(?1)"
)
_KEYS = {
    "stages": "first = ?",
    "claims": "number = ?",
    "progress": "seq = ?",
    "ends": "seq = ?",
    "resources": "scope = ? and name = ?",
    "records": "space = ? and key = ?",
    "naviscope_uniques": "kind = ? and id = ?",
}


_INSERTED = {
    "messages": "seq, epoch, id, at, head, rest, codec, payload, mark",
    "staged": "seq, parent, epoch, id, at, head, rest, codec, payload, mark",
    "ends": "seq, epoch, end, value, causes, letter, mark",
}


@cache
def _insertion(table: str, size: int) -> str:
    columns = _INSERTED[table]
    one = f"({', '.join('?' * len(columns.split()))})"
    return f"insert into {table} ({columns}) values {', '.join([one] * size)}"  # noqa: S608 - names of ours
