"""The simulated disk repeats itself, forgets what was not synced, and bites."""

import sys
from contextlib import suppress

import apsw
import pytest

from naviscope_ingest.testing.disk import CHANGES, VFS_NAME, ProcessDied, SimulatedDisk, Survival

COMMITS = 12


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """A connection to a dead disk cannot close in order, and says so where nobody can catch it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: None)


def connect(disk, sync="FULL", checkpoint=8):
    connection = apsw.Connection(disk.path(), vfs=VFS_NAME)
    connection.execute("pragma locking_mode = exclusive").fetchall()
    connection.execute(f"pragma synchronous = {sync}").fetchall()
    assert connection.execute("pragma journal_mode = wal").fetchall() == [("wal",)]
    connection.execute(f"pragma wal_autocheckpoint = {checkpoint}").fetchall()
    return connection


def work(disk, sync="FULL", acknowledged=None, first=0):
    """Commit groups of rows; say which were acknowledged while the process lived."""
    acknowledged = [] if acknowledged is None else acknowledged
    connection = connect(disk, sync)
    connection.execute("create table if not exists t (id integer primary key, part integer, body blob)")
    for number in range(first, first + COMMITS):
        connection.execute("begin immediate")
        connection.executemany("insert into t (part, body) values (?, zeroblob(700))", [(number,)] * (1 + number % 3))
        connection.execute("commit")
        if not disk.is_dead:
            acknowledged.append(number)
    connection.close()
    return acknowledged


def parts(disk):
    """Return which groups are there after a restart; each must be whole."""
    connection = connect(disk)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    if not connection.table_exists("main", "t"):
        return []
    rows = connection.execute("select part, count(*) from t group by part order by part").fetchall()
    connection.close()
    assert all(count == 1 + number % 3 for number, count in rows)
    return [number for number, _ in rows]


def stopped(number, sync="FULL"):
    """Work until the process is killed at an operation; return the disk and what was acknowledged."""
    disk = SimulatedDisk()
    disk.kill_at(number)
    acknowledged = []
    with suppress(apsw.Error):
        work(disk, sync, acknowledged)
    assert disk.is_dead
    return disk, acknowledged


def changes(sync="FULL"):
    disk = SimulatedDisk(keep_log=True)
    work(disk, sync)
    return [operation.number for operation in disk.log if operation.kind in CHANGES]


def test_the_same_work_gives_the_same_operations_and_bytes():
    runs = []
    for _ in range(3):
        disk = SimulatedDisk(keep_log=True)
        work(disk)
        runs.append((disk.log, disk.content()))
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0][0]) > 50


def test_bytes_are_the_same_while_other_connections_are_at_work(tmp_path):
    def run():
        disk = SimulatedDisk()
        disk.kill_at(60)
        with pytest.raises(apsw.Error):
            work(disk)
        return disk.content("ingest.db-wal")

    first = run()
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("create table t as select random() as a")
    other.close()
    assert run() == first
    assert first


def test_another_seed_gives_other_bytes():
    logs = set()
    for seed in (1, 2):
        disk = SimulatedDisk(seed=seed)
        disk.kill_at(60)
        with pytest.raises(apsw.Error):
            work(disk)
        logs.add(disk.content("ingest.db-wal"))
    assert len(logs) == 2


def test_the_systems_own_vfs_stays_the_default():
    default = apsw.vfs_names()[0]
    SimulatedDisk()
    assert apsw.vfs_names()[0] == default != VFS_NAME


def test_a_kill_loses_nothing_that_was_acknowledged():
    for sync in ("FULL", "NORMAL", "OFF"):
        for number in changes(sync)[::3]:
            disk, acknowledged = stopped(number, sync)
            found = parts(disk.killed_image())
            assert found[: len(acknowledged)] == acknowledged
            assert len(found) <= len(acknowledged) + 1


def test_with_full_sync_a_power_cut_loses_nothing_that_was_acknowledged():
    images = 0
    for number in changes():
        disk, acknowledged = stopped(number)
        for survival in disk.survivals(most=4):
            found = parts(disk.image(survival))
            images += 1
            assert found[: len(acknowledged)] == acknowledged, (number, survival)
            assert found == list(range(len(found)))
            assert len(found) <= len(acknowledged) + 1
    assert images > 300


def test_with_normal_sync_a_power_cut_loses_what_was_acknowledged():
    lost = 0
    for number in changes("NORMAL"):
        disk, acknowledged = stopped(number, "NORMAL")
        lost += len(parts(disk.image(Survival("none")))) < len(acknowledged)
    assert lost > 10


def test_without_sync_a_power_cut_destroys_the_file():
    broken = 0
    for number in changes("OFF"):
        disk, _ = stopped(number, "OFF")
        for survival in disk.survivals():
            try:
                found = parts(disk.image(survival))
                broken += found != list(range(len(found)))
            except (apsw.Error, AssertionError):
                broken += 1
    assert broken > 0


def test_what_is_found_after_a_power_cut_can_be_cut_again():
    for number in changes()[10::7]:
        disk, _ = stopped(number)
        before = disk.image(Survival("torn", 1))
        probe = before.killed_image()
        expected = parts(probe)
        for again in range(probe.operations):
            image = before.killed_image()
            image.kill_at(again)
            with suppress(apsw.Error, AssertionError):
                parts(image)
            assert image.is_dead
            for survival in (Survival("none"), Survival("all"), Survival("torn", again)):
                assert parts(image.image(survival)) == expected


def test_a_dead_process_can_do_nothing():
    disk, _ = stopped(60)
    for _ in range(2):
        with pytest.raises(apsw.Error):
            connect(disk)
    with pytest.raises(ProcessDied):
        disk.operate("write", "ingest.db")
    before = disk.content("ingest.db-wal")
    assert disk.killed_image().content("ingest.db-wal") == before


@pytest.mark.parametrize("fault", ["io", "full", "sync"])
@pytest.mark.parametrize("once", [True, False])
def test_a_fault_is_seen_and_can_be_healed(fault, once):
    met = 0
    total = len(changes())
    for number in range(0, total, 3):
        disk = SimulatedDisk()
        disk.fail_at(number, fault, once=once)
        acknowledged = []
        with suppress(apsw.Error, AssertionError):
            work(disk, acknowledged=acknowledged)
        met += disk.faults_met > 0
        disk.heal()
        disk.kill()
        for survival in (Survival("none"), Survival("all")):
            found = parts(disk.image(survival))
            assert found[: len(acknowledged)] == acknowledged
    assert met > total // 6


def test_after_a_failed_sync_a_later_one_saves_nothing():
    disk = SimulatedDisk()
    handle = disk.open("a", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL)
    handle.xSync(0)
    handle.xWrite(b"first", 0)
    disk.fail_at(0, "sync")
    with pytest.raises(apsw.IOError):
        handle.xSync(0)
    handle.xWrite(b"second", 5)
    handle.xSync(0)
    assert disk.content("a") == b"firstsecond"
    assert disk.image(Survival("all")).content("a") == bytes(5) + b"second"


def test_prefixes_keep_the_order_over_all_files():
    disk = SimulatedDisk()
    first = disk.open("a", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL)
    second = disk.open("b", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL)
    first.xSync(0)
    second.xSync(0)
    for number in range(3):
        first.xWrite(b"%d" % number, number)
        second.xWrite(b"%d" % number, number)
    assert disk.unsynced() == 6
    images = [disk.image(Survival("prefix", amount)) for amount in range(7)]
    assert [(len(each.content("a")), len(each.content("b"))) for each in images] == [
        (0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)
    ]  # fmt: skip


def test_a_torn_write_leaves_whole_sectors():
    disk = SimulatedDisk()
    handle = disk.open("a", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL)
    handle.xSync(0)
    handle.xWrite(b"x" * 5120, 100)
    seen = set()
    for seed in range(30):
        content = disk.image(Survival("torn", seed)).content("a")
        body = content[100:]
        assert content[:100] == bytes(len(content[:100]))
        seen.add(body.count(b"x"))
    assert len(seen) > 5


def test_names_that_were_not_synced_are_in_doubt():
    disk = SimulatedDisk(keeps_names=False)
    disk.open("ingest.db", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_MAIN_DB).xSync(0)
    assert disk.image(Survival("none")).names() == []
    assert disk.image(Survival("all")).names() == ["ingest.db"]
    disk.open("ingest.db-wal", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL).xSync(0)
    assert disk.image(Survival("none")).names() == ["ingest.db", "ingest.db-wal"]
    disk.delete("ingest.db-wal", sync=False)
    assert disk.image(Survival("none")).names() == ["ingest.db", "ingest.db-wal"]
    disk.sync_directory()
    assert disk.image(Survival("none")).names() == ["ingest.db"]


def test_a_log_that_is_opened_again_syncs_the_directory_too():
    disk = SimulatedDisk(keeps_names=False)
    flags = apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL
    disk.fail_at(0, "sync")
    with pytest.raises(apsw.IOError):
        disk.open("ingest.db-wal", flags).xSync(0)
    assert disk.image(Survival("none")).names() == []
    disk.open("ingest.db-wal", flags).xSync(0)
    assert disk.image(Survival("none")).names() == ["ingest.db-wal"]


def test_what_was_in_doubt_is_so_for_the_next_process_too():
    disk = SimulatedDisk()
    handle = disk.open("a", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL)
    handle.xWrite(b"safe", 0)
    handle.xSync(0)
    handle.xWrite(b"lost", 4)
    disk.fail_at(0, "sync")
    with pytest.raises(apsw.IOError):
        handle.xSync(0)
    handle.xWrite(b"open", 8)
    disk.kill()
    following = disk.killed_image()
    assert following.content("a") == b"safelostopen"
    assert following.image(Survival("none")).content("a") == b"safe"
    assert following.image(Survival("all")).content("a") == b"safe" + bytes(4) + b"open"
    # Written again it can be saved.
    again = following.open("a", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL)
    again.xWrite(b"lost", 4)
    again.xSync(0)
    assert following.image(Survival("none")).content("a") == b"safelostopen"


def test_two_connections_exclude_each_other():
    disk = SimulatedDisk()
    first = connect(disk)
    first.execute("create table t (a)")
    with pytest.raises(apsw.BusyError):
        connect(disk)
    first.close()
    connect(disk).close()


def test_a_rollback_journal_works_too():
    disk = SimulatedDisk()
    for _ in range(2):
        connection = apsw.Connection(disk.path(), vfs=VFS_NAME)
        connection.execute("create table if not exists t (a); begin; insert into t values (1); commit")
        connection.close()
    assert disk.names() == ["ingest.db"]
    assert apsw.Connection(disk.path(), vfs=VFS_NAME).execute("select count(*) from t").get == 2


def test_a_sync_of_a_file_may_keep_its_name():
    disk = SimulatedDisk()
    disk.open("ingest.db", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_MAIN_DB).xSync(0)
    disk.open("other.db", apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_MAIN_DB)
    assert disk.image(Survival("none")).names() == ["ingest.db"]
