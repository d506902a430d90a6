"""A crash between the sink's commit and the settlement: what the sink has applied is what the store learns of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from attrs import define, field

from naviscope_ingest import (
    CommitBatch,
    Delivery,
    Dependency,
    Executed,
    IngestRuntime,
    InvalidMessage,
    MemoryBus,
    MemorySink,
    Message,
    Resource,
    RuntimeFailed,
    SystemFailure,
    Transient,
)
from naviscope_ingest._core.nodes import State
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_ingest.testing import TrioClock
from naviscope_spi import Settled, SinkRejected
from tests.runtime.worlds import START, WaitingStore, bounded, failures, started


class Target:
    """A sink with a ledger that outlives runtimes, and tells when it has applied something.

    Attributes:
        applied: the ops of each message, by task key.
        after: what happens after a batch was applied: an error is raised, "hang" waits for `release`; None returns.
        reached: set when a batch was applied.
        seen: the ids of every batch that came.
    """

    def __init__(self, *after: Any) -> None:
        self.applied: dict[str, Sequence[Any]] = {}
        self.after = list(after)
        self.reached = trio.Event()
        self.released = trio.Event()
        self.seen: list[list[str]] = []

    def release(self) -> None:
        self.released.set()

    async def commit(self, batch: CommitBatch[Any]) -> None:
        self.seen.append([entry.message_id for entry in batch.entries])
        for entry in batch.entries:
            self.applied.setdefault(entry.task_key, list(entry.ops))
        self.reached.set()
        await trio.lowlevel.checkpoint()
        then = self.after.pop(0) if self.after else None
        if then == "hang":
            await self.released.wait()
        elif then is not None:
            raise then

    @property
    def ops(self) -> dict[str, Sequence[Any]]:
        return {key.split(":", 2)[2]: ops for key, ops in self.applied.items()}


class Encoding(Target):
    """One that has the power."""

    def encode_ops(self, ops: Sequence[Any]) -> bytes:
        return msgspec.msgpack.encode(ops)

    def decode_ops(self, data: bytes) -> Sequence[Any]:
        return msgspec.msgpack.decode(data)


@define
class Fickle:
    """An executor that never answers the same twice: its ops, children, resource and value bear a number.

    Attributes:
        calls: the ids of messages, in the order they came.
        handed: the values each was handed.
    """

    calls: list[str] = field(factory=list)
    handed: dict[str, dict[str, bytes]] = field(factory=dict)

    async def execute(self, message: Delivery[Any]) -> Executed[Any, Any]:
        self.calls.append(message.id)
        self.handed[message.id] = dict(message.values)
        turn = len(self.calls)
        if message.kind != "parent":
            return Executed([f"{message.id} {turn}"])
        child = Message(f"{message.id}-child-{turn}", turn, kind="child")
        ready = [Resource(f"ready-{message.id}", value=b"resource %d" % turn)]
        return Executed([f"{message.id} {turn}"], [child], ready, b"value %d" % turn)


@define
class Slow(Fickle):
    """One that never answers for a message."""

    never: str = ""

    async def execute(self, message: Delivery[Any]) -> Executed[Any, Any]:
        if message.id == self.never:
            await trio.sleep_forever()
        return await super().execute(message)


class FickleBatches(Fickle):
    async def execute_batch(self, messages: Sequence[Delivery[Any]]) -> Sequence[Executed[Any, Any]]:
        return [await self.execute(message) for message in messages]


@define
class Disk:
    """Where the store's file is; a kill leaves a copy of it as it was at that moment."""

    folder: Path
    clock: TrioClock = field(factory=lambda: TrioClock(START))
    copies: int = 0

    @property
    def path(self) -> Path:
        return self.folder / f"ingest-{self.copies}.db"

    @asynccontextmanager
    async def store(self):
        async with SqliteStore.open(self.path, runner="inline", clock=self.clock) as store:
            yield store

    def kill(self) -> None:
        """Go on with the file as a process that died now would leave it."""
        old = self.path
        self.copies += 1
        for suffix in ("", "-wal"):
            if (source := old.with_name(old.name + suffix)).exists():
                shutil.copy(source, self.path.with_name(self.path.name + suffix))


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def parents(*ids: str) -> list[Message[Any]]:
    """Make messages that derive, and for each one that waits for what it provides and leaves."""
    waiting = [
        Message(f"after-{each}", None, "after", [each, Dependency.resource(f"ready-{each}")], priority=-1)
        for each in ids
    ]
    return [*(Message(each, None, "parent") for each in ids), *waiting]


