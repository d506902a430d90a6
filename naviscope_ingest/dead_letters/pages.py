"""What is read from a store a page at a time, as one iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import trio

__all__ = ["Pages"]

T = TypeVar("T")


class Pages(AsyncIterator[T]):
    """Iterates over what is read a page at a time. It holds nothing that must be closed, so it may be dropped.

    Args:
        read: returns the next page, which may be empty; None after the last.
    """

    def __init__(self, read: Callable[[], Awaitable[Sequence[T] | None]]) -> None:
        self._read = read
        self._left: deque[T] = deque()

    @classmethod
    def of(cls, items: Sequence[T]) -> Pages[T]:
        """Iterate over what is there."""
        pages = iter([items])

        async def read() -> Sequence[T] | None:
            return next(pages, None)

        return cls(read)

    async def __anext__(self) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._left:
            page = await self._read()
            if page is None:
                raise StopAsyncIteration
            self._left.extend(page)
        return self._left.popleft()

    async def take(self, most: int) -> list[T]:
        """Return the next few; none at the end."""
        taken: list[T] = []
        while len(taken) < most:
            try:
                taken.append(await anext(self))
            except StopAsyncIteration:
                break
        return taken
