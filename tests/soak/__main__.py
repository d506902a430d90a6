"""Plays random programs for some minutes, and says which seeds broke a promise.

    python -m tests.soak --minutes 10
    python -m tests.soak --replay core:1234567
    python -m tests.soak --minutes 60 --evidence evidence/reliability.json

Every run takes other seeds, unless --seed says where to start. The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from tests.soak.drivers import DRIVERS, Tally, play_chunk
from tests.soak.evidence import source_now, write_evidence

CHUNK = 100
# Programs of the simulated disk are sweeps.
CHUNKS = {"disk": 2}

Tallies = dict[str, Tally]


def chunks(seed: int, drivers: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield, for ever, who plays next, from which seed on, and how many."""
    for turn in itertools.count():
        for driver in drivers:
            count = CHUNKS.get(driver, CHUNK)
            yield driver, seed + turn * count, count


def soak(seconds: float, processes: int, seed: int, drivers: Sequence[str]) -> Tallies:
    """Play until the time is over."""
    tallies = {driver: Tally(driver) for driver in drivers}
    end = time.monotonic() + seconds
    todo = chunks(seed, drivers)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        playing: set[Future[Tally]] = set()
        while playing or time.monotonic() < end:
            while time.monotonic() < end and len(playing) < processes + 1:
                playing.add(pool.submit(play_chunk, *next(todo)))
            done, playing = wait(playing, return_when=FIRST_COMPLETED)
            for each in done:
                tally = each.result()
                tallies[tally.driver] += tally
            show_progress(tallies, end - time.monotonic())
    return tallies


def show_progress(tallies: Tallies, left: float) -> None:
    """Rewrite one line of the terminal; say nothing in a pipe."""
    if sys.stdout.isatty():
        counts = ", ".join(f"{each.driver} {each.programs:,}" for each in tallies.values())
        violations = sum(each.violations for each in tallies.values())
        print(f"\r{max(0.0, left):6.0f} s left: {counts} programs, {violations} violations ", end="", flush=True)


def show_result(tallies: Tallies, seed: int) -> None:
    """Print what was played, and how to play again what went wrong."""
    if sys.stdout.isatty():
        print()
    print(f"soak: seeds from {seed}")
    for each in tallies.values():
        counts = f"{each.programs:>10,} programs {each.events:>12,} events {each.violations:>5} violations"
        print(f"  {each.driver:<8} {counts}")
    for each in tallies.values():
        for found, error in each.found:
            print(f"  python -m tests.soak --replay {each.driver}:{found}  # {error}")


def replay(which: str) -> int:
    """Play one program again and let its error out; return the exit code."""
    driver, _, seed = which.partition(":")
    if driver not in DRIVERS or not seed.isdecimal():
        sys.exit(f"--replay {which}: write driver:seed, with one of {', '.join(DRIVERS)}")
    played = DRIVERS[driver](int(seed))
    print(f"{which}: {played.events} events, no violation")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at once (default: cores)")
    parser.add_argument("--seed", type=int, help="the first seed (default: another one each time)")
    parser.add_argument("--only", action="append", choices=DRIVERS, help="who plays (default: all; may be repeated)")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="write what was found to a JSON file")
    parser.add_argument("--replay", metavar="DRIVER:SEED", help="play one program again")
    arguments = parser.parse_args()
    if arguments.replay:
        return replay(arguments.replay)
    seed = secrets.randbelow(10**9) * 1_000 if arguments.seed is None else arguments.seed
    began = source_now()
    tallies = soak(arguments.minutes * 60, max(1, arguments.processes), seed, arguments.only or list(DRIVERS))
    show_result(tallies, seed)
    if arguments.evidence is not None:
        write_evidence(arguments.evidence, tallies, seed, began)
    return 1 if any(each.violations for each in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
