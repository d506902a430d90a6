"""The contract of a store: it records facts and decides nothing.

A store enforces four things. (epoch number, id) is unique. A sealed epoch takes no unknown id, except derived ones. A
settlement counts only with a live lease, or with the leader's fence. Each call is one atomic step, and readers see
facts in commit order. Readiness, policies, lanes, barriers, timers, retries and completion are decided elsewhere, once
for all stores; so a new store is a day's work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NewType, Protocol, TypeAlias, TypeVar, runtime_checkable

from attrs import define, field, frozen

from naviscope_spi.dependencies import BadEnd, OnUnresolved, check_unresolved
from naviscope_spi.errors import InvalidMessage
from naviscope_spi.messages import DependsOn, Message, Resource, check_time, is_number
from naviscope_spi.names import shown

__all__ = [
    "Accepted",
    "AnswersAtOnce",
    "CaughtUp",
    "Committed",
    "DeferredStore",
    "Derived",
    "Ended",
    "EpochChange",
    "EpochForgotten",
    "EpochKey",
    "EpochMarked",
    "EpochOpened",
    "EpochOptions",
    "EpochRecord",
    "EpochState",
    "Fact",
    "FactBody",
    "KeptLetter",
    "Lease",
    "Leased",
    "Position",
    "Prepared",
    "Provided",
    "PutReceipt",
    "Record",
    "RecoveryBegun",
    "ResourceForgotten",
    "Seq",
    "Session",
    "SessionEnded",
    "Settled",
    "Settlement",
    "StoreInfo",
    "SupportsBackup",
    "SupportsColocation",
    "SupportsLetters",
    "SupportsRecords",
    "SupportsRetention",
    "SupportsUnique",
    "SupportsVerify",
    "SupportsVisits",
    "Waits",
]

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)

Seq = NewType("Seq", int)
"""The place of a message in its store: order of acceptance, primary key, order within a lane. Never reused."""

NOTHING: Final[Mapping[Seq, bytes]] = MappingProxyType({})

Position = NewType("Position", int)
"""A place in the feed of facts. Grows with every commit."""

EpochState: TypeAlias = Literal["open", "sealed", "completed", "repairing"]


@frozen
class EpochKey:
    """An epoch. The number goes into task keys and ledgers and is never reused; the name is a label."""

    number: int
    name: str


@frozen
class Session:
    """Membership of one process in a store. With a `fence`, the process leads; it grows with every new leader."""

    token: int
    fence: int | None


@define(eq=False)
class Lease(Generic[P]):
    """A claim on a message. Nobody changes it; it is not frozen because one is made for every message.

    Attributes:
        seq: the message's place in the store.
        epoch: its epoch.
        message: the message, payload included.
        token: of the session that took it. A settlement under another token is refused.
        run: grows with every replay.
        attempt: how many attempts of this run were spent before this one.
        crashes: how many processes died while this message ran alone.
        prepared: the outcome recorded before a crash: commit it again, do not execute.
    """

    seq: Seq
    epoch: EpochKey
    message: Message[P]
    token: int
    run: int = 0
    attempt: int = 0
    crashes: int = 0
    prepared: bytes | None = None


@frozen
class Ended:
    """A message that ended without committing.

    Attributes:
        seq: which message.
        end: how it ended.
        causes: the messages this follows from; empty when it ended by itself.
        epoch_causes: the numbers of the failed epochs this follows from.
        letter: the dead letter, encoded: attempts, error, fingerprint.
        discarded: whether somebody gave it up. Settled by the leader for a message that has ended so, it keeps the end
            and all that stands with it, and the message pins its epoch no longer.
    """

    seq: Seq
    end: BadEnd
    causes: Sequence[Seq] = ()
    epoch_causes: Sequence[int] = ()
    letter: bytes | None = None
    discarded: bool = False


@frozen
class Waits:
    """A message that goes on: deferred, in retry, handed back or replayed. Its lease ends.

    A recorded outcome belongs to its attempt: it stays when neither run nor attempt grows and no dependency is added.
    A replay needs the leader's fence; `crashes` starts again from 0.

    Attributes:
        seq: which message.
        depends_on: dependencies added by a deferral; None leaves them as they are.
        not_before: the wall-clock time of the retry.
        attempt: the attempts spent so far.
        run: the run it is in. A higher run than the stored one is a replay: an ended message lives again.
        payload: an edited payload, of the type that `put` takes (replay only); None leaves it as it is.
    """

    seq: Seq
    depends_on: DependsOn | None = None
    not_before: float | None = None
    attempt: int = 0
    run: int = 0
    payload: Any = None


@frozen
class Derived(Generic[P]):
    """What one parent brings with its commit: new messages, in list order, and resources of its epoch.

    If the parent is refused, all of it is left out. An id that is known already is left out: the first wins. An epoch
    whose cancellation was asked for takes no derived message.

    Attributes:
        parent: a message among `Settlement.committed`.
        messages: the new messages.
        staged: how many were put before with `staged_by=`; the settlement brings them alive, before `messages`.
        ready: resources the parent provides, in the scope of its epoch.
    """

    parent: Seq
    messages: Sequence[Message[P]] = ()
    staged: int = 0
    ready: Sequence[Resource] = ()


@frozen
class EpochChange:
    """The leader found that an epoch completed, or is being repaired by a replay.

    A completion is left out while the epoch is open or has a message that has not ended: part of the settlement that
    ends its last messages may have been refused. A repair lifts a cancellation. A change that comes again changes
    nothing.

    Attributes:
        epoch: which epoch.
        state: what it becomes.
        report: kept with it; empty leaves the one before.
        succeeded: kept with a completion, for those who wait for the whole epoch.
    """

    epoch: EpochKey
    state: Literal["completed", "repairing"]
    report: bytes = b""
    succeeded: bool | None = None


@frozen
class Record:
    """A key and a value that ride in the same atomic step: offsets, keyed state, breakers, audit. None deletes."""

    space: str
    key: str
    value: bytes | None


@define(eq=False)
class Settlement(Generic[P]):
    """Everything that one atomic step changes.

    Attributes:
        committed: leases whose messages committed; this is the hot path, so there is no object per message.
        values: what committed messages hand to their dependents, by place.
        ended: messages that ended otherwise.
        waits: messages that go on.
        derived: new messages, by parent. The parent must be among `committed`.
        ready: resources that have no parent, with the number of the epoch that scopes each (None is global).
        prepared: outcomes recorded before a sink elsewhere is called.
        epochs: completions and repairs (leader only).
        records: keys and values.

    `ready` and `records` are left out when the settlement names messages and changes none of them: so a settlement that
    comes again does not count twice.
    """

    committed: Sequence[Lease[P]] = ()
    values: Mapping[Seq, bytes] = NOTHING
    ended: Sequence[Ended] = ()
    waits: Sequence[Waits] = ()
    derived: Sequence[Derived[P]] = ()
    ready: Sequence[tuple[int | None, Resource]] = ()
    prepared: Mapping[Seq, bytes] = NOTHING
    epochs: Sequence[EpochChange] = ()
    records: Sequence[Record] = ()


@define
class Settled:
    """What a settlement did. Nobody changes it.

    Attributes:
        position: readers at or after this position see it.
        accepted: derived messages that were new, with their places, in order. Staged ones may come without payload.
        refused: messages whose part was left out: a stale lease, or already ended.
    """

    position: Position
    accepted: Sequence[tuple[Seq, EpochKey, Any]] = ()
    refused: Sequence[Seq] = ()


@frozen
class PutReceipt:
    """What `put` stored.

    Attributes:
        accepted: the places of the new messages, in the order they were given.
        indexes: which of the given messages those were.
        duplicates: how many were known already, conflicts included.
        conflicts: ids known with another content.
    """

    accepted: Sequence[Seq]
    indexes: Sequence[int]
    duplicates: int = 0
    conflicts: Sequence[str] = ()


@frozen
class EpochOptions:
    """How an epoch behaves. All of it is kept with the epoch.

    Attributes:
        if_exists: "rejoin" the kept epoch of that name, or "refuse".
        deadline: wall-clock time after which what has not ended expires.
        on_unresolved: the default for dependencies that do not say.
        retain: seconds to keep ids and report after completion; None is the store's default.
        weight: its share when epochs compete.
    """

    if_exists: Literal["rejoin", "refuse"] = "rejoin"
    deadline: float | None = None
    on_unresolved: OnUnresolved | None = field(default=None, converter=check_unresolved)
    retain: float | None = None
    weight: int = 1

    def __attrs_post_init__(self) -> None:
        """Refuse what an epoch could not be run by."""
        if self.if_exists not in ("rejoin", "refuse"):
            raise InvalidMessage(f'if_exists={shown(self.if_exists)}: it is "rejoin" or "refuse"')
        check_time("deadline", self.deadline)
        if self.retain is not None and not (is_number(self.retain) and self.retain >= 0):
            raise InvalidMessage(f"retain={shown(self.retain)}: give seconds as a number that is not negative, or None")
        if type(self.weight) is not int or self.weight < 1:
            raise InvalidMessage(f"weight={shown(self.weight)}: it must be an integer above zero")


@define
class EpochRecord:
    """An epoch as the store has it. Nobody changes it; it is not frozen because small epochs take three of them each.

    Attributes:
        key: its number and name.
        state: open, sealed, completed or repairing.
        options: as it was opened with.
        cancel_requested: whether its cancellation was asked for.
        succeeded: known once it has completed.
        report: kept with its completion.
        opened_at, sealed_at: wall-clock times; None if not, or if an older version of the store did not note it.
    """

    key: EpochKey
    state: EpochState
    options: EpochOptions
    cancel_requested: bool = False
    succeeded: bool | None = None
    report: bytes = b""
    opened_at: float | None = None
    sealed_at: float | None = None


@frozen
class KeptLetter(Generic[P]):
    """A message that ended dead or expired and was not discarded, as the store has it.

    Attributes:
        seq: its place in the store.
        epoch: its epoch.
        message: as it was submitted, whatever a replay made of its payload. In a page it may come without payload.
        ended: how it ended, with causes and letter.
        run: the run that ended so; a replay is the next one.
        accepted_at: the wall-clock time at which it was accepted.
        edited: the message with the payload that a replay gave it; None if none did, and in a page.
    """

    seq: Seq
    epoch: EpochKey
    message: Message[P]
    ended: Ended
    run: int = 0
    accepted_at: float = 0.0
    edited: Message[P] | None = None


# Facts: what `facts` yields. One class for each, so that a reader can match on the type.


@frozen
class RecoveryBegun:
    """A recovery begins, and will tell about so many messages. A store that cannot say so leaves it out."""

    amount: int


@frozen
class EpochOpened:
    """A new epoch."""

    record: EpochRecord


@frozen
class EpochMarked:
    """An epoch was sealed, asked to cancel, completed or is being repaired."""

    record: EpochRecord


@frozen
class EpochForgotten:
    """Retention removed an epoch, its ids and its report."""

    epoch: EpochKey


@frozen
class Accepted(Generic[P]):
    """New messages of one epoch, with their places. `at` is the wall-clock time of acceptance."""

    epoch: EpochKey
    seqs: Sequence[Seq]
    messages: Sequence[Message[P]]
    at: float


@frozen
class Leased:
    """Messages were claimed by a session."""

    seqs: Sequence[Seq]
    token: int


@frozen
class Committed:
    """Messages committed. Some of them left values for their dependents."""

    seqs: Sequence[Seq]
    values: Mapping[Seq, bytes] = field(factory=dict)


@frozen
class Prepared:
    """Outcomes of messages are recorded: they are going to be committed, and nothing else can become of them."""

    seqs: Sequence[Seq]


@frozen
class Provided:
    """A resource was provided: the version it now has, in the scope of an epoch or globally (None)."""

    resource: Resource
    epoch: int | None


@frozen
class ResourceForgotten:
    """A global resource was taken back."""

    name: str


@frozen
class SessionEnded:
    """A session ended. What it had leased is free again; `clean` is false when its process died."""

    token: int
    clean: bool


@frozen
class CaughtUp:
    """Everything that was known when the reader asked has been yielded; what follows is news."""


FactBody: TypeAlias = (
    RecoveryBegun
    | EpochOpened
    | EpochMarked
    | EpochForgotten
    | Accepted[Any]
    | Leased
    | Committed
    | Ended
    | Waits
    | Prepared
    | Provided
    | ResourceForgotten
    | SessionEnded
    | CaughtUp
)


@frozen
class Fact:
    """One fact and where it stands in the feed."""

    position: Position
    body: FactBody


@frozen
class StoreInfo:
    """What a store is.

    Attributes:
        store_id: random, made with the store; the first part of every task key.
        durability: what a commit survives: "none", the death of the "process", a cut of "power".
        is_shared: whether several processes may join.
        colocation: sinks of this tag may write inside a settlement ("sqlite", "postgresql").
        max_payload: the largest encoded payload it takes, in bytes; None if there is no such limit.
        finishes_calls: whether a method of it that raises `Cancelled` has done nothing, because once it has begun it is
            not cancelled any more. Around calls of other stores the runtime puts a shield, lest something happened and
            nobody heard of it. That costs more than to store a message.
    """

    store_id: str
    durability: Literal["none", "process", "power"]
    is_shared: bool = False
    colocation: str | None = None
    max_payload: int | None = None
    finishes_calls: bool = False


class DeferredStore(Protocol[P]):
    """Keeps every message that has not ended, with epochs, resources and records.

    Every method is one atomic step: cancelled or failed, it happened whole or not at all. Calls may overlap. Async
    methods are checkpoints, but for `pop_ready` and `settle`, which need not be: a runtime calls them for every batch,
    even of one message, and sees to it that other tasks get their turn.
    """

    @property
    def info(self) -> StoreInfo:
        """What this store is. Constant while it is open."""
        ...

    def join(self, who: str, *, lead: bool = True) -> AbstractAsyncContextManager[Session]:
        """Become a member for as long as the block lasts.

        Leaving hands every lease back. A store that is not shared has one session at a time: joining again ends the
        one before, so its late settlements are refused. A session that did not leave ended uncleanly: if it held a
        single lease, and no outcome was recorded for it, that message ran alone and its `crashes` grows by one.

        Args:
            who: a name for people (host, process).
            lead: whether this process wants to decide. The session's `fence` tells whether it does.
        """
        ...

    async def open_epoch(self, name: str | None, options: EpochOptions) -> EpochRecord:
        """Open an epoch, or rejoin the kept one of that name in whatever state it is.

        Raises:
            EpochExists: `if_exists="refuse"` and the name is taken.
        """
        ...

    async def mark_epoch(self, epoch: EpochKey, mark: Literal["seal", "cancel"]) -> EpochRecord:
        """Seal an epoch, or ask for its cancellation, which seals it too. Repeating a mark changes nothing.

        Raises:
            UnknownEpoch: there is no such epoch.
        """
        ...

    async def put(
        self, epoch: EpochKey, messages: Sequence[Message[P]], *, staged_by: Lease[P] | None = None
    ) -> PutReceipt:
        """Store messages. When it returns they are as safe as `info.durability` says.

        An id that is known is a duplicate; known with another content (kind, payload, depends_on, key), a conflict;
        neither is stored again. An empty sequence is fine. With `staged_by`, they stay invisible until the settlement
        that commits the parent; if the parent's lease ends otherwise, they are gone.

        Raises:
            EpochSealed: the epoch is not open and an id is unknown; nothing of this call was stored. Staged messages
                are derived ones, so a sealed epoch takes them.
            UnknownEpoch: there is no such epoch.
            SessionLost: the lease of `staged_by` is not live.
        """
        ...

    async def pop_ready(self, session: Session, seqs: Sequence[Seq]) -> Sequence[Lease[P]]:
        """Claim messages. Those that ended, are leased to a live session, or are unknown are left out.

        An empty answer means that all of them were. The order of `seqs` is kept. A message whose payload cannot be
        decoded is claimed like any other, and reading its payload raises `PayloadNotDecodable`. A durable store need
        not wait until the claim is safe: what is lost with it is only that the message was being worked on.

        Raises:
            SessionLost: the session has ended.
        """
        ...

    async def settle(self, session: Session, settlement: Settlement[P]) -> Settled:
        """Apply a settlement in one atomic step.

        A part whose lease is not live under this session's token, or whose message has ended, is left out and listed
        in `refused`, with its derived messages. The leader may end, or set waiting, messages that nobody has leased.
        Settling the same thing twice changes nothing the second time.

        Raises:
            SessionLost: the session has ended; nothing was applied.
        """
        ...

    async def notify_ready(self, resources: Sequence[Resource]) -> Position:
        """Provide resources globally. Versions only grow: a lower one changes nothing."""
        ...

    async def forget_ready(self, names: Sequence[str]) -> Position:
        """Take global resources back. Who was satisfied by them stays so; unknown names change nothing."""
        ...

    def facts(self, after: Position | None = None) -> AsyncIterator[Sequence[Fact]]:
        """Yield facts in commit order, in batches.

        `None` is recovery: first what is needed to know every message that has not ended (as accepted, then committed,
        ended and waits facts), epochs and resources; then `CaughtUp`; then news for ever. A message that has not ended
        cannot be known without the ends of the messages it names in `depends_on`, so those are among it. A message
        that ended is told with the waits of its last run before its end, if there are any: a replay has to name the
        next run. A message that has not ended and has a recorded outcome is told as prepared, after its waits and its
        lease. A recovery may leave payloads out (None in the message, and in its waits): who needs one claims the
        message. A position goes on from there, and may start over with a recovery when it is too old. All facts of one
        atomic step have one position and come in one batch.
        """
        ...


# Optional powers of a store.


@runtime_checkable
class SupportsColocation(Protocol[P]):
    """A store whose settlements can carry the sink's own writes in one transaction."""

    async def settle_with(self, session: Session, settlement: Settlement[P], apply: Callable[[Any], None]) -> Settled:
        """Settle, and call `apply(transaction)` inside the same transaction. If it raises, nothing happened.

        `apply` is called after the settlement was checked, once if that counted; it is called again only if the
        transaction was rolled back. If every message of `committed` is refused, so are the sink's writes.

        Raises:
            PartlyRefused: some messages of `committed` are refused; nothing happened.
            SessionLost: the session has ended; nothing happened.
        """
        ...


