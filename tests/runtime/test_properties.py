"""Random programs through the whole runtime: executor, sink, store and clock, at random speeds.

The programs are those of the reference model. Where their ends cannot depend on timing, they must be the model's; in
all of them everything ends or is visibly blocked, counts are true, effects happen once, and nothing starts early.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import trio
from attrs import define, field

from naviscope_ingest import (
    CommitBatch,
    Deferred,
    Delivery,
    Dependency,
    EpochSealed,
    Executed,
    Fatal,
    IntakeHandle,
    MemorySink,
    Message,
    Resource,
    SinkRejected,
    Skipped,
    Transient,
    UnknownMessage,
)
from naviscope_ingest.testing import TrioClock
from naviscope_spi import AnyOf, EpochKey, Lease, OnMessage, PutReceipt, Session, Settled, Settlement
from tests.model.programs import EXTERNAL, EpochSpec, Program, Spec, generate, generate_timeless
from tests.model.test_core import ends_of
from tests.runtime.worlds import LossyBus, WaitingStore, bounded, make_runtime, run_with

CHUNKS = 4
TIMELESS_IN_CHUNK = 60
OTHERS_IN_CHUNK = 120
ACROSS_EPOCHS = 200

Name = tuple[str, str]
"""The name of an epoch and the id of a message."""


class WatchedStore(WaitingStore):
    """A store that notes every end as it is settled.

    Attributes:
        names: every message, by its place.
        ends: how messages ended.
    """

    def __init__(self, clock: TrioClock, pause: float | None) -> None:
        super().__init__(clock, pause)
        self.names: dict[int, Name] = {}
        self.ends: dict[Name, str] = {}

    async def put(
        self, epoch: EpochKey, messages: Sequence[Message[Any]], *, staged_by: Lease[Any] | None = None
    ) -> PutReceipt:
        receipt = await super().put(epoch, messages, staged_by=staged_by)
        if staged_by is None:
            for seq, index in zip(receipt.accepted, receipt.indexes, strict=True):
                self.names[seq] = (epoch.name, messages[index].id)
        return receipt

    async def settle(self, session: Session, settlement: Settlement[Any]) -> Settled:
        settled = await super().settle(session, settlement)
        for seq, key, message in settled.accepted:
            self.names[seq] = (key.name, message.id)
        refused = set(settled.refused)
        for lease in settlement.committed:
            assert lease.seq not in refused
            self._end(lease.seq, "committed")
        for ended in settlement.ended:
            if ended.seq not in refused:
                self._end(ended.seq, ended.end)
        return settled

    def _end(self, seq: int, end: str) -> None:
        name = self.names[seq]
        assert name not in self.ends, f"{name} ended {self.ends[name]} and then {end}"
        self.ends[name] = end


@define
class Actor:
    """An executor that plays the script of each message, and sees that none starts early.

    Attributes:
        specs: every message that may come.
        attempts: how often each was started.
        lanes: who runs in each lane.
    """

    store: WatchedStore
    rng: random.Random
    specs: dict[Name, Spec] = field(factory=dict)
    attempts: Counter[Name] = field(factory=Counter)
    lanes: dict[str, Name] = field(factory=dict)

    async def execute(self, delivery: Delivery[Any]) -> Any:
        name = (delivery.epoch.name, delivery.id)
        self.see_to_dependencies(delivery)
        key = delivery.message.key
        if key is not None:
            ahead = self.lanes.get(key)
            # Whoever was cancelled has left its lane, although its task has not noticed yet.
            assert ahead is None or ahead in self.store.ends, f"{name} meets {ahead} in lane {key}"
            self.lanes[key] = name
        try:
            await trio.sleep(self.rng.choice((0.0, 0.0, 0.1, 1.0)))
            return self.answer(name)
        finally:
            if key is not None and self.lanes.get(key) == name:
                del self.lanes[key]

    def see_to_dependencies(self, delivery: Delivery[Any]) -> None:
        for each in delivery.message.depends_on:
            if isinstance(each, str):
                parent = (delivery.epoch.name, each)
            elif isinstance(each, OnMessage):
                parent = (each.epoch_name or delivery.epoch.name, each.id)
            else:
                continue
            is_passed = each in delivery.unmet
            assert is_passed or self.store.ends.get(parent) == "committed", f"{delivery} before {parent}"

    def answer(self, name: Name) -> Any:
        spec = self.specs[name]
        turn = self.attempts[name]
        self.attempts[name] += 1
        attempt = spec.script[turn] if turn < len(spec.script) else None
        outcome = "ok" if attempt is None else attempt.outcome
        if outcome == "skip":
            return Skipped("as the script says")
        if outcome == "fail":
            return Fatal("as the script says")
        if outcome == "retry":
            raise Transient("as the script says", retry_after=self.rng.choice((0.0, 0.5, 2.0)))
        if outcome == "defer":
            return Deferred(attempt.depends_on)
        children = [child.message for child in (*spec.staged, *spec.derived)]
        return Executed([(*name, outcome)], children, spec.ready)


class Refusing(MemorySink[Any]):
    """A sink that refuses what the script says, in one of two ways, and may take its time."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    async def commit(self, batch: CommitBatch[Any]) -> None:
        if self.rng.random() < 0.3:
            await trio.sleep(self.rng.choice((0.0, 0.3)))
        if self.rng.random() < 0.1:
            raise Transient("busy")
        bad = {entry.task_key: ValueError("refused") for entry in batch.entries if entry.ops[0][2] == "refuse"}
        if bad and self.rng.random() < 0.5:
            raise SinkRejected(bad)
        if bad:
            raise ValueError("something is wrong here")
        await super().commit(batch)


