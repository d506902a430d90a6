"""Spans for OpenTelemetry, with the extra `tracing`.

A call of the executor is a span, and so is a commit to the sink. The span of a message belongs to the trace that its
headers name (`traceparent`), and what it derives carries the header on. Other relations are links: a message may have
many parents, a trace has one. An attempt is linked to the attempt before it and to the messages that it waited for; a
commit is linked to the attempts whose ops it makes visible.

Executor and sink get stand-ins, so a runtime without tracing has nothing in the way. Which span a message had is known
for as long as the process lives, and of the last so many messages; headers survive everything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from naviscope_ingest._stand_ins import stand_in
from naviscope_spi import (
    AnyOf,
    CommitBatch,
    Deferred,
    Delivery,
    Dependency,
    Executed,
    Fatal,
    Message,
    OnMessage,
    Skipped,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, TracerProvider

__all__ = ["Tracing", "trace_headers"]

MAX_LINKS: Final = 128
"""How many links a span has at most."""

_OUTCOMES: Final = {Executed: "executed", Deferred: "deferred", Skipped: "skipped", Fatal: "fatal"}


def trace_headers() -> dict[str, str]:
    """Return headers that let a message belong to the current trace: `Message(..., headers=trace_headers())`."""
    from opentelemetry.propagate import inject

    headers: dict[str, str] = {}
    inject(headers)
    return headers


class Tracing:
    """Traces what a runtime does: `RuntimeComponents(tracing=Tracing())`, `Ingest(tracing=Tracing())`.

    Args:
        tracer_provider: where spans go; the global provider unless it is given.
        remember: of how many messages the last span is remembered, to link to.

    Raises:
        ImportError: OpenTelemetry's API is not installed.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, remember: int = 100_000) -> None:
        if isinstance(remember, bool) or not isinstance(remember, int) or remember < 1:
            raise ValueError(f"Tracing(remember={remember!r}): give a whole number of at least 1")
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise ImportError('tracing needs a library: pip install "naviscope-ingest[tracing]"') from error
        self._tracer = trace.get_tracer("naviscope_ingest", tracer_provider=tracer_provider)
        self._kinds = trace.SpanKind
        self._remember = remember
        # The last span of a message, by number of the epoch and id.
        self._spans: OrderedDict[tuple[int, str], SpanContext] = OrderedDict()

    def executor(self, real: Any) -> Any:  # noqa: ANN401 - one of two protocols
        """Return a stand-in for an executor."""

        async def execute(delivery: Delivery[Any]) -> object:
            facts = {
                **_facts([delivery]),
                "naviscope.message_id": delivery.id,
                "naviscope.attempt": delivery.attempt + 1,
            }
            with self._tracer.start_as_current_span(
                f"execute {delivery.kind}",
                context=_context(delivery.message.headers),
                kind=self._kinds.CONSUMER,
                attributes={**facts, "naviscope.run": delivery.run},
                links=self._links([delivery]),
            ) as span:
                self._note([delivery], span.get_span_context())
                outcome = await real.execute(delivery)
                span.set_attribute("naviscope.outcome", _OUTCOMES.get(type(outcome), "unknown"))
                return _carrying(outcome)

        async def execute_batch(deliveries: Sequence[Delivery[Any]]) -> object:
            with self._tracer.start_as_current_span(
                f"execute {deliveries[0].kind}",
                context=_context({}),
                kind=self._kinds.CONSUMER,
                attributes={**_facts(deliveries), "naviscope.messages": len(deliveries)},
                links=self._links(deliveries, with_headers=True),
            ) as span:
                self._note(deliveries, span.get_span_context())
                outcomes = await real.execute_batch(deliveries)
                return [*map(_carrying, outcomes)] if isinstance(outcomes, Sequence) else outcomes

        return stand_in(real, {"execute": execute, "execute_batch": execute_batch})

    def sink(self, real: Any) -> Any:  # noqa: ANN401 - with any optional powers
        """Return a stand-in for a sink."""

        async def commit(batch: CommitBatch[Any]) -> object:
            with self._committing(batch):
                return await real.commit(batch)

        def apply(transaction: object, batch: CommitBatch[Any]) -> object:
            with self._committing(batch):
                return real.apply(transaction, batch)

        return stand_in(real, {"commit": commit, "apply": apply})

    def _committing(self, batch: CommitBatch[Any]) -> Any:  # noqa: ANN401 - a context manager of the library
        found = (self._spans.get((entry.epoch.number, entry.message_id)) for entry in batch.entries)
        return self._tracer.start_as_current_span(
            "commit",
            context=_context({}),
            kind=self._kinds.CLIENT,
            attributes={"naviscope.entries": len(batch.entries)},
            links=_linked((each, "execution") for each in found),
        )

    def _links(self, deliveries: Sequence[Delivery[Any]], *, with_headers: bool = False) -> list[Link]:
        """Return links to the attempts before, and to what was waited for."""

        def related() -> Iterator[tuple[SpanContext | None, str]]:
            from opentelemetry.trace import get_current_span

            for delivery in deliveries:
                if with_headers:
                    yield get_current_span(_context(delivery.message.headers)).get_span_context(), "headers"
                yield self._spans.get((delivery.epoch.number, delivery.id)), "attempt"
                for parent in _parents(delivery.message.depends_on):
                    yield self._spans.get((delivery.epoch.number, parent)), "dependency"

        return _linked(related())

    def _note(self, deliveries: Sequence[Delivery[Any]], span: SpanContext) -> None:
        if not span.is_valid:
            return
        spans = self._spans
        for delivery in deliveries:
            name = delivery.epoch.number, delivery.id
            spans[name] = span
            spans.move_to_end(name)
        while len(spans) > self._remember:
            spans.popitem(last=False)


