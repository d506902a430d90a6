"""The readers of a SQLite store: first what is known, chunk by chunk, then news from a queue of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias
from weakref import WeakSet

import trio

from naviscope_spi import CaughtUp, Fact, FactBody, Position, StoreFailed

__all__ = ["Feed", "Reader", "Start"]

# A batch ends with the atomic step that makes it this long or longer.
_BATCH = 1_000
# Facts of a recovery stand before everything: who stopped in the middle of one gets the whole of it again.
_BEFORE_ALL = Position(0)

Start: TypeAlias = tuple[Position, Iterator[Sequence[FactBody]] | None]
"""Where a reader starts, and what is known by then; None if it knows that already."""


class Reader(AsyncIterator[Sequence[Fact]]):
    """One reader's place in the feed. It keeps the news it has not read; drop or close it when it is not needed.

    Args:
        begin: asks the writer for a start. From then on news are queued here.
        more: asks the writer for the next chunk; None when there is none.
    """

    def __init__(
        self,
        begin: Callable[[Reader], Awaitable[Start]],
        more: Callable[[Iterator[Sequence[FactBody]]], Awaitable[Sequence[FactBody] | None]],
        drop: Callable[[Reader], None],
    ) -> None:
        self._begin = begin
        self._more = more
        self._drop = drop
        self._known: Iterator[Sequence[FactBody]] | None = None
        self._start: Position | None = None
        self._steps: deque[Sequence[Fact]] = deque()
        self._waiting = trio.lowlevel.ParkingLot()
        self._closed = False
        self._error: StoreFailed | None = None

    def push(self, step: Sequence[Fact]) -> None:
        """Add the facts of one atomic step and wake the reader."""
        self._steps.append(step)
        self._waiting.unpark_all()

    def end(self, error: StoreFailed | None) -> None:
        """End it, with the error that stopped the store."""
        self._closed = True
        self._error = error
        self._waiting.unpark_all()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Sequence[Fact]:
        """Wait for facts. Cancelled, none is taken."""
        await trio.lowlevel.checkpoint()
        if self._start is None and not self._closed:
            self._start, self._known = await self._begin(self)
            # What was told before the start is in what is known.
            while self._steps and self._steps[0][0].position <= self._start:
                self._steps.popleft()
        while self._known is not None and not self._closed:
            bodies = await self._more(self._known)
            if bodies is None:
                self._known = None
                return [Fact(self._start or _BEFORE_ALL, CaughtUp())]
            if bodies:
                return [Fact(_BEFORE_ALL, body) for body in bodies]
        while not self._steps:
            if self._error is not None:
                raise type(self._error)(*self._error.args) from self._error
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
        self._known = None
        self._steps.clear()
        self._drop(self)
        self._waiting.unpark_all()


class Feed:
    """Hands the facts of each atomic step to those who read at that moment."""

    def __init__(self) -> None:
        self._readers: WeakSet[Reader] = WeakSet()

    @property
    def is_heard(self) -> bool:
        """Whether anybody reads. Asked by the writer's thread."""
        return len(self._readers) > 0

    def add(self, reader: Reader) -> None:
        """Let a reader have the news."""
        self._readers.add(reader)

    def drop(self, reader: Reader) -> None:
        """Remove a reader."""
        self._readers.discard(reader)

    def publish(self, position: Position, bodies: Sequence[FactBody]) -> None:
        """Hand out the facts of a step."""
        step = [Fact(position, body) for body in bodies]
        for reader in tuple(self._readers):
            reader.push(step)

    def end(self, error: StoreFailed | None) -> None:
        """End all readers: the store was closed, or has stopped. They still get the news they have."""
        for reader in tuple(self._readers):
            reader.end(error)
        self._readers.clear()
