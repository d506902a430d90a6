"""The SQLite store keeps the contract, on a thread and inline."""

import pytest

from naviscope_ingest.stores import SqliteStore
from naviscope_ingest.testing import check_deferred_store
from naviscope_ingest.testing.deferred_store import STORE_PROMISES
from tests.unit.stores.sqlite.faults import FaultyDisk

RUNNERS = ("thread", "inline")


def files_in(folder, **options):
    """Return a factory for the check: the same name opens the same file again."""
    return lambda name: SqliteStore.open(folder / f"{name}.db", **options)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("promise", STORE_PROMISES, ids=lambda promise: promise.name)
async def test_the_sqlite_store_keeps_the_promise(promise, runner, tmp_path):
    await check_deferred_store(files_in(tmp_path, runner=runner), only=[promise.name])


@pytest.mark.parametrize("make", [lambda n: b"%d" % n, lambda n: {"number": n, "rows": [n, None, 1.5]}])
async def test_payloads_may_be_bytes_or_plain_data(make, tmp_path):
    await check_deferred_store(files_in(tmp_path), payload=make)


async def test_a_store_on_a_vfs_keeps_the_contract(tmp_path):
    with FaultyDisk() as disk:
        await check_deferred_store(files_in(tmp_path, vfs=disk.name, runner="inline"))
