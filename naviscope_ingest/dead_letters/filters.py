"""Which dead letters are meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, TypeVar

from attrs import frozen

from naviscope_ingest.dead_letters.records import Letter
from naviscope_ingest.errors import InvalidFilter
from naviscope_ingest.failures import ERROR_KINDS
from naviscope_spi import ErrorKind
from naviscope_spi.messages import is_number
from naviscope_spi.names import shown

if TYPE_CHECKING:
    from naviscope_ingest.intake import Epoch

__all__ = ["LetterFilter", "Selection", "check_filter", "check_rate"]

P = TypeVar("P")


class LetterFilter(TypedDict, Generic[P], total=False):
    """Which letters. What is not named does not matter; all that is named must hold.

    Attributes:
        epoch: the epoch, by handle or name.
        message_id: the id of the message.
        kind: the kind of the message.
        error_kind: what sort of error.
        fingerprint: that of a group.
        end: "dead" or "expired".
        since, until: wall-clock times between which it ended, the first included.
    """

    epoch: Epoch[P] | str
    message_id: str
    kind: str
    error_kind: ErrorKind
    fingerprint: str
    end: Literal["dead", "expired"]
    since: float
    until: float


_KEYS: Final = tuple(LetterFilter.__annotations__)


@frozen
class Selection:
    """A filter that was checked.

    Attributes:
        number: that of the epoch; None for all.
        where: the filter.
    """

    number: int | None
    where: Mapping[str, Any]

    @property
    def is_single(self) -> bool:
        """Whether it names one message."""
        return self.number is not None and "message_id" in self.where

    def takes(self, letter: Letter) -> bool:
        """Whether a letter is meant."""
        where, details = self.where, letter.details
        return bool(
            where.get("message_id", letter.message_id) == letter.message_id
            and where.get("kind", letter.kind) == letter.kind
            and where.get("error_kind", details.kind) == details.kind
            and where.get("fingerprint", details.fingerprint) == details.fingerprint
            and where.get("end", letter.end) == letter.end
            and where.get("since", letter.ended_at) <= letter.ended_at
            and letter.ended_at < where.get("until", float("inf"))
        )


def check_filter(key: str, value: object) -> None:
    """Refuse a key that does not exist, and a value that no letter can have.

    Raises:
        InvalidFilter: it is one.
    """
    if key not in _KEYS:
        raise InvalidFilter(key, f"there is no such filter: {_nearest(key, _KEYS)}")
    if key in ("since", "until"):
        if not is_number(value):
            raise InvalidFilter(key, f"it is {shown(value)}: give seconds since the Unix epoch as a number")
    elif key != "epoch" and not isinstance(value, str):
        raise InvalidFilter(key, f"it is {shown(value)}: give a text")
    elif key in _WORDS and value not in _WORDS[key]:
        raise InvalidFilter(key, f"there is no {shown(value)}: {_nearest(str(value), _WORDS[key])}")


_WORDS: Final[Mapping[str, Sequence[str]]] = {"end": ("dead", "expired"), "error_kind": ERROR_KINDS}


def _nearest(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"


def check_rate(per_second: float | None) -> None:
    """Refuse what is no rate.

    Raises:
        InvalidFilter: it is none.
    """
    if per_second is not None and not (is_number(per_second) and per_second > 0):
        raise InvalidFilter("per_second", f"it is {shown(per_second)}: give a number above zero, or None")
