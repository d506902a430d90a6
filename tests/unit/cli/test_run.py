"""What `run` decides without running: delays, and lines of the log."""

import itertools
import json
import logging

from naviscope_ingest.cli.logs import JsonLines, TextLines
from naviscope_ingest.cli.run import backoffs


def test_delays_grow_up_to_a_minute():
    assert list(itertools.islice(backoffs(), 8)) == [1, 2, 4, 8, 16, 32, 60, 60]


def record(**facts):
    return logging.makeLogRecord(
        {
            "name": "naviscope_ingest",
            "levelname": "INFO",
            "msg": "%s\x1b[2J",
            "args": ("hello",),
            "created": 0.5,
            **facts,
        }
    )


def test_a_line_of_json_has_the_facts():
    line = json.loads(JsonLines().format(record(epoch="monday", odd=object)))
    assert line["time"] == "1970-01-01T00:00:00.500Z"
    assert (line["level"], line["message"], line["epoch"]) == ("info", "hello\x1b[2J", "monday")
    assert "object" in line["odd"]


def test_facts_do_not_hide_what_every_line_has():
    assert json.loads(JsonLines().format(record(time="never", level="odd")))["level"] == "info"


def test_a_line_of_text_cannot_steer_a_terminal():
    assert TextLines().format(record()) == "1970-01-01T00:00:00.500Z info    hello\\x1b[2J"


def test_a_traceback_is_kept():
    try:
        raise ValueError("bad")
    except ValueError as error:
        found = record(exc_info=(ValueError, error, error.__traceback__))
    assert "ValueError: bad" in TextLines().format(found)
    assert "ValueError: bad" in json.loads(JsonLines().format(found))["traceback"]
