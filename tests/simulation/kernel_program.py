"""Random programs of the reference model, as the simulator runs them: the whole runtime, on one of four sinks.

The ends of most do not depend on timing or crashes, so whatever happens they must be those of the model. An executor
answers differently each time it is called. So an effect that was applied twice, or an answer of which the sink has one
half and the store another, cannot look right.
"""

from __future__ import annotations

import random
from collections import Counter

import apsw
import msgspec
from attrs import evolve

from naviscope_ingest import (
    Deferred,
    Executed,
    Fatal,
    RuntimeComponents,
    RuntimeConfig,
    SinkRejected,
    Skipped,
    Transient,
)
from naviscope_ingest.policies import KindPolicy, RetryPolicy
from naviscope_ingest.sinks import Insert, SqliteSink
from naviscope_ingest.testing import Program
from tests.model.interleavings import Undisturbed
from tests.model.programs import Spec, generate_steadfast, generate_timeless
from tests.model.test_reference import model_of
from tests.runtime.test_properties import all_specs

SCHEMA = "create table effects (place integer primary key, epoch text, id text, nonce integer not null)"
SINKS = ("inside", "file", "service", "forgetful service")


def ends_of_model(program):
    """Return how the messages of a program end in the reference model, by the name of the epoch and the id."""
    model = model_of(program)
    Undisturbed(program, random.Random(program.seed), [model], lambda event: None).run()
    names = {epoch.number: epoch.name for epoch in program.epochs}
    return {(names[each.epoch], each.message.id): each.state for each in model.entries.values()}


class Service:
    """Something elsewhere that keeps each effect once, by its task key.

    Attributes:
        effects: what it was asked for, by task key.
    """

    def __init__(self, effects):
        self.effects = effects

    async def commit(self, batch):
        bad = {entry.task_key: ValueError("refused") for entry in batch.entries if entry.ops[0][2] is None}
        if bad:
            raise SinkRejected(bad)
        for entry in batch.entries:
            self.effects.setdefault(entry.task_key, tuple(entry.ops[0]))


class RememberingService(Service):
    """One whose ops can be recorded."""

    def encode_ops(self, ops):
        return msgspec.json.encode(ops)

    def decode_ops(self, data):
        return msgspec.json.decode(data)


