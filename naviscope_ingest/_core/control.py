"""What is changed while messages run: limits, weights, and doors that somebody closes and opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from naviscope_ingest._core.gates import Door, DoorKind, Hold
from naviscope_ingest._core.limits import Limit
from naviscope_ingest._core.nodes import Node, State
from naviscope_ingest._core.regulation import Regulation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from naviscope_ingest._core.epochs import EpochTracker
    from naviscope_ingest._core.outlines import Outlines
    from naviscope_ingest._core.transitions import Transitions

__all__ = ["Control"]


class Control:
    """Changes what may start. Nothing is regulated before the first change."""

    def __init__(self, transitions: Transitions, outlines: Outlines | None) -> None:
        self._transitions = transitions
        self._outlines = outlines

    @property
    def is_on(self) -> bool:
        """Whether anything was ever limited, weighted or closed."""
        return self._transitions.schedule.regulation is not None

    def _regulation(self) -> Regulation:
        schedule = self._transitions.schedule
        return schedule.regulation or schedule.regulate(self._transitions.now, self._started())

    def _started(self) -> Iterator[Node]:
        return (node for node in self._transitions.nodes.values() if node.state in (State.RUNNING, State.COMMITTING))

    def _replant(self) -> None:
        self._transitions.schedule.replant(self._transitions.now, self._started())

    # Limits

    @property
    def limits(self) -> Mapping[str, Limit]:
        """The limits in force, by name."""
        regulation = self._transitions.schedule.regulation
        return {} if regulation is None else dict(regulation.limits)

    def put(self, limit: Limit) -> None:
        """Add a limit, or change the number of one that is there."""
        if self._outlines is not None and limit.by is not None and limit.by.startswith("headers."):
            self._outlines.keeps_headers = True
        regulation = self._regulation()
        is_known = limit.name in regulation.limits
        regulation.put(limit, self._transitions.now)
        if is_known:
            self._transitions.schedule.reopen_all()
        else:
            self._replant()

    def drop(self, name: str) -> None:
        """Take a limit away."""
        self._regulation().drop(name)
        self._replant()

    def weigh(self, weights: Mapping[str, int]) -> None:
        """Say what share each kind has when kinds compete; 1 for those that are not named."""
        self._regulation().weights.update(weights)
        self._replant()

    def cap_epochs(self, limit: int | None) -> None:
        """Cap every epoch that has no cap of its own."""
        regulation = self._regulation()
        regulation.epoch_cap = limit
        for epoch in self._transitions.epochs.values():
            if not epoch.is_completed:
                regulation.recap_epoch(epoch.number, epoch.name)
        self._replant()

    def cap_epoch(self, epoch: EpochTracker, limit: int | None) -> None:
        """Cap one epoch, or let it be as the others are."""
        self._regulation().cap_epoch(epoch.number, epoch.name, limit)
        self._replant()

    # Doors

    def doors(self) -> Mapping[tuple[str | None, str], Door]:
        """Return every door that is not open, by kind and name."""
        regulation = self._transitions.schedule.regulation
        return {} if regulation is None else regulation.doors()

    def close(
        self,
        kind: str | None,
        name: str,
        sort: DoorKind,
        reason: str,
        until: float | None = None,
        *,
        then: Literal["open", "half-open"] = "open",
    ) -> None:
        """Start nothing more of a kind, or nothing at all, until a time or until told.

        Args:
            kind: which kind; None for all.
            name: whose door it is. Each name has its own, and all of them must be open.
            sort: what sort of reason.
            reason: why, in words.
            until: when it opens by itself.
            then: what it is after that time; half open it lets one message through at a time.
        """
        regulation = self._regulation()
        door = regulation.door(kind, name, sort)
        door.close(reason, until, then=then)
        regulation.doors_changed()
        self._transitions.schedule.reopen(door)
        if until is not None:
            self._transitions.schedule.ring_for(door, until)

    def half_open(self, kind: str | None, name: str, sort: DoorKind, reason: str) -> None:
        """Let one message through at a time."""
        regulation = self._regulation()
        door = regulation.door(kind, name, sort)
        door.half_open(reason)
        regulation.doors_changed()
        self._transitions.schedule.reopen(door)

    def open(self, kind: str | None, name: str) -> bool:
        """Open a door; return whether it was not."""
        regulation = self._transitions.schedule.regulation
        door = None if regulation is None else regulation.doors().get((kind, name))
        if regulation is None or door is None:
            return False
        door.open()
        regulation.doors_changed()
        self._transitions.schedule.reopen(door)
        return True

    def share(self, kind: str, name: str, other: str) -> None:
        """Put the door of that name before another kind too: both use one service."""
        regulation = self._regulation()
        regulation.hang(other, name, regulation.door(kind, name, "breaker"))
        self._transitions.schedule.reopen_all()

    # What gates do

    def on_time(self, number: int) -> None:
        """Let a gate act whose time has come."""
        gate = self._transitions.schedule.gate(number)
        if gate is None:
            return
        gate.on_time(self._transitions.now)
        if isinstance(gate, Door) and self._transitions.schedule.regulation is not None:
            self._transitions.schedule.regulation.doors_changed()
        self._transitions.schedule.reopen(gate)

    def waits_for_time(self, node: Node) -> bool:
        """Tell whether nothing but time keeps a ready message from starting; if so, a timer rings then."""
        schedule = self._transitions.schedule
        gates = [] if schedule.regulation is None else schedule.closed_to(node, self._transitions.now)
        times = [gate.opens_at(self._transitions.now) for gate in gates]
        if not times or None in times:
            return False
        for gate, at in zip(gates, times, strict=True):
            assert at is not None
            schedule.ring_for(gate, at)
        return True

    def holds_of(self, node: Node) -> Sequence[Hold]:
        """Return what keeps a ready message from starting, if gates do."""
        return self._transitions.schedule.holds_of(node, self._transitions.now)
