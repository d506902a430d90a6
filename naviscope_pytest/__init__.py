"""The plugin for pytest of naviscope-ingest: a runtime in virtual time, and the simulator, as fixtures.

pytest loads it wherever the package is installed. So it is a package of its own that imports nothing but pytest; the
runtime, and trio, are imported when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from naviscope_ingest.testing import CrashReport, Program, SimulationReport, VirtualRuntime

__all__ = ["Simulation", "VirtualRuntimes", "run_virtually"]

_SEEDS = 100
_NEEDED = "virtual_runtime"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("naviscope")
    group.addoption(
        "--simulation-seeds", type=int, default=_SEEDS, metavar="N", help="how many seeds `simulation` plays"
    )
    group.addoption(
        "--simulation-seed", type=int, action="append", metavar="SEED", help="play this seed alone; may be repeated"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let async tests that use a virtual runtime run in virtual time."""
    if not config.pluginmanager.hasplugin("trio"):
        return
    for item in items:
        if _NEEDED in getattr(item, "fixturenames", ()) and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_virtually), append=False)


def run_virtually(*arguments: Any, clock: Any = None, **options: Any) -> Any:  # noqa: ANN401 - those of trio.run
    """Run in trio, with a clock that jumps to the next deadline whenever every task waits."""
    import trio
    from trio.testing import MockClock

    return trio.run(*arguments, clock=clock or MockClock(autojump_threshold=0), **options)


class VirtualRuntimes:
    """Opens runtimes in memory and in virtual time: `async with virtual_runtime(executor) as world:`.

    Attributes:
        opened: those that are open now.
    """

    def __init__(self) -> None:
        self.opened: list[VirtualRuntime] = []

    def __call__(self, work: Any, **options: Any) -> AbstractAsyncContextManager[VirtualRuntime]:  # noqa: ANN401
        """Open one; the arguments are those of `naviscope_ingest.testing.open_virtual_runtime`."""
        return self._open(work, options)

    @asynccontextmanager
    async def _open(self, work: Any, options: dict[str, Any]) -> AsyncIterator[VirtualRuntime]:  # noqa: ANN401
        from naviscope_ingest.testing import open_virtual_runtime

        async with open_virtual_runtime(work, **options) as world:
            self.opened.append(world)
            try:
                yield world
            finally:
                self.opened.remove(world)

    async def run_until_idle(self) -> None:
        """Wait until no runtime has anything to do. Messages may still wait for something."""
        for world in self.opened:
            await world.run_until_idle()

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that happens in it."""
        import trio

        await trio.sleep(seconds)
        for world in self.opened:
            await world.look()


class Simulation:
    """Plays programs from seeds: `simulation(Program)`; see `naviscope_ingest.testing.simulate`.

    Attributes:
        seeds: how many seeds, or which, unless a call says so.
    """

    def __init__(self, seeds: int | Sequence[int]) -> None:
        self.seeds = seeds

    def __call__(
        self,
        program: Callable[[], Program],
        *,
        seeds: int | Iterable[int] | None = None,
        faults: Iterable[Any] | None = None,
    ) -> SimulationReport:
        """Run a program once for each seed, in virtual time, with faults; then without, until everything is done."""
        from naviscope_ingest.testing import simulate

        return simulate(program, seeds=self.seeds if seeds is None else seeds, faults=faults)

    def crash_everywhere(
        self, program: Callable[[], Program], *, seed: int = 0, at: Iterable[str] | None = None
    ) -> CrashReport:
        """Kill a program at every write to the disk and at every step of its executor and sink."""
        from naviscope_ingest.testing import crash_everywhere

        return crash_everywhere(program, seed=seed, at=at)


@pytest.fixture
def virtual_runtime(request: pytest.FixtureRequest) -> VirtualRuntimes:
    """Runtimes in memory and in virtual time: call it with an executor, a function or an app, in `async with`."""
    if not request.config.pluginmanager.hasplugin("trio"):
        raise pytest.UsageError("the fixture virtual_runtime needs pytest-trio, which runs async tests: install it")
    if not iscoroutinefunction(getattr(request.node, "obj", None)) and request.node.get_closest_marker("trio") is None:
        raise pytest.UsageError(f"{request.node.name} uses virtual_runtime: write it as an async function")
    return VirtualRuntimes()


@pytest.fixture
def run_until_idle(virtual_runtime: VirtualRuntimes) -> Callable[[], Awaitable[None]]:
    """Wait until no runtime has anything to do."""
    return virtual_runtime.run_until_idle


@pytest.fixture
def advance(virtual_runtime: VirtualRuntimes) -> Callable[[float], Awaitable[None]]:
    """Let virtual time pass, so many seconds."""
    return virtual_runtime.advance


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Simulation:
    """Play programs from seeds, or kill them everywhere."""
    options = request.config.option
    return Simulation(options.simulation_seed or options.simulation_seeds)
