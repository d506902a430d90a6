"""What a store in memory keeps: messages, epochs and resources, without the rules about them.

A message costs no object of ours, only entries in dictionaries: every object that lives on is visited by each full
garbage collection, and with one per message those took more time than the store itself. What only few messages have (a
lease, a retry, a replay, a bad end) has an object, made when it is needed.

Of a message that committed only its id and a digest of its content are needed, for duplicates and conflicts. Making the
digest costs as much as storing the message did, so it waits until many such messages are kept, and is then made of a
few with every step that brings new ones.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby, islice
from math import inf
from typing import Any, Final

import msgspec
from attrs import define, evolve, field

from naviscope_spi import (
    Accepted,
    Committed,
    DependsOn,
    Ended,
    EpochKey,
    EpochRecord,
    FactBody,
    Lease,
    Leased,
    Message,
    Prepared,
    Resource,
    Seq,
    Waits,
)

__all__ = ["KeptEpoch", "Progress", "Scope", "is_same_claim", "same_content"]

# How many messages one fact of a recovery names at most.
_CHUNK = 1_000

# An id stands for the place of its message, and once that is shrunk for a digest above it.
_PLACE_BITS: Final = 40
_PLACE: Final = (1 << _PLACE_BITS) - 1
_DIGEST: Final = (1 << 40) - 1
_encode = msgspec.msgpack.Encoder(order="deterministic").encode

Scope = dict[str, Resource]
"""The resources of an epoch, or the global ones: what each is now."""


@define(eq=False)
class Progress:
    """What became of a message beyond its acceptance. Attributes as in `Lease`, `Waits` and `Ended`.

    The message stays as it was submitted, even when a replay edits its payload: the program that is run again submits
    the original, and that must not look like a conflict.
    """

    run: int = 0
    attempt: int = 0
    crashes: int = 0
    not_before: float | None = None
    added: DependsOn | None = None
    prepared: bytes | None = None
    edited: Message[Any] | None = None
    ended: Ended | None = None

    def then(self, waits: Waits, message: Message[Any]) -> Progress:
        """Return what a settlement makes of it.

        Args:
            waits: what the settlement says.
            message: as it was submitted.
        """
        grows = waits.run > self.run
        added = self.added if waits.depends_on is None else (*(self.added or ()), *waits.depends_on)
        # A recorded outcome belongs to the attempt that made it: handed back it stays, run again it goes.
        is_same_attempt = (waits.run, waits.attempt) == (self.run, self.attempt) and waits.depends_on is None
        return Progress(
            run=waits.run,
            attempt=waits.attempt,
            crashes=0 if grows else self.crashes,
            not_before=waits.not_before,
            added=added and tuple(dict.fromkeys(added)),
            prepared=self.prepared if is_same_attempt else None,
            edited=evolve(message, payload=waits.payload) if grows and waits.payload is not None else self.edited,
        )

    def shows(self, other: Progress) -> bool:
        """Whether a reader of facts could not tell it from another."""
        return _shown(self) == _shown(other)

    def waits(self, seq: Seq) -> Waits | None:
        """Say where the message stands, for a recovery; None if it is as it was accepted."""
        if self.shows(_UNTOUCHED):
            return None
        payload = None if self.edited is None else self.edited.payload
        return Waits(seq, self.added, self.not_before, self.attempt, self.run, payload)


def _shown(progress: Progress) -> tuple[object, ...]:
    return progress.run, progress.attempt, progress.not_before, progress.added, progress.prepared


_UNTOUCHED: Final = Progress()


def is_same_claim(one: Lease[Any], other: Lease[Any]) -> bool:
    """Whether two leases of a message are one claim. A copy of a lease is; that of an earlier claim is not."""
    return one is other or (one.token, one.run, one.attempt) == (other.token, other.run, other.attempt)


_NOTHING: Final[dict[Any, Any]] = {}
_NEVER: Final[list[tuple[Seq, float]]] = []


@define(eq=False)
class KeptEpoch:
    """An epoch with its messages.

    Attributes:
        record: as the contract shows it.
        ids: of every message by its id, in order of acceptance, the place; of one that was shrunk a digest too.
        messages: every message by its place, but for those that were shrunk.
        times: when messages were accepted, by the first place of each step, in order.
        values: what committed messages hand to dependents.
        failed: the places of messages that ended without committing, in order.
        scope: the resources of this epoch.
        unfinished: how many messages have not ended.
        letters: how many ended dead or expired and were not discarded: they can be replayed, and pin the epoch.
        is_freed: whether messages and ids are gone: it completed and nothing pins it.
        completed_at: wall-clock time of the last completion.
    """

    record: EpochRecord
    ids: dict[str, Seq] = field(factory=dict)
    messages: dict[Seq, Message[Any]] = field(factory=dict)
    times: list[tuple[Seq, float]] = field(factory=list)
    values: dict[Seq, bytes] = field(factory=dict)
    failed: dict[Seq, None] = field(factory=dict)
    scope: Scope = field(factory=dict)
    unfinished: int = 0
    letters: int = 0
    is_freed: bool = False
    completed_at: float | None = None
    _looked_at: Iterator[Seq] | None = field(default=None, init=False)

    @property
    def key(self) -> EpochKey:
        """Its number and name."""
        return self.record.key

    def add(self, seqs: Sequence[Seq], messages: Sequence[Message[Any]], ids: Sequence[str], at: float) -> None:
        """Take in messages that follow each other."""
        self.ids.update(zip(ids, seqs, strict=True))
        self.messages.update(zip(seqs, messages, strict=True))
        self.unfinished += len(seqs)
        if not self.times or self.times[-1][0] < seqs[0]:
            self.times.append((seqs[0], at))
        else:
            # It was staged, and got its place before others that were accepted meanwhile.
            insort(self.times, (seqs[0], at))

    def shrink(self, live: Container[Seq], count: int, whole: int) -> None:
        """Keep less of messages that committed, if very many are kept whole.

        Args:
            live: the messages that have not committed, of all epochs.
            count: how many to look at.
            whole: how many may be kept whole.
        """
        messages = self.messages
        if len(messages) - self.unfinished - len(self.failed) <= whole:
            return
        looked_at = [*islice(self._looked_at or (), count)]
        if not looked_at:
            # All were looked at. Some have committed since: the next round meets them.
            self._looked_at = iter([*messages])
        for seq in looked_at:
            if seq not in live:
                message = messages[seq]
                digest = _digest(message)
                if digest is not None:
                    del messages[seq]
                    self.ids[message.id] = Seq(digest << _PLACE_BITS | seq)

    def holds(self, message: Message[Any]) -> bool | None:
        """Tell whether a message is known with the same content; None if its id is not known."""
        place = self.ids.get(message.id)
        if place is None:
            return None
        if place > _PLACE:
            return place >> _PLACE_BITS == _digest(message)
        return same_content(self.messages[place], message)

    def free(self) -> None:
        """Let go of messages, ids, values and resources. The record stays."""
        self.is_freed = True
        self._looked_at = None
        # Nothing comes in any more. One empty thing of each sort for all epochs, since thousands of them may be kept.
        self.ids = self.messages = self.values = self.failed = self.scope = _NOTHING
        self.times = _NEVER

    def accepted(self) -> Iterator[Accepted[Any]]:
        """Yield every message, in order of acceptance, a bounded number in each fact. Of some only the id is left."""
        places = ((Seq(place & _PLACE), name) for name, place in self.ids.items())
        for at, together in groupby(places, key=lambda each: self.accepted_at(each[0])):
            while chunk := list(islice(together, _CHUNK)):
                messages = [self.messages.get(seq) or Message(name, None) for seq, name in chunk]
                yield Accepted(self.key, [seq for seq, _ in chunk], messages, at)

    def accepted_at(self, seq: Seq) -> float:
        """Return when a message was accepted."""
        return self.times[bisect_right(self.times, (seq, inf)) - 1][1]

    def fates(
        self, live: Container[Seq], progress: Mapping[Seq, Progress], leases: Mapping[Seq, Lease[Any]]
    ) -> Iterator[FactBody]:
        """Yield what became of the messages.

        The waits of a message come before its end and its lease: they tell the run that ended, and a replay has to name
        the next one; and news of waits mean that the lease is over.

        Args:
            live: the messages that have not committed, of all epochs; so for the others.
            progress: what became of them, of those that did not stay as they were.
            leases: the leases of those that are claimed.
        """
        places = [Seq(place & _PLACE) for place in self.ids.values()]
        committed = [seq for seq in places if seq not in live]
        for start in range(0, len(committed), _CHUNK):
            chunk = committed[start : start + _CHUNK]
            yield Committed(chunk, {seq: self.values[seq] for seq in chunk if seq in self.values})
        for seq in places:
            now, lease = progress.get(seq), leases.get(seq)
            waits = None if now is None else now.waits(seq)
            if waits is not None:
                yield waits
            if lease is not None:
                yield Leased([seq], lease.token)
            if now is not None and now.prepared is not None and now.ended is None:
                yield Prepared([seq])
            if now is not None and now.ended is not None:
                yield now.ended


def same_content(one: Message[Any], other: Message[Any]) -> bool:
    """Whether two messages of one id have the same kind, payload, depends_on and key."""
    if one is other:
        return True
    if (one.kind, one.key, one.depends_on) != (other.kind, other.key, other.depends_on):
        return False
    return _same_payload(one.payload, other.payload)


def _same_payload(one: object, other: object) -> bool:
    if one is other:
        return True
    # Payloads are the user's: arrays answer == with an array, and some objects raise. Those are only like themselves.
    try:
        answer = one == other
    except Exception:
        return False
    return answer is True


def _digest(message: Message[Any]) -> int | None:
    """Return a number that tells contents apart; None if they cannot be written down.

    What is equal and written down otherwise, such as 1 and 1.0, is taken for another content, as it is in a file.
    """
    payload = message.payload
    try:
        sort = type(payload)
        if sort is not bytes and sort is not str:
            payload = repr(payload) if sort is int else _encode(payload)
        return hash((message.kind, message.key, message.depends_on, sort, payload)) & _DIGEST
    except Exception:
        return None
