"""Random programs against the store in memory: what it tells, what it counts and what it holds always agree."""

import random

import pytest

from naviscope_ingest.stores import MemoryStore
from naviscope_ingest.testing._view import View
from naviscope_spi import (
    Derived,
    Ended,
    EpochChange,
    EpochOptions,
    EpochSealed,
    Message,
    Resource,
    Settlement,
    Waits,
)


class Program:
    """Does one random thing after another, each a single atomic step of the store."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.store = MemoryStore(store_id="programs", keep_reports=3)
        self.ledger = self.store._ledger
        self.session = self.ledger.enter(lead=True)
        self.leases = []
        self.seqs = []

    def step(self):
        actions = [self.open, self.put, self.put, self.claim, self.claim, self.settle, self.settle, self.settle]
        actions += [self.mark, self.complete, self.stage, self.crash, self.notify]
        self.chance.choice(actions)()

    def epochs(self):
        return [epoch.key for epoch in self.ledger._epochs.values()]

    def open(self):
        if len(self.epochs()) < 8:
            self.ledger.open_epoch(self.chance.choice(["a", "b", None]), EpochOptions())

    def messages(self, count):
        return [Message(f"m{self.chance.randrange(30)}", self.chance.randrange(3)) for _ in range(count)]

    def put(self):
        if self.epochs():
            try:
                receipt = self.ledger.put(self.chance.choice(self.epochs()), self.messages(5))
            except EpochSealed:
                return
            self.seqs += receipt.accepted

    def claim(self):
        self.leases += self.ledger.pop_ready(self.session, self.some(self.seqs, 4))

    def some(self, population, most):
        return self.chance.sample(population, min(len(population), self.chance.randint(0, most)))

    def settle(self):
        leases = self.some(self.leases, 3)
        derived = [Derived(lease.seq, self.messages(2), staged=1, ready=[Resource("r", add=1)]) for lease in leases[:1]]
        ended = [
            Ended(seq, self.chance.choice(["dead", "skipped", "expired", "cancelled"]), letter=b"why")
            for seq in self.some(self.seqs, 2)
        ]
        waits = [
            Waits(seq, attempt=self.chance.randrange(3), run=self.chance.randrange(3))
            for seq in self.some(self.seqs, 3)
        ]
        prepared = {lease.seq: b"outcome" for lease in self.some(self.leases, 1)}
        values = {lease.seq: b"value" for lease in leases[:1]}
        settlement = Settlement(leases, values, ended, waits, derived, prepared=prepared)
        settled = self.ledger.settle(self.session, settlement)
        self.seqs += [seq for seq, _, _ in settled.accepted]

    def mark(self):
        if self.epochs():
            self.ledger.mark_epoch(self.chance.choice(self.epochs()), self.chance.choice(["seal", "seal", "cancel"]))

    def complete(self):
        changes = [EpochChange(key, self.chance.choice(["completed", "repairing"]), b"report") for key in self.epochs()]
        self.ledger.settle(self.session, Settlement(epochs=changes))

    def stage(self):
        for lease in self.some(self.leases, 1):
            if self.ledger._leases.get(lease.seq) is lease:
                self.ledger.put_staged(lease.epoch, self.messages(2), lease)

    def crash(self):
        if self.chance.random() < 0.2:
            self.session = self.ledger.enter(lead=self.chance.random() < 0.9)

    def notify(self):
        self.ledger.notify_ready([Resource("global", self.chance.randrange(5))])


def count_again(ledger):
    """Recount what the ledger counts as it goes."""
    live, progress = ledger._live, ledger._progress
    for epoch in ledger._epochs.values():
        assert list(epoch.messages.values()) == [epoch.messages[seq] for seq in epoch.ids.values()]
        assert all(epoch.messages[seq].id == name for name, seq in epoch.ids.items())
        assert epoch.times == sorted(epoch.times)
        left = [seq for seq in epoch.ids.values() if seq in live]
        assert all(live[seq] is epoch for seq in left)
        ends = {seq: progress[seq].ended for seq in left if seq in progress and progress[seq].ended is not None}
        assert epoch.unfinished == len(left) - len(ends)
        assert epoch.letters == sum(each.end in ("dead", "expired") for each in ends.values())
        assert set(epoch.failed) == set(ends)
    assert set(live) <= {seq for epoch in ledger._epochs.values() for seq in epoch.messages}
    assert set(ledger._leases) <= set(live)
    assert set(progress) <= set(live)
    for parent, stage in ledger._staged.items():
        assert parent in ledger._leases
        assert not set(stage) & set(live)


async def taken(view, reader):
    position = reader._feed.position
    while reader._steps:
        view.take(await anext(reader))
    view.position = position
    return view


def told(view, ledger):
    """What a reader knows of epochs that are kept with their messages; a recovery tells of no others."""
    kept = {number for number, epoch in ledger._epochs.items() if not epoch.is_freed}
    seqs = {seq for seq, (key, _) in view.messages.items() if key.number in kept}
    return {
        "epochs": view.epochs,
        "messages": {seq: view.messages[seq] for seq in seqs},
        "ends": {seq: view.ends[seq] for seq in seqs & view.ends.keys()},
        "values": {seq: view.values[seq] for seq in seqs & view.values.keys()},
        "leases": view.leases,
        "runs": {seq: view.run(seq) for seq in seqs if view.ends.get(seq) != "committed"},
        "resources": {key: each for key, each in view.resources.items() if key[0] is None or key[0] in kept},
    }


@pytest.mark.parametrize("seed", range(40))
async def test_news_recovery_and_counters_agree(seed):
    program = Program(seed)
    reader, news = program.store.facts(), View()
    for _ in range(150):
        program.step()
        count_again(program.ledger)
    await taken(news, reader)
    recovery = await taken(View(), program.store.facts())
    assert told(news, program.ledger) == told(recovery, program.ledger)
