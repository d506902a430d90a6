"""The feed of a store that lives in this process: a queue for each reader, and nothing without readers.

No history is kept. A reader that comes back with the present position goes on from there; with any other it starts over
with a recovery, which in memory costs no more than a replay of old facts would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from weakref import ref

import trio

from naviscope_spi import CaughtUp, Fact, FactBody, Position

__all__ = ["Feed", "Reader"]

# A batch ends with the atomic step that makes it this long or longer.
_BATCH = 1_000

# Facts of a recovery stand before everything. A reader that stopped in the middle of one comes back with this position,
# which is too old, and so gets the whole of it again.
_BEFORE_ALL = Position(0)


class Reader(AsyncIterator[Sequence[Fact]]):
    """One reader's place in the feed. It keeps what it has not read yet; drop or close it when it is not needed."""

    def __init__(self, feed: Feed, backlog: Iterable[Sequence[Fact]]) -> None:
        self._feed = feed
        self._steps: deque[Sequence[Fact]] = deque(backlog)
        self._waiting = trio.lowlevel.ParkingLot()
        self._closed = False

    def push(self, step: Sequence[Fact]) -> None:
        """Add the facts of one atomic step and wake the reader."""
        self._steps.append(step)
        self._waiting.unpark_all()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Sequence[Fact]:
        """Wait for facts. Cancelled, none is taken."""
        await trio.lowlevel.checkpoint()
        while not self._steps:
            if self._closed:
                raise StopAsyncIteration
            await self._waiting.park()
        batch: list[Fact] = []
        while self._steps and len(batch) < _BATCH:
            batch.extend(self._steps.popleft())
        return batch

    async def aclose(self) -> None:
        """Stop reading. Not a checkpoint."""
        self._closed = True
        self._steps.clear()
        self._feed.drop(self)
        self._waiting.unpark_all()


class Feed:
    """Hands the facts of each atomic step to those who read at that moment.

    Readers are held weakly: one that its owner forgot to close goes away with its last reference, and its queue too.

    Attributes:
        position: where the last step stands.
        readers: those who read now. If nobody does, facts need not be made at all.
    """

    def __init__(self) -> None:
        self.position: Position = Position(0)
        # By identity. Asked at every step whether it is empty, so it is a plain dictionary and no WeakSet.
        self.readers: dict[int, ref[Reader]] = {}

    def advance(self) -> Position:
        """Begin the next atomic step."""
        self.position += 1  # type: ignore[assignment]  # one more is a position too; asked for every batch
        return self.position

    def publish(self, bodies: Iterable[FactBody]) -> None:
        """Hand out the facts of the present step."""
        step = [Fact(self.position, body) for body in bodies]
        if step:
            for reference in tuple(self.readers.values()):
                reader = reference()
                if reader is not None:
                    reader.push(step)

    def follow(self) -> Reader:
        """Add a reader that knows everything up to now."""
        return self._add([])

    def recover(self, known: Iterable[Sequence[FactBody]]) -> Reader:
        """Add a reader that first gets what is known by now."""
        backlog = [[Fact(_BEFORE_ALL, body) for body in chunk] for chunk in known if chunk]
        return self._add([*backlog, [Fact(self.position, CaughtUp())]])

    def add(self, reader: Reader) -> None:
        """Let a reader have the news."""
        identity = id(reader)
        self.readers[identity] = ref(reader, lambda _: self.readers.pop(identity, None))

    def drop(self, reader: Reader) -> None:
        """Remove a reader."""
        self.readers.pop(id(reader), None)

    def _add(self, backlog: Iterable[Sequence[Fact]]) -> Reader:
        reader = Reader(self, backlog)
        self.add(reader)
        return reader
