"""Spans: what is in them, whose they are, and what they are linked to."""

import sys

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from naviscope_ingest import (
    Dependency,
    Executed,
    Ingest,
    IngestRuntime,
    MemorySink,
    Message,
    Permanent,
    RuntimeComponents,
    SupportsBatch,
    Transient,
)
from naviscope_ingest.sinks import Insert, SqliteSink
from naviscope_ingest.tracing import MAX_LINKS, Tracing, trace_headers
from naviscope_spi import AppliesInside, ChecksMessages
from tests.runtime.worlds import Playing, answers, bounded, messages

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


async def run(executor, sent, provider, sink=None, **options):
    """Run messages in one epoch; return its report."""
    components = RuntimeComponents(
        executor=executor, commit_sink=sink or MemorySink(), tracing=Tracing(provider, **options)
    )
    with bounded():
        async with IngestRuntime(components).running() as intake, intake.epoch("nightly") as epoch:
            await epoch.submit(sent)
    return epoch.report


def spans_of(exporter, message_id):
    found = exporter.get_finished_spans()
    return [span for span in found if span.attributes.get("naviscope.message_id") == message_id]


def links_of(span):
    return [(link.attributes["naviscope.relation"], link.context.span_id) for link in span.links]


async def test_a_span_says_which_message_it_was(exporter, provider):
    await run(Playing(answers({})), messages("a"), provider)
    (span,) = spans_of(exporter, "a")
    assert span.name == "execute message"
    assert span.kind is trace.SpanKind.CONSUMER
    assert dict(span.attributes) == {
        "naviscope.kind": "message",
        "naviscope.epoch": "nightly",
        "naviscope.epoch_number": 1,
        "naviscope.message_id": "a",
        "naviscope.attempt": 1,
        "naviscope.run": 0,
        "naviscope.outcome": "executed",
    }


async def test_an_attempt_is_linked_to_the_one_before_it(exporter, provider):
    await run(Playing(answers({"a": [Transient("busy")]})), messages("a"), provider)
    first, second = spans_of(exporter, "a")
    assert not first.status.is_ok
    assert [event.name for event in first.events] == ["exception"]
    assert links_of(first) == []
    assert links_of(second) == [("attempt", first.context.span_id)]
    assert second.attributes["naviscope.attempt"] == 2
    assert second.status.is_ok


async def test_a_message_is_linked_to_what_it_waited_for(exporter, provider):
    waits = ["a", Dependency.any_of(Dependency.message("b"), Dependency.message("c"), at_least=2)]
    await run(Playing(answers({})), [*messages("a", "b", "c"), Message("d", None, depends_on=waits)], provider)
    (child,) = spans_of(exporter, "d")
    parents = [spans_of(exporter, each)[0].context.span_id for each in "abc"]
    assert links_of(child) == [("dependency", each) for each in parents]


async def test_headers_name_the_trace_and_derived_messages_carry_it_on(exporter, provider):
    async def work(delivery):
        if delivery.id == "a":
            return Executed(derived=[Message("b", None), Message("c", None, headers={"traceparent": TRACE})])
        if delivery.id == "b":
            return Executed(derived=(Message(each, None) for each in ("d",)))
        return Executed()

    sent = Message("a", None, headers={"traceparent": TRACE, "tenant": "x"})
    await run(Playing(work), [sent, *messages("other")], provider)
    a, b, c, d = (spans_of(exporter, each)[0] for each in "abcd")
    assert f"{a.context.trace_id:032x}" == TRACE.split("-")[1]
    assert f"{a.parent.span_id:016x}" == TRACE.split("-")[2]
    assert (b.context.trace_id, b.parent.span_id) == (a.context.trace_id, a.context.span_id)
    assert d.parent.span_id == b.context.span_id
    assert f"{c.parent.span_id:016x}" == TRACE.split("-")[2]
    (other,) = spans_of(exporter, "other")
    assert other.parent is None


async def test_a_message_without_headers_begins_a_trace_whoever_started_the_runtime(exporter, provider):
    with provider.get_tracer("test").start_as_current_span("host"):
        await run(Playing(answers({})), messages("a"), provider)
    assert all(span.parent is None for span in exporter.get_finished_spans())


async def test_a_commit_is_linked_to_the_attempts_that_it_makes_visible(exporter, provider):
    await run(Playing(answers({})), messages("a", "b"), provider)
    (commit,) = (span for span in exporter.get_finished_spans() if span.name == "commit")
    assert commit.attributes["naviscope.entries"] == 2
    attempts = {spans_of(exporter, each)[0].context.span_id for each in "ab"}
    assert {span for _, span in links_of(commit)} == attempts


