"""Reading dead letters, a page at a time."""

from __future__ import annotations

from typing import Any, Final

from naviscope_ingest.stores.sqlite.errors import StoreCorrupt
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.marks import mark_of
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.rows import ended_of
from naviscope_spi import KeptLetter, Message, Seq

__all__ = ["letter", "letters"]

# The condition on `end` is that of the partial indexes, which are used only if it stands here as it stands there. A
# message that was staged came alive with its stage.
_LETTERS: Final = (
    "select e.seq, e.epoch, m.id, m.head, m.rest, coalesce((select case when s.state = 1 and s.last >= m.seq then s.at"
    " end from stages s where s.first <= m.seq order by s.first desc limit 1), m.at), coalesce(p.run, 0), e.end,"
    " e.causes, e.letter from ends e join messages m on m.seq = e.seq left join progress p on p.seq = e.seq"
    " where e.end in (1, 4) and {} order by e.seq limit ?"
)
_ALL: Final = _LETTERS.format("e.seq > ?")
_OF_EPOCH: Final = _LETTERS.format("e.epoch = ? and e.seq > ?")
_ONE: Final = _LETTERS.format("e.seq = ?")
_WHOLE: Final = (
    "select m.epoch, m.id, m.at, m.head, m.rest, m.codec, m.payload, m.mark, p.edited_codec, p.edited"
    " from messages m left join progress p on p.seq = m.seq where m.seq = ?"
)


def letters(ledger: Ledger, epoch: int | None, after: Seq, limit: int) -> list[KeptLetter[Any]]:
    """Return a page of dead letters without payloads, in order of place."""
    if epoch is None:
        rows = fetch(ledger.connection, _ALL, (after, limit))
    else:
        rows = fetch(ledger.connection, _OF_EPOCH, (epoch, after, limit))
    return [_letter(ledger, row, ledger.scribe.outline(*row[2:5])) for row in rows]


def letter(ledger: Ledger, seq: Seq) -> KeptLetter[Any] | None:
    """Return one dead letter whole, None if the message has none."""
    rows = fetch(ledger.connection, _ONE, (seq, 1))
    if not rows:
        return None
    ((*columns, mark, edited_codec, edited),) = fetch(ledger.connection, _WHOLE, (seq,))
    epoch, name, at, head, rest, codec, payload = columns
    if mark != mark_of("messages", seq, epoch, name, at, head, rest, codec, payload):
        raise StoreCorrupt(f"{ledger.database.path}: message {name!r} at place {seq} does not match its hash")
    read = ledger.scribe.read
    now = None if edited is None else read(name, head, rest, edited_codec, edited)
    return _letter(ledger, rows[0], read(name, head, rest, codec, payload), now)


def _letter(
    ledger: Ledger, row: tuple[Any, ...], message: Message[Any], edited: Message[Any] | None = None
) -> KeptLetter[Any]:
    seq, number, _, _, _, at, run, *end = row
    epoch = ledger.epoch(number)
    if epoch is None:
        raise StoreCorrupt(f"{ledger.database.path}: there are dead letters of epoch {number}, which is missing")
    return KeptLetter(seq, epoch.key, message, ended_of(seq, *end), run, at, edited)
