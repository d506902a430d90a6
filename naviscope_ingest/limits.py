"""Limits while a runtime runs: what they are, how far they are used, and how they are changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from naviscope_ingest._core.limits import Cap, Rate, check_count
from naviscope_ingest.errors import UnknownLimit

if TYPE_CHECKING:
    from naviscope_ingest._kernel import Kernel

__all__ = ["KindView", "LimitView", "Limits"]


@frozen
class LimitView:
    """One limit as it is now.

    Attributes:
        name: what it is called ("max_in_flight", "cap:http", "rate:http", "adaptive:http").
        limit: what was declared; for the number of messages in flight and for adaptive limits, the cap they come to.
        used: how many messages are started and not settled, for those that count them.
    """

    name: str
    limit: Cap | Rate
    used: int | None = None


@frozen
class KindView:
    """One kind of message as it is now.

    Attributes:
        kind: the kind.
        unfinished: how many of its messages have not ended.
        held_by: what keeps them from starting or from coming in: pauses, open breakers, strikes.
    """

    kind: str
    unfinished: int
    held_by: Sequence[str]


class Limits:
    """The limits of a runtime. Changes hold at once; each is logged."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._steering = kernel.steering

    def __iter__(self) -> Iterator[LimitView]:
        return iter(self.show())

    def show(self) -> Sequence[LimitView]:
        """Return every limit in force."""
        control = self._kernel.core.control
        used = control.used()
        found = [LimitView("max_in_flight", Cap(self._steering.max_in_flight), self._steering.in_flight)]
        found += [LimitView(name, limit, used.get(name)) for name, limit in control.limits.items()]
        found += [
            LimitView(f"adaptive:{kind}", Cap(number, kind=kind), used.get(f"adaptive:{kind}"))
            for kind, number in control.adaptive().items()
        ]
        return found

    def set(self, limit: Cap | Rate) -> None:
        """Add a limit, or change the number of the one of the same name.

        Raises:
            NoSuchKind: it is a new one, for a kind that no message has and nothing is configured for.
        """
        if not isinstance(limit, Cap | Rate):
            raise ValueError(f"{limit!r:.80} is no limit: give a Cap or a Rate")
        self._steering.change_limit(limit.name, limit)

    def remove(self, name: str) -> None:
        """Take a limit away.

        Raises:
            UnknownLimit: there is none of that name.
        """
        if name not in self._kernel.core.control.limits:
            raise UnknownLimit(name, [*self._kernel.core.control.limits])
        self._steering.change_limit(name, None)

    def set_max_in_flight(self, limit: int) -> None:
        """Change how many messages may be started and not yet settled, of all kinds together."""
        check_count("max_in_flight", limit)
        self._steering.change_max_in_flight(limit)

    def set_epoch_cap(self, epoch: str, limit: int | None) -> None:
        """Cap one epoch, or let it be as the others are.

        Raises:
            UnknownEpoch: there is none of that name.
        """
        if limit is not None:
            check_count("epoch cap", limit)
        self._steering.cap_epoch(self._kernel.book.find(epoch), limit)

    def set_weight(self, kind: str, weight: int) -> None:
        """Change the share of a kind when kinds compete.

        Raises:
            NoSuchKind: no message has it, and nothing is configured for it.
        """
        check_count("weight", weight)
        self._steering.weigh(kind, weight)
