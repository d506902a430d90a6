"""Dead letters as JSON lines: one object for each, to be read, edited and taken elsewhere.

A payload is written as plain JSON (`{"json": …}`) if it comes back from it exactly, and otherwise as the bytes that the
store has (`{"base64": …, "codec": …}`). So what people can read they can also edit.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from naviscope_ingest._encoding import Scribe, decode_depends_on, encode_depends_on
from naviscope_ingest.letters import DeadLetter
from naviscope_spi import InvalidMessage, KeptLetter, Message, PayloadNotDecodable

__all__ = ["read_line", "write_line"]

_FORMAT: Final = 1
_BYTES: Final = "bytes"
"""What stands for a codec where a payload is bytes."""


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One line. Attributes as of `Message` and `Letter`; `payload` is what the message had when it ended."""

    format: int
    store: str
    epoch: str
    id: str
    kind: str
    payload: dict[str, Any]
    depends_on: list[Any] = []
    key: str | None = None
    priority: int = 0
    not_before: float | None = None
    expires_at: float | None = None
    headers: dict[str, str] = {}
    end: str = "dead"
    run: int = 0
    accepted_at: float | None = None
    letter: DeadLetter


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


def write_line(kept: KeptLetter[Any], letter: DeadLetter, store_id: str, scribe: Scribe) -> str:
    """Return a letter as a line, which ends with a newline.

    Raises:
        PayloadNotEncodable: its payload has no form outside of this process.
        PayloadNotDecodable: it cannot be read.
    """
    message = kept.edited or kept.message
    line = _Line(
        format=_FORMAT,
        store=store_id,
        epoch=kept.epoch.name,
        id=message.id,
        kind=message.kind,
        payload=_plain_payload(message, scribe),
        depends_on=msgspec.msgpack.decode(encode_depends_on(message.depends_on)),
        key=message.key,
        priority=message.priority,
        not_before=message.not_before,
        expires_at=message.expires_at,
        headers=dict(message.headers),
        end=kept.ended.end,
        run=kept.run,
        accepted_at=kept.accepted_at,
        letter=letter,
    )
    return _encode(line).decode() + "\n"


def _plain_payload(message: Message[Any], scribe: Scribe) -> dict[str, Any]:
    _, data = scribe.write_payload(message.id, message.kind, message.payload)
    if type(message.payload) is bytes:
        return {"base64": base64.b64encode(data).decode(), "codec": _BYTES}
    if scribe.codec_name == "msgspec":
        plain = msgspec.msgpack.decode(data)
        try:
            if msgspec.msgpack.encode(msgspec.json.decode(msgspec.json.encode(plain))) == data:
                return {"json": plain}
        except (msgspec.MsgspecError, TypeError, ValueError):
            # JSON has no form for it: keys that are no strings, for instance.
            pass
    return {"base64": base64.b64encode(data).decode(), "codec": scribe.codec_name}


def read_line(line: str | bytes, scribe: Scribe, now: float) -> Message[Any]:
    """Return the message of a line, to be submitted.

    A message that had run had what it depended on, and does not ask for it again. One that never ran keeps its
    dependencies. An `expires_at` that has passed is left out: whoever imports it means it to run.

    Raises:
        ValueError: it is no such line; the text says why.
    """
    try:
        found = _decode(line.encode() if isinstance(line, str) else line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(f"it is no dead letter: {error}") from error
    if found.format != _FORMAT:
        raise ValueError(f"it has format {found.format}, and this version reads {_FORMAT}")
    try:
        depends_on = () if found.letter.tried else decode_depends_on(msgspec.msgpack.encode(found.depends_on))
        message = Message(
            found.id,
            _payload(found, scribe),
            found.kind,
            depends_on,
            found.key,
            found.priority,
            found.not_before,
            None if found.expires_at is not None and found.expires_at <= now else found.expires_at,
            found.headers,
        )
        scribe.write(message)
    except (InvalidMessage, PayloadNotDecodable, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(f"its dependencies or its payload are malformed: {error}") from error
    return message


def _payload(line: _Line, scribe: Scribe) -> Any:  # noqa: ANN401 - the user's
    given: Mapping[str, Any] = line.payload
    if given.keys() == {"json"}:
        return scribe.codec.decode(line.kind, msgspec.msgpack.encode(given["json"]))
    if given.keys() != {"base64", "codec"}:
        raise ValueError('payload is {"json": …} or {"base64": …, "codec": …}')
    data = base64.b64decode(given["base64"], validate=True)
    if given["codec"] == _BYTES:
        return data
    if given["codec"] != scribe.codec_name:
        raise ValueError(f"codec {given['codec']!r:.80} wrote its payload, and the store has {scribe.codec_name!r}")
    return scribe.codec.decode(line.kind, data)
