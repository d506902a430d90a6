"""Files that are not what they should be: clear errors, and the file stays as it was."""

import errno
import os
import subprocess
import sys

import apsw
import pytest

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite import (
    BackupFailed,
    NewerFormat,
    NotAStore,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    backup,
)
from naviscope_ingest.stores.sqlite.backup import Copy
from naviscope_ingest.stores.sqlite.schema import APPLICATION_ID, load_scripts
from naviscope_spi import EpochOptions, Message, Resource, Settlement
from tests.unit.stores.sqlite.faults import FaultyDisk, Times


async def make_store(path, messages=200):
    async with SqliteStore.open(path) as store:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        await store.put(epoch, [Message(f"m{number}", "x" * 100) for number in range(messages)])
        await store.notify_ready([Resource("r", 1)])


async def refuses(path, error, **options):
    """Expect opening to raise, and the file to be as it was."""
    before = path.read_bytes()
    with pytest.raises(error, match=path.name) as caught:
        async with SqliteStore.open(path, **options):
            pass
    assert path.read_bytes() == before
    return caught.value


async def test_a_text_file_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, and they are longer than a header of SQLite is, which has a hundred bytes. " * 3)
    await refuses(path, NotAStore)


async def test_a_database_of_somebody_else_is_refused(tmp_path):
    path = tmp_path / "other.db"
    with apsw.Connection(str(path)) as connection:
        connection.execute("create table t (x); insert into t values (1)")
    connection.close()
    await refuses(path, NotAStore)


async def test_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "newer.db"
    connection = apsw.Connection(str(path))
    connection.execute(f"create table t (x); pragma application_id = {APPLICATION_ID}; pragma user_version = 99")
    connection.close()
    error = await refuses(path, NewerFormat)
    assert (error.found, error.known) == (99, len(load_scripts()))


async def test_a_newer_format_that_is_still_in_the_log_is_refused(tmp_path):
    path = tmp_path / "newer.db"
    await make_store(path)
    connection = apsw.Connection(str(path))
    connection.wal_autocheckpoint(0)
    connection.execute("pragma user_version = 99")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    log = path.with_name("newer.db-wal")
    before = log.read_bytes()
    assert before
    await refuses(path, NewerFormat)
    assert log.read_bytes() == before


@pytest.mark.parametrize("size", [50, 100, 4_096, 10_000])
async def test_a_truncated_file_is_refused(tmp_path, size):
    path = tmp_path / "cut.db"
    await make_store(path)
    path.write_bytes(path.read_bytes()[:size])
    await refuses(path, StoreCorrupt)


async def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(StoreUnavailable, match="nowhere"):
        async with SqliteStore.open(tmp_path / "nowhere" / "a.db"):
            pass


async def test_a_directory_is_no_store(tmp_path):
    with pytest.raises(StoreUnavailable, match=tmp_path.name):
        async with SqliteStore.open(tmp_path, vfs="unix"):
            pass


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is read-only for this user")
async def test_a_read_only_directory_is_named(tmp_path):
    folder = tmp_path / "sealed"
    folder.mkdir()
    folder.chmod(0o555)
    with pytest.raises(StoreUnavailable, match="may this process write there"):
        async with SqliteStore.open(folder / "a.db"):
            pass


async def test_a_read_only_disk_is_named(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("naviscope_ingest.stores.sqlite.lockfile.os.open", refuse)
    with pytest.raises(StoreUnavailable, match=r"a\.db\.lock cannot be made: Read-only file system"):
        async with SqliteStore.open(tmp_path / "a.db"):
            pass
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_is_told_when_a_store_is_made(tmp_path):
    with FaultyDisk() as disk:
        disk.before = Times(apsw.FullError, "write", "db", times=1_000)
        with pytest.raises(StoreFull, match="make room"):
            async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name):
                pass
        disk.before = lambda what, file: None
        async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name) as store:
            assert await store.verify() == []


async def test_a_second_opener_is_told_who_has_the_file(tmp_path):
    path = tmp_path / "a.db"
    async with SqliteStore.open(path, who="the nightly import"):
        error = await refuses(path, StoreLocked)
        assert f"process {os.getpid()}" in str(error)
        assert "the nightly import" in str(error)
    async with SqliteStore.open(path):
        pass


async def test_a_link_does_not_open_the_file_a_second_time(tmp_path):
    path, link = tmp_path / "a.db", tmp_path / "link.db"
    link.symlink_to(path)
    async with SqliteStore.open(path):
        await refuses(link, StoreLocked)
    async with SqliteStore.open(link):
        await refuses(path, StoreLocked)


async def test_another_process_is_refused(tmp_path):
    path = tmp_path / "a.db"
    program = (
        "import sys, trio\n"
        "from naviscope_ingest.stores import SqliteStore\n"
        "from naviscope_ingest.stores.sqlite import StoreLocked\n"
        "async def main():\n"
        "    try:\n"
        "        async with SqliteStore.open(sys.argv[1]): print('opened')\n"
        "    except StoreLocked as error: print(error.holder)\n"
        "trio.run(main)\n"
    )

    def ask():
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    async with SqliteStore.open(path):
        assert f"process {os.getpid()} on " in ask()
    assert ask() == "opened"


