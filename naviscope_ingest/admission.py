"""When messages are let in, and what happens when too much is to be done."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from attrs import Attribute, field, frozen
from attrs.validators import optional

from naviscope_ingest._core.limits import check_count, check_positive
from naviscope_ingest._core.units import Seconds
from naviscope_spi.names import shown

__all__ = ["IntakePolicy", "WhenFull", "check_when_full"]

WhenFull: TypeAlias = Literal["block", "reject", "drop", "sample"]
"""What a submit does while intake is slow."""


def check_when_full(value: object, where: str) -> None:
    """Refuse what a submit cannot do."""
    if value not in get_args(WhenFull):
        raise ValueError(f"{where}(when_full={shown(value)}): it is one of {', '.join(map(repr, get_args(WhenFull)))}")


def _count(instance: object, attribute: Attribute[Any], value: object) -> None:
    check_count(f"IntakePolicy({attribute.name}", value)


def _from_zero(instance: object, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"IntakePolicy({attribute.name}={shown(value)}): give a whole number, zero or more")


def _seconds(instance: object, attribute: Attribute[Any], value: object) -> None:
    check_positive(f"IntakePolicy({attribute.name}", value)


def _known(instance: object, attribute: Attribute[Any], value: object) -> None:
    check_when_full(value, "IntakePolicy")


@frozen(kw_only=True)
class IntakePolicy:
    """When messages are let in, and what happens when too much is to be done.

    Attributes:
        high_mark: when so many messages are ready and not started, intake is slow...
        low_mark: ...until no more than so many are.
        when_full: what a submit does while intake is slow. "block" waits; "reject" raises `IntakeFull`; "drop" leaves
            the messages out; "sample" keeps one in so many. A message that another waits for is always let in.
        keep_one_in: how many messages there are to one that "sample" keeps.
        alert_after: seconds of slow intake after which a warning is logged, and again after each such time.
        max_waiting: how many messages may wait for something; more are refused with `IntakeFull`.
        max_unfinished: how many messages may be unfinished; more are refused. None for any number.
        max_open_epochs: how many epochs may be there that have not completed; None for any number.
    """

    high_mark: int = field(default=20_000, validator=_count)
    low_mark: int = field(default=5_000, validator=_from_zero)
    when_full: WhenFull = field(default="block", validator=_known)
    keep_one_in: int = field(default=10, validator=_count)
    alert_after: Seconds = field(default=60.0, validator=_seconds)
    max_waiting: int = field(default=1_000_000, validator=_count)
    max_unfinished: int | None = field(default=None, validator=optional(_count))
    max_open_epochs: int | None = field(default=None, validator=optional(_count))

    def __attrs_post_init__(self) -> None:
        """Refuse marks between which nothing fits."""
        if self.low_mark >= self.high_mark:
            raise ValueError(
                f"IntakePolicy(high_mark={self.high_mark}, low_mark={self.low_mark}): the low mark must be below the "
                "high one"
            )
