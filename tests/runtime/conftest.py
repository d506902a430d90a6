"""Every test here runs in virtual time: nothing sleeps, and what waits for ever fails."""

import pytest


@pytest.fixture(autouse=True)
def _virtual_time(autojump_clock):
    """Let trio jump to the next deadline whenever every task waits."""
