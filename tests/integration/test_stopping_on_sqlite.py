"""Drains under full load and stops amid a fan-out, on a real file: nothing is lost, nothing is done twice."""

from contextlib import closing

import apsw
import pytest
import trio

from naviscope_ingest import (
    Executed,
    IngestRuntime,
    IntakePolicy,
    Message,
    RuntimeComponents,
    RuntimeConfig,
    RuntimeStopped,
)
from naviscope_ingest.sinks import Insert, SqliteSink
from naviscope_ingest.stores import open_store

SCHEMA = "create table done (id text)"


class Worker:
    """Writes a row for each message, and says when it has begun so many. "file" brings rows, one by one."""

    def __init__(self, signal_at, rows=0):
        self.begun = self.made = 0
        self.reached = trio.Event()
        self._signal_at = signal_at
        self._rows = rows

    async def execute(self, delivery):
        self.begun += 1
        if self.begun == self._signal_at:
            self.reached.set()
        await trio.lowlevel.checkpoint()
        ops = [Insert("done", {"id": delivery.id})]
        return Executed(ops, self.rows() if delivery.id == "file" else ())

    def rows(self):
        for number in range(self._rows):
            self.made += 1
            if self.made == self._signal_at:
                self.reached.set()
            yield Message(f"row{number}", number)


def done(path):
    """Return the ids of all rows, in order."""
    with closing(apsw.Connection(str(path))) as file:
        return [name for (name,) in file.execute("select id from done")]


async def run(path, worker, config, body):
    """Run on the file until the body is done."""
    async with open_store(f"sqlite:///{path}") as store:
        components = RuntimeComponents(executor=worker, commit_sink=SqliteSink(schema=SCHEMA), store=store)
        runtime = IngestRuntime(components, config)
        async with trio.open_nursery() as nursery:
            await body(runtime, await nursery.start(runtime.run_forever))
            runtime.stop()
    assert runtime.state == "stopped"


COUNT = 4_000


def chains():
    """Make messages some of which wait for one that comes much later."""
    for number in range(COUNT):
        depends_on = [f"m{number + 300}"] if number % 10 == 0 and number + 300 < COUNT else []
        yield Message(f"m{number}", number, depends_on=depends_on)


async def test_a_drain_under_full_load_twice_in_a_row_loses_nothing(tmp_path):
    path = tmp_path / "ingest.db"
    config = RuntimeConfig(max_in_flight=50, commit_batch=20, intake=IntakePolicy(high_mark=200, low_mark=50))
    left, begun = [], 0

    async def produce(epoch):
        try:
            await epoch.submit(chains())
            await epoch.seal()
        except RuntimeStopped as error:
            left.append(error)

    for attempt in range(2):
        worker = Worker(signal_at=700)

        async def drain_in_the_middle(runtime, intake, worker=worker):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce, await intake.new_epoch("job"))
                await worker.reached.wait()
                statistics = runtime.statistics()
                assert statistics.in_flight > 0
                assert await runtime.drain() is True
                assert await runtime.drain() is True

        await run(path, worker, config, drain_in_the_middle)
        rows = done(path)
        # All that was begun is there, and no more was begun.
        begun += worker.begun
        assert len(rows) == len(set(rows)) == begun >= (attempt + 1) * 700
        assert len(left) == attempt + 1

    async def finish(runtime, intake):
        epoch = await intake.new_epoch("job")
        await produce(epoch)
        report = await epoch.wait()
        assert (report.committed, report.submitted) == (COUNT, COUNT)

    await run(path, Worker(signal_at=None), config, finish)
    rows = done(path)
    assert len(rows) == len(set(rows)) == COUNT
    place = {name: at for at, name in enumerate(rows)}
    for message in chains():
        assert all(place[parent] < place[message.id] for parent in message.depends_on)


ROWS = 2_000


@pytest.mark.parametrize("timeout", [0, 600], ids=["at once", "drained"])
@pytest.mark.parametrize("signal_at", [1, 1_000])
async def test_a_stop_while_a_fan_out_is_staged_resumes(tmp_path, signal_at, timeout):
    path = tmp_path / "ingest.db"
    config = RuntimeConfig(max_derived=100, max_in_flight=16)
    worker = Worker(signal_at, ROWS)

    async def stop_in_the_middle(runtime, intake):
        epoch = await intake.new_epoch("job")
        await epoch.submit([Message("file", None), Message("other", None)])
        await epoch.seal()
        await worker.reached.wait()
        # The first message may be what was begun; the generator is read later.
        finished = await runtime.drain(timeout)
        assert finished or not timeout

    await run(path, worker, config, stop_in_the_middle)
    assert len(done(path)) < ROWS
    await resume_and_check(path, config)


@pytest.mark.parametrize("signal_at", [3, 1_500])
async def test_a_stop_while_what_was_staged_runs_resumes(tmp_path, signal_at):
    path = tmp_path / "ingest.db"
    config = RuntimeConfig(max_derived=100, max_in_flight=16)
    worker = Worker(None, ROWS)
    ran = trio.Event()
    begin = worker.execute

    async def execute(delivery):
        if worker.begun == signal_at:
            ran.set()
        return await begin(delivery)

    worker.execute = execute

    async def stop_in_the_middle(runtime, intake):
        epoch = await intake.new_epoch("job")
        await epoch.submit([Message("file", None), Message("other", None)])
        await epoch.seal()
        await ran.wait()
        assert await runtime.drain() is True

    await run(path, worker, config, stop_in_the_middle)
    rows = done(path)
    assert signal_at < len(rows) < ROWS
    await resume_and_check(path, config)


async def resume_and_check(path, config):
    async def finish(runtime, intake):
        report = await (await intake.get_epoch("job")).wait()
        assert (report.submitted, report.committed) == (ROWS + 2, ROWS + 2)

    await run(path, Worker(None, ROWS), config, finish)
    rows = done(path)
    assert sorted(rows) == sorted(["file", "other", *(f"row{n}" for n in range(ROWS))])
