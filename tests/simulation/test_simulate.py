"""`simulate` and `crash_everywhere` repeat themselves, find what is wrong, and say so in words."""

import subprocess
import sys

import pytest

from naviscope_ingest.testing import SimulationFailed, crash_everywhere, simulate
from tests.simulation.pipelines import Pipeline, Repeating


def test_a_seed_is_one_run():
    reports = [simulate(Pipeline, seeds=[3, 4]) for _ in range(3)]
    assert reports[0] == reports[1] == reports[2]
    assert len({*reports[0].digests.values()}) == 2


def test_a_seed_is_the_same_run_in_a_process_of_its_own():
    here = simulate(Pipeline, seeds=[3]).digests[3]
    code = (
        "from naviscope_ingest.testing import simulate; from tests.simulation.pipelines import Pipeline; "
        "print(simulate(Pipeline, seeds=[3]).digests[3])"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here


def test_a_sink_that_is_safe_to_repeat_passes():
    report = simulate(Pipeline, seeds=40)
    assert report.seeds == 40
    assert report.crashes > 40
    assert report.power_cuts > 10


def test_without_faults_nothing_happens():
    report = simulate(Pipeline, seeds=5, faults=[])
    assert (report.crashes, report.faults) == (0, {})


def test_an_unknown_fault_is_refused():
    with pytest.raises(ValueError, match="there is no 'meteor'; there are kill, power"):
        simulate(Pipeline, faults=["meteor"])


def test_a_sink_that_is_not_safe_to_repeat_is_found_and_explained():
    with pytest.raises(SimulationFailed) as caught:
        simulate(Repeating, seeds=100)
    text = str(caught.value)
    assert "something was written twice" in text
    assert "were committed by the sink more than once" in text
    assert f"Play it again: simulate(Repeating, seeds=[{caught.value.seed}])" in text
    with pytest.raises(SimulationFailed) as again:
        eval(caught.value.replay)
    assert again.value.trace == caught.value.trace


def test_every_place_is_crashed_at():
    report = crash_everywhere(Pipeline)
    assert report.crashes == 2 * report.writes + report.moments
    assert report.writes > 50


def test_crashing_everywhere_finds_the_place_and_plays_it_again():
    with pytest.raises(SimulationFailed) as caught:
        crash_everywhere(Repeating)
    assert "it was killed at write" in str(caught.value)
    with pytest.raises(SimulationFailed, match="something was written twice"):
        eval(caught.value.replay)


async def test_async_code_is_told_to_call_it_from_outside():
    with pytest.raises(RuntimeError, match="call it from a plain function"):
        simulate(Pipeline)


class Broken(Pipeline):
    async def workload(self, intake):
        raise LookupError("no such file")


def test_a_program_that_fails_by_itself_is_a_finding():
    with pytest.raises(SimulationFailed, match="it failed although nothing was wrong: LookupError: no such file"):
        simulate(Broken, seeds=1, faults=[])


class Endless(Pipeline):
    async def workload(self, intake):
        await intake.new_epoch("job")
        import trio

        await trio.sleep_forever()


def test_a_program_that_does_not_end_is_a_finding():
    with pytest.raises(SimulationFailed, match="after 7 days it is not done"):
        simulate(Endless, seeds=1, faults=[])
