"""Processes for handlers that compute.

They are pools of the standard library, of one process each, driven from trio: a pool is held by one message at a time.
So a process that dies takes nobody with it but the message that killed it, which is tried again in a new one. (One pool
of several processes breaks as a whole, and while it breaks its methods fail in ways that cannot be told apart.)

What crosses is pickled by the library, between this process and its own children; nothing that is stored or comes from
outside ever is. Children are spawned, not forked: a fork of a process with threads inherits locks that nobody will
release. They leave Ctrl-C to their parent, and end when it is killed.

A function that has started cannot be stopped, so cancellation waits for it and drops its answer.

Rejected: trio-parallel, whose one advantage is that it kills a child on cancellation; it is one more dependency, with
one maintainer, and messages that are cancelled while they compute are rare. One child per message: it starts for longer
than most messages run.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import trio

from naviscope_spi import Permanent, SystemFailure, Transient

__all__ = ["Processes"]


class Processes:
    """As many processes as are needed at a time, up to a number. They start with the first function that needs them.

    Args:
        size: how many run at most; None for one on each core.
    """

    def __init__(self, size: int | None = None) -> None:
        self._limiter = trio.CapacityLimiter(size or os.cpu_count() or 1)
        self._idle: list[ProcessPoolExecutor] = []

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - what it returns
        """Call a function in another process and return what it returns, or raise what it raises.

        Raises:
            Transient: its process died. If the function did it, it will do it again, until its attempts are spent.
        """
        async with self._limiter:
            process = self._idle.pop() if self._idle else _new_process()
            try:
                returned, raised = await _result(process.submit(_call, function, arguments))
            except BrokenProcessPool as error:
                process.shutdown(wait=False)
                raise Transient("the process that ran it died") from error
            except BaseException:
                self._idle.append(process)
                raise
            self._idle.append(process)
        if raised is not None:
            raise raised
        return returned

    async def aclose(self) -> None:
        """End the processes, all of which are idle."""
        with trio.CancelScope(shield=True):
            while self._idle:
                await trio.to_thread.run_sync(self._idle.pop().shutdown, limiter=trio.CapacityLimiter(1))


def _new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin)


async def _result(future: Future[tuple[Any, Exception | None]]) -> tuple[Any, Exception | None]:
    done, token = trio.Event(), trio.lowlevel.current_trio_token()
    future.add_done_callback(lambda _: token.run_sync_soon(done.set))
    try:
        await done.wait()
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await done.wait()
        raise
    return future.result()


# What follows runs in the child.


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(function: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:
        return None, _portable(error)


def _portable(error: Exception) -> Exception:
    """Return an error that arrives: one that cannot be made again on the other side would take the pool down."""
    try:
        copy.deepcopy(error)
    except Exception:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, Transient):
            return Transient(text, retry_after=error.retry_after)
        return (SystemFailure if isinstance(error, SystemFailure) else Permanent)(text)
    return error
