"""The simulator bites: each bug that is put into the runtime is found within a hundred seeds, and says which."""

import pytest

from naviscope_ingest.testing import SimulationFailed, simulate
from tests.simulation.kernel_program import KernelProgram
from tests.simulation.planted import BUGS, PAIRS, planted

SEEDS = 100
MASKED = 25


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    with planted(*BUGS[bug]), pytest.raises(SimulationFailed) as caught:
        simulate(KernelProgram, seeds=SEEDS)
    assert f"simulate(KernelProgram, seeds=[{caught.value.seed}])" in str(caught.value)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_bug_that_another_defence_masks_is_found_when_that_one_breaks_too(pair):
    masked, defence = PAIRS[pair]
    with planted(masked):
        simulate(KernelProgram, seeds=MASKED)
    with planted(masked, defence), pytest.raises(SimulationFailed):
        simulate(KernelProgram, seeds=SEEDS)


def test_without_a_planted_bug_nothing_is_found():
    with planted():
        simulate(KernelProgram, seeds=MASKED)
