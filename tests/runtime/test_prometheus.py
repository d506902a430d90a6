"""What Prometheus sees, and that it sees all that is documented."""

import re
import sys
import threading

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from naviscope_ingest import (
    BreakerPolicy,
    Cap,
    CommitBatch,
    Dependency,
    Executed,
    IntakePolicy,
    KindPolicy,
    Message,
    Permanent,
    RetryPolicy,
    Transient,
)
from naviscope_ingest.faults import Faults
from naviscope_ingest.metrics import METRICS, PrometheusMetrics
from naviscope_ingest.metrics.prometheus import _SECONDS, _Histogram
from naviscope_ingest.testing import TrioClock
from naviscope_spi import MeasuresFailures, MeasuresLatency
from tests.runtime.worlds import START, TroubledSink, WaitingStore, messages, naps, started


def scrape(metrics):
    """Return every sample, by name and labels, as Prometheus reads the text."""
    text, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(metrics, name, **labels):
    return scrape(metrics).get((name, *sorted(labels.items())))


class SlowlyTroubled(TroubledSink):
    """A sink that is slow, and down at first."""

    async def commit(self, batch: CommitBatch) -> None:
        await trio.sleep(6)
        await super().commit(batch)


class SlowStore(WaitingStore):
    """A store that takes a while to settle, and to say what it has kept."""

    async def settle(self, session, settlement):
        await trio.sleep(0.002)
        return await super().settle(session, settlement)

    async def facts(self, after):
        await trio.sleep(0.002)
        async for batch in super().facts(after):
            yield batch


async def trouble(metrics, store):
    """Run into everything that there is a metric for."""
    work = {
        "dead": [Permanent("bad")],
        "again": [Transient("busy", retry_after=5)],
        "slow": naps(3),
    }
    sink = SlowlyTroubled(*[Transient("down")] * 3)
    config = {
        "max_in_flight": 4,
        "faults": Faults.parse("executor:0.5:slow=0.1"),
        "breaker": BreakerPolicy(failures=1),
        "sink_retry": RetryPolicy(max_attempts=2, initial_delay=1),
        "sink_breaker": BreakerPolicy(open_for=1, successes=1),
        "intake": IntakePolicy(high_mark=10, low_mark=1, when_full="drop"),
    }
    async with started(work, sink=sink, store=store, metrics=metrics, **config) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit([Message("approval", None, depends_on=[Dependency.resource("approved", external=True)])])
        await epoch.submit([*messages("dead", "again", "slow", "slow"), Message("slow", "another")])
        await epoch.submit(messages(*(f"m{n}" for n in range(50))))
        await epoch.submit(messages("left out"))
        assert value(metrics, "naviscope_backpressure") == 1
        assert value(metrics, "naviscope_messages", state="ready") > 0
        await epoch.seal()
        await epoch.wait(until="blocked")
        return scrape(metrics)


