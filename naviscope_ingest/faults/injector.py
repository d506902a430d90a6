"""Draws faults and lets them happen.

A draw is a hash of the seed, the start, the fault, and what is struck: no state but counters, so the same seed strikes
the same. For messages the key is their name and attempt, whatever order they run in; a message that was struck without
spending its attempt gets another key, so that it is not struck for ever.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from hashlib import blake2b
from typing import Final, TypeVar

import trio
from attrs import frozen

from naviscope_ingest.faults.injected import error_of
from naviscope_ingest.faults.spec import CRASH_CODE, Fault, Faults

__all__ = ["INJECTING", "Blow", "Injector"]

T = TypeVar("T")

INJECTING: ContextVar[Injector | None] = ContextVar("INJECTING", default=None)
"""Set in tasks that run executors of a runtime with faults, for what is called in there."""

_REMEMBERED: Final = 10_000

_log = logging.getLogger("naviscope_ingest")


@frozen
class Blow:
    """A fault that strikes one call.

    Attributes:
        fault: which fault.
        is_late: whether the call has its effect before.
    """

    fault: Fault
    is_late: bool

    async def strike(self, call: Callable[[], Awaitable[T]], *, shield: bool = False) -> T:
        """Make a call that goes wrong.

        Args:
            call: the call.
            shield: whether being slow cannot be cancelled.
        """
        if self.fault.what == "slow":
            with trio.CancelScope(shield=shield):
                await trio.sleep(self.fault.pause)
            return await call()
        if self.is_late:
            await call()
        raise self.error()

    def strike_in_thread(self, call: Callable[[], T]) -> T:
        """Make a call that goes wrong, in a thread where waiting holds up nothing but it."""
        if self.fault.what == "slow":
            time.sleep(self.fault.pause)
            return call()
        if self.is_late:
            call()
        raise self.error()

    def error(self) -> Exception:
        """Return the error of the fault; a crash ends the process instead."""
        if self.fault.what == "crash":
            facts = {"fault": str(self.fault)}
            _warn(logging.CRITICAL, "the process crashes on purpose, by the fault %s", self.fault, facts=facts)
            for handler in logging.getLogger().handlers:
                handler.flush()
            os._exit(CRASH_CODE)
        return error_of(self.fault)


def _warn(level: int, text: str, *arguments: object, facts: Mapping[str, object]) -> None:
    """Log loudly: on stderr, if the program has set no logging up."""
    _log.log(level, text, *arguments, extra=dict(facts))
    logger: logging.Logger | None = _log
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            return
        logger = logger.parent if logger.propagate else None
    print(text % arguments, file=sys.stderr, flush=True)  # noqa: T201 - nobody else would say it


class Injector:
    """The faults of one runtime.

    Args:
        faults: what goes wrong.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._at = {point: faults.at(point) for point in ("executor", "lookup", "sink", "commit", "store")}
        self._start = 0
        self._calls: Counter[str] = Counter()
        # How often each attempt of a message was struck, for the last that were.
        self._struck: dict[str, int] = {}
        self._count = [0] * len(faults.faults)

    @property
    def injected(self) -> Mapping[str, int]:
        """How often each fault has struck."""
        return {str(fault): count for fault, count in zip(self.faults, self._count, strict=True)}

    def begin(self, start: int) -> None:
        """Learn which start on this store this is."""
        self._start = start
        names = ", ".join(map(str, self.faults))
        _warn(
            logging.WARNING,
            "FAULTS ARE ON: this runtime breaks on purpose, by seed %d: %s",
            self.faults.seed,
            names,
            facts={"faults": names, "seed": self.faults.seed},
        )

    def end(self) -> None:
        """Say what was done."""
        counts = "; ".join(f"{name} {count} times" for name, count in self.injected.items())
        facts = {"faults": dict(self.injected)}
        _warn(logging.WARNING, "faults that were injected on purpose: %s", counts, facts=facts)

    def on_call(self, point: str) -> Blow | None:
        """Draw for a call at a point where calls have no names."""
        at = self._at[point]
        if not at:
            return None
        self._calls[point] += 1
        return self._draw(at, str(self._calls[point]))

    def on_message(self, kind: str, name: str) -> Blow | None:
        """Draw for a message that an executor is to run.

        Args:
            kind: its kind.
            name: tells it and its attempt from others.
        """
        at = [each for each in self._at["executor"] if each[1].kind is None or each[1].kind == kind]
        if not at:
            return None
        before = self._struck.pop(name, 0)
        blow = self._draw(at, f"{name}:{before}")
        if blow is not None or before:
            self._struck[name] = before + (blow is not None)
            if len(self._struck) > _REMEMBERED:
                del self._struck[next(iter(self._struck))]
        return blow

    def choose(self, among: int) -> int:
        """Choose one of several things that a batch holds."""
        return int(self._chance("choose", str(self._calls["sink"])) * among)

    def _draw(self, at: list[tuple[int, Fault]], key: str) -> Blow | None:
        for index, fault in at:
            if self._chance(str(index), key) < fault.probability:
                self._count[index] += 1
                _log.info("fault %s strikes", fault, extra={"fault": str(fault)})
                is_late = fault.what == "timeout"
                if fault.what in ("stop", "crash"):
                    is_late = self._chance(f"late {index}", key) < 0.5
                return Blow(fault, is_late)
        return None

    def _chance(self, what: str, key: str) -> float:
        text = f"{self.faults.seed}:{self._start}:{what}:{key}".encode(errors="surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=8).digest()) / 2**64
