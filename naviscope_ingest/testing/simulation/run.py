"""One run of a program: process after process, and a look at what each has left."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import apsw
import trio
from attrs import define, field, frozen
from trio.testing import MockClock

from naviscope_ingest.stores.memory import MemoryStore
from naviscope_ingest.testing.disk import SimulatedDisk
from naviscope_ingest.testing.simulation.determinism import listening, repeatable
from naviscope_ingest.testing.simulation.faults import FaultName, Mix
from naviscope_ingest.testing.simulation.history import History
from naviscope_ingest.testing.simulation.process import Plan, Process
from naviscope_ingest.testing.simulation.program import Program, World
from naviscope_ingest.testing.simulation.snapshot import read_history, read_memory

__all__ = ["Outcome", "Run", "Script", "calm", "drawn", "play"]

_CALM = Mix(0, {})
# Once everything is done, the program is started again now and then, and finds nothing to do.
_ENOUGH = 2


@frozen
class Script:
    """What is done to a program.

    Attributes:
        troubles: a mix and a plan for each process that gets trouble.
        twice: how often two recoveries are compared, from 0 to 1.
        keeps_log: whether the operations of the disk are noted.
    """

    troubles: Iterable[tuple[Mix, Plan]] = ()
    twice: float = 1.0
    keeps_log: bool = False


@define
class Outcome:
    """What came of a run.

    Attributes:
        seed: of the run.
        crashes: how many processes were killed.
        power_cuts: how many of them by a power cut.
        faults: how often each fault happened.
        sometimes: how often interesting things happened.
        trace: everything that happened, as text.
        steps: how many steps tasks took.
        seconds: how long it took by the virtual clock.
        violation: what is wrong, if anything.
        processes: the processes, in order.
        disks: the disk of each.
        repeated: the task keys that a sink committed more than once.
    """

    seed: int
    crashes: int = 0
    power_cuts: int = 0
    faults: Counter[str] = field(factory=Counter)
    sometimes: Counter[str] = field(factory=Counter)
    trace: list[str] = field(factory=list)
    steps: int = 0
    seconds: float = 0.0
    violation: BaseException | None = None
    processes: list[Process] = field(factory=list)
    disks: list[SimulatedDisk] = field(factory=list)
    repeated: list[str] = field(factory=list)

    def add(self, other: Outcome) -> None:
        """Count what came of another run."""
        self.crashes += other.crashes
        self.power_cuts += other.power_cuts
        self.faults += other.faults
        self.sometimes += other.sometimes
        self.steps += other.steps
        self.seconds += other.seconds

    @property
    def digest(self) -> str:
        """The hash of the trace: two runs that are the same have the same."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


def calm() -> Script:
    """Return a script without trouble."""
    return Script(keeps_log=True)


def drawn(seed: int, allowed: frozenset[FaultName]) -> Script:
    """Draw the script of a seed."""
    mix = Mix.draw(random.Random(f"{seed}:mix"), allowed)

    def troubles() -> Iterator[tuple[Mix, Plan]]:
        for turn in range(mix.lives):
            yield mix, Plan.draw(random.Random(f"{seed}:{turn}:plan"), mix)

    return Script(troubles(), twice=0.25)


def play(make: Callable[[], Program], seed: int, script: Script) -> Outcome:
    """Play a program through a script, in virtual time; never raises for what it finds."""
    outcome = Outcome(seed)
    with repeatable(str(seed)):
        try:
            # Threads would be looked for in the signal handling of trio; nothing here needs either.
            trio.run(
                Run(make(), outcome, script).run,
                clock=MockClock(autojump_threshold=0),
                restrict_keyboard_interrupt_to_checkpoints=True,
            )
        except Exception as error:
            outcome.violation = _alone(error)
    return outcome


