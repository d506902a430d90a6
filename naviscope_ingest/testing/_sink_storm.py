"""Sinks in trouble: batches that come again in other company, that are cut off, and restarts in between.

It is what a runtime does to a sink over a bad night, drawn by a seed. A sink that comes through has lost nothing that
it said it had, and applied nothing twice. Whatever is wrong is told with the steps that led to it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from naviscope_ingest.testing._promises import cancel_after
from naviscope_spi import CommitBatch, Entry

if TYPE_CHECKING:
    from naviscope_ingest.testing.commit_sink import SinkTrial

__all__ = ["Storm", "account"]

_MESSAGES = 60
_TOLD = 8
_CHECKPOINTS = 8


def account(seen: Sequence[int], sure: Sequence[int], possible: Sequence[int] = ()) -> str | None:
    """Say in words what is lost, doubled or invented among visible ops; None if nothing is.

    Args:
        seen: the numbers of the visible ops.
        sure: those that have to be visible, as often as they are here.
        possible: those that may be, as often as they are here.
    """
    counts, least, most = Counter(seen), Counter(sure), Counter(sure) | Counter(possible)
    told = []
    lost = [number for number in least if counts[number] < least[number]]
    doubled = [f"{each} ({counts[each]} times)" for each in sorted(counts) if counts[each] > most[each] > 0]
    invented = [number for number in sorted(counts) if number not in most]
    for word, what in (("lost", lost), ("applied more than once", doubled), ("nobody committed", invented)):
        if what:
            more = f" and {len(what) - _TOLD} more" if len(what) > _TOLD else ""
            told.append(f"{word}: op {', '.join(map(str, what[:_TOLD]))}{more}")
    return "; ".join(told) or None


@define
class Storm:
    """What is done to a sink, and what it has said.

    Attributes:
        trial: the sink and what is known about it.
        seed: draws the steps.
        steps: what was done, in words.
    """

    trial: SinkTrial
    seed: int
    steps: list[str] = field(factory=list)
    _rng: random.Random = field(init=False)
    _tried: dict[str, int] = field(factory=dict, init=False)
    _known: dict[str, int] = field(factory=dict, init=False)

    async def rage(self, rounds: int) -> None:
        """Commit batches in many ways, then everything once more, in another order."""
        self._rng = random.Random(self.seed)
        todo = {f"m{number}": number for number in range(_MESSAGES)}
        for _ in range(rounds):
            await self._step(todo)
            await self._look()
        rest = list(todo)
        self._rng.shuffle(rest)
        for at in range(0, len(rest), 7):
            await self._commit(rest[at : at + 7], todo)
        await self._look()

    async def _step(self, todo: dict[str, int]) -> None:
        draw = self._rng.random()
        if draw < 0.15 and self.trial.reopens:
            self.steps.append("the sink was closed and opened again")
            await self.trial.reopen()
            return
        names = self._choose(todo)
        if draw < 0.45:
            await self._cut_off(names, todo)
        else:
            await self._commit(names, todo)

    def _choose(self, todo: dict[str, int]) -> list[str]:
        """Choose messages: new ones, ones that were cut off, and ones that are through."""
        names = self._rng.sample(sorted(todo), self._rng.randint(1, 6))
        again = self._rng.sample(sorted(self._tried), min(len(self._tried), self._rng.randint(0, 3)))
        return list(dict.fromkeys([*names, *again]))

    def _entries(self, names: Sequence[str], todo: dict[str, int]) -> Sequence[Entry[Any]]:
        self._tried.update((name, todo[name]) for name in names)
        return [self.trial.entry(name, todo[name]) for name in names]

    async def _commit(self, names: Sequence[str], todo: dict[str, int]) -> None:
        repeated = [name for name in names if name in self._known]
        self.steps.append(f"committed {_shown(names)}" + (f"; known before: {_shown(repeated)}" if repeated else ""))
        await self.trial.commit(*self._entries(names, todo))
        self._known.update((name, todo[name]) for name in names)

    async def _cut_off(self, names: Sequence[str], todo: dict[str, int]) -> None:
        checkpoints = self._rng.randrange(_CHECKPOINTS)
        self.steps.append(f"cancelled the commit of {_shown(names)} at its checkpoint {checkpoints}")
        entries = self._entries(names, todo)

        async def call() -> None:
            await self.trial.subject.commit(CommitBatch(entries))
            self._known.update((name, todo[name]) for name in names)
            self.steps[-1] += ", but it was through before"

        await cancel_after(checkpoints, call)
        if self.trial.reopens and self._rng.random() < 0.5:
            self.steps.append("the sink was killed: closed without waiting for anything, and opened again")
            with trio.CancelScope() as scope:
                scope.cancel()
                await self.trial.close()
            await self.trial.reopen()

    async def _look(self) -> None:
        seen = list(await self.trial.visible(self.trial.subject))
        wrong = account(seen, list(self._known.values()), list(self._tried.values()))
        if wrong is not None:
            steps = "".join(f"\n    {number}. {step}" for number, step in list(enumerate(self.steps, 1))[-_TOLD:])
            self.trial.fail(
                f"{wrong}\n  The last steps (message m7 has op 7):{steps}\n  Again: "
                f"check_commit_sink(..., only=[{self.trial.name!r}], seed={self.seed})",
                "every op that a finished commit brought is visible once, and none twice",
            )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names)
