"""Every error a user can meet that does not mean a decision, under `IngestError`.

The errors that mean a decision (`Transient`, `Permanent`, …) live in `naviscope_spi.errors`. So do the refusals of a
store, because a store knows only the contracts; they are named here too.
"""

from __future__ import annotations

from naviscope_spi.errors import EpochExists, EpochSealed, StoreRefused, UnknownEpoch

__all__ = [
    "ContractViolation",
    "EpochExists",
    "EpochSealed",
    "IngestError",
    "InternalError",
    "StoreRefused",
    "UnknownEpoch",
]


class IngestError(Exception):
    """The base of the errors of the runtime."""


class InternalError(IngestError):
    """A bug of ours: something that cannot happen did. Please report it with the text."""


class ContractViolation(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """An implementation broke a promise of its contract. Raised by the `check_*` functions.

    Args:
        promise: the promise, as a sentence.
        seen: what the implementation did.
        expected: what it should have done.
    """

    def __init__(self, promise: str, *, seen: object, expected: object) -> None:
        super().__init__(f"{promise}\n  expected: {_shown(expected)}\n  seen:     {_shown(seen)}")
        self.promise = promise
        self.seen = seen
        self.expected = expected


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