async def submit(world, *messages):
    async with world.intake.epoch("job") as epoch:
        await epoch.submit(messages)
    return epoch.report


async def crash(disk, sink, messages, *, how="killed", executor=None, **config):
    """Run until the sink has applied a batch and hangs, and end there; return the executor."""
    executor = executor or Fickle()
    with bounded():
        async with disk.store() as store:
            with trio.CancelScope() as scope:
                async with started(executor, sink=sink, store=store, **config) as world, trio.open_nursery() as nursery:
                    nursery.start_soon(submit, world, *messages)
                    await sink.reached.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    if how == "killed":
                        disk.kill()
                    scope.cancel()
    sink.reached = trio.Event()
    return executor


async def go_on(disk, sink, messages, executor=None, **config):
    """Start the program again and let it finish; return the executor and the report."""
    executor = executor or Fickle()
    async with disk.store() as store, started(executor, sink=sink, store=store, **config) as world:
        report = await submit(world, *messages)
        assert list(await store.verify()) == []
    return executor, report


@pytest.mark.parametrize("how", ["killed", "cancelled"])
@pytest.mark.parametrize("make", [Fickle, FickleBatches])
@pytest.mark.parametrize("bus", [None, MemoryBus])
async def test_what_was_recorded_is_committed_again_without_a_run(disk, how, make, bus):
    messages, sink = parents("a", "b", "c"), Encoding("hang")
    first = await crash(disk, sink, messages, how=how, executor=make(), bus=bus and bus())
    assert sorted(first.calls) == ["a", "b", "c"]
    before = dict(sink.ops)
    assert before.keys() == {"a", "b", "c"}
    # It would number differently now.
    second = make(calls=["x"] * 10)
    _, report = await go_on(disk, sink, messages, second, bus=bus and bus())
    children = {f"{name}-child-{ops[0].split()[1]}" for name, ops in before.items()}
    assert set(second.calls[10:]) == children | {"after-a", "after-b", "after-c"}
    assert {name: sink.ops[name] for name in before} == before
    assert sink.ops.keys() == before.keys() | set(second.calls[10:])
    for name, (op,) in before.items():
        turn = op.split()[1].encode()
        assert second.handed[f"after-{name}"] == {name: b"value " + turn, f"ready-{name}": b"resource " + turn}
    assert (report.succeeded, report.committed) == (True, 9)


@pytest.mark.parametrize("how", ["killed", "cancelled"])
async def test_without_the_power_an_executor_runs_again_and_may_disagree(disk, how):
    """That the tests above bite: here the sink has one answer and the store another."""
    messages, sink = parents("a"), Target("hang")
    await crash(disk, sink, messages, how=how)
    executor, report = await go_on(disk, sink, messages, Fickle(calls=["x"] * 10))
    assert executor.calls[10] == "a"
    assert sink.ops["a"] == ["a 1"]
    assert "a-child-11" in sink.ops
    assert report.succeeded


async def test_a_failure_of_the_system_after_the_sink_s_commit(disk):
    messages, sink = parents("a", "b"), Encoding(SystemFailure("the cable"))
    async with disk.store() as store:
        with pytest.raises(RuntimeFailed, match="the cable"):
            async with started(Fickle(), sink=sink, store=store) as world:
                await submit(world, *messages)
    before = dict(sink.ops)
    executor, report = await go_on(disk, sink, messages, Fickle(calls=["x"] * 10))
    assert {"a", "b"}.isdisjoint(executor.calls)
    assert {name: sink.ops[name] for name in before} == before
    assert report.succeeded


async def test_again_and_again(disk):
    """However often it dies there, the first answer stays; and a recorded outcome is no crash."""
    messages, sink = parents("a"), Encoding(*["hang"] * 5)
    first = await crash(disk, sink, messages, poison_threshold=1)
    for _ in range(4):
        executor = await crash(disk, sink, messages, poison_threshold=1)
        assert executor.calls == []
    executor, report = await go_on(disk, sink, messages, Fickle(calls=["x"] * 10), poison_threshold=1)
    assert first.calls == ["a"]
    assert sink.ops["a"] == ["a 1"]
    assert set(executor.calls[10:]) == {"a-child-1", "after-a"}
    assert report.succeeded


