"""The order in which ready messages start: priority first, then fair between epochs.

Each priority has a ring of queues, one for each epoch that has something ready. A turn of the ring lets an epoch start
as many messages as its weight says, times a quantum; so a small epoch is done in a few turns however large the others
are. Within an epoch, first ready, first started.

Waiting counts: every so many seconds that a message has been ready are worth one priority. So what is urgent goes
first, and nothing waits for ever behind what is urgent all the time. The queue whose next message comes out highest
has the turn; the sum need not be kept up, for all of them grow alike.

Once a limit, a weight of kinds or a pause is in force, the queues are kept as a tree whose branches stand at gates: see
`branches`. A runtime that has none of these never gets there.

Entries are not taken out when a message is cancelled or expires: they are void when their message is no longer ready.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedDict

from naviscope_ingest._core.branches import QUANTUM, Branch, Branches, Entry, head_of, ready_since
from naviscope_ingest._core.gates import Gate, Hold, Ticket
from naviscope_ingest._core.lanes import Lane, Lanes
from naviscope_ingest._core.nodes import READY, RUNNING, Node
from naviscope_ingest._core.regulation import Regulation
from naviscope_ingest._core.timers import Timers
from naviscope_spi import Seq

if TYPE_CHECKING:
    from naviscope_ingest._core.epochs import EpochTracker

__all__ = ["Schedule"]

_RAISED = 0.5
"""The priority of derived messages while intake is slowed down: above that of all others that have none."""


class _Queue:
    """The entries of one epoch at one priority."""

    __slots__ = ("credit", "entries", "is_listed", "weight")

    def __init__(self, weight: int) -> None:
        self.entries: deque[Entry] = deque()
        self.weight = weight
        self.credit = 0
        self.is_listed = False


class _Level:
    """The queues of one priority. The ring holds those that are not empty; empty ones are kept for their epochs."""

    __slots__ = ("queues", "ring", "waits")

    def __init__(self, waits: list[float] | None = None) -> None:
        self.waits = waits
        self.queues: dict[int, _Queue] = {}
        self.ring: deque[_Queue] = deque()

    def queue(self, epoch: EpochTracker) -> _Queue:
        """Return the queue of an epoch, put into the ring on demand."""
        queue = self.queues.get(epoch.number)
        if queue is None:
            queue = self.queues[epoch.number] = _Queue(epoch.options.weight)
        if not queue.is_listed:
            queue.is_listed = True
            self.ring.append(queue)
        return queue

    def take(self, room: int, pick: Callable[[Entry], Node | None], now: float, taken: list[Seq]) -> int:
        """Move up to `room` messages into `taken`, turn by turn; return how much room is left."""
        ring, waits = self.ring, self.waits
        while ring and room:
            queue = ring[0]
            entries = queue.entries
            credit = queue.credit if queue.credit > 0 else queue.credit + QUANTUM * queue.weight
            turn = most = credit if credit < room else room
            if waits is not None:
                waits += _waits_of(entries, most, now)
            while entries and turn:
                node = entries.popleft()
                if type(node) is not Node:
                    picked = pick(node)
                    if picked is None:
                        continue
                    node = picked
                    if waits is not None:
                        waits.append(now - node.since)
                elif node.state is not READY:
                    continue
                # At once: a second entry of the same message, left over from an earlier wait, must find it started.
                node.state = RUNNING
                node.since = now
                taken.append(node.seq)
                turn -= 1
            room -= most - turn
            queue.credit = credit = credit - most + turn
            if not entries:
                ring.popleft()
                queue.is_listed = False
            elif credit <= 0:
                ring.rotate(-1)
        return room


def _waits_of(entries: deque[Entry], most: int, now: float) -> list[float]:
    """Return how long the next so many messages have been ready. Lanes are left out: they are asked when they start."""
    first, last = entries[0], entries[min(most, len(entries)) - 1]
    if isinstance(first, Node) and isinstance(last, Node) and first.since == last.since:
        # What became ready with one batch did so at one time, and entries stand in the order of their times.
        return [now - first.since] * min(most, len(entries))
    return [now - each.since for each in islice(entries, most) if isinstance(each, Node)]


class Schedule:
    """Every ready message, in the order in which they start.

    Args:
        timers: where gates that open by time are noted.
        ageing: how many seconds of being ready are worth one priority.

    Attributes:
        lanes: the lanes that cap messages of one key.
        ring: queues of priority 0 that are not empty.
        levels: the other priorities; all of them, once limits are in force. Something may be ready if there is any, or
            the ring is not empty; entries that are void count until they are met.
        regulation: the limits in force; None as long as there are none.
        slots: what started messages hold in gates that count.
        is_pressed: whether there is so much to do that derived messages go before submitted ones.
    """

    def __init__(self, timers: Timers, ageing: float = math.inf) -> None:
        self.lanes = Lanes()
        # Nearly every message has the priority 0, which therefore has a level of its own. The others are keyed by the
        # negative priority, so that the first one is the most urgent.
        self._usual = _Level()
        self.ring = self._usual.ring
        self.levels: SortedDict[float, Any] = SortedDict()
        self.ageing = ageing
        self.regulation: Regulation | None = None
        self.slots: dict[Seq, tuple[Ticket, ...]] = {}
        self.is_pressed = False
        self._timers = timers
        self._branches: Branches | None = None
        self._waits: list[float] | None = None

    def measure(self) -> list[float]:
        """Return a list that gets how long each message had been ready when it started. Call it at the beginning."""
        self._waits = self._usual.waits = []
        if self._branches is not None:
            self._branches.waits = self._waits
        return self._waits

    def add(self, node: Node, *, first: bool = False) -> None:
        """Add a message that became ready.

        Args:
            node: the message.
            first: put it before the others of its epoch and priority: it was started already and came back.
        """
        if node.message.key is not None:
            self._offer(self.lanes.enter(node), first=first)
        else:
            self._put(node, node, node.message.priority, first=first)

    def _put(self, entry: Entry, node: Node, priority: float, *, first: bool) -> None:
        if self._branches is not None:
            self._branches.add(entry, node, priority, node.since, first=first)
        elif first:
            self._level(priority).queue(node.epoch).entries.appendleft(entry)
        else:
            self._level(priority).queue(node.epoch).entries.append(entry)

    def usual_queue(self, epoch: EpochTracker, *, raised: bool = False) -> Callable[[Node], None]:
        """Return what adds messages without a key, of priority 0, to an epoch's queue. Good until the next `take`.

        Ask for it only to use it: a queue that stays empty must not stand in the ring.

        Args:
            epoch: the epoch.
            raised: whether they go before others of their priority.
        """
        if raised:
            return self._add_raised
        if self._branches is not None:
            return self.add
        queue = self._usual.queues.get(epoch.number)
        if queue is None:
            queue = self._usual.queue(epoch)
        elif not queue.is_listed:
            queue.is_listed = True
            self.ring.append(queue)
        return queue.entries.append

    def _add_raised(self, node: Node) -> None:
        self._put(node, node, _RAISED, first=False)

    def take(self, limit: int, now: float) -> list[Seq]:
        """Start up to `limit` messages that may start now, the most urgent first. Their lanes are theirs."""
        taken: list[Seq] = []
        if self.levels:
            self._take_by_priority(limit, now, taken)
        else:
            self._usual.take(limit, self._pick, now, taken)
        return taken

    def _take_by_priority(self, room: int, now: float, taken: list[Seq]) -> None:
        while room:
            if not self.levels:
                self._usual.take(room, self._pick, now, taken)
                return
            key, level, is_alone = self._most_urgent()
            most = room if is_alone else min(room, QUANTUM)
            if isinstance(level, Branch):
                assert self._branches is not None
                room -= self._branches.take(level, most, now, taken)
            else:
                room -= most - level.take(most, self._pick, now, taken)
                if key and not level.ring:
                    del self.levels[key]

    def _most_urgent(self) -> tuple[float, _Level | Branch, bool]:
        """Return the level whose turn it is, with its key, and whether it is the only one."""
        levels = self.levels
        if len(levels) == 1 and not self.ring:
            key, level = levels.peekitem(0)
            return key, level, True
        if self.ageing == math.inf:
            key, level = levels.peekitem(0)
            return (key, level, False) if key < 0 or not self.ring else (0, self._usual, False)
        found: list[tuple[float, float, _Level | Branch]] = []
        for key, level in ((0, self._usual), *levels.items()):
            since = self._ready_since(level)
            if since is not None:
                found.append((since + key * self.ageing, key, level))
        if not found:
            # Nothing but void entries is left, which any turn clears away.
            return (*levels.peekitem(0), False) if levels else (0, self._usual, False)
        _, key, level = min(found, key=lambda each: each[:2])
        return key, level, len(found) == 1

    def _ready_since(self, level: _Level | Branch) -> float | None:
        """Return since when the next message of a level has been ready; void entries before it are dropped."""
        if isinstance(level, Branch):
            assert self._branches is not None
            return self._branches.ready_since(level)
        while level.ring:
            since = ready_since(level.ring[0].entries)
            if since is not None:
                return since
            level.ring.popleft().is_listed = False
        return None

    def has_ready(self) -> bool:
        """Tell whether something may be ready to start. What is parked at a gate may not."""
        return bool(self.ring or self.levels)

    @property
    def depth(self) -> int:
        """How many entries there are, void ones included. A lane is one entry."""
        levels = (self._usual, *self.levels.values())
        return sum(len(queue.entries) for level in levels for queue in level.ring)

    def forget(self, number: int) -> None:
        """Let go of the queue of an epoch that has completed."""
        if self._branches is not None and self.regulation is not None:
            self._branches.forget(number)
            self.regulation.forget_epoch(number)
            return
        self._usual.queues.pop(number, None)
        for level in self.levels.values():
            assert isinstance(level, _Level)
            level.queues.pop(number, None)

    def start(self, node: Node) -> None:
        """Note that a message was started outside the order, for instance by another process."""
        if node.message.key is not None:
            self.lanes.hold(node)
        if self._branches is not None:
            self._branches.enter(node, node.since)

    def leave(self, node: Node) -> None:
        """Free the lane of a message that ended, was deferred or came back, and what it held in gates."""
        if node.message.key is not None:
            lane = self.lanes.leave(node)
            if lane is not None:
                self._offer(lane)
        if self.slots:
            self.free(node.seq)

    def free(self, seq: Seq) -> None:
        """Free what a message held in gates. It may keep its lane."""
        if self._branches is not None:
            self._branches.leave(seq)

    def free_all(self, seqs: Iterable[Seq]) -> None:
        """Free what messages held in gates."""
        for seq in seqs:
            if seq in self.slots:
                self.free(seq)

    def resume(self, node: Node) -> None:
        """Add a message whose retry is due. It kept its lane."""
        lane = None if node.message.key is None else self.lanes.get(node.message.key)
        if lane is not None and lane.holder is node:
            self._offer(lane)
        else:
            self.add(node)

    def _offer(self, lane: Lane, *, first: bool = False) -> None:
        """Let an entry stand for a lane, at the highest priority that waits in it."""
        node = lane.next()
        if node is None:
            return
        priority = max(lane.priority(), node.message.priority)
        if lane.offered is not None and lane.offered >= priority and (self._branches is None or lane.offers is node):
            return
        lane.ticket += 1
        lane.offers = node
        lane.offered = priority
        self._put((lane, lane.ticket), node, priority, first=first)

    def _level(self, priority: float) -> _Level:
        if not priority:
            return self._usual
        level = self.levels.get(-priority)
        if level is None:
            level = self.levels[-priority] = _Level(self._waits)
        assert isinstance(level, _Level)
        return level

    def _pick(self, entry: Entry) -> Node | None:
        """Return the message that an entry of a lane stands for, if it may start."""
        assert not isinstance(entry, Node)
        lane, ticket = entry
        if lane.ticket != ticket:
            return None
        lane.offered = None
        node = lane.next()
        if node is not None:
            self.lanes.hold(node)
        return node

    # Limits

    def regulate(self, now: float, running: Iterable[Node]) -> Regulation:
        """Keep the order as a tree from now on, and return the limits in force, which are none yet.

        Args:
            now: the time.
            running: the messages that are started, which count.
        """
        if self.regulation is None:
            self.regulation = Regulation()
        self.replant(now, running)
        return self.regulation

    def replant(self, now: float, running: Iterable[Node]) -> None:
        """Make the tree anew: limits have come that part messages otherwise."""
        assert self.regulation is not None
        entries = list(self._entries())
        self._usual.queues.clear()
        self.ring.clear()
        self.levels.clear()
        if self._branches is not None:
            self._branches.fell()
        self._branches = Branches(self.levels, self.regulation, self._timers, self._pick_from)
        self._branches.waits = self._waits
        self.slots = self._branches.slots
        for node in running:
            self._branches.count(node, now)
        for priority, entry in entries:
            head = head_of(entry)
            if head is not None:
                self._branches.add(entry, head, priority, now)

    def _entries(self) -> Iterator[tuple[float, Entry]]:
        if self._branches is not None:
            yield from self._branches.entries()
            return
        for key, level in ((0, self._usual), *self.levels.items()):
            assert isinstance(level, _Level)
            for queue in level.queues.values():
                for entry in queue.entries:
                    yield -key, entry

    def reopen(self, gate: Gate) -> None:
        """Let what is parked at a gate take part again: it may have room."""
        if self._branches is not None:
            self._branches.reopen(gate)

    def reopen_all(self) -> None:
        """Let everything that is parked take part again: limits have changed."""
        if self._branches is not None:
            self._branches.reopen_all()

    def gate(self, number: int) -> Gate | None:
        """Return the gate that a timer means."""
        return None if self.regulation is None else self.regulation.alarmed.get(number)

    def ring_for(self, gate: Gate, at: float) -> None:
        """Look at a gate again when that time has come."""
        if self._branches is not None:
            self._branches.ring_for(gate, at)

    def holds_of(self, node: Node, now: float) -> list[Hold]:
        """Return the gates that keep a ready message from starting."""
        return [gate.hold(now) for gate in self.closed_to(node, now)]

    def closed_to(self, node: Node, now: float) -> list[Gate]:
        """Return the gates that are closed to a message."""
        if self.regulation is None:
            return []
        return [gate for gate in self.regulation.of(node, now) if gate.room(now) <= 0]

    def most_urgent_before(self, node: Node) -> float | None:
        """Return the highest priority of what may start before a ready message, if it is higher than its own."""
        ages = {-key: self._ready_since(level) for key, level in ((0, self._usual), *self.levels.items())}
        own = node.message.priority
        ahead = (
            priority
            for priority, since in ages.items()
            if since is not None and priority > own and (priority - own) * self.ageing > since - node.since
        )
        return max(ahead, default=None)

    def has_parked(self) -> bool:
        """Tell whether a ready message is parked at a gate."""
        if self._branches is None:
            return False
        return any(head_of(entry) is not None for _, entry in self._branches.entries())

    def _pick_from(self, entry: Entry, leaf: Branch) -> Node | None:
        """As `_pick`, if the message that may start belongs to this leaf; otherwise offer it where it does."""
        assert not isinstance(entry, Node)
        assert self._branches is not None
        lane, ticket = entry
        if lane.ticket != ticket:
            return None
        node, priority, lane.offered = lane.next(), lane.offered, None
        if node is None or priority is None:
            return None
        if self._branches.leaf(node, priority, node.since) is not leaf:
            self._offer(lane)
            return None
        self.lanes.hold(node)
        return node
