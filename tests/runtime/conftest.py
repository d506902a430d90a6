"""Every test here runs in virtual time: nothing sleeps, and what waits for ever fails."""

import inspect
from pathlib import Path

import pytest

from naviscope_pytest import run_virtually


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_virtually))
