"""What users call: `simulate` and `crash_everywhere`."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Final

import apsw
import trio
from attrs import frozen

from naviscope_ingest.testing.disk import CHANGES, Survival
from naviscope_ingest.testing.simulation.faults import FAULTS, FaultName, Mix, check_faults
from naviscope_ingest.testing.simulation.history import Violation
from naviscope_ingest.testing.simulation.process import Plan
from naviscope_ingest.testing.simulation.program import Program
from naviscope_ingest.testing.simulation.run import Outcome, Script, calm, drawn, play

__all__ = ["CrashReport", "SimulationFailed", "SimulationReport", "crash_everywhere", "simulate"]

_LAST_EVENTS: Final = 20
_BEFORE_DEATH: Final = 6
_CALM: Final = Mix(0, {})


class SimulationFailed(AssertionError):  # noqa: N818 - reads as a sentence where it is raised
    """A program, or the runtime under it, broke a promise.

    Attributes:
        seed: the seed.
        violation: what was raised.
        trace: everything that had happened, as text.
        replay: the line that plays it again.
    """

    def __init__(self, program: str, outcome: Outcome, where: str, replay: str) -> None:
        self.seed = outcome.seed
        self.violation = outcome.violation
        self.trace: Sequence[str] = outcome.trace
        self.replay = replay
        events = list(_last(outcome.trace))
        lines = [
            f"{program} does not keep a promise ({where})",
            "",
            *(f"    {line}" for line in _wrong(outcome.violation)),
            *_hint(outcome),
            "",
            f"What happened last, of {len(outcome.trace)} events (virtual seconds, [process]):",
            *(f"    {event}" for event in events),
            "",
            _versions(),
            f"Play it again: {replay}",
        ]
        super().__init__("\n".join(lines))


def _last(trace: Sequence[str]) -> Iterator[str]:
    """Yield the last events, and the last death before them."""
    first = max(0, len(trace) - _LAST_EVENTS)
    deaths = [place for place, event in enumerate(trace[:first]) if "] die" in event]
    if deaths and not any("] die" in event for event in trace[first:]):
        yield from trace[max(0, deaths[-1] - _BEFORE_DEATH) : deaths[-1] + 1]
        yield "…"
    yield from trace[first:]


def _wrong(error: BaseException | None) -> Iterator[str]:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    text = str(error) or repr(error)
    if not isinstance(error, AssertionError):
        text = f"{type(error).__name__}: {text}"
    yield from text.splitlines()


def _hint(outcome: Outcome) -> Iterator[str]:
    """Say what a newcomer may not know: that a sink gets things again."""
    repeated = outcome.repeated
    if repeated and not isinstance(outcome.violation, Violation):
        some = ", ".join(repr(each) for each in repeated[:3])
        yield ""
        yield f"{len(repeated)} task keys were committed by the sink more than once, such as {some}."
        yield "That is no fault: a process can die after the sink has committed and before the store knows, and then"
        yield "the messages come to the sink again. A sink must be safe to repeat: let it look `entry.task_key` up in"
        yield "what it has written, in the same transaction; pass it on as an idempotency key; or use upserts."


def _versions() -> str:
    found = [f"{name} {metadata.version(name)}" for name in ("naviscope-ingest", "trio")]
    return ", ".join([*found, f"SQLite {apsw.sqlite_lib_version()}", f"Python {platform.python_version()}"])


@frozen
class SimulationReport:
    """What `simulate` did.

    Attributes:
        seeds: how many runs there were.
        crashes: how many processes were killed, or died of an error of the disk.
        power_cuts: how often the power was cut.
        faults: how often each fault happened.
        sometimes: how often interesting things happened.
        steps: how many steps tasks took.
        seconds: how much virtual time passed.
        digests: the hash of what happened, by seed.
    """

    seeds: int
    crashes: int
    power_cuts: int
    faults: Mapping[str, int]
    sometimes: Mapping[str, int]
    steps: int
    seconds: float
    digests: Mapping[int, str]


@frozen
class CrashReport:
    """What `crash_everywhere` did.

    Attributes:
        writes: how many operations of the disk change something, in an undisturbed run.
        moments: how many steps of tasks in executors and sinks it has.
        crashes: how many times a process was killed.
    """

    writes: int
    moments: int
    crashes: int


def simulate(
    program: Callable[[], Program], *, seeds: int | Iterable[int] = 100, faults: Iterable[FaultName] | None = None
) -> SimulationReport:
    """Run a program once for each seed, in virtual time, with faults; then without, until everything is done.

    Not to be called from async code: it runs trio by itself, again and again.

    Args:
        program: makes a program: a class derived from `Program`, or any function without arguments.
        seeds: how many, or which. The same seed is the same run, with the same program and versions.
        faults: the names of those that may happen (see `FAULTS`); None for all, an empty list for none.

    Raises:
        SimulationFailed: a promise of the runtime was broken, or a check of the program raised. It says how to play
            that run again.
    """
    _check_outside()
    allowed = check_faults(faults)
    totals = Outcome(0)
    digests: dict[int, str] = {}
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        outcome = play(program, seed, drawn(seed, allowed))
        if outcome.violation is not None:
            where = f"seed {seed}, process {len(outcome.processes) - 1}"
            given = "" if faults is None else f", faults={[each for each in FAULTS if each in allowed]}"
            replay = f"simulate({_name(program)}, seeds=[{seed}]{given})"
            raise SimulationFailed(_name(program), outcome, where, replay) from outcome.violation
        digests[seed] = outcome.digest
        totals.add(outcome)
    return SimulationReport(
        len(digests),
        totals.crashes,
        totals.power_cuts,
        dict(sorted(totals.faults.items())),
        {name: count for name, count in sorted(totals.sometimes.items()) if count},
        totals.steps,
        totals.seconds,
        digests,
    )


def crash_everywhere(program: Callable[[], Program], *, seed: int = 0, at: Iterable[str] | None = None) -> CrashReport:
    """Kill a program at every write to the disk and at every step of its executor and sink, each in a run of its own.

    After each kill the program is started again and runs to its end. At writes the power is cut too, so that nothing
    survives of what was not synced. Give it a small workload: the time grows with its square.

    Not to be called from async code: it runs trio by itself, again and again.

    Args:
        program: makes a program, as for `simulate`.
        seed: for chance.
        at: the places to kill it at, as a failure names them; None for all.

    Raises:
        SimulationFailed: a promise was broken, or a check of the program raised; also if it does so undisturbed.
    """
    _check_outside()
    probe = play(program, seed, calm())
    if probe.violation is not None:
        replay = f"crash_everywhere({_name(program)}, seed={seed}, at=[])"
        raise SimulationFailed(_name(program), probe, "nothing was done to it", replay) from probe.violation
    writes = [each.number for each in probe.disks[0].log or () if each.kind in CHANGES]
    moments = probe.processes[0].moments
    crashes = 0
    for place, plan in _places(writes, moments, None if at is None else list(at)):
        outcome = play(program, seed, Script([(_CALM, plan)]))
        if outcome.violation is not None:
            replay = f"crash_everywhere({_name(program)}, seed={seed}, at=[{place!r}])"
            where = f"it was killed at {place}: {outcome.processes[0].died}"
            raise SimulationFailed(_name(program), outcome, where, replay) from outcome.violation
        crashes += outcome.crashes
    return CrashReport(len(writes), moments, crashes)


def _places(writes: Sequence[int], moments: int, only: Sequence[str] | None) -> Iterator[tuple[str, Plan]]:
    for turn, number in enumerate(writes):
        for lethal, survival in (("kill", None), ("power", Survival("none"))):
            place = f"{'write' if lethal == 'kill' else 'power cut'} {turn}"
            if only is None or place in only:
                yield place, Plan("power" if survival else "kill", at_operation=number, survival=survival)
    for moment in range(moments):
        place = f"moment {moment}"
        if only is None or place in only:
            yield place, Plan("kill", at_moment=moment)


def _name(program: Callable[[], Program]) -> str:
    return getattr(program, "__qualname__", None) or repr(program)


def _check_outside() -> None:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return
    raise RuntimeError("a simulation runs trio by itself: call it from a plain function, not from async code")
