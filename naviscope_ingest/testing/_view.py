"""What a reader of facts knows: facts folded into a picture of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from naviscope_spi import (
    Accepted,
    CaughtUp,
    Committed,
    DependsOn,
    End,
    Ended,
    EpochForgotten,
    EpochKey,
    EpochMarked,
    EpochOpened,
    EpochRecord,
    EpochState,
    Fact,
    FactBody,
    Leased,
    Message,
    Position,
    Prepared,
    Provided,
    Resource,
    Seq,
    SessionEnded,
    Waits,
)

__all__ = ["View", "content", "outline"]


def content(message: Message[Any]) -> tuple[object, ...]:
    """Return everything that a store has to give back; messages themselves are equal only to themselves."""
    return (
        message.id,
        message.payload,
        message.kind,
        message.depends_on,
        message.key,
        message.priority,
        message.not_before,
        message.expires_at,
        dict(message.headers),
    )


def outline(message: Message[Any]) -> tuple[object, ...]:
    """Return everything that a recovery has to give back: it may leave payloads out."""
    name, _, *rest = content(message)
    return (name, *rest)


@define
class View:
    """The picture that a reader has.

    Taking a fact twice changes nothing, so a recovery may be folded over old facts.
    """

    position: Position = field(default=Position(0))
    is_caught_up: bool = False
    epochs: dict[int, EpochRecord] = field(factory=dict)
    messages: dict[Seq, tuple[EpochKey, Message[Any]]] = field(factory=dict)
    ends: dict[Seq, End] = field(factory=dict)
    ended: dict[Seq, Ended] = field(factory=dict)
    values: dict[Seq, bytes] = field(factory=dict)
    waits: dict[Seq, Waits] = field(factory=dict)
    prepared: set[Seq] = field(factory=set)
    added: dict[Seq, DependsOn] = field(factory=dict)
    leases: dict[Seq, int] = field(factory=dict)
    resources: dict[tuple[int | None, str], Resource] = field(factory=dict)
    sessions: dict[int, bool] = field(factory=dict)

    @property
    def unfinished(self) -> set[Seq]:
        """The messages that have not ended."""
        return self.messages.keys() - self.ends.keys()

    def ids(self, epoch: EpochKey) -> list[str]:
        """The ids known in an epoch, in order of place."""
        return [message.id for _, (key, message) in sorted(self.messages.items()) if key == epoch]

    def open_ids(self, epoch: EpochKey) -> list[str]:
        """The ids of an epoch that have not ended.

        A recovery need not tell of the others, unless one of these names them.
        """
        unfinished = self.unfinished
        return [
            message.id for seq, (key, message) in sorted(self.messages.items()) if key == epoch and seq in unfinished
        ]

    def state(self, epoch: EpochKey) -> EpochState | None:
        """The state of an epoch, None if it is not known."""
        record = self.epochs.get(epoch.number)
        return None if record is None else record.state

    def run(self, seq: Seq) -> int:
        """The run a message is in."""
        return self.waits[seq].run if seq in self.waits else 0

    def version(self, name: str, epoch: int | None = None) -> int | None:
        """The version of a resource, None if it was not provided."""
        resource = self.resources.get((epoch, name))
        return None if resource is None else resource.version

    def take(self, batch: Sequence[Fact]) -> None:
        """Fold a batch of facts in."""
        for fact in batch:
            self.position = max(self.position, fact.position)
            self._fold(fact.body)

    def _fold(self, body: FactBody) -> None:
        match body:
            case EpochOpened(record=record) | EpochMarked(record=record):
                self.epochs[record.key.number] = record
            case EpochForgotten(epoch=key):
                self.epochs.pop(key.number, None)
            case Accepted():
                self.messages.update(
                    {seq: (body.epoch, message) for seq, message in zip(body.seqs, body.messages, strict=True)}
                )
            case Leased():
                self.leases.update(dict.fromkeys(body.seqs, body.token))
            case Committed():
                self.values.update(body.values)
                for seq in body.seqs:
                    self._end(seq, "committed")
            case Ended():
                self.ended[body.seq] = body
                self._end(body.seq, body.end)
            case Waits():
                self._wait(body)
            case Prepared():
                self.prepared.update(body.seqs)
            case Provided():
                self.resources[body.epoch, body.resource.name] = body.resource
            case SessionEnded():
                self.sessions[body.token] = body.clean
                self.leases = {seq: token for seq, token in self.leases.items() if token != body.token}
            case CaughtUp():
                self.is_caught_up = True

    def _end(self, seq: Seq, end: End) -> None:
        self.ends[seq] = end
        self.leases.pop(seq, None)
        self.prepared.discard(seq)

    def _wait(self, waits: Waits) -> None:
        before = self.waits.get(waits.seq, Waits(waits.seq))
        if (waits.run, waits.attempt) != (before.run, before.attempt) or waits.depends_on is not None:
            self.prepared.discard(waits.seq)
        if waits.run > self.run(waits.seq):
            self.ends.pop(waits.seq, None)
            self.ended.pop(waits.seq, None)
        if waits.depends_on:
            self.added[waits.seq] = tuple(dict.fromkeys((*self.added.get(waits.seq, ()), *waits.depends_on)))
        self.waits[waits.seq] = waits
        self.leases.pop(waits.seq, None)