def _linked(related: Iterable[tuple[SpanContext | None, str]]) -> list[Link]:
    from opentelemetry.trace import Link

    found: dict[tuple[int, str], Link] = {}
    for span, relation in related:
        if span is not None and span.is_valid:
            found.setdefault((span.span_id, relation), Link(span, {"naviscope.relation": relation}))
            if len(found) == MAX_LINKS:
                break
    return [*found.values()]


def _context(headers: Mapping[str, str]) -> Context:
    """Return the context that headers name; an empty one, so that a message without any begins a trace of its own."""
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract

    return extract(headers, context=Context())


def _facts(deliveries: Sequence[Delivery[Any]]) -> dict[str, str | int]:
    first = deliveries[0]
    return {
        "naviscope.kind": first.kind,
        "naviscope.epoch": first.epoch.name,
        "naviscope.epoch_number": first.epoch.number,
    }


def _parents(depends_on: Iterable[str | Dependency]) -> Iterator[str]:
    """Yield the ids of messages of the same epoch that are waited for."""
    for each in depends_on:
        if isinstance(each, str):
            yield each
        elif isinstance(each, OnMessage) and each.epoch_name is None:
            yield each.id
        elif isinstance(each, AnyOf):
            yield from _parents(each.members)


def _carrying(outcome: object) -> object:
    """Let derived messages belong to the trace of the one that derives them, unless they name another."""
    if not isinstance(outcome, Executed) or (isinstance(outcome.derived, Sequence) and not outcome.derived):
        return outcome
    headers = trace_headers()
    if headers:
        derived = (_with_headers(message, headers) for message in outcome.derived)
        outcome.derived = [*derived] if isinstance(outcome.derived, Sequence) else derived
    return outcome


def _with_headers(message: Message[Any], headers: Mapping[str, str]) -> Message[Any]:
    if not isinstance(message, Message) or headers.keys() <= message.headers.keys():
        return message
    return evolve(message, headers={**headers, **message.headers})
