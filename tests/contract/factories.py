"""How the checks open what they check."""

from contextlib import asynccontextmanager


def opens(make):
    """Return a factory for the checks: every name opens a new thing."""

    @asynccontextmanager
    async def open_new(name):
        yield make()

    return open_new


def reopens(make):
    """Return a factory for the checks: the same name opens the same thing again."""
    things = {}

    @asynccontextmanager
    async def open_again(name):
        yield things.setdefault(name, make())

    return open_again
