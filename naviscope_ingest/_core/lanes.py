"""Lanes: messages with the same key run one at a time.

A lane is not an edge. It is a cap of one over *ready* messages of a key, lowest place first, across epochs. A message
takes the lane when it starts and keeps it while it runs, commits and waits for a retry; deferred and held messages are
outside. (Lanes as implied dependencies deadlock when messages come in any order: 41 % of random cases.)
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from naviscope_ingest._core.nodes import State

if TYPE_CHECKING:
    from naviscope_ingest._core.nodes import Node
    from naviscope_spi import Seq

__all__ = ["Lane", "Lanes"]


class Lane:
    """The ready messages of one key.

    Attributes:
        key: what they share.
        holder: the message that has the lane.
        ticket: the number of the entry that stands for this lane in the schedule; older entries are void.
        offered: the priority of that entry; None when there is none.
        offers: the message that was the head when the entry was made. Gates are those of the head.
    """

    __slots__ = ("_by_priority", "_by_seq", "holder", "key", "offered", "offers", "ticket")

    def __init__(self, key: str) -> None:
        self.key = key
        self.holder: Node | None = None
        self.ticket = 0
        self.offered: int | None = None
        self.offers: Node | None = None
        self._by_seq: list[tuple[Seq, Node]] = []
        self._by_priority: list[tuple[int, Seq, Node]] = []

    def add(self, node: Node) -> None:
        """Add a message that became ready."""
        heappush(self._by_seq, (node.seq, node))
        heappush(self._by_priority, (-node.message.priority, node.seq, node))

    def next(self) -> Node | None:
        """Return the message that may start now, if one may."""
        holder = self.holder
        if holder is not None:
            return holder if holder.state is State.READY else None
        return self.head()

    def head(self) -> Node | None:
        """Return the ready message of the lowest place."""
        heap = self._by_seq
        while heap and heap[0][1].state is not State.READY:
            heappop(heap)
        return heap[0][1] if heap else None

    def priority(self) -> int:
        """Return the highest priority that waits in this lane: its head must not hold up what is urgent."""
        heap = self._by_priority
        while heap and heap[0][2].state is not State.READY:
            heappop(heap)
        return -heap[0][0] if heap else 0


class Lanes:
    """Every lane in which a message is ready, running, committing or in retry."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, key: str) -> Lane | None:
        """Return the lane of a key, if it is in use."""
        return self._lanes.get(key)

    def enter(self, node: Node) -> Lane:
        """Add a message that became ready, and return its lane."""
        key = node.message.key
        assert key is not None
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        lane.add(node)
        return lane

    def hold(self, node: Node) -> None:
        """Give a lane to a message that starts."""
        assert node.message.key is not None
        lane = self._lanes.get(node.message.key)
        if lane is None:
            lane = self._lanes[node.message.key] = Lane(node.message.key)
        before = lane.holder
        if before is not None and before is not node and before.state is State.READY:
            # Facts of a recovery come message by message: one that held the lane in retry may be told before another
            # one that did so earlier. It is ready now, and was in nothing but the hand that it is taken from.
            lane.add(before)
        lane.holder = node
        lane.ticket += 1
        lane.offered = None

    def leave(self, node: Node) -> Lane | None:
        """Take a message out of its lane; return the lane if another message may start now."""
        assert node.message.key is not None
        lane = self._lanes.get(node.message.key)
        if lane is None:
            return None
        if lane.holder is node:
            lane.holder = None
        if lane.holder is not None:
            return None
        if lane.head() is None:
            del self._lanes[node.message.key]
            lane.ticket += 1
            return None
        return lane