def all_specs(specs: Sequence[Spec]) -> Iterator[Spec]:
    for spec in specs:
        yield spec
        yield from all_specs(spec.staged + spec.derived)


class Stage:
    """One program and the runtime that runs it."""

    def __init__(self, program: Program, seed: int, pause: float | None = None, *, bus: bool = False) -> None:
        self.program = program
        self.rng = rng = random.Random(seed)
        self.clock = TrioClock()
        self.store = WatchedStore(self.clock, pause)
        self.sink = Refusing(rng)
        self.actor = Actor(self.store, rng)
        for epoch in program.epochs:
            for spec in all_specs(epoch.messages):
                self.actor.specs[epoch.name, spec.message.id] = spec
        self.runtime = make_runtime(
            self.actor,
            self.sink,
            self.store,
            self.clock,
            bus=LossyBus(rng) if bus else None,
            derives=program.derives,
            on_unresolved=program.on_unresolved,
            max_deferrals=program.max_deferrals,
            max_in_flight=rng.choice((1, 2, 256)),
            commit_batch=rng.choice((1, 3, 512)),
            commit_linger=rng.choice((0.0, 0.0, 0.2)),
            max_derived=rng.choice((1, 1_000)),
        )
        self.reports: dict[str, Any] = {}
        self.cancelled: set[str] = set()

    def play(self, *, troubles: int) -> None:
        try:
            run_with(self.program.seed, self._play, troubles)
            self.check()
        except BaseException as error:
            error.add_note(self.program.describe())
            raise

    async def _play(self, troubles: int) -> None:
        with bounded():
            async with self.runtime.running() as intake:
                for spec in self.program.epochs:
                    deadline = None if spec.deadline is None else self.clock.wall() + spec.deadline
                    await intake.new_epoch(spec.name, deadline=deadline, on_unresolved=spec.on_unresolved)
                async with trio.open_nursery() as nursery:
                    for spec in self.program.epochs:
                        nursery.start_soon(self.submit, intake, spec)
                    for _ in range(troubles):
                        nursery.start_soon(self.trouble, intake)
                for spec in self.program.epochs:
                    report = await intake.wait_epoch(spec.name, until="blocked")
                    assert report.is_completed or report.is_blocked
                await self.help(intake)
                self.reports = {spec.name: await intake.wait_epoch(spec.name) for spec in self.program.epochs}

    async def submit(self, intake: IntakeHandle[Any], epoch: EpochSpec) -> None:
        left = self.rng.sample(epoch.messages, len(epoch.messages))
        while left:
            count = self.rng.randint(1, len(left))
            chunk, left = left[:count], left[count:]
            await trio.sleep(self.rng.choice((0.0, 0.0, 0.2, 2.0)))
            try:
                await intake.submit(epoch.name, (spec.message for spec in chunk))
            except EpochSealed:
                assert epoch.name in self.cancelled
                return
        await trio.sleep(self.rng.choice((0.0, 1.0)))
        await intake.seal_epoch(epoch.name)

    async def trouble(self, intake: IntakeHandle[Any]) -> None:
        """Cancel something or other at some time."""
        await trio.sleep(self.rng.choice((0.0, 0.1, 0.5, 1.5, 3.0)))
        epoch = self.rng.choice(self.program.epochs)
        if self.rng.random() < 0.2:
            self.cancelled.add(epoch.name)
            await intake.cancel_epoch(epoch.name)
            return
        spec = self.rng.choice(list(all_specs(epoch.messages)))
        try:
            await intake.cancel(epoch.name, spec.message.id)
        except UnknownMessage:
            assert (epoch.name, spec.message.id) not in self.store.ends or intake.report(epoch.name).is_completed

    async def help(self, intake: IntakeHandle[Any]) -> None:
        """Do what a person would have to do for what is blocked."""
        await intake.notify_dependency_ready(Resource(EXTERNAL, 9))
        for spec in self.program.epochs:
            with trio.move_on_after(100):
                await intake.wait_epoch(spec.name)
        for spec in self.program.epochs:
            if not intake.report(spec.name).is_completed:
                assert (await intake.explain(spec.name)).reasons
                await intake.cancel_epoch(spec.name)

    def check(self) -> None:
        """See that reports, sink and store tell the same story."""
        ends: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (epoch, _), end in self.store.ends.items():
            ends[epoch][end] += 1
        for name, report in self.reports.items():
            counted = {end: getattr(report, end) for end in ("committed", "dead", "skipped", "cancelled", "expired")}
            assert +Counter(counted) == ends[name]
            assert (report.submitted, report.unfinished) == (ends[name].total(), 0)
            failed = [failure.message_id for failure in report.failures]
            assert len(failed) == report.dead + report.cancelled + report.expired
            assert len(set(failed)) == len(failed)
        committed = sorted(name for name, end in self.store.ends.items() if end == "committed")
        assert sorted((op[0], op[1]) for op in self.sink.ops) == committed
        statistics = self.runtime.statistics()
        assert (statistics.unfinished, statistics.in_flight, statistics.state) == (0, 0, "stopped")


