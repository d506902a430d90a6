"""Row hashes and sums: what they find, and that they are right after everything the store does."""

import random
from pathlib import Path

import apsw
import pytest
from attrs import evolve

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite import StoreCorrupt
from naviscope_spi import (
    Derived,
    Ended,
    EpochChange,
    EpochOptions,
    Message,
    Record,
    Resource,
    Settlement,
    StoreFailed,
    StoreRefused,
    Waits,
)


async def make_work(store):
    """Do something of everything, so that every table has rows. Returns what is left leased, with its session open."""
    epoch = (await store.open_epoch("nightly", EpochOptions())).key
    seqs = (
        await store.put(epoch, [Message(f"m{n}", f"payload {n}", headers={"n": str(n)}) for n in range(30)])
    ).accepted
    done = (await store.open_epoch("done", EpochOptions())).key
    (other,) = (await store.put(done, [Message("x", 1)])).accepted
    await store.mark_epoch(done, "seal")
    joining = store.join("test")
    session = await joining.__aenter__()
    leases = await store.pop_ready(session, [*seqs[:10], other])
    derived = [Derived(seqs[0], [Message("d", 1)], ready=[Resource("scoped", 2)])]
    completed = EpochChange(done, "completed", b"report", succeeded=True)
    await store.settle(
        session,
        Settlement(committed=[*leases[:5], leases[10]], values={seqs[1]: b"v"}, derived=derived, epochs=[completed]),
    )
    await store.settle(session, Settlement(ended=[Ended(seqs[5], "dead", letter=b"why"), Ended(seqs[20], "skipped")]))
    await store.settle(
        session, Settlement(waits=[Waits(seqs[6], depends_on=("m1",), attempt=1), Waits(seqs[5], run=1)])
    )
    await store.settle(session, Settlement(prepared={seqs[7]: b"outcome"}, records=[Record("s", "k", b"v")]))
    for lease in leases[8:10]:
        await store.put(epoch, [Message("staged", 1)], staged_by=lease)
    await store.notify_ready([Resource("r", 2, value=b"v")])
    await store.put_unique(epoch, [Message("unique", 1)], 1e9)
    return joining, leases[7:10]


@pytest.mark.parametrize("runner", ["thread", "inline"])
async def test_sums_are_right_after_everything(tmp_path, runner):
    async with SqliteStore.open(tmp_path / "a.db", runner=runner) as store:
        joining, _ = await make_work(store)
        assert await store.verify() == []
        counts = {name: store._ledger.sums.of(name)[0] for name in TABLES}
        assert all(counts.values()), counts
        await joining.__aexit__(None, None, None)
        assert await store.verify() == []
        while await store.prune(1e12, 3):
            assert await store.verify() == []


TABLES = (
    "epochs",
    "messages",
    "stages",
    "staged",
    "ends",
    "progress",
    "claims",
    "resources",
    "records",
    "naviscope_uniques",
)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("update messages set payload = 'forged' where seq = 3", "table messages, seq 3, epoch 1, id 'm2'"),
        ("update messages set id = 'other' where seq = 3", "table messages, seq 3"),
        ("update ends set end = 1 where seq = 2", "table ends, seq 2"),
        ("update progress set attempt = 9 where seq = 7", "table progress, seq 7"),
        ("update resources set version = 9 where name = 'r'", "table resources, scope 0, name 'r'"),
        ("update naviscope_uniques set until = 0", "table naviscope_uniques, kind 'message', id 'unique'"),
        ("update records set value = x'00'", "table records, space 's', key 'k'"),
        ("update epochs set report = x'00' where name = 'done'", "table epochs, number 2, name 'done'"),
        ("delete from messages where seq = 3", "table messages: 33 rows, and the sum says 34"),
        ("delete from ends where seq = 2", "table ends: "),
        ("update state set last_seq = 1", "table state"),
    ],
)
async def test_a_changed_or_missing_row_is_named(tmp_path, change, named):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        joining, _ = await make_work(store)
        if "forged" in change:
            change = change.replace("'forged'", "x'00'")
        await store._read(lambda ledger: ledger.connection.execute(change).fetchall())
        findings = await store.verify()
        assert findings[0].startswith(named)
        await joining.__aexit__(None, None, None)


