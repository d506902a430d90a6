"""Editing a payload by paths: `{"url": "https://…", "lines.3.amount": 5}`.

A path names fields, keys and places, parted by dots. What it names must be there: a misspelt key that was added would
repair nothing and say nothing. Nothing is changed in place, and the result is of the type of the original: msgspec
checks it field by field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import attrs
import msgspec
from attrs import define

from naviscope_ingest._encoding import Scribe
from naviscope_ingest.errors import PatchRefused
from naviscope_spi import InvalidMessage, Message, PayloadNotEncodable
from naviscope_spi.names import shown

__all__ = ["KEEP", "Edit", "patched"]

_MAX_DEPTH = 50


KEEP: Final[Any] = object()
"""Stands for a payload that is left as it is."""


@define
class Edit:
    """How payloads are edited: by a patch, or as a whole.

    Attributes:
        patch: new values by path; None if there is none.
        payload: the whole; `KEEP` if it is not replaced.
        scribe: checks the result as the store would; None if the store takes everything.
    """

    patch: Mapping[str, Any] | None
    payload: Any
    scribe: Scribe | None

    def __bool__(self) -> bool:
        return self.patch is not None or self.payload is not KEEP

    @property
    def told(self) -> Mapping[str, Any]:
        """What an audit entry says of it."""
        if self.payload is not KEEP:
            return {"": "the whole payload"}
        return {} if self.patch is None else {path: _plain(value) for path, value in self.patch.items()}

    def of(self, message: Message[Any]) -> Any:  # noqa: ANN401 - payloads are the user's
        """Return the edited payload of a message.

        Raises:
            PatchRefused: it does not fit.
        """
        try:
            payload = self.payload if self.patch is None else patched(message.payload, self.patch)
        except PatchRefused as error:
            raise PatchRefused(error.path, error.reason, message.id) from error
        if payload is None:
            raise PatchRefused("", "None stands for a payload that is left as it is", message.id)
        if self.scribe is not None:
            try:
                self.scribe.write_payload(message.id, message.kind, payload)
            except PayloadNotEncodable as error:
                raise PatchRefused("", f"{error.field}: {error.reason}", message.id) from error
            except InvalidMessage as error:
                raise PatchRefused("", str(error), message.id) from error
        return payload


def _plain(value: object) -> Any:  # noqa: ANN401 - plain data
    try:
        return msgspec.to_builtins(value)
    except Exception:
        return f"{type(value).__name__}, which has no plain form"


def patched(payload: Any, patch: Mapping[str, Any]) -> Any:  # noqa: ANN401 - payloads are the user's
    """Return a payload with some of its parts replaced.

    Args:
        payload: plain data, a dataclass, an attrs class or a Struct.
        patch: new values by path.

    Raises:
        PatchRefused: a path leads nowhere, or the result is not of the payload's type.
    """
    if not isinstance(patch, Mapping) or not patch:
        raise PatchRefused("", f"a patch is a mapping of paths to values that is not empty, not {shown(patch)}")
    for path, value in patch.items():
        if not isinstance(path, str) or not path or len(path.split(".")) > _MAX_DEPTH:
            raise PatchRefused(str(path)[:80], "a path is names and numbers parted by dots, such as lines.3.amount")
        payload = _replaced(payload, path.split("."), value, path)
    return payload


def _replaced(whole: Any, parts: Sequence[str], value: Any, path: str) -> Any:  # noqa: ANN401 - payloads are the user's
    """Return a copy with the part that a path names replaced."""
    if not parts:
        return value
    name, *rest = parts
    if isinstance(whole, dict):
        key = _key(whole, name, path)
        return {**whole, key: _replaced(whole[key], rest, value, path)}
    if isinstance(whole, list | tuple) and not hasattr(whole, "_fields"):
        at = _place(whole, name, path)
        items = [*whole[:at], _replaced(whole[at], rest, value, path), *whole[at + 1 :]]
        return items if isinstance(whole, list) else tuple(items)
    fields = _fields(whole)
    if fields is None:
        raise PatchRefused(path, f"{name!r} would be a part of {shown(whole)}, which has none: give the whole payload")
    if name not in fields:
        raise PatchRefused(path, _missing(name, list(fields), f"{type(whole).__name__} has no field"))
    if not isinstance(whole, msgspec.Struct) and any(each.startswith("_") for each in fields):
        # They are no data to msgspec, which would give them back as if they had never been set.
        raise PatchRefused(path, f"{type(whole).__name__} has private fields: give the whole payload")
    part = _replaced(getattr(whole, name), rest, value, path)
    return _checked(whole, fields[name], part, path)


def _key(whole: Mapping[Any, Any], name: str, path: str) -> Any:  # noqa: ANN401 - a key
    if name in whole:
        return name
    if name.lstrip("-").isdecimal() and int(name) in whole:
        return int(name)
    raise PatchRefused(path, _missing(name, [key for key in whole if isinstance(key, str)], "there is no key"))


def _place(whole: Sequence[Any], name: str, path: str) -> int:
    if not name.isdecimal() or int(name) >= len(whole):
        raise PatchRefused(path, f"{name!r} is no place in a list of {len(whole)}: the first is 0")
    return int(name)


def _missing(name: str, known: Sequence[str], what: str) -> str:
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(map(repr, known[:10])) or 'none'}"
    return f"{what} {name!r}: {hint} What is not there cannot be replaced: give the whole payload to add it"


def _fields(whole: Any) -> dict[str, str] | None:  # noqa: ANN401 - a payload
    """Return the fields of an object by name, with the names that its constructor has for them; None if it has none."""
    if isinstance(whole, msgspec.Struct):
        return {name: name for name in whole.__struct_fields__}
    if dataclasses.is_dataclass(whole):
        return {each.name: each.name for each in dataclasses.fields(whole)}
    if attrs.has(type(whole)):
        return {each.name: each.alias or each.name for each in attrs.fields(type(whole))}
    return None


def _checked(whole: Any, argument: str, part: object, path: str) -> Any:  # noqa: ANN401 - payloads are the user's
    """Return a copy of an object with one field replaced, checked against its type."""
    replace: Callable[..., Any] = dataclasses.replace
    if isinstance(whole, msgspec.Struct):
        replace = msgspec.structs.replace
    elif not dataclasses.is_dataclass(whole):
        replace = attrs.evolve
    try:
        return msgspec.convert(msgspec.to_builtins(replace(whole, **{argument: part})), type(whole))
    except Exception as error:
        # The constructor is the user's, and may raise anything.
        raise PatchRefused(path, f"the result is no {type(whole).__name__}: {error}") from error
