"""One process of a simulated program: it starts, does its work, and may be ended at any moment."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio
from attrs import evolve, frozen
from trio.testing import MockClock

from naviscope_ingest.errors import InternalError
from naviscope_ingest.intake import IntakeHandle
from naviscope_ingest.reports import Recovery
from naviscope_ingest.runtime import IngestRuntime
from naviscope_ingest.stores.memory import MemoryStore
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_ingest.testing.disk import SimulatedDisk, Survival
from naviscope_ingest.testing.simulation.faults import FaultName, Mix
from naviscope_ingest.testing.simulation.history import History, Violation
from naviscope_ingest.testing.simulation.parts import SimulatedExecutor, SimulatedIntake, SimulatedSink
from naviscope_ingest.testing.simulation.program import Program, World
from naviscope_ingest.testing.simulation.snapshot import open_store_on
from naviscope_spi import Fact

__all__ = ["Plan", "Process", "Steps"]

_MOST_STEPS: Final = 300_000
"""More steps of tasks than a process may take: what goes round and round is found so."""

_BUGS = (InternalError, AssertionError, NameError, TypeError, AttributeError, KeyError, IndexError)
"""What no fault of the world excuses."""

_NEVER: Final = 1_000_000_000

_PATIENCE: Final = 3_600.0
"""How long a process that is in trouble is given before somebody kills it, in virtual seconds."""

_DRAIN: Final = 7 * 24 * 3_600.0
"""How long a process without trouble may take to do everything, in virtual seconds."""


@frozen
class Plan:
    """How a process is going to end, and what happens around it.

    Attributes:
        lethal: the fault that ends it; None lets it finish.
        setting: what happens around it.
        at_operation: the operation of the disk at which it dies, or from which on the disk fails.
        at_step: the step of a task at which it dies.
        at_moment: the moment of user code at which it dies; see `Process.moments`.
        once: whether the disk fails once only.
        after: seconds until it is stopped.
        survival: what a power cut leaves; None lets chance decide.
    """

    lethal: FaultName | None = None
    setting: Sequence[FaultName] = ()
    at_operation: int | None = None
    at_step: int | None = None
    at_moment: int | None = None
    once: bool = True
    after: float | None = None
    survival: Survival | None = None

    @classmethod
    def draw(cls, rng: random.Random, mix: Mix) -> Plan:
        """Draw one."""
        lethal = mix.lethal(rng)
        plan = cls(lethal, mix.setting(rng))
        if lethal is None:
            return plan
        if lethal == "stop":
            return evolve(plan, after=rng.choice((0.0, 0.1, 1.0, 5.0)))
        if lethal == "recovery":
            return evolve(plan, at_operation=rng.randrange(40))
        if lethal in ("kill", "power") and rng.random() < 0.4:
            return evolve(plan, at_step=_place(rng, 60, 5_000))
        return evolve(plan, at_operation=_place(rng, 300, 5_000), once=rng.random() < 0.5)

    def without_a_disk(self) -> Plan:
        """Return what is left of it where the store is in memory: deaths at steps of tasks, and stops."""
        if self.lethal in ("io", "full", "sync"):
            return evolve(self, lethal=None, at_operation=None)
        if self.lethal is None or self.lethal == "stop":
            return self
        # There are a few steps of tasks for each operation that there would be.
        at_step = self.at_step if self.at_operation is None else 1 + 3 * self.at_operation
        return evolve(self, lethal="kill", at_operation=None, at_step=at_step)


def _place(rng: random.Random, usual: int, most: int) -> int:
    """Draw a place to die at: in what a small program does, or anywhere, where small numbers are as likely as large."""
    return rng.randrange(usual) if rng.random() < 0.7 else int(most ** rng.random())


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks, and lets a process die at one of them."""

    def __init__(self, process: Process, at: int | None) -> None:
        self.taken = 0
        self._process = process
        self._at = at

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a step."""
        self.taken += 1
        if self.taken == self._at:
            self._process.die("between two steps of tasks")
        elif self.taken == _MOST_STEPS:
            self._process.violate(
                Violation(f"{_MOST_STEPS:,} steps of tasks, and no end: something goes round and round")
            )
        elif task in self._process.users:
            self._process.pass_moment(self._process.users[task])


class Process:
    """A process of a program.

    Args:
        program: what it runs.
        world: where it lives.
        disk: its disk.
        history: what was promised before.
        found: what the disk knows. It is promised once the store is open: before that, what was written and not synced
            may be lost yet, and nobody has been told of it.
        mix: the faults of parts.
        plan: how it ends.
        memory: a store that lives on without it; None for one on the disk.

    Attributes:
        is_over: whether it is dead.
        died: how, in words.
        met: the faults that have happened.
        moments: how many moments of user code have passed: steps of tasks that are in an executor or a sink.
        found: a promise that was broken.
        steps: how many steps its tasks took.
        is_done: whether its workload came to its end.
        error: what it raised.
        sometimes: how often interesting things happened.
    """

    def __init__(
        self,
        program: Program,
        world: World,
        disk: SimulatedDisk,
        history: History,
        found: History,
        *,
        mix: Mix,
        plan: Plan,
        memory: MemoryStore[Any] | None = None,
    ) -> None:
        self.world = world
        self.history = history
        self.mix = mix
        self.is_over = False
        self.died: str | None = None
        self.met: list[str] = []
        self.moments = 0
        self.found: Violation | None = None
        self.steps = 0
        self.is_done = False
        self.error: BaseException | None = None
        self.sometimes: Counter[str] = Counter()
        self.users: dict[trio.lowlevel.Task, str] = {}
        self._program = program
        self._found = found
        self._disk = disk
        self._plan = plan
        self._memory = memory
        self._scope = trio.CancelScope()
        self._parts: dict[trio.CancelScope, None] = {}

    # What parts ask.

    def hits(self, rng: random.Random, fault: FaultName) -> bool:
        """Tell whether a fault happens here and now."""
        if not self.mix.hits(rng, fault):
            return False
        self._meet(fault)
        return True

    def records_outcomes(self, kind: str) -> bool:
        """Tell whether outcomes of a kind are recorded before a sink sees them."""
        return self._program.config.records_outcomes(kind)

    def violate(self, error: Violation) -> None:
        """Note what is wrong, and end."""
        if self.found is None and not self.is_over:
            self.found = error
            self.world.note(f"WRONG: {error}")
        self.die("something is wrong")

    def push(self, step: Sequence[Fact]) -> None:
        """Take facts from the store in the moment in which they are committed, as a reader of it does."""
        if self._disk.is_dead and self._memory is None:
            return
        try:
            self.history.take(step)
        except Violation as error:
            self.violate(error)
        self.world.note(f"knows {', '.join(map(_in_short, step))}")

    def end(self, error: object) -> None:
        """Hear that the store was closed."""

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Enter code of the user, in a scope that ends with the process."""
        task = trio.lowlevel.current_task()
        with trio.CancelScope() as scope:
            self._parts[scope] = None
            self.users[task] = part
            try:
                yield
            finally:
                del self._parts[scope]
                self.users.pop(task, None)

    # How it ends.

    def pass_moment(self, part: str) -> None:
        """Count a step of a task that is in user code."""
        if self.moments == self._plan.at_moment:
            self.die(f"in the {part}")
        self.moments += 1

    def die(self, how: str) -> None:
        """End at once: nothing that it does from now on has an effect."""
        if self.is_over:
            return
        self.is_over = True
        self.died = how
        self._disk.kill()
        self.world.note(f"dies {how}")
        self._scope.cancel()
        for scope in tuple(self._parts):
            scope.cancel()

    def _meet(self, fault: FaultName) -> None:
        self.met.append(fault)
        self.world.note(f"meets {fault}")

    async def run(self) -> None:
        """Live, until the work is done or the end comes.

        Raises:
            Violation: a promise was broken.
        """
        self._arm()
        steps = Steps(self, self._plan.at_step)
        trio.lowlevel.add_instrument(steps)
        try:
            with self._scope:
                await self._live()
        except Exception as raised:
            self.error = raised
        finally:
            trio.lowlevel.remove_instrument(steps)
            self.steps = steps.taken
            self._disk.heal()
        if self._disk.is_dead and not self.is_over:
            # The disk let it die; whatever it did afterwards never happened.
            self.is_over = True
            self.died = f"at an operation of the disk: {self._last_operation()}"
            self.world.note(f"died {self.died}")
        if self.found is not None:
            raise self.found
        if self.error is not None:
            self._judge(self.error)

    def _last_operation(self) -> str:
        log = self._disk.log
        return f"{log[-1].kind} of {log[-1].file}, number {log[-1].number}" if log else "unknown"

    def _arm(self) -> None:
        plan, disk = self._plan, self._disk
        if plan.lethal in ("io", "full", "sync") and plan.at_operation is not None:
            disk.fail_at(plan.at_operation, plan.lethal, once=plan.once)
        elif plan.at_operation is not None:
            disk.kill_at(plan.at_operation)

    def _judge(self, error: BaseException) -> None:
        """See that it did not fail without a reason."""
        self.world.note(f"ended by {_described(error)}")
        bug = _first(error, _BUGS)
        if bug is not None and not self.is_over:
            raise Violation(f"it raised {_described(bug)}") from error
        is_troubled = self.is_over or self._plan.lethal or self._plan.setting or self._disk.faults_met
        if not is_troubled:
            raise Violation(f"it failed although nothing was wrong: {_described(error)}") from error

    async def _live(self) -> None:
        program, world = self._program, self.world
        async with self._store() as store:
            self.history.go_on_from(self._found)
            components = program.components(world)
            components = evolve(
                components,
                executor=SimulatedExecutor(components.executor, self),
                commit_sink=SimulatedSink(components.commit_sink, self, store.info.store_id),
                store=store,
                clock=world.clock,
            )
            # A simulated crash says nothing about the message that was running.
            config = evolve(program.config, poison_threshold=_NEVER)
            runtime: IngestRuntime[Any, Any] = IngestRuntime(components, config)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                for fault in self._plan.setting:
                    nursery.start_soon(self._disturb, fault)
                async with runtime.running() as handle:
                    intake = SimulatedIntake(handle, self)
                    if self._plan.after is not None:
                        nursery.start_soon(self._stop, runtime, self._plan.after)
                    world.note("runs")
                    self._look_at_start(runtime.recovery)
                    await self._work(program, intake)
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[SqliteStore[Any] | MemoryStore[Any]]:
        """Open the store, and be told what happens in it, as a reader is."""
        if self._memory is not None:
            feed = self._memory._ledger._feed
            feed.add(self)  # type: ignore[arg-type]  # as below
            try:
                yield self._memory
            finally:
                feed.drop(self)  # type: ignore[arg-type]  # as below
            return
        async with open_store_on(self._disk, self.world.clock, self._program.store_options) as store:
            store._feed.add(self)  # type: ignore[arg-type]  # it has what a reader needs
            yield store

    def _look_at_start(self, recovery: Recovery) -> None:
        for what, count in (
            ("a process found unfinished messages", recovery.unfinished),
            ("a process found messages that were running", recovery.suspects),
            ("a process found recorded outcomes", recovery.recorded),
        ):
            self.sometimes[what] += bool(count)

    async def _work(self, program: Program, intake: IntakeHandle[Any]) -> None:
        await program.workload(intake)
        for report in intake.epochs():
            if report.state != "open":
                await intake.wait_epoch(report.name, until="blocked")
        if not self.is_over:
            for report in intake.epochs():
                self.history.see_to_report(report)
        self.is_done = True

    async def _stop(self, runtime: IngestRuntime[Any, Any], after: float) -> None:
        await trio.sleep(after)
        self._meet("stop")
        runtime.stop(timeout=5.0)

    async def _disturb(self, fault: FaultName) -> None:
        rng = self.world.random(fault)
        await trio.sleep(rng.choice((0.0, 0.2, 1.0, 5.0)))
        self._meet(fault)
        if fault == "clock jump":
            self.world.clock.offset += rng.choice((-3_600.0, -2.0, 2.0, 3_600.0))
        else:
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(rng.choice((10.0, 600.0)))

    async def _watch(self) -> None:
        """See that it comes to an end."""
        is_troubled = self._plan.lethal is not None or bool(self.mix.rates)
        await trio.sleep(_PATIENCE if is_troubled else _DRAIN)
        if is_troubled:
            self.die("because it seemed to hang")
        else:
            self.violate(Violation(f"nothing is wrong, and after {_DRAIN / 86_400:.0f} days it is not done"))


def _in_short(fact: Fact) -> str:
    text = str(fact.body)
    return f"{text[:100]}…" if len(text) > 100 else text


def _described(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    cause = error.__cause__
    return (
        text[:300]
        if cause is None
        else f"{text[:300]}, from {type(cause).__name__}: {' '.join(str(cause).split())}"[:500]
    )


def _first(error: BaseException, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """Return the first error of some kinds in an error, its groups and its causes."""
    if isinstance(error, kinds):
        return error
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    for each in (*inner, error.__cause__):
        found = None if each is None else _first(each, kinds)
        if found is not None:
            return found
    return None
