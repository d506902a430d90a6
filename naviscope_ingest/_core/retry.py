"""When to try again after a transient failure."""

from __future__ import annotations

import math
from typing import Any

from attrs import Attribute, field, frozen

from naviscope_ingest._core.units import Seconds
from naviscope_spi.names import shown

__all__ = ["RetryPolicy"]

_SHORTEST = 0.01
"""The shortest delay that the other side may ask for, in seconds."""


def _count(instance: object, attribute: Attribute[int], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"RetryPolicy({attribute.name}={shown(value)}): give a whole number of at least 1")


def _at_least(least: int) -> Any:  # noqa: ANN401 - a validator, whatever attrs calls it
    def check(instance: object, attribute: Attribute[float], value: Any) -> None:  # noqa: ANN401 - it is checked here
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < least:
            raise ValueError(f"RetryPolicy({attribute.name}={shown(value)}): give a number of at least {least}")

    return check


@frozen(kw_only=True)
class RetryPolicy:
    """How often and how late a failed attempt is followed by another.

    Attributes:
        max_attempts: attempts in one run, the first included.
        initial_delay: seconds before the second attempt.
        multiplier: how much longer each further delay is.
        max_delay: the longest delay.
        jitter: the part of a delay that chance may add.
        max_elapsed: seconds after the first attempt began; none begins later. It bounds those too that spend nothing.
    """

    max_attempts: int = field(default=3, validator=_count)
    initial_delay: Seconds = field(default=0.1, validator=_at_least(0))
    multiplier: float = field(default=2.0, validator=_at_least(1))
    max_delay: Seconds = field(default=30.0, validator=_at_least(0))
    jitter: float = field(default=0.1, validator=_at_least(0))
    max_elapsed: Seconds = field(default=86_400.0, validator=_at_least(0))

    def __attrs_post_init__(self) -> None:
        """Refuse delays that contradict each other."""
        if self.initial_delay > self.max_delay:
            raise ValueError(
                f"RetryPolicy(initial_delay={self.initial_delay!r}, max_delay={self.max_delay!r}): the first delay is "
                "longer than the longest"
            )

    def delay(
        self, attempts: int, elapsed: float, chance: float = 0.0, retry_after: float | None = None
    ) -> float | None:
        """Return the seconds until the next attempt, or None when there is none.

        Args:
            attempts: attempts spent so far, the one that failed included.
            elapsed: seconds since the first attempt.
            chance: a random number from 0 to 1.
            retry_after: what the other side asked for. It is kept to, and spends no attempt.
        """
        if retry_after is not None:
            # Never at once: whoever says so all the time would keep the runtime busy with nothing else.
            delay = max(_SHORTEST, retry_after)
        elif attempts >= self.max_attempts:
            return None
        else:
            # A large exponent overflows a float; the cap is reached long before.
            exponent = min(max(0, attempts - 1), 64)
            delay = min(self.max_delay, self.initial_delay * self.multiplier**exponent) * (1 + self.jitter * chance)
        return delay if elapsed + delay <= self.max_elapsed else None