async def test_the_lock_of_a_dead_process_does_no_harm(tmp_path):
    path = tmp_path / "a.db"
    path.with_name("a.db.lock").write_text('{"pid": 1, "host": "gone", "who": "dead", "since": 0}')
    async with SqliteStore.open(path):
        assert str(os.getpid()) in path.with_name("a.db.lock").read_text()


async def test_a_backup_is_made_while_work_goes_on_and_opens_read_only(tmp_path):
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    await make_store(path, 5_000)
    async with SqliteStore.open(path) as store, store.join("test") as session:
        epoch = (await store.open_epoch("nightly", EpochOptions())).key
        seqs = (await store.put(epoch, [Message("one more", 1)])).accepted
        await store.pop_ready(session, seqs)
        await store.backup(str(copy))
        with pytest.raises(FileExistsError, match=r"copy\.db"):
            await store.backup(str(copy))
        store_id = store.info.store_id
    assert sorted(each.name for each in tmp_path.glob("copy*")) == ["copy.db"]
    before = copy.read_bytes()
    async with SqliteStore.open(copy, read_only=True) as store:
        assert store.info.store_id == store_id
        assert await store.verify() == []
        assert await store.read("space", ["key"]) == {}
        facts = store.facts()
        told = [fact.body async for batch in up_to_caught_up(facts) for fact in batch]
        assert sum(len(getattr(body, "messages", ())) for body in told) == 5_001 == told[0].amount
        with pytest.raises(StoreReadOnly, match=r"copy\.db"):
            await store.put(epoch, [Message("x", 1)])
    assert copy.read_bytes() == before
    async with SqliteStore.open(copy) as store, store.join("after") as session:
        (lease,) = await store.pop_ready(session, seqs)
        assert lease.crashes == 0
        await store.settle(session, Settlement(committed=[lease]))


async def test_a_backup_that_cannot_be_made_blames_the_copy_and_the_store_goes_on(tmp_path):
    with FaultyDisk() as disk:
        async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name) as store:
            epoch = (await store.open_epoch("nightly", EpochOptions())).key
            disk.before = Times(apsw.FullError, "write", "partial", times=1_000)
            with pytest.raises(BackupFailed, match=r"copy\.db cannot be made: .*the store goes on"):
                await store.backup(str(tmp_path / "copy.db"))
            disk.before = lambda what, file: None
            assert not list(tmp_path.glob("copy*"))
            with pytest.raises(BackupFailed, match=r"nowhere/copy\.db cannot be made"):
                await store.backup(str(tmp_path / "nowhere" / "copy.db"))
            assert len((await store.put(epoch, [Message("a", 1)])).accepted) == 1
            await store.backup(str(tmp_path / "copy.db"))
    async with SqliteStore.open(tmp_path / "copy.db", read_only=True) as store:
        assert await store.verify() == []


async def test_a_backup_ends_when_the_store_has_to_open_its_file_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(backup, "_PAGES", 1)
    with FaultyDisk() as disk:
        async with SqliteStore.open(tmp_path / "a.db", vfs=disk.name) as store:
            epoch = (await store.open_epoch("nightly", EpochOptions())).key
            copy = await store._read(lambda ledger: Copy(ledger, str(tmp_path / "copy.db")))
            assert not await store._read(copy.step)
            disk.before = Times(apsw.FullError, "write", "db-wal", times=1)
            assert len((await store.put(epoch, [Message("a", 1)])).accepted) == 1
            with pytest.raises(BackupFailed, match="opened its file anew"):
                await store._read(copy.step)
            copy.close()
            assert await store.verify() == []
    assert not list(tmp_path.glob("copy*"))


async def up_to_caught_up(facts):
    async for batch in facts:
        yield batch
        if type(batch[-1].body).__name__ == "CaughtUp":
            return


async def test_a_log_that_is_found_is_written_and_synced_before_anything_else(tmp_path):
    path = tmp_path / "a.db"
    await make_store(path)
    with apsw.Connection(str(path)) as connection:
        connection.execute("create table mine (x); insert into mine values (zeroblob(300000))")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    log = path.with_name("a.db-wal").read_bytes()
    seen = []
    with FaultyDisk() as disk:
        disk.after = lambda what, file: seen.append((what, file, path.with_name("a.db-wal").read_bytes()))
        async with SqliteStore.open(path, vfs=disk.name) as store:
            assert await store.verify() == []
    writes = -(-len(log) // 65_536)
    assert len(log) > 300_000
    assert seen[: writes + 1] == [("write", "db-wal", log)] * writes + [("sync", "db-wal", log)]


async def test_the_log_of_somebody_else_is_not_written(tmp_path):
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    connection.execute("pragma journal_mode = wal; create table t (x)").fetchall()
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    log = path.with_name("other.db-wal")
    before = log.read_bytes(), log.stat().st_mtime_ns
    await refuses(path, NotAStore)
    assert (log.read_bytes(), log.stat().st_mtime_ns) == before
