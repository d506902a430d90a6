"""A handle for programs on asyncio. Methods are those of `IntakeHandle` and `Epoch`, to be awaited in asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from naviscope_ingest.errors import IngestError
from naviscope_ingest.intake import Epoch, IntakeHandle, Messages, chunks_of
from naviscope_ingest.interop.portal import Portal, both, moment, with_receipt
from naviscope_ingest.reports import EpochReport, SubmitReceipt

__all__ = ["AsyncioEpoch", "AsyncioIntake", "running_for_asyncio"]

P = TypeVar("P")
A = ParamSpec("A")
R = TypeVar("R")


@asynccontextmanager
async def running_for_asyncio(
    opening: AbstractAsyncContextManager[IntakeHandle[P]],
) -> AsyncIterator[AsyncioIntake[P]]:
    """Run a runtime in a thread of its own, for an asyncio program, for as long as a block lasts.

    An exception of the block is raised as it is, cancellation too, after what was started has finished. Cancelled
    again, it does not wait for that. If the runtime fails, calls raise its error, and so does the end of the block.

    Args:
        opening: `runtime.running()`, `IngestRuntime.open(url, …)` or `app.running()`.
    """
    portal = Portal(opening)
    try:
        yield AsyncioIntake(portal, await asyncio.wrap_future(portal.start()))
    except BaseException:
        with suppress(IngestError):
            await _close(portal)
        raise
    await _close(portal)


async def _close(portal: Portal[Any]) -> None:
    ended = asyncio.wrap_future(portal.close())
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        portal.abort()
        with suppress(IngestError):
            await asyncio.shield(ended)
        raise


class _Handle:
    """Calls methods of something that lives in the trio run."""

    def __init__(self, portal: Portal[Any], inner: Any) -> None:  # noqa: ANN401 - an intake or an epoch
        self._portal = portal
        self._inner = inner

    async def _call(self, name: str, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - forwarded
        return await asyncio.wrap_future(self._portal.call(getattr(self._inner, name), *arguments, **keywords))


def _same(method: Callable[Concatenate[Any, A], Awaitable[R]]) -> Callable[Concatenate[Any, A], Coroutine[Any, Any, R]]:
    """Return the form of a method that asyncio can await."""

    @wraps(method)
    async def awaited(self: _Handle, /, *args: A.args, **kwargs: A.kwargs) -> Any:  # noqa: ANN401 - R
        return await self._call(method.__name__, *args, **kwargs)

    return awaited


def _of_epoch(
    method: Callable[Concatenate[Any, Epoch[Any] | str, A], Awaitable[R]],
) -> Callable[Concatenate[Any, AsyncioEpoch[Any] | str, A], Coroutine[Any, Any, R]]:
    """Return the form of a method that takes an epoch first."""

    @wraps(method)
    async def awaited(self: _Handle, epoch: AsyncioEpoch[Any] | str, /, *args: A.args, **kwargs: A.kwargs) -> Any:  # noqa: ANN401 - R
        return await self._call(method.__name__, _inner(epoch), *args, **kwargs)

    return awaited


class AsyncioEpoch(_Handle, Generic[P]):
    """An epoch, for asyncio; see `Epoch`."""

    seal = _same(Epoch.seal)
    wait = _same(Epoch.wait)
    cancel = _same(Epoch.cancel)

    def __repr__(self) -> str:
        return f"<AsyncioEpoch {self.number} {self.name!r}>"

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._inner.name)

    @property
    def number(self) -> int:
        """Its number, which is never used again."""
        return int(self._inner.number)

    async def report(self) -> EpochReport:
        """Say how it stands now."""
        report: EpochReport = await asyncio.wrap_future(self._portal.call(lambda: self._inner.report))
        return report

    async def submit(self, messages: Messages[P], *, strict: bool = False) -> SubmitReceipt:
        """Submit messages; see `IntakeHandle.submit`. An iterator, async or not, is read here, chunk by chunk."""
        total, given = SubmitReceipt(), 0
        try:
            async with aclosing(chunks_of(messages, self._inner.intake.runtime.config.submit_chunk)) as chunks:
                async for chunk in chunks:
                    total = both(total, await self._call("submit", chunk, strict=strict))
                    given += len(chunk)
        except Exception as error:
            raise with_receipt(error, total, given)  # noqa: B904 - the same error, which knows more
        return total

    async def explain(self, message_id: str | None = None) -> Any:  # noqa: ANN401 - one of two explanations
        """Say why it, or one of its messages, is not done."""
        return await self._call("explain", *([] if message_id is None else [message_id]))

    async def progress(self, every: float = 0.5) -> AsyncIterator[EpochReport]:
        """Yield a report at once, one every so many seconds, and the last one when it has completed."""
        while True:
            report = await self.report()
            yield report
            if report.is_completed:
                return
            await asyncio.wrap_future(self._portal.call(moment, self._inner, every))


class AsyncioIntake(_Handle, Generic[P]):
    """Takes messages into a running runtime, from any task of the same asyncio loop; see `IntakeHandle`."""

    seal_epoch = _of_epoch(IntakeHandle.seal_epoch)
    wait_epoch = _of_epoch(IntakeHandle.wait_epoch)
    cancel_epoch = _of_epoch(IntakeHandle.cancel_epoch)
    cancel = _of_epoch(IntakeHandle.cancel)
    notify_dependency_ready = _same(IntakeHandle.notify_dependency_ready)
    forget = _same(IntakeHandle.forget)
    wait_idle = _same(IntakeHandle.wait_idle)

    @property
    def runtime(self) -> Any:  # noqa: ANN401 - IngestRuntime, which imports this module
        """The runtime behind this handle. It belongs to another thread: read its configuration, and no more."""
        return self._inner.runtime

    async def new_epoch(self, name: str | None = None, **options: Any) -> AsyncioEpoch[P]:  # noqa: ANN401 - as IntakeHandle.new_epoch
        """Open an epoch, or rejoin the kept one of that name; see `IntakeHandle.new_epoch`."""
        return AsyncioEpoch(self._portal, await self._call("new_epoch", name, **options))

    async def get_epoch(self, name: str) -> AsyncioEpoch[P]:
        """Return the kept epoch of that name."""
        return AsyncioEpoch(self._portal, await self._call("get_epoch", name))

    @asynccontextmanager
    async def epoch(self, name: str | None = None, **options: Any) -> AsyncIterator[AsyncioEpoch[P]]:  # noqa: ANN401 - as new_epoch
        """Open an epoch for a block: sealed when the block is left, and waited for; see `IntakeHandle.epoch`."""
        epoch = await self.new_epoch(name, **options)
        try:
            yield epoch
        except BaseException:
            if name is None:
                with suppress(IngestError):
                    await asyncio.shield(asyncio.ensure_future(epoch.cancel()))
            raise
        await epoch.seal()
        await epoch.wait()

    async def submit(
        self, epoch: AsyncioEpoch[P] | str, messages: Messages[P], *, strict: bool = False
    ) -> SubmitReceipt:
        """Submit messages; see `IntakeHandle.submit`. An iterator, async or not, is read here, chunk by chunk."""
        into: AsyncioEpoch[P] = await self.get_epoch(epoch) if isinstance(epoch, str) else epoch
        return await into.submit(messages, strict=strict)

    async def explain(self, epoch: AsyncioEpoch[P] | str, message_id: str | None = None) -> Any:  # noqa: ANN401 - one of two
        """Say why an epoch or a message is not done."""
        return await self._call("explain", _inner(epoch), *([] if message_id is None else [message_id]))

    async def epochs(self) -> Sequence[EpochReport]:
        """Report on every epoch that is kept."""
        reports: Sequence[EpochReport] = await self._call("epochs")
        return reports

    async def report(self, epoch: AsyncioEpoch[P] | str) -> EpochReport:
        """Say how an epoch stands now."""
        report: EpochReport = await self._call("report", _inner(epoch))
        return report


def _inner(epoch: AsyncioEpoch[Any] | str) -> Any:  # noqa: ANN401 - Epoch or its name
    return epoch if isinstance(epoch, str) else epoch._inner
