"""What is wrong gets a clear error, costs nothing else, and the runtime goes on where it should."""

from __future__ import annotations

import gc
import warnings

import pytest
import trio

from naviscope_ingest import (
    EpochSealed,
    Executed,
    InvalidMessage,
    MemorySink,
    Message,
    Resource,
    RuntimeConfig,
    RuntimeFailed,
    RuntimeStopped,
    SinkMisbehaved,
    UnknownEpoch,
)
from naviscope_ingest.testing import TrioClock
from tests.runtime.worlds import Playing, bounded, failures, make_runtime, messages, naps, started


def type_of(thing):
    return type(thing).__name__


# Callers.


async def test_an_unknown_epoch_is_named():
    async with started() as world:
        for call in (
            lambda: world.intake.submit("nowhere", messages("a")),
            lambda: world.intake.seal_epoch("nowhere"),
            lambda: world.intake.wait_epoch("nowhere"),
            lambda: world.intake.cancel_epoch("nowhere"),
            lambda: world.intake.cancel("nowhere", "a"),
            lambda: world.intake.explain("nowhere"),
            lambda: world.intake.get_epoch("nowhere"),
        ):
            with pytest.raises(UnknownEpoch, match="there is no epoch 'nowhere'") as caught:
                await call()
            assert caught.value.epoch == "nowhere"
        with pytest.raises(UnknownEpoch):
            world.intake.report("nowhere")
        assert (await world.batch(*messages("a"))).committed == 1


async def test_a_malformed_name_of_an_epoch_is_refused():
    async with started() as world:
        for name in ("", "a\nb", "x" * 300):
            with pytest.raises(InvalidMessage, match="epoch name"):
                await world.intake.new_epoch(name)
        assert not world.intake.epochs()


async def test_malformed_options_of_an_epoch_are_refused():
    async with started() as world:
        for options in ({"weight": 0}, {"deadline": "soon"}, {"on_unresolved": "die"}, {"if_exists": "maybe"}):
            with pytest.raises(InvalidMessage):
                await world.intake.new_epoch("nightly", **options)
        assert not world.intake.epochs()


@pytest.mark.parametrize("garbage", ["text", b"bytes", 7, None, Executed()], ids=repr)
async def test_what_is_neither_message_nor_iterable_is_refused(garbage):
    async with started() as world:
        epoch = await world.intake.new_epoch()
        with pytest.raises(
            InvalidMessage, match="is not a message: submit a Message, or an iterable of them"
        ) as caught:
            await epoch.submit(garbage)
        assert caught.value.index == 0
        assert epoch.report.submitted == 0


@pytest.mark.parametrize(
    "garbage", ["b", 7, None, [Message("b", None)], {"id": "b"}], ids=lambda each: type(each).__name__
)
async def test_garbage_among_messages_is_named_and_nothing_of_its_chunk_is_stored(garbage):
    async with started(submit_chunk=2) as world:
        epoch = await world.intake.new_epoch()
        with pytest.raises(InvalidMessage, match=r"item 1 of this chunk is .*: it must be a Message") as caught:
            await epoch.submit([*messages("m0", "m1", "m2"), garbage, *messages("m4")])
        assert caught.value.index == 2
        assert caught.value.receipt.accepted == 2
        assert epoch.report.submitted == 2
        await epoch.submit(messages("m2"))
        await epoch.seal()
        assert (await epoch.wait()).committed == 3


async def test_a_mapping_of_messages_is_refused_by_its_keys():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        with pytest.raises(InvalidMessage, match="item 0 of this chunk is 'a'"):
            await epoch.submit({"a": Message("a", None)})


async def test_an_error_of_the_callers_iterator_says_how_far_it_came():
    def broken():
        for n in range(25):
            yield Message(f"m{n}", n)
        raise OSError("file is torn")

    async def broken_async():
        for message in broken():
            yield message

    async with started(submit_chunk=10) as world:
        for source in (broken, broken_async):
            epoch = await world.intake.new_epoch()
            with pytest.raises(OSError, match="file is torn") as caught:
                await epoch.submit(source())
            assert caught.value.index == 20
            assert caught.value.receipt.accepted == 20
            assert epoch.report.submitted == 20
            await epoch.seal()
            assert (await epoch.wait()).committed == 20


