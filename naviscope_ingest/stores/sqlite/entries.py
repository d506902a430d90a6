"""What the writer remembers, entry by entry: the counters, an epoch, a lease."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, cast

from attrs import define, fields_dict

from naviscope_ingest.stores.sqlite.marks import mark_of
from naviscope_ingest.stores.sqlite.rows import decode_options
from naviscope_spi import EpochKey, EpochRecord

__all__ = ["EPOCH_COLUMNS", "STATE_COLUMNS", "EpochRow", "Held", "State"]


@define
class State:
    """The row `state`: counters that never go back, and the present session."""

    store_id: str
    commits: int = 0
    position: int = 0
    last_seq: int = 0
    last_epoch: int = 0
    last_token: int = 0
    last_fence: int = 0
    last_claim: int = 0
    token: int | None = None
    fence: int | None = None
    who: str | None = None
    since: float | None = None
    is_copy: int = 0

    def row(self) -> tuple[Any, ...]:
        """Return its columns, the hash last."""
        values = _of_state(self)
        return (*values, mark_of("state", *values))


STATE_COLUMNS = tuple(fields_dict(State))
_of_state: Callable[[State], tuple[Any, ...]] = attrgetter(*STATE_COLUMNS)


@define(eq=False)
class EpochRow:
    """A row of `epochs`."""

    number: int
    name: str
    state: str
    options: bytes
    cancel: int = 0
    succeeded: int | None = None
    report: bytes = b""
    completed_at: float | None = None
    prune_at: float | None = None
    freed: int = 0
    unfinished: int = 0
    letters: int = 0
    first_seq: int | None = None
    opened_at: float | None = None
    sealed_at: float | None = None
    mark: int | None = None

    @property
    def key(self) -> EpochKey:
        """Its number and name."""
        return EpochKey(self.number, self.name)

    @property
    def record(self) -> EpochRecord:
        """The epoch as the contract shows it."""
        return EpochRecord(
            self.key,
            cast("Any", self.state),
            decode_options(self.options),
            cancel_requested=bool(self.cancel),
            succeeded=None if self.succeeded is None else bool(self.succeeded),
            report=self.report,
            opened_at=self.opened_at,
            sealed_at=self.sealed_at,
        )

    def values(self) -> tuple[Any, ...]:
        """Return its columns without the hash."""
        return _values(self)

    def saved(self) -> tuple[Any, ...]:
        """Return what makes it anew: `EpochRow(*saved)`. Every request takes it down, also one of a single message."""
        return _saved(self)


EPOCH_COLUMNS = tuple(name for name in fields_dict(EpochRow) if name != "mark")
_values: Callable[[EpochRow], tuple[Any, ...]] = attrgetter(*EPOCH_COLUMNS)
_saved: Callable[[EpochRow], tuple[Any, ...]] = attrgetter(*EPOCH_COLUMNS, "mark")


class Held(NamedTuple):
    """A lease of the present session."""

    claim: int
    epoch: int
    run: int
    attempt: int
    has_progress: bool
