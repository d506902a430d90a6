"""What is kept of a message that ended badly, and how it is read back."""

import pytest

from naviscope_ingest import AttemptRecord, DeadLetter
from naviscope_ingest.letters import fingerprint_of, origin_of


def letter() -> DeadLetter:
    attempts = tuple(
        AttemptRecord(at=float(number), error="OSError: no", kind="connection", stack="File …", attempt=number)
        for number in (1, 2)
    )
    return DeadLetter(
        error="OSError: no",
        kind="connection",
        fingerprint=fingerprint_of("connection", "OSError", "no"),
        attempts=attempts,
        tried=2,
        worker="runtime 1",
        causes=(("nightly", "a"),),
        origin={"source.offset": "7"},
        ended_at=3.5,
    )


def test_a_letter_reads_back_as_it_was_written() -> None:
    assert DeadLetter.decode(letter().encode()) == letter()


def test_the_reason_that_older_versions_wrote_is_a_letter_too() -> None:
    old = DeadLetter.decode("ValueError: row 7 is «bad»".encode())
    assert (old.error, old.kind, old.attempts) == ("ValueError: row 7 is «bad»", None, ())
    assert old.fingerprint == DeadLetter.decode(b"ValueError: row 8 is \xc2\xabbad\xc2\xbb").fingerprint


def test_text_that_looks_like_json_is_text() -> None:
    assert DeadLetter.decode(b'{"error":"x"}').error == '{"error":"x"}'


def test_no_letter_reads_as_an_empty_one() -> None:
    assert DeadLetter.decode(None) == DeadLetter.decode(b"") == DeadLetter()


def test_a_later_format_is_refused_and_named() -> None:
    with pytest.raises(ValueError, match="format '2', and this version reads 1"):
        DeadLetter.decode(b"\xff2{}")


def test_a_damaged_letter_says_so() -> None:
    with pytest.raises(ValueError, match="damaged"):
        DeadLetter.decode(letter().encode()[:-1])


def test_fields_of_later_versions_are_ignored() -> None:
    assert DeadLetter.decode(b'\xff1{"error":"x","mood":"bad"}').error == "x"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timeout after 3.2 s", "timeout after 17 s"),
        ("no row 'a' in \"b\"", "no row 'c' in \"d\""),
        ("order 7f3c-11 at 0x7f", "order aa0b-9 at 0x1"),
    ],
)
def test_alike_failures_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint_of("bug", "E", one) == fingerprint_of("bug", "E", other)


@pytest.mark.parametrize(
    "other",
    [("bug", "E", "text", "g"), ("bug", "E", "texts", "f"), ("bug", "F", "text", "f"), ("parse", "E", "text", "f")],
)
def test_kind_type_text_and_place_part_failures(other: tuple[object, str, str, str]) -> None:
    assert fingerprint_of("bug", "E", "text", "f") != fingerprint_of(*other)  # type: ignore[arg-type]


def test_the_origin_is_taken_from_headers_and_bounded() -> None:
    headers = {"Traceparent": "00-1", "source.offset": "x" * 1_000, "colour": "red"}
    assert origin_of(headers) == {"Traceparent": "00-1", "source.offset": "x" * 256}
    assert len(origin_of({f"source.{each}": "" for each in range(100)})) == 20
