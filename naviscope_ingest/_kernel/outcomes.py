"""Turning what executors answered into what the sink and the store are told.

Most outcomes are `Executed` with a few ops and nothing else; for those there is one pass without an object per message
but the sink's entry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

from attrs import frozen

from naviscope_ingest._core import COMMITTING, RUNNING, Core, Node
from naviscope_ingest.errors import BadOutcome, BarrierPassed
from naviscope_ingest.letters import MAX_TEXT, printable
from naviscope_spi import (
    Deferred,
    Derived,
    Ended,
    Entry,
    Executed,
    Fatal,
    InvalidMessage,
    Lease,
    Message,
    Permanent,
    Record,
    Resource,
    Seq,
    Settlement,
    Skipped,
    SystemFailure,
    Waits,
)
from naviscope_spi.names import shown

__all__ = [
    "Answer",
    "Batch",
    "Failed",
    "Planner",
    "Raised",
    "Rest",
    "Staged",
    "describe_error",
    "settlement_of",
]


_ROWS = 1_000
"""How many derived messages a batch brings before it is thought full: many parents may bring many each, and a store is
held for as long as it writes one settlement."""


@frozen
class Raised:
    """An executor raised instead of answering.

    Attributes:
        error: what it raised.
        is_alone: whether it was working on this one message and no other.
    """

    error: Exception
    is_alone: bool = True


@frozen
class Failed:
    """An attempt that did not work.

    Attributes:
        lease: of the message.
        error: what went wrong.
        is_final: whether that ends the message, whatever the error means elsewhere.
        is_alone: whether the executor was working on this one message and no other.
    """

    lease: Lease[Any]
    error: BaseException
    is_final: bool = False
    is_alone: bool = True


@frozen
class Staged(Iterable[Message[Any]]):
    """What a message derived, put aside in the store: one message of each kind is left to look at.

    Attributes:
        count: how many were staged.
        kinds: one message of each kind among them.
    """

    count: int
    kinds: Sequence[Message[Any]]

    def __iter__(self) -> Iterator[Message[Any]]:
        """Iterate over one message of each kind."""
        return iter(self.kinds)


Answer: TypeAlias = tuple[Lease[Any], Any]
"""A lease and what came of it: an outcome, `Raised`, or something that is no outcome."""


class Rest:
    """What a commit batch does besides committing messages that bring nothing.

    Attributes:
        derived: what messages bring, by parent.
        fan_outs: outcomes that bring so much that it has to be staged first; they are no part of this batch.
        values: what they leave for their dependents.
        failed: attempts that did not work and were not judged yet.
        ended: messages that end otherwise, with the reason in words.
        waits: messages that go on.
        deferred: those of them that were deferred.
        records: keys and values that go with it.
        fatal: the error that stops the runtime, if one was raised.
        rows: how many derived messages its settlement has to insert.
    """

    __slots__ = ("deferred", "derived", "ended", "failed", "fan_outs", "fatal", "records", "rows", "values", "waits")

    def __init__(self) -> None:
        self.derived: dict[Seq, Derived[Any]] = {}
        self.fan_outs: list[tuple[Lease[Any], Executed[Any, Any]]] = []
        self.values: dict[Seq, bytes] = {}
        self.failed: list[Failed] = []
        self.ended: list[tuple[Lease[Any], Ended, str]] = []
        self.waits: list[Waits] = []
        self.deferred: list[tuple[Lease[Any], Deferred]] = []
        self.records: list[Record] = []
        self.fatal: SystemFailure | None = None
        self.rows = 0


class Batch:
    """What a commit batch does, before the sink has seen it.

    Attributes:
        leases: messages that will commit.
        nodes: the same, as the core knows them.
        entries: their ops, for those that have any.
        rest: what else; None for most batches.
        left: answers for the next batch, because this one brings enough.
    """

    __slots__ = ("entries", "leases", "left", "nodes", "rest")

    def __init__(self) -> None:
        self.leases: list[Lease[Any]] = []
        self.nodes: list[Node] = []
        self.entries: list[Entry[Any]] = []
        self.rest: Rest | None = None
        self.left: Sequence[Answer] = ()

    def more(self) -> Rest:
        """Return the rest, which from now on exists."""
        if self.rest is None:
            self.rest = Rest()
        return self.rest

    def leave_out(self, seqs: Collection[Seq]) -> None:
        """Leave out messages whose outcomes do not count any more."""
        gone = [(lease.epoch.number, lease.message.id) for lease in self.leases if lease.seq in seqs]
        self.leases = [lease for lease in self.leases if lease.seq not in seqs]
        self.nodes = [node for node in self.nodes if node.seq not in seqs]
        self.entries = [entry for entry in self.entries if (entry.epoch.number, entry.message_id) not in gone]
        for seq in seqs:
            self._forget(seq)

    def drop(self, lease: Lease[Any], error: BaseException) -> None:
        """Let a message that was about to commit end dead instead."""
        self.leases.remove(lease)
        self.nodes = [node for node in self.nodes if node.seq != lease.seq]
        self._forget(lease.seq)
        self.more().failed.append(Failed(lease, error, is_final=True))

    def refuse(self, lease: Lease[Any], error: BaseException) -> None:
        """Let a message end dead instead, before the sink has seen it."""
        name = (lease.epoch.number, lease.message.id)
        self.entries = [entry for entry in self.entries if (entry.epoch.number, entry.message_id) != name]
        self.drop(lease, error)

    def _forget(self, seq: Seq) -> None:
        if self.rest is not None:
            self.rest.derived.pop(seq, None)
            self.rest.values.pop(seq, None)


def settlement_of(
    batch: Batch, *, only: Collection[Seq] | None = None, without: Collection[Seq] = ()
) -> Settlement[Any]:
    """Return what settles a batch.

    Args:
        batch: what it does.
        only: the messages whose commits are settled, and nothing else; None for all and everything.
        without: messages whose commits are settled already.
    """
    leases, rest = batch.leases, batch.rest
    if only is not None or without:
        leases = [each for each in leases if (only is None or each.seq in only) and each.seq not in without]
    if rest is None:
        return Settlement(leases)
    seqs = {lease.seq for lease in leases}
    derived = [each for seq, each in rest.derived.items() if seq in seqs]
    values = {seq: value for seq, value in rest.values.items() if seq in seqs}
    if only is not None:
        return Settlement(leases, values, derived=derived)
    return Settlement(
        committed=leases,
        values=values,
        ended=[ended for _, ended, _ in rest.ended],
        waits=rest.waits,
        derived=derived,
        records=rest.records,
    )


class Planner:
    """Sorts answers into a batch.

    Args:
        core: knows which messages are still running, and which barriers have opened.
        store_id: the first part of every task key.
        write: writes a message as the store will, and raises if it cannot; None if the store takes everything.
        most: how many derived messages may ride in a settlement.
        records: whether outcomes with ops are written down before the sink sees them. What these bring is part of the
            record, so it is staged only after that.
    """

    def __init__(
        self,
        core: Core,
        store_id: str,
        write: Callable[[Message[Any]], object] | None = None,
        *,
        most: int = sys.maxsize - 1,
        records: bool = False,
    ) -> None:
        self._core = core
        self._find = core.finder()
        self._store_id = store_id
        self._write = write
        self._most = most
        self._records = records

    def plan(self, answers: Sequence[Answer], now: float) -> Batch:
        """Sort answers. What was ended meanwhile is left out; for what commits, commit wins over cancel from now on."""
        batch = Batch()
        leases, nodes, entries, store_id = batch.leases, batch.nodes, batch.entries, self._store_id
        find = self._find
        for lease, outcome in answers:
            node = find(lease.seq)
            if node is None or node.state is not RUNNING:
                continue
            if type(outcome) is not Executed:
                self._plan_other(batch, lease, outcome)
                continue
            if outcome.derived or outcome.ready or outcome.value is not None:
                if outcome.derived and batch.rest is not None and batch.rest.rows >= _ROWS:
                    batch.left = answers[next(at for at, each in enumerate(answers) if each[0] is lease) :]
                    break
                if not self._brings(batch, lease, outcome):
                    continue
            # As `hand_to_sink` does, in the same pass.
            node.state = COMMITTING
            node.since = now
            leases.append(lease)
            nodes.append(node)
            if outcome.ops:
                message, epoch = lease.message, lease.epoch
                name = message.id
                # As `task_key` has it, without the call.
                entries.append(Entry(f"{store_id}:{epoch.number}:{name}", epoch, name, message.kind, outcome.ops))
        return batch

    def _brings(self, batch: Batch, lease: Lease[Any], outcome: Executed[Any, Any]) -> bool:
        """Take in what a message derives, provides and leaves; tell whether it may."""
        error: Exception | None
        derived: list[Message[Any]] = []
        ready: list[Resource] = []
        staged = 0
        try:
            ready = list(outcome.ready)
            error = _wrong(ready, Resource, "ready")
            if isinstance(outcome.derived, Staged):
                staged = outcome.derived.count
                error = error or self._barrier_passed(lease, outcome.derived.kinds)
            else:
                most = sys.maxsize if self._records and outcome.ops else self._most + 1
                messages = iter(outcome.derived)
                derived = list(islice(messages, most))
                if len(derived) > self._most and len(derived) == most:
                    whole = Executed(outcome.ops, chain(derived, messages), ready, outcome.value)
                    batch.more().fan_outs.append((lease, whole))
                    return False
                error = error or self.fault_of(lease, derived)
        except Exception as raised:
            if isinstance(outcome.derived, Iterator):
                # A generator is a part of the executor.
                batch.more().failed.append(Failed(lease, raised))
                return False
            # Both are the user's own sequences, and may be anything.
            error = BadOutcome(f"derived or ready cannot be read: {describe_error(raised)}")
        if error is not None:
            batch.more().failed.append(Failed(lease, error, is_final=True))
            return False
        if derived or ready or staged:
            rest = batch.more()
            rest.derived[lease.seq] = Derived(lease.seq, derived, staged, ready)
            # Larger ones are staged before the settlement, and then are one row.
            rest.rows += len(derived) if len(derived) <= self._most else 1
        if outcome.value is not None:
            batch.more().values[lease.seq] = outcome.value
        return True

    def fault_of(self, lease: Lease[Any], derived: Sequence[Any], first: int = 0) -> Exception | None:
        """Say what is wrong with derived messages, if anything is.

        Args:
            lease: of their parent.
            derived: the messages, or whatever the executor took for such.
            first: how many came before them.
        """
        error = _wrong(derived, Message, "derived", first)
        if error is None and self._write is not None:
            error = _unstorable(derived, self._write, first)
        return error or self._barrier_passed(lease, derived)

    def _barrier_passed(self, lease: Lease[Any], derived: Iterable[Message[Any]]) -> BarrierPassed | None:
        passed = self._core.barrier_passed(lease.seq, derived)
        return None if passed is None else BarrierPassed(lease.message.kind, passed)

    def _plan_other(self, batch: Batch, lease: Lease[Any], outcome: object) -> None:
        if isinstance(outcome, Skipped):
            reason = printable(outcome.reason)
            batch.more().ended.append((lease, Ended(lease.seq, "skipped", letter=reason.encode() or None), reason))
        elif isinstance(outcome, Deferred):
            batch.more().waits.append(Waits(lease.seq, outcome.depends_on, None, lease.attempt, lease.run))
            batch.more().deferred.append((lease, outcome))
        elif isinstance(outcome, Raised):
            batch.more().failed.append(Failed(lease, outcome.error, is_alone=outcome.is_alone))
        elif isinstance(outcome, Fatal):
            error = outcome.error
            batch.more().failed.append(
                Failed(lease, Permanent(error) if isinstance(error, str) else error, is_final=True)
            )
        else:
            wrong = BadOutcome(
                f"the executor answered {shown(outcome)} for message {lease.message.id!r}: "
                "return Executed, Deferred, Skipped or Fatal"
            )
            batch.more().failed.append(Failed(lease, wrong, is_final=True))


def _unstorable(
    derived: Iterable[Message[Any]], write: Callable[[Message[Any]], object], first: int
) -> BadOutcome | None:
    """Say which derived message the store would refuse: after the sink has committed it would be too late."""
    for index, each in enumerate(derived, first):
        try:
            write(each)
        except InvalidMessage as error:
            return BadOutcome(f"derived[{index}] cannot be stored: {error}")
    return None


def _wrong(things: Sequence[object], kind: type, what: str, first: int = 0) -> BadOutcome | None:
    for index, each in enumerate(things, first):
        if not isinstance(each, kind):
            return BadOutcome(f"{what}[{index}] is {shown(each)}: it must be a {kind.__name__}")
    return None


def describe_error(error: BaseException) -> str:
    """Put an error into words that can be stored."""
    try:
        text = str(error)
    except Exception:
        text = "an error that cannot be printed"
    return printable(f"{type(error).__name__}: {text}"[:MAX_TEXT] if text else type(error).__name__)
