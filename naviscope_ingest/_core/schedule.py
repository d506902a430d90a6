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

if TYPE_CHECKING:
    from naviscope_ingest._core.epochs import EpochTracker

__all__ = ["Schedule"]

_QUANTUM = 32
"""How many messages of weight 1 an epoch starts in one turn. Larger is quicker, smaller is fairer."""

_Entry: TypeAlias = "Node | tuple[Lane, int]"


class _Queue:
    """The entries of one epoch at one priority."""

    __slots__ = ("credit", "entries", "weight")

    def __init__(self, weight: int) -> None:
        self.entries: deque[_Entry] = deque()
        self.weight = weight
        self.credit = 0


class _Level:
    """The queues of one priority. The ring holds those that are not empty."""

    __slots__ = ("queues", "ring")

    def __init__(self) -> None:
        self.queues: dict[int, _Queue] = {}
        self.ring: deque[int] = deque()

    def push(self, epoch: EpochTracker, entry: _Entry, *, first: bool) -> None:
        queue = self.queues.get(epoch.number)
        if queue is None:
            queue = self.queues[epoch.number] = _Queue(epoch.options.weight)
            self.ring.append(epoch.number)
        if first:
            queue.entries.appendleft(entry)
        else:
            queue.entries.append(entry)

    def take(self, limit: int, pick: Callable[[_Entry], Node | None], taken: list[Node]) -> None:
        """Move up to `limit` messages into `taken`, turn by turn."""
        while self.ring and len(taken) < limit:
            number = self.ring[0]
            queue = self.queues[number]
            if queue.credit <= 0:
                queue.credit += _QUANTUM * queue.weight
            entries = queue.entries
            while entries and queue.credit > 0 and len(taken) < limit:
                node = pick(entries.popleft())
                if node is not None:
                    taken.append(node)
                    queue.credit -= 1
            if not entries:
                self.ring.popleft()
                del self.queues[number]
            elif queue.credit <= 0:
                self.ring.rotate(-1)


class Schedule:
    """Every ready message, in the order in which they start.

    Attributes:
        lanes: the lanes that cap messages of one key.
    """

    def __init__(self) -> None:
        self.lanes = Lanes()
        # Keyed by the negative priority, so that the first level is the most urgent.
        self._levels: SortedDict[int, _Level] = SortedDict()

    def add(self, node: Node, *, first: bool = False) -> None:
        """Add a message that became ready.

        Args:
            node: the message.
            first: put it before the others of its epoch and priority: it was started already and came back.
        """
        if node.message.key is None:
            self._push(node.message.priority, node.epoch, node, first=first)
        else:
            self._offer(self.lanes.enter(node), first=first)

    def take(self, limit: int) -> list[Node]:
        """Take out up to `limit` messages that may start now, the most urgent first. Their lanes are theirs."""
        taken: list[Node] = []
        while self._levels and len(taken) < limit:
            priority, level = self._levels.peekitem(0)
            level.take(limit, self._pick, taken)
            if not level.ring:
                del self._levels[priority]
        return taken

    def has_ready(self) -> bool:
        """Tell whether something may be ready to start; entries that are void count until they are met."""
        return bool(self._levels)

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
        self._push(priority, node.epoch, (lane, lane.ticket), first=first)

    def _push(self, priority: int, epoch: EpochTracker, entry: _Entry, *, first: bool) -> None:
        level = self._levels.get(-priority)
        if level is None:
            level = self._levels[-priority] = _Level()
        level.push(epoch, entry, first=first)

    def _pick(self, entry: _Entry) -> Node | None:
        if isinstance(entry, Node):
            return self._started(entry) if entry.state is State.READY else None
        lane, ticket = entry
        if lane.ticket != ticket:
            return None
        lane.offered = None
        node = lane.next()
        if node is None:
            return None
        self.lanes.hold(node)
        return self._started(node)

    def _started(self, node: Node) -> Node:
        # At once: a second entry of the same message, left over from an earlier wait, must find it started.
        node.state = State.RUNNING
        return node
