"""How messages and dependencies become bytes, and come back.

`head` is what makes two messages of one id the same: kind, key and depends_on, so that a duplicate is told from a
conflict by comparing bytes. `rest` is what few messages have: priority, times, headers. Both are MessagePack; there is
nothing in them that could be executed. Durable stores keep messages so, and recorded outcomes what they derive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from naviscope_spi import (
    AnyOf,
    Dependency,
    DependsOn,
    InvalidMessage,
    Message,
    OnBarrier,
    OnEpoch,
    OnMessage,
    OnResource,
    OnUnresolved,
    PayloadCodec,
    PayloadNotDecodable,
    PayloadNotEncodable,
    Words,
)

__all__ = ["RAW", "Content", "Scribe", "decode_depends_on", "encodable_number", "encode_depends_on"]

RAW = 0
"""The codec of payloads that are bytes."""

Content: TypeAlias = tuple[str, bytes, bytes | None, int, bytes]
"""A message as columns: id, head, rest, codec, payload."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
# Most heads name plain ids, and come back whole from one call.
_decode_usual_head = msgspec.msgpack.Decoder(tuple[str, str | None, tuple[str, ...]]).decode
_MAX_CACHED = 4_096
_CODE = {OnMessage: "m", OnResource: "r", OnBarrier: "b", OnEpoch: "e", AnyOf: "a"}


def _plain(depends_on: Sequence[str | Dependency]) -> list[Any]:
    return [each if type(each) is str else _plain_one(each) for each in depends_on]


def _plain_one(each: Any) -> list[Any]:  # noqa: ANN401 - one of five classes, told apart here
    policy = [list(each.otherwise), each.timeout, each.on_unresolved]
    code = _CODE[type(each)]
    if code == "m":
        return [code, policy, each.id, each.epoch_name]
    if code == "r":
        return [code, policy, each.name, each.min_version, each.external]
    if code == "b":
        return [code, policy, each.kind]
    if code == "e":
        return [code, policy, each.name]
    return [code, policy, _plain(each.members), each.at_least]


def _dependency(plain: str | list[Any]) -> str | Dependency:
    if isinstance(plain, str):
        return plain
    code, (words, timeout, on_unresolved), *rest = plain
    policy: dict[str, Any] = {"otherwise": Words(*words), "timeout": timeout, "on_unresolved": on_unresolved}
    match code:
        case "m":
            return OnMessage(id=rest[0], epoch_name=rest[1], **policy)
        case "r":
            return _resource(tuple(words), timeout, on_unresolved, rest[1], rest[2]).named(rest[0])
        case "b":
            return OnBarrier(kind=rest[0], **policy)
        case "e":
            return OnEpoch(name=rest[0], **policy)
        case "a":
            return AnyOf(members=tuple(_dependency(each) for each in rest[0]), at_least=rest[1], **policy)
        case _:
            raise ValueError(f"a dependency of the unknown sort {code!r}")


@lru_cache(_MAX_CACHED)
def _resource(
    words: tuple[Any, ...], timeout: float | None, on_unresolved: OnUnresolved | None, min_version: int, external: bool
) -> OnResource:
    """Return a dependency on some resource. There are few policies for many names."""
    return OnResource(
        name="any",
        min_version=min_version,
        external=external,
        otherwise=Words(*words),
        timeout=timeout,
        on_unresolved=on_unresolved,
    )


def encode_depends_on(depends_on: DependsOn) -> bytes:
    """Return dependencies as bytes."""
    return _encode(_plain(depends_on))


def decode_depends_on(data: bytes) -> DependsOn:
    """Return the dependencies that these bytes stand for."""
    return tuple(_dependency(each) for each in _decode(data))


def encodable_number(value: float | None) -> float | None:
    """Return a number that MessagePack has room for: an integer may be too large for it."""
    return value if value is None or isinstance(value, float) or abs(value) < 2**63 else float(value)


class _Unreadable(Message[Any]):
    """A message whose payload cannot be decoded: reading it raises why."""

    why: PayloadNotDecodable

    @property
    def payload(self) -> Any:  # noqa: ANN401 - there is none
        raise self.why

    @payload.setter
    def payload(self, value: object) -> None:
        """Take nothing."""


