"""Files of older formats: opened for writing they are upgraded, whole or not at all."""

from contextlib import closing

import apsw
import pytest

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.stores.sqlite import OlderFormat, StoreCorrupt, store
from naviscope_ingest.stores.sqlite.database import Database
from naviscope_ingest.stores.sqlite.schema import load_scripts, upgrade
from naviscope_spi import StoreFailed
from tests.durability.store_scenario import known
from tests.durability.upgrade_scenario import OLDER, expected
from tests.formats import kept_files, kept_formats

EXPECTED = expected()
FORMAT = len(load_scripts())


def unpack(folder, number, which):
    for name, content in kept_files(number, which).items():
        (folder / name).write_bytes(content)
    return folder / "ingest.db"


def structure(connection):
    """Return the tables and indexes, without the way they are written down."""
    rows = connection.execute("select type, name, tbl_name from sqlite_schema").fetchall()
    columns = {name: connection.execute(f"pragma table_xinfo({name})").fetchall() for _, name, _ in rows}
    return sorted(rows), columns


def test_files_of_every_older_format_are_kept():
    assert {number for number in kept_formats() if number < FORMAT} == set(range(1, FORMAT))


@pytest.mark.parametrize(("number", "which"), OLDER)
async def test_a_file_of_an_older_format_is_upgraded(number, which, tmp_path):
    path = unpack(tmp_path, number, which)
    async with SqliteStore.open(path) as opened:
        assert await opened.verify() == []
        assert await known(opened) == EXPECTED
        assert opened.info.store_id == "sim"
    with closing(apsw.Connection(str(path))) as old, closing(apsw.Connection(":memory:")) as new:
        upgrade(new, "new", load_scripts(), is_writable=True)
        assert structure(old) == structure(new)
        assert old.pragma("user_version") == FORMAT
    async with SqliteStore.open(path, read_only=True) as opened:
        assert await opened.verify() == []


@pytest.mark.parametrize(("number", "which"), OLDER)
async def test_an_older_format_that_is_only_read_is_refused(number, which, tmp_path):
    path = unpack(tmp_path, number, which)
    before = path.read_bytes()
    with pytest.raises(OlderFormat, match=rf"format {number}, and this version reads format {FORMAT}") as caught:
        async with SqliteStore.open(path, read_only=True):
            pass
    assert (caught.value.found, caught.value.known) == (number, FORMAT)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("update epochs set name = 'forged' where number = 1", "epoch 1 does not match its hash"),
        ("update state set last_seq = 3", "the state row does not match its hash"),
        ("update ends set epoch = 7 where seq = (select min(seq) from ends)", "place [0-9]+ does not match its hash"),
    ],
)
async def test_a_damaged_row_is_not_given_a_hash_that_fits(tmp_path, damage, named):
    path = unpack(tmp_path, 1, "copy")
    with apsw.Connection(str(path)) as connection:
        connection.execute(damage)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match=named):
        async with SqliteStore.open(path):
            pass
    assert path.read_bytes() == before


async def test_the_views_of_a_user_do_not_stop_an_upgrade(tmp_path):
    path = unpack(tmp_path, 1, "copy")
    with apsw.Connection(str(path)) as connection:
        connection.execute("create view broken as select * from nowhere; create view mine as select name from epochs")
    connection.close()
    async with SqliteStore.open(path) as opened:
        assert await opened.verify() == []
        assert opened._ledger.connection.execute("select name from mine").fetchall() == [("one",)]


async def test_an_upgrade_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = unpack(tmp_path, 1, "copy")
    before = path.read_bytes()
    broken = [*load_scripts(), "create table later (x); create table messages (x)"]
    monkeypatch.setattr(store, "Database", lambda path, vfs, read_only: Database(path, vfs, read_only, broken))
    with pytest.raises(StoreFailed, match="table messages already exists"):
        async with SqliteStore.open(path):
            pass
    assert path.read_bytes() == before


def test_functions_of_an_upgrade_are_gone_after_it():
    connection = apsw.Connection(":memory:")
    assert upgrade(connection, "x", load_scripts(), is_writable=True) is None
    assert upgrade(connection, "x", load_scripts(), is_writable=True) == FORMAT
    for call in ("hash_1(1)", "commit_hash_1(1, 1)", "sum_1(1)", "damaged('x')"):
        with pytest.raises(apsw.SQLError, match="no such function"):
            connection.execute(f"select {call}")