async def test_every_documented_metric_is_fed_by_a_run_with_failures():
    metrics, store = PrometheusMetrics(), SlowStore(TrioClock(START))
    scraped = [await trouble(metrics, store)]
    async with started(store=store, metrics=metrics):
        scraped.append(scrape(metrics))
        assert value(metrics, "naviscope_messages", state="waiting") == 1
    seen = {}
    for (name, *_), found in (each for samples in scraped for each in samples.items()):
        seen[name] = max(seen.get(name, 0), found)
    for metric in METRICS:
        names = [metric.name]
        if metric.type == "histogram":
            names = [f"{metric.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
        for name in names:
            # Backpressure was active in the middle of the run, as `trouble` saw.
            assert seen.get(name, 0) > 0 or name == "naviscope_backpressure", f"{name} was never fed"
    assert {re.sub("_(bucket|sum|count|created)$", "", name) for name in seen} == {each.name for each in METRICS}


async def test_the_counts_are_those_of_the_report():
    metrics = PrometheusMetrics()
    work = {"bad": [Permanent("no")], "shy": [Transient("busy")]}
    async with started(work, metrics=metrics) as world:
        await world.batch(
            *messages("a", "b", "bad", "shy", "a"),
            Message("a", "another"),
            Message("child", None, kind="row", depends_on=["bad"]),
        )
    assert value(metrics, "naviscope_submitted_total", result="accepted") == 5
    assert value(metrics, "naviscope_submitted_total", result="duplicate") == 1
    assert value(metrics, "naviscope_submitted_total", result="conflict") == 1
    assert value(metrics, "naviscope_executed_total", kind="message") == 5
    assert value(metrics, "naviscope_execute_seconds_count", kind="message") == 5
    assert value(metrics, "naviscope_ended_total", kind="message", end="committed") == 3
    assert value(metrics, "naviscope_ended_total", kind="message", end="dead") == 1
    assert value(metrics, "naviscope_ended_total", kind="row", end="dead") == 1
    assert value(metrics, "naviscope_dead_letters_total", kind="row") == 1
    assert value(metrics, "naviscope_failed_attempts_total", kind="message", error="client") == 1
    assert value(metrics, "naviscope_failed_attempts_total", kind="message", error="server") == 1
    assert value(metrics, "naviscope_retries_total", kind="message") == 1
    assert value(metrics, "naviscope_commit_entries_sum") == 3
    assert value(metrics, "naviscope_epochs", state="completed") == 1
    for event in ("opened", "sealed", "completed"):
        assert value(metrics, "naviscope_epochs_total", event=event) == 1


@pytest.mark.parametrize("config", [{}, {"limits": [Cap(2)]}, {"kinds": {"message": KindPolicy(timeout=60)}}])
async def test_durations_are_those_of_the_clock(config):
    """Four messages of 3 seconds, two at a time: half of them are ready for 3 seconds before they start."""
    metrics = PrometheusMetrics()
    async with started(naps(3), metrics=metrics, **{"max_in_flight": 2, **config}) as world:
        await world.batch(*messages("a", "b", "c", "d"))
    assert value(metrics, "naviscope_execute_seconds_sum", kind="message") == pytest.approx(12)
    assert value(metrics, "naviscope_execute_seconds_bucket", kind="message", le="1.0") == 0
    assert value(metrics, "naviscope_execute_seconds_bucket", kind="message", le="5.0") == 4
    assert value(metrics, "naviscope_queue_seconds_count") == 4
    assert value(metrics, "naviscope_queue_seconds_sum") == pytest.approx(6)


@pytest.mark.parametrize("options", [{"key": "lane"}, {"priority": 3}])
async def test_time_in_the_queue_is_counted_in_every_order(options):
    metrics = PrometheusMetrics()
    async with started(naps(3), metrics=metrics, max_in_flight=1) as world:
        await world.batch(*messages("a", "b", **options))
    assert value(metrics, "naviscope_queue_seconds_count") == 2


async def test_a_batch_executor_counts_calls_and_messages():
    class Together:
        async def execute_batch(self, batch):
            await trio.sleep(2)
            return [Executed(ops=[message.id]) for message in batch]

    metrics = PrometheusMetrics()
    async with started(Together(), metrics=metrics) as world:
        await world.batch(*messages("a", "b", "c"))
    assert value(metrics, "naviscope_executed_total", kind="message") == 3
    assert value(metrics, "naviscope_execute_seconds_count", kind="message") == 1
    assert value(metrics, "naviscope_execute_seconds_sum", kind="message") == pytest.approx(2)


async def test_labels_are_bounded():
    metrics = PrometheusMetrics(max_names=2)
    async with started(metrics=metrics) as world:
        for n in range(5):
            await world.batch(Message("a", None, kind=f"kind {n}"))
    found = {labels[1][1] for name, *labels in scrape(metrics) if name == "naviscope_ended_total"}
    assert found == {"kind 0", "kind 1", "other"}
    for n in range(5):
        metrics.breaker_changed(f"breaker {n}", "open")
    found = {labels[0][1] for name, *labels in scrape(metrics) if name == "naviscope_breaker_opened_total"}
    assert found == {"breaker 0", "breaker 1", "other"}


async def test_before_a_runtime_starts_there_is_something_to_scrape():
    assert value(PrometheusMetrics(), "naviscope_recoveries_total") == 0


async def test_drops_are_not_forgotten_with_the_runtime_that_counted_them():
    metrics = PrometheusMetrics()
    for total in (1, 2):
        policy = IntakePolicy(high_mark=1, low_mark=0, when_full="drop")
        async with started(naps(1), metrics=metrics, max_in_flight=1, intake=policy) as world:
            epoch = await world.intake.new_epoch()
            await epoch.submit(messages("a", "b"))
            await epoch.submit(messages("c"))
            assert value(metrics, "naviscope_dropped_total") == total


async def test_another_thread_may_scrape_while_messages_run():
    metrics, stop, errors = PrometheusMetrics(), threading.Event(), []

    def keep_scraping():
        try:
            while not stop.is_set():
                scrape(metrics)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=keep_scraping)
    async with started(metrics=metrics) as world:
        thread.start()
        try:
            for n in range(200):
                await world.batch(*(Message(f"m{k}", None, kind=f"{n % 60}") for k in range(20)))
        finally:
            stop.set()
            await trio.to_thread.run_sync(thread.join)
    assert errors == []


def test_it_has_every_optional_power():
    metrics = PrometheusMetrics()
    assert isinstance(metrics, MeasuresFailures)
    assert isinstance(metrics, MeasuresLatency)


def test_it_registers_where_it_is_told():
    registry = CollectorRegistry()
    assert PrometheusMetrics(registry).registry is registry
    assert PrometheusMetrics().registry is not PrometheusMetrics().registry


def test_open_metrics_are_given_to_those_who_ask():
    text, content_type = PrometheusMetrics().exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


@pytest.mark.parametrize("wrong", [0, True, "3", None])
def test_a_wrong_bound_is_refused(wrong):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        PrometheusMetrics(max_names=wrong)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"naviscope-ingest\[metrics\]"):
        PrometheusMetrics()


@given(st.lists(st.lists(st.floats(0, 1000), max_size=60), max_size=5))
def test_values_counted_together_are_counted_as_one_by_one(batches):
    together, singly = _Histogram(_SECONDS), _Histogram(_SECONDS)
    for batch in batches:
        if batch:
            together.add_all(batch)
        for each in batch:
            singly.add(each)
    assert together.counts == singly.counts
    assert together.sum == pytest.approx(singly.sum)


def test_a_value_on_a_bound_is_not_above_it():
    histogram = _Histogram(_SECONDS)
    histogram.add_all([_SECONDS[1]] * 20)
    histogram.add(_SECONDS[1])
    assert dict(histogram.buckets())[str(_SECONDS[1])] == 21
    assert dict(histogram.buckets())[str(_SECONDS[0])] == 0


def test_the_names_keep_to_the_habits_of_prometheus():
    for each in METRICS:
        assert each.name.startswith("naviscope_")
        assert each.name.endswith("_total") == (each.type == "counter")
        assert each.text.endswith(".")
