"""A runtime for blocking code and for asyncio: the same calls, errors, and ends."""

import asyncio
import os
import signal
import threading

import pytest

from naviscope_ingest import (
    Dependency,
    EpochTimeout,
    Executed,
    Ingest,
    IngestRuntime,
    InvalidMessage,
    MemorySink,
    Message,
    Resource,
    RuntimeComponents,
    RuntimeConfig,
    RuntimeFailed,
    RuntimeStopped,
    SystemFailure,
    UnknownEpoch,
)
from naviscope_ingest.interop import running_for_asyncio, running_in_thread
from naviscope_ingest.sinks import Insert, SqliteSink


class Upper:
    async def execute(self, message):
        if message.payload == "stop":
            raise SystemFailure("no more")
        return Executed(ops=[message.payload.upper()])


def make_runtime(**config):
    sink = MemorySink()
    return sink, IngestRuntime(RuntimeComponents(executor=Upper(), commit_sink=sink), RuntimeConfig(**config))


LATER = Dependency.resource("later", external=True)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    for each in threading.enumerate():
        if each.name == "naviscope-ingest":
            each.join(timeout=5)
            assert not each.is_alive()


# Blocking


def test_blocking_code_uses_the_same_methods():
    sink, runtime = make_runtime(submit_chunk=3)
    with runtime.running_in_thread() as intake:
        with intake.epoch("monday") as epoch:
            receipt = epoch.submit(Message(f"m{n}", "x") for n in range(10))
            assert intake.submit("monday", Message("m0", "x")).duplicates == 1
            assert intake.submit(epoch, [Message("last", "y", depends_on=[LATER])]).accepted == 1
            assert intake.explain(epoch, "last").id == "last"
            assert epoch.explain("last").reasons
            assert "waiting" in epoch.explain().counts
            intake.notify_dependency_ready(Resource("later"))
        assert (receipt.accepted, epoch.report.committed) == (10, 11)
        assert intake.wait_epoch("monday") == intake.wait_epoch(epoch) == intake.report("monday")
        assert [report.name for report in intake.epochs()] == ["monday"]
        assert intake.get_epoch("monday").number == epoch.number
        assert [report.is_completed for report in epoch.progress()] == [True]
        intake.forget("later")
        intake.wait_idle()
    assert sorted(sink.ops) == ["X"] * 10 + ["Y"]
    assert runtime.state == "stopped"