class KernelProgram(Program):
    """A random program; the seed of the world says which."""

    def __init__(self):
        self.program = None
        self.effects = {}
        self.nonce = 0
        self.specs = {}
        # What each message was seen to have settled before it was delivered, in order.
        self.seen = {}

    def prepare(self, world):
        seed = world.seed
        rng = random.Random(f"{seed}:kernel")
        # What a crash may change is played too; only its ends are not compared.
        self.is_compared = rng.random() < 0.6
        make = generate_steadfast if self.is_compared else generate_timeless
        self.program = evolve(make(seed), max_deferrals=1_000)
        self.sink = rng.choice(SINKS)
        for epoch in self.program.epochs:
            for spec in all_specs(epoch.messages):
                self.specs[epoch.name, spec.message.id] = spec
        policy = KindPolicy(retry=RetryPolicy(max_attempts=1_000, max_elapsed=1e9))
        self.config = RuntimeConfig(
            derives=self.program.derives,
            on_unresolved=self.program.on_unresolved,
            max_deferrals=1_000,
            max_in_flight=rng.choice((1, 2, 256)),
            commit_batch=rng.choice((1, 3, 512)),
            commit_linger=rng.choice((0.0, 0.0, 0.2)),
            max_derived=rng.choice((1, 1_000)),
            submit_chunk=rng.choice((2, 512)),
            other_kinds=policy,
        )

    def components(self, world):
        if self.program is None:
            self.prepare(world)
        self.world = world
        self.rng = world.random("program")
        if self.sink == "inside":
            sink = SqliteSink(schema=SCHEMA)
        elif self.sink == "file":
            sink = SqliteSink(world.path("effects.db"), SCHEMA, vfs=world.vfs)
        else:
            sink = (RememberingService if self.sink == "service" else Service)(self.effects)
        return RuntimeComponents(executor=self, commit_sink=sink)

    async def workload(self, intake):
        rng = self.rng
        for spec in self.program.epochs:
            await intake.new_epoch(spec.name, on_unresolved=spec.on_unresolved)
        for spec in self.program.epochs:
            left = rng.sample(spec.messages, len(spec.messages))
            while left:
                count = rng.randint(1, len(left))
                chunk, left = left[:count], left[count:]
                if intake.report(spec.name).state == "completed":
                    break
                await self.submit(intake, spec.name, [each.message for each in chunk])
            await intake.seal_epoch(spec.name)
        for spec in self.program.epochs:
            await intake.wait_epoch(spec.name)

    async def submit(self, intake, epoch, messages):
        await intake.submit(epoch, messages)

    async def execute(self, delivery):
        name = (delivery.epoch.name, delivery.id)
        spec = self.specs[name]
        history = self.world._history
        place = history.place_of(delivery.epoch.number, delivery.id)
        turns = self.seen.setdefault(name, [])
        settled = (delivery.attempt, frozenset(history.added.get(place, ())))
        if settled not in turns:
            turns.append(settled)
        turn = turns.index(settled)
        return self.answer(name, spec, spec.script[turn] if turn < len(spec.script) else None)

    def answer(self, name, spec: Spec, attempt):
        outcome = "ok" if attempt is None else attempt.outcome
        if outcome == "skip":
            return Skipped("as the script says")
        if outcome == "fail":
            return Fatal("as the script says")
        if outcome == "retry":
            raise Transient("as the script says")
        if outcome == "defer":
            return Deferred(attempt.depends_on)
        self.nonce += 1
        nonce = None if outcome == "refuse" else self.nonce
        op = (*name, nonce)
        if self.sink in ("inside", "file"):
            op = Insert("effects", {"epoch": name[0], "id": name[1], "nonce": nonce})
        children = [child.message for child in (*spec.staged, *spec.derived)]
        return Executed([op], children, spec.ready, value=str(self.nonce).encode())

    def found(self, world):
        """Return the effects as they are now, in no order."""
        if self.sink not in ("inside", "file"):
            return list(self.effects.values())
        path = world.path("ingest.db" if self.sink == "inside" else "effects.db")
        connection = apsw.Connection(path, vfs=world.vfs)
        try:
            connection.execute("pragma locking_mode = exclusive").fetchall()
            if not connection.table_exists("main", "effects"):
                return []
            return connection.execute("select epoch, id, nonce from effects order by place").fetchall()
        finally:
            connection.close()

    def check(self, world):
        if self.program is None:
            return
        effects = self.found(world)
        counts = Counter((epoch, message) for epoch, message, _ in effects)
        twice = [name for name, count in counts.items() if count > 1]
        assert not twice, f"effects were applied twice: {twice}"
        missing = world.committed - counts.keys()
        assert not missing, f"committed without effect: {sorted(missing)}"
        if self.sink == "inside":
            early = counts.keys() - world.committed
            assert not early, f"in the file without being committed: {sorted(early)}"
        if self.sink != "forgetful service":
            self.check_answers(world, effects)
        if world.is_over:
            assert counts.keys() == world.committed, f"effects of {sorted(counts.keys() - world.committed)} stay"
            if self.is_compared:
                self.check_ends(world)

    def check_answers(self, world, effects):
        """See that the store and the sink have the same answers."""
        found, values = world._found, world._history.values
        names = {each.key.name: number for number, each in found.epochs.items()}
        for epoch, message, nonce in effects:
            place = found.place_of(names[epoch], message)
            value = values.get(place)
            if place in found.ends and value is not None:
                assert int(value) == nonce, f"{message} has answer {nonce} in the sink and {int(value)} in the store"

    def check_ends(self, world):
        expected = ends_of_model(self.program)
        wrong = {name: (world.ends.get(name), end) for name, end in expected.items() if world.ends.get(name) != end}
        assert not wrong, f"ends (found, of the model): {wrong}\n{self.program.describe()}"
        assert world.ends.keys() == expected.keys()
