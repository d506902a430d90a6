"""A real process, killed at any instant and simply started again: nothing is lost, nothing is applied twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing

import apsw
import pytest

from tests.durability.program import COUNT, expected_parents

KILLS = 16
TOTAL = COUNT + COUNT // 20


def start(folder, mode):
    command = [sys.executable, "-m", "tests.durability.program", str(folder), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def effects(folder, mode):
    """Return the ids of effects, in the order in which they were applied."""
    path = folder / ("effects.db" if mode == "ledger" else "ingest.db")
    if not path.exists():
        return []
    with closing(apsw.Connection(str(path))) as file:
        try:
            return [row[0] for row in file.execute("select id from effects order by place")]
        except apsw.SQLError:
            return []


def check(ids):
    """Every effect is there once, after those it depends on."""
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    place = {name: at for at, name in enumerate(ids)}
    for name, parents in expected_parents().items():
        if name in place:
            assert all(parent in place and place[parent] < place[name] for parent in parents), name


@pytest.mark.parametrize("mode", ["colocated", "ledger"])
def test_a_killed_program_is_started_again_and_finishes(tmp_path, mode):
    chance = random.Random(mode)
    kills = jobs = runs = 0
    folder = tmp_path / "job-0"
    folder.mkdir()
    while kills < KILLS or not effects(folder, mode):
        runs += 1
        assert runs < KILLS * 20
        process = start(folder, mode)
        # Most of the time goes into starting Python: wait until it works.
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        ids = effects(folder, mode)
        check(ids)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors
        kills += 0 < len(ids) < TOTAL and process.returncode == -signal.SIGKILL
        if len(ids) == TOTAL:
            finish(folder, mode)
            jobs += 1
            folder = tmp_path / f"job-{jobs}"
            folder.mkdir()
    finish(folder, mode)


def finish(folder, mode):
    """Start it once more, let it end, and compare its report with the effects."""
    out, errors = start(folder, mode).communicate(timeout=60)
    assert "{" in out, errors
    report = json.loads(out.splitlines()[-1])
    assert report == {"committed": TOTAL, "dead": 0, "submitted": TOTAL, "state": "completed", "errors": []}
    ids = effects(folder, mode)
    check(ids)
    assert set(ids) == set(expected_parents())


def test_a_message_that_kills_the_process_ends_dead_alone(tmp_path):
    deaths = 0
    while True:
        out, errors = start(tmp_path, "deadly").communicate(timeout=60)
        if "{" in out:
            break
        deaths += 1
        assert deaths < 8, errors
    report = json.loads(out.splitlines()[-1])
    assert (report["committed"], report["dead"]) == (TOTAL, 1)
    assert report["errors"] == ["Permanent: message 'deadly' ran alone each of the 3 times that the process died"]
    # Three times alone; once before in company; and once so early that the claim had not reached the disk.
    assert 3 <= deaths <= 5
    check(effects(tmp_path, "deadly"))
