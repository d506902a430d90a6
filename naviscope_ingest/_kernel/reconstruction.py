"""What a runtime does when it starts: it learns what the store has kept, and takes over from those who were before."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import trio

from naviscope_ingest._core import Core, Decided, Fold
from naviscope_ingest._kernel.epochs import EpochBook
from naviscope_ingest._kernel.judge import Judge
from naviscope_ingest._kernel.workers import Workers
from naviscope_ingest.errors import RuntimeFailed
from naviscope_ingest.letters import reason_of
from naviscope_ingest.reports import Recovery
from naviscope_spi import (
    Accepted,
    CaughtUp,
    Clock,
    DeferredStore,
    Ended,
    EpochMarked,
    EpochOpened,
    Fact,
    FactBody,
    Leased,
    Prepared,
    RecoveryBegun,
    Seq,
    SessionEnded,
    Waits,
)

__all__ = ["Reconstruction"]

_log = logging.getLogger("naviscope_ingest")

_TELL_EVERY = 2.0
"""How often a recovery says how far it is, in seconds."""


class Reconstruction:
    """Builds up from a store what core, book and workers have to know.

    Args:
        store: what is read.
        core: is told everything.
        book: is told of epochs, and of what failed in them.
        clock: where time comes from.
        timeout: how long it may take, in seconds.
        recalls: whether outcomes that were recorded are committed again.
    """

    def __init__(
        self, *, store: DeferredStore[Any], core: Core, book: EpochBook, clock: Clock, timeout: float, recalls: bool
    ) -> None:
        self._store = store
        self._core = core
        self._book = book
        self._clock = clock
        self._timeout = timeout
        self._recalls = recalls
        self._fold = Fold(core)
        self._started: float | None = None
        self._summary: Recovery | None = None
        self._messages = 0
        self._expected: int | None = None
        # What sessions had leased, by their tokens.
        self._held: dict[int, list[Seq]] = {}
        # Messages whose outcomes are recorded, and messages in retry.
        self._recorded: dict[Seq, None] = {}
        self._delayed: list[Seq] = []

    @property
    def recovery(self) -> Recovery:
        """What was found, so far."""
        return self._summary or self._summarise(is_over=False)

    async def read(self) -> None:
        """Learn everything that the store has kept.

        Raises:
            RuntimeFailed: it takes too long.
        """
        self._started = told = self._clock.monotonic()
        facts = self._store.facts(None)
        while True:
            batch = await self._next(facts)
            if batch is None:
                await facts.aclose()  # type: ignore[attr-defined]  # as below
                raise RuntimeFailed(
                    f"the start took longer than {self._timeout:g} seconds, after which {self._messages} messages were "
                    "read: RuntimeConfig(start_timeout=...) allows for more"
                )
            self._core.tell_time(self._clock.wall())
            for fact in batch:
                self._take(fact.body)
            if isinstance(batch[-1].body, CaughtUp):
                break
            now = self._clock.monotonic()
            if now - told >= _TELL_EVERY:
                told = now
                self._tell_progress()
        await facts.aclose()  # type: ignore[attr-defined]  # every async iterator of a store can be closed
        self._summary = self._summarise(is_over=True)

    async def _next(self, facts: AsyncIterator[Sequence[Fact]]) -> Sequence[Fact] | None:
        """Return the next facts; None if they do not come in time."""
        assert self._started is not None
        left = self._started + self._timeout - self._clock.monotonic()
        if left > 0:
            with trio.move_on_after(left):
                return await anext(facts)
        return None

    async def take_over(self, judge: Judge, workers: Workers) -> None:
        """Go on where the sessions stopped that were before."""
        for token in self._held:
            self._fold(SessionEnded(token, clean=False))
        if not self._recalls:
            self._core.disregard_records(list(self._recorded))
        self._core.advance(self._clock.wall())
        judge.remember(seq for seq in self._delayed if self._core.is_unfinished(seq))
        for seqs in self._suspects():
            workers.suspect(seqs)
        self._tell_summary()
        await workers.recall(list(self._recorded))
        self._held.clear()
        self._recorded.clear()
        self._delayed.clear()

    def _take(self, fact: FactBody) -> None:
        self._fold(fact)
        if isinstance(fact, Accepted):
            self._messages += len(fact.seqs)
        elif isinstance(fact, Leased):
            self._held.setdefault(fact.token, []).extend(fact.seqs)
        elif isinstance(fact, Prepared):
            self._recorded.update(dict.fromkeys(fact.seqs))
        elif isinstance(fact, RecoveryBegun):
            self._expected = fact.amount
        elif isinstance(fact, EpochOpened | EpochMarked):
            self._book.open(fact.record)
        elif isinstance(fact, Waits):
            if fact.not_before is not None:
                self._delayed.append(fact.seq)
        elif isinstance(fact, Ended):
            self._note_end(fact)

    def _note_end(self, fact: Ended) -> None:
        """Put into the book what the core does not keep."""
        node = self._core.node(fact.seq)
        if node is not None and node.end is not None:
            error = reason_of(fact.letter)
            node.more().reason = error
            self._book.note(Decided(fact.seq, fact.end, frozenset(fact.causes), frozenset(), error))

    def _summarise(self, *, is_over: bool) -> Recovery:
        if self._started is None:
            return Recovery()
        left = [epoch for epoch in self._core.epochs.values() if not epoch.is_completed]
        return Recovery(
            epochs=len(left),
            unfinished=sum(epoch.unfinished for epoch in left),
            recorded=len(self._recorded) if self._recalls else 0,
            suspects=sum(map(len, self._suspects())),
            messages=self._messages,
            expected=self._expected,
            seconds=self._clock.monotonic() - self._started,
            is_over=is_over,
        )

    def _suspects(self) -> list[list[Seq]]:
        """Return what was running when sessions ended. A message whose outcome is recorded was not, any more."""
        settled = self._recorded if self._recalls else {}
        return [[seq for seq in seqs if seq not in settled] for seqs in self._held.values()]

    def _tell_progress(self) -> None:
        """Say how far a long recovery is."""
        found = self.recovery
        of = "" if found.expected is None else f" of {found.expected:,}"
        _log.info(
            "recovering: %s%s messages read in %.0f s",
            f"{found.messages:,}",
            of,
            found.seconds,
            extra={"messages": found.messages, "expected": found.expected, "seconds": found.seconds},
        )

    def _tell_summary(self) -> None:
        """Say what was found, if that is anything."""
        seen = self.recovery
        if seen.unfinished or seen.epochs:
            _log.info(
                "recovered %d unfinished messages of %d epochs in %.1f s; the outcomes of %d were recorded, and %d "
                "were running when the last process ended",
                seen.unfinished,
                seen.epochs,
                seen.seconds,
                seen.recorded,
                seen.suspects,
                extra={
                    "unfinished": seen.unfinished,
                    "epochs": seen.epochs,
                    "recorded": seen.recorded,
                    "suspects": seen.suspects,
                    "seconds": seen.seconds,
                },
            )
