"""The executor behind an app: looks a handler up by the kind of a message, and runs it where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import trio
from attrs import frozen

from naviscope_ingest.codecs import MsgspecCodec
from naviscope_ingest.errors import UnknownKind
from naviscope_ingest.handlers.answer import outcome_of
from naviscope_ingest.handlers.processes import Processes
from naviscope_ingest.handlers.signature import Signature
from naviscope_spi import Delivery, Message, Outcome, PayloadCodec, PayloadNotEncodable, Permanent

__all__ = ["Handler", "HandlerTable"]


@frozen
class Handler:
    """One handler, as it was declared.

    Attributes:
        kind: the kind of message it is for.
        function: the function itself.
        signature: how it is called.
        derives: the kinds it derives; None if it does not say.
    """

    kind: str
    function: Callable[..., Any]
    signature: Signature
    derives: Collection[str] | None = None

    @property
    def name(self) -> str:
        """How errors call it."""
        return f"handler {getattr(self.function, '__qualname__', repr(self.function))!r} of kind {self.kind!r}"


class HandlerTable:
    """An executor of handlers.

    Args:
        handlers: by kind.
        codec: knows the type of each payload.
        encodes: whether the store encodes payloads with that codec. If it does not, they are converted here, so that
            handlers see the same in both cases.
        has_sink: whether there is a sink for ops.
        threads: how many handlers may run in threads at a time.
        processes: for those that run in processes.
        is_inline: whether plain functions are called where they are instead.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        codec: PayloadCodec,
        *,
        encodes: bool,
        has_sink: bool,
        threads: int,
        processes: Processes,
        is_inline: bool = False,
    ) -> None:
        self._handlers = handlers
        self._codec = codec
        self._encodes = encodes
        self._has_sink = has_sink
        self._threads = trio.CapacityLimiter(threads)
        self._processes = processes
        self._is_inline = is_inline

    def check_messages(self, messages: Sequence[Message[Any]]) -> None:
        """Refuse messages for which there is no handler, or whose payload is not of its type.

        Raises:
            UnknownKind: there is no handler.
            PayloadNotEncodable: the payload is of another type.
        """
        for message in messages:
            if message.kind not in self._handlers:
                raise unknown_kind(message, self._handlers)
            # A store that encodes checks as well, but for bytes, which it leaves alone.
            if not self._encodes or type(message.payload) is bytes:
                self._check_payload(message)

    def _check_payload(self, message: Message[Any]) -> None:
        try:
            self._codec.encode(message.kind, message.payload)
        except PayloadNotEncodable as exc:
            raise PayloadNotEncodable(message.kind, exc.reason, field=exc.field, message_id=message.id) from exc

    async def execute(self, message: Delivery[Any]) -> Outcome[Any]:
        """Call the handler of a message and say what its answer means."""
        handler = self._handlers.get(message.kind)
        if handler is None:
            # It was stored by an earlier version of the program, which had one.
            raise Permanent(str(unknown_kind(message.message, self._handlers)))
        payload = message.payload if self._encodes else self._converted(message)
        takes = handler.signature.takes
        arguments = [payload if each == "payload" else message for each in takes]
        run_in = handler.signature.run_in
        if run_in == "task":
            returned = await handler.function(*arguments)
        elif self._is_inline:
            returned = handler.function(*arguments)
        elif run_in == "thread":
            returned = await trio.to_thread.run_sync(handler.function, *arguments, limiter=self._threads)
        else:
            returned = await self._processes.run(handler.function, *arguments)
        return outcome_of(returned, handler.name, handler.derives, has_sink=self._has_sink)

    def _converted(self, message: Delivery[Any]) -> Any:  # noqa: ANN401 - of the declared type
        """Return the payload as it would come from a store that encodes it."""
        payload = message.payload
        if type(payload) is not bytes:
            payload = self._codec.decode(message.kind, self._codec.encode(message.kind, payload))
            message.payload = payload
        return payload


def unknown_kind(message: Message[Any], handlers: Collection[str]) -> UnknownKind:
    """Say that no handler is declared for a message."""
    return UnknownKind(message.id, message.kind, sorted(handlers), get_close_matches(message.kind, handlers, n=1))


def codec_for(handlers: Mapping[str, Handler]) -> MsgspecCodec:
    """Return the codec that knows the payload of each handler."""
    return MsgspecCodec({kind: handler.signature.payload for kind, handler in handlers.items()})
