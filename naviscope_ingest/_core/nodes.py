"""Messages as the core knows them.

A message that waits for plain ids, or for one resource and nothing else, costs one `Node` and *counts*: `missing` is
how many parents have not committed, and each parent (or the resource) lists the node among its waiters. Everything else
(groups, policies of parents, trouble of any kind) is a `Case`, made when it is first needed; see `terms`. A resource
has no end that a policy would have to meet, so a message that waits for one needs a case only when its time is over or
nothing alive can bring it. With several dependencies a count would not do: a resource that was there stays satisfied
even if it is forgotten, so it must be known which of them were.

Most waiting messages need no more, and there may be millions of them. So what they have is kept small: timers are no
objects (see `timers`), and a durable store has the messages, of which an `Outline` stays here (see `outlines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import define

from naviscope_ingest._core.outlines import Outline
from naviscope_spi import Dependency, End, Message, OnResource, Seq

if TYPE_CHECKING:
    from naviscope_ingest._core.epochs import EpochTracker
    from naviscope_ingest._core.terms import Case, Term

__all__ = [
    "COMMITTING",
    "ENDED",
    "NEVER",
    "READY",
    "RUNNING",
    "WAITING",
    "Ghost",
    "Node",
    "Rare",
    "State",
    "Waiter",
]


class State(Enum):
    """Where a message stands. The first three are "waiting" to a user."""

    WAITING = "waiting"
    HELD = "held"
    DELAYED = "delayed"
    READY = "ready"
    RUNNING = "running"
    COMMITTING = "committing"
    ENDED = "ended"


# In Python 3.11 a look at a member of an enum costs as much as making an object. What runs for each message uses these.
WAITING: Final = State.WAITING
READY: Final = State.READY
RUNNING: Final = State.RUNNING
COMMITTING: Final = State.COMMITTING
ENDED: Final = State.ENDED


NEVER: Final = 1 << 62
"""A count that no number of commits brings to zero: the node's case decides instead."""


class Node:
    """One message that has not committed.

    Attributes:
        seq: its place in the store.
        epoch: the tracker of its epoch.
        message: what was submitted, or as much of it as decisions need; the payload is of no interest here.
        state: where it stands.
        end: how it ended, once it has.
        missing: parents that have not committed, or the one resource; `NEVER` when a case decides.
        first: who waits for it first, if that is a node that counts: in a chain there is nobody else.
        waiters: who else waits for it: nodes that count, and terms of cases.
        case: how its dependencies stand, when counting is not enough.
        rare: what most messages never have.
        since: when it came into its state.
    """

    __slots__ = ("case", "end", "epoch", "first", "message", "missing", "rare", "seq", "since", "state", "waiters")

    def __init__(self, seq: Seq, epoch: EpochTracker, message: Message[Any], since: float) -> None:
        self.seq = seq
        self.epoch = epoch
        self.message: Message[Any] | Outline = message
        self.state: State = WAITING
        self.end: End | None = None
        self.missing = 0
        self.first: Node | None = None
        self.waiters: list[Waiter] | None = None
        self.case: Case | None = None
        self.rare: Rare | None = None
        self.since = since

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message.id

    @property
    def run(self) -> int:
        """How often it was replayed."""
        return self.rare.run if self.rare is not None else 0

    @property
    def is_recorded(self) -> bool:
        """Whether its outcome is recorded, and may be with the sink: commit wins over whatever else would end it."""
        return self.rare is not None and self.rare.is_recorded

    @property
    def expires_at(self) -> float | None:
        """When it expires. A replay after that time is meant to run all the same."""
        return None if self.rare is not None and self.rare.has_outlived else self.message.expires_at

    @property
    def starts_at(self) -> float | None:
        """Before when it may not start: the time of its retry, or its own."""
        retry_at = None if self.rare is None else self.rare.retry_at
        return self.message.not_before if retry_at is None else retry_at

    @property
    def resource(self) -> OnResource | None:
        """The resource that it counts; None if it does not wait, or for something else."""
        if self.missing != 1 or self.case is not None or self.state is not State.WAITING:
            return None
        only = self.message.depends_on[0]
        return only if isinstance(only, OnResource) else None

    def all_waiters(self) -> list[Waiter]:
        """Return everybody who waits for it, in the order in which they came."""
        waiters = self.waiters or []
        return waiters if self.first is None else [self.first, *waiters]

    def more(self) -> Rare:
        """Return what few messages have, made on demand."""
        if self.rare is None:
            self.rare = Rare()
        return self.rare

    def __repr__(self) -> str:
        return f"<Node {self.seq} {self.id!r} {self.end or self.state.value}>"


@define
class Rare:
    """What most messages never have.

    Attributes:
        run: how often it was replayed.
        attempts: attempts spent in this run.
        deferrals: how often it was deferred in this run.
        added: dependencies that deferrals added in this run.
        retry_at: when it may run again after a failure.
        causes: the messages its end follows from.
        epoch_causes: the failed epochs its end follows from.
        reason: why it ended, in words.
        discarded: whether its dead letter was discarded.
        has_outlived: whether it was replayed after it had expired.
        is_recorded: whether a process before has recorded its outcome, which is to be handed to the sink again.
        unmet: dependencies that were passed although they are not satisfied.
        doomed_since: when it was first found that nothing alive can release it.
    """

    run: int = 0
    attempts: int = 0
    deferrals: int = 0
    added: tuple[str | Dependency, ...] = ()
    retry_at: float | None = None
    causes: frozenset[Seq] = frozenset()
    epoch_causes: frozenset[int] = frozenset()
    reason: str = ""
    discarded: bool = False
    has_outlived: bool = False
    is_recorded: bool = False
    unmet: Sequence[str | Dependency] = ()
    doomed_since: float | None = None


class Ghost:
    """An id that somebody waits for and nobody has submitted yet."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []


Waiter: TypeAlias = "Node | Term"
