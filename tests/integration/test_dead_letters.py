"""Dead letters in a SQLite file: typed payloads, pages that use an index, restarts, letters that cannot be read."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from naviscope_ingest import (
    Executed,
    ImportRefused,
    IngestRuntime,
    MemorySink,
    Message,
    MsgspecCodec,
    PatchRefused,
    PayloadNotDecodable,
    Permanent,
    RuntimeComponents,
    SqliteStore,
)
from naviscope_ingest.stores.sqlite.letters import _ALL, _OF_EPOCH


@dataclass
class Order:
    url: str
    amount: int = 0


ORDERS = {"order": Order}


class Mended:
    def __init__(self):
        self.is_mended = False
        self.seen = []

    async def execute(self, delivery):
        self.seen.append(delivery.payload)
        if not self.is_mended:
            raise Permanent("broken")
        return Executed(ops=[delivery.id])


@asynccontextmanager
async def running(path, executor, types=ORDERS):
    async with SqliteStore.open(path, codec=MsgspecCodec(types)) as store:
        runtime = IngestRuntime(RuntimeComponents(executor=executor, commit_sink=MemorySink(), store=store))
        with trio.fail_after(60):
            async with runtime.running() as intake:
                yield intake


async def fail(intake, *messages, name="e"):
    async with intake.epoch(name) as epoch:
        await epoch.submit(messages)
    return epoch.report


async def test_a_typed_payload_is_edited_after_a_restart(tmp_path):
    executor = Mended()
    async with running(tmp_path / "a.db", executor) as intake:
        report = await fail(intake, Message("a", Order("htp://x", 3), kind="order"))
        assert report.dead == 1
    async with running(tmp_path / "a.db", executor) as intake:
        letters = intake.dead_letters
        for patch, says in (
            ({"amount": "many"}, "Expected `int`, got `str`"),
            ({"ulr": "x"}, "did you mean 'url'"),
            ({"url": "x" * 20_000_000}, "16777216 are allowed"),
        ):
            with pytest.raises(PatchRefused, match=says):
                await letters.replay(epoch="e", message_id="a", patch=patch)
        with pytest.raises(PatchRefused, match="not of the type declared for its kind"):
            await letters.replay(epoch="e", message_id="a", payload={"url": 5})
        assert [entry async for entry in letters.audit()] == []
        executor.is_mended = True
        await letters.replay(epoch="e", message_id="a", patch={"url": "http://x"})
        report = await intake.wait_epoch("e")
        assert (report.succeeded, report.revision) == (True, 1)
        assert executor.seen[-1] == Order("http://x", 3)
    async with running(tmp_path / "a.db", executor) as intake:
        assert (await intake.wait_epoch("e")).succeeded
        (entry,) = [entry async for entry in intake.dead_letters.audit()]
        assert (entry.message_id, entry.patch) == ("a", {"url": "http://x"})
        # The program that is run again submits the original, which is no conflict.
        epoch = await intake.get_epoch("e")
        receipt = await epoch.submit([Message("a", Order("htp://x", 3), kind="order")])
        assert (receipt.duplicates, receipt.conflicts) == (1, ())


async def test_a_payload_that_is_none_any_more_can_be_shown_and_replaced(tmp_path):
    executor = Mended()
    async with running(tmp_path / "a.db", executor, {}) as intake:
        await fail(intake, Message("a", {"uri": "x"}, kind="order"))
    async with running(tmp_path / "a.db", executor) as intake:
        whole = await intake.dead_letters.show("e", "a")
        with pytest.raises(PayloadNotDecodable):
            _ = whole.payload
        with pytest.raises(PayloadNotDecodable):
            await intake.dead_letters.replay(epoch="e", patch={"uri": "y"})
        executor.is_mended = True
        await intake.dead_letters.replay(epoch="e", message_id="a", payload=Order("y"))
        assert (await intake.wait_epoch("e")).succeeded
        assert executor.seen[-1] == Order("y")


async def test_lines_are_checked_against_the_types_of_the_store(tmp_path):
    executor = Mended()
    async with running(tmp_path / "a.db", executor) as intake:
        await fail(intake, Message("a", Order("x", 3), kind="order"), Message("b", b"\x00", depends_on=["a"]))
        lines = [line async for line in intake.dead_letters.export_lines(epoch="e")]
    assert json.loads(lines[0])["payload"] == {"json": {"url": "x", "amount": 3}}
    assert json.loads(lines[1])["payload"] == {"base64": "AA==", "codec": "bytes"}
    executor.is_mended = True
    async with running(tmp_path / "b.db", executor) as intake:
        epoch = await intake.new_epoch("again")
        with pytest.raises(ImportRefused, match=r"line 1: .*payload\.amount.*Expected `int`, got `str`"):
            await intake.dead_letters.import_lines(epoch, [lines[0].replace('"amount":3', '"amount":"3"'), lines[1]])
        assert epoch.report.submitted == 0
        receipt = await intake.dead_letters.import_lines(epoch, lines)
        again = await intake.dead_letters.import_lines(epoch, lines)
        assert (receipt.accepted, again.duplicates) == (2, 2)
        await epoch.seal()
        assert (await epoch.wait()).succeeded
        assert executor.seen[-2:] == [Order("x", 3), b"\x00"]


async def test_a_discarded_epoch_is_removed_in_its_time(tmp_path):
    async with running(tmp_path / "a.db", Mended()) as intake:
        await fail(intake, Message("a", 1), Message("b", 1, depends_on=["a"]))
    async with SqliteStore.open(tmp_path / "a.db") as store:
        assert await store.prune(1e12, 100) == 0
    async with running(tmp_path / "a.db", Mended()) as intake:
        receipt = await intake.dead_letters.discard(epoch="e", reason="nobody needs it")
        assert receipt.letters == 2
    async with SqliteStore.open(tmp_path / "a.db") as store:
        assert await store.verify() == []
        assert await store.prune(1e12, 100) > 0
        assert await store.verify() == []
    async with running(tmp_path / "a.db", Mended()) as intake:
        assert [entry.action async for entry in intake.dead_letters.audit(epoch="e")] == ["discard", "discard"]


async def test_pages_of_letters_are_found_by_an_index(tmp_path):
    async with SqliteStore.open(tmp_path / "a.db") as store:
        for statement, bindings, index in (
            (_ALL, (0, 1), "naviscope_letters"),
            (_OF_EPOCH, (1, 0, 1), "naviscope_letters_of_epoch"),
        ):
            plan = store._ledger.connection.execute(f"explain query plan {statement}", bindings).fetchall()
            steps = [detail for *_, detail in plan]
            assert any(f"INDEX {index} (" in step for step in steps), steps
            assert not any("TEMP B-TREE" in step for step in steps), steps
