"""`naviscope-ingest` as people and service managers start it: processes, signals, terminals."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")

SHOP = """\
import trio
from naviscope_ingest import Ingest, Permanent, SystemFailure

app = Ingest("sqlite:///shop.db")

@app.handler("order")
async def order(amount: int) -> None:
    if amount < 0:
        raise Permanent("an amount below zero")

@app.handler("slow")
async def slow(seconds: float) -> None:
    await trio.sleep(seconds)

@app.handler("fatal")
async def fatal(payload: int) -> None:
    raise SystemFailure("nothing can go on")
"""

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "naviscope_ingest"]


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NAVISCOPE_")}
    return {**kept, "PYTHONPATH": "", "TERM": "xterm-256color", **more}


def call(folder, *arguments, given="", **more):
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=folder,
        env=environment(**more),
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def messages(*found):
    return "".join(json.dumps(each) + "\n" for each in found)


@contextmanager
def running(folder, *arguments):
    """Run the app until the block is left; it serves its control socket when the block begins."""
    command = [*COMMAND, "run", "shop:app", "--log-format", "json", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        seen = []
        for line in process.stderr:
            seen.append(json.loads(line))
            if "control" in seen[-1]:
                break
        process.seen = seen
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


def ended(process):
    """Wait for a process; return its exit code and its log."""
    log = [json.loads(line) for line in process.stderr]
    return process.wait(timeout=60), [line["message"] for line in log]


def test_a_store_is_filled_run_and_asked(shop):
    given = messages(
        {"id": "a", "kind": "order", "payload": 3},
        {"id": "b", "kind": "order", "payload": -1, "depends_on": ["a"]},
    )
    assert call(shop, "submit", "-e", "monday", "-a", "shop:app", given=given)[:2] == (
        0,
        "epoch 'monday': 2 accepted, 0 known already\n",
    )
    code, out, _ = call(shop, "run", "shop:app", "--until-idle")
    _, row = out.splitlines()
    assert code == 1
    assert row.split() == ["monday", "failed", "2", "0", "1", "1", "0"]
    code, out, err = call(shop, "run", "shop:app", "--until-idle", "--log-level", "warning")
    assert (code, out, err) == (0, "", "there was nothing to do\n")


def test_what_waits_for_somebody_is_told_by_the_exit_code(shop):
    given = messages({"id": "a", "kind": "order", "payload": 3, "depends_on": ["nobody"]})
    call(shop, "submit", "-e", "monday", "--keep-open", "-s", "shop.db", given=given)
    code, out, _ = call(shop, "run", "shop:app", "--until-idle", "--json")
    assert code == 3
    assert json.loads(out)["epochs"][0]["unfinished"] == 1


def test_a_process_that_runs_is_asked_and_changed_through_its_socket(shop):
    with running(shop) as process:
        assert (shop / "shop.db.control").stat().st_mode & 0o777 == 0o600
        given = messages({"id": "a", "kind": "order", "payload": 3})
        code, out, _ = call(shop, "submit", "-s", "shop.db", "-e", "monday", "--wait", "--json", given=given)
        assert (code, json.loads(out)["report"]["committed"]) == (0, 1)
        assert call(shop, "kind", "pause", "order", "-s", "shop.db")[:2] == (0, "kind 'order' is paused\n")
        given = messages({"id": "b", "kind": "order", "payload": 3})
        call(shop, "submit", "-s", "shop.db", "-e", "tuesday", given=given)
        assert call(shop, "epoch", "wait", "tuesday", "-s", "shop.db", "--timeout", "0.2s")[0] == 3
        assert "pause: " in call(shop, "message", "explain", "tuesday", "b", "-s", "shop.db")[1]
        code, out, err = call(shop, "submit", "-s", "shop.db", given=messages({"id": "c", "kind": "odrer"}))
        assert code == 2
        assert "did you mean 'order'?" in err
        found = json.loads(call(shop, "store", "info", "-s", "shop.db", "--json")[1])
        assert found["process"]["pid"] == process.pid
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert (code, log[-1]) == (0, "SIGTERM: what was started may finish, nothing else is started")
    assert not (shop / "shop.db.control").exists()
    assert call(shop, "run", "shop:app", "--until-idle")[0] == 0


def test_a_killed_process_goes_on_and_its_socket_is_replaced(shop):
    with running(shop) as process:
        given = messages({"id": "s", "kind": "slow", "payload": 60.0})
        call(shop, "submit", "-s", "shop.db", "-e", "monday", given=given)
        process.kill()
    assert (shop / "shop.db.control").exists()
    assert "left over" in call(shop, "doctor", "-s", "shop.db")[1]
    assert call(shop, "epoch", "cancel", "monday", "-s", "shop.db")[:2] == (
        0,
        "epoch 'monday' is cancelled, 1 message cancelled: failed\n",
    )
    with running(shop) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 130


def test_the_first_signal_drains_and_the_second_does_not_wait(shop):
    with running(shop) as process:
        given = messages({"id": "s", "kind": "slow", "payload": 60.0})
        call(shop, "submit", "-s", "shop.db", "-e", "monday", given=given)
        process.send_signal(signal.SIGINT)
        line = json.loads(process.stderr.readline())
        assert line["message"].startswith("SIGINT: what was started may finish")
        process.send_signal(signal.SIGINT)
        code, log = ended(process)
    assert code == 130
    assert "stopping at once: what was started is handed back" in log


def test_a_runtime_that_failed_starts_again(shop):
    given = messages({"id": "f", "kind": "fatal", "payload": 1})
    call(shop, "submit", "-s", "shop.db", "-e", "monday", given=given)
    code, _, err = call(shop, "run", "shop:app", "--log-level", "error")
    assert code == 5
    assert err.splitlines()[-2:] == [
        "error: the runtime failed: SystemFailure: nothing can go on",
        "hint: what had not ended is kept: mend the cause and start again",
    ]
    code, _, err = call(shop, "run", "shop:app", "--restart", "--max-restarts", "1", "--log-level", "error")
    assert code == 5
    assert err.count("the runtime failed: nothing can go on; it starts again in 1 s") == 1


def test_without_a_socket_questions_are_answered_and_changes_refused(shop):
    command = [*COMMAND, "run", "shop:app", "--no-control", "--log-level", "error"]
    with subprocess.Popen(command, cwd=shop, env=environment()) as process:
        deadline = time.monotonic() + 30
        while call(shop, "epoch", "list", "-s", "shop.db")[0] and time.monotonic() < deadline:
            pass
        code, _, err = call(shop, "submit", "-s", "shop.db", given=messages({"id": "a"}))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert code == 4
    assert f"process {process.pid} on" in err
    assert "hint: it offers no control socket" in err


# What people see


def watch(folder, *arguments, columns=80, **more):
    """Run a command in a terminal of so many columns; return exit code and what is on it in the end."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    ) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:
                break
            if not chunk:
                break
            output += chunk
        os.close(leader)
    return process.returncode, output.decode()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    (folder / "shop.py").write_text(SHOP)
    name = "an-import-with-a-name-that-is-rather-long-" + "x" * 60
    given = messages(
        *({"id": f"order-{n}", "kind": "order", "payload": n % 7 - 1} for n in range(400)),
    )
    call(folder, "submit", "-e", name, "-a", "shop:app", given=given)
    call(folder, "run", "shop:app", "--until-idle")
    return folder


