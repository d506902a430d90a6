"""What a function says about itself: what it takes, and where it has to run.

Everything is read once, when the function is declared, so that a mistake is met at the line that makes it and not with
the first message. Nothing is guessed: a parameter without a type is an error, for `object` can be written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from attrs import frozen

from naviscope_ingest.errors import HandlerError
from naviscope_spi import Delivery

__all__ = ["RunIn", "Signature", "read_signature"]

RunIn: TypeAlias = Literal["task", "thread", "process"]
"""Where a handler runs: as a part of the trio task, in a thread, in a process."""

_PLACES = get_args(RunIn)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@frozen
class Signature:
    """How a handler is called.

    Attributes:
        payload: the type of the payload.
        takes: what it gets, by position.
        run_in: where it runs.
    """

    payload: Any
    takes: tuple[Literal["payload", "delivery"], ...]
    run_in: RunIn


def read_signature(function: Callable[..., Any], name: str, payload: Any, run_in: RunIn | None) -> Signature:  # noqa: ANN401 - a type
    """Read how a function wants to be called.

    Args:
        function: the handler.
        name: how errors call it.
        payload: the type of the payload, if it is given and not annotated.
        run_in: where it shall run, if that is given.

    Raises:
        HandlerError: it cannot be a handler; the text says why, and what to write.
    """
    if not callable(function):
        raise HandlerError(f"{name}: {function!r:.80} is no function")
    parameters = _parameters(function, name)
    hints = _hints(function, name) if payload is None else {}
    takes: list[Literal["payload", "delivery"]] = []
    types: list[Any] = [] if payload is None else [payload]
    for parameter in parameters:
        hint = hints.get(parameter.name, parameter.annotation)
        if _is_delivery(hint):
            takes.append("delivery")
            types += get_args(hint) if payload is None else ()
        else:
            takes.append("payload")
            if payload is None:
                types.append(_given(hint, name, parameter.name))
    if len(set(takes)) < len(takes):
        raise HandlerError(
            f"{name}: it takes {len(takes)} parameters of one sort: write one for the payload, and if you need more "
            "than that, one annotated Delivery"
        )
    if not types:
        raise HandlerError(f"{name}: a bare Delivery does not say what its payload is: write Delivery[dict[str, Any]]")
    return Signature(_checked(types[0], name), tuple(takes), _place(function, name, run_in))


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    needed = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty or parameter.kind not in _POSITIONAL:
            if parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY:
                raise HandlerError(f"{name}: nobody can fill its parameter {parameter.name!r}: give it a default")
            continue
        needed.append(parameter)
    if not 1 <= len(needed) <= 2:
        raise HandlerError(
            f"{name}: it has {len(needed)} parameters to fill: a handler takes the payload, a Delivery, or both"
        )
    return needed


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target: Any = function
    while isinstance(target, partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target)
    except NameError as exc:
        raise HandlerError(
            f"{name}: its annotations cannot be read: {exc}. Define the type at the top level of the module, or "
            "say payload=… to handler()"
        ) from exc


def _is_delivery(hint: object) -> bool:
    return hint is Delivery or get_origin(hint) is Delivery


def _given(hint: Any, name: str, parameter: str) -> Any:  # noqa: ANN401 - a type
    if hint is inspect.Parameter.empty:
        raise HandlerError(
            f"{name}: its parameter {parameter!r} has no type: annotate it with the type of the payload, which is "
            "checked when a message is submitted (object takes anything)"
        )
    return hint


def _checked(payload: Any, name: str) -> Any:  # noqa: ANN401 - a type
    declared = Any if payload is object else payload
    try:
        msgspec.msgpack.Decoder(declared)
    except (TypeError, ValueError) as exc:
        raise HandlerError(
            f"{name}: {payload!r:.80} cannot be the type of a payload: {exc}. Use plain data, a dataclass, an attrs "
            "class, a TypedDict or a msgspec Struct"
        ) from exc
    return declared


def _place(function: Callable[..., Any], name: str, run_in: RunIn | None) -> RunIn:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if run_in is None:
        return "task" if is_async else "thread"
    if run_in not in _PLACES:
        raise HandlerError(f"{name}: run_in={run_in!r}: it is one of {', '.join(map(repr, _PLACES))}")
    if is_async != (run_in == "task"):
        kind, cure = ("an async function", "task") if is_async else ("a plain function", "thread")
        raise HandlerError(f"{name}: run_in={run_in!r} does not fit {kind}: leave it out, or say run_in={cure!r}")
    qualified = getattr(function, "__qualname__", "<object>")
    if run_in == "process" and "<" in qualified:
        raise HandlerError(
            f"{name}: another process finds a function by its name, and {qualified!r} is none: define it at the top "
            "level of a module"
        )
    return run_in
