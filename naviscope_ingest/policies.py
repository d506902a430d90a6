"""What holds for messages of one kind, where it differs from the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

from attrs import Attribute, evolve, field, frozen
from attrs.validators import optional

from naviscope_ingest._core.breaker import BreakerPolicy
from naviscope_ingest._core.limits import AdaptiveLimit, Cap, Limit, Rate, check_count
from naviscope_ingest._core.retry import RetryPolicy
from naviscope_ingest._core.units import Seconds
from naviscope_spi.names import shown

__all__ = ["BreakerPolicy", "DeliveryMode", "KindPolicy", "RetryPolicy"]

DeliveryMode: TypeAlias = Literal["exactly_once", "at_least_once", "at_most_once"]
"""How often the effect of a message may come about when a process dies while it runs."""


def instance_of(made: type) -> Callable[[object, Attribute[Any], object], None]:
    """Return a validator that takes what is made of a class, as that of attrs does, but raises `ValueError`."""

    def check(instance: object, attribute: Attribute[Any], value: object) -> None:
        if not isinstance(value, made):
            raise ValueError(f"{type(instance).__name__}({attribute.name}={shown(value)}): give a {made.__name__}")

    return check


def _limit(instance: object, attribute: Attribute[float], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isnan(value):
        raise ValueError(f"KindPolicy({attribute.name}={shown(value)}): give seconds above zero, or None for no limit")


def _mode(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value not in get_args(DeliveryMode):
        known = ", ".join(map(repr, get_args(DeliveryMode)))
        raise ValueError(f"KindPolicy(delivery={shown(value)}): it is one of {known}")


def _count(instance: object, attribute: Attribute[Any], value: object) -> None:
    check_count(f"KindPolicy({attribute.name}", value)


def _rates(instance: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, Sequence) or not all(isinstance(each, Rate) for each in value):
        raise ValueError(f"KindPolicy(rates={shown(value)}): give a list of rates, such as [Rate(50)]")
    if any(each.kind is not None for each in value):
        raise ValueError(f"KindPolicy(rates={shown(value)}): leave kind= out, it is that of the policy")
    if len({each.name for each in value}) < len(value):
        raise ValueError(f"KindPolicy(rates={shown(value)}): give all but one of them a label=")


@frozen(kw_only=True)
class KindPolicy:
    """How messages of one kind are run.

    Attributes:
        retry: how often and how late a failed attempt is followed by another.
        timeout: how long an executor may take for one message, or one batch, in seconds; then it is cancelled, and the
            attempt has failed. None for as long as it likes.
        delivery: how often the effect may come about when a process dies. "exactly_once": once, with a store that is
            durable and a sink that knows its task keys; "at_least_once": the same without recording outcomes before a
            sink elsewhere sees them; "at_most_once": it is noted before the executor runs, and what was begun is never
            begun again.
        breaker: the name of what messages of this kind need, if several kinds need the same: they share a circuit
            breaker. One of its own unless it is given.
        cap: how many messages of the kind may be started and not yet settled; None for any number.
        rates: how many may start in a time.
        weight: the share of the kind when kinds compete.
        adaptive: a cap that finds its own number.
    """

    retry: RetryPolicy = field(factory=RetryPolicy, validator=instance_of(RetryPolicy))
    timeout: Seconds | None = field(default=None, validator=_limit)
    delivery: DeliveryMode = field(default="exactly_once", validator=_mode)
    breaker: str | None = field(default=None, validator=optional(instance_of(str)))
    cap: int | None = field(default=None, validator=optional(_count))
    rates: Sequence[Rate] = field(default=(), validator=_rates)
    weight: int = field(default=1, validator=_count)
    adaptive: AdaptiveLimit | None = field(default=None, validator=optional(instance_of(AdaptiveLimit)))

    def limits(self, kind: str) -> Sequence[Limit]:
        """Return the limits of a kind that has this policy."""
        caps = [] if self.cap is None else [Cap(self.cap, kind=kind)]
        return [*caps, *(evolve(rate, kind=kind) for rate in self.rates)]
