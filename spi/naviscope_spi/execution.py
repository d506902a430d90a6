"""The contracts around execution: executors, sinks, the bus and the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, runtime_checkable

from attrs import define, frozen

from naviscope_spi.dependencies import Dependency
from naviscope_spi.messages import Message, Outcome
from naviscope_spi.stores import EpochKey, Lease, Seq

__all__ = [
    "AppliesInside",
    "ChecksMessages",
    "Clock",
    "CommitBatch",
    "CommitSink",
    "CommitsEpochs",
    "Delivery",
    "EncodesOps",
    "Entry",
    "Executor",
    "PipelineBus",
    "Ready",
    "StableBatches",
    "SupportsBatch",
    "SupportsNoWait",
    "task_key",
]

P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)
Op = TypeVar("Op")
Op_co = TypeVar("Op_co", covariant=True)
Op_contra = TypeVar("Op_contra", contravariant=True)


NO_VALUES: Final[Mapping[str, bytes]] = MappingProxyType({})


def task_key(store_id: str, epoch_number: int, message_id: str) -> str:
    """Name a message for ever: unique over stores, epochs and ids, also when epochs share a name.

    The id comes last and the other parts cannot hold a colon, so two different messages never share a key.
    """
    return f"{store_id}:{epoch_number}:{message_id}"


class Delivery(Generic[P_co]):
    """A message as the executor gets it.

    Attributes:
        payload: the message's payload.
        unmet: dependencies that were passed although they are not satisfied (policy "run").
        values: what dependencies handed over, by message id or resource name.

    One is made for every message, so it points to the lease, but for what nearly every executor asks for.
    """

    __slots__ = ("_lease", "_store_id", "payload", "unmet", "values")

    def __init__(
        self,
        lease: Lease[P_co],
        store_id: str,
        unmet: Sequence[str | Dependency] = (),
        values: Mapping[str, bytes] = NO_VALUES,
    ) -> None:
        self._lease = lease
        self._store_id = store_id
        if type(lease.message) is Message:
            self.payload: P_co = lease.message.payload
        self.unmet = unmet
        self.values = values

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the payload, or an error
        # A store may give out messages of its own kind, whose payload is read, or refused, when it is asked for.
        if name == "payload":
            return self._lease.message.payload
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Delivery {self.task_key!r} run {self.run} attempt {self.attempt}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # For executors that work in other processes.
        made = (self._lease, self._store_id, tuple(self.unmet), dict(self.values))
        return type(self), made, (None, {"payload": self.payload})

    @property
    def message(self) -> Message[P_co]:
        """The message as it was submitted, or as a replay edited it."""
        return self._lease.message

    @property
    def id(self) -> str:
        """The message's id."""
        return self._lease.message.id

    @property
    def kind(self) -> str:
        """The message's kind."""
        return self._lease.message.kind

    @property
    def epoch(self) -> EpochKey:
        """The epoch it belongs to."""
        return self._lease.epoch

    @property
    def task_key(self) -> str:
        """Its name for ever; use it as idempotency key with other systems."""
        return task_key(self._store_id, self._lease.epoch.number, self._lease.message.id)

    @property
    def attempt(self) -> int:
        """Attempts spent before this one, in this run."""
        return self._lease.attempt

    @property
    def run(self) -> int:
        """Grows with every replay."""
        return self._lease.run


class Executor(Protocol[P_contra, Op_co]):
    """The user's work."""

    async def execute(self, message: Delivery[P_contra]) -> Outcome[Op_co]:
        """Do the work of one message and say what came of it.

        Calls overlap, never two for one key. It may be cancelled (epoch cancelled, deadline, shutdown) and may be
        called again for the same message after a crash, so effects belong into ops, not here. Raise `Transient`,
        `Permanent` or `SystemFailure` to decide; other exceptions are classified.
        """
        ...


@runtime_checkable
class SupportsBatch(Protocol[P_contra, Op_co]):
    """An executor that takes many messages at once."""

    async def execute_batch(self, messages: Sequence[Delivery[P_contra]]) -> Sequence[Outcome[Op_co]]:
        """Work on messages of one kind, never two of one key; answer one outcome each, in the same order.

        A raise spends no attempt: the batch is run again in halves, then singly.
        """
        ...


@runtime_checkable
class ChecksMessages(Protocol):
    """An executor that knows which messages it takes. What it refuses is never stored."""

    def check_messages(self, messages: Sequence[Message[Any]]) -> None:
        """Look at messages before they are stored: submitted ones, and those that an outcome derives.

        Called often; must be quick and must not wait.

        Raises:
            InvalidMessage: there is one that it could never execute. A submit raises it, and nothing of its chunk is
                stored; a message that derives such a one ends dead.
        """
        ...


