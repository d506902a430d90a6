"""A trio run in a thread of its own, and calls into it from elsewhere.

A call is a `concurrent.futures.Future`, which both worlds can wait for: blocking code by `result()`, asyncio by
`wrap_future`. Cancelling the future cancels the call. When the runtime ends, so do all calls, with its error.

Rejected: trio's guest mode, which lets trio share the thread of asyncio. Each turn of its loop then takes a hop through
a thread, and whatever keeps the one loop busy holds up the other. `trio_asyncio`: importing it slows down asyncio.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

import trio

from naviscope_ingest.errors import RuntimeStopped
from naviscope_ingest.intake import Epoch
from naviscope_ingest.reports import SubmitReceipt

__all__ = ["Portal", "both", "moment", "with_receipt"]

T = TypeVar("T")


class Portal(Generic[T]):
    """Holds something open in a trio run of its own.

    Args:
        opening: what is opened there, and closed in the end.

    Attributes:
        opened: what it is, once it is open.
        ended: done when the thread has nothing left to do; carries the error that ended it, if one did.
    """

    def __init__(self, opening: AbstractAsyncContextManager[T]) -> None:
        self.opened: Future[T] = Future()
        self.ended: Future[None] = Future()
        self._opening = opening
        self._scope = trio.CancelScope()
        self._closing = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._calls: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="naviscope-ingest")

    def start(self) -> Future[T]:
        """Start the thread; return what will be open."""
        self._thread.start()
        return self.opened

    def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Future[Any]:  # noqa: ANN401 - forwarded
        """Call a function, async or not, in the trio run."""
        future: Future[Any] = Future()
        with self._lock:
            if self.ended.done() or self._closing.is_set():
                future.set_exception(self._reason())
                return future
            self._calls.add(future)
        scope = trio.CancelScope()
        future.add_done_callback(lambda done: self._soon(scope.cancel) if done.cancelled() else None)
        self._soon(self._spawn, future, scope, lambda: function(*arguments, **keywords))
        return future

    def close(self) -> Future[None]:
        """Begin to close in order: what was started is finished. Calls that still wait are ended."""
        self._soon(self._closing.set)
        return self.ended

    def abort(self) -> Future[None]:
        """Close at once: what was started is handed back."""
        self._soon(self._scope.cancel)
        return self.ended

    def _soon(self, function: Callable[..., object], *arguments: Any) -> None:  # noqa: ANN401 - forwarded
        token = self._token
        if token is not None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(function, *arguments)

    # In the thread

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._live)
        except BaseException as raised:
            error = raised
        with self._lock:
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
            left, self._calls = self._calls, set()
        reason = self._reason()
        for future in (self.opened, *left):
            _settle(future, error=reason)

    def _reason(self) -> BaseException:
        error = self.ended.exception() if self.ended.done() else None
        return error or RuntimeStopped("the runtime has ended")

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with self._opening as thing, trio.open_nursery() as nursery:
                self._nursery = nursery
                _settle(self.opened, thing)
                await self._closing.wait()
                nursery.cancel_scope.cancel()

    def _spawn(self, future: Future[Any], scope: trio.CancelScope, call: Callable[[], Any]) -> None:
        if self._nursery is not None and not self._nursery.cancel_scope.cancel_called:
            self._nursery.start_soon(self._run, future, scope, call)

    async def _run(self, future: Future[Any], scope: trio.CancelScope, call: Callable[[], Any]) -> None:
        try:
            with scope:
                answer = call()
                _settle(future, await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            _settle(future, error=error)
        # A call that was cancelled because everything ends is told the reason when that is known.
        if future.done():
            self._calls.discard(future)


def _settle(future: Future[Any], result: object = None, error: BaseException | None = None) -> None:
    # Whoever waited may have cancelled it just now.
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


async def moment(epoch: Epoch[Any], seconds: float) -> None:
    """Wait until an epoch has completed, but no longer than so many seconds."""
    with trio.move_on_after(seconds):
        await epoch.wait()


# A submit is cut into chunks on the caller's side: the messages may come from a generator of theirs.


def both(one: SubmitReceipt, other: SubmitReceipt) -> SubmitReceipt:
    """Return the receipt for two chunks."""
    accepted, duplicates = one.accepted + other.accepted, one.duplicates + other.duplicates
    last = one.last if other.last is None else other.last
    return SubmitReceipt(accepted, duplicates, (*one.conflicts, *other.conflicts)[:1_000], last)


def with_receipt(error: Exception, before: SubmitReceipt, given: int) -> Exception:
    """Let an error tell what the chunks before it came to."""
    error.receipt = both(before, getattr(error, "receipt", SubmitReceipt()))  # type: ignore[attr-defined]  # for the caller
    error.index = given + getattr(error, "index", 0)  # type: ignore[attr-defined]  # for the caller
    return error
