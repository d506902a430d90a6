"""Errors that mean a decision: an executor or a sink raises them to say what should happen next.

Everything else a user can meet lives in `naviscope_ingest.errors`. `InvalidMessage` is here as well because the
contract types check themselves when they are made, so a malformed message cannot exist. The refusals of a store are
here because a store knows nothing above the contracts.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "EpochExists",
    "EpochSealed",
    "InvalidMessage",
    "Permanent",
    "SessionLost",
    "SinkRejected",
    "StoreRefused",
    "SystemFailure",
    "Transient",
    "UnknownEpoch",
]


class Transient(Exception):  # noqa: N818 - the name is the decision, as in `raise Transient("server busy")`
    """The same work may succeed later: try again.

    Args:
        reason: what went wrong, in words.
        retry_after: seconds the other side asked us to wait. A failure that carries it spends no attempt.
    """

    def __init__(self, reason: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Permanent(Exception):  # noqa: N818 - the name is the decision
    """The same work can never succeed: the message ends dead and is kept as a dead letter."""


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


class StoreRefused(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """A store did not do what it was asked to, by its rules. Nothing of the call was stored."""


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
