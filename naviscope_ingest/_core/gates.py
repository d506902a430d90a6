"""Gates: what keeps a ready message from starting although its turn has come.

A gate says how much room it has. Whoever would start messages asks every gate on their way first, starts as many as the
narrowest lets through, and then tells all of them: all or none, in one step, so nobody waits for one gate while holding
a place in another, and nothing can deadlock. What finds a gate closed is parked at it, as a whole branch of the order
and not message by message (see `branches`), and is not looked at again before the gate may have room: a slot was freed,
a token has come, or somebody opened it.

Three kinds are enough. A `CapGate` counts those who have passed and are not done. A `RateGate` takes tokens from a
bucket, which may be shared by kinds that pay differently. A `Door` is closed and opened by somebody who has a reason: a
pause, a breaker, a service that asked for one; half open, it lets one through at a time.

Rejected: a queue of waiting messages at each gate. A hundred thousand messages of one epoch would stand there before
the first of another, whatever their priorities; the order would have to be made again at every gate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from attrs import frozen

if TYPE_CHECKING:
    from naviscope_ingest._core.branches import Branch

__all__ = ["MANY", "Bucket", "CapGate", "Door", "DoorKind", "Gate", "Hold", "HoldKind", "RateGate", "Ticket"]

MANY: Final = 1 << 62
"""More room than anybody asks for."""

_DUST: Final = 1e-9
"""A part of a token that is lost to rounding."""

DoorKind: TypeAlias = Literal["pause", "breaker", "retry-after"]
HoldKind: TypeAlias = Literal["cap", "rate", "pause", "breaker", "retry-after"]


@frozen
class Hold:
    """A gate that keeps a message from starting.

    Attributes:
        kind: what sort of gate.
        text: which one, in words.
        release: what would open it, in words.
        until: the earliest time at which it can, if that is known.
    """

    kind: HoldKind
    text: str
    release: str
    until: float | None = None


class Ticket(Protocol):
    """The place of a message in a gate that counts."""

    def leave(self) -> Gate | None:
        """Give the place back; return the gate if it may have room now."""
        ...


class Gate:
    """What messages pass on their way to a worker.

    Attributes:
        parked: branches of the order that found it closed.
        alarm: when it is looked at again, if time opens it.
        number: what timers call it, once one was set.
        users: how many leaves of the order it belongs to, if it is one of many that are made on demand.
    """

    __slots__ = ("alarm", "number", "parked", "users")

    def __init__(self) -> None:
        self.parked: list[Branch] = []
        self.alarm: float | None = None
        self.number = 0
        self.users = 0

    def room(self, now: float) -> int:
        """Return how many messages may pass now."""
        raise NotImplementedError

    def enter(self, count: int, now: float) -> None:
        """Let messages pass. More than there is room for are counted all the same: they were started elsewhere."""

    def ticket(self) -> Ticket | None:
        """Return the place that each message takes until it is done; None if none is counted."""
        return None

    def opens_at(self, now: float) -> float | None:
        """Return when there is room by time alone; None if it takes an event."""
        return None

    def on_time(self, now: float) -> None:
        """Learn that the time it named has come."""

    def is_idle(self, now: float) -> bool:
        """Tell whether it is as if it had just been made."""
        return False

    def hold(self, now: float) -> Hold:
        """Say why it lets nobody through."""
        raise NotImplementedError


class CapGate(Gate):
    """So many at once.

    Args:
        subject: whom it is for, in words.
        limit: how many.

    Attributes:
        used: how many have passed and are not done.
    """

    __slots__ = ("limit", "subject", "used")

    def __init__(self, subject: str, limit: int) -> None:
        super().__init__()
        self.subject = subject
        self.limit = limit
        self.used = 0

    def room(self, now: float) -> int:
        return self.limit - self.used

    def enter(self, count: int, now: float) -> None:
        self.used += count

    def ticket(self) -> Ticket:
        return self

    def leave(self) -> Gate:
        """Give one place back."""
        self.used -= 1
        return self

    def is_idle(self, now: float) -> bool:
        return not (self.used or self.parked or self.users)

    def hold(self, now: float) -> Hold:
        text = f"the cap of {self.limit} for {self.subject} is used up: {self.used} are started and not settled"
        return Hold("cap", text, "one of them settles, or the cap is raised")


class Bucket:
    """Tokens that come steadily.

    Args:
        rate: how many come in a second.
        capacity: how many it holds.
        now: when it is first looked at, full.
    """

    __slots__ = ("_at", "_tokens", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self._tokens = capacity
        self._at = now

    def tokens(self, now: float) -> float:
        """Return how many there are. A clock that went back brings none, and takes none."""
        if now > self._at:
            self._tokens = min(self.capacity, self._tokens + (now - self._at) * self.rate)
        self._at = now
        return self._tokens

    def change(self, rate: float, capacity: float, now: float) -> None:
        """Let them come at another pace from now on."""
        self.tokens(now)
        self.rate, self.capacity = rate, capacity
        self._tokens = min(self._tokens, capacity)

    def spend(self, tokens: float, now: float) -> None:
        """Take tokens out."""
        self._tokens = self.tokens(now) - tokens

    def has_at(self, tokens: float, now: float) -> float:
        """Return when there are so many."""
        missing = tokens - self.tokens(now)
        # Rounded up, so that they are there when that time has come.
        return now if missing <= _DUST else math.nextafter(now + missing / self.rate, math.inf)


class RateGate(Gate):
    """So many in a time.

    Args:
        subject: whom it is for, in words.
        bucket: where tokens come from.
        cost: how many a message takes.
    """

    __slots__ = ("bucket", "cost", "subject")

    def __init__(self, subject: str, bucket: Bucket, cost: float) -> None:
        super().__init__()
        self.subject = subject
        self.bucket = bucket
        self.cost = cost

    def room(self, now: float) -> int:
        return int((self.bucket.tokens(now) + _DUST) / self.cost)

    def enter(self, count: int, now: float) -> None:
        self.bucket.spend(count * self.cost, now)

    def opens_at(self, now: float) -> float:
        return self.bucket.has_at(self.cost, now)

    def is_idle(self, now: float) -> bool:
        return not (self.parked or self.users) and self.bucket.tokens(now) >= self.bucket.capacity

    def hold(self, now: float) -> Hold:
        at = self.opens_at(now)
        text = f"the rate of {self.bucket.rate:g} a second for {self.subject} is used up"
        return Hold("rate", text, f"enough tokens have come, at {at:.3f} at the earliest", at)


class Door(Gate):
    """Closed and opened by somebody who has a reason. It is made open.

    Args:
        subject: whom it is for, in words.
        kind: what sort of reason.

    Attributes:
        state: open; closed; half open, which lets one through at a time.
        reason: why it is not open, in words.
        until: when it opens by itself, if it does.
        then: what it is after that time.
    """

    __slots__ = ("_probe", "kind", "reason", "state", "subject", "then", "until")

    def __init__(self, subject: str, kind: DoorKind) -> None:
        super().__init__()
        self.subject = subject
        self.kind: DoorKind = kind
        self.state: Literal["open", "closed", "half-open"] = "open"
        self.reason = ""
        self.until: float | None = None
        self.then: Literal["open", "half-open"] = "open"
        self._probe = _Probe(self)

    def close(self, reason: str, until: float | None = None, *, then: Literal["open", "half-open"] = "open") -> None:
        """Let nobody through until a time, or until told."""
        self.state, self.reason, self.until, self.then = "closed", reason, until, then

    def half_open(self, reason: str) -> None:
        """Let one through at a time. Who passed before is not counted."""
        self.state, self.reason, self.until = "half-open", reason, None
        self._probe = _Probe(self)

    def open(self) -> None:
        """Let everybody through."""
        self.state, self.reason, self.until = "open", "", None

    def room(self, now: float) -> int:
        if self.state == "open":
            return MANY
        return 1 - self._probe.used if self.state == "half-open" else 0

    def enter(self, count: int, now: float) -> None:
        if self.state == "half-open":
            self._probe.used += count

    def ticket(self) -> Ticket | None:
        return self._probe if self.state == "half-open" else None

    def opens_at(self, now: float) -> float | None:
        return self.until

    def on_time(self, now: float) -> None:
        if self.state == "closed" and self.until is not None and self.until <= now:
            if self.then == "open":
                self.open()
            else:
                self.half_open(self.reason)

    def hold(self, now: float) -> Hold:
        if self.state == "half-open":
            text = f"{self.subject} lets one message through at a time: {self.reason}"
            return Hold(self.kind, text, "the one that is on trial is done")
        text = f"{self.subject} is closed by a {self.kind}: {self.reason}".rstrip(": ")
        if self.until is None:
            return Hold(self.kind, text, "somebody resumes it")
        return Hold(self.kind, text, f"that time comes: {self.until:.3f}", self.until)


class _Probe:
    """Those who passed a door since it was last half open."""

    __slots__ = ("_door", "used")

    def __init__(self, door: Door) -> None:
        self._door = door
        self.used = 0

    def leave(self) -> Gate:
        self.used -= 1
        return self._door
