"""Random programs on the SQLite store and on the store in memory: both answer and tell the same."""

import random

import pytest

from naviscope_ingest.stores import MemoryStore, SqliteStore
from naviscope_ingest.stores.sqlite import retention
from naviscope_ingest.testing._view import View, outline
from naviscope_spi import (
    CaughtUp,
    Dependency,
    Derived,
    Ended,
    EpochChange,
    EpochOptions,
    Message,
    Record,
    Resource,
    Settlement,
    Waits,
)


class Clock:
    """Goes on with each step, and is the same for both stores."""

    def __init__(self):
        self.now = 1_000.0

    def wall(self):
        return self.now

    monotonic = wall


class Twins:
    """Two stores that are asked the same. The answers of the first are compared with those of the second."""

    def __init__(self, seed, memory, sqlite, clock):
        self.chance = random.Random(seed)
        self.clock = clock
        self.stores = (memory, sqlite)
        self.joined = []
        self.sessions = ()
        self.epochs = []
        self.seqs = []
        self.leases = []
        self.done = {"refused": 0, "accepted": 0, "raised": 0, "letters": 0}

    async def both(self, call):
        answers = []
        for index, store in enumerate(self.stores):
            try:
                answers.append(await call(index, store))
            except Exception as exc:
                answers.append((type(exc), str(exc)))
        if isinstance(answers[0], tuple):
            assert answers[0] == answers[1]
            self.done["raised"] += 1
            return None
        return answers

    async def join(self):
        joining = [store.join("test", lead=self.chance.random() < 2) for store in self.stores]
        self.sessions = [await each.__aenter__() for each in joining]
        self.joined.append(joining)
        assert self.sessions[0] == self.sessions[1]

    async def leave(self):
        for joining in self.joined:
            for each in joining:
                await each.__aexit__(None, None, None)

    async def step(self):
        actions = [self.open, self.put, self.put, self.claim, self.claim, self.settle, self.settle, self.settle]
        actions += [self.mark, self.complete, self.stage, self.join, self.notify]
        self.clock.now += 1.0
        await self.chance.choice(actions)()

    async def open(self):
        name = self.chance.choice(["a", "b", None])
        answers = await self.both(lambda _, store: store.open_epoch(name, EpochOptions()))
        assert answers[0] == answers[1]
        if answers[0].key not in self.epochs and answers[0].state != "completed":
            self.epochs.append(answers[0].key)

    def messages(self, count):
        names = [f"m{self.chance.randrange(40)}" for _ in range(count)]
        depends = [(), ("x",), (Dependency.message("m1", "a"),), (Dependency.any_of("y", "z"),)]
        return [Message(name, self.chance.randrange(3), depends_on=self.chance.choice(depends)) for name in names]

    async def put(self):
        if self.epochs:
            epoch, messages = self.chance.choice(self.epochs), self.messages(4)
            answers = await self.both(lambda _, store: store.put(epoch, messages))
            if answers:
                one, other = answers
                assert (list(one.accepted), list(one.indexes)) == (list(other.accepted), list(other.indexes))
                assert (one.duplicates, list(one.conflicts)) == (other.duplicates, list(other.conflicts))
                self.seqs += one.accepted

    def some(self, population, most):
        return self.chance.sample(population, min(len(population), self.chance.randint(0, most)))

    async def claim(self):
        seqs = self.some(self.seqs, 4)
        answers = await self.both(lambda index, store: store.pop_ready(self.sessions[index], seqs))
        shown = [[(lease.seq, *known(lease)) for lease in leases] for leases in answers]
        assert shown[0] == shown[1]
        self.leases += list(zip(*answers, strict=True))

    async def stage(self):
        if self.leases:
            pair, messages = self.chance.choice(self.leases), self.messages(2)
            answers = await self.both(lambda index, store: store.put(pair[0].epoch, messages, staged_by=pair[index]))
            if answers:
                assert list(answers[0].indexes) == list(answers[1].indexes)

    async def settle(self):
        pairs = self.some(self.leases, 3)
        parents = [one.seq for one, _ in pairs]
        derived = [Derived(seq, self.messages(2), 2, [Resource("made", add=1)]) for seq in self.some(parents, 2)]
        values = dict.fromkeys(self.some(parents, 1), b"value")
        bad = [Ended(seq, self.chance.choice(["dead", "skipped", "expired"]), [1]) for seq in self.some(self.seqs, 2)]
        bad += [Ended(seq, "dead", discarded=True) for seq in self.some(self.seqs, 2)]
        waits = [
            Waits(
                seq,
                self.chance.choice([None, ("x",), ("y",)]),
                self.chance.choice([None, 5.0]),
                self.chance.randrange(3),
                self.chance.randrange(3),
                self.chance.choice([None, "edited"]),
            )
            for seq in self.some(self.seqs, 2)
        ]
        prepared = dict.fromkeys(self.some(self.seqs, 2), b"outcome")
        riders = {"ready": [(None, Resource("rider", add=1))], "records": [Record("s", "k", b"%d" % len(self.seqs))]}
        answers = await self.both(
            lambda index, store: store.settle(
                self.sessions[index],
                Settlement([pair[index] for pair in pairs], values, bad, waits, derived, prepared=prepared, **riders),
            )
        )
        one, other = answers
        assert list(one.refused) == list(other.refused)
        assert [(seq, key, outline(m)) for seq, key, m in one.accepted] == [
            (seq, key, outline(m)) for seq, key, m in other.accepted
        ]
        self.seqs += [seq for seq, _, _ in one.accepted]
        self.done["refused"] += len(one.refused)
        self.done["accepted"] += len(one.accepted)

    async def mark(self):
        if self.epochs:
            epoch = self.chance.choice(self.epochs)
            mark = self.chance.choice(["seal", "seal", "cancel"])
            answers = await self.both(lambda _, store: store.mark_epoch(epoch, mark))
            assert answers[0] == answers[1]

    async def complete(self):
        if self.epochs:
            epoch = self.chance.choice(self.epochs)
            # What has not ended is ended first, so that some epochs do complete.
            view = await view_of(self.stores[0])
            left = [seq for seq in view.unfinished if view.messages[seq][0] == epoch]
            ended = [Ended(seq, "skipped") for seq in left]
            for state in self.chance.choice([["completed"], ["completed", "repairing"], ["repairing"]]):
                change = EpochChange(epoch, state, b"report", self.chance.random() < 0.5)
                settlement = Settlement(ended=ended, epochs=[change])
                await self.both(lambda index, store, it=settlement: store.settle(self.sessions[index], it))
                ended = []
            view = await view_of(self.stores[0])
            if view.state(epoch) == "completed":
                # Then memory forgets the ids and the file does not: that is no difference to compare.
                self.epochs.remove(epoch)

    async def notify(self):
        resources = [Resource("set", self.chance.randrange(5)), Resource("count", add=1)]
        await self.both(lambda _, store: store.notify_ready(resources))
        if self.chance.random() < 0.2:
            await self.both(lambda _, store: store.forget_ready(["set"]))

    async def compare(self):
        one, other = [shown(await view_of(store)) for store in self.stores]
        assert one == other
        for epoch in (None, 1, 2):
            one, other = [await letters_of(store, epoch) for store in self.stores]
            assert one == other
            self.done["letters"] += len(one)


