"""Folding the facts of a store into the core: recovery, and what other processes did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from naviscope_ingest._core.core import Core
from naviscope_ingest._core.nodes import State
from naviscope_spi import (
    Accepted,
    CaughtUp,
    Committed,
    Ended,
    EpochForgotten,
    EpochMarked,
    EpochOpened,
    EpochRecord,
    FactBody,
    Leased,
    Prepared,
    Provided,
    RecoveryBegun,
    ResourceForgotten,
    Seq,
    SessionEnded,
    Waits,
)

__all__ = ["Fold"]


class Fold:
    """Tells a core what a store recorded. A fact that is known already changes nothing.

    Until `CaughtUp` facts are incomplete, and the core decides nothing.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        # What each session has leased: it is free again when the session ends.
        self._leased: dict[int, dict[Seq, None]] = {}
        core.begin_recovery()

    def __call__(self, fact: FactBody) -> None:
        """Tell one fact."""
        core = self._core
        match fact:
            case Accepted():
                self._accept(fact)
            case Leased():
                self._leased.setdefault(fact.token, {}).update(dict.fromkeys(fact.seqs))
                core.claim(fact.seqs)
            case Committed():
                core.commit(fact.seqs, values=fact.values)
            case Ended():
                core.end(fact)
                if fact.discarded and core.is_letter(fact.seq):
                    core.discard(fact.seq)
            case Waits():
                self._wait(fact)
            case Prepared():
                self._record(fact.seqs)
            case Provided():
                core.provide(fact.resource, fact.epoch)
            case ResourceForgotten():
                core.forget_resource(fact.name)
            case EpochOpened():
                core.open_epoch(fact.record)
            case EpochMarked():
                self._mark(fact.record)
            case EpochForgotten():
                core.forget_epoch(fact.epoch.number)
            case SessionEnded():
                core.release(self._leased.pop(fact.token, {}))
            case RecoveryBegun():
                pass
            case CaughtUp():
                core.end_recovery()
            case _:
                assert_never(fact)

    def _record(self, seqs: Sequence[Seq]) -> None:
        # The end of a session does not let them run again: what they came to is known.
        for leased in self._leased.values():
            for seq in seqs:
                leased.pop(seq, None)
        self._core.record(seqs)

    def _accept(self, fact: Accepted[Any]) -> None:
        # Timeouts count from acceptance, which may be long ago.
        now = self._core.now
        self._core.tell_time(fact.at)
        self._core.accept(fact.epoch.number, fact.seqs, fact.messages)
        self._core.tell_time(max(now, fact.at))

    def _mark(self, record: EpochRecord) -> None:
        number = record.key.number
        self._core.open_epoch(record)
        if record.cancel_requested:
            self._core.cancel_epoch(number)
        elif record.state != "open":
            self._core.seal(number)
        if record.state in ("completed", "repairing"):
            self._core.tell_epoch(number, record.state)

    def _wait(self, fact: Waits) -> None:
        node = self._core.node(fact.seq)
        if node is None:
            return
        if node.state is State.ENDED:
            self._core.resume(fact.seq, fact.run)
        else:
            self._core.tell_run(fact.seq, fact.run)
        new = [each for each in fact.depends_on or () if each not in node.more().added]
        # A message that was deferred or failed had been running, whatever is known of its dependencies so far.
        if fact.not_before is not None:
            # Whatever it was deferred for before, it was there when the attempt that failed began.
            node.more().added += tuple(new)
            self._core.claim([fact.seq])
            self._core.retry(fact.seq, fact.not_before, spent=False)
        elif new:
            self._core.claim([fact.seq], takes_lane=False)
            self._core.defer(fact.seq, new)
        else:
            self._core.release([fact.seq])
        self._core.tell_attempts(fact.seq, fact.attempt)
