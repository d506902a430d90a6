"""Ids that are remembered beyond their epoch, so that what a producer delivers again is taken once.

A row is a kind and an id, until when it is remembered, and the message. Kind and id, because two feeds may number their
messages alike: what is taken for known and is not would be lost, and nobody would notice. Contents are not compared:
the message may be gone with its epoch.

Rejected: to look for the id among the messages of all epochs. Retention of epochs would then say how long a producer
may take, and the index that finds an id in its epoch cannot find it without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naviscope_ingest._encoding import Content
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.steps import put
from naviscope_spi import EpochKey, Message, PutReceipt, Seq

__all__ = ["forget_unique", "has_uniques", "prune_uniques", "put_unique"]

_TABLE = "naviscope_uniques"


def put_unique(
    ledger: Ledger, key: EpochKey, messages: Sequence[Message[Any]], contents: Sequence[Content], seconds: float
) -> PutReceipt:
    """Accept messages that were not accepted in another epoch before, and remember them."""
    number = ledger.known(key).number
    kept = [index for index, message in enumerate(messages) if not _is_remembered(ledger, number, message)]
    receipt = put(ledger, key, [messages[index] for index in kept], [contents[index] for index in kept])
    indexes = [kept[index] for index in receipt.indexes]
    until = ledger.now + seconds
    for seq, index in zip(receipt.accepted, indexes, strict=True):
        name = (messages[index].kind, messages[index].id)
        ledger.put_row(_TABLE, name, (*name, until, seq))
    return PutReceipt(receipt.accepted, indexes, len(messages) - len(indexes), receipt.conflicts)


def _is_remembered(ledger: Ledger, epoch: int, message: Message[Any]) -> bool:
    """Whether a message was accepted in another epoch. One that is known in this epoch is its own business."""
    found = fetch(
        ledger.connection,
        "select m.epoch from naviscope_uniques u left join messages m on m.seq = u.seq"
        " where u.kind = ? and u.id = ? and u.until > ?",
        (message.kind, message.id, ledger.now),
    )
    return bool(found) and found[0][0] != epoch


def has_uniques(ledger: Ledger) -> bool:
    """Whether anything is remembered at all."""
    return ledger.sums.of(_TABLE)[0] > 0


def forget_unique(ledger: Ledger, seq: Seq) -> None:
    """Forget a message that was cancelled: if it is delivered again, it is meant to run."""
    for name in fetch(ledger.connection, "select kind, id from naviscope_uniques where seq = ?", (seq,)):
        ledger.drop_row(_TABLE, name)


def prune_uniques(ledger: Ledger, limit: int) -> int:
    """Remove some that are remembered no longer; return how many."""
    if not has_uniques(ledger):
        return 0
    statement = "select kind, id, mark from naviscope_uniques where until <= ? order by until limit ?"
    rows = fetch(ledger.connection, statement, (ledger.now, limit))
    for kind, name, _ in rows:
        ledger.connection.execute("delete from naviscope_uniques where kind = ? and id = ?", (kind, name))
    ledger.sums.add(_TABLE, [mark for _, _, mark in rows], -1)
    return len(rows)
