"""Messages as plain data: what a line of JSON may say, and what programs in other languages send.

A dependency is a string (the id of a message of the same epoch) or an object whose first word says what is waited for:
`{"message": "a", "epoch": "monday"}`, `{"resource": "rates", "min_version": 3}`, `{"barrier": "order"}`,
`{"epoch": "sunday"}`, `{"any_of": ["a", "b"], "at_least": 1}`. Each of them may have `otherwise`, `timeout` and
`on_unresolved`. Times are seconds since the Unix epoch, or texts such as "2026-11-18T20:00:00Z".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final

from naviscope_spi import (
    AnyOf,
    Dependency,
    InvalidMessage,
    Message,
    OnBarrier,
    OnEpoch,
    OnMessage,
    OnResource,
)

__all__ = ["FIELDS", "message_of", "plain_dependency", "time_of"]

FIELDS: Final[Mapping[str, str]] = {
    "id": "unique within its epoch; required",
    "payload": "what the handler gets: any JSON; null unless it is given",
    "kind": 'which sort of work it is; "message" unless it is given',
    "depends_on": "a list of what must be ready first: ids, and objects for everything else",
    "key": "messages with the same key run one at a time",
    "priority": "a whole number; higher runs first",
    "not_before": "do not start before this time",
    "expires_at": "do not start after this time",
    "headers": "an object of strings that travels with it",
}
"""What a message may say, and what that means."""

_POLICY: Final = ("otherwise", "timeout", "on_unresolved")
_MAX_DEPTH: Final = 10


def message_of(plain: object) -> Message[Any]:
    """Return the message that plain data means.

    Raises:
        InvalidMessage: it means none; the error says which field is wrong.
    """
    if not isinstance(plain, Mapping):
        raise InvalidMessage(f"it is {_named(plain)}: a message is an object with at least an id")
    _check_names(plain, FIELDS, "a message")
    if "id" not in plain:
        raise InvalidMessage("it has no id: every message needs one, unique within its epoch")
    depends_on = plain.get("depends_on", ())
    if isinstance(depends_on, str) or not isinstance(depends_on, Sequence):
        raise InvalidMessage(f"depends_on is {_named(depends_on)}: give a list of ids and objects")
    return Message(
        plain["id"],
        plain.get("payload"),
        plain.get("kind", "message"),
        [_dependency(each) for each in depends_on],
        plain.get("key"),
        plain.get("priority", 0),
        time_of("not_before", plain.get("not_before")),
        time_of("expires_at", plain.get("expires_at")),
        plain.get("headers", {}),
    )


def time_of(name: str, value: object) -> float | None:
    """Return a wall-clock time, given as seconds since the Unix epoch or as a text of ISO 8601 with its zone.

    Raises:
        InvalidMessage: it is neither.
    """
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        moment = None
    if not isinstance(value, str) or moment is None:
        raise InvalidMessage(f'{name} is {value!r:.80}: give seconds, or a time such as "2026-11-18T20:00:00Z"')
    if moment.tzinfo is None:
        raise InvalidMessage(f'{name} is {value!r:.80}: say in which zone, as in "{value:.80}Z" for UTC')
    return moment.timestamp()


def _dependency(plain: object, depth: int = 0) -> str | Dependency:
    if isinstance(plain, str):
        return plain
    if not isinstance(plain, Mapping):
        raise InvalidMessage(f"depends_on holds {_named(plain)}: give the id of a message, or an object")
    if depth > _MAX_DEPTH:
        raise InvalidMessage(f"depends_on is nested more than {_MAX_DEPTH} deep")
    for word, (make, fields) in _DEPENDENCIES.items():
        # An epoch is also a field of a message, which comes first.
        if word in plain:
            _check_names(plain, (word, *fields, *_POLICY), f"a dependency on {word.replace('_', ' ')}")
            options = {name: value for name, value in plain.items() if name != word}
            return _made(make, plain[word], options, depth)
    known = ", ".join(_DEPENDENCIES)
    raise InvalidMessage(f"depends_on holds an object that names none of {known}: {dict(plain)!r:.80}")


def _made(make: Callable[..., Dependency], value: object, options: dict[str, Any], depth: int) -> Dependency:
    if make is Dependency.any_of:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InvalidMessage(f"any_of is {_named(value)}: give a list of ids and objects")
        return Dependency.any_of(*(_dependency(each, depth + 1) for each in value), **options)
    if not isinstance(options.get("external", False), bool):
        raise InvalidMessage(f"external is {_named(options['external'])}: give true or false")
    return make(value, **options)


_DEPENDENCIES: Final[Mapping[str, tuple[Callable[..., Dependency], Sequence[str]]]] = {
    "message": (Dependency.message, ("epoch",)),
    "resource": (Dependency.resource, ("min_version", "external")),
    "barrier": (Dependency.barrier, ()),
    "epoch": (Dependency.epoch, ()),
    "any_of": (Dependency.any_of, ("at_least",)),
}


def _check_names(plain: Mapping[Any, Any], known: Mapping[str, str] | Sequence[str], what: str) -> None:
    for name in plain:
        if name not in known:
            close = get_close_matches(str(name), list(known), 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise InvalidMessage(f"{what} has no field {name!r:.80}: {hint}")


def _named(value: object) -> str:
    """Say what a value is in the words of JSON."""
    if value is None:
        return "null"
    words = {bool: "a boolean", str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return f"{words.get(type(value), type(value).__name__)} ({value!r:.60})"


def plain_dependency(each: str | Dependency) -> Any:  # noqa: ANN401 - a text or an object
    """Return a dependency as plain data."""
    if isinstance(each, str):
        return each
    plain: dict[str, Any]
    if isinstance(each, OnMessage):
        plain = {"message": each.id}
        if each.epoch_name is not None:
            plain["epoch"] = each.epoch_name
    elif isinstance(each, OnResource):
        plain = {"resource": each.name, "min_version": each.min_version, "external": each.external}
    elif isinstance(each, OnBarrier):
        plain = {"barrier": each.kind}
    elif isinstance(each, OnEpoch):
        plain = {"epoch": each.name}
    elif isinstance(each, AnyOf):
        plain = {"any_of": [plain_dependency(member) for member in each.members], "at_least": each.at_least}
    else:
        plain = {"other": each.describe()}
    if not each.is_plain:
        words = each.otherwise._asdict()
        # Of a dead and a cancelled parent the words are "fail" and "cancel", which are written "follow".
        follow = {"dead": "fail", "skipped": "skip", "cancelled": "cancel", "expired": "fail"}
        plain["otherwise"] = {end: "follow" if word == follow[end] else word for end, word in words.items()}
        plain |= {"timeout": each.timeout, "on_unresolved": each.on_unresolved}
    return plain
