"""Which gates stand in the way of which message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from naviscope_ingest._core.gates import Bucket, CapGate, Door, DoorKind, Gate, RateGate
from naviscope_ingest._core.limits import Cap, Limit, Rate, key_finder
from naviscope_ingest._core.outlines import Outline
from naviscope_spi import Message

if TYPE_CHECKING:
    from naviscope_ingest._core.nodes import Node

__all__ = ["Keys", "Regulation"]

Keys = tuple["str | None", ...]
"""What the expressions of a kind's keyed limits found in a message."""

_KEPT = 1_024
"""How many gates of one keyed limit may be there before those that nobody needs are looked for."""


class _Keyed:
    """A limit that gives each value of an expression a gate of its own."""

    def __init__(self, limit: Limit) -> None:
        assert limit.by is not None
        self.limit = limit
        self.find = key_finder(limit.by)
        self.gates: dict[tuple[str, float], Gate] = {}
        self._buckets: dict[str, Bucket] = {}
        self._sweep_at = _KEPT

    def gate(self, value: str, kind: str, now: float) -> Gate:
        """Return the gate of a value, made on demand. Kinds that pay differently share a bucket."""
        cost = self.limit.cost_of(kind) if isinstance(self.limit, Rate) else 1.0
        gate = self.gates.get((value, cost))
        if gate is None:
            if len(self.gates) >= self._sweep_at:
                self._sweep(now)
            gate = self.gates[value, cost] = self._make(value, cost, now)
        return gate

    def _make(self, value: str, cost: float, now: float) -> Gate:
        limit = self.limit
        subject = f"{'' if limit.kind is None else f'kind {limit.kind!r}, '}{limit.by} {value!r}"
        if isinstance(limit, Cap):
            return CapGate(subject, limit.limit)
        bucket = self._buckets.get(value)
        if bucket is None:
            bucket = self._buckets[value] = Bucket(limit.limit / limit.per, limit.capacity, now)
        return RateGate(subject, bucket, cost)

    def _sweep(self, now: float) -> None:
        self.gates = {key: gate for key, gate in self.gates.items() if not gate.is_idle(now)}
        kept = dict.fromkeys(value for value, _ in self.gates)
        self._buckets = {value: bucket for value, bucket in self._buckets.items() if value in kept}
        self._sweep_at = max(_KEPT, 2 * len(self.gates))

    def change(self, limit: Limit, now: float) -> None:
        """Take another number for every value."""
        self.limit = limit
        for gate in self.gates.values():
            if isinstance(gate, CapGate) and isinstance(limit, Cap):
                gate.limit = limit.limit
        if isinstance(limit, Rate):
            for bucket in self._buckets.values():
                bucket.change(limit.limit / limit.per, limit.capacity, now)


