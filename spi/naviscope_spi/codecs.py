"""The contract of a codec: how a durable store turns payloads into bytes and back."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["EncodesPayloads", "PayloadCodec"]


class PayloadCodec(Protocol):
    """Turns payloads into bytes and back, by the kind of their message.

    Both methods are called from any thread, may overlap, and must not wait. A payload that is `bytes` never comes here:
    stores keep it untouched. What `decode` returns for equal bytes must be equal: it tells duplicates from conflicts.
    """

    @property
    def name(self) -> str:
        """What it is called. Stores keep it with what it encoded, and refuse to decode that with another one."""
        ...

    def encode(self, kind: str, payload: Any) -> bytes:  # noqa: ANN401 - payloads are the user's
        """Return the payload as bytes.

        Raises:
            PayloadNotEncodable: it cannot be encoded, or could not be decoded as what it is.
        """
        ...

    def decode(self, kind: str, data: bytes) -> Any:  # noqa: ANN401 - payloads are the user's
        """Return the payload that these bytes stand for.

        Bytes of an earlier program come too: a field that is new and has a default takes it, one that is gone is left
        out.

        Raises:
            PayloadNotDecodable: these bytes are no payload of this kind.
        """
        ...


@runtime_checkable
class EncodesPayloads(Protocol):
    """A store that encodes payloads. What it could not take is refused before a sink sees anything of it."""

    @property
    def codec(self) -> PayloadCodec:
        """How it encodes them."""
        ...
