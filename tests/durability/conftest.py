"""What the tests on the simulated disk have in common."""

import sys

import pytest


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """A connection to a dead disk cannot close in order, and says so where nobody can catch it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: None)
