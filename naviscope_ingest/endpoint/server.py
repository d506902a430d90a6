"""The server."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import trio

from naviscope_ingest._kernel.kernel import sole_error
from naviscope_ingest.endpoint.progress import Health, Progress
from naviscope_spi import Statistics

if TYPE_CHECKING:
    import h11

__all__ = ["Exposes", "serve_endpoint"]

_log = logging.getLogger("naviscope_ingest")

MAX_HEAD: Final = 8 * 1024
"""The longest request, in bytes."""

MAX_CONNECTIONS: Final = 16
"""How many connections are served at a time; more wait to be accepted."""

TIME_LIMIT: Final = 5.0
"""How long a connection may last, in seconds."""

_LOOKS: Final = 10
"""How often the runtime is looked at within the time after which it counts as stalled."""


class _Runtime(Protocol):
    def statistics(self) -> Statistics: ...


@runtime_checkable
class Exposes(Protocol):
    """Metrics that can be scraped, such as `PrometheusMetrics`."""

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return everything as text, and the type of that text."""
        ...


class _Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


@asynccontextmanager
async def serve_endpoint(
    runtime: _Runtime,
    *,
    metrics: Exposes | None = None,
    host: str = "127.0.0.1",
    port: int = 9464,
    stall_after: float = 300.0,
) -> AsyncIterator[tuple[str, int]]:
    """Answer HTTP for as long as a block lasts; yield host and port.

    `/healthz` says that the loop turns and the runtime has not failed, `/readyz` that it works and makes progress: 200,
    or 503 with the reason. `/metrics` is what Prometheus scrapes.

    Args:
        runtime: the runtime, `intake.runtime`.
        metrics: those that were given to it, such as `PrometheusMetrics`; without them there is no `/metrics`.
        host: where to listen. There is no password: leave it on the loopback unless the network is trusted.
        port: on which port; 0 for a free one.
        stall_after: for how many seconds nothing may be executed or settled while there is something to do.

    Raises:
        ImportError: h11 is not installed.
        OSError: nobody can listen there.
        ValueError: `stall_after` is not above 0.
    """
    if not 0 < stall_after < float("inf"):
        raise ValueError(f"serve_endpoint(stall_after={stall_after!r}): give seconds above 0")
    try:
        import h11 as _  # noqa: F401 - said here, and not at the first request
    except ImportError as error:
        raise ImportError('the endpoint needs a library: pip install "naviscope-ingest[endpoint]"') from error
    endpoint = _Endpoint(runtime, metrics, Progress(stall_after))
    listeners = await trio.open_tcp_listeners(port, host=host)
    try:
        async with trio.open_nursery() as nursery:
            address = listeners[0].socket.getsockname()[:2]
            _log.info("listening on http://%s:%d", *address, extra={"host": address[0], "port": address[1]})
            nursery.start_soon(endpoint.keep_looking, stall_after / _LOOKS)
            for listener in listeners:
                nursery.start_soon(endpoint.serve, listener)
            yield address
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery's wrapping is of no interest to the block: its own exception is raised as it is.
        only = sole_error(group)
        if only is None:
            raise
        raise only from only.__cause__


class _Endpoint:
    def __init__(self, runtime: _Runtime, metrics: Exposes | None, progress: Progress) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._progress = progress
        self._paths: dict[str, Callable[[str], _Answer]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._expose,
        }

    async def keep_looking(self, every: float) -> None:
        """Look at the runtime now and then, whether or not anybody asks."""
        while True:
            self._look()
            await trio.sleep(every)

    def _look(self) -> Health:
        return self._progress.look(self._runtime.statistics(), trio.current_time())

    async def serve(self, listener: trio.SocketListener) -> None:
        """Accept connections, so many at a time."""
        places = trio.Semaphore(MAX_CONNECTIONS)
        async with listener, trio.open_nursery() as nursery:
            while True:
                await places.acquire()
                try:
                    stream = await listener.accept()
                except OSError as error:
                    # Out of descriptors, say: that passes, and must not bring the runtime down.
                    places.release()
                    _log.warning("the endpoint cannot accept: %s", error, extra={"error": str(error)})
                    await trio.sleep(1)
                    continue
                nursery.start_soon(self._serve_one, stream, places)

    async def _serve_one(self, stream: trio.SocketStream, places: trio.Semaphore) -> None:
        """Answer one request within the time limit, whatever comes."""
        try:
            with trio.move_on_after(TIME_LIMIT):
                async with stream:
                    await self._converse(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            places.release()

    async def _converse(self, stream: trio.SocketStream) -> None:
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        try:
            request = await _read(connection, stream)
            if request is None:
                return
            answer, is_head = self._answer(request), request.method == b"HEAD"
        except h11.RemoteProtocolError as error:
            answer, is_head = _said(error.error_status_hint, str(error)), False
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
            *answer.headers,
        ]
        data = connection.send(h11.Response(status_code=answer.status, headers=headers))
        if not is_head:
            data = (data or b"") + (connection.send(h11.Data(data=answer.body)) or b"")
        await stream.send_all(data or b"")
        await stream.send_eof()

    def _answer(self, request: h11.Request) -> _Answer:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        answer = self._paths.get(path)
        if answer is None:
            return _said(404, f"there are {', '.join(self._paths)}")
        if request.method not in (b"GET", b"HEAD"):
            return _said(405, "only GET and HEAD are answered", ("Allow", "GET, HEAD"))
        accept = next((value.decode("latin-1") for name, value in request.headers if name == b"accept"), "")
        try:
            return answer(accept)
        except Exception:
            # Whoever watches must not bring down what is watched.
            _log.exception("the endpoint cannot answer %s", path, extra={"path": path})
            return _said(500, "the log says why")

    def _healthz(self, accept: str) -> _Answer:
        health = self._look()
        return _as_json(503 if health.state == "failed" else 200, {"state": health.state})

    def _readyz(self, accept: str) -> _Answer:
        health = self._look()
        if health.is_ready:
            return _as_json(200, {"ready": True, "state": health.state})
        return _as_json(503, {"ready": False, "state": health.state, "reason": health.reason})

    def _expose(self, accept: str) -> _Answer:
        if self._metrics is None:
            return _said(404, "this runtime is not measured: give PrometheusMetrics to it and to the endpoint")
        text, content_type = self._metrics.exposition(accept)
        return _Answer(200, text, content_type)


async def _read(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    """Return the request; None if nobody asks."""
    import h11

    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await stream.receive_some(MAX_HEAD))


def _said(status: int, what: str, *headers: tuple[str, str]) -> _Answer:
    return _as_json(status, {"error": what}, *headers)


def _as_json(status: int, value: dict[str, Any], *headers: tuple[str, str]) -> _Answer:
    return _Answer(status, json.dumps(value).encode() + b"\n", headers=headers)
