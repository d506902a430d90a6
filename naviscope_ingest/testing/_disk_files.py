"""The content of a file on a simulated disk: as processes see it, as the platter has it, and the changes in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

SECTOR = 512


class File:
    """The content of a file: as processes see it, as the platter has it, and the changes in between."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.now = bytearray(content)
        self.durable = bytearray(content)
        # Number of the operation, offset, and what was written; None is a truncation.
        self.pending: list[tuple[int, int, bytes | None]] = []
        self.locks: dict[object, int] = {}

    def copy(self, shift: int) -> File:
        """Return a file of its own that is the same; the numbers of its operations are shifted."""
        file = File(self.now)
        file.durable = bytearray(self.durable)
        file.pending = [(number + shift, offset, data) for number, offset, data in self.pending]
        return file

    def change(self, number: int, offset: int, data: bytes | None) -> None:
        _change(self.now, offset, data)
        self.pending.append((number, offset, data))

    def sync(self) -> None:
        for _, offset, data in self.pending:
            _change(self.durable, offset, data)
        self.pending.clear()


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def surviving(file: File, keeps: Callable[[int], bool], rng: random.Random | None) -> bytes:
    content = bytearray(file.durable)
    for number, offset, data in file.pending:
        if not keeps(number):
            continue
        if data is None or rng is None or rng.random() < 0.5:
            _change(content, offset, data)
            continue
        for start, piece in _sectors(offset, data):
            if rng.random() < 0.5:
                _change(content, start, piece)
    return bytes(content)


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a write that lie in one sector each."""
    start, end = offset, offset + len(data)
    while start < end:
        stop = min(end, start // SECTOR * SECTOR + SECTOR)
        yield start, data[start - offset : stop - offset]
        start = stop
