"""Stores by URL."""

from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint

import pytest

from naviscope_ingest import IngestRuntime
from naviscope_ingest.errors import UnknownOption
from naviscope_ingest.stores import MemoryStore, SqliteStore, open_store, urls


async def test_a_relative_and_an_absolute_path_open_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///ingest.db") as store:
        assert isinstance(store, SqliteStore)
        store_id = store.info.store_id
    async with open_store(f"sqlite:///{tmp_path / 'ingest.db'}", runner="inline") as store:
        assert store.info.store_id == store_id


async def test_memory_opens_a_new_store():
    async with open_store("memory://") as one, open_store("memory://", store_id="mine") as other:
        assert isinstance(one, MemoryStore)
        assert other.info.store_id == "mine"


@pytest.mark.parametrize("url", ["sqlite://host/ingest.db", "sqlite:ingest.db", "sqlite:///", "memory://place"])
async def test_a_malformed_url_is_refused(url):
    with pytest.raises(ValueError, match="write "):
        async with open_store(url):
            pass


@pytest.mark.parametrize("url", ["nosuch://x", "ingest.db", ""])
def test_an_unknown_scheme_names_what_is_installed(url):
    with pytest.raises(ValueError, match="memory:, sqlite:"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "option", "says"),
    [
        (
            "memory://",
            "vfs",
            "the store 'memory:' has no option 'vfs': its options are clock, keep_reports, max_whole, store_id",
        ),
        (
            "sqlite:///a.db",
            "retian",
            "'sqlite:' has no option 'retian', perhaps 'retain' was meant: its options are clock",
        ),
    ],
)
async def test_an_option_that_a_store_does_not_have_is_named(url, option, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownOption, match=says) as caught:
        open_store(url, **{option: 1})
    assert (caught.value.option, caught.value.store) == (option, url.partition(":")[0] + ":")
    with pytest.raises(UnknownOption, match=says):
        async with IngestRuntime.open(url, executor=None, commit_sink=None, **{option: 1}):
            pass
    assert list(tmp_path.iterdir()) == []


@asynccontextmanager
async def open_strictly(place, *, size=1):
    yield place, size


async def test_the_options_of_a_store_of_another_package_are_checked_too(monkeypatch):
    entry = EntryPoint("theirs", f"{__name__}:open_strictly", urls.GROUP)
    monkeypatch.setattr(urls, "entry_points", lambda group: [entry])
    async with open_store("theirs://there", size=2) as opened:
        assert opened == ("//there", 2)
    with pytest.raises(UnknownOption, match="its options are size"):
        open_store("theirs://there", colour=2)


@asynccontextmanager
async def open_theirs(place, **options):
    yield place, options


async def test_another_package_can_bring_a_scheme(monkeypatch):
    entry = EntryPoint("theirs", f"{__name__}:open_theirs", urls.GROUP)
    monkeypatch.setattr(urls, "entry_points", lambda group: [entry] if group == urls.GROUP else [])
    async with open_store("theirs://there", option=1) as opened:
        assert opened == ("//there", {"option": 1})
