"""What went wrong, and what that means: try again, give the message up, or stop.

An executor that raises `Transient`, `Permanent` or `SystemFailure` has decided. Every other exception is somebody
else's, and a `Classifier` decides by what can be read off it: its type, an `errno`, an HTTP status, an SQLSTATE. No
client library is imported for that. Libraries agree on few names (`status_code`, `sqlstate`, `ReadTimeout`), and an
attribute is read wherever it is found; so clients that are not known here, and those that are yet to be written, are
understood too.

**Unknown errors are transient**, up to the retry limit. A wrong "transient" costs two more attempts of one message; a
wrong "permanent" costs a dead letter, and somebody's attention, for every hiccup of a library that we do not know.

Rejected: tables of the exception classes of known libraries. They would have to be imported to be compared with, and
kept up with.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, TypeAlias, get_args

import trio
from attrs import evolve, field, frozen

from naviscope_ingest._core.units import Seconds
from naviscope_spi import ErrorKind, InvalidMessage, Permanent, SystemFailure, Transient

__all__ = ["ERROR_KINDS", "Classified", "Classifier", "Decision"]

Decision: TypeAlias = Literal["transient", "permanent", "system"]
"""What an error means: try again, end the message dead, or stop the runtime."""

ERROR_KINDS: Final[tuple[ErrorKind, ...]] = get_args(ErrorKind)
"""Every kind of error."""

_DEPTH: Final = 8
"""How far causes and groups are followed."""


def _check_decision(instance: object, attribute: object, value: object) -> None:
    if value not in get_args(Decision):
        raise ValueError(f"Classified(decision={value!r:.80}): it is one of {', '.join(map(repr, get_args(Decision)))}")


def _check_kind(instance: object, attribute: object, value: object) -> None:
    if value not in ERROR_KINDS:
        raise ValueError(f"Classified(kind={value!r:.80}): it is one of {', '.join(map(repr, ERROR_KINDS))}")


@frozen
class Classified:
    """What an error means.

    Attributes:
        decision: try again ("transient"), end the message dead ("permanent"), or stop the runtime ("system").
        kind: what sort of error it is.
        retry_after: seconds the other side asked us to wait. Such a failure spends no attempt.
        is_known: whether anything was known about the error; if not, that it is transient is a guess.
    """

    decision: Decision = field(validator=_check_decision)
    kind: ErrorKind = field(validator=_check_kind)
    retry_after: Seconds | None = None
    is_known: bool = True


Rule: TypeAlias = Callable[[BaseException], Classified | None]
"""Looks at an error, and says what it means, or None for one that it does not know."""


def _check_types(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"Classifier(types={value!r:.80}): give a mapping from exception classes to Classified")
    for each, meaning in value.items():
        if not (isinstance(each, type) and issubclass(each, BaseException) and isinstance(meaning, Classified)):
            raise ValueError(
                f"Classifier(types={{{each!r:.80}: {meaning!r:.80}}}): give a Classified for each exception class"
            )


def _check_rules(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, Sequence) or not all(map(callable, value)):
        raise ValueError(f"Classifier(rules={value!r:.80}): give a sequence of functions")


@frozen
class Classifier:
    """Says what errors mean.

    The rules are asked first, then the types in their order (subclasses count), then what can be read off the error.

    Attributes:
        types: what errors of a class mean.
        rules: functions that look at an error.
        unknown: what an error means of which nothing is known.
    """

    types: Mapping[type[BaseException], Classified] = field(factory=dict, validator=_check_types)
    rules: Sequence[Rule] = field(default=(), validator=_check_rules)
    unknown: Classified = Classified("transient", "bug", is_known=False)

    def classify(self, error: BaseException, now: float) -> Classified:
        """Say what an error means.

        Args:
            error: the error. Of a group, the worst member decides; of an error that is not known and was raised from
                another, that other.
            now: the wall-clock time, which a Retry-After date is measured from.
        """
        return self._classify(error, now, 0) or self.unknown

    def _classify(self, error: BaseException, now: float, depth: int) -> Classified | None:
        found = self._by_user(error) or self._by_us(error, now, depth)
        if found is None and error.__cause__ is not None and depth < _DEPTH:
            return self._classify(error.__cause__, now, depth + 1)
        return found

    def _by_user(self, error: BaseException) -> Classified | None:
        for rule in self.rules:
            try:
                found: object = rule(error)
            except Exception:  # noqa: S112 - a rule that fails knows nothing; the error at hand matters more
                continue
            if isinstance(found, Classified):
                return found
        for each, meaning in self.types.items():
            if isinstance(error, each):
                return meaning
        return None

    def _by_us(self, error: BaseException, now: float, depth: int) -> Classified | None:
        if isinstance(error, BaseExceptionGroup):
            return self._worst(error, now, depth) if depth < _DEPTH else None
        if isinstance(error, Transient | Permanent | SystemFailure):
            return self._decided(error, now, depth)
        return _by_type(error) or _by_status(error, now) or _by_sqlstate(error) or _by_errno(error) or _by_name(error)

    def _decided(self, error: Transient | Permanent | SystemFailure, now: float, depth: int) -> Classified:
        """Say of which kind an error is that is a decision itself."""
        kind: ErrorKind | None = getattr(error, "error_kind", None)
        if kind is None and error.__cause__ is not None and depth < _DEPTH:
            cause = self._classify(error.__cause__, now, depth + 1)
            kind = None if cause is None else cause.kind
        if isinstance(error, Transient):
            usual: ErrorKind = "server" if error.retry_after is None else "rate_limit"
            return Classified("transient", kind or usual, error.retry_after)
        return Classified("permanent", kind or "client") if isinstance(error, Permanent) else _SYSTEM

    def _worst(self, group: BaseExceptionGroup[Any], now: float, depth: int) -> Classified:
        """Let the worst member of a group decide; members that are alike wait for the longest of their times."""
        members = [self._classify(each, now, depth + 1) or self.unknown for each in group.exceptions]
        worst = max(members, key=lambda each: (_BADNESS[each.decision], each.is_known))
        if worst.decision != "transient" or any(each.retry_after is None for each in members):
            return evolve(worst, retry_after=None)
        return evolve(worst, retry_after=max(each.retry_after or 0.0 for each in members))


_BADNESS: Final = {"transient": 0, "permanent": 1, "system": 2}
_SYSTEM: Final = Classified("system", "server")


def _transient(kind: ErrorKind) -> Classified:
    return Classified("transient", kind)


def _permanent(kind: ErrorKind) -> Classified:
    return Classified("permanent", kind)


_TYPES: Final[tuple[tuple[type[BaseException], Classified], ...]] = (
    (TimeoutError, _transient("timeout")),
    (trio.TooSlowError, _transient("timeout")),
    (ConnectionError, _transient("connection")),
    (trio.BrokenResourceError, _transient("connection")),
    (trio.ClosedResourceError, _transient("connection")),
    (MemoryError, _transient("quota")),
    (UnicodeError, _permanent("parse")),
    (InvalidMessage, _permanent("schema")),
)


def _by_type(error: BaseException) -> Classified | None:
    return next((meaning for each, meaning in _TYPES if isinstance(error, each)), None)


# HTTP

_STATUS: Final[Mapping[int, Classified]] = {
    401: _permanent("auth"),
    402: _permanent("quota"),
    403: _permanent("auth"),
    404: _permanent("not_found"),
    407: _permanent("auth"),
    408: _transient("timeout"),
    409: _permanent("constraint"),
    410: _permanent("not_found"),
    422: _permanent("schema"),
    425: _transient("server"),
    429: _transient("rate_limit"),
    504: _transient("timeout"),
    507: _transient("quota"),
}


def _by_status(error: BaseException, now: float) -> Classified | None:
    """Read an HTTP status, from the error or the response that it carries."""
    response = _read(error, "response")
    for owner, name in ((response, "status_code"), (response, "status"), (error, "status_code"), (error, "status")):
        status = _read(owner, name)
        if isinstance(status, int) and 400 <= status <= 599:
            found = _STATUS.get(status) or (_permanent("client") if status < 500 else _transient("server"))
            if found.decision == "transient":
                asked = _retry_after(response, now)
                return evolve(found, retry_after=_retry_after(error, now) if asked is None else asked)
            return found
    return None


def _retry_after(owner: object, now: float) -> float | None:
    """Read how long the other side wants us to wait: seconds, or a date."""
    headers: Any = _read(owner, "headers")
    if headers is None:
        return None
    try:
        value = headers.get("Retry-After") or headers.get("retry-after")
        text = str(value).strip() if value is not None else ""
        if not text:
            return None
        seconds = float(text) if text[0].isdigit() else parsedate_to_datetime(text).timestamp() - now
    except Exception:
        return None
    return max(0.0, seconds) if seconds < 1e9 else None


# SQL

_SQLSTATE: Final[Mapping[str, Classified]] = {
    "08": _transient("connection"),
    "0A": _permanent("client"),
    "21": _permanent("schema"),
    "22": _permanent("schema"),
    "23": _permanent("constraint"),
    "25006": _transient("server"),
    "25P03": _transient("timeout"),
    "28": _permanent("auth"),
    "3D": _permanent("not_found"),
    "3F": _permanent("not_found"),
    "40": _transient("deadlock"),
    "42": _permanent("client"),
    "42501": _permanent("auth"),
    "42703": _permanent("schema"),
    "42804": _permanent("schema"),
    "42P01": _permanent("schema"),
    "44": _permanent("constraint"),
    "53": _transient("quota"),
    "54": _permanent("client"),
    "55": _transient("deadlock"),
    "57": _transient("connection"),
    "57014": _transient("timeout"),
    "58": _transient("server"),
    "P0001": _permanent("constraint"),
    "XX": _transient("server"),
}
"""By code, else by class: the first two characters."""


def _by_sqlstate(error: BaseException) -> Classified | None:
    for name in ("sqlstate", "pgcode"):
        state = _read(error, name)
        if isinstance(state, str) and len(state) == 5:
            return _SQLSTATE.get(state) or _SQLSTATE.get(state[:2])
    return None


# The operating system

_ERRNO: Final[Mapping[int, Classified]] = {
    **dict.fromkeys(
        (
            errno.ECONNREFUSED,
            errno.ECONNRESET,
            errno.ECONNABORTED,
            errno.EPIPE,
            errno.ENOTCONN,
            errno.EHOSTUNREACH,
            errno.EHOSTDOWN,
            errno.ENETUNREACH,
            errno.ENETDOWN,
            errno.ENETRESET,
            errno.EADDRNOTAVAIL,
        ),
        _transient("connection"),
    ),
    errno.ETIMEDOUT: _transient("timeout"),
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS), _transient("quota")
    ),
    **dict.fromkeys((errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EIO, errno.ESTALE), _transient("server")),
    errno.EDEADLK: _transient("deadlock"),
    errno.ENOLCK: _transient("deadlock"),
    errno.ENOENT: _permanent("not_found"),
    errno.EACCES: _permanent("auth"),
    errno.EPERM: _permanent("auth"),
    errno.EEXIST: _permanent("constraint"),
    **dict.fromkeys(
        (errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.ENAMETOOLONG, errno.EFBIG, errno.ELOOP), _permanent("client")
    ),
}


def _by_errno(error: BaseException) -> Classified | None:
    if not isinstance(error, OSError):
        return None
    found = None if error.errno is None else _ERRNO.get(error.errno)
    # Names that cannot be resolved have numbers of their own.
    return found or (_transient("connection") if type(error).__name__ in ("gaierror", "herror", "SSLError") else None)


# Names that libraries have in common

_NAMES: Final[Mapping[str, Classified]] = {
    # HTTP clients
    "TimeoutException": _transient("timeout"),
    "Timeout": _transient("timeout"),
    "ConnectError": _transient("connection"),
    "ConnectionError": _transient("connection"),
    "ConnectionClosed": _transient("connection"),
    "NetworkError": _transient("connection"),
    "RemoteProtocolError": _transient("connection"),
    "ClientConnectionError": _transient("connection"),
    "ServerDisconnectedError": _transient("connection"),
    "IncompleteRead": _transient("connection"),
    # Database drivers, by PEP 249 and by habit
    "IntegrityError": _permanent("constraint"),
    "ConstraintError": _permanent("constraint"),
    "DataError": _permanent("schema"),
    "MismatchError": _permanent("schema"),
    "ProgrammingError": _permanent("client"),
    "NotSupportedError": _permanent("client"),
    "BusyError": _transient("deadlock"),
    "LockedError": _transient("deadlock"),
    "InterfaceError": _transient("connection"),
    "OperationalError": _transient("server"),
    # What reads and checks data
    "ValidationError": _permanent("schema"),
    "SchemaError": _permanent("schema"),
    "JSONDecodeError": _permanent("parse"),
    "DecodeError": _permanent("parse"),
    "ParseError": _permanent("parse"),
    "YAMLError": _permanent("parse"),
    "TOMLDecodeError": _permanent("parse"),
}


def _by_name(error: BaseException) -> Classified | None:
    """Go by the name of its class, or of the nearest base that has a name we know."""
    for each in type(error).__mro__:
        found = _NAMES.get(each.__name__)
        if found is not None:
            return found
    return None


def _read(owner: object, name: str) -> object:
    """Return an attribute of somebody else's object, None if there is none or reading it fails."""
    try:
        return getattr(owner, name, None)
    except Exception:
        return None