@pytest.mark.parametrize("how", ["cancel", "cancel epoch", "expire", "deadline", "cancelled before"])
@pytest.mark.parametrize("end", ["killed", "cancelled"])
async def test_what_the_sink_may_have_applied_commits_whatever_else_would_end_it(disk, how, end):
    expires_at = START + 10 if how == "expire" else None
    options = {"deadline": START + 10} if how == "deadline" else {}
    message, sink = Message("a", None, expires_at=expires_at), Encoding("hang", "hang")
    executor = Fickle()
    with bounded():
        async with disk.store() as store:
            with trio.CancelScope() as scope:
                async with started(executor, sink=sink, store=store) as world:
                    epoch = await world.intake.new_epoch("job", **options)
                    await epoch.submit([message, Message("b", None, depends_on=["a"])])
                    await sink.reached.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    if how == "cancelled before":
                        await epoch.cancel()
                    if end == "killed":
                        disk.kill()
                    scope.cancel()
    sink.reached = trio.Event()
    await trio.sleep(20)
    second = Fickle(calls=["x"] * 10)
    async with disk.store() as store, started(second, sink=sink, store=store) as world:
        assert (world.runtime.recovery.recorded, world.runtime.recovery.suspects) == (1, 0)
        epoch = await world.intake.get_epoch("job")
        await sink.reached.wait()
        if how == "cancel":
            assert not await epoch.cancel("a")
        elif how == "cancel epoch":
            await epoch.cancel()
        assert (await epoch.explain("a")).state is State.COMMITTING
        sink.release()
        await epoch.seal()
        report = await epoch.wait()
    assert "a" not in second.calls
    assert sink.ops["a"] == ["a 1"]
    assert report.committed >= 1
    assert "a" not in failures(report)


async def test_a_recorded_outcome_is_committed_before_anything_runs(disk):
    """Also before the suspects: one of them may end this process too."""
    sink = Encoding("hang")
    messages = [Message("a", None, key="lane"), Message("suspect", None)]
    await crash(disk, sink, messages, executor=Slow(never="suspect"))
    seen = []

    async def work(delivery):
        seen.append((delivery.id, sorted(sink.ops)))
        return Executed()

    sink.applied.clear()
    async with disk.store() as store, started(work, sink=sink, store=store) as world:
        assert (world.runtime.recovery.recorded, world.runtime.recovery.suspects) == (1, 1)
        await submit(world, *messages)
    assert seen[0] == ("suspect", ["a"])


async def test_a_record_that_is_of_no_use_any_more_lets_its_message_run_again(disk):
    messages, sink = [Message("a", None)], Encoding("hang")
    await crash(disk, sink, messages)
    async with disk.store() as store, started(sink=MemorySink(), store=store) as world:
        assert (world.runtime.recovery.recorded, world.runtime.recovery.suspects) == (0, 1)
        assert (await submit(world, *messages)).succeeded
    assert world.executor.seen == ["a"]


async def test_a_batch_is_recorded_in_one_write_and_not_again(disk, monkeypatch):
    written = []
    settle = SqliteStore.settle

    async def spy(self, session, settlement):
        if settlement.prepared:
            written.append(len(settlement.prepared))
        return await settle(self, session, settlement)

    monkeypatch.setattr(SqliteStore, "settle", spy)
    messages = [Message(f"m{number}", None) for number in range(20)]
    sink = Encoding("hang", Transient("busy"))
    await crash(disk, sink, messages, how="cancelled")
    assert written == [20]
    await go_on(disk, sink, messages)
    assert written == [20]
    assert sum(map(len, sink.seen)) == 60


async def test_what_has_no_ops_is_not_recorded(disk, monkeypatch):
    encoded = []
    monkeypatch.setattr(Encoding, "encode_ops", lambda self, ops: encoded.append(ops) or b"")
    work = {"a": Executed((), [Message("child", None)]), "child": Executed()}
    async with disk.store() as store, started(work, sink=Encoding(), store=store) as world:
        assert (await submit(world, Message("a", None))).committed == 2
    assert encoded == []


async def test_a_store_in_memory_records_nothing(monkeypatch):
    monkeypatch.setattr(Encoding, "encode_ops", None)
    async with started(sink=Encoding()) as world:
        assert (await submit(world, Message("a", None))).succeeded


async def test_what_cannot_be_recorded_ends_dead_before_the_sink_sees_it(disk):
    work = {
        "odd": Executed(["op"], [Message("child", {"at": object()})]),
        "worse": Executed([object()]),
        "both": Executed(["fine"], [Message("fine", 1)]),
    }
    sink = Encoding()
    async with disk.store() as store, started(work, sink=sink, store=store) as world:
        report = await submit(world, *(Message(name, None) for name in [*work, "good"]))
    assert sink.ops.keys() == {"both", "good", "fine"}
    found = failures(report)
    assert found.keys() == {"odd", "worse"}
    assert found["odd"][1].startswith(
        "BadOutcome: derived[0] cannot be stored: message 'child' of kind 'message': payload.at cannot be encoded"
    )
    assert "message 'worse' of kind 'message': ops of its outcome cannot be recorded" in found["worse"][1]
    assert (report.committed, report.dead) == (3, 2)


