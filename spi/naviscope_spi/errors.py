"""Errors that mean a decision: an executor or a sink raises them to say what should happen next.

Everything else a user can meet lives in `naviscope_ingest.errors`. `InvalidMessage` is here as well because the
contract types check themselves when they are made, so a malformed message cannot exist. The refusals of a store are
here because a store knows nothing above the contracts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal, TypeAlias

__all__ = [
    "EpochExists",
    "EpochSealed",
    "ErrorKind",
    "InvalidMessage",
    "PartlyRefused",
    "PayloadNotDecodable",
    "PayloadNotEncodable",
    "Permanent",
    "SessionLost",
    "SinkRejected",
    "StoreFailed",
    "StoreRefused",
    "SystemFailure",
    "Transient",
    "UnknownEpoch",
    "UnknownOption",
]


ErrorKind: TypeAlias = Literal[
    "connection",
    "timeout",
    "rate_limit",
    "auth",
    "not_found",
    "client",
    "server",
    "schema",
    "parse",
    "constraint",
    "deadlock",
    "quota",
    "dependency",
    "poison",
    "expired",
    "bug",
]
"""What sort of thing went wrong. The same words stand in dead letters, metrics and logs."""


class Transient(Exception):  # noqa: N818 - the name is the decision, as in `raise Transient("server busy")`
    """The same work may succeed later: try again.

    Args:
        reason: what went wrong, in words.
        retry_after: seconds the other side asked us to wait. A failure that carries it spends no attempt.
        error_kind: what sort of error it is; None leaves that to the classifier.
    """

    def __init__(
        self, reason: str = "", *, retry_after: float | None = None, error_kind: ErrorKind | None = None
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.error_kind = error_kind


class Permanent(Exception):  # noqa: N818 - the name is the decision
    """The same work can never succeed: the message ends dead and is kept as a dead letter.

    Args:
        reason: what went wrong, in words.
        error_kind: what sort of error it is; None leaves that to the classifier.
    """

    error_kind: ErrorKind | None = None

    def __init__(self, *reason: object, error_kind: ErrorKind | None = None) -> None:
        super().__init__(*reason)
        if error_kind is not None:
            self.error_kind = error_kind


class SystemFailure(Exception):  # noqa: N818 - the name is the decision
    """Nothing can succeed: hand the work back and stop the runtime. Waiters see this error."""


class SinkRejected(Exception):  # noqa: N818 - the name is the decision
    """The sink refused some messages of a batch and applied nothing; the others may be committed without them.

    Args:
        rejected: the error for each refused entry, by its `task_key`.
    """

    def __init__(self, rejected: Mapping[str, BaseException]) -> None:
        super().__init__(f"the sink refused {len(rejected)} messages: {', '.join(sorted(rejected)[:5])}")
        self.rejected = dict(rejected)


class SessionLost(Exception):  # noqa: N818 - a fact about the session, not a fault of the call
    """The session has ended (its process was thought dead, or it left): nothing it holds counts any more."""


class InvalidMessage(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """A message, dependency, resource or option of an epoch is malformed. Nothing was stored."""


class PayloadNotEncodable(InvalidMessage):
    """A payload cannot be encoded. Nothing was stored.

    Args:
        kind: the kind of the message.
        field: which part of the message, as a path ("payload.lines[3]"); the whole payload unless it is known better.
        reason: why.
        message_id: the message; a codec does not know it, the store adds it.
    """

    def __init__(self, kind: str, reason: str, *, field: str = "payload", message_id: str | None = None) -> None:
        super().__init__(f"{_message(message_id)} of kind {kind!r}: {field} cannot be encoded: {reason}")
        self.kind = kind
        self.field = field
        self.reason = reason
        self.message_id = message_id


class PayloadNotDecodable(Permanent):
    """A stored payload is none of its kind any more.

    Whoever reads the payload of such a message meets this error. In an executor it ends the message dead, so that it is
    kept whole and can be replayed once the codec knows it again.

    Args:
        kind: the kind of the message.
        field: which part of the payload, as a path ("payload.lines[3]"); the whole unless it is known better.
        reason: why.
        message_id: the message; a codec does not know it, the store adds it.
    """

    error_kind: ErrorKind | None = "schema"

    def __init__(self, kind: str, reason: str, *, field: str = "payload", message_id: str | None = None) -> None:
        super().__init__(
            f"{_message(message_id)} of kind {kind!r}: {field} cannot be decoded: {reason}; "
            "declare the type that was stored, then replay the message"
        )
        self.kind = kind
        self.field = field
        self.reason = reason
        self.message_id = message_id


def _message(message_id: str | None) -> str:
    return "a message" if message_id is None else f"message {message_id!r}"


class StoreFailed(SystemFailure):
    """A store met an error it cannot go on from: every later call raises this. Its cause says which.

    Nobody can tell whether a call that raises it was stored, unless the text says so. Open the store again and ask.
    """


class StoreRefused(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """A store did not do what it was asked to, by its rules. Nothing of the call was stored."""


class UnknownOption(StoreRefused, TypeError):  # noqa: N818 - reads as a sentence where it is raised
    """A store was opened with an option that it does not have.

    Args:
        store: which store, as its URL begins.
        option: the option.
        known: the options that it has.
    """

    def __init__(self, store: str, option: str, known: Sequence[str]) -> None:
        near = get_close_matches(option, known, 1)
        hint = f", perhaps {near[0]!r} was meant" if near else ""
        options = ", ".join(sorted(known)) or "none"
        super().__init__(f"the store {store!r} has no option {option!r}{hint}: its options are {options}")
        self.store = store
        self.option = option
        self.known = known


class EpochSealed(StoreRefused):
    """The epoch is not open and the message is not known in it.

    Args:
        epoch: the name of the epoch.
        message_id: the first unknown id of the call.
    """

    def __init__(self, epoch: str, message_id: str) -> None:
        super().__init__(
            f"epoch {epoch!r} is sealed and does not know message {message_id!r}: nothing of this call was stored; "
            "submit it to an open epoch"
        )
        self.epoch = epoch
        self.message_id = message_id


class EpochExists(StoreRefused):
    """The name is taken by an epoch that is still kept.

    Args:
        epoch: the name of the epoch.
    """

    def __init__(self, epoch: str) -> None:
        super().__init__(f'epoch {epoch!r} exists: choose another name, or rejoin it with if_exists="rejoin"')
        self.epoch = epoch


class UnknownEpoch(StoreRefused):
    """The store has no such epoch: it was never opened here, or retention has removed it.

    Args:
        epoch: the name of the epoch.
    """

    def __init__(self, epoch: str) -> None:
        super().__init__(f"there is no epoch {epoch!r}: it was never opened in this store, or it was forgotten")
        self.epoch = epoch


class PartlyRefused(StoreRefused):
    """Some messages of a settlement that carries a sink's writes cannot commit, so nothing of it happened.

    Args:
        refused: the places of those messages; settle again without them.
    """

    def __init__(self, refused: Sequence[int]) -> None:
        super().__init__(
            f"{len(refused)} messages of the settlement have no live lease (places {list(refused)[:5]}): nothing was "
            "settled or written, because the sink's writes cannot be parted; settle again without them"
        )
        self.refused = refused
