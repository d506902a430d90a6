"""The control socket of a process: others of the same user ask, and change what may be changed while it runs."""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from naviscope_ingest._kernel.kernel import sole_error
from naviscope_ingest.console.client import is_served
from naviscope_ingest.console.desk import LocalDesk
from naviscope_ingest.console.place import MAX_NAME, control_path, is_supported
from naviscope_ingest.console.protocol import MAX_LINE, VERSION, Lines, Refused, Request, encode
from naviscope_ingest.errors import IngestError
from naviscope_ingest.intake import IntakeHandle

__all__ = ["ControlUnavailable", "serve_control"]

_log = logging.getLogger("naviscope_ingest")

_MOST_CONNECTIONS: Final = 32
_IDLE: Final = 600.0
"""How long a connection may say nothing, in seconds."""

_decode = msgspec.json.Decoder(Request).decode


class ControlUnavailable(IngestError):  # noqa: N818 - reads as a sentence where it is raised
    """There can be no control socket here."""


@asynccontextmanager
async def serve_control(
    intake: IntakeHandle[Any], path: str | os.PathLike[str] | None = None, *, max_line: int = MAX_LINE
) -> AsyncIterator[Path]:
    """Let the command line of the same user work with this runtime, for as long as the block lasts.

    The socket has mode 0600, and whoever is neither the same user nor root is refused. It is removed in the end; one
    that a process left behind when it died is replaced.

    Args:
        intake: the handle of the runtime.
        path: where the socket is; beside the file of a `SqliteStore` unless it is given.
        max_line: the longest request, in bytes.

    Raises:
        ControlUnavailable: the system has no such sockets, another process serves this one, or it cannot be made.
    """
    if not is_supported():
        raise ControlUnavailable("there are no control sockets on this system")
    place = Path(path) if path is not None else control_path(_file_of(intake))
    listening = await _listen(place)
    served = place.lstat()
    _log.info("the control socket is %s", place, extra={"control": str(place)})
    from_body: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            server = _Server(intake, max_line)
            nursery.start_soon(server.serve, listening)
            try:
                yield place
            except BaseException as error:
                if sole_error(error) is None:
                    raise  # It was cancelled, perhaps in a nursery of the block.
                from_body = error
            nursery.cancel_scope.cancel()
    finally:
        listening.close()
        with suppress(OSError):
            found = place.lstat()
            if (found.st_dev, found.st_ino) == (served.st_dev, served.st_ino):
                place.unlink()
    if from_body is not None:
        raise from_body


def _file_of(intake: IntakeHandle[Any]) -> str:
    file = getattr(intake.runtime.store, "path", None)
    if not isinstance(file, str):
        raise ControlUnavailable(
            f"{type(intake.runtime.store).__name__} has no file to put the socket beside: name a path"
        )
    return file


async def _listen(place: Path) -> trio.socket.SocketType:
    """Return a socket that listens."""
    await trio.lowlevel.checkpoint()
    return trio.socket.from_stdlib_socket(_bound(place))


def _bound(place: Path) -> socket.socket:
    """Make a socket. Nobody can connect before its mode is right; nothing here can block."""
    if len(os.fsencode(place)) > MAX_NAME:
        raise ControlUnavailable(f"{place}: the name of a socket has at most {MAX_NAME} bytes, take a shorter one")
    _remove_stale(place)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(place))
        place.chmod(0o600)
        listening.listen(16)
    except OSError as error:
        listening.close()
        raise ControlUnavailable(f"{place} cannot be made: {error.strerror or error}") from error
    return listening


def _remove_stale(place: Path) -> None:
    """Remove the socket of a process that died.

    Raises:
        ControlUnavailable: its process lives, or it is no socket.
    """
    try:
        mode = place.lstat().st_mode
        if not stat.S_ISSOCK(mode):
            raise ControlUnavailable(f"{place} is there and no socket: remove it, or name another path")
        if is_served(place):
            raise ControlUnavailable(f"{place} is served by another process")
        place.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ControlUnavailable(f"{place} is there and cannot be replaced: {error.strerror}") from error


class _Server:
    def __init__(self, intake: IntakeHandle[Any], max_line: int) -> None:
        self._desk = LocalDesk(intake)
        self._max_line = max_line
        self._connections = 0

    async def serve(self, listening: trio.socket.SocketType) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connected, _ = await listening.accept()
                except OSError as error:
                    # Too many open files, say: the next one may come in again.
                    _log.warning("a connection to the control socket failed: %s", error)
                    await trio.sleep(1.0)
                    continue
                nursery.start_soon(self._attend, trio.SocketStream(connected))

    async def _attend(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._talk(stream)
        except Exception as error:
            # Nothing that one of them does may end the runtime.
            _log.error("a connection to the control socket broke", exc_info=error)
        finally:
            self._connections -= 1

    async def _talk(self, stream: trio.SocketStream) -> None:
        refusal = self._refusal(stream)
        if refusal is not None:
            await _send(stream, "error", refusal)
            return
        lines = Lines(stream, self._max_line)
        while True:
            line: bytes | None = None
            with trio.move_on_after(_IDLE):
                try:
                    line = await lines.next()
                except ValueError as error:
                    await _send(stream, "error", Refused("InvalidRequest", str(error)))
                    return
            if line is None:
                return
            try:
                request = _read(line)
                async with aclosing(self._desk.answers(request.do, request.given)) as answers:
                    async for name, value in answers:
                        await _send(stream, name, value)
            except Refused as error:
                await _send(stream, "error", error)

    def _refusal(self, stream: trio.SocketStream) -> Refused | None:
        if self._connections > _MOST_CONNECTIONS:
            return Refused("Busy", f"{_MOST_CONNECTIONS} connections are open: try again")
        user = _user_of(stream)
        if user is not None and user not in (0, os.getuid()):
            _log.warning("user %d was refused at the control socket", user)
            return Refused("NotAllowed", "this process belongs to another user")
        return None


def _user_of(stream: trio.SocketStream) -> int | None:
    """Return the number of the user at the other end; None where the system does not say, and the mode must do."""
    if sys.platform != "linux":
        return None
    credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


def _read(line: bytes) -> Request:
    try:
        request = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("InvalidRequest", f"it is no request: {error}") from error
    if request.version != VERSION:
        raise Refused(
            "InvalidRequest",
            f"the request is of version {request.version} of the protocol, and this process speaks {VERSION}: use the "
            "command line of the same version of naviscope-ingest",
        )
    return request


async def _send(stream: trio.SocketStream, name: str, value: Any) -> None:  # noqa: ANN401 - plain data
    if isinstance(value, Refused):
        value = {"type": value.type, "text": value.text, "facts": dict(value.facts)}
    try:
        line = encode({name: value})
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        line = encode({"error": {"type": "InternalError", "text": f"the answer has no form: {error}", "facts": {}}})
    await stream.send_all(line + b"\n")
