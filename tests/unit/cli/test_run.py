"""What `run` decides without running: delays, and lines of the log."""

import itertools
import logging

from naviscope_ingest.cli.logs import TextLines
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


def test_a_line_of_text_cannot_steer_a_terminal():
    assert TextLines().format(record()) == "1970-01-01T00:00:00.500Z info    hello\\x1b[2J"


def test_a_traceback_is_kept():
    try:
        raise ValueError("bad")
    except ValueError as error:
        found = record(exc_info=(ValueError, error, error.__traceback__))
    assert "ValueError: bad" in TextLines().format(found)
