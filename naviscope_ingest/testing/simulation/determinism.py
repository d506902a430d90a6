"""One seed, one run: what makes trio, threads and chance repeat themselves.

Trio wakes the tasks of one moment in an order that it draws, and the batch it draws from is in the order of addresses.
So two runs differ even with the same random numbers. Trio has a switch for this, made for its own plugin of hypothesis
(`trio._core._run._hypothesis_plugin_setup`): with it the batch is in the order in which tasks were made. The switch and
the generator behind it are private names of trio. They are touched here, for the time of a run, and nowhere else; a
test notices when trio renames them.

A thread is the other trap. Under a clock that jumps when nothing happens, work in a thread looks like nothing: the
clock runs ahead while it works. So `trio.to_thread.run_sync` calls the function at once, after a little virtual time.

Rejected: `import hypothesis`, which throws the same switch for the whole process and for good, and would be needed by
everybody who tests a pipeline.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import trio

from naviscope_ingest.testing.disk import ProcessDied

__all__ = ["listening", "repeatable"]


@contextmanager
def repeatable(seed: str) -> Iterator[None]:
    """Let a run of trio, threads and the `random` module depend on a seed alone, for as long as the block lasts."""
    scheduler: Any = trio._core._run
    latency = random.Random(f"{seed}:threads")

    async def call(function: Callable[..., Any], *args: Any, **_: Any) -> Any:  # noqa: ANN401 - as trio's own
        await trio.sleep(latency.choice((0.0, 0.0, 0.0005, 0.003)))
        answer = function(*args)
        # Like a thread: what it did is done, and a cancellation is noticed later.
        await trio.lowlevel.cancel_shielded_checkpoint()
        return answer

    kept = scheduler._r.getstate(), random.getstate()
    report = sys.unraisablehook

    def unraisable(raised: Any) -> None:  # noqa: ANN401 - sys.UnraisableHookArgs
        # A connection to a dead disk cannot close in order, and says so where nobody can catch it.
        if not isinstance(raised.exc_value, ProcessDied):
            report(raised)

    with (
        patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True),
        patch.object(trio.to_thread, "run_sync", call),
        patch.object(sys, "unraisablehook", unraisable),
    ):
        scheduler._r.seed(f"{seed}:scheduler")
        random.seed(f"{seed}:random")
        try:
            yield
        finally:
            scheduler._r.setstate(kept[0])
            random.setstate(kept[1])


class _Listener(logging.Handler):
    """Hands log records on as text."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"logs {record.levelname}: {record.getMessage()}")


@contextmanager
def listening(tell: Callable[[str], None]) -> Iterator[None]:
    """Take what the library logs, which nobody wants to see a thousand times, for as long as the block lasts."""
    log = logging.getLogger("naviscope_ingest")
    listener = _Listener(tell)
    log.addHandler(listener)
    with patch.object(log, "propagate", new=False):
        try:
            yield
        finally:
            log.removeHandler(listener)