@runtime_checkable
class AnswersAtOnce(Protocol[P]):
    """A store within one process that claims and commits without waiting.

    A runtime does both for every batch, which may be one message: the coroutine around a step, and the values it is
    wrapped in, cost as much as the step.
    """

    def pop_ready_nowait(self, session: Session, seqs: Sequence[Seq]) -> Sequence[Lease[P]]:
        """Claim messages, as `pop_ready` does."""
        ...

    def commit_nowait(self, session: Session, leases: Sequence[Lease[P]]) -> Sequence[Seq]:
        """Commit messages that bring nothing, as `settle` does; return those that were refused."""
        ...


@runtime_checkable
class SupportsLetters(Protocol):
    """A store whose dead letters can be read, a page at a time, while it works.

    What a letter says is not the store's business: who looks for an error or a time reads the pages.
    """

    async def letters(
        self, *, epoch: int | None = None, after: Seq | None = None, limit: int = 100
    ) -> Sequence[KeptLetter[Any]]:
        """Return a page of dead letters, in order of place. An empty one is the end.

        Each page is read at its own moment: a letter that was replayed or discarded since is not in it, and one that
        is new may be.

        Args:
            epoch: the number of the epoch; None for all.
            after: the place of the last letter of the page before.
            limit: how many at most.
        """
        ...

    async def letter(self, seq: Seq) -> KeptLetter[Any] | None:
        """Return one dead letter whole, None if that message has none.

        A payload that cannot be decoded raises `PayloadNotDecodable` when it is read.
        """
        ...


