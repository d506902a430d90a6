"""Look-ups: asking something else for what a message lacks, without letting it take the work down.

An executor that enriches messages calls another service for every one of them. A `Lookup` around that call remembers
answers for a while, lets those who ask for the same thing at once share one call, limits how long it takes, stops
asking while the service is down, and says what is used instead: an old answer, a default, or nothing.

Time is trio's, so that tests need not wait.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar

import trio

from naviscope_ingest._core.breaker import Breaker, BreakerPolicy
from naviscope_ingest.failures import Classifier
from naviscope_ingest.faults.injector import INJECTING
from naviscope_spi import Transient

__all__ = ["Lookup"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_NOTHING: Final[Any] = object()


class _Call(Generic[V]):
    """A call that is under way, for those who wait for it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: V = _NOTHING
        self.error: Exception | None = None


class Lookup(Generic[K, V]):
    """Asks for values by key.

    Args:
        call: asks; raises if it cannot tell.
        timeout: how long one call may take, in seconds.
        ttl: how long an answer is remembered, in seconds; 0 for not at all.
        max_entries: how many answers are remembered; those go first that were not asked for longest.
        stale_for: how much longer an old answer is used, if there is no new one, in seconds.
        otherwise: what comes of it when there is neither: "raise" the error, answer the "default", or "skip", which
            answers None.
        default: that answer.
        breaker: when it stops asking; then it fails at once, without a call. None for never.
        classifier: tells errors of the service (which count for the breaker) from errors of the question.

    Attributes:
        calls: how many calls were made.
        hits: how many answers were remembered ones.
        stale: how many were old ones.
    """

    def __init__(
        self,
        call: Callable[[K], Awaitable[V]],
        *,
        timeout: float = 5.0,
        ttl: float = 60.0,
        max_entries: int = 10_000,
        stale_for: float = 0.0,
        otherwise: Literal["raise", "default", "skip"] = "raise",
        default: V = _NOTHING,
        breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008 - it is frozen
        classifier: Classifier | None = None,
    ) -> None:
        for name, value in (("timeout", timeout), ("ttl", ttl), ("stale_for", stale_for)):
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < 0:
                raise ValueError(f"Lookup({name}={value!r:.80}): give seconds, zero or more")
        if isinstance(max_entries, bool) or not isinstance(max_entries, int) or max_entries < 1:
            raise ValueError(f"Lookup(max_entries={max_entries!r:.80}): give a whole number of at least 1")
        if otherwise not in ("raise", "default", "skip"):
            raise ValueError(f"Lookup(otherwise={otherwise!r:.80}): it is one of 'raise', 'default', 'skip'")
        if (otherwise == "default") != (default is not _NOTHING):
            raise ValueError('Lookup: otherwise="default" and default= belong together')
        self.calls = 0
        self.hits = 0
        self.stale = 0
        self._call = call
        self._timeout = timeout
        self._ttl = ttl
        self._max_entries = max_entries
        self._stale_for = stale_for
        self._otherwise = otherwise
        self._default = default
        self._policy = breaker
        self._breaker = None if breaker is None else Breaker(breaker)
        self._classifier = classifier or Classifier()
        self._is_probing = False
        # The answer and when it was given, the one that was asked for last at the end.
        self._answers: OrderedDict[K, tuple[V, float]] = OrderedDict()
        self._under_way: dict[K, _Call[V]] = {}

    async def get(self, key: K) -> V | None:
        """Return the value of a key. It is a checkpoint, also for one that is remembered.

        Raises:
            Transient: there is no answer: it took too long, or the breaker is open. Its kind is that of the failure.
            Exception: whatever the call raised.
        """
        known = self._answers.get(key)
        if known is not None and trio.current_time() - known[1] < self._ttl:
            self._answers.move_to_end(key)
            self.hits += 1
            await trio.lowlevel.checkpoint()
            return known[0]
        try:
            return await self._ask(key)
        except Exception:
            known = self._answers.get(key)
            if known is not None and trio.current_time() - known[1] < self._ttl + self._stale_for:
                self.stale += 1
                return known[0]
            if self._otherwise == "raise":
                raise
            return None if self._otherwise == "skip" else self._default

    async def _ask(self, key: K) -> V:
        """Call, or wait for a call that is under way."""
        while (other := self._under_way.get(key)) is not None:
            await other.done.wait()
            if other.error is not None:
                raise other.error
            if other.answer is not _NOTHING:
                return other.answer
            # Whoever called was cancelled: it is our turn.
        call: _Call[V] = _Call()
        self._under_way[key] = call
        try:
            call.answer = await self._guarded(key)
        except Exception as error:
            call.error = error
            raise
        finally:
            del self._under_way[key]
            call.done.set()
        self._remember(key, call.answer)
        return call.answer

    async def _guarded(self, key: K) -> V:
        breaker, policy = self._breaker, self._policy
        if breaker is None or policy is None:
            return await self._timed(key)
        now = trio.current_time()
        if breaker.state == "open" and now >= breaker.until:
            breaker.half_open()
        if breaker.state == "open" or (breaker.state == "half-open" and self._is_probing):
            await trio.lowlevel.checkpoint()
            raise Transient("the look-up's service is down: its breaker is open", error_kind="connection")
        self._is_probing = breaker.state == "half-open"
        try:
            answer = await self._timed(key)
        except Exception as error:
            now = trio.current_time()
            if self._classifier.classify(error, now).kind in policy.counts:
                breaker.failed(now)
            else:
                breaker.succeeded(1, now)
            raise
        finally:
            self._is_probing = False
        if breaker.is_alert:
            breaker.succeeded(1, trio.current_time())
        return answer

    async def _timed(self, key: K) -> V:
        self.calls += 1
        injector = INJECTING.get()
        blow = None if injector is None else injector.on_call("lookup")
        with trio.move_on_after(self._timeout):
            return await (self._call(key) if blow is None else blow.strike(partial(self._call, key)))
        raise Transient(f"the look-up took longer than {self._timeout} seconds", error_kind="timeout")

    def _remember(self, key: K, answer: V) -> None:
        if self._ttl or self._stale_for:
            self._answers[key] = (answer, trio.current_time())
            self._answers.move_to_end(key)
            if len(self._answers) > self._max_entries:
                self._answers.popitem(last=False)