async def test_an_unknown_id_in_a_sealed_epoch_says_how_far_the_submit_came():
    async with started(naps(5), submit_chunk=2) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit(messages("a", "b"))
        await epoch.seal()
        with pytest.raises(EpochSealed, match="'nightly' is sealed and does not know message 'c'") as caught:
            await epoch.submit(messages("a", "b", "a", "c"))
        assert (caught.value.index, caught.value.receipt.duplicates) == (2, 2)
        assert (await epoch.wait()).submitted == 2


async def test_a_strict_submit_refuses_another_content():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", 1), strict=True)
        assert (await epoch.submit(Message("a", 1), strict=True)).duplicates == 1
        with pytest.raises(InvalidMessage, match="message 'a' is known with another content") as caught:
            await epoch.submit([Message("a", 2), Message("b", 1)], strict=True)
        assert list(caught.value.receipt.conflicts) == ["a"]
        await epoch.seal()
        assert (await epoch.wait()).conflicts == 1


async def test_a_submit_that_is_not_strict_lists_the_conflicts():
    async with started() as world:
        epoch = await world.intake.new_epoch()
        receipt = await epoch.submit([Message("a", 1), Message("a", 2), Message("b", 1), Message("b", 1)])
        assert (receipt.accepted, receipt.duplicates, list(receipt.conflicts)) == (2, 2, ["a"])


async def test_what_is_no_resource_is_refused():
    async with started() as world:
        for garbage in ("schema", None, ("schema", 1)):
            with pytest.raises(InvalidMessage, match=r"is not a Resource: write Resource\(name, version\)"):
                await world.intake.notify_dependency_ready(Resource("fine"), garbage)


def test_a_submit_that_fails_leaves_nothing_to_the_garbage_collector():
    async def main():
        async with started() as world:
            epoch = await world.intake.new_epoch()
            await epoch.seal()
            with pytest.raises(EpochSealed):
                await epoch.submit(messages("a"))
            gc.collect()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trio.run(main)
    assert not caught


async def test_an_async_source_is_closed_when_its_submit_fails():
    closed = []

    async def source():
        try:
            for n in range(10):
                yield Message(f"m{n}", None)
        finally:
            closed.append(True)

    async with started(submit_chunk=2) as world:
        epoch = await world.intake.new_epoch()
        await epoch.seal()
        messages_ = source()
        with pytest.raises(EpochSealed):
            await epoch.submit(messages_)
        was_closed = bool(closed)
        await messages_.aclose()
        assert was_closed


# Life.


async def test_a_stopped_runtime_takes_no_more_work():
    async with started({"a": naps(10)}) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("a"))
        await trio.sleep(1)
        world.runtime.stop()
        await trio.testing.wait_all_tasks_blocked()
        for state in ("draining", "stopped"):
            for call in (
                lambda: epoch.submit(messages("b")),
                world.intake.new_epoch,
                epoch.seal,
                epoch.cancel,
                lambda: world.intake.notify_dependency_ready(Resource("r")),
            ):
                with pytest.raises(RuntimeStopped, match=f"the runtime is {state}: it takes no more work"):
                    await call()
            await trio.sleep(20)
    assert list(world.sink.ops) == ["a"]


async def test_a_runtime_runs_once():
    runtime = make_runtime(Playing(), MemorySink(), None, TrioClock())
    async with runtime.running():
        with pytest.raises(RuntimeError, match="this runtime is running: a runtime runs once, make a new one"):
            await runtime.run_forever()
        assert runtime.state == "running"
    with pytest.raises(RuntimeError, match="this runtime is stopped: a runtime runs once"):
        await runtime.run_forever()
    with pytest.raises(RuntimeError, match="a runtime runs once"):
        async with runtime.running():
            pytest.fail("it must not start")


