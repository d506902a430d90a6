"""A process that is killed while it replays a thousand dead letters: each is replayed once, and the audit says so."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing

import apsw

from tests.durability.repair_program import COUNT, EVERY

KILLS = 8
TOTAL = COUNT + COUNT // EVERY


def start(folder, mode):
    command = [sys.executable, "-m", "tests.durability.repair_program", str(folder), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def looked_at(folder):
    """Return who was replayed by the audit, which effects there are, and which runs messages are in."""
    with closing(apsw.Connection(str(folder / "ingest.db"))) as file:
        audit = [json.loads(value) for (value,) in file.execute("select value from records where space = 'audit'")]
        # The table is made by the first commit.
        is_there = list(file.execute("select 1 from sqlite_schema where name = 'effects'"))
        effects = list(file.execute("select id, run from effects")) if is_there else []
        runs = dict(
            file.execute(
                "select m.id, coalesce(p.run, 0) from messages m left join progress p on p.seq = m.seq"
                " left join ends e on e.seq = m.seq where coalesce(e.end, -1) <> 0"
            )
        )
        return [entry["message_id"] for entry in audit], effects, runs


def check(folder):
    """A letter is replayed whole, with its entry, or not at all; nothing takes effect twice. Return how many are."""
    audit, effects, runs = looked_at(folder)
    assert [name for name, count in Counter(audit).items() if count > 1] == []
    assert [name for name, count in Counter(name for name, _ in effects).items() if count > 1] == []
    assert {run for _, run in effects} <= {1}
    done = set(audit)
    for name, run in runs.items():
        assert run == (f"m{name[1:]}" in done), f"{name} is in run {run}"
    assert {f"m{name[1:]}" for name, _ in effects} <= done
    return len(audit)


def test_a_killed_replay_goes_on_where_it_was(tmp_path):
    failed = tmp_path / "failed"
    failed.mkdir()
    out, errors = start(failed, "fail").communicate(timeout=60)
    assert json.loads(out or "{}") == {"dead": TOTAL, "letters": TOTAL}, errors
    chance = random.Random("replay")
    kills = jobs = runs = 0
    folder = None
    while kills < KILLS:
        if folder is None:
            jobs += 1
            folder = shutil.copytree(failed, tmp_path / f"job-{jobs}")
        runs += 1
        assert runs < KILLS * 10
        process = start(folder, "repair")
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors
        replayed = check(folder)
        kills += 0 < replayed < COUNT
        if replayed == COUNT:
            finish(folder)
            folder = None
    if folder is not None:
        finish(folder)


def finish(folder):
    """Start it once more, and let it end."""
    before = check(folder)
    out, errors = start(folder, "repair").communicate(timeout=60)
    assert "{" in out, errors
    report = json.loads(out.splitlines()[-1])
    assert (report["committed"], report["dead"], report["succeeded"]) == (TOTAL, 0, True)
    assert (report["replayed"], report["letters"]) == (COUNT - before, 0)
    assert report["revision"] >= 1
    entries = {name: rest for name, *rest in report["audit"]}
    assert len(entries) == len(report["audit"]) == COUNT
    assert all(entries[f"m{number}"] == [0, "the test", 1 + (number % EVERY == 0)] for number in range(COUNT))
    check(folder)
    assert len(looked_at(folder)[1]) == TOTAL
