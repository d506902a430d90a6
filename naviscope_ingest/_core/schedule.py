"""The order in which ready messages start: priority first, then fair between epochs.

Each priority has a ring of queues, one for each epoch that has something ready. A turn of the ring lets an epoch start
as many messages as its weight says, times a quantum; so a small epoch is done in a few turns however large the others
are. Within an epoch, first ready, first started.

Entries are not taken out when a message is cancelled or expires: they are void when their message is no longer ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from sortedcontainers import SortedDict

from naviscope_ingest._core.lanes import Lane, Lanes
from naviscope_ingest._core.nodes import Node, State
from naviscope_spi import Seq

if TYPE_CHECKING:
    from naviscope_ingest._core.epochs import EpochTracker

__all__ = ["Schedule"]

_QUANTUM = 32
"""How many messages of weight 1 an epoch starts in one turn. Larger is quicker, smaller is fairer."""

_Entry: TypeAlias = "Node | tuple[Lane, int]"


class _Queue:
    """The entries of one epoch at one priority."""

    __slots__ = ("credit", "entries", "is_listed", "weight")

    def __init__(self, weight: int) -> None:
        self.entries: deque[_Entry] = deque()
        self.weight = weight
        self.credit = 0
        self.is_listed = False


class _Level:
    """The queues of one priority. The ring holds those that are not empty; empty ones are kept for their epochs."""

    __slots__ = ("queues", "ring")

    def __init__(self) -> None:
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

    def take(self, room: int, pick: Callable[[_Entry], Node | None], now: float, taken: list[Seq]) -> int:
        """Move up to `room` messages into `taken`, turn by turn; return how much room is left."""
        ready, running = State.READY, State.RUNNING
        ring = self.ring
        while ring and room:
            queue = ring[0]
            entries = queue.entries
            credit = queue.credit if queue.credit > 0 else queue.credit + _QUANTUM * queue.weight
            turn = most = credit if credit < room else room
            while entries and turn:
                node = entries.popleft()
                if type(node) is not Node:
                    picked = pick(node)
                    if picked is None:
                        continue
                    node = picked
                elif node.state is not ready:
                    continue
                # At once: a second entry of the same message, left over from an earlier wait, must find it started.
                node.state = running
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


class Schedule:
    """Every ready message, in the order in which they start.

    Attributes:
        lanes: the lanes that cap messages of one key.
        ring: queues of priority 0 that are not empty.
        levels: the other priorities. Something may be ready if there is any, or the ring is not empty; entries that
            are void count until they are met.
    """

    def __init__(self) -> None:
        self.lanes = Lanes()
        # Nearly every message has the priority 0, which therefore has a level of its own. The others are keyed by the
        # negative priority, so that the first one is the most urgent.
        self._usual = _Level()
        self.ring = self._usual.ring
        self.levels: SortedDict[int, _Level] = SortedDict()

    def add(self, node: Node, *, first: bool = False) -> None:
        """Add a message that became ready.

        Args:
            node: the message.
            first: put it before the others of its epoch and priority: it was started already and came back.
        """
        if node.message.key is not None:
            self._offer(self.lanes.enter(node), first=first)
        elif first:
            self._level(node.message.priority).queue(node.epoch).entries.appendleft(node)
        else:
            self._level(node.message.priority).queue(node.epoch).entries.append(node)

    def usual_queue(self, epoch: EpochTracker) -> Callable[[Node], None]:
        """Return what adds messages without a key, of priority 0, to an epoch's queue. Good until the next `take`.

        Ask for it only to use it: a queue that stays empty must not stand in the ring.
        """
        queue = self._usual.queues.get(epoch.number)
        if queue is None:
            queue = self._usual.queue(epoch)
        elif not queue.is_listed:
            queue.is_listed = True
            self.ring.append(queue)
        return queue.entries.append

    def take(self, limit: int, now: float) -> list[Seq]:
        """Start up to `limit` messages that may start now, the most urgent first. Their lanes are theirs."""
        taken: list[Seq] = []
        room = self._take_levels(limit, now, taken, urgent=True) if self.levels else limit
        room = self._usual.take(room, self._pick, now, taken)
        if self.levels:
            self._take_levels(room, now, taken, urgent=False)
        return taken

    def _take_levels(self, room: int, now: float, taken: list[Seq], *, urgent: bool) -> int:
        while self.levels and room:
            priority, level = self.levels.peekitem(0)
            if urgent and priority > 0:
                break
            room = level.take(room, self._pick, now, taken)
            if not level.ring:
                del self.levels[priority]
        return room

    def has_ready(self) -> bool:
        """Tell whether something may be ready to start."""
        return bool(self.ring or self.levels)

    @property
    def depth(self) -> int:
        """How many entries there are, void ones included. A lane is one entry."""
        levels = (self._usual, *self.levels.values())
        return sum(len(queue.entries) for level in levels for queue in level.ring)

    def forget(self, number: int) -> None:
        """Let go of the queue of an epoch that has completed."""
        self._usual.queues.pop(number, None)
        for level in self.levels.values():
            level.queues.pop(number, None)

    def start(self, node: Node) -> None:
        """Note that a message was started outside the order, for instance by another process."""
        if node.message.key is not None:
            self.lanes.hold(node)

    def leave(self, node: Node) -> None:
        """Free the lane of a message that ended, was deferred or came back."""
        if node.message.key is not None:
            lane = self.lanes.leave(node)
            if lane is not None:
                self._offer(lane)

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
        if lane.offered is not None and lane.offered >= priority:
            return
        lane.ticket += 1
        lane.offered = priority
        entries = self._level(priority).queue(node.epoch).entries
        if first:
            entries.appendleft((lane, lane.ticket))
        else:
            entries.append((lane, lane.ticket))

    def _level(self, priority: int) -> _Level:
        if not priority:
            return self._usual
        level = self.levels.get(-priority)
        if level is None:
            level = self.levels[-priority] = _Level()
        return level

    def _pick(self, entry: _Entry) -> Node | None:
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