@pytest.mark.parametrize("how", ["killed", "cancelled"])
async def test_what_cannot_be_decoded_ends_dead(disk, how, monkeypatch):
    messages, sink = [Message("a", None), Message("b", None)], Encoding("hang")
    await crash(disk, sink, messages, how=how)

    def refuse(self, data):
        if b"a 1" in data:
            raise KeyError("gone")
        return msgspec.msgpack.decode(data)

    monkeypatch.setattr(Encoding, "decode_ops", refuse)
    executor, report = await go_on(disk, sink, messages)
    assert executor.calls == []
    (end, error) = failures(report)["a"]
    assert end == "dead"
    assert error.startswith(
        "OutcomeNotDecodable: message 'a' of kind 'message': ops of its recorded outcome cannot be decoded: "
        "KeyError: 'gone'; the sink may have applied it"
    )
    assert (report.committed, report.dead) == (1, 1)


async def test_a_record_of_what_the_sink_refuses_is_not_in_the_way(disk):
    class Picky(Encoding):
        async def commit(self, batch):
            bad = {entry.task_key: ValueError("no") for entry in batch.entries if entry.message_id == "bad"}
            if bad:
                raise SinkRejected(bad)
            await super().commit(batch)

    async with disk.store() as store, started(sink=Picky(), store=store) as world:
        report = await submit(world, *(Message(name, None) for name in ("good", "bad", "fine")))
        assert list(await store.verify()) == []
    assert (failures(report), report.committed) == ({"bad": ("dead", "ValueError: no")}, 2)


async def test_another_sink_without_the_power_runs_it_again(disk):
    messages, sink = [Message("a", None)], Encoding("hang")
    await crash(disk, sink, messages)
    executor, report = await go_on(disk, Target(), messages)
    assert (executor.calls, report.succeeded) == (["a"], True)


async def test_what_is_not_ours_any_more_does_not_reach_the_sink(disk):
    class Elsewhere(WaitingStore):
        """Another process has taken message a over before its outcome could be recorded."""

        async def settle(self, session, settlement):
            settled = await super().settle(session, settlement)
            return Settled(settled.position, (), list(settlement.prepared)[:1]) if settlement.prepared else settled

    store, sink = Elsewhere(disk.clock), Encoding()
    async with started(sink=sink, store=store) as world:
        epoch = await world.intake.new_epoch("job")
        await epoch.submit([Message("a", None), Message("b", None)])
        await trio.sleep(1)
        assert sink.seen == [["b"]]
        assert epoch.report.committed == 1


async def test_a_derived_message_that_the_store_has_no_room_for_costs_its_parent_alone(tmp_path):
    work = {"a": Executed(["op"], [Message("child", b"x" * 2_000)])}
    sink, opened = Encoding(), SqliteStore.open(tmp_path / "ingest.db", runner="inline", max_payload=1_000)
    async with opened as store, started(work, sink=sink, store=store) as world:
        report = await submit(world, Message("a", None), Message("b", None))
    assert sink.ops.keys() == {"b"}
    assert "derived[0] cannot be stored: the payload of message 'child' has 2000 bytes" in failures(report)["a"][1]


async def test_a_derived_message_that_cannot_be_stored_costs_its_parent_alone_with_any_sink(tmp_path):
    work = {"a": Executed(["op"], [Message("child", object())])}
    opened = SqliteStore.open(tmp_path / "ingest.db", runner="inline")
    async with opened as store, started(work, store=store) as world:
        report = await submit(world, Message("a", None), Message("b", None))
    assert (report.committed, report.dead) == (1, 1)
    assert "derived[0] cannot be stored: message 'child'" in failures(report)["a"][1]


async def test_options_of_the_store_go_through_the_runtime(tmp_path):
    class Idle:
        async def execute(self, message):
            return Executed()

    url = f"sqlite:///{tmp_path / 'ingest.db'}"
    options = {"max_payload": 100, "retain": 60, "runner": "inline"}
    async with IngestRuntime.open(url, executor=Idle(), commit_sink=MemorySink(), **options) as intake:
        assert intake.runtime.store.retain == 60
        epoch = await intake.new_epoch("night")
        with pytest.raises(InvalidMessage, match="the payload of message 'a' has 200 bytes, and 100 are allowed"):
            await epoch.submit(Message("a", b"x" * 200))