async def test_a_changed_message_is_not_handed_out(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db", max_recent=0) as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        seqs = (await store.put(epoch, [Message("a", "payload")])).accepted
        await store._read(lambda ledger: ledger.connection.execute("update messages set payload = x'a0'"))
        async with store.join("test") as session:
            with pytest.raises(StoreCorrupt, match="message 'a' at place 1"):
                await store.pop_ready(session, seqs)


async def test_flipped_bits_are_found(tmp_path):
    """A file with one flipped bit is refused, or found wrong by `verify`, or says what it said before."""
    path = tmp_path / "a.db"
    async with SqliteStore.open(path) as store:
        joining, _ = await make_work(store)
        await joining.__aexit__(None, None, None)
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        await store.put(epoch, [Message(f"more {n}", f"payload {n}" * 20) for n in range(1_000)])
    whole = path.read_bytes()
    content = dump(path)
    rng = random.Random(7)
    found = 0
    for _ in range(60):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        other = tmp_path / "flipped.db"
        other.write_bytes(flipped)
        try:
            async with SqliteStore.open(other, read_only=True, runner="inline") as store:
                findings = await store.verify()
        except (StoreRefused, StoreFailed):
            findings = ["refused"]
        found += bool(findings)
        assert findings or dump(other) == content
    assert found > 20


def dump(path):
    connection = apsw.Connection(f"file:{path}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        return {name: connection.execute(f"select * from {name}").fetchall() for name in TABLES}
    except apsw.Error:
        return None
    finally:
        connection.close()


async def test_a_process_that_died_with_one_lease_counts_a_crash_in_the_next(tmp_path):
    path = tmp_path / "a.db"
    async with SqliteStore.open(path) as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        seqs = (await store.put(epoch, [Message(f"m{n}", n) for n in range(4)])).accepted
        async with store.join("first") as session:
            leases = await store.pop_ready(session, seqs[:3])
            await store.settle(session, Settlement(committed=leases[:1], waits=[Waits(seqs[1])]))
            await store._read(lambda ledger: copy_file(ledger, tmp_path / "dead.db"))
    async with SqliteStore.open(tmp_path / "dead.db") as store, store.join("second") as session:
        leases = await store.pop_ready(session, seqs)
        assert [(lease.message.id, lease.crashes) for lease in leases] == [("m1", 0), ("m2", 1), ("m3", 0)]


async def test_a_message_that_was_replayed_while_others_of_its_claim_run_is_not_leased(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        seqs = (await store.put(epoch, [Message(f"m{n}", n) for n in range(2)])).accepted
        async with store.join("first") as session:
            await store.pop_ready(session, seqs)
            await store.settle(session, Settlement(ended=[Ended(seqs[0], "dead")]))
            await store.settle(session, Settlement(waits=[Waits(seqs[0], run=1)]))
            await store._read(lambda ledger: ledger.load())
            assert list(store._ledger.leases) == [seqs[1]]


def copy_file(ledger, path):
    """Copy the file as it is on the disk, with its log, as a process that dies leaves it."""
    for suffix in ("", "-wal"):
        path.with_name(f"{path.name}{suffix}").write_bytes(Path(f"{ledger.database.path}{suffix}").read_bytes())


async def test_an_epoch_is_kept_for_its_own_time(tmp_path):
    now = 1_000_000.0

    class Clock:
        def wall(self):
            return now

        def monotonic(self):
            return now

    async with SqliteStore.open(tmp_path / "a.db", clock=Clock(), retain=100.0) as store, store.join("test") as session:
        for name, retain in (("default", None), ("short", 10.0), ("long", 1_000.0)):
            epoch = (await store.open_epoch(name, EpochOptions(retain=retain))).key
            await store.mark_epoch(epoch, "seal")
            await store.settle(session, Settlement(epochs=[EpochChange(epoch, "completed", succeeded=True)]))
        left = []
        for seconds in (5, 50, 500, 5_000):
            await store.prune(now + seconds - store.retain, 100)
            rows = await store._read(lambda ledger: ledger.connection.execute("select name from epochs").fetchall())
            left.append({name for (name,) in rows})
        assert left == [{"default", "short", "long"}, {"default", "long"}, {"long"}, set()]


async def test_known_ids_of_a_completed_epoch_are_duplicates(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store, store.join("test") as session:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        seqs = (await store.put(epoch, [Message("a", 1)])).accepted
        await store.mark_epoch(epoch, "seal")
        change = EpochChange(epoch, "completed", succeeded=True)
        await store.settle(session, Settlement(committed=await store.pop_ready(session, seqs), epochs=[change]))
        receipt = await store.put(epoch, [Message("a", 1)])
        assert (receipt.duplicates, list(receipt.conflicts)) == (1, [])
        assert evolve(receipt, duplicates=0).accepted == []
