"""Faults in runtimes on SQLite, and in processes that they bring down."""

import os
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from naviscope_ingest import (
    Executed,
    IngestRuntime,
    KindPolicy,
    Message,
    RetryPolicy,
    RuntimeComponents,
    RuntimeConfig,
    SqliteStore,
)
from naviscope_ingest.faults import CRASH_CODE, VARIABLE, Faults
from naviscope_ingest.sinks import Insert, SqliteSink

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "create table seen (id text not null)"
IDS = [f"m{number}" for number in range(100)]


class Booking:
    async def execute(self, delivery):
        return Executed(ops=[Insert("seen", {"id": delivery.id})])


def seen(path):
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
        return sorted(each for (each,) in reader.execute("select id from seen"))


@pytest.mark.parametrize("is_inside", [True, False])
async def test_a_sink_inside_the_store_or_with_a_ledger_is_struck_too(tmp_path, is_inside):
    quick = RetryPolicy(max_attempts=30, initial_delay=0.001, max_delay=0.01)
    faults = "executor:0.1:5xx,sink:0.3:timeout,sink:0.1:connection,commit:0.1:slow=0.001,store:0.1:slow=0.001"
    config = RuntimeConfig(
        faults=Faults.parse(faults),
        other_kinds=KindPolicy(retry=quick),
        breaker=None,
        sink_retry=quick,
        commit_batch=4,
    )
    place = tmp_path / ("ingest.db" if is_inside else "sink.db")
    sink = SqliteSink(None if is_inside else place, SCHEMA)
    async with SqliteStore.open(tmp_path / "ingest.db") as store:
        runtime = IngestRuntime(RuntimeComponents(executor=Booking(), commit_sink=sink, store=store), config)
        async with runtime.running() as intake, intake.epoch("a") as epoch:
            await epoch.submit([Message(each, None) for each in IDS])
        assert runtime.store is store
    await sink.aclose()
    assert seen(place) == sorted(IDS)
    assert all(runtime.statistics().faults.values()), runtime.statistics().faults


CRASHING = """
    import trio
    from naviscope_ingest import IngestRuntime, Message, RuntimeConfig
    from naviscope_ingest.faults import Faults
    from naviscope_ingest.sinks import SqliteSink
    from tests.integration.test_faults import IDS, SCHEMA, Booking

    async def main():
        config = RuntimeConfig(faults=Faults.from_environment(), commit_batch=4, max_in_flight=8, poison_threshold=100)
        async with SqliteSink({place!r}, SCHEMA) as sink:
            parts = dict(executor=Booking(), commit_sink=sink, config=config)
            async with IngestRuntime.open("sqlite:///ingest.db", **parts) as intake, intake.epoch("a") as epoch:
                await epoch.submit([Message(each, None) for each in IDS])
        assert epoch.report.succeeded

    trio.run(main)
"""


@pytest.mark.parametrize("place", [None, "sink.db"])
@pytest.mark.parametrize("point", ["executor", "sink", "commit", "store"])
def test_a_process_that_crashes_on_purpose_ends_with_the_same_rows(tmp_path, point, place):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(CRASHING.format(place=place)))
    probability = 0.02 if point == "executor" else 0.1
    faults = f"seed=3,{point}:{probability}:crash"
    environment = {**os.environ, VARIABLE: faults, "PYTHONPATH": str(ROOT)}
    crashes = 0
    while True:
        done = subprocess.run(
            [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert "FAULTS ARE ON" in done.stderr
        if done.returncode != CRASH_CODE:
            break
        assert "crashes on purpose" in done.stderr
        crashes += 1
    assert done.returncode == 0, done.stderr
    assert crashes > 0
    assert seen(tmp_path / (place or "ingest.db")) == sorted(IDS)
