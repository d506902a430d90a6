"""The order of ready messages while limits are in force: a tree whose branches stand at gates.

Each priority has a branch, in it each kind, in it each epoch, and in that, if limits go by what an expression finds in
a message, each combination of values. Leaves hold messages, first ready first. A branch takes turns among those of its
children that may start something: as many messages as the child's weight says, times a quantum. Kinds come before
epochs, so that kinds share as their weights say whatever epochs they are in, and epochs share within each kind.

A gate belongs to the branch of all it applies to, and closed it parks that branch: one step, however many messages are
in it. Inside, nothing moves, so order, turns and fairness are as before when the gate opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from sortedcontainers import SortedDict

from naviscope_ingest._core.gates import Gate, Ticket
from naviscope_ingest._core.nodes import Node, State
from naviscope_ingest._core.timers import TimerKind, Timers

if TYPE_CHECKING:
    from naviscope_ingest._core.lanes import Lane
    from naviscope_ingest._core.regulation import Regulation
    from naviscope_spi import Seq

__all__ = ["QUANTUM", "Branch", "Branches", "Entry", "head_of", "ready_since"]

Entry: TypeAlias = "Node | tuple[Lane, int]"
"""What stands in a queue: a message, or a lane by a ticket that is void when the lane has a newer one."""

QUANTUM = 32
"""How many messages of weight 1 start in one turn. Larger is quicker, smaller is fairer."""


class Branch:
    """A part of the order.

    Attributes:
        parent: what it is a part of; None for a priority.
        name: what its parent calls it.
        gates: what it has to pass. Shared with the regulation, which changes it.
        weight: its share of the parent's turns.
        credit: how many messages are left of its turn.
        is_listed: whether it takes part in its parent's turns.
        gate: the gate at which it is parked, if it is.
        children: its parts, by name.
        ring: those that may start something, in turn.
        entries: the messages of a leaf.
        path: the gates of a leaf and of all it is a part of.
    """

    __slots__ = (
        "children",
        "credit",
        "entries",
        "gate",
        "gates",
        "is_listed",
        "name",
        "parent",
        "path",
        "ring",
        "weight",
    )

    def __init__(self, parent: Branch | None, name: object, gates: list[Gate], weight: int = 1) -> None:
        self.parent = parent
        self.name = name
        self.gates = gates
        self.weight = weight
        self.credit = 0
        self.is_listed = False
        self.gate: Gate | None = None
        self.children: dict[object, Branch] = {}
        self.ring: deque[Branch] = deque()
        self.entries: deque[Entry] = deque()
        self.path: Sequence[list[Gate]] = (gates,) if parent is None else (*parent.path, gates)

    def parts(self) -> Iterator[Branch]:
        """Yield it and all its parts."""
        yield self
        for child in self.children.values():
            yield from child.parts()

    def has_entries(self) -> bool:
        """Tell whether anything in it could be listed."""
        return bool(self.entries or self.ring)


class Branches:
    """The tree.

    Args:
        levels: the branches of priorities that may start something, by negative priority.
        regulation: says which gates apply to what.
        timers: where gates that open by time are noted.
        pick: returns the message that an entry of a lane stands for, if it may start from a leaf.

    Attributes:
        slots: what started messages hold in gates that count.
        waits: gets how long each message had been ready when it was started, if anybody wants to know.
    """

    def __init__(
        self,
        levels: SortedDict[float, Any],
        regulation: Regulation,
        timers: Timers,
        pick: Callable[[Entry, Branch], Node | None],
    ) -> None:
        self._levels = levels
        self._regulation = regulation
        self._timers = timers
        self._pick = pick
        self._roots: dict[float, Branch] = {}
        self.slots: dict[Seq, tuple[Ticket, ...]] = {}
        self.waits: list[float] | None = None

    # Where messages are

    def leaf(self, node: Node, priority: float, now: float) -> Branch:
        """Return the leaf of a message, made on demand."""
        regulation, kind, epoch = self._regulation, node.message.kind, node.epoch
        root = self._roots.get(priority)
        if root is None:
            root = self._roots[priority] = Branch(None, priority, [])
        of_kind = root.children.get(kind)
        if of_kind is None:
            weight = regulation.weights.get(kind, 1)
            of_kind = root.children[kind] = Branch(root, kind, regulation.of_kind(kind), weight)
        of_epoch = of_kind.children.get(epoch.number)
        if of_epoch is None:
            gates = regulation.of_epoch(epoch.number, epoch.name)
            of_epoch = of_kind.children[epoch.number] = Branch(of_kind, epoch.number, gates, epoch.options.weight)
        if not regulation.is_keyed(kind):
            return of_epoch
        keys = regulation.keys(node.message)
        leaf = of_epoch.children.get(keys)
        if leaf is None:
            gates = regulation.of_keys(kind, keys, now)
            leaf = of_epoch.children[keys] = Branch(of_epoch, keys, gates)
            for gate in gates:
                gate.users += 1
        return leaf

    def add(self, entry: Entry, node: Node, priority: float, now: float, *, first: bool = False) -> None:
        """Add an entry to the leaf of a message."""
        leaf = self.leaf(node, priority, now)
        if first:
            leaf.entries.appendleft(entry)
        else:
            leaf.entries.append(entry)
        if not leaf.is_listed:
            self._list(leaf)

    def entries(self) -> Iterator[tuple[float, Entry]]:
        """Yield every entry with its priority."""
        for priority, root in self._roots.items():
            for part in root.parts():
                for entry in part.entries:
                    yield priority, entry

    def fell(self) -> None:
        """Take every branch away from its gate, and give back every place: another tree is made."""
        for root in self._roots.values():
            self._forget_parked(root)
        for tickets in self.slots.values():
            for ticket in tickets:
                ticket.leave()

    def forget(self, number: int) -> None:
        """Let go of the branches of an epoch that has completed."""
        for priority in [*self._roots]:
            root = self._roots[priority]
            for kind in [*root.children]:
                of_kind = root.children[kind]
                gone = of_kind.children.pop(number, None)
                if gone is not None:
                    self._drop(gone, of_kind)
                if not of_kind.children:
                    del root.children[kind]
                    self._drop(of_kind, root)
            if not root.children:
                del self._roots[priority]
                self._levels.pop(-priority, None)

    def _drop(self, branch: Branch, parent: Branch) -> None:
        """Take a branch out of its parent's ring and from its gate."""
        if branch.is_listed:
            self._unlist(branch)
            self._wither(parent)
        self._forget_parked(branch)

    def _wither(self, branch: Branch | None) -> None:
        """Take a branch that has nothing left out of the turns, and all it is a part of."""
        while branch is not None and branch.is_listed and not branch.has_entries():
            self._unlist(branch)
            branch = branch.parent

    def _forget_parked(self, branch: Branch) -> None:
        if branch.gate is not None:
            branch.gate.parked.remove(branch)
            branch.gate = None
        for child in branch.children.values():
            self._forget_parked(child)
            if type(child.name) is tuple:
                for gate in child.gates:
                    gate.users -= 1

    def _let_go(self, parent: Branch, leaf: Branch) -> None:
        """Drop an empty leaf of some values: there may be a million tenants, one after the other."""
        del parent.children[leaf.name]
        for gate in leaf.gates:
            gate.users -= 1

    # What starts

    def take(self, level: Branch, most: int, now: float, taken: list[Seq]) -> int:
        """Start up to so many messages of a priority; return how many."""
        started = self._serve(level, most, now, taken)
        self._wither(level)
        return started

    def _serve(self, branch: Branch, most: int, now: float, taken: list[Seq]) -> int:
        """Start up to so many messages of a branch; what cannot start anything more leaves the ring of its parent."""
        gates = branch.gates
        for gate in gates:
            room = gate.room(now)
            if room < most:
                if room <= 0:
                    self._park(branch, gate, now)
                    return 0
                most = room
        started = self._start(branch, most, now, taken) if branch.entries else self._turn(branch, most, now, taken)
        if started:
            for gate in gates:
                gate.enter(started, now)
        return started

    def _turn(self, branch: Branch, most: int, now: float, taken: list[Seq]) -> int:
        ring, started = branch.ring, 0
        while ring and started < most:
            child = ring[0]
            credit = child.credit if child.credit > 0 else child.credit + QUANTUM * child.weight
            left = most - started
            count = self._serve(child, credit if credit < left else left, now, taken)
            started += count
            child.credit = credit = credit - count
            if child.is_listed and not child.has_entries():
                self._unlist(child)
                if type(child.name) is tuple:
                    self._let_go(branch, child)
            elif child.is_listed and credit <= 0:
                ring.rotate(-1)
        return started

    def _start(self, leaf: Branch, most: int, now: float, taken: list[Seq]) -> int:
        ready, running, entries, slots = State.READY, State.RUNNING, leaf.entries, self.slots
        tickets = tuple(ticket for gates in leaf.path for gate in gates if (ticket := gate.ticket()) is not None)
        started, waits = 0, self.waits
        while entries and started < most:
            node = entries.popleft()
            if type(node) is not Node:
                picked = self._pick(node, leaf)
                if picked is None:
                    continue
                node = picked
            elif node.state is not ready:
                continue
            if waits is not None:
                waits.append(now - node.since)
            node.state = running
            node.since = now
            taken.append(node.seq)
            if tickets:
                slots[node.seq] = tickets
            started += 1
        return started

    def enter(self, node: Node, now: float) -> None:
        """Let a message pass that is started outside the order."""
        if node.seq not in self.slots:
            for gate in self._regulation.of(node, now):
                if gate.ticket() is None:
                    gate.enter(1, now)
            self.count(node, now)

    def count(self, node: Node, now: float) -> None:
        """Count a message that was started before its gates were there."""
        gates = [gate for gate in self._regulation.of(node, now) if gate.ticket() is not None]
        tickets = tuple(ticket for gate in gates if (ticket := gate.ticket()) is not None)
        for gate in gates:
            gate.enter(1, now)
        if tickets:
            self.slots[node.seq] = tickets

    def leave(self, seq: Seq) -> None:
        """Give back what a message held."""
        for ticket in self.slots.pop(seq, ()):
            gate = ticket.leave()
            if gate is not None and gate.parked:
                self.reopen(gate)

    def reopen(self, gate: Gate) -> None:
        """Let what is parked at a gate take part again. What finds it closed parks again, in the same order."""
        parked, gate.parked = gate.parked, []
        self._call_off(gate)
        for branch in parked:
            branch.gate = None
            if branch.has_entries():
                self._list(branch)

    def reopen_all(self) -> None:
        """Let everything that is parked take part again."""
        for gate in [
            branch.gate for root in self._roots.values() for branch in root.parts() if branch.gate is not None
        ]:
            self.reopen(gate)

    def ready_since(self, level: Branch) -> float | None:
        """Return since when the next message of a priority has been ready; void entries before it are dropped."""
        while level.ring:
            part = level
            while part.ring:
                part = part.ring[0]
            since = ready_since(part.entries)
            if since is not None:
                return since
            self._wither(part)
        self._wither(level)
        return None

    # Rings

    def _park(self, branch: Branch, gate: Gate, now: float) -> None:
        self._unlist(branch)
        branch.gate = gate
        gate.parked.append(branch)
        at = gate.opens_at(now)
        if at is not None:
            self.ring_for(gate, at)

    def ring_for(self, gate: Gate, at: float) -> None:
        """Look at a gate again when that time has come."""
        if gate.alarm is not None and gate.alarm <= at:
            return
        self._call_off(gate)
        self._regulation.alarm(gate)
        gate.alarm = at
        self._timers.set(at, TimerKind.GATE, gate.number)

    def _call_off(self, gate: Gate) -> None:
        if gate.alarm is not None:
            self._timers.drop(gate.alarm, TimerKind.GATE, gate.number)
            del self._regulation.alarmed[gate.number]
            gate.alarm = None

    def _list(self, branch: Branch) -> None:
        """Let a branch take part in turns, and all it is a part of."""
        each: Branch | None = branch
        while each is not None and not each.is_listed and each.gate is None:
            each.is_listed = True
            if each.parent is None:
                self._levels[-each.name] = each  # type: ignore[operator]  # the name of a root is its priority
            else:
                each.parent.ring.append(each)
            each = each.parent

    def _unlist(self, branch: Branch) -> None:
        branch.is_listed = False
        parent = branch.parent
        if parent is None:
            self._levels.pop(-branch.name, None)  # type: ignore[operator]  # the name of a root is its priority
        elif parent.ring[0] is branch:
            parent.ring.popleft()
        else:
            parent.ring.remove(branch)


def head_of(entry: Entry) -> Node | None:
    """Return the message that an entry stands for, if it is not void."""
    if isinstance(entry, Node):
        return entry if entry.state is State.READY else None
    lane, ticket = entry
    return lane.next() if lane.ticket == ticket else None


def ready_since(entries: deque[Entry]) -> float | None:
    """Return since when the first message of a queue has been ready; void entries before it are dropped."""
    while entries:
        node = head_of(entries[0])
        if node is not None:
            return node.since
        entries.popleft()
    return None