class Regulation:
    """The limits, doors and weights in force.

    Attributes:
        limits: what was declared, by name.
        weights: the share of each kind when kinds compete; 1 for those that are not named.
        epoch_cap: how many messages of any one epoch may be started at once, unless it has a cap of its own.
        alarmed: gates that a timer is set for, by number.
    """

    def __init__(self) -> None:
        self.limits: dict[str, Limit] = {}
        self.weights: dict[str, int] = {}
        self.epoch_cap: int | None = None
        self.alarmed: dict[int, Gate] = {}
        self._last_number = 0
        self._caps: dict[str, CapGate] = {}
        self._buckets: dict[str, Bucket] = {}
        self._rates: dict[tuple[str, float], RateGate] = {}
        self._keyed: dict[str, _Keyed] = {}
        # Of one kind, or of every kind under None.
        self._doors: dict[tuple[str | None, str], Door] = {}
        # The lists are shared with the branches of the order, and change when a limit comes or a door is closed.
        self._kinds: dict[str, list[Gate]] = {}
        self._epochs: dict[int, list[Gate]] = {}
        self._epoch_caps: dict[int, int] = {}

    # Questions

    def of_kind(self, kind: str) -> list[Gate]:
        """Return the gates of a kind."""
        gates = self._kinds.get(kind)
        if gates is None:
            gates = self._kinds[kind] = []
            self._fill(kind, gates)
        return gates

    def _fill(self, kind: str, gates: list[Gate]) -> None:
        doors = (door for (whose, _), door in self._doors.items() if whose in (None, kind))
        gates[:] = [door for door in doors if door.state != "open"]
        for name, limit in self.limits.items():
            if limit.by is None and limit.kind in (None, kind):
                gates.append(self._caps[name] if isinstance(limit, Cap) else self._rate(name, limit.cost_of(kind)))

    def _rate(self, name: str, cost: float) -> RateGate:
        gate = self._rates.get((name, cost))
        if gate is None:
            gate = self._rates[name, cost] = RateGate(_subject(self.limits[name]), self._buckets[name], cost)
        return gate

    def of_epoch(self, number: int, name: str) -> list[Gate]:
        """Return the gates of an epoch."""
        gates = self._epochs.get(number)
        if gates is None:
            gates = self._epochs[number] = []
            cap = self._epoch_caps.get(number, self.epoch_cap)
            if cap is not None:
                gates.append(CapGate(f"epoch {name!r}", cap))
        return gates

    def is_keyed(self, kind: str) -> bool:
        """Tell whether messages of a kind are limited by what an expression finds in them."""
        return any(each.limit.kind in (None, kind) for each in self._keyed.values())

    def keys(self, message: Message[Any] | Outline) -> Keys:
        """Return what sets a message apart from others of its kind."""
        kind = message.kind
        return tuple(each.find(message) for each in self._keyed.values() if each.limit.kind in (None, kind))

    def of_keys(self, kind: str, keys: Keys, now: float) -> list[Gate]:
        """Return the gates of messages of a kind that have these keys."""
        limits = [each for each in self._keyed.values() if each.limit.kind in (None, kind)]
        return [each.gate(value, kind, now) for each, value in zip(limits, keys, strict=True) if value is not None]

    def of(self, node: Node, now: float) -> Iterator[Gate]:
        """Yield every gate that stands in the way of a message."""
        kind = node.message.kind
        yield from self.of_kind(kind)
        yield from self.of_epoch(node.epoch.number, node.epoch.name)
        if self._keyed:
            yield from self.of_keys(kind, self.keys(node.message), now)

    def doors(self) -> Mapping[tuple[str | None, str], Door]:
        """Return every door that is not open, by kind and name."""
        return {key: door for key, door in self._doors.items() if door.state != "open"}

    def alarm(self, gate: Gate) -> None:
        """Give a gate a number, by which a timer can mean it."""
        if not gate.number:
            self._last_number += 1
            gate.number = self._last_number
        self.alarmed[gate.number] = gate

    # Changes. Whoever makes one lets the order look again.

    def put(self, limit: Limit, now: float) -> None:
        """Add a limit, or change the number of one that is there."""
        name = limit.name
        known = self.limits.get(name)
        self.limits[name] = limit
        if limit.by is not None:
            if known is None:
                self._keyed[name] = _Keyed(limit)
            else:
                self._keyed[name].change(limit, now)
        elif isinstance(limit, Cap):
            if known is None:
                self._caps[name] = CapGate(_subject(limit), limit.limit)
            self._caps[name].limit = limit.limit
        elif known is None:
            self._buckets[name] = Bucket(limit.limit / limit.per, limit.capacity, now)
        else:
            self._buckets[name].change(limit.limit / limit.per, limit.capacity, now)
        self._refill()

    def drop(self, name: str) -> None:
        """Take a limit away."""
        del self.limits[name]
        self._caps.pop(name, None)
        self._buckets.pop(name, None)
        self._keyed.pop(name, None)
        self._rates = {key: gate for key, gate in self._rates.items() if key[0] != name}
        self._refill()

    def cap_epoch(self, number: int, name: str, limit: int | None) -> None:
        """Cap one epoch, or let it be as the others are."""
        if limit is None:
            self._epoch_caps.pop(number, None)
        else:
            self._epoch_caps[number] = limit
        self.recap_epoch(number, name)

    def recap_epoch(self, number: int, name: str) -> None:
        """Let an epoch have the cap that is its own, or the one that all have."""
        gates = self.of_epoch(number, name)
        effective = self._epoch_caps.get(number, self.epoch_cap)
        if effective is None:
            gates.clear()
        elif gates:
            assert isinstance(gates[0], CapGate)
            gates[0].limit = effective
        else:
            gates.append(CapGate(f"epoch {name!r}", effective))

    def door(self, kind: str | None, name: str, sort: DoorKind) -> Door:
        """Return the door of that name before a kind, or before every kind; made on demand, open."""
        door = self._doors.get((kind, name))
        if door is None:
            subject = "the runtime" if kind is None else f"kind {kind!r}"
            door = self._doors[kind, name] = Door(subject, sort)
        return door

    def hang(self, kind: str, name: str, door: Door) -> None:
        """Put a door that other kinds have before a kind too, such as that of a service they share."""
        self._doors[kind, name] = door
        self._refill()

    def doors_changed(self) -> None:
        """Let every kind have the doors that are not open, and no others."""
        self._refill()

    def forget_epoch(self, number: int) -> None:
        """Let go of an epoch that has completed."""
        self._epochs.pop(number, None)
        self._epoch_caps.pop(number, None)

    def _refill(self) -> None:
        for kind, gates in self._kinds.items():
            self._fill(kind, gates)


def _subject(limit: Limit) -> str:
    return "all messages" if limit.kind is None else f"kind {limit.kind!r}"
