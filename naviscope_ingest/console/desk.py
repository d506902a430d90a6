"""Asking for operations, of a runtime in this process: by name, with plain data in and out.

The server of a control socket and a command line that has opened a store itself do the same here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from difflib import get_close_matches
from inspect import isasyncgenfunction
from typing import Any, Final, Protocol, TypeVar, get_type_hints

import msgspec
from attrs import frozen

from naviscope_ingest.console.protocol import Refused
from naviscope_ingest.errors import IngestError, RuntimeFailed
from naviscope_ingest.intake import IntakeHandle
from naviscope_spi import InvalidMessage, StoreFailed, StoreRefused

__all__ = ["OPERATIONS", "Desk", "LocalDesk", "Operation", "operation", "refused"]

_log = logging.getLogger("naviscope_ingest")

F = TypeVar("F", bound=Callable[..., Any])


class Desk(Protocol):
    """Where operations are asked for: in this process, or at the other end of a socket."""

    async def ask(self, name: str, /, **given: Any) -> Any:  # noqa: ANN401 - plain data
        """Do something and return the answer.

        Raises:
            Refused: it is not possible; the error says why.
        """
        ...

    def stream(self, name: str, /, **given: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401 - plain data
        """Do something that answers bit by bit."""
        ...


@frozen
class Operation:
    """Something that can be asked for.

    Attributes:
        name: a noun and a verb, parted by a dot.
        takes: what it is given.
        call: does it.
        is_stream: whether it answers bit by bit.
    """

    name: str
    takes: type[msgspec.Struct]
    call: Callable[..., Any]
    is_stream: bool


OPERATIONS: Final[dict[str, Operation]] = {}


def operation(name: str) -> Callable[[F], F]:
    """Declare an operation: a function of an intake handle and a Struct of what it is given."""

    def declare(function: F) -> F:
        (takes,) = (hint for key, hint in get_type_hints(function).items() if key == "given")
        OPERATIONS[name] = Operation(name, takes, function, isasyncgenfunction(function))
        return function

    return declare


def refused(error: Exception) -> Refused:
    """Return an error as it is told to whoever asked. What nobody expects is logged."""
    if isinstance(error, Refused):
        return error
    expected = IngestError | StoreRefused | StoreFailed | InvalidMessage | ValueError | OSError
    if not isinstance(error, expected):
        _log.error("an operation failed in a way that nobody expected", exc_info=error)
        return Refused("InternalError", f"{type(error).__name__}: {error}")
    facts = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    text = str(error)
    if isinstance(error, RuntimeFailed) and error.__cause__ is not None:
        facts["cause"] = f"{type(error.__cause__).__name__}: {error.__cause__}"
    return Refused(type(error).__name__, text, facts)


class LocalDesk:
    """Operations on a runtime in this process.

    Args:
        intake: its handle.
    """

    def __init__(self, intake: IntakeHandle[Any]) -> None:
        self._intake = intake

    async def ask(self, name: str, /, **given: Any) -> Any:  # noqa: ANN401 - plain data
        """Do something and return the answer."""
        found, checked = _find(name, given)
        if found.is_stream:
            raise Refused("UnknownOperation", f"{name} answers bit by bit: ask for its stream")
        call: Awaitable[Any] = found.call(self._intake, checked)
        try:
            return await call
        except Exception as error:
            raise refused(error) from error

    async def stream(self, name: str, /, **given: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401 - plain data
        """Do something that answers bit by bit."""
        found, checked = _find(name, given)
        if not found.is_stream:
            raise Refused("UnknownOperation", f"{name} answers at once: ask for it")
        items: AsyncGenerator[Any, None] = found.call(self._intake, checked)
        try:
            async with aclosing(items):
                async for item in items:
                    yield item
        except Exception as error:
            raise refused(error) from error

    async def answers(self, name: str, given: dict[str, Any]) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield what is sent over a socket: items and an answer, by their names."""
        found = OPERATIONS.get(name)
        if found is None or not found.is_stream:
            yield "answer", await self.ask(name, **given)
            return
        async with aclosing(self.stream(name, **given)) as items:
            async for item in items:
                yield "item", item
        yield "answer", None


def _find(name: str, given: dict[str, Any]) -> tuple[Operation, msgspec.Struct]:
    found = OPERATIONS.get(name)
    if found is None:
        close = get_close_matches(name, OPERATIONS, 1)
        hint = f"did you mean {close[0]!r}?" if close else "the other end may be of an older version"
        raise Refused("UnknownOperation", f"there is no operation {name!r}: {hint}")
    try:
        checked: msgspec.Struct = msgspec.convert(given, found.takes)
    except msgspec.ValidationError as error:
        raise Refused("InvalidRequest", f"{name}: {error}") from error
    return found, checked