async def test_a_runtime_that_is_starting_cannot_be_started_again():
    runtime = make_runtime(Playing(), MemorySink(), None, TrioClock())
    refused = []

    async def start():
        try:
            await runtime.run_forever()
        except RuntimeError as error:
            refused.append(str(error))

    with bounded():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            nursery.start_soon(start)
            await trio.sleep(1)
            runtime.stop()
    assert len(refused) == 1


async def test_a_runtime_may_be_stopped_before_it_runs():
    runtime = make_runtime(Playing(), MemorySink(), None, TrioClock())
    runtime.stop()
    with bounded():
        await runtime.run_forever()
    assert runtime.state == "stopped"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_in_flight", 0),
        ("max_in_flight", True),
        ("max_in_flight", 1.5),
        ("commit_batch", -1),
        ("execute_batch", "many"),
        ("submit_chunk", None),
        ("max_derived", 0),
        ("max_deferrals", 0),
        ("max_failures", 0),
        ("keep_reports", 0),
        ("commit_linger", -0.1),
        ("stall_grace", float("nan")),
        ("drain_timeout", "long"),
        ("drain_timeout", True),
        ("on_unresolved", "die"),
        ("lanes", "share"),
    ],
)
def test_a_bad_option_is_named(option, value):
    with pytest.raises(ValueError, match=rf"RuntimeConfig\({option}={value!r}\)"):
        RuntimeConfig(**{option: value})


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="max_inflight"):
        RuntimeConfig(max_inflight=3)


def test_seconds_may_be_without_end():
    assert RuntimeConfig(drain_timeout=float("inf")).drain_timeout == float("inf")


@pytest.mark.parametrize("derives", ["file", ["file"], {"file": "row"}, {"file": 7}], ids=repr)
def test_what_kinds_derive_is_checked(derives):
    with pytest.raises((ValueError, TypeError), match="derives"):
        RuntimeConfig(derives=derives)


# Executors.


@pytest.mark.parametrize(
    "answer",
    [None, 7, "done", Executed, [Executed()], {"ops": []}, (Executed(),), RuntimeConfig()],
    ids=type_of,
)
async def test_an_answer_that_is_no_outcome_ends_the_message_dead(answer):
    async def work(delivery):
        return answer if delivery.id == "bad" else Executed([delivery.id])

    async with started(work) as world:
        report = await world.batch(*messages("bad", "good"))
        assert (report.dead, report.committed) == (1, 1)
        error = failures(report)["bad"][1]
        assert error.startswith("BadOutcome: the executor answered ")
        assert error.endswith("for message 'bad': return Executed, Deferred, Skipped or Fatal")
        assert world.executor.seen.count("bad") == 1


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Executed(derived=["row"]), r"derived[0] is 'row': it must be a Message"),
        (Executed(derived=[Message("ok", None), None]), r"derived[1] is None: it must be a Message"),
        (Executed(derived=[[Message("ok", None)]]), "it must be a Message"),
        (Executed(ready=["schema"]), "ready[0] is 'schema': it must be a Resource"),
        (Executed(ready="schema"), "ready[0] is 's': it must be a Resource"),
    ],
    ids=["not a message", "one of two", "nested", "not a resource", "bare string"],
)
async def test_what_is_wrong_inside_an_outcome_ends_the_message_dead(outcome, text):
    async with started({"bad": outcome}) as world:
        report = await world.batch(*messages("bad", "good"))
        assert (report.submitted, report.dead, report.committed) == (2, 1, 1)
        assert text in failures(report)["bad"][1]
        assert list(world.sink.ops) == ["good"]


def torn():
    yield Message("ok", None)
    raise OSError("torn")


class Torn:
    """Something that can be read again and again, and never to the end."""

    def __iter__(self):
        return torn()


@pytest.mark.parametrize("field", ["derived", "ready"])
@pytest.mark.parametrize("make", [lambda: 7, Torn], ids=["not iterable", "torn"])
async def test_what_cannot_be_read_inside_an_outcome_ends_the_message_dead(field, make):
    async with started({"bad": Executed(**{field: make()})}) as world:
        report = await world.batch(*messages("bad", "good"))
        assert (report.dead, report.committed) == (1, 1)


