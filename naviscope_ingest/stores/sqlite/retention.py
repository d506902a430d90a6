"""Removing what is old or was staged in vain, in small steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import apsw

from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.stages import ALIVE
from naviscope_ingest.stores.sqlite.uniques import prune_uniques
from naviscope_spi import EpochForgotten

__all__ = ["drop_staged", "prune"]

# How many messages that were staged in vain are deleted in one step.
_STEP = 1_000


def prune(ledger: Ledger, before: float, limit: int) -> int:
    """Remove rows of epochs that completed before a time, and ids that are remembered no longer; at most so many.

    The epoch itself goes first, so that its name is free and nobody sees half of it; then its messages, in steps.
    """
    removed = prune_uniques(ledger, limit)
    removed += _prune_messages(ledger, limit - removed)
    rows = fetch(
        ledger.connection,
        "select number from epochs where prune_at < ? order by prune_at limit ?",
        (before, max(0, limit - removed)),
    )
    forgotten = []
    for (number,) in rows:
        epoch = ledger.epoch(number)
        if epoch is not None and epoch.prune_at is not None and epoch.prune_at < before:
            ledger.drop_epoch(epoch)
            forgotten.append(EpochForgotten(epoch.key))
    if forgotten:
        ledger.tell(forgotten)
    return removed + len(forgotten)


def _prune_messages(ledger: Ledger, limit: int) -> int:
    removed = 0
    for (epoch,) in fetch(ledger.connection, "select epoch from pruned order by epoch"):
        statement = "select seq, mark from messages where epoch = ? limit ?"
        rows = fetch(ledger.connection, statement, (epoch, limit - removed))
        _delete_messages(ledger, rows)
        removed += len(rows)
        if removed >= limit:
            break
        _forget_stages(ledger, epoch)
        ledger.connection.execute("delete from pruned where epoch = ?", (epoch,))
    return removed


def _forget_stages(ledger: Ledger, epoch: int) -> None:
    """Delete what says when messages came alive. Those that were staged in vain are deleted by `drop_staged`."""
    rows = fetch(ledger.connection, "select mark from stages where epoch = ? and state = ?", (epoch, ALIVE))
    ledger.sums.add("stages", [mark for (mark,) in rows], -1)
    ledger.connection.execute("delete from stages where epoch = ? and state = ?", (epoch, ALIVE))


def drop_staged(ledger: Ledger) -> None:
    """Delete some messages that were staged and never came alive."""
    stage = ledger.stages.dropped()
    if stage is None:
        return
    statement = "select seq, mark from messages where seq between ? and ? order by seq desc limit ?"
    rows = fetch(ledger.connection, statement, (stage.first, stage.last, _STEP))
    if rows:
        ledger.drop_messages(rows)
    if len(rows) < _STEP:
        ledger.drop_stage(stage)


def _delete_messages(ledger: Ledger, rows: Sequence[tuple[int, int]]) -> None:
    if not rows:
        return
    seqs = apsw.carray(array("q", [seq for seq, _ in rows]))
    for table in ("ends", "progress"):
        select = f"select mark from {table} where seq in (select value from carray(?))"  # noqa: S608 - a name of ours
        ledger.sums.add(table, [mark for (mark,) in fetch(ledger.connection, select, (seqs,))], -1)
        ledger.connection.execute(f"delete from {table} where seq in (select value from carray(?))", (seqs,))  # noqa: S608
    ledger.connection.execute("delete from messages where seq in (select value from carray(?))", (seqs,))
    ledger.sums.add("messages", [mark for _, mark in rows], -1)
