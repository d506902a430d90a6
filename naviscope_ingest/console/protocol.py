"""What goes over a control socket: lines of JSON, one request after the other, each answered before the next.

A request is `{"version": 1, "do": "epoch.show", "given": {"epoch": "monday"}}`. It is answered by any number of
`{"item": …}` and then by one `{"answer": …}`, or by one `{"error": {"type": …, "text": …, "facts": {…}}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import trio

from naviscope_ingest.errors import IngestError

__all__ = ["MAX_LINE", "VERSION", "Lines", "Refused", "Request", "encode"]

VERSION: Final = 1

MAX_LINE: Final = 64 * 1024 * 1024
"""The longest line, in bytes: a payload of the usual limit, written as text, with room to spare."""


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is asked for.

    Attributes:
        version: of the protocol.
        do: which operation.
        given: what it is given.
    """

    version: int
    do: str
    given: dict[str, Any] = {}


class Refused(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """An operation was refused, here or at the other end.

    Args:
        type: the name of the error.
        text: what it says.
        facts: its attributes that are plain data.
    """

    def __init__(self, type: str, text: str, facts: Mapping[str, Any] | None = None) -> None:  # noqa: A002 - as it is sent
        super().__init__(text)
        self.type = type
        self.text = text
        self.facts = facts or {}


encode = msgspec.json.Encoder().encode


class Lines:
    """Reads lines from a stream, none of them longer than a limit.

    Args:
        stream: what is read.
        limit: the longest line, in bytes.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, limit: int = MAX_LINE) -> None:
        self._stream = stream
        self._limit = limit
        self._left = bytearray()

    async def next(self) -> bytes | None:
        """Return the next line, None at the end.

        Raises:
            ValueError: it is too long, or it is cut off.
        """
        searched = 0
        while (end := self._left.find(b"\n", searched)) < 0:
            searched = len(self._left)
            if searched > self._limit:
                raise ValueError(f"a line is longer than {self._limit} bytes")
            received = await self._stream.receive_some()
            if not received:
                if self._left:
                    raise ValueError("the last line is cut off")
                return None
            self._left += received
        line = bytes(self._left[:end])
        del self._left[: end + 1]
        if len(line) > self._limit:
            raise ValueError(f"a line is longer than {self._limit} bytes")
        return line
