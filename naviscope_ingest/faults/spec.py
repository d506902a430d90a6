"""What goes wrong on purpose: points, faults, and the text that says both.

A fault is `point:probability:what`, as in `sink:0.03:timeout`. A word that is no point is a kind of message, so that
`http:0.05:5xx` is read as it is meant. What looks like a point written wrongly is refused: it would be taken for a kind
that no message has, and nothing would ever happen.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from attrs import field, frozen

from naviscope_ingest.errors import InvalidFaults
from naviscope_spi import InvalidMessage, check_name
from naviscope_spi.names import shown

__all__ = ["CRASH_CODE", "POINTS", "VARIABLE", "Fault", "Faults", "Point"]

VARIABLE: Final = "NAVISCOPE_FAULTS"
"""The environment variable that `Faults.from_environment` reads."""

CRASH_CODE: Final = 70
"""How a process exits that a fault has brought down."""

_LONGEST: Final = 10_000
_MOST: Final = 100
_STATUS: Final = re.compile(r"[45](xx|[0-9]{2})")
_CALLS: Final = ("error", "connection", "timeout", "status", "busy", "slow")
_ENDS: Final = ("stop", "crash")
_TIMED: Final = ("slow", "busy")
"""What takes a number of seconds."""
_USUAL_SECONDS: Final = 1.0


@frozen
class Point:
    """A place where faults strike.

    Attributes:
        name: how it is called.
        what: what strikes there: a call of what.
        effects: what can happen there; "status" stands for 4xx, 5xx, and every number from 400 to 599.
    """

    name: str
    what: str
    effects: Sequence[str]


POINTS: Final[Mapping[str, Point]] = {
    "executor": Point("executor", "a call of the executor", (*_CALLS, "permanent", *_ENDS)),
    "lookup": Point("lookup", "a call of a `Lookup` in an executor", _CALLS),
    "sink": Point("sink", "a batch on its way into the sink", (*_CALLS, "refuse", *_ENDS)),
    "commit": Point("commit", "the settlement of a batch that the sink has taken", ("slow", *_ENDS)),
    "store": Point("store", "every other call that changes the store", ("slow", *_ENDS)),
}
"""Every point, by name."""


def _check_probability(instance: object, attribute: object, value: Any) -> None:  # noqa: ANN401 - it is checked here
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidFaults(f"probability={shown(value)}", "it is no probability", ["a number from 0 to 1"])


def _check_seconds(instance: Fault, attribute: object, value: Any) -> None:  # noqa: ANN401 - it is checked here
    if value is None:
        return
    if instance.what not in _TIMED:
        raise InvalidFaults(
            f"{shown(instance.what)}, seconds={shown(value)}", "it takes no seconds", [f"{each}=2.5" for each in _TIMED]
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidFaults(f"seconds={shown(value)}", "these are no seconds", ["a number from 0 on"])


@frozen
class Fault:
    """One thing that goes wrong at one point.

    Attributes:
        point: where: one of `POINTS`.
        probability: of how many calls, from 0 to 1.
        what: what happens: one of the effects of the point.
        kind: at the executor, the only kind of message that it happens to; None for all.
        seconds: how long something is slow, or busy; 1 unless it is given.
    """

    point: str
    probability: float = field(validator=_check_probability)
    what: str
    kind: str | None = None
    seconds: float | None = field(default=None, validator=_check_seconds)

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot happen."""
        point = POINTS.get(self.point) if isinstance(self.point, str) else None
        if point is None:
            raise InvalidFaults(f"{shown(self.point)}", "there is no such point", list(POINTS))
        is_status = isinstance(self.what, str) and _STATUS.fullmatch(self.what) is not None
        effect = "status" if is_status else self.what
        if effect not in point.effects or self.what == "status":
            raise InvalidFaults(
                f"{shown(self.what)}", f"this cannot happen at {self.point!r}", _written(point), near=str(self.what)
            )
        if self.kind is not None:
            if self.point != "executor":
                raise InvalidFaults(
                    f"kind={shown(self.kind)}", "kinds are told apart at 'executor' alone", ["executor"]
                )
            try:
                check_name("kind", self.kind)
            except InvalidMessage as error:
                raise InvalidFaults(f"kind={shown(self.kind)}", str(error), ["the kind of a message"]) from error

    @property
    def pause(self) -> float:
        """How long it is slow or busy, in seconds."""
        usual = _USUAL_SECONDS if self.what in _TIMED else 0.0
        return usual if self.seconds is None else self.seconds

    @property
    def status(self) -> int | None:
        """The HTTP status that the other side answers with; None if it does not answer."""
        if not self.what[0].isdigit():
            return None
        return {"4xx": 400, "5xx": 503}.get(self.what) or int(self.what)

    def __str__(self) -> str:
        point = self.point if self.kind is None else f"kind={self.kind}"
        seconds = "" if self.seconds is None else f"={self.seconds:g}"
        return f"{point}:{self.probability:g}:{self.what}{seconds}"


