"""What errors mean: by decision, type, number, status, state and name; the user's rules first."""

import errno
import json
import socket
import sqlite3
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.error import HTTPError

import apsw
import msgspec
import pytest
import trio

from naviscope_ingest import Classified, Classifier, ErrorKind, Permanent, SystemFailure, Transient
from naviscope_ingest.errors import InvalidMessage, PayloadNotDecodable
from naviscope_ingest.failures import ERROR_KINDS

NOW = 1_000_000_000.0


def meaning(error: BaseException, classifier: Classifier | None = None) -> tuple[str, str, float | None]:
    found = (classifier or Classifier()).classify(error, NOW)
    return found.decision, found.kind, found.retry_after


class Response:
    def __init__(self, status: int, headers: object = None) -> None:
        self.status_code = status
        self.headers = {} if headers is None else headers


class HTTPStatusError(Exception):
    """As httpx and requests have it."""

    def __init__(self, status: int, headers: object = None) -> None:
        super().__init__(f"status {status}")
        self.response = Response(status, headers)


class ClientResponseError(Exception):
    """As aiohttp has it."""

    def __init__(self, status: int, headers: object = None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers


class SqlError(Exception):
    """As psycopg and asyncpg have it."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class OldSqlError(Exception):
    """As psycopg2 has it."""

    pgcode = "40P01"


class ReadTimeout(type("Timeout", (Exception,), {})):
    """As requests has it."""


class Hostile(Exception):  # noqa: N818 - what it is
    """Raises when it is looked at."""

    @property
    def response(self) -> object:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


TABLE: list[tuple[BaseException, str, str]] = [
    (Transient("busy"), "transient", "server"),
    (Transient("busy", error_kind="quota"), "transient", "quota"),
    (Permanent("no"), "permanent", "client"),
    (Permanent("no", error_kind="auth"), "permanent", "auth"),
    (SystemFailure("down"), "system", "server"),
    (PayloadNotDecodable("row", "bad"), "permanent", "schema"),
    (InvalidMessage("bad"), "permanent", "schema"),
    (TimeoutError(), "transient", "timeout"),
    (TimeoutError(), "transient", "timeout"),
    (trio.TooSlowError(), "transient", "timeout"),
    (trio.BrokenResourceError(), "transient", "connection"),
    (ConnectionResetError(errno.ECONNRESET, "reset"), "transient", "connection"),
    (OSError(errno.EHOSTUNREACH, "no route"), "transient", "connection"),
    (OSError(errno.ETIMEDOUT, "late"), "transient", "timeout"),
    (OSError(errno.ENOSPC, "full"), "transient", "quota"),
    (OSError(errno.EBUSY, "busy"), "transient", "server"),
    (OSError(errno.EDEADLK, "deadlock"), "transient", "deadlock"),
    (FileNotFoundError(errno.ENOENT, "none"), "permanent", "not_found"),
    (PermissionError(errno.EACCES, "denied"), "permanent", "auth"),
    (FileExistsError(errno.EEXIST, "there"), "permanent", "constraint"),
    (IsADirectoryError(errno.EISDIR, "directory"), "permanent", "client"),
    (socket.gaierror(socket.EAI_AGAIN, "no name"), "transient", "connection"),
    (MemoryError(), "transient", "quota"),
    (HTTPStatusError(400), "permanent", "client"),
    (HTTPStatusError(401), "permanent", "auth"),
    (HTTPStatusError(403), "permanent", "auth"),
    (HTTPStatusError(404), "permanent", "not_found"),
    (HTTPStatusError(408), "transient", "timeout"),
    (HTTPStatusError(409), "permanent", "constraint"),
    (HTTPStatusError(422), "permanent", "schema"),
    (HTTPStatusError(429), "transient", "rate_limit"),
    (HTTPStatusError(500), "transient", "server"),
    (HTTPStatusError(503), "transient", "server"),
    (HTTPStatusError(504), "transient", "timeout"),
    (ClientResponseError(502), "transient", "server"),
    (HTTPError("http://x", 404, "none", None, None), "permanent", "not_found"),
    (HTTPStatusError(200), "transient", "bug"),
    (SqlError("08006"), "transient", "connection"),
    (SqlError("40001"), "transient", "deadlock"),
    (SqlError("23505"), "permanent", "constraint"),
    (SqlError("22P02"), "permanent", "schema"),
    (SqlError("42501"), "permanent", "auth"),
    (SqlError("42601"), "permanent", "client"),
    (SqlError("53300"), "transient", "quota"),
    (SqlError("57014"), "transient", "timeout"),
    (SqlError("57P01"), "transient", "connection"),
    (SqlError("99999"), "transient", "bug"),
    (OldSqlError(), "transient", "deadlock"),
    (sqlite3.IntegrityError("unique"), "permanent", "constraint"),
    (sqlite3.OperationalError("locked"), "transient", "server"),
    (apsw.ConstraintError("unique"), "permanent", "constraint"),
    (apsw.BusyError("busy"), "transient", "deadlock"),
    (json.JSONDecodeError("bad", "", 0), "permanent", "parse"),
    (msgspec.DecodeError("bad"), "permanent", "parse"),
    (msgspec.ValidationError("bad"), "permanent", "schema"),
    (UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), "permanent", "parse"),
    (ReadTimeout(), "transient", "timeout"),
    (ValueError("what"), "transient", "bug"),
    (Hostile(), "transient", "bug"),
]


@pytest.mark.parametrize(
    ("error", "decision", "kind"),
    TABLE,
    ids=lambda each: f"{each!s:.40}" if isinstance(each, str) else type(each).__name__,
)
def test_an_error_means(error: BaseException, decision: str, kind: str) -> None:
    assert meaning(error)[:2] == (decision, kind)


def test_every_kind_of_error_that_comes_from_outside_is_reached() -> None:
    inner = {"dependency", "poison", "expired"}
    assert {kind for _, _, kind in TABLE} == set(ERROR_KINDS) - inner


@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
@pytest.mark.parametrize("make", [HTTPStatusError, ClientResponseError])
@pytest.mark.parametrize("status", [429, 503])
def test_seconds_to_wait_are_read(make: type, status: int, name: str) -> None:
    assert meaning(make(status, {name: "7"}))[2] == 7.0


def test_a_date_to_wait_for_is_read() -> None:
    at = datetime.fromtimestamp(NOW + 90, UTC)
    assert meaning(HTTPStatusError(429, {"Retry-After": format_datetime(at, usegmt=True)}))[2] == pytest.approx(90)


@pytest.mark.parametrize("value", ["soon", "", "-", "1e99", "Thu, 99 Foo", None])
def test_a_wait_that_makes_no_sense_is_none(value: object) -> None:
    assert meaning(HTTPStatusError(429, {"Retry-After": value})) == ("transient", "rate_limit", None)


def test_a_date_that_has_passed_means_now() -> None:
    assert meaning(HTTPStatusError(503, {"Retry-After": "Thu, 01 Jan 1970 00:00:01 GMT"}))[2] == 0.0


def test_a_permanent_status_has_nothing_to_wait_for() -> None:
    assert meaning(HTTPStatusError(404, {"Retry-After": "7"})) == ("permanent", "not_found", None)


def test_a_decision_has_the_kind_of_its_cause() -> None:
    error = Permanent("no")
    error.__cause__ = HTTPStatusError(503)
    assert meaning(error) == ("permanent", "server", None)


def test_an_unknown_error_means_what_its_cause_does() -> None:
    error = RuntimeError("wrapped")
    error.__cause__ = ValueError("wrapped again")
    error.__cause__.__cause__ = HTTPStatusError(404)
    assert meaning(error) == ("permanent", "not_found", None)


def test_causes_that_go_round_end() -> None:
    error = RuntimeError("a")
    error.__cause__ = error
    assert meaning(error) == ("transient", "bug", None)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([TimeoutError(), ValueError()], ("transient", "timeout", None)),
        ([TimeoutError(), Permanent("no")], ("permanent", "client", None)),
        ([Permanent("no"), SystemFailure("down"), TimeoutError()], ("system", "server", None)),
        ([Transient(retry_after=3), Transient(retry_after=9)], ("transient", "rate_limit", 9)),
        ([Transient(retry_after=3), TimeoutError()], ("transient", "rate_limit", None)),
        ([ExceptionGroup("inner", [HTTPStatusError(404)])], ("permanent", "not_found", None)),
    ],
)
def test_the_worst_of_a_group_decides(members: list[Exception], expected: tuple[str, str, float | None]) -> None:
    assert meaning(ExceptionGroup("several", members)) == expected


def test_rules_come_first_then_types_then_ours() -> None:
    def rule(error: BaseException) -> Classified | None:
        return Classified("system", "auth") if "expired token" in str(error) else None

    classifier = Classifier({LookupError: Classified("permanent", "not_found")}, [rule])
    assert meaning(KeyError("x"), classifier)[:2] == ("permanent", "not_found")
    assert meaning(KeyError("expired token"), classifier)[:2] == ("system", "auth")
    assert meaning(TimeoutError(), classifier)[:2] == ("transient", "timeout")


def test_the_users_rules_may_overrule_a_decision() -> None:
    classifier = Classifier({Permanent: Classified("transient", "server", 5.0)})
    assert meaning(Permanent("no"), classifier) == ("transient", "server", 5.0)


def test_a_rule_that_raises_or_answers_nonsense_knows_nothing() -> None:
    def broken(error: BaseException) -> Classified | None:
        raise RuntimeError("no")

    classifier = Classifier(rules=[broken, lambda error: "transient"])
    assert meaning(TimeoutError(), classifier)[:2] == ("transient", "timeout")


def test_what_an_unknown_error_means_can_be_said() -> None:
    classifier = Classifier(unknown=Classified("permanent", "bug"))
    assert meaning(ValueError(), classifier) == ("permanent", "bug", None)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: Classified("maybe", "bug"), "decision='maybe'.*'transient', 'permanent', 'system'"),
        (lambda: Classified("transient", "odd"), "kind='odd'.*'connection'"),
        (lambda: Classifier({"ValueError": Classified("transient", "bug")}), "'ValueError'"),
        (lambda: Classifier({ValueError: "transient"}), "'transient'"),
        (lambda: Classifier(rules=[1]), r"rules=\[1\]"),
    ],
)
def test_a_classifier_that_could_not_work_is_refused(wrong: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wrong()


def test_the_kinds_are_one_list() -> None:
    kind: ErrorKind
    for kind in ERROR_KINDS:
        assert Classified("transient", kind).kind == kind
