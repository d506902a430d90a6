"""Codecs: how durable stores encode payloads.

`MsgspecCodec` is the default. It writes MessagePack, which holds types by structure, not by name: nothing of the
program's classes is stored, and nothing stored is ever executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from naviscope_spi import PayloadNotDecodable, PayloadNotEncodable

__all__ = ["MsgspecCodec"]

# A float of 64 bits whose exponent is all ones: NaN or an infinity. Other bytes may look the same, so it is a hint.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_PATH = re.compile(r"^(?P<reason>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)


class MsgspecCodec:
    """Encodes plain data, dataclasses, attrs classes, TypedDicts and msgspec Structs as MessagePack.

    A payload comes back as the type declared for its kind; without one, as plain data (dictionaries, lists, strings,
    numbers). A field that was added with a default reads old payloads, one that was removed is ignored. Payloads of a
    declared type are checked when they are stored, so that what is stored can be read.

    Args:
        types: the type of the payload for each kind.
        default: the type for all other kinds.
    """

    def __init__(self, types: Mapping[str, Any] | None = None, default: Any = Any) -> None:  # noqa: ANN401 - a type
        self._encoder = msgspec.msgpack.Encoder()
        self._default = msgspec.msgpack.Decoder(default)
        self._is_plain = default is Any
        self._decoders = {kind: msgspec.msgpack.Decoder(declared) for kind, declared in (types or {}).items()}

    @property
    def name(self) -> str:
        """What stores call it."""
        return "msgspec"

    def encode(self, kind: str, payload: Any) -> bytes:  # noqa: ANN401 - payloads are the user's
        """Return the payload as MessagePack.

        Raises:
            PayloadNotEncodable: it holds something that MessagePack has no form for, a number that is not finite, an
                integer beyond 64 bits, or it is not of the type declared for its kind.
        """
        try:
            data = self._encoder.encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as exc:
            raise PayloadNotEncodable(kind, _hint(exc), field=_culprit(payload)) from exc
        if b"\xcb" in data and _NOT_FINITE.search(data):
            _refuse_not_finite(kind, payload)
        decoder = self._decoders.get(kind)
        if decoder is None and self._is_plain:
            return data
        try:
            (decoder or self._default).decode(data)
        except msgspec.DecodeError as exc:
            reason, field = _where(exc)
            raise PayloadNotEncodable(
                kind, f"it is not of the type declared for its kind: {reason}", field=field
            ) from exc
        return data

    def decode(self, kind: str, data: bytes) -> Any:  # noqa: ANN401 - payloads are the user's
        """Return the payload as the type declared for its kind.

        Raises:
            PayloadNotDecodable: the bytes are no MessagePack, or not of that type.
        """
        try:
            return self._decoders.get(kind, self._default).decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            reason, field = _where(exc)
            raise PayloadNotDecodable(kind, reason, field=field) from exc


def _hint(exc: Exception) -> str:
    if isinstance(exc, RecursionError):
        return "it is nested too deeply, or contains itself"
    return str(exc) or type(exc).__name__


def _where(exc: Exception) -> tuple[str, str]:
    """Part msgspec's text into the reason and the field."""
    found = _PATH.match(str(exc))
    reason, path = (found["reason"], found["path"] or "") if found else (str(exc), "")
    return reason, f"payload{path}"


def _refuse_not_finite(kind: str, payload: object) -> None:
    field = _find(payload, lambda value: isinstance(value, float) and not math.isfinite(value))
    if field is not None:
        raise PayloadNotEncodable(kind, "it is NaN or infinite: use None, or a string", field=field)


def _culprit(payload: object) -> str:
    """Name the part that cannot be encoded, as nearly as it can be told."""
    return _find(payload, _is_unencodable) or "payload"


def _is_unencodable(value: object) -> bool:
    if isinstance(value, dict | list | tuple):
        return False
    try:
        msgspec.msgpack.encode(value)
    except Exception:
        return True
    return False


def _find(value: object, is_it: Any, path: str = "payload", depth: int = 0) -> str | None:  # noqa: ANN401 - a predicate
    """Return the path of the first part of which something holds."""
    if is_it(value):
        parts = _fields(value)
        inner = None if parts is None or depth > 50 else _find_in(parts, is_it, path, depth)
        return inner or path
    parts = _fields(value)
    return None if parts is None or depth > 50 else _find_in(parts, is_it, path, depth)


def _find_in(parts: list[tuple[str, object]], is_it: Any, path: str, depth: int) -> str | None:  # noqa: ANN401
    for name, part in parts:
        found = _find(part, is_it, f"{path}{name}", depth + 1)
        if found is not None:
            return found
    return None


def _fields(value: object) -> list[tuple[str, object]] | None:
    if isinstance(value, dict):
        return [(f".{key}", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names is None:
        names = [attribute.name for attribute in getattr(value, "__attrs_attrs__", ())]
    return [(f".{name}", getattr(value, name, None)) for name in names] or None
