"""What a handler returned, as an outcome.

A handler may return nothing, ops, derived messages, resources, a list of any of these, or an outcome. What it can
only have returned by mistake is refused: a plain value by itself is more often a forgotten `return op` than an op.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from naviscope_ingest.errors import BadOutcome
from naviscope_spi import Deferred, Executed, Fatal, Message, Outcome, Resource, Skipped
from naviscope_spi.names import shown

__all__ = ["outcome_of"]

_OUTCOMES = (Executed, Deferred, Skipped, Fatal)
_PLAIN = (str, bytes, bool, int, float, complex, dict, set, frozenset, range)
_NOTHING: Executed[Any, Any] = Executed()


def outcome_of(returned: object, name: str, derives: Collection[str] | None, *, has_sink: bool) -> Outcome[Any]:
    """Return the outcome that a handler means.

    Args:
        returned: what it returned.
        name: how errors call the handler.
        derives: the kinds it may derive; None for any.
        has_sink: whether there is a sink for ops.

    Raises:
        BadOutcome: it means none.
    """
    if returned is None:
        return _NOTHING
    if isinstance(returned, _OUTCOMES):
        outcome: Outcome[Any] = returned
    elif isinstance(returned, list | tuple):
        outcome = _sorted(returned)
    else:
        _refuse_mistakes(returned, name)
        outcome = _sorted((returned,))
    if isinstance(outcome, Executed):
        if outcome.ops and not has_sink:
            raise BadOutcome(f"{name} returned ops, and the app has no sink for them: declare one with app.sink(...)")
        if derives is not None:
            checked = _checked(outcome.derived, name, derives)
            # A generator is checked as it is read: it must not be in memory whole.
            derived = checked if isinstance(outcome.derived, Iterator) else tuple(checked)
            return Executed(outcome.ops, derived, outcome.ready, outcome.value)
    return outcome


def _sorted(things: Sequence[object]) -> Executed[Any, Any]:
    ops: list[object] = []
    derived: list[Message[Any]] = []
    ready: list[Resource] = []
    for each in things:
        if isinstance(each, Message):
            derived.append(each)
        elif isinstance(each, Resource):
            ready.append(each)
        elif isinstance(each, _OUTCOMES):
            raise BadOutcome(f"a list holds {shown(each)}: return an outcome by itself")
        else:
            ops.append(each)
    return Executed(ops, derived, ready)


def _refuse_mistakes(returned: object, name: str) -> None:
    if isinstance(returned, BaseException) or (isinstance(returned, type) and issubclass(returned, BaseException)):
        cure = "raise it, or return Fatal(error)"
    elif inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # Or Python warns that nobody awaited it, which is what we say.
        cure = "there is an await missing"
    elif inspect.isgenerator(returned) or inspect.isasyncgen(returned) or isinstance(returned, _PLAIN):
        cure = "return None, ops, messages, resources, a list of these, or an outcome; a plain value that is meant as "
        cure += "an op goes into a list"
    else:
        return
    raise BadOutcome(f"{name} returned {shown(returned)}: {cure}")


def _checked(derived: Iterable[Message[Any]], name: str, derives: Collection[str]) -> Iterator[Message[Any]]:
    for message in derived:
        if isinstance(message, Message) and message.kind not in derives:
            raise BadOutcome(
                f"{name} derived message {message.id!r} of kind {message.kind!r}, and declares derives="
                f"{sorted(derives)}: add the kind there, for barriers rely on it"
            )
        yield message
