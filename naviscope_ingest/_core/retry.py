"""When to try again after a transient failure."""

from __future__ import annotations

from attrs import frozen

__all__ = ["RetryPolicy"]

_SHORTEST = 0.01
"""The shortest delay that the other side may ask for, in seconds."""


@frozen
class RetryPolicy:
    """How often and how late a failed attempt is followed by another.

    Attributes:
        max_attempts: attempts in one run, the first included.
        initial_delay: seconds before the second attempt.
        multiplier: how much longer each further delay is.
        max_delay: the longest delay.
        jitter: the part of a delay that chance may add.
        max_elapsed: seconds after the first attempt; then no other is made.
    """

    max_attempts: int = 3
    initial_delay: float = 0.1
    multiplier: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.1
    max_elapsed: float = 86_400.0

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
        if elapsed >= self.max_elapsed:
            return None
        if retry_after is not None:
            # Never at once: whoever says so all the time would keep the runtime busy with nothing else.
            return max(_SHORTEST, retry_after)
        if attempts >= self.max_attempts:
            return None
        # A large exponent overflows a float; the cap is reached long before.
        exponent = min(max(0, attempts - 1), 64)
        return min(self.max_delay, self.initial_delay * self.multiplier**exponent) * (1 + self.jitter * chance)
