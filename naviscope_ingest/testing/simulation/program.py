"""What is simulated: a program of the user's, and the world it finds itself in."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Mapping, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import trio

from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.testing.disk import VFS_NAME, SimulatedDisk
from naviscope_spi import End

if TYPE_CHECKING:
    from naviscope_ingest.intake import IntakeHandle

__all__ = ["Name", "Program", "World", "WorldClock"]

Name = tuple[str, str]
"""The name of an epoch and the id of a message."""

START = 1_700_000_000.0
"""The wall-clock time at which every simulation begins."""


class WorldClock:
    """The clock of a simulated world: virtual time, and wall-clock time that may jump.

    Attributes:
        offset: by how much the wall clock was set since the start, in seconds.
    """

    def __init__(self) -> None:
        self.offset = 0.0

    def wall(self) -> float:
        """Return seconds since the Unix epoch, as this world has them."""
        return START + self.offset + trio.current_time()

    def monotonic(self) -> float:
        """Return seconds of virtual time."""
        return trio.current_time()


class World:
    """What a program may ask about the simulation it is in.

    Attributes:
        seed: the seed of this run.
        life: how many processes there were before this one.
        moment: "running" in a process; "crash" when a check looks at what one has left; "end" when everything is done.
        clock: virtual time; the runtime and its store have it already.
        vfs: the VFS for SQLite files on the simulated disk.
        ends: how messages have ended, by the name of the epoch and the id, as far as the store knows them by now.
        trace: everything that happened, as text.
    """

    vfs = VFS_NAME

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.life = 0
        self.moment: Literal["running", "crash", "end"] = "running"
        self.clock = WorldClock()
        self.ends: Mapping[Name, End] = {}
        self.trace: list[str] = []
        self._disk = SimulatedDisk(seed=seed)
        self._history: Any = None
        self._found: Any = None

    @property
    def committed(self) -> Set[Name]:
        """The messages that the store knows as committed, by the name of the epoch and the id."""
        return {name for name, end in self.ends.items() if end == "committed"}

    @property
    def is_over(self) -> bool:
        """Whether everything is done: nothing may be missing now."""
        return self.moment == "end"

    def path(self, name: str) -> str:
        """Return how SQLite calls a file of the simulated disk, with `vfs=world.vfs`.

        The file survives the process as the store does. The path is another one in each process and each check.
        """
        return self._disk.path(name)

    def random(self, name: str) -> random.Random:
        """Return a source of chance of its own, which depends on the seed, the process and a name."""
        return random.Random(f"{self.seed}:{self.life}:{name}")

    def note(self, what: str) -> None:
        """Add a line to the trace, which is shown when something is wrong."""
        # Where a disk is differs from run to run.
        where = what.replace(self._disk.path(""), "")
        self.trace.append(f"{trio.current_time():.6f} [{self.life}] {where}")


class Program:
    """A pipeline as the simulator runs it: derive from this class.

    Each seed makes a program of its own, by calling the class without arguments. The object outlives the processes that
    are killed: what it holds stands for the outside world, such as a service that a sink calls. Everything that a
    process has in memory belongs into what `components` makes, which is called for each process anew.

    Code in `finally` blocks runs when a process is killed, since Python has no other way to leave a function. A real
    process runs none of it: do not let it change the outside world.
    """

    config: RuntimeConfig = RuntimeConfig()
    """How the runtime behaves, but for `poison_threshold`: no simulated crash is counted against a message."""

    store: Literal["sqlite", "memory"] = "sqlite"
    """Where messages are kept.

    "memory" is a `MemoryStore` that lives on when its runtime ends, as it does in a program that starts another runtime
    on it. Nothing is lost with such a runtime, so it is not killed but cancelled, at any step. Faults of the disk do
    not happen; and of an epoch that has completed, what can be looked at is its report.
    """

    store_options: Mapping[str, Any] = MappingProxyType({})
    """Options of `SqliteStore.open`, such as `codec` and `retain`."""

    def components(self, world: World) -> RuntimeComponents[Any, Any]:
        """Make executor and sink of a process that starts. Store and clock are the simulator's."""
        raise NotImplementedError(f"{type(self).__name__}.components(world): return RuntimeComponents(...)")

    async def workload(self, intake: IntakeHandle[Any]) -> None:
        """Do what the program does while it runs: open epochs, submit, seal, wait.

        It is called in each process from its beginning, as a program is that is started again. When it returns, epochs
        that are sealed are waited for, and the process ends.
        """
        raise NotImplementedError(f"{type(self).__name__}.workload(intake): submit something")

    def check(self, world: World) -> Awaitable[None] | None:
        """Raise `AssertionError` if the outside world is not as it should be.

        It is called after each crash and at the end, and may be async. What `world.committed` names must have had its
        effect; what it does not name may have had it. At the end (`world.is_over`) the two agree.
        """
        return None
