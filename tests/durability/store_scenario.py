"""The SQLite store at work on a simulated disk, through every kind of call.

The script is a list of calls. An undisturbed run writes down what the store knows after each of them: its facts as a
recovery tells them, its records, and the rows of a sink in the same file. An interrupted run counts the calls that
were answered. What is found afterwards must be exactly what was known after that many calls, or after one more: so
nothing that was acknowledged is lost, every call is whole or absent, and what has ended stays ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from typing import Any
from unittest.mock import patch

import trio
from attrs import define, field

from naviscope_ingest.sinks import Execute, Insert, SqliteSink
from naviscope_ingest.stores.sqlite import SqliteStore, database
from naviscope_ingest.testing._view import View
from naviscope_ingest.testing.disk import VFS_NAME, SimulatedDisk
from naviscope_spi import (
    CommitBatch,
    Dependency,
    Derived,
    Ended,
    Entry,
    EpochChange,
    EpochKey,
    EpochOptions,
    Lease,
    Message,
    Record,
    Resource,
    Session,
    Settlement,
    StoreFailed,
    StoreRefused,
    Waits,
    task_key,
)

STAGED = 12
PAGES = 40
SCHEMA = "create table booking (id integer primary key, message text not null); create table total (amount)"


class FixedClock:
    """Time stands still, so that a run is repeated byte by byte."""

    def wall(self) -> float:
        return 1_000_000.0

    def monotonic(self) -> float:
        return 0.0


@define
class Seen:
    """How many calls were answered while the process lived."""

    calls: int = 0


@define
class Desk:
    """Where the script works: the store, the session, and what the calls have given it so far."""

    store: SqliteStore[Any]
    session: Session
    sink: SqliteSink
    epochs: dict[str, EpochKey] = field(factory=dict)
    seqs: dict[str, Any] = field(factory=dict)
    leases: dict[str, Lease[Any]] = field(factory=dict)

    async def open(self, name: str) -> None:
        self.epochs[name] = (await self.store.open_epoch(name, EpochOptions(retain=5.0))).key

    async def put(self, epoch: str, *names: str, known: int = 0) -> None:
        messages = [message(name) for name in names]
        receipt = await self.store.put(self.epochs[epoch], messages)
        assert (len(receipt.accepted), receipt.duplicates, list(receipt.conflicts)) == (
            len(names) - known,
            known,
            [],
        ), "receipt"
        for seq, index in zip(receipt.accepted, receipt.indexes, strict=True):
            self.seqs[names[index]] = seq

    async def put_unique(self, *names: str, known: int = 0) -> None:
        receipt = await self.store.put_unique(self.epochs["one"], [message(name) for name in names], 100.0)
        assert (len(receipt.accepted), receipt.duplicates) == (len(names) - known, known), "receipt"

    async def claim(self, *names: str) -> None:
        leases = await self.store.pop_ready(self.session, [self.seqs[name] for name in names])
        assert [lease.message.id for lease in leases] == list(names)
        assert all(lease.message.payload == payload(lease.message.id) for lease in leases)
        self.leases.update(zip(names, leases, strict=True))

    async def settle(self, settlement: Settlement[Any], *, brings: int = 0) -> None:
        settled = await self.store.settle(self.session, settlement)
        assert (list(settled.refused), len(settled.accepted)) == ([], brings)
        self.seqs.update({each.id: seq for seq, _, each in settled.accepted})

    async def commit(self, *names: str) -> None:
        await self.settle(Settlement(committed=[self.leases[name] for name in names]))

    async def commit_with(self, *names: str) -> None:
        """Commit with rows of a sink in the same transaction."""
        leases = [self.leases[name] for name in names]
        batch = CommitBatch([booking(lease) for lease in leases])
        settled = await self.store.settle_with(
            self.session, Settlement(committed=leases), lambda transaction: self.sink.apply(transaction, batch)
        )
        assert list(settled.refused) == []

    async def bring(self) -> None:
        derived = Derived(self.seqs["a0"], [message("d0", ["a5"]), message("d1")], ready=[Resource("table", 3)])
        values = {self.seqs["a0"]: b"value of a0"}
        records = [Record("offsets", "file", b"17"), Record("offsets", "old", None)]
        ready = [(None, Resource("global", 1))]
        committed = [self.leases["a0"], self.leases["a1"]]
        await self.settle(
            Settlement(committed=committed, derived=[derived], values=values, records=records, ready=ready), brings=2
        )

    async def end(self) -> None:
        ended = [Ended(self.seqs["a2"], "dead", letter=b"letter"), Ended(self.seqs["a3"], "skipped")]
        await self.settle(Settlement(ended=ended, records=[Record("audit", "a2", b"died")]))

    async def defer(self) -> None:
        waits = Waits(self.seqs["a4"], (Dependency.resource("later"),), not_before=2_000_000.0, attempt=2)
        await self.settle(Settlement(waits=[waits]))

    async def stage(self, start: int) -> None:
        staged = [message(f"s{number}") for number in range(start, start + STAGED // 2)]
        await self.store.put(self.epochs["one"], staged, staged_by=self.leases["a5"])

    async def unstage(self) -> None:
        derived = [Derived(self.seqs["a5"], staged=STAGED)]
        await self.store.settle(self.session, Settlement(committed=[self.leases["a5"]], derived=derived))

    async def stage_in_vain(self) -> None:
        """Stage what another message has staged too, under one that commits without it."""
        staged = [message(name) for name in ("s1", "t0", "t1")]
        await self.store.put(self.epochs["one"], staged, staged_by=self.leases["a7"])

    async def prepare(self) -> None:
        await self.settle(Settlement(prepared={self.seqs["a6"]: b"outcome"}))

    async def complete(self, name: str) -> None:
        await self.settle(Settlement(epochs=[EpochChange(self.epochs[name], "completed", b"report", succeeded=True)]))

    async def prune(self) -> None:
        await self.store.prune(3_000_000.0, 4)


def message(name: str, depends_on: Sequence[Any] = ()) -> Message[Any]:
    return Message(name, payload(name), depends_on=depends_on, key=name[0], headers={"from": "script"})


def payload(name: str) -> dict[str, Any]:
    return {"name": name, "text": name * 40}


def booking(lease: Lease[Any]) -> Entry[Any]:
    name = lease.message.id
    ops = [Insert("booking", {"message": name}), Execute("insert into total select count(*) from booking")]
    return Entry(task_key("sim", lease.epoch.number, name), lease.epoch, name, "message", ops)


Call = Callable[[Desk], Awaitable[Any]]

# Two lives of the process: the second goes on where the first stopped.
FIRST: list[Call] = [
    lambda desk: desk.open("one"),
    lambda desk: desk.put("one", *(f"a{number}" for number in range(9))),
    lambda desk: desk.put("one", "a1", "b0", "a8", known=2),
    lambda desk: desk.claim("a0", "a1", "a2", "a3", "a4"),
    lambda desk: desk.bring(),
    lambda desk: desk.end(),
    lambda desk: desk.defer(),
    lambda desk: desk.claim("a5", "a6", "a7", "a8"),
    lambda desk: desk.stage(0),
    lambda desk: desk.stage_in_vain(),
    lambda desk: desk.stage(STAGED // 2),
    lambda desk: desk.unstage(),
    lambda desk: desk.prepare(),
    lambda desk: desk.commit_with("a7", "a8"),
    lambda desk: desk.store.notify_ready([Resource("global", 2), Resource("other", 1, value=b"x")]),
    lambda desk: desk.store.forget_ready(["other"]),
    lambda desk: desk.open("two"),
    lambda desk: desk.put("two", *(f"c{number}" for number in range(6))),
    lambda desk: desk.store.mark_epoch(desk.epochs["two"], "seal"),
    lambda desk: desk.claim(*(f"c{number}" for number in range(6))),
    lambda desk: desk.commit_with(*(f"c{number}" for number in range(6))),
    lambda desk: desk.complete("two"),
]
SECOND: list[Call] = [
    lambda desk: desk.open("one"),
    lambda desk: desk.prune(),
    lambda desk: desk.prune(),
    lambda desk: desk.prune(),
    lambda desk: desk.put("one", "a1", "e0", "e1", known=1),
    lambda desk: desk.put_unique("u0", "u1", "e0", known=1),
    lambda desk: desk.claim("e0", "e1"),
    lambda desk: desk.commit("e0"),
    lambda desk: desk.store.mark_epoch(desk.epochs["one"], "cancel"),
    lambda desk: desk.commit_with("e1"),
]


class StoreScenario:
    """The script, on a store that runs where it is called."""

    tolerated = (StoreFailed, StoreRefused)

    def disk(self) -> SimulatedDisk:
        return SimulatedDisk()

    def start(self) -> Seen:
        return Seen()

    def run(self, disk: SimulatedDisk, seen: Seen) -> None:
        disk.power_on()
        # Checkpoints come every few calls, not every few thousand.
        with patch.object(database, "_CHECKPOINT_PAGES", PAGES):
            trio.run(self._live, disk, seen, None)

    def recover(self, disk: SimulatedDisk) -> None:
        disk.power_on()
        with patch.object(database, "_CHECKPOINT_PAGES", PAGES):
            trio.run(self._recover, disk)

    def check(self, disk: SimulatedDisk, seen: Seen) -> None:
        expected = self.states[seen.calls : seen.calls + 2]
        disk.power_on()
        with patch.object(database, "_CHECKPOINT_PAGES", PAGES):
            trio.run(self._check, disk, seen.calls, expected)

    @cached_property
    def states(self) -> list[Any]:
        """What is known after each call, and before the first."""
        disk = SimulatedDisk()
        states: list[Any] = [None]
        trio.run(self._live, disk, self.start(), states)
        return states

    def open(self, disk: SimulatedDisk) -> Any:
        return SqliteStore.open(
            disk.path(), clock=FixedClock(), vfs=VFS_NAME, runner="inline", store_id="sim", retain=10.0
        )

    async def _live(self, disk: SimulatedDisk, seen: Seen, states: list[Any] | None) -> None:
        for calls in (FIRST, SECOND):
            async with self.open(disk) as store, store.join("script") as session:
                desk = Desk(store, session, SqliteSink(schema=SCHEMA))
                if states is not None:
                    states[0] = states[0] or await known(store)
                for call in calls:
                    await self.answer(disk, seen, partial(call, desk))
                    if states is not None:
                        states.append(await known(store))

    async def answer(self, disk: SimulatedDisk, seen: Seen, call: Callable[[], Awaitable[Any]]) -> None:
        await call()
        if not disk.is_dead:
            seen.calls += 1

    async def _check(self, disk: SimulatedDisk, calls: int, expected: list[Any]) -> None:
        found = await self._look(disk)
        assert found in expected, f"after {calls} calls: {difference(found, expected[0])}"
        assert await self._look(disk) == found, "a second recovery tells another story"
        await self._finish(disk)

    async def _recover(self, disk: SimulatedDisk) -> None:
        """Open, join as the next process would, claim everything, and leave."""
        async with self.open(disk) as store, store.join("next") as session:
            await store.verify()
            view = await recovered(store)
            await store.pop_ready(session, sorted(view.unfinished))

    async def _look(self, disk: SimulatedDisk) -> Any:
        async with self.open(disk) as store:
            problems = list(await store.verify())
            assert problems == [], f"verify: {problems}"
            return await known(store)

    async def _finish(self, disk: SimulatedDisk) -> None:
        """Go on: everything that has not ended can be claimed, with its payload, and committed."""
        async with self.open(disk) as store, store.join("next") as session:
            view = await recovered(store)
            leases = await store.pop_ready(session, sorted(view.unfinished))
            assert {lease.seq for lease in leases} == view.unfinished
            assert all(lease.message.payload == payload(lease.message.id) for lease in leases), "a payload is wrong"
            settled = await store.settle(session, Settlement(committed=leases))
            assert list(settled.refused) == []
            assert (await recovered(store)).unfinished == set()
            assert list(await store.verify()) == []


async def recovered(store: SqliteStore[Any]) -> View:
    """Return what a recovery tells."""
    view = View()
    facts = store.facts()
    while not view.is_caught_up:
        view.take(await anext(facts))
    await facts.aclose()
    return view


async def known(store: SqliteStore[Any]) -> Any:
    """Return what the store knows, but for leases and sessions: those are the process's own."""
    view = await recovered(store)
    records = {space: await store.read(space, ["file", "old", "a2"]) for space in ("offsets", "audit")}
    return {
        "epochs": {key: (each.state, each.cancel_requested, each.report) for key, each in view.epochs.items()},
        "messages": {seq: (key, each.id, each.depends_on, each.key) for seq, (key, each) in view.messages.items()},
        "ends": view.ends,
        "letters": {seq: each.letter for seq, each in view.ended.items()},
        "values": view.values,
        "waits": view.waits,
        "resources": view.resources,
        "records": {space: dict(found) for space, found in records.items()},
        "prepared": _rows(store, "select seq, prepared from progress where prepared is not null"),
        "uniques": _rows(store, "select kind, id, until, seq from naviscope_uniques"),
        "rows": _sink_rows(store),
    }


def _sink_rows(store: SqliteStore[Any]) -> list[Any]:
    if not _rows(store, "select 1 from sqlite_schema where name = 'booking'"):
        return []
    return [_rows(store, "select message from booking order by id"), _rows(store, "select amount from total")]


def _rows(store: SqliteStore[Any], sql: str) -> list[Any]:
    return store._ledger.database.connection.execute(sql).fetchall()


def difference(found: Any, expected: Any) -> str:
    """Say in a few words what differs."""
    if not isinstance(expected, dict):
        return f"{found!r:.100}"
    parts = [
        f"{key}: {found[key]!r:.150} instead of {expected[key]!r:.150}" for key in found if found[key] != expected[key]
    ]
    return "; ".join(parts)