def known(lease):
    return (
        lease.epoch,
        outline(lease.message),
        lease.message.payload,
        lease.token,
        lease.run,
        lease.attempt,
        lease.crashes,
        lease.prepared,
    )


async def view_of(store):
    view = View()
    facts = store.facts()
    async for batch in facts:
        view.take(batch)
        if isinstance(batch[-1].body, CaughtUp):
            break
    await facts.aclose()
    return view


def told(ended):
    return ended.end, list(ended.causes), ended.letter, ended.discarded


async def letters_of(store, epoch):
    """Return all dead letters, page by page, and each as it is read by itself."""
    found = []
    while page := await store.letters(epoch=epoch, after=found[-1].seq if found else None, limit=3):
        found += page
    whole = [await store.letter(each.seq) for each in found]
    assert [(each.seq, each.run, told(each.ended)) for each in found] == [
        (each.seq, each.run, told(each.ended)) for each in whole
    ]
    return [
        (
            each.seq,
            each.epoch,
            outline(each.message),
            each.message.payload,
            told(each.ended),
            each.run,
            each.accepted_at,
            None if each.edited is None else each.edited.payload,
        )
        for each in whole
    ]


def shown(view):
    kept = {seq for seq, (key, _) in view.messages.items() if view.epochs[key.number].state != "completed"}
    return {
        "epochs": view.epochs,
        "messages": {seq: (view.messages[seq][0], outline(view.messages[seq][1])) for seq in kept},
        "ends": {seq: end for seq, end in view.ends.items() if seq in kept},
        "ended": {seq: told(each) for seq, each in view.ended.items() if seq in kept},
        "values": {seq: value for seq, value in view.values.items() if seq in kept},
        "waits": {
            seq: (each.depends_on, each.not_before, each.attempt, each.run)
            for seq, each in view.waits.items()
            if seq in kept
        },
        "leases": view.leases,
        "resources": view.resources,
        "position": view.position,
    }


