"""A handle for blocking code. Methods are those of `IntakeHandle` and `Epoch`, and return when they are done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from naviscope_ingest.errors import IngestError
from naviscope_ingest.intake import Epoch, IntakeHandle, cut_messages
from naviscope_ingest.interop.portal import Portal, both, moment, with_receipt
from naviscope_ingest.reports import EpochReport, SubmitReceipt
from naviscope_spi import Message

__all__ = ["BlockingEpoch", "BlockingIntake", "running_in_thread"]

P = TypeVar("P")
A = ParamSpec("A")
R = TypeVar("R")


@contextmanager
def running_in_thread(opening: AbstractAsyncContextManager[IntakeHandle[P]]) -> Iterator[BlockingIntake[P]]:
    """Run a runtime in a thread of its own for as long as a block lasts.

    An exception of the block is raised as it is; so is Ctrl-C, after what was started has finished. A second Ctrl-C
    does not wait for that. If the runtime fails, calls raise its error, and so does the end of the block.

    Args:
        opening: `runtime.running()`, `IngestRuntime.open(url, …)` or `app.running()`.
    """
    portal = Portal(opening)
    try:
        yield BlockingIntake(portal, _wait(portal.start()))
    except BaseException:
        with suppress(IngestError):
            _close(portal)
        raise
    _close(portal)


def _close(portal: Portal[Any]) -> None:
    try:
        portal.close().result()
    except KeyboardInterrupt:
        if not portal.ended.done():
            portal.abort().result()
        raise


def _wait(future: Future[R]) -> R:
    """Wait for a call. Interrupted, it is cancelled."""
    try:
        return future.result()
    finally:
        future.cancel()


class _Handle:
    """Calls methods of something that lives in the trio run."""

    def __init__(self, portal: Portal[Any], inner: Any) -> None:  # noqa: ANN401 - an intake or an epoch
        self._portal = portal
        self._inner = inner

    def _call(self, name: str, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - forwarded
        return _wait(self._portal.call(getattr(self._inner, name), *arguments, **keywords))


def _same(method: Callable[Concatenate[Any, A], Awaitable[R]]) -> Callable[Concatenate[Any, A], R]:
    """Return the blocking form of a method."""

    @wraps(method)
    def blocking(self: _Handle, /, *args: A.args, **kwargs: A.kwargs) -> Any:  # noqa: ANN401 - R
        return self._call(method.__name__, *args, **kwargs)

    return blocking


def _of_epoch(
    method: Callable[Concatenate[Any, Epoch[Any] | str, A], Awaitable[R]],
) -> Callable[Concatenate[Any, BlockingEpoch[Any] | str, A], R]:
    """Return the blocking form of a method that takes an epoch first."""

    @wraps(method)
    def blocking(self: _Handle, epoch: BlockingEpoch[Any] | str, /, *args: A.args, **kwargs: A.kwargs) -> Any:  # noqa: ANN401 - R
        return self._call(method.__name__, _inner(epoch), *args, **kwargs)

    return blocking


class BlockingEpoch(_Handle, Generic[P]):
    """An epoch, for blocking code; see `Epoch`."""

    seal = _same(Epoch.seal)
    wait = _same(Epoch.wait)
    cancel = _same(Epoch.cancel)

    def __repr__(self) -> str:
        return f"<BlockingEpoch {self.number} {self.name!r}>"

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._inner.name)

    @property
    def number(self) -> int:
        """Its number, which is never used again."""
        return int(self._inner.number)

    @property
    def report(self) -> EpochReport:
        """How it stands now."""
        report: EpochReport = _wait(self._portal.call(lambda: self._inner.report))
        return report

    def submit(self, messages: Iterable[Message[P]] | Message[P], *, strict: bool = False) -> SubmitReceipt:
        """Submit messages; see `IntakeHandle.submit`. An iterator is read here, chunk by chunk."""
        total, given = SubmitReceipt(), 0
        try:
            for chunk in cut_messages(messages, self._inner.intake.runtime.config.submit_chunk):
                total = both(total, self._call("submit", chunk, strict=strict))
                given += len(chunk)
        except Exception as error:
            raise with_receipt(error, total, given)  # noqa: B904 - the same error, which knows more
        return total

    def explain(self, message_id: str | None = None) -> Any:  # noqa: ANN401 - one of two explanations
        """Say why it, or one of its messages, is not done."""
        return self._call("explain", *([] if message_id is None else [message_id]))

    def progress(self, every: float = 0.5) -> Iterator[EpochReport]:
        """Yield a report at once, one every so many seconds, and the last one when it has completed."""
        while True:
            report = self.report
            yield report
            if report.is_completed:
                return
            _wait(self._portal.call(moment, self._inner, every))


class BlockingIntake(_Handle, Generic[P]):
    """Takes messages into a running runtime, from any thread; see `IntakeHandle`."""

    seal_epoch = _of_epoch(IntakeHandle.seal_epoch)
    wait_epoch = _of_epoch(IntakeHandle.wait_epoch)
    cancel_epoch = _of_epoch(IntakeHandle.cancel_epoch)
    cancel = _of_epoch(IntakeHandle.cancel)
    notify_dependency_ready = _same(IntakeHandle.notify_dependency_ready)
    forget = _same(IntakeHandle.forget)
    wait_idle = _same(IntakeHandle.wait_idle)

    @property
    def runtime(self) -> Any:  # noqa: ANN401 - IngestRuntime, which imports this module
        """The runtime behind this handle. It belongs to the other thread: read its configuration, and no more."""
        return self._inner.runtime

    def new_epoch(self, name: str | None = None, **options: Any) -> BlockingEpoch[P]:  # noqa: ANN401 - as IntakeHandle.new_epoch
        """Open an epoch, or rejoin the kept one of that name; see `IntakeHandle.new_epoch`."""
        return BlockingEpoch(self._portal, self._call("new_epoch", name, **options))

    def get_epoch(self, name: str) -> BlockingEpoch[P]:
        """Return the kept epoch of that name."""
        return BlockingEpoch(self._portal, self._call("get_epoch", name))

    @contextmanager
    def epoch(self, name: str | None = None, **options: Any) -> Iterator[BlockingEpoch[P]]:  # noqa: ANN401 - as new_epoch
        """Open an epoch for a block: sealed when the block is left, and waited for; see `IntakeHandle.epoch`."""
        epoch = self.new_epoch(name, **options)
        try:
            yield epoch
        except BaseException:
            if name is None:
                with suppress(IngestError):
                    epoch.cancel()
            raise
        epoch.seal()
        epoch.wait()

    def submit(
        self, epoch: BlockingEpoch[P] | str, messages: Iterable[Message[P]] | Message[P], *, strict: bool = False
    ) -> SubmitReceipt:
        """Submit messages; see `IntakeHandle.submit`. An iterator is read here, chunk by chunk."""
        into: BlockingEpoch[P] = self.get_epoch(epoch) if isinstance(epoch, str) else epoch
        return into.submit(messages, strict=strict)

    def explain(self, epoch: BlockingEpoch[P] | str, message_id: str | None = None) -> Any:  # noqa: ANN401 - one of two
        """Say why an epoch or a message is not done."""
        return self._call("explain", _inner(epoch), *([] if message_id is None else [message_id]))

    def epochs(self) -> Sequence[EpochReport]:
        """Report on every epoch that is kept."""
        reports: Sequence[EpochReport] = self._call("epochs")
        return reports

    def report(self, epoch: BlockingEpoch[P] | str) -> EpochReport:
        """Say how an epoch stands now."""
        report: EpochReport = self._call("report", _inner(epoch))
        return report


def _inner(epoch: BlockingEpoch[Any] | str) -> Any:  # noqa: ANN401 - Epoch or its name
    return epoch if isinstance(epoch, str) else epoch._inner
