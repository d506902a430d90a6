"""Room for Python's garbage collector, for as long as a runtime runs that asks for it.

A batch of a thousand messages is some thousands of objects that live until it has committed. With the collector's usual
threshold of 700 it comes by a dozen times meanwhile, takes them for old, and so looks through everything more often:
that is a quarter of the time of a large batch on a durable store. Few of these objects are parts of cycles, so it may
well come later.

The threshold belongs to the whole process, so it is left alone unless somebody says so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["roomy_collector"]


@contextmanager
def roomy_collector(young: int | None) -> Iterator[None]:
    """Let so many new objects come together before the collector looks through them; None changes nothing."""
    if young is None:
        yield
        return
    before = gc.get_threshold()
    ours = (young, *before[1:])
    gc.set_threshold(*ours)
    try:
        yield
    finally:
        # Somebody else who changed it since knows better.
        if gc.get_threshold() == ours:
            gc.set_threshold(*before)
