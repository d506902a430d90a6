"""Deliveries made by hand, for calling an executor without a runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from naviscope_spi import Delivery, Dependency, EpochKey, Lease, Message, Seq

__all__ = ["make_delivery"]

P = TypeVar("P")


def make_delivery(
    message: Message[P],
    *,
    epoch: str = "test",
    attempt: int = 0,
    run: int = 0,
    unmet: Sequence[str | Dependency] = (),
    values: Mapping[str, bytes] | None = None,
) -> Delivery[P]:
    """Return a message as an executor gets it: `await executor.execute(make_delivery(Message("a", 1)))`.

    Args:
        message: the message.
        epoch: the name of its epoch.
        attempt: how many attempts were spent before.
        run: how often it was replayed.
        unmet: dependencies that were passed although they are not satisfied.
        values: what dependencies handed over.
    """
    lease = Lease(Seq(1), EpochKey(1, epoch), message, 1, run, attempt)
    return Delivery(lease, "test", unmet, {} if values is None else values)
