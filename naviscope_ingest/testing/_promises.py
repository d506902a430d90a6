"""How a check runs the promises of a contract, one at a time, and names the one that is broken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, NoReturn, TypeVar

import trio
from attrs import define, field, frozen

from naviscope_ingest.errors import ContractViolation

__all__ = ["Promise", "Trial", "Watched", "cancel_after", "select", "try_promise"]

T = TypeVar("T")
Subject = TypeVar("Subject")


def _always(trial: object) -> bool:
    return True


@frozen
class Promise(Generic[T]):
    """One promise: a function that tries it. Its name and the first line of its docstring say what is promised.

    Attributes:
        keep: tries the promise; raises `ContractViolation` when it is broken.
        when: whether the promise is made at all (optional powers, durable stores, shared ones).
    """

    keep: Callable[[T], Awaitable[None]]
    when: Callable[[T], bool] = _always

    @property
    def name(self) -> str:
        """The name by which a report and `only=` call it."""
        return str(getattr(self.keep, "__name__", self.keep))

    def __str__(self) -> str:
        lines = (self.keep.__doc__ or self.name.replace("_", " ")).strip().splitlines()
        return f"{self.name}: {lines[0]}"


@define(eq=False)
class Trial(Generic[Subject]):
    """One promise and the thing that is to keep it, opened for this promise alone."""

    promise: str
    name: str
    factory: Callable[[str], AbstractAsyncContextManager[Subject]]
    subject: Subject = field(init=False)
    _stack: AsyncExitStack = field(factory=AsyncExitStack, init=False)

    async def __aenter__(self) -> None:
        await self.reopen()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the thing."""
        await self._stack.aclose()

    async def reopen(self) -> None:
        """Close the thing, if it is open, and open it again under the same name."""
        await self.close()
        self.subject = await self._stack.enter_async_context(self.factory(self.name))

    def equal(self, seen: object, expected: object, about: str = "") -> None:
        """Expect two things to be equal."""
        if seen != expected:
            self.fail(seen, expected, about)

    def true(self, holds: bool, expected: str, seen: object) -> None:
        """Expect something that no equality says."""
        if not holds:
            self.fail(seen, expected)

    async def raises(self, error: type[Exception], call: Callable[[], Awaitable[object]], about: str = "") -> Exception:
        """Expect a call to raise; return what it raised."""
        try:
            answer = await call()
        except error as exc:
            return exc
        return self.fail(f"it returned {answer!r:.200}", f"{error.__name__} is raised", about)

    def fail(self, seen: object, expected: object, about: str = "") -> NoReturn:
        """Report that the promise is broken."""
        before = f"{about}: " if about else ""
        raise ContractViolation(self.promise, seen=f"{before}{_shown(seen)}", expected=f"{before}{_shown(expected)}")


AnyTrial = TypeVar("AnyTrial", bound=Trial[Any])


def select(promises: Sequence[Promise[T]], only: Iterable[str] | None) -> Sequence[Promise[T]]:
    """Return the promises of those names, or all of them."""
    if only is None:
        return promises
    chosen = set(only)
    unknown = chosen - {promise.name for promise in promises}
    if unknown:
        raise ValueError(f"there is no promise {', '.join(sorted(unknown))}")
    return [promise for promise in promises if promise.name in chosen]


async def try_promise(promise: Promise[AnyTrial], trial: AnyTrial, limit: float) -> None:
    """Try one promise. Whatever goes wrong is a violation that names it.

    The failure is raised only after the thing was closed: a factory may well use a nursery, which would wrap it into a
    group.
    """
    failure: ContractViolation | None = None
    with trio.move_on_after(limit) as scope:
        async with trial:
            if promise.when(trial):
                failure = await _failure(promise, trial)
    if scope.cancelled_caught:
        raise ContractViolation(str(promise), seen="it still waits", expected=f"an answer within {limit} seconds")
    if failure is not None:
        raise failure


async def cancel_after(
    checkpoints: int, call: Callable[[], Awaitable[object]], scope: trio.CancelScope | None = None
) -> None:
    """Call, and cancel the call while it waits at its checkpoint of that number; 0 is before it begins.

    A second task that counts checkpoints of its own would cancel here and there: trio shuffles the tasks of one turn.
    An instrument sees every step of this one.
    """
    with scope or trio.CancelScope() as entered:
        canceller = _Canceller(trio.lowlevel.current_task(), checkpoints, entered)
        trio.lowlevel.add_instrument(canceller)
        try:
            await call()
        finally:
            trio.lowlevel.remove_instrument(canceller)


class Watched:
    """Awaits a call, and knows whether a cancellation reached it.

    A call that swallows a cancellation looks like one that was through before. What trio hands to the task at its
    checkpoints tells them apart.

    Args:
        call: the call.
        scope: whose cancellation; the call may well have scopes of its own.

    Attributes:
        was_cancelled: whether `trio.Cancelled` was raised inside.
    """

    def __init__(self, call: Coroutine[Any, Any, object], scope: trio.CancelScope) -> None:
        self.was_cancelled = False
        self._call = call
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, object]:
        sent: Any = None
        try:
            while True:
                try:
                    trap = self._call.send(sent)
                except StopIteration as stop:
                    return stop.value
                sent = yield trap
                if self._scope.cancel_called and isinstance(getattr(sent, "error", None), trio.Cancelled):
                    self.was_cancelled = True
        finally:
            self._call.close()


class _Canceller(trio.abc.Instrument):
    def __init__(self, task: trio.lowlevel.Task, checkpoints: int, scope: trio.CancelScope) -> None:
        self._task = task
        self._left = checkpoints
        self._scope = scope
        if not checkpoints:
            scope.cancel()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def _failure(promise: Promise[AnyTrial], trial: AnyTrial) -> ContractViolation | None:
    try:
        await promise.keep(trial)
    except Exception as exc:
        return _as_violation(str(promise), exc)
    return None


def _as_violation(promise: str, exc: BaseException) -> ContractViolation:
    if isinstance(exc, ContractViolation):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        violations, _ = exc.split(ContractViolation)
        if violations is not None or len(exc.exceptions) == 1:
            return _as_violation(promise, (violations or exc).exceptions[0])
    violation = ContractViolation(promise, seen=f"{type(exc).__name__}: {exc}", expected="no error")
    violation.__cause__ = exc
    return violation


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
