"""What a store in memory keeps: messages, epochs and resources, without the rules about them.

A message costs one small object. What only few messages have (a retry, a replay, a bad end) is in a second one, made
when it is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from math import inf
from typing import Any

from attrs import define, evolve, field

from naviscope_spi import (
    Accepted,
    Committed,
    DependsOn,
    End,
    Ended,
    EpochKey,
    EpochRecord,
    FactBody,
    Lease,
    Leased,
    Message,
    Resource,
    Seq,
    Waits,
)

__all__ = ["Kept", "KeptEpoch", "Progress", "Scope", "same_content"]

# How many messages one fact of a recovery names at most.
_CHUNK = 1_000

Scope = dict[str, Resource]
"""The resources of an epoch, or the global ones: what each is now."""


@define(eq=False)
class Progress:
    """What became of a message beyond its acceptance. Attributes as in `Lease`, `Waits` and `Ended`."""

    run: int = 0
    attempt: int = 0
    crashes: int = 0
    not_before: float | None = None
    added: DependsOn | None = None
    prepared: bytes | None = None
    edited: Message[Any] | None = None
    ended: Ended | None = None


@define(eq=False)
class Kept:
    """A message in its place.

    The message stays as it was submitted, even when a replay edits its payload: the program that is run again submits
    the original, and that must not look like a conflict.
    """

    seq: Seq
    epoch: KeptEpoch
    message: Message[Any]
    at: float
    lease: Lease[Any] | None = None
    end: End | None = None
    progress: Progress | None = None

    def advance(self) -> Progress:
        """Return the progress, which from now on exists."""
        if self.progress is None:
            self.progress = Progress()
        return self.progress

    def claim(self, token: int) -> Lease[Any]:
        """Lease it to a session."""
        seen = self.progress
        if seen is None:
            lease = Lease(self.seq, self.epoch.key, self.message, token)
        else:
            message = seen.edited or self.message
            lease = Lease(self.seq, self.epoch.key, message, token, seen.run, seen.attempt, seen.crashes, seen.prepared)
        self.lease = lease
        return lease

    def is_held_by(self, lease: Lease[Any]) -> bool:
        """Whether this lease is the one that counts now. A copy of it counts as well; that of an earlier claim not."""
        mine = self.lease
        if mine is None or mine is lease:
            return mine is lease
        return (mine.token, mine.run, mine.attempt) == (lease.token, lease.run, lease.attempt)

    def wait(self, waits: Waits) -> bool:
        """Take over what a settlement says; return whether anything changed."""
        now = self.progress or Progress()
        grows = waits.run > now.run
        added = now.added if waits.depends_on is None else (*(now.added or ()), *waits.depends_on)
        # A recorded outcome belongs to the attempt that made it: handed back it stays, run again it goes.
        is_same_attempt = (waits.run, waits.attempt) == (now.run, now.attempt) and waits.depends_on is None
        then = Progress(
            run=waits.run,
            attempt=waits.attempt,
            crashes=0 if grows else now.crashes,
            not_before=waits.not_before,
            added=added and tuple(dict.fromkeys(added)),
            prepared=now.prepared if is_same_attempt else None,
            edited=now.edited,
        )
        if grows and waits.payload is not None:
            then.edited = evolve(self.message, payload=waits.payload)
        changed = self.lease is not None or self.end is not None or _shown(now) != _shown(then)
        self.lease = self.end = None
        self.progress = then
        return changed

    def waits(self) -> Waits | None:
        """Say where it stands, for a recovery; None if it is as it was accepted."""
        now = self.progress
        if now is None or _shown(now) == _shown(Progress()):
            return None
        payload = None if now.edited is None else now.edited.payload
        return Waits(self.seq, now.added, now.not_before, now.attempt, now.run, payload)


def _shown(progress: Progress) -> tuple[object, ...]:
    return progress.run, progress.attempt, progress.not_before, progress.added, progress.prepared


@define(eq=False)
class KeptEpoch:
    """An epoch with its messages.

    Attributes:
        record: as the contract shows it.
        ids: the place of every message by its id, in order of acceptance.
        done: the messages that committed, by place. They cost no object of ours, which garbage collection would visit.
        times: when messages were accepted, by the first place of each step.
        values: what committed messages hand to dependents.
        failed: the messages that ended without committing.
        scope: the resources of this epoch.
        unfinished: how many messages have not ended.
        letters: how many ended dead or expired, so that they can be replayed.
        is_freed: whether messages and ids are gone: it completed and nothing pins it.
        completed_at: wall-clock time of the last completion.
    """

    record: EpochRecord
    ids: dict[str, Seq] = field(factory=dict)
    done: dict[Seq, Message[Any]] = field(factory=dict)
    times: list[tuple[Seq, float]] = field(factory=list)
    values: dict[Seq, bytes] = field(factory=dict)
    failed: dict[Seq, Kept] = field(factory=dict)
    scope: Scope = field(factory=dict)
    unfinished: int = 0
    letters: int = 0
    is_freed: bool = False
    completed_at: float | None = None

    @property
    def key(self) -> EpochKey:
        """Its number and name."""
        return self.record.key

    def free(self) -> None:
        """Let go of messages, ids, values and resources. The record stays."""
        self.is_freed = True
        for each in (self.ids, self.done, self.times, self.values, self.failed, self.scope):
            each.clear()

    def accepted(self, live: Mapping[Seq, Kept]) -> Iterator[Accepted[Any]]:
        """Yield every message, in order of acceptance, a bounded number in each fact.

        Args:
            live: the messages that have not committed, of all epochs.
        """
        for at, together in groupby(self.ids.values(), key=lambda seq: self._accepted_at(seq, live)):
            while chunk := list(islice(together, _CHUNK)):
                yield Accepted(self.key, chunk, [self.message(seq, live) for seq in chunk], at)

    def message(self, seq: Seq, live: Mapping[Seq, Kept]) -> Message[Any]:
        """Return a message by its place."""
        done = self.done.get(seq)
        return live[seq].message if done is None else done

    def _accepted_at(self, seq: Seq, live: Mapping[Seq, Kept]) -> float:
        kept = live.get(seq)
        if kept is not None:
            return kept.at
        return self.times[bisect_right(self.times, (seq, inf)) - 1][1]

    def fates(self, live: Mapping[Seq, Kept]) -> Iterator[FactBody]:
        """Yield what became of the messages.

        The waits of a message come before its end and its lease: they tell the run that ended, and a replay has to name
        the next one; and news of waits mean that the lease is over.

        Args:
            live: the messages that have not committed, of all epochs.
        """
        committed = [seq for seq in self.ids.values() if seq in self.done]
        for start in range(0, len(committed), _CHUNK):
            chunk = committed[start : start + _CHUNK]
            yield Committed(chunk, {seq: self.values[seq] for seq in chunk if seq in self.values})
        for seq in self.ids.values():
            kept = live.get(seq)
            if kept is None:
                continue
            waits = kept.waits()
            if waits is not None:
                yield waits
            if kept.lease is not None:
                yield Leased([kept.seq], kept.lease.token)
            if kept.progress is not None and kept.progress.ended is not None:
                yield kept.progress.ended


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
