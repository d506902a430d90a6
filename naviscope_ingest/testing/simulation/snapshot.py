"""Reads what a process has left, on a disk or in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from naviscope_ingest.stores.memory import MemoryStore
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_ingest.testing.disk import VFS_NAME, SimulatedDisk
from naviscope_ingest.testing.simulation.history import History, Known, Violation
from naviscope_spi import CaughtUp, Clock, Fact

__all__ = ["STORE_FILE", "open_store_on", "read_history", "read_memory"]

STORE_FILE = "ingest.db"

_ENDS: tuple[Any, ...] = ("committed", "dead", "skipped", "cancelled", "expired", "dead", "expired")
"""The ends by their number in the file."""


@asynccontextmanager
async def open_store_on(
    disk: SimulatedDisk, clock: Clock, options: Mapping[str, Any]
) -> AsyncIterator[SqliteStore[Any]]:
    """Open the store of a simulated disk. Everything happens where it is asked for, without a thread."""
    async with SqliteStore.open(
        disk.path(STORE_FILE),
        **{"store_id": "simulated", **options, "clock": clock, "vfs": VFS_NAME, "runner": "inline"},
    ) as store:
        yield store


async def read_history(disk: SimulatedDisk, clock: Clock, options: Mapping[str, Any], *, twice: bool) -> History:
    """Return what a disk knows, after checking the hash of every row.

    Args:
        disk: what is read; opening it recovers it, so give it a copy.
        clock: for the store.
        options: for the store.
        twice: whether a second recovery must tell the same.

    Raises:
        Violation: a row is damaged, or two recoveries tell different stories.
    """
    found = await _read(disk, clock, options)
    if twice:
        again = await _read(disk, clock, options)
        if (found.ends, found.runs, found.epochs) != (again.ends, again.runs, again.epochs) or list(
            found.messages
        ) != list(again.messages):
            raise Violation("a second recovery tells something else than the first")
    return found


async def _read(disk: SimulatedDisk, clock: Clock, options: Mapping[str, Any]) -> History:
    async with open_store_on(disk, clock, options) as store:
        problems = await store.verify()
        if problems:
            raise Violation(f"the file is damaged: {problems[0]}")
        found = History()
        # Messages of completed epochs are told no more; their rows are there.
        rows: list[tuple[Any, ...]] = store._ledger.database.connection.execute(
            "select m.seq, m.epoch, m.id, e.end, p.run from messages m join ends e on e.seq = m.seq"
            " left join progress p on p.seq = m.seq order by m.seq"
        ).fetchall()
        facts = store.facts()
        try:
            while not _told(found, await anext(facts)):
                pass
        finally:
            await facts.aclose()  # type: ignore[attr-defined]  # of this store it is a reader
        for seq, epoch, message_id, end, run in rows:
            found.accept(seq, Known(epoch, message_id, None))
            found.ends[seq] = _ENDS[end]
            if run:
                found.runs[seq] = run
        return found


async def read_memory(store: MemoryStore[Any], seen: History) -> History:
    """Return what a store in memory knows.

    Args:
        store: what is read.
        seen: what was seen of it. It lets go of the messages of epochs that have completed, which are taken from here.
    """
    found = History()
    facts = store.facts()
    try:
        while not _told(found, await anext(facts)):
            pass
    finally:
        await facts.aclose()  # type: ignore[attr-defined]  # of this store it is a reader
    for place, known in seen.messages.items():
        epoch = found.epochs.get(known.epoch)
        if place not in found.messages and epoch is not None and epoch.state == "completed":
            found.accept(place, known)
            found.ends[place] = seen.ends[place]
            if place in seen.runs:
                found.runs[place] = seen.runs[place]
    return found


def _told(found: History, step: Sequence[Fact]) -> bool:
    """Take facts of a recovery, which tells what is, not what happened; return whether it is over."""
    for fact in step:
        found.tell(fact.body)
    return any(isinstance(fact.body, CaughtUp) for fact in step)