class Scribe:
    """Writes messages as columns and reads them back.

    Args:
        codec: for payloads that are not bytes.
        max_payload: the largest payload, in bytes.
    """

    def __init__(self, codec: PayloadCodec, max_payload: int) -> None:
        self._codec = codec
        self.max_payload = max_payload
        self._heads: dict[bytes, tuple[str, str | None, DependsOn]] = {}
        self._plain_heads: dict[str, bytes] = {}
        self.codec_number = 1
        self.codec_names: Mapping[int, str] = {}

    @property
    def codec(self) -> PayloadCodec:
        """The codec in use."""
        return self._codec

    @property
    def codec_name(self) -> str:
        """The name of the codec in use."""
        return self._codec.name

    def write(self, message: Message[Any]) -> Content:
        """Return a message as columns.

        Raises:
            InvalidMessage: a part of it cannot be encoded, or its payload is too large.
        """
        name, kind, key, depends_on = message.id, message.kind, message.key, message.depends_on
        codec, payload = self.write_payload(name, kind, message.payload)
        if depends_on or key is not None:
            head = _encode((kind, key, _plain(depends_on)))
        else:
            head = self._plain_heads.get(kind) or self._plain_head(kind)
        if message.priority or message.headers or message.not_before is not None or message.expires_at is not None:
            return name, head, self._rest(message), codec, payload
        return name, head, None, codec, payload

    def _plain_head(self, kind: str) -> bytes:
        head = _encode([kind, None, []])
        if len(self._plain_heads) < _MAX_CACHED:
            self._plain_heads[kind] = head
        return head

    @staticmethod
    def _rest(message: Message[Any]) -> bytes:
        times = (encodable_number(message.not_before), encodable_number(message.expires_at))
        try:
            return _encode([message.priority, *times, dict(message.headers) or None])
        except UnicodeEncodeError as exc:
            raise PayloadNotEncodable(message.kind, str(exc), field="headers", message_id=message.id) from exc

    def write_payload(self, message_id: str, kind: str, payload: object) -> tuple[int, bytes]:
        """Return the codec of a payload and its bytes.

        Raises:
            InvalidMessage: it cannot be encoded, or is too large.
        """
        if type(payload) is bytes:
            codec, data = RAW, payload
        else:
            codec = self.codec_number
            try:
                data = self._codec.encode(kind, payload)
            except PayloadNotEncodable as exc:
                raise PayloadNotEncodable(kind, exc.reason, field=exc.field, message_id=message_id) from exc
        if len(data) > self.max_payload:
            raise InvalidMessage(
                f"the payload of message {message_id!r} has {len(data)} bytes, and {self.max_payload} are allowed: "
                "store it elsewhere and submit where it is, or open the store with a larger max_payload"
            )
        return codec, data

    def read(self, message_id: str, head: bytes, rest: bytes | None, codec: int, payload: bytes) -> Message[Any]:
        """Return the message of these columns. If its payload cannot be decoded, reading that raises why."""
        kind, key, depends_on = self._head(head)
        more = () if rest is None else self._more(rest)
        try:
            return Message.known(
                message_id, self.read_payload(message_id, kind, codec, payload), kind, depends_on, key, *more
            )
        except PayloadNotDecodable as exc:
            unreadable = _Unreadable(message_id, None, kind, depends_on, key, *more)
            object.__setattr__(unreadable, "why", exc)
            return unreadable

    def outline(self, message_id: str, head: bytes, rest: bytes | None) -> Message[Any]:
        """Return the message of these columns without its payload."""
        kind, key, depends_on = self._head(head)
        if rest is None:
            return Message.known(message_id, None, kind, depends_on, key)
        return Message.known(message_id, None, kind, depends_on, key, *self._more(rest))

    def read_payload(self, message_id: str, kind: str, codec: int, data: bytes) -> Any:  # noqa: ANN401 - the user's
        """Return a payload.

        Raises:
            PayloadNotDecodable: it is none of its kind any more, or another codec wrote it.
        """
        if codec == RAW:
            return data
        if codec != self.codec_number:
            writer = self.codec_names.get(codec, f"number {codec}")
            raise PayloadNotDecodable(
                kind,
                f"codec {writer!r} wrote it, and the store was opened with {self.codec_name!r}",
                message_id=message_id,
            )
        try:
            return self._codec.decode(kind, data)
        except PayloadNotDecodable as exc:
            raise PayloadNotDecodable(kind, exc.reason, field=exc.field, message_id=message_id) from exc

    def kind_of(self, head: bytes) -> str:
        """Return the kind that a head names."""
        return self._head(head)[0]

    def same_payload(self, message_id: str, head: bytes, one: tuple[int, bytes], other: tuple[int, bytes]) -> bool:
        """Whether two payloads of one message are the same: two dictionaries may be, and be written differently."""
        if one == other:
            return True
        if RAW in (one[0], other[0]):
            return False
        kind = self.kind_of(head)
        try:
            answer = self.read_payload(message_id, kind, *one) == self.read_payload(message_id, kind, *other)
        except Exception:
            return False
        return answer is True

    def _head(self, head: bytes) -> tuple[str, str | None, DependsOn]:
        known = self._heads.get(head)
        if known is None:
            try:
                known = _decode_usual_head(head)
            except msgspec.ValidationError:
                kind, key, plain = _decode(head)
                known = (kind, key, tuple(_dependency(each) for each in plain))
            # Messages that name neither key nor dependencies have one head for each kind; others seldom come again.
            if not known[2] and known[1] is None and len(self._heads) < _MAX_CACHED:
                self._heads[head] = known
        return known

    @staticmethod
    def _more(rest: bytes) -> tuple[Any, ...]:
        priority, not_before, expires_at, headers = _decode(rest)
        return (priority, not_before, expires_at) if headers is None else (priority, not_before, expires_at, headers)