def test_any_thread_may_call():
    sink, runtime = make_runtime()
    with runtime.running_in_thread() as intake, intake.epoch() as epoch:
        callers = [threading.Thread(target=epoch.submit, args=(Message(f"m{n}", "x"),)) for n in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert len(sink.ops) == 8


def test_errors_of_calls_are_raised_as_they_are():
    _, runtime = make_runtime(submit_chunk=2)
    with runtime.running_in_thread() as intake:
        with pytest.raises(UnknownEpoch):
            intake.get_epoch("no")
        epoch = intake.new_epoch()
        with pytest.raises(InvalidMessage) as caught:
            epoch.submit([Message("a", "x"), Message("b", "x"), "c"])
        assert (caught.value.receipt.accepted, caught.value.index) == (2, 2)
        epoch.submit(Message("later", "x", depends_on=[LATER]))
        epoch.seal()
        with pytest.raises(EpochTimeout):
            epoch.wait(timeout=0.01)
        assert epoch.cancel("later")
        assert epoch.wait().cancelled == 1


def test_an_error_of_the_block_is_raised_as_it_is():
    _, runtime = make_runtime()
    with pytest.raises(KeyError), runtime.running_in_thread() as intake:
        intake.new_epoch("open")
        raise KeyError
    assert runtime.state == "stopped"


def test_a_runtime_that_fails_is_told_to_those_who_wait_and_at_the_end():
    _, runtime = make_runtime()
    with pytest.raises(RuntimeFailed) as caught, runtime.running_in_thread() as intake:
        epoch = intake.new_epoch()
        epoch.submit(Message("a", "stop"))
        epoch.seal()
        with pytest.raises(RuntimeFailed):
            epoch.wait()
        with pytest.raises(RuntimeFailed):
            intake.new_epoch()
    assert isinstance(caught.value.__cause__, SystemFailure)


def test_a_runtime_that_cannot_start_says_so(tmp_path):
    opening = IngestRuntime.open(f"sqlite:///{tmp_path}", executor=Upper(), commit_sink=MemorySink())
    with pytest.raises(Exception, match=str(tmp_path)), running_in_thread(opening):
        pytest.fail("it started")


def test_after_the_block_calls_are_refused():
    _, runtime = make_runtime()
    with runtime.running_in_thread() as intake:
        pass
    with pytest.raises(RuntimeStopped):
        intake.new_epoch()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals for threads here")
def test_an_interrupt_ends_the_call_and_the_block():
    _, runtime = make_runtime()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Whoever runs the tests may ignore it.
    try:
        interrupt_a_wait(runtime)
    finally:
        signal.signal(signal.SIGINT, before)
    assert runtime.state == "stopped"


def interrupt_a_wait(runtime):
    with pytest.raises(KeyboardInterrupt), runtime.running_in_thread() as intake:
        epoch = intake.new_epoch()
        epoch.submit(Message("a", "x", depends_on=[LATER]))
        epoch.seal()
        main = threading.main_thread().ident
        intake._portal.call(lambda: signal.pthread_kill(main, signal.SIGINT))
        epoch.wait()


def test_an_app_runs_in_a_thread_on_a_file(tmp_path):
    app = Ingest(f"sqlite:///{tmp_path / 'app.db'}")
    app.sink(SqliteSink(schema="CREATE TABLE word (text TEXT)"))

    @app.handler("word")
    def word(text: str):
        return Insert("word", {"text": text})

    with app.running_in_thread() as intake, intake.epoch("words") as epoch:
        epoch.submit(Message("a", "hello", kind="word"))
    assert epoch.name == "words"
    with app.running_in_thread() as intake:
        assert intake.report("words").committed == 1


# asyncio


def test_asyncio_awaits_the_same_methods():
    sink, runtime = make_runtime(submit_chunk=3)

    async def messages():
        for n in range(10):
            await asyncio.sleep(0)
            yield Message(f"m{n}", "x")

    async def main():
        async with runtime.running_for_asyncio() as intake:
            async with intake.epoch("monday") as epoch:
                receipt = await epoch.submit(messages())
                await intake.submit("monday", [Message("last", "y", depends_on=[LATER])])
                assert (await epoch.explain("last")).id == (await intake.explain("monday", "last")).id
                await intake.notify_dependency_ready(Resource("later"))
            report = await epoch.report()
            assert report == await intake.wait_epoch("monday") == await intake.report(epoch)
            assert [each async for each in epoch.progress()] == [report]
            assert len(await intake.epochs()) == 1
            await intake.wait_idle()
            return receipt, report

    receipt, report = asyncio.run(main())
    assert (receipt.accepted, report.committed) == (10, 11)
    assert len(sink.ops) == 11


def test_a_cancelled_asyncio_task_ends_its_call_and_nothing_else():
    _, runtime = make_runtime()

    async def main():
        async with runtime.running_for_asyncio() as intake:
            epoch = await intake.new_epoch()
            await epoch.submit(Message("a", "x", depends_on=[LATER]))
            await epoch.seal()
            waiter = asyncio.create_task(epoch.wait())
            await intake.wait_idle()
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            await intake.notify_dependency_ready(Resource("later"))
            return await epoch.wait()

    assert asyncio.run(main()).committed == 1


def test_a_cancelled_asyncio_program_stops_the_runtime():
    _, runtime = make_runtime()

    async def main(started):
        async with runtime.running_for_asyncio() as intake:
            epoch = await intake.new_epoch()
            await epoch.submit(Message("a", "x", depends_on=[LATER]))
            started.set()
            await epoch.wait()

    async def cancel_it():
        started = asyncio.Event()
        task = asyncio.create_task(main(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_it())
    assert runtime.state == "stopped"


def test_a_runtime_that_fails_is_told_to_asyncio():
    _, runtime = make_runtime()

    async def main():
        async with running_for_asyncio(runtime.running()) as intake, intake.epoch() as epoch:
            await epoch.submit(Message("a", "stop"))

    with pytest.raises(RuntimeFailed):
        asyncio.run(main())


def test_an_error_of_the_asyncio_block_is_raised_as_it_is():
    _, runtime = make_runtime()

    async def main():
        async with runtime.running_for_asyncio() as intake, intake.epoch("kept"):
            raise KeyError(os.getpid())

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert runtime.state == "stopped"
