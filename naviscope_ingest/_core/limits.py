"""Limits as a user declares them: how many messages may run at once, and how many may start in a time.

A limit goes by the kind of a message, by what an expression finds in it (a tenant, say), by both, or by neither.
Expressions are names, not functions: they cannot fail, they cost a look-up, and a configuration file can hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import Attribute, field, frozen

from naviscope_ingest._core.outlines import Outline
from naviscope_ingest._core.units import Seconds
from naviscope_spi import Message
from naviscope_spi.names import shown

__all__ = [
    "AdaptiveLimit",
    "Cap",
    "Limit",
    "Rate",
    "check_count",
    "check_expression",
    "check_positive",
    "key_finder",
]

KeyFinder: TypeAlias = Callable[["Message[Any] | Outline"], "str | None"]


def _given(what: str, value: object) -> str:
    return f"{what}={shown(value)}{')' if '(' in what else ''}"


def check_count(what: str, value: object) -> None:
    """Refuse what is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{_given(what, value)}: give a whole number of at least 1")


def check_positive(what: str, value: object) -> None:
    """Refuse what is no number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{_given(what, value)}: give a number above 0")


def check_expression(what: str, value: object) -> None:
    """Refuse what finds nothing in a message."""
    if value is None:
        return
    is_known = isinstance(value, str) and (value in ("key", "id") or (value.startswith("headers.") and len(value) > 8))
    if not is_known:
        raise ValueError(f'{_given(what, value)}: give "key", "id" or "headers.<name>", such as "headers.tenant"')


def _check_name(what: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{_given(what, value)}: give the name of a kind of message, or None for all of them")


def key_finder(expression: str) -> KeyFinder:
    """Return what finds the value of an expression in a message; None if the message has none."""
    if expression == "key":
        return lambda message: message.key
    if expression == "id":
        return lambda message: message.id
    name = expression.removeprefix("headers.")
    return lambda message: message.headers.get(name)


def _count(instance: object, attribute: Attribute[Any], value: object) -> None:
    check_count(f"{type(instance).__name__}({attribute.name}", value)


def _expression(instance: object, attribute: Attribute[Any], value: object) -> None:
    check_expression(f"{type(instance).__name__}({attribute.name}", value)


def _kind(instance: object, attribute: Attribute[Any], value: object) -> None:
    _check_name(f"{type(instance).__name__}({attribute.name}", value)


def _positive(instance: object, attribute: Attribute[Any], value: object) -> None:
    check_positive(f"{type(instance).__name__}({attribute.name}", value)


def _cost(instance: object, attribute: Attribute[Any], value: object) -> None:
    costs = value.values() if isinstance(value, Mapping) else (value,)
    for cost in costs:
        check_positive(f"{type(instance).__name__}({attribute.name}", cost)


@frozen
class Cap:
    """So many messages may be started and not yet settled at once.

    Attributes:
        limit: how many.
        kind: of which kind; None for all kinds together.
        by: what they have in common, each value with a cap of its own: "key", "id" or "headers.<name>". A message
            that has no such thing is not limited.
    """

    limit: int = field(validator=_count)
    kind: str | None = field(default=None, validator=_kind)
    by: str | None = field(default=None, validator=_expression)

    @property
    def name(self) -> str:
        """What it is called where limits are shown and changed."""
        return _named("cap", self.kind, self.by)


@frozen
class Rate:
    """So many messages may start in a time, as a bucket of tokens that fills steadily.

    Attributes:
        limit: how many tokens come in `per` seconds.
        per: the time, in seconds.
        burst: how many tokens the bucket holds; as many as come in `per` seconds unless it is given.
        kind: of which kind; None for all kinds together.
        by: what they have in common, each value with a bucket of its own; as for `Cap`.
        cost: how many tokens a message takes: a number, or one for each kind; kinds that are not named take 1.
        label: tells it from another rate of the same kind, such as one per second and one per hour.
    """

    limit: float = field(validator=_positive)
    per: Seconds = field(default=1.0, validator=_positive)
    burst: float | None = field(default=None)
    kind: str | None = field(default=None, validator=_kind)
    by: str | None = field(default=None, validator=_expression)
    cost: float | Mapping[str, float] = field(default=1.0, validator=_cost)
    label: str = ""

    def __attrs_post_init__(self) -> None:
        """Refuse a bucket that can never hold what a message takes."""
        if self.burst is not None:
            check_positive("Rate(burst", self.burst)
        costs = self.cost.values() if isinstance(self.cost, Mapping) else (self.cost,)
        dearest = max(costs, default=1.0)
        if self.burst is not None and dearest > self.burst:
            raise ValueError(
                f"Rate(burst={shown(self.burst)}): a message takes {dearest!r} tokens, so none would ever start; "
                "give a larger burst"
            )

    @property
    def name(self) -> str:
        """What it is called where limits are shown and changed."""
        return _named("rate", self.kind, self.by, self.label)

    @property
    def capacity(self) -> float:
        """How many tokens the bucket holds: never less than one message takes."""
        costs = self.cost.values() if isinstance(self.cost, Mapping) else (self.cost,)
        return self.burst if self.burst is not None else max(self.limit, 1.0, *costs)

    def cost_of(self, kind: str) -> float:
        """Return how many tokens a message of a kind takes."""
        return self.cost.get(kind, 1.0) if isinstance(self.cost, Mapping) else self.cost


Limit: TypeAlias = Cap | Rate


@frozen(kw_only=True)
class AdaptiveLimit:
    """A cap that finds its own number: up by one for each round that goes well, down by a part when a service says no.

    Errors of the kinds rate_limit and timeout bring it down. A service that says when to come back (Retry-After) pauses
    the whole kind until then.

    Attributes:
        most: the highest number.
        least: the lowest number.
        start: the number it begins with.
        decrease: what it is multiplied with when it goes down.
        cooldown: seconds after it went down in which it does not go down again: what fails then was started before.
    """

    most: int = 64
    least: int = 1
    start: int = 8
    decrease: float = 0.5
    cooldown: Seconds = 1.0

    def __attrs_post_init__(self) -> None:
        """Refuse limits between which nothing fits."""
        for name in ("most", "least", "start"):
            check_count(f"AdaptiveLimit({name}", getattr(self, name))
        check_positive("AdaptiveLimit(cooldown", self.cooldown)
        check_positive("AdaptiveLimit(decrease", self.decrease)
        if self.decrease >= 1:
            raise ValueError(f"AdaptiveLimit(decrease={shown(self.decrease)}): give a number between 0 and 1")
        if not self.least <= self.start <= self.most:
            raise ValueError(
                f"AdaptiveLimit(least={self.least}, start={self.start}, most={self.most}): they must be in this order"
            )


def _named(what: str, *parts: str | None) -> str:
    return ":".join([what, *(part for part in parts if part)])
