"""The garbage collector gets room while a runtime runs that asks for it, and is as it was before and after."""

import gc

import pytest

from naviscope_ingest import IngestRuntime, MemorySink, RuntimeComponents, RuntimeConfig


class Nothing:
    async def execute(self, message):
        raise AssertionError("there is nothing to do")


def runtime(**options):
    components = RuntimeComponents(executor=Nothing(), commit_sink=MemorySink())
    return IngestRuntime(components, RuntimeConfig(**options))


@pytest.fixture(autouse=True)
def before():
    thresholds = gc.get_threshold()
    yield thresholds
    gc.set_threshold(*thresholds)


async def test_the_threshold_is_changed_while_the_runtime_runs(before):
    async with runtime(young_objects=12_345).running():
        assert gc.get_threshold() == (12_345, *before[1:])
    assert gc.get_threshold() == before


async def test_nobody_asked_so_nothing_is_changed(before):
    async with runtime().running():
        assert gc.get_threshold() == before


async def test_an_error_puts_it_back_too(before):
    with pytest.raises(OSError, match="gone"):
        async with runtime(young_objects=12_345).running():
            raise OSError("gone")
    assert gc.get_threshold() == before


async def test_who_changed_it_meanwhile_knows_better():
    async with runtime(young_objects=12_345).running():
        gc.set_threshold(54_321)
    assert gc.get_threshold()[0] == 54_321


@pytest.mark.parametrize("young", [0, -1, 1.5, True, "many"])
def test_a_threshold_that_is_none_is_refused(young):
    with pytest.raises(ValueError, match="young_objects"):
        RuntimeConfig(young_objects=young)
