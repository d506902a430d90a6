"""Comparing how long two things take, in one process and in a way that a busy machine does not upset."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

__all__ = ["ratio"]


def ratio(long: Callable[[], object], short: Callable[[], object], *, repeats: int = 2) -> float:
    """Return how many times as long the first takes. Processor time counts, and the best of a few runs."""
    return _best(long, repeats) / _best(short, repeats)


def _best(run: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        try:
            start = time.process_time()
            run()
            found.append(time.process_time() - start)
        finally:
            gc.enable()
    return min(found)
