"""The whole runtime on the simulated disk: random programs, with everything going wrong, and no promise broken.

`make test` plays some hundreds of seeds, `make soak` as many as there is time for.
"""

import subprocess
import sys
import time
from collections import Counter

import pytest

from naviscope_ingest.testing import FAULTS, simulate
from tests.simulation.kernel_program import KernelProgram

SEEDS = 300
CRASHES = 1_000
CHUNK = 25
SECONDS = 60
# What the loop below takes on the machine for which the figures above were chosen.
USUAL = 0.12

FOUND = {
    50: "a message that had passed a dependency was not told so again after a crash",
    128: "a pause while the runtime started",
    219: "what was passed because nothing could bring it is known to a process only",
    399: "a barrier that was opened because nothing else was left is shut again after a crash",
    86538899847: "a message that was let past another came into one batch with it, which the simulator took for wrong",
    86538915082: "a message in retry lost its lane in a recovery that told of another one that had held it before",
    201811: "sealing while the runtime stopped raised an AssertionError",
    1186: "an end that nobody was told of was lost with a log that could not be synced",
}
"""Seeds that have once shown something about the runtime or the simulator."""


def pace():
    """Return how slow this machine is now, by the time it works for us; 1 is usual, 2 is half as fast."""
    began = time.process_time()
    table = {}
    for number in range(1_000_000):
        table[number & 1023] = number
    return max(1.0, (time.process_time() - began) / USUAL)


def test_no_promise_is_broken():
    floor = 1 / pace()
    end = time.process_time() + SECONDS
    seeds, crashes, faults = 0, 0, Counter()
    while (seeds < SEEDS or crashes < CRASHES) and time.process_time() < end:
        report = simulate(KernelProgram, seeds=range(seeds, seeds + CHUNK))
        seeds += report.seeds
        crashes += report.crashes
        faults.update(report.faults)
    assert seeds >= SEEDS * floor
    assert crashes >= CRASHES * floor
    assert {*faults} == {*FAULTS}


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_has_found_something_passes(seed):
    simulate(KernelProgram, seeds=[seed])


def test_a_seed_is_one_run_and_seeds_differ():
    assert len({simulate(KernelProgram, seeds=[3]).digests[3] for _ in range(50)}) == 1
    assert len({*simulate(KernelProgram, seeds=50).digests.values()}) == 50


def test_a_seed_is_the_same_run_in_a_process_of_its_own():
    here = simulate(KernelProgram, seeds=[3, 7]).digests
    code = (
        "from naviscope_ingest.testing import simulate; from tests.simulation.kernel_program import KernelProgram; "
        "print(simulate(KernelProgram, seeds=[3, 7]).digests)"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(here)
