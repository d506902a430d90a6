"""The other end of a control socket."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from naviscope_ingest.console.place import is_supported
from naviscope_ingest.console.protocol import MAX_LINE, VERSION, Lines, Refused, encode

__all__ = ["RemoteDesk", "connect_control", "is_served"]


class RemoteDesk:
    """Operations at the other end of a stream. One is asked for at a time.

    Args:
        stream: connected to a control socket.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._lines = Lines(stream)

    async def ask(self, name: str, /, **given: Any) -> Any:  # noqa: ANN401 - plain data
        """Do something and return the answer.

        Raises:
            Refused: it is not possible, or the process has ended.
        """
        await self._send(name, given)
        word, value = await self._receive()
        return value if word == "answer" else None

    async def stream(self, name: str, /, **given: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401 - plain data
        """Do something that answers bit by bit."""
        await self._send(name, given)
        while True:
            word, value = await self._receive()
            if word == "answer":
                return
            yield value

    async def _send(self, name: str, given: dict[str, Any]) -> None:
        line = encode({"version": VERSION, "do": name, "given": given}) + b"\n"
        if len(line) > MAX_LINE:
            raise Refused("InvalidRequest", f"the request has {len(line)} bytes, and {MAX_LINE} are allowed")
        try:
            await self._stream.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # It may have said why, before it hung up.
            await trio.lowlevel.checkpoint()

    async def _receive(self) -> tuple[str, Any]:
        try:
            line = await self._lines.next()
        except (trio.BrokenResourceError, trio.ClosedResourceError, ValueError):
            line = None
        if line is None:
            raise Refused("ProcessEnded", "the process has ended, or stops, and gave no answer")
        try:
            ((word, value),) = msgspec.json.decode(line).items()
        except (msgspec.MsgspecError, ValueError, AttributeError) as error:
            raise Refused("ProcessEnded", f"the other end gave an answer that is none: {error}") from error
        if word == "error":
            raise Refused(str(value["type"]), str(value["text"]), value.get("facts"))
        return word, value


@asynccontextmanager
async def connect_control(path: str | os.PathLike[str]) -> AsyncIterator[RemoteDesk]:
    """Connect to the control socket of a process.

    Args:
        path: the socket.

    Raises:
        ConnectionError: nobody serves it.
        PermissionError: it belongs to another user.
    """
    place = Path(path)
    _check_owner(place)
    try:
        stream = await trio.open_unix_socket(str(place))
    except OSError as error:
        if isinstance(error, PermissionError):
            raise PermissionError(f"{place} belongs to another user") from error
        raise ConnectionRefusedError(f"nobody serves {place}") from error
    async with stream:
        yield RemoteDesk(stream)


def _check_owner(place: Path) -> None:
    """Refuse a socket of somebody else: what answers there could be anything."""
    if not is_supported():
        raise ConnectionRefusedError("there are no control sockets on this system")
    try:
        found = place.lstat()
    except OSError as error:
        raise ConnectionRefusedError(f"there is no {place}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise ConnectionRefusedError(f"{place} is no socket")
    if os.getuid() not in (0, found.st_uid):
        raise PermissionError(f"{place} belongs to another user")


def is_served(path: str | os.PathLike[str]) -> bool:
    """Tell whether somebody listens at a control socket."""
    if not is_supported() or not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True
