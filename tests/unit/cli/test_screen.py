"""Tables fit, and nothing that is printed steers a terminal."""

import io

import pytest

from naviscope_ingest.cli.screen import Column, Screen, clean, layout, span

COLUMNS = (
    Column("name", is_wide=True),
    Column("state"),
    Column("extra", 2),
    Column("more", 1),
    Column("n", is_number=True),
)
ROWS = [("a" * 40, "open", "xxxxxxxxxx", "yyyyyyyyyy", 12345), ("b", "sealed", "", "", 1)]


def width_of(shown):
    return sum(width for _, width in shown) + 2 * (len(shown) - 1)


def test_in_a_pipe_nothing_is_left_out():
    assert [at for at, _ in layout(COLUMNS, ROWS, None)] == [0, 1, 2, 3, 4]
    assert layout(COLUMNS, ROWS, None)[0] == (0, 40)


@pytest.mark.parametrize("width", range(30, 120, 7))
def test_a_table_is_no_wider_than_the_terminal(width):
    shown = layout(COLUMNS, ROWS, width)
    assert width_of(shown) <= width
    assert {0, 1, 4} <= {at for at, _ in shown}


def test_the_least_important_column_goes_first():
    assert [at for at, _ in layout(COLUMNS, ROWS, 44)] == [0, 1, 3, 4]
    assert [at for at, _ in layout(COLUMNS, ROWS, 30)] == [0, 1, 4]


def test_an_empty_table_has_its_headings():
    assert layout(COLUMNS, [], 80)[0] == (0, 4)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a b"), ("\x1b[31mred", "\\x1b[31mred"), ("ünï", "ünï"), ("\x9b", "\\x9b"), ("a\u2028b", "a\\x2028b")],
)
def test_what_steers_a_terminal_is_spelt_out(text, shown):
    assert clean(text) == shown


def test_a_table_in_a_pipe_is_plain_text():
    out = io.StringIO()
    Screen(out=out).table(COLUMNS[:2], [("a", ("open", "green")), ("\x1b[2Jb", "sealed")])
    assert out.getvalue() == "NAME      STATE\na         open\n\\x1b[2Jb  sealed\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (61, "61 s"), (600, "10 min"), (90_000, "25 h"), (1e6, "12 days")]
)
def test_durations_are_short(seconds, text):
    assert span(seconds) == text
