"""Every test here runs in virtual time: nothing sleeps, and what waits for ever fails."""

import inspect
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock


def run_virtually(*args, clock=None, **options):
    """Run in trio with a clock that jumps to the next deadline whenever every task waits."""
    return trio.run(*args, clock=clock or MockClock(autojump_threshold=0), **options)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_virtually))