def names_messages_of_other_epochs(program: Program) -> bool:
    """Tell whether ends depend on how long the ids of a completed epoch are kept. In memory they go at once."""
    found = False

    def look(depends_on: Iterable[str | Dependency], home: str) -> None:
        nonlocal found
        for each in depends_on:
            if isinstance(each, AnyOf):
                look(each.members, home)
            elif isinstance(each, OnMessage):
                found = found or each.epoch_name not in (None, home)

    for epoch in program.epochs:
        for spec in all_specs(epoch.messages):
            look(spec.message.depends_on, epoch.name)
            for attempt in spec.script:
                look(attempt.depends_on, epoch.name)
    return found


def programs(chunk: int, count: int, make: Callable[[int], Program], *, across: bool) -> Iterator[tuple[int, Program]]:
    """Yield programs that name messages of other epochs, or do not."""
    found = ((seed, make(seed)) for seed in itertools.count(chunk * 1_000_000))
    fitting = (each for each in found if names_messages_of_other_epochs(each[1]) == across)
    return itertools.islice(fitting, count)


STORES = pytest.mark.parametrize("pause", [None, 0.001, 0.3], ids=["quick store", "store that waits", "slow store"])


@STORES
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_ends_are_those_of_the_reference_model(chunk, pause):
    for seed, program in programs(chunk, TIMELESS_IN_CHUNK, generate_timeless, across=False):
        stage = Stage(program, seed, pause)
        stage.play(troubles=0)
        numbers = {epoch.number: epoch.name for epoch in program.epochs}
        expected = {(numbers[number], name): end for (number, name), end in ends_of(program, seed).items()}
        assert stage.store.ends == expected, program.describe()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_everything_ends_or_is_visibly_blocked_and_counts_are_true(chunk):
    for seed, program in programs(chunk, OTHERS_IN_CHUNK, generate, across=False):
        Stage(program, seed).play(troubles=seed % 4)


def test_the_same_holds_with_hints_on_a_bus_that_loses_them():
    for seed, program in programs(3, OTHERS_IN_CHUNK * 2, generate, across=False):
        Stage(program, seed, bus=True).play(troubles=seed % 4)
    for seed, program in programs(3, TIMELESS_IN_CHUNK, generate_timeless, across=True):
        Stage(program, seed, bus=True).play(troubles=0)


def test_the_same_holds_across_epochs():
    for seed, program in programs(0, ACROSS_EPOCHS, generate, across=True):
        Stage(program, seed).play(troubles=seed % 4)


@STORES
def test_the_same_holds_when_nobody_cancels_anything(pause):
    for seed, program in programs(1, ACROSS_EPOCHS, generate, across=True):
        if all(epoch.deadline is None for epoch in program.epochs):
            Stage(program, seed, pause).play(troubles=0)


@pytest.mark.parametrize("pause", [0.001, 0.3], ids=["store that waits", "slow store"])
def test_the_same_holds_on_a_store_that_waits(pause):
    for across in (False, True):
        for seed, program in programs(2, OTHERS_IN_CHUNK * 2, generate, across=across):
            Stage(program, seed, pause).play(troubles=seed % 4)


# A message whose epoch had completed between its answer and the staging of what it brings.
ONCE_FAILED = (780_425,)


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_programs_that_once_broke_a_promise_keep_it(seed):
    Stage(generate(seed), seed).play(troubles=seed % 4)