@define
class Entry(Generic[Op_co]):
    """The ops of one message. Nobody changes it; it is not frozen because one is made for every message."""

    task_key: str
    epoch: EpochKey
    message_id: str
    kind: str
    ops: Sequence[Op_co]


@define
class CommitBatch(Generic[Op_co]):
    """What a sink makes visible in one step. No entry depends on another one of the same batch.

    `batch_id` is set for sinks that ask for stable batches: after a crash the same id has the same entries.
    """

    entries: Sequence[Entry[Op_co]]
    batch_id: str | None = None


class CommitSink(Protocol[Op_contra]):
    """Where results become visible."""

    async def commit(self, batch: CommitBatch[Op_contra]) -> None:
        """Apply every op of the batch, or none, and return None.

        Calls do not overlap. A batch may come again, whole or in other company, after a crash or an error: applying an
        entry whose `task_key` was applied before must change nothing. Cancellation may come at any checkpoint.

        Raises:
            SinkRejected: these entries can never be applied; nothing of the batch was.
            Transient: nothing of the batch is known to be applied; try again.
        """
        ...


@runtime_checkable
class AppliesInside(Protocol[Op_contra]):
    """A sink that writes inside the store's own transaction: no window between effect and settlement."""

    colocation: str

    def apply(self, transaction: Any, batch: CommitBatch[Op_contra]) -> None:  # noqa: ANN401 - the driver's own type
        """Write the batch. Called on the store's thread; must not wait for anything else."""
        ...


@runtime_checkable
class EncodesOps(Protocol[Op]):
    """A sink elsewhere whose ops can be recorded in a durable store before they are committed.

    After a crash the recorded outcome is committed again and the executor does not run: what the sink applied and what
    the store learns of are one answer, also if the executor would give another one. Both methods are called often, must
    not wait, and depend on nothing but what they are given: the bytes may be read by a later process.
    """

    def encode_ops(self, ops: Sequence[Op]) -> bytes:
        """Return the ops of one message as bytes.

        Raises:
            Permanent: an op has no such form; the message ends dead before the sink sees it. So it does with any other
                exception, but for `SystemFailure`, which stops the runtime.
        """
        ...

    def decode_ops(self, data: bytes) -> Sequence[Op]:
        """Return the ops that these bytes stand for, perhaps those of an earlier version of the program.

        Raises:
            Permanent: they stand for none any more; the message ends dead and is kept. So it does with any other
                exception, but for `SystemFailure`, which stops the runtime.
        """
        ...


@runtime_checkable
class CommitsEpochs(Protocol):
    """A sink that makes what an epoch staged visible at once."""

    async def commit_epoch(self, epoch: EpochKey, report: bytes) -> None:
        """Publish the epoch. May come again after a crash; the second time must change nothing."""
        ...


@runtime_checkable
class StableBatches(Protocol):
    """A sink that wants the same batch, with the same entries and `batch_id`, after a crash."""

    stable_batches: Literal[True]


@frozen
class Ready:
    """A hint that a message can run."""

    seq: Seq
    epoch: int
    kind: str
    priority: int = 0


class PipelineBus(Protocol):
    """Carries hints of ready work from the leader to the workers.

    It may lose, repeat and reorder: the claim is `DeferredStore.pop_ready`, and hints are sent again.
    """

    async def send(self, ready: Sequence[Ready]) -> None:
        """Pass hints on. Never blocks for long: a full bus drops. Calls may overlap. Cancelled, some may be sent."""
        ...

    async def receive(self, limit: int) -> Sequence[Ready]:
        """Wait for hints and return at least one and at most `limit`. Cancelled, none is taken."""
        ...

    async def acknowledge(self, ready: Sequence[Ready]) -> None:
        """Say that hints need not be delivered again. Unknown or repeated ones change nothing."""
        ...


@runtime_checkable
class SupportsNoWait(Protocol):
    """A bus within one process, that can be used without a checkpoint."""

    def send_nowait(self, ready: Sequence[Ready]) -> None:
        """Pass hints on at once."""
        ...

    def receive_nowait(self, limit: int) -> Sequence[Ready]:
        """Return at most `limit` hints; empty when there are none now."""
        ...


class Clock(Protocol):
    """Where time comes from. Wall time is stored, monotonic time is waited on."""

    def wall(self) -> float:
        """Seconds since the Unix epoch. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes back."""
        ...
