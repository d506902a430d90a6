"""The log: one line of JSON for each record, with its facts."""

import json
import logging
import subprocess
import sys

import pytest

from naviscope_ingest.logs import LOGGER, JsonFormatter, facts_of


def record(text="hello %s", *arguments, error=None, **facts):
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.getLogger(LOGGER).makeRecord(LOGGER, logging.WARNING, "f.py", 1, text, arguments, info, extra=facts)
    made.created = 1_000_000_000.5
    return made


def written(made):
    line = JsonFormatter().format(made)
    assert "\n" not in line
    return json.loads(line)


def test_a_record_is_one_object_with_its_facts():
    assert written(record("hello %s", "you", epoch="nightly", attempt=2)) == {
        "time": "2001-09-09T01:46:40.500Z",
        "level": "warning",
        "logger": "naviscope_ingest",
        "message": "hello you",
        "epoch": "nightly",
        "attempt": 2,
    }


def test_facts_are_what_was_added():
    assert facts_of(record("x", epoch="e", kind="k")) == {"epoch": "e", "kind": "k"}


@pytest.mark.parametrize(
    ("fact", "seen"),
    [
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        ({"a": {1, 2} and "x"}, {"a": "x"}),
        ((1, None, True), [1, None, True]),
        (b"raw", "b'raw'"),
        (ValueError("no"), "no"),
        ("line\nbreak\x1b[31m", "line\nbreak\x1b[31m"),
        ("\ud800", "\ud800"),
    ],
)
def test_whatever_a_fact_is_the_line_is_json(fact, seen):
    assert written(record("x", fact=fact))["fact"] == seen


def test_a_fact_cannot_pose_as_what_every_record_has():
    assert written(record("x", level="critical", time="never"))["level"] == "warning"


def test_texts_are_bounded():
    assert len(json.dumps(written(record("x" * 100_000, fact="y" * 100_000)))) < 20_000


def test_an_error_brings_its_traceback():
    try:
        raise KeyError("k")
    except KeyError as error:
        assert written(record("x", error=error))["traceback"].endswith("KeyError: 'k'")


def test_an_embedded_runtime_says_nothing_unless_somebody_listens():
    program = (
        "import logging, naviscope_ingest\n"
        "logging.getLogger('naviscope_ingest').warning('to nobody')\n"
        "assert logging.getLogger('naviscope_ingest').level == logging.NOTSET\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
