"""Processes for handlers that compute.

The pool is that of the standard library, driven from trio. What crosses is pickled by it, between this process and its
own children; nothing that is stored or comes from outside ever is. Children are spawned, not forked: a fork of a
process with threads inherits locks that nobody will release.

Three things the library leaves to its users are done here. A child ends when its parent is killed. A child leaves
Ctrl-C to its parent. And when a child dies, which takes the whole pool down, each message that was in it runs again,
alone in a child of its own: only the one that dies again is to blame.

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
    """A pool of processes, which starts with the first function that needs it.

    Args:
        size: how many run at a time; None for one on each core.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size = size or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        self._alone = trio.Lock()

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - what it returns
        """Call a function in another process and return what it returns, or raise what it raises.

        Raises:
            Permanent: its process died, twice: in company and alone.
        """
        pool = self._pool = self._pool or _new_pool(self._size)
        try:
            return await _answer(pool, function, arguments)
        except BrokenProcessPool:
            if self._pool is pool:
                self._pool = None
            await _close(pool)
        return await self._run_alone(function, arguments)

    async def _run_alone(self, function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:  # noqa: ANN401
        async with self._alone:
            pool = _new_pool(1)
            try:
                return await _answer(pool, function, arguments)
            except BrokenProcessPool as error:
                raise Permanent("it brought down the process that ran it, also when it ran alone") from error
            finally:
                await _close(pool)

    async def aclose(self) -> None:
        """End the processes."""
        if self._pool is not None:
            await _close(self._pool)
            self._pool = None


def _new_pool(size: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(size, multiprocessing.get_context("spawn"), initializer=_begin)


async def _close(pool: ProcessPoolExecutor) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(lambda: pool.shutdown(cancel_futures=True), limiter=trio.CapacityLimiter(1))


async def _answer(pool: ProcessPoolExecutor, function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:  # noqa: ANN401
    try:
        future: Future[Any] = pool.submit(_call, function, arguments)
    except OSError as error:
        # The pool is just closing its pipes, and has not yet noted that it is broken.
        raise BrokenProcessPool from error
    done, token = trio.Event(), trio.lowlevel.current_trio_token()
    future.add_done_callback(lambda _: token.run_sync_soon(done.set))
    try:
        await done.wait()
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            # Also if it had not started: the callback has to find this run still there.
            future.cancel()
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


def _call(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:  # noqa: ANN401 - what it returns
    try:
        return function(*arguments)
    except Exception as error:
        raise _portable(error) from None


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