TABLES = [["epoch", "list"], ["dead-letter", "list"], ["dead-letter", "group"]]


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_tables_are_no_wider_than_the_terminal(shown, arguments, columns):
    code, output = watch(shown, *arguments, "-s", "shop.db", columns=columns)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    widths = [len(line) for line in plain.replace("\r", "").splitlines()]
    assert code == 0
    assert max(widths) <= columns
    assert "\x1b[" in output


def test_no_color_means_no_colour(shown):
    _, output = watch(shown, "dead-letter", "list", "-s", "shop.db", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", output)


def test_a_line_says_how_it_goes_and_is_gone_in_the_end(shop):
    given = messages(*({"id": f"s-{n}", "kind": "slow", "payload": 0.4} for n in range(3)))
    call(shop, "submit", "-s", "shop.db", "-e", "monday", given=given)
    code, output = watch(shop, "run", "shop:app", "--until-idle", "--log-level", "error")
    assert code == 0
    assert re.search(r"running.* · 0 committed · 0/s · 3 running · 0 ready · 0 waiting", output)
    assert output.count("monday") == 1


def test_a_reader_that_has_seen_enough_is_no_error(shown):
    command = f"{sys.executable} -m naviscope_ingest dead-letter list --json -s shop.db | head -1"
    done = subprocess.run(
        command, shell=True, cwd=shown, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)


def test_the_demo_is_a_command(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.py").write_text("def f(): ...\nf()\n")
    code, out, err = call(tmp_path, "demo", "--path", "tree", "--find", "a.f", PYTHONPATH=str(ROOT))
    assert (code, err) == (0, "")
    assert "Where is a.f defined?" in out
    assert "usage: naviscope-ingest demo" in call(tmp_path, "demo", "--help", PYTHONPATH=str(ROOT))[1]


def test_without_the_extra_it_says_what_to_install(tmp_path):
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n")
    code, _, err = call(tmp_path, "epoch", "list", PYTHONPATH=str(tmp_path))
    assert (code, err.splitlines()[1]) == (2, "hint: pip install 'naviscope-ingest[cli]'")
