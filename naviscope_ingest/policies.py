"""What holds for messages of one kind, where it differs from the rest."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, get_args

from attrs import Attribute, field, frozen
from attrs.validators import instance_of

from naviscope_ingest._core.retry import RetryPolicy

__all__ = ["DeliveryMode", "KindPolicy", "RetryPolicy"]

DeliveryMode: TypeAlias = Literal["exactly_once", "at_least_once", "at_most_once"]
"""How often the effect of a message may come about when a process dies while it runs."""


def _limit(instance: object, attribute: Attribute[float], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isnan(value):
        raise ValueError(f"KindPolicy({attribute.name}={value!r:.80}): give seconds above zero, or None for no limit")


def _mode(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value not in get_args(DeliveryMode):
        known = ", ".join(map(repr, get_args(DeliveryMode)))
        raise ValueError(f"KindPolicy(delivery={value!r:.80}): it is one of {known}")


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
    """

    retry: RetryPolicy = field(factory=RetryPolicy, validator=instance_of(RetryPolicy))
    timeout: float | None = field(default=None, validator=_limit)
    delivery: DeliveryMode = field(default="exactly_once", validator=_mode)