async def test_what_an_executor_does_is_within_its_span(exporter, provider):
    tracer = provider.get_tracer("client")

    async def work(delivery):
        async def call():
            with tracer.start_as_current_span("call"):
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
        return Executed()

    await run(Playing(work), messages("a"), provider)
    (call,) = (span for span in exporter.get_finished_spans() if span.name == "call")
    assert call.parent.span_id == spans_of(exporter, "a")[0].context.span_id


async def test_a_batch_is_one_span_linked_to_all_that_is_known(exporter, provider):
    class Together:
        async def execute_batch(self, batch):
            return [
                Executed(derived=[Message(f"{each.id}2", None, kind="next")][: each.kind == "message"])
                for each in batch
            ]

    sent = [Message("a", None, headers={"traceparent": TRACE}), *messages("b")]
    await run(Together(), sent, provider)
    first, second = (span for span in exporter.get_finished_spans() if span.name.startswith("execute"))
    assert first.attributes["naviscope.messages"] == 2
    assert [relation for relation, _ in links_of(first)] == ["headers"]
    assert links_of(second) == [("headers", first.context.span_id)]


async def test_links_and_memory_are_bounded(exporter, provider):
    many = messages(*(f"m{n}" for n in range(200)))
    last = Message("last", None, depends_on=[message.id for message in many])
    components = RuntimeComponents(
        executor=Playing(answers({})), commit_sink=MemorySink(), tracing=(tracing := Tracing(provider, remember=150))
    )
    async with IngestRuntime(components).running() as intake, intake.epoch() as epoch:
        await epoch.submit([*many, last])
    assert len(spans_of(exporter, "last")[0].links) == MAX_LINKS
    assert len(tracing._spans) == 150


async def test_a_colocated_sink_keeps_its_powers_and_is_traced(exporter, provider, tmp_path):
    # On this thread: one of its own would know nothing of virtual time.
    app = Ingest(f"sqlite:///{tmp_path}/a.db", tracing=Tracing(provider), runner="inline")
    app.sink(SqliteSink(schema="CREATE TABLE seen (id TEXT PRIMARY KEY)"))

    @app.handler("row")
    async def row(payload: str):
        if payload == "bad":
            raise Permanent("bad")
        return Insert("seen", {"id": payload})

    async with app.running() as intake, intake.epoch() as epoch:
        await app.submit(epoch, [Message("a", "x", kind="row"), Message("b", "bad", kind="row")])
    assert (epoch.report.committed, epoch.report.dead) == (1, 1)
    (commit,) = (span for span in exporter.get_finished_spans() if span.name == "commit")
    assert links_of(commit) == [("execution", spans_of(exporter, "a")[0].context.span_id)]


def test_stand_ins_have_the_powers_of_the_real_thing_and_no_others(provider):
    class Single:
        async def execute(self, message): ...

        def check_messages(self, messages): ...

    class Together:
        async def execute_batch(self, messages): ...

    tracing = Tracing(provider)
    assert isinstance(tracing.executor(Single()), ChecksMessages)
    assert not isinstance(tracing.executor(Single()), SupportsBatch)
    assert isinstance(tracing.executor(Together()), SupportsBatch)
    assert not isinstance(tracing.executor(Together()), ChecksMessages)
    assert isinstance(tracing.sink(SqliteSink()), AppliesInside)
    assert not isinstance(tracing.sink(MemorySink()), AppliesInside)


async def test_without_an_sdk_nothing_is_remembered_and_everything_works():
    tracing = Tracing(trace.NoOpTracerProvider())
    components = RuntimeComponents(executor=Playing(answers({})), commit_sink=MemorySink(), tracing=tracing)
    async with IngestRuntime(components).running() as intake, intake.epoch() as epoch:
        await epoch.submit(messages("a"))
    assert epoch.report.succeeded
    assert not tracing._spans


def test_without_tracing_the_executor_itself_is_called():
    executor, sink = Playing(answers({})), MemorySink()
    runtime = IngestRuntime(RuntimeComponents(executor=executor, commit_sink=sink))
    assert runtime._kernel._workers._executor is executor
    assert runtime._kernel._committer._sink is sink


def test_headers_of_the_current_trace_can_be_had(provider):
    assert trace_headers() == {}
    with provider.get_tracer("test").start_as_current_span("request") as span:
        assert f"{span.get_span_context().trace_id:032x}" in trace_headers()["traceparent"]


@pytest.mark.parametrize("wrong", [0, True, "1"])
def test_a_wrong_bound_is_refused(wrong):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Tracing(remember=wrong)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"naviscope-ingest\[tracing\]"):
        Tracing()
