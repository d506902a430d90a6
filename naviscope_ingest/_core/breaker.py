"""Circuit breakers: when something many messages need is down, stop asking for a while.

Closed, a breaker counts failures: so many within a time open it, if they are a good part of the last calls. Without the
second condition a busy service that fails one call in a thousand would be cut off; with a share of *all* calls of that
time, a busy one that has just gone down would be asked thousands of times more. Successes are counted only while there
are failures to compare them with, so a breaker costs nothing while all is well.

Open, it lets nobody through until a time; then it is half open, and one call at a time shows how things are. So many
successes close it; a failure opens it again. What comes back while it is open was under way before, and says nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Literal, TypeAlias, cast, get_args

from attrs import Attribute, field, frozen

from naviscope_ingest._core.units import Seconds
from naviscope_spi import ErrorKind
from naviscope_spi.names import shown

__all__ = ["Breaker", "BreakerPolicy", "BreakerState"]

BreakerState: TypeAlias = Literal["closed", "open", "half-open"]

_LAST = 20
"""How many calls are looked back at."""


def _count(instance: object, attribute: Attribute[int], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"BreakerPolicy({attribute.name}={shown(value)}): give a whole number of at least 1")


def _above_zero(instance: object, attribute: Attribute[float], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isinf(value):
        raise ValueError(f"BreakerPolicy({attribute.name}={shown(value)}): give a number above 0")


def _kinds_of_errors(value: Any) -> frozenset[ErrorKind]:  # noqa: ANN401 - it is checked here
    known = get_args(ErrorKind)
    is_several = isinstance(value, Collection) and not isinstance(value, str | bytes)
    if not is_several or not all(isinstance(each, str) and each in known for each in value):
        raise ValueError(f"BreakerPolicy(counts={shown(value)}): give some of {', '.join(map(repr, known))}")
    return frozenset(cast("Collection[ErrorKind]", value))


def _callable(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not callable(value):
        raise ValueError(f"BreakerPolicy({attribute.name}={shown(value)}): give an async function, or None")


@frozen(kw_only=True)
class BreakerPolicy:
    """When a circuit breaker opens and closes.

    Attributes:
        failures: how many failures open it. It looks back at 20 calls, or at twice this number if that is more.
        window: within how many seconds.
        share: which part of the calls it looks back at they must be.
        open_for: for how many seconds it lets nobody through.
        successes: how many successes close it again, one call at a time.
        counts: the kinds of errors that say that something is down. Others say that it is there.
        probe: asks, in place of a message, whether it is back; called when `open_for` is over, and raises if it is not.
            It then stays open for as long again.
    """

    failures: int = field(default=5, validator=_count)
    window: Seconds = field(default=10.0, validator=_above_zero)
    share: float = field(default=0.5, validator=_above_zero)
    open_for: Seconds = field(default=30.0, validator=_above_zero)
    successes: int = field(default=3, validator=_count)
    counts: frozenset[ErrorKind] = field(
        default=frozenset[ErrorKind]({"connection", "timeout", "server", "quota"}), converter=_kinds_of_errors
    )
    probe: Callable[[], Awaitable[object]] | None = field(default=None, validator=_callable)

    def __attrs_post_init__(self) -> None:
        """Refuse what no number of failures could reach."""
        if self.share > 1:
            raise ValueError(f"BreakerPolicy(share={shown(self.share)}): it is a part of the calls, at most 1")


class Breaker:
    """One circuit breaker.

    Args:
        policy: when it opens and closes.

    Attributes:
        state: closed, open or half open.
        until: when an open one is half open.
        is_alert: whether it wants to hear of successes.
    """

    __slots__ = ("_calls", "_policy", "_successes", "is_alert", "state", "until")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.state: BreakerState = "closed"
        self.until = 0.0
        self.is_alert = False
        self._policy = policy
        # When each was, whether it failed, and whose it was.
        self._calls: deque[tuple[float, bool, object]] = deque(maxlen=max(_LAST, 2 * policy.failures))
        self._successes = 0

    def failed(self, now: float, who: object = None) -> bool:
        """Learn that a call failed; return whether that opened it.

        Args:
            now: when.
            who: whose call it was. Failures of one alone do not open it: they say more about that one.
        """
        if self.state == "half-open":
            self.trip(now)
            return True
        if self.state == "open":
            return False
        self._calls.append((now, True, who))
        self.is_alert = True
        self._look_back(now)
        callers = [caller for _, failed, caller in self._calls if failed]
        if len(callers) < self._policy.failures or len(callers) < self._policy.share * len(self._calls):
            return False
        if who is not None and all(caller == who for caller in callers):
            return False
        self.trip(now)
        return True

    def succeeded(self, count: int, now: float) -> bool:
        """Learn that calls worked; return whether that closed it."""
        if self.state == "half-open":
            self._successes += count
            if self._successes < self._policy.successes:
                return False
            self.state = "closed"
            self.is_alert = False
            return True
        if self.state == "closed":
            self._calls.extend([(now, False, None)] * min(count, _LAST + 2 * self._policy.failures))
            self._look_back(now)
            self.is_alert = any(failed for _, failed, _ in self._calls)
        return False

    def trip(self, now: float) -> None:
        """Open it."""
        self.open_until(now + self._policy.open_for)

    def open_until(self, until: float) -> None:
        """Let nobody through until a time."""
        self.state, self.until = "open", until
        self.is_alert = True
        self._calls.clear()

    def half_open(self) -> None:
        """Let one through at a time."""
        self.state = "half-open"
        self._successes = 0

    def _look_back(self, now: float) -> None:
        since = now - self._policy.window
        while self._calls and self._calls[0][0] < since:
            self._calls.popleft()
