"""The example of a store on sqlitedict keeps the contract, and lets nothing in that is no plain data."""

import pytest
import trio

from examples.sqlitedict_store import SqliteDictStore, made, plain
from naviscope_ingest import Dependency, EpochSealed, Message
from naviscope_ingest.testing import ContractViolation, check_deferred_store
from naviscope_spi import EpochOptions


def files_in(folder):
    """Return a factory for the check: the same name opens the same file again."""
    return lambda name: SqliteDictStore.open(folder / f"{name}.sqlite")


@pytest.mark.parametrize("payload", [lambda n: {"n": n}, lambda n: b"%d" % n])
async def test_the_store_keeps_the_contract(payload, tmp_path):
    await check_deferred_store(files_in(tmp_path), payload=payload)


async def test_a_store_that_forgets_to_write_is_caught(tmp_path, monkeypatch):
    async def forget(store, entry):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SqliteDictStore, "_write", forget)
    with pytest.raises(ContractViolation, match="everything_is_there_after_reopening"):
        await check_deferred_store(files_in(tmp_path), payload=lambda n: {"n": n})


async def test_what_json_cannot_hold_is_refused_and_nothing_is_stored(tmp_path):
    async with SqliteDictStore.open(tmp_path / "a.sqlite") as store:
        epoch = await store.open_epoch("e", EpochOptions())
        with pytest.raises(TypeError, match="is no plain data"):
            await store.put(epoch.key, [Message("a", object())])
        assert len((await store.put(epoch.key, [Message("a", 1)])).accepted) == 1


async def test_what_was_refused_is_refused_again_when_the_store_is_opened(tmp_path):
    async with SqliteDictStore.open(tmp_path / "a.sqlite") as store:
        epoch = await store.open_epoch("e", EpochOptions())
        await store.mark_epoch(epoch.key, "seal")
        with pytest.raises(EpochSealed):
            await store.put(epoch.key, [Message("a", 1)])
    async with SqliteDictStore.open(tmp_path / "a.sqlite") as store:
        assert (await store.open_epoch("e", EpochOptions())).sealed_at is not None


@pytest.mark.parametrize(
    "message",
    [
        Message("a", {"x": [1, None, {"bytes": "no bytes"}, b"\x00\xff"]}, headers={"h": "v"}, key="k", priority=3),
        Message("b", (), depends_on=["a", Dependency.resource("r", 2, external=True, timeout=3)]),
        Message("c", {}, depends_on=[Dependency.any_of(Dependency.message("a"), Dependency.barrier("k"), at_least=2)]),
    ],
)
def test_what_is_written_down_comes_back(message):
    again = made(plain(message))
    assert (again.id, again.kind, again.key, again.priority) == (
        message.id,
        message.kind,
        message.key,
        message.priority,
    )
    assert (again.depends_on, dict(again.headers)) == (message.depends_on, dict(message.headers))
    assert again.payload in (message.payload, list(message.payload))


def test_a_journal_can_name_no_class_but_those_of_the_contract():
    with pytest.raises(KeyError):
        made({"class": "Popen", "with": {"args": "ls"}})