@runtime_checkable
class SupportsRecords(Protocol):
    """A store that can read back the records that settlements carried."""

    async def read(self, space: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of those keys that exist."""
        ...

    async def scan(self, space: str, *, after: str = "", limit: int = 100) -> Sequence[tuple[str, bytes]]:
        """Return a page of keys and values, in order of the keys, by code points. An empty one is the end."""
        ...


@runtime_checkable
class SupportsRetention(Protocol):
    """A store that removes what is old in small steps."""

    @property
    def retain(self) -> float:
        """Seconds for which completed epochs are kept, unless they say otherwise."""
        ...

    async def prune(self, before: float, limit: int) -> int:
        """Remove at most `limit` rows of epochs completed before that wall-clock time; return how many."""
        ...


@runtime_checkable
class SupportsUnique(Protocol[P_contra]):
    """A store that remembers ids beyond their epoch, for producers that deliver again."""

    async def put_unique(self, epoch: EpochKey, messages: Sequence[Message[P_contra]], seconds: float) -> PutReceipt:
        """Store messages as `put` does, but for those that were accepted by this call in another epoch not long ago.

        What is accepted is remembered for so many seconds, by its kind and id, also when its epoch is forgotten; a
        message of that kind and id is a duplicate in every other epoch meanwhile, and does not prolong it. In its own
        epoch `put` decides. A message that ends cancelled is no longer remembered. `prune` removes, in its steps, what
        is remembered no longer.

        Raises:
            EpochSealed: the epoch is not open and a message is neither known in it nor remembered; nothing was stored.
            UnknownEpoch: there is no such epoch.
        """
        ...


@runtime_checkable
class SupportsVisits(Protocol):
    """A store that can be changed while no runtime works on it, without hiding from the next one what happened."""

    def visit(self, who: str) -> AbstractAsyncContextManager[Session]:
        """Become the member for as long as the block lasts, in place of one that died, or of none.

        A session that did not leave goes on under its own token: its leases stay, and no crash is counted, so that
        whoever joins next is told of them as if nobody had been here. If there is none, this is as `join`.

        Args:
            who: a name for people (host, process).
        """
        ...


@runtime_checkable
class SupportsBackup(Protocol):
    """A store that can copy itself while it works."""

    async def backup(self, path: str) -> None:
        """Write a consistent copy to a path that does not exist yet."""
        ...


@runtime_checkable
class SupportsVerify(Protocol):
    """A store that can check its own integrity."""

    async def verify(self) -> Sequence[str]:
        """Return what is wrong, in words that name the record; empty when all is well."""
        ...