def _check_faults(instance: object, attribute: object, value: Any) -> None:  # noqa: ANN401 - it is checked here
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, Fault) for each in value):
        raise InvalidFaults(f"{shown(value)}", "these are no faults", ['Faults.parse("http:0.05:5xx")', "[Fault(...)]"])
    if len(value) > _MOST:
        raise InvalidFaults(f"{len(value)} faults", "these are too many", [f"at most {_MOST}"])


def _check_seed(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise InvalidFaults(f"seed={shown(value)}", "this is no seed", ["a whole number from 0 on"])


@frozen
class Faults:
    """Everything that goes wrong on purpose.

    Which messages a fault of the executor strikes follows from the seed, their ids and attempts, whatever the order in
    which they run; at the other points it follows from the seed and the number of the call. Each start on the same
    store draws anew, so that a crash at the first call does not come back for ever.

    Attributes:
        faults: what goes wrong. Of several that would strike one call, the first does.
        seed: the same seed strikes the same.
    """

    faults: Sequence[Fault] = field(validator=_check_faults)
    seed: int = field(default=0, validator=_check_seed)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Read faults from a text, such as "seed=7, http:0.05:5xx, sink:0.03:timeout, commit:0.01:crash".

        Each part is `point:probability:what`. A word that is no point is a kind of message; write `kind=sink` for one
        that is called as a point is. What takes time may say how much, as in `sink:0.1:slow=2.5`. An empty text names
        no faults.

        Raises:
            InvalidFaults: a part cannot be read. It names the part, and what is allowed.
        """
        if not isinstance(text, str):
            raise InvalidFaults(f"{shown(text)}", "this is no text", ["http:0.05:5xx,sink:0.03:timeout"])
        if len(text) > _LONGEST:
            raise InvalidFaults(f"{text:.40}...", f"{len(text)} characters are too many", [f"at most {_LONGEST}"])
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        seed, faults = 0, []
        for part in parts:
            if part.startswith("seed="):
                seed = _seed(part)
            else:
                faults.append(_fault(part))
        if parts and not faults:
            raise InvalidFaults(text.strip(), "it names no fault", ["http:0.05:5xx,sink:0.03:timeout"])
        return cls(tuple(faults), seed)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Faults | None:
        """Read the faults that `NAVISCOPE_FAULTS` names; None if it is not set, or empty.

        Args:
            environment: where to look; the environment of the process unless it is given.

        Raises:
            InvalidFaults: the variable cannot be read.
        """
        text = (os.environ if environment is None else environment).get(VARIABLE, "")
        if not text.strip():
            return None
        try:
            return cls.parse(text)
        except InvalidFaults as error:
            raise InvalidFaults(error.part, error.reason, error.allowed, near=error.near, source=VARIABLE) from None

    def at(self, point: str) -> list[tuple[int, Fault]]:
        """Return the faults of a point, each with its place."""
        return [(index, fault) for index, fault in enumerate(self.faults) if fault.point == point]

    def __len__(self) -> int:
        return len(self.faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __str__(self) -> str:
        return ",".join([f"seed={self.seed}", *map(str, self.faults)])


def _written(point: Point) -> Sequence[str]:
    """Return what can happen at a point, as it is written."""
    return [each for effect in point.effects for each in (("4xx", "5xx", "429") if effect == "status" else (effect,))]


def _seed(part: str) -> int:
    digits = part.removeprefix("seed=").strip()
    if not digits.isdecimal() or len(digits) > 20:
        raise InvalidFaults(part, "this is no seed", ["a whole number from 0 on, as in seed=7"])
    return int(digits)


def _fault(part: str) -> Fault:
    pieces = [piece.strip() for piece in part.rsplit(":", 2)]
    if len(pieces) < 3 or not all(pieces):
        raise InvalidFaults(part, "it is not written as point:probability:what", ["http:0.05:5xx", "sink:0.1:slow=2.5"])
    where, probability, effect = pieces
    what, has_seconds, seconds = (piece.strip() for piece in effect.partition("="))
    point, kind = _place(where, part)
    try:
        return Fault(
            point,
            _number(probability, "it is no probability", "a number from 0 to 1"),
            what,
            kind,
            _number(seconds, "these are no seconds", "a number from 0 on") if has_seconds else None,
        )
    except InvalidFaults as error:
        raise InvalidFaults(part, f"{error.part}: {error.reason}", error.allowed, near=error.near) from None


def _place(where: str, part: str) -> tuple[str, str | None]:
    """Tell a point from a kind of message."""
    if where in POINTS:
        return where, None
    is_kind, _, kind = where.rpartition("kind=")
    if not is_kind and kind != where:
        return "executor", kind.strip()
    near = get_close_matches(where.lower(), POINTS, n=1, cutoff=0.75)
    if near:
        raise InvalidFaults(
            part,
            f"there is no point {where!r}, perhaps {near[0]!r} was meant",
            [*POINTS, f"kind={where} if it is a kind of message"],
        )
    return "executor", where


def _number(text: str, reason: str, allowed: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidFaults(f"{shown(text)}", reason, [allowed]) from None