def _alone(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _close_all(disk: SimulatedDisk) -> None:
    """Close what a process has left open: a connection to a dead disk complains when it is collected, much later."""
    for connection in apsw.connections():
        if connection.filename.startswith(disk.path("")):
            with suppress(apsw.Error):
                connection.close(force=True)


class Run:
    """A program, its world, and what is known of it."""

    def __init__(self, program: Program, outcome: Outcome, script: Script) -> None:
        self._program = program
        self._outcome = outcome
        self._script = script
        self._world = World(outcome.seed)
        self._world.trace = outcome.trace
        self._history = self._world._history = History()
        self._found = self._world._found = History()
        self._disk = SimulatedDisk(seed=outcome.seed, keep_log=True)
        self._memory: MemoryStore[Any] | None = None
        if self._program.store == "memory":
            self._memory = MemoryStore(store_id="simulated", clock=self._world.clock)
        self._rng = random.Random(f"{outcome.seed}:run")

    async def run(self) -> None:
        """Live through the troubles of the script, and then without any until everything is done.

        Raises:
            Violation: a promise was broken.
        """
        with listening(self._world.note):
            done = 0
            for mix, plan in self._script.troubles:
                done += await self._live(mix, plan)
                if done == _ENOUGH:
                    break
            self._world.note("from now on nothing is wrong")
            await self._live(_CALM, Plan(), is_last=True)
        outcome = self._outcome
        outcome.seconds = trio.current_time()
        outcome.sometimes["a sink got again what it had committed"] += bool(outcome.repeated)
        for end in set(self._world.ends.values()):
            outcome.sometimes[f"a message ended {end}"] += 1

    async def _live(self, mix: Mix, plan: Plan, *, is_last: bool = False) -> bool:
        world, outcome = self._world, self._outcome
        world.moment = "running"
        world._disk = self._disk
        self._disk.power_on()
        if self._memory is not None:
            plan = plan.without_a_disk()
        process = Process(
            self._program, world, self._disk, self._history, self._found, mix=mix, plan=plan, memory=self._memory
        )
        outcome.processes.append(process)
        outcome.disks.append(self._disk)
        try:
            await process.run()
        finally:
            outcome.faults.update(process.met)
            outcome.steps += process.steps
            self._disk.kill()
            outcome.sometimes += process.sometimes
            outcome.repeated = [key for key, count in self._history.delivered.items() if count > 1]
        _close_all(self._disk)
        self._disk = self._left_behind(process, mix, plan)
        await self._examine(is_last=is_last)
        world.life += 1
        if not is_last:
            await trio.sleep(self._rng.choice((0.0, 0.5, 20.0)))
        return process.is_done and not process.is_over

    def _left_behind(self, process: Process, mix: Mix, plan: Plan) -> SimulatedDisk:
        """Return the disk that the next process finds."""
        outcome, disk, rng = self._outcome, self._disk, self._rng
        if disk.faults_met:
            outcome.faults[plan.lethal or "io"] += 1
        if not process.is_over:
            outcome.sometimes["a process failed" if process.error else "a process ended in order"] += 1
        else:
            outcome.crashes += 1
            if plan.lethal in ("kill", "power", "recovery"):
                outcome.faults[plan.lethal] += 1
        is_cut = (plan.lethal == "power" and process.is_over) or (
            plan.lethal not in (None, "kill", "recovery") and mix.hits(rng, "power")
        )
        if not is_cut or self._memory is not None:
            return disk.killed_image()
        outcome.power_cuts += 1
        in_doubt = disk.unsynced()
        survival = plan.survival or rng.choice(list(disk.survivals(seeds=2, most=2)))
        self._world.note(f"the power is cut: {in_doubt} changes in doubt, {survival.mode} {survival.amount} survives")
        outcome.sometimes["a power cut found changes in doubt" if in_doubt else "a power cut found all synced"] += 1
        return disk.image(survival)

    async def _examine(self, *, is_last: bool) -> None:
        """Look at a copy of the disk, and let the program look too."""
        world, program = self._world, self._program
        probe = self._disk.killed_image()
        probe.log = None
        probe.power_on()
        if self._memory is not None:
            found = await read_memory(self._memory, self._history)
        else:
            found = await read_history(
                probe, world.clock, program.store_options, twice=self._rng.random() < self._script.twice
            )
        self._history.compare(found)
        self._found = world._found = found
        world.ends = found.named_ends()
        world.moment = "end" if is_last else "crash"
        world._disk = probe
        answer = program.check(world)
        if inspect.isawaitable(answer):
            await answer
        world._disk = self._disk
        world.note(f"{len(found.messages)} messages are there, {len(found.ends)} have ended")
