"""The commands that README and Makefile name do what they say."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peers
from tests.soak.drivers import DRIVERS, Played, play_chunk

ROOT = Path(__file__).resolve().parents[2]
DEPENDENT = "examples/dependent_import.py"
DURABLE = "examples/durable_import.py"


def run(*arguments, **options):
    """Run Python with arguments in the root of the checkout."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **options
    )


def run_in_terminal(*arguments):
    """Run Python with a terminal for its output; return exit code and output."""
    leader, follower = os.openpty()
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=follower) as process:
        os.close(follower)
        output = b""
        while chunk := _read(leader):
            output += chunk
        os.close(leader)
        return process.wait(timeout=60), output.decode()


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError as error:  # Linux says so when the other end is closed.
        assert error.errno == errno.EIO
        return b""


def test_the_dependent_import_prints_only_the_report_in_a_pipe():
    done = run(DEPENDENT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\r" not in done.stdout
    first, *rest = done.stdout.splitlines()
    assert first == "epoch 'shop-import' is completed: 1745 messages, 1 duplicate"
    assert rest[0] == "  1740 committed, 5 dead, 0 skipped"
    assert sorted(rest[2:]) == [
        "  line-123: it ended dead: message 'order-123' ended dead",
        "  line-523: it ended dead: message 'order-123' ended dead",
        "  line-77: it ended dead: Permanent: quantity -3 of sku-1 makes no sense",
        "  line-923: it ended dead: message 'order-123' ended dead",
        "  order-123: it ended dead: nothing alive can bring message 'customer-999'",
    ]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_the_dependent_import_shows_its_progress_in_a_terminal():
    code, output = run_in_terminal(DEPENDENT)
    assert code == 0
    progress = [line for line in output.split("\r") if line.startswith("[")]
    assert len(progress) > 2
    assert progress[-1].startswith(f"[{'#' * 30}] 1745/1745 ended, 5 dead")
    assert "1740 committed" in output


DURABLE_REPORT = """\
epoch 'orders' is completed: 379 committed, 1 dead
  40 rows in 'customer'
  299 rows in 'booking'
  40 rows in 'statement'
  10313 in all statements
  order-77: Permanent: an amount of -1 makes no sense
"""


def test_the_durable_import_prints_only_its_report_in_a_pipe_and_says_the_same_again(tmp_path):
    for pause in ("0", "60"):  # Nothing is left to do the second time, so nothing takes its time.
        done = run(DURABLE, str(tmp_path / "import.db"), "--pause", pause)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", DURABLE_REPORT)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_durable_import_goes_on_after_it_was_interrupted(tmp_path, how, code):
    file = str(tmp_path / "import.db")
    leader, follower = os.openpty()
    with subprocess.Popen([sys.executable, DURABLE, file, "--pause", "0.05"], cwd=ROOT, stderr=follower) as process:
        os.close(follower)
        shown = b""
        while not re.search(rb"[1-9]\d*/380 ended", shown):
            shown += os.read(leader, 4096)
        process.send_signal(how)
        while chunk := _read(leader):
            shown += chunk
        os.close(leader)
        assert process.wait(timeout=60) == code
    assert b"380/380" not in shown
    done = run(DURABLE, file, "--pause", "0")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", DURABLE_REPORT)


def test_the_core_benchmark_runs():
    done = run("-m", "benchmarks", "core", "--quick")
    assert (done.returncode, done.stderr) == (0, "")
    assert "growth from 1,000 to 100,000" in done.stdout


@pytest.mark.skipif(bool(peers.INSTALLED), reason="then they run, and take their time")
def test_the_durable_benchmark_says_what_is_not_installed():
    done = run("-m", "benchmarks", "durable", "--quick", "--only", "peers")
    assert "huey, dbos: not installed, so not compared; make bench installs them" in done.stdout


def test_a_part_of_the_runtime_benchmark_runs():
    done = run("-m", "benchmarks", "runtime", "--quick", "--only", "W3")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"W3, 10,000: x asyncio +\d+\.\d\d +≥ 1.20  (not )?reached", done.stdout)
    assert "W2" not in done.stdout


@pytest.mark.parametrize("arguments", [["nothing"], ["runtime", "--only", "W9"]])
def test_a_benchmark_that_does_not_exist_is_refused(arguments):
    done = run("-m", "benchmarks", *arguments)
    assert done.returncode == 2
    assert f"there is no {arguments[-1]!r}: choose from" in done.stderr


def test_the_soak_test_ends_with_counts():
    done = run("-m", "tests.soak", "--minutes", "0.001", "--processes", "1", "--seed", "5000")
    assert (done.returncode, done.stderr) == (0, "")
    first, *counts = done.stdout.splitlines()
    assert first == "soak: seeds from 5000"
    assert [line.split()[0] for line in counts] == list(DRIVERS)
    assert all(re.search(r"\d+ programs +[\d,]+ events +0 violations$", line) for line in counts)


def test_a_program_of_the_soak_test_can_be_played_again():
    done = run("-m", "tests.soak", "--replay", "core:5001")
    assert done.returncode == 0
    assert re.fullmatch(r"core:5001: \d+ events, no violation\n", done.stdout)


def test_the_soak_test_keeps_the_seeds_of_violations(monkeypatch):
    def breaks_at_three(seed):
        assert seed != 3, "three is bad"
        return Played(10)

    monkeypatch.setitem(DRIVERS, "core", breaks_at_three)
    tally = play_chunk("core", 0, 5) + play_chunk("core", 5, 5)
    assert (tally.programs, tally.events, tally.violations) == (10, 90, 1)
    ((seed, error),) = tally.found
    assert seed == 3
    assert error.startswith("AssertionError: three is bad")


def commands(pattern):
    """Find commands in the console blocks of README and the like."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
    text = "\n".join(document.read_text(encoding="utf-8") for document in documents)
    return sorted(set(re.findall(rf"^\$ {pattern}", text, re.MULTILINE)))


def test_every_make_command_of_the_documents_exists():
    targets = re.findall(r"^([a-z.]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = commands(r"make ([a-z.]+)")
    assert {"demo", "test", "bench"} <= set(named) <= set(targets)


def test_every_program_of_the_documents_exists():
    programs = commands(r"\.venv/bin/python (\S+\.py)")
    assert programs
    assert all((ROOT / program).is_file() for program in programs)


def test_make_runs_the_demo_and_the_benchmarks():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(BIN)/python -m examples.code_index" in makefile
    assert "$(BIN)/python -m benchmarks" in makefile
    assert "$(BIN)/python -m tests.soak" in makefile