class Unspeakable(Exception):  # noqa: N818 - it cannot be spoken
    """An error that cannot be printed."""

    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class Mute:
    """Something that cannot be printed."""

    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("how", ["raise", "answer", "derived"])
async def test_what_cannot_be_printed_ends_its_message_only(how):
    async def work(delivery):
        if delivery.id == "bad":
            if how == "raise":
                raise Unspeakable
            return Mute() if how == "answer" else Executed(derived=[Mute()])
        return Executed([delivery.id])

    async with started(work) as world:
        report = await world.batch(*messages("bad", "good"))
        assert (report.dead, report.committed) == (1, 1)


async def test_a_value_that_is_not_bytes_ends_the_message_dead():
    async def work(delivery):
        return Executed(value="text" if delivery.id == "bad" else b"bytes")

    async with started(work) as world:
        report = await world.batch(*messages("bad", "good"))
        assert failures(report)["bad"] == ("dead", "InvalidMessage: a value is bytes, not str: encode it first")
        assert report.committed == 1


async def test_an_executor_that_is_no_coroutine_function_ends_its_messages_dead():
    class Plain:
        def execute(self, delivery):
            return Executed([delivery.id])

    async with started(Plain()) as world:
        report = await world.batch(*messages("a"))
        assert report.dead == 1
        assert "TypeError" in failures(report)["a"][1]


class Answering:
    """A batch executor with one answer."""

    def __init__(self, answer):
        self.answer = answer

    async def execute_batch(self, deliveries):
        return self.answer(deliveries)


@pytest.mark.parametrize(
    "answer",
    [
        lambda deliveries: [Executed()] * (len(deliveries) + 1),
        lambda deliveries: [],
        lambda deliveries: None,
        lambda deliveries: Executed(),
        lambda deliveries: (Executed() for _ in deliveries),
        lambda deliveries: {delivery.id: Executed() for delivery in deliveries},
    ],
    ids=["longer", "empty", "none", "single", "generator", "mapping"],
)
async def test_a_batch_answer_of_the_wrong_shape_ends_its_messages_dead(answer):
    async with started(Answering(answer)) as world:
        report = await world.batch(*messages("a", "b", "c"))
        assert report.dead == 3
        for _, error in failures(report).values():
            assert error.startswith("BadOutcome: execute_batch answered ")
            assert error.endswith("for 1 messages: return a sequence of as many outcomes, in the same order")


async def test_one_wrong_answer_in_a_batch_costs_one_message():
    def answer(deliveries):
        return [None if delivery.id == "b" else Executed([delivery.id]) for delivery in deliveries]

    async with started(Answering(answer)) as world:
        report = await world.batch(*messages("a", "b", "c"))
        assert (report.committed, report.dead) == (2, 1)
        assert "BadOutcome" in failures(report)["b"][1]


# Sinks.


async def test_a_sink_that_returns_something_stops_the_runtime():
    class Chatty(MemorySink):
        async def commit(self, batch):
            await super().commit(batch)
            return len(batch.entries)

    with pytest.raises(RuntimeFailed, match=r"Chatty\.commit returned 1: it must apply the batch, or raise") as caught:
        async with started(sink=Chatty()) as world:
            epoch = await world.intake.new_epoch("nightly")
            await epoch.submit(messages("a"))
            await epoch.wait()
    assert isinstance(caught.value.__cause__, SinkMisbehaved)
    # Nobody can tell whether it was applied, so it is committed again; the sink knows the task key.
    sink = MemorySink()
    async with started(store=world.store, sink=sink) as world:
        await world.intake.seal_epoch("nightly")
        assert (await world.intake.wait_epoch("nightly")).committed == 1


async def test_ops_that_the_sink_cannot_read_cost_one_message():
    async with started({"bad": Executed(ops=7)}) as world:
        report = await world.batch(*messages("a", "bad", "b"))
        assert (report.committed, report.dead) == (2, 1)
        assert "TypeError" in failures(report)["bad"][1]