def check_recent(ledger):
    """What is in memory is in the file too, and was never touched since it was put."""
    statement = (
        "select 'messages', seq, epoch, id, at, head, rest, codec, payload from messages where seq = ?"
        " and seq not in (select seq from ends) and seq not in (select seq from progress)"
    )
    for seq, row in ledger.recent._rows.items():
        assert ledger.connection.execute(statement, (seq,)).fetchall() == [row]
        assert seq not in ledger.leases


@pytest.mark.parametrize("seed", range(12))
async def test_both_stores_do_the_same(seed, tmp_path):
    clock = Clock()
    options = {"store_id": "twins", "clock": clock}
    # Messages that were put lately are in memory: all of them, none, or some of those that are claimed together.
    recent = (1_000_000, 0, 1_500)[seed % 3]
    async with SqliteStore.open(tmp_path / "a.db", runner="inline", max_recent=recent, **options) as sqlite:
        twins = Twins(seed, MemoryStore(**options), sqlite, clock)
        await twins.join()
        for number in range(150):
            await twins.step()
            if number % 10 == 0:
                await twins.compare()
            check_recent(sqlite._ledger)
        await twins.compare()
        assert await sqlite.verify() == []
        assert any(twins.done.values())
        await twins.leave()
    async with SqliteStore.open(tmp_path / "a.db", runner="inline", **options) as sqlite:
        twins.stores = (twins.stores[0], sqlite)
        await twins.compare()


class StagingTwins(Twins):
    """They stage much, under few messages at a time, and often what others have staged, put or derived."""

    async def step(self):
        actions = [self.put, self.claim, self.stage, self.stage, self.stage, self.stage, self.commit, self.settle]
        self.clock.now += 1.0
        await self.chance.choice(actions)()
        if self.chance.random() < 0.03:
            await self.join()
        self.leases = self.leases[-6:]

    def messages(self, count):
        return [Message(f"m{self.chance.randrange(150)}", self.chance.randrange(2)) for _ in range(count)]

    async def claim(self):
        view = await view_of(self.stores[0])
        self.seqs = [seq for seq in view.unfinished if seq not in view.leases]
        await super().claim()

    async def commit(self):
        """Commit one, with what it has staged; the twins agree on what comes alive."""
        if self.leases:
            pair = self.leases.pop(self.chance.randrange(len(self.leases)))
            derived = [Derived(pair[0].seq, self.messages(1), staged=1)]
            one, other = await self.both(
                lambda index, store: store.settle(self.sessions[index], Settlement([pair[index]], derived=derived))
            )
            assert list(one.refused) == list(other.refused)
            assert [(seq, outline(m)) for seq, _, m in one.accepted] == [
                (seq, outline(m)) for seq, _, m in other.accepted
            ]
            self.done["accepted"] += len(one.accepted)


@pytest.mark.parametrize("seed", range(12))
async def test_both_stores_stage_the_same(seed, tmp_path, monkeypatch):
    # Messages that were staged in vain are deleted one by one, and get in the way of others meanwhile.
    monkeypatch.setattr(retention, "_STEP", 1)
    clock = Clock()
    options = {"store_id": "twins", "clock": clock}
    async with SqliteStore.open(tmp_path / "a.db", runner="inline", **options) as sqlite:
        twins = StagingTwins(seed, MemoryStore(**options), sqlite, clock)
        await twins.join()
        await twins.open()
        for number in range(200):
            await twins.step()
            if number % 10 == 0:
                await twins.compare()
                assert await sqlite.verify() == []
        await twins.compare()
        assert twins.done["accepted"]
        await twins.leave()
        while sqlite._ledger.stages:
            await sqlite.notify_ready([])
        assert await sqlite.verify() == []
    async with SqliteStore.open(tmp_path / "a.db", runner="inline", **options) as sqlite:
        twins.stores = (twins.stores[0], sqlite)
        await twins.compare()
