"""The check of `CommitSink`.

The check numbers its ops. The caller says how the op of a number looks and which numbers are visible, so that the check
needs to know neither tables nor files.

It answers one question above all: is this sink exactly-once? A sink that passes applies each op once, whatever comes
again, in whatever company and order, after whatever cut it off; also after it was opened anew, if it can be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import trio
from attrs import define

from naviscope_ingest.testing._promises import Promise, Trial, cancel_after, select, try_promise
from naviscope_ingest.testing._sink_storm import Storm, account
from naviscope_spi import CommitBatch, CommitSink, EncodesOps, Entry, EpochKey, SinkRejected, task_key

__all__ = ["SINK_PROMISES", "check_commit_sink"]

SinkT = TypeVar("SinkT", bound=CommitSink[Any])

_EPOCH = EpochKey(1, "checked")
# A commit is cancelled after its first, second, … checkpoint; most are through after a few.
_CANCELLATIONS = 20


async def check_commit_sink(
    open_sink: Callable[[str], AbstractAsyncContextManager[SinkT]],
    *,
    make_op: Callable[[int], object],
    visible: Callable[[SinkT], Awaitable[Sequence[int]]],
    poison: Callable[[], object] | None = None,
    is_ordered: bool = True,
    reopens: bool = True,
    seed: int = 0,
    rounds: int = 100,
    limit: float = 60.0,
    only: Iterable[str] | None = None,
) -> None:
    """Hold a sink to its contract. Returns when every promise was kept.

    Args:
        open_sink: opens a sink; each new name is to give a new, empty one.
        make_op: makes the op of a number; ops of different numbers are told apart by `visible`.
        visible: returns the numbers of the ops that can be seen now, each as often as it was applied.
        poison: makes an op that the sink refuses; None if there is no such op.
        is_ordered: whether `visible` shows the order in which ops were applied.
        reopens: whether a name that is opened again shows what was committed under it. False for a sink in memory, of
            which nothing is left; then nobody can say what a restart does to it.
        seed: draws what happens in the storm of repeats, cancellations and restarts.
        rounds: how long that lasts.
        limit: seconds that one promise may take.
        only: names of promises; None tries them all.

    Raises:
        ContractViolation: a promise was broken; it is named, with what was expected and what was seen.
    """
    for promise in select(SINK_PROMISES, only):
        trial = SinkTrial(
            str(promise),
            promise.name,
            open_sink,
            make_op=make_op,
            visible=visible,
            poison=poison,
            is_ordered=is_ordered,
            reopens=reopens,
            seed=seed,
            rounds=rounds,
        )
        await try_promise(promise, trial, limit)


@define(eq=False, kw_only=True)
class SinkTrial(Trial[Any]):
    """One promise and the sink that is to keep it."""

    make_op: Callable[[int], object]
    visible: Callable[[Any], Awaitable[Sequence[int]]]
    poison: Callable[[], object] | None
    is_ordered: bool
    reopens: bool
    seed: int
    rounds: int

    def entry(self, name: str, *numbers: int) -> Entry[Any]:
        """Make the entry of one message with the ops of these numbers."""
        return _entry(name, [self.make_op(number) for number in numbers])

    async def commit(self, *entries: Entry[Any]) -> None:
        """Commit a batch and expect None."""
        answer = await self.subject.commit(CommitBatch(entries))
        self.equal(answer, None, "the answer of commit")

    async def see(self, *numbers: int, about: str = "") -> None:
        """Expect these ops to be visible, and no others."""
        seen = list(await self.visible(self.subject))
        wrong = account(seen, numbers)
        if wrong is not None:
            self.fail(wrong, f"{len(numbers)} ops visible, each once", about)
        if self.is_ordered:
            self.equal(seen, list(numbers), about)
        else:
            self.equal(sorted(seen), sorted(numbers), about)


def _entry(name: str, ops: Sequence[Any]) -> Entry[Any]:
    return Entry(task_key("checked", _EPOCH.number, name), _EPOCH, name, "message", ops)


async def a_commit_makes_ops_visible(trial: SinkTrial) -> None:
    """When `commit` has returned None, every op of the batch is visible."""
    await trial.see(about="a new sink")
    await trial.commit(trial.entry("a", 1), trial.entry("b", 2))
    await trial.see(1, 2)
    await trial.commit(trial.entry("c", 3))
    await trial.see(1, 2, 3)


async def ops_of_an_entry_keep_their_order(trial: SinkTrial) -> None:
    """The ops of one entry are applied in order."""
    await trial.commit(trial.entry("a", 5, 3, 4, 1, 2))
    await trial.see(5, 3, 4, 1, 2)


async def nothing_to_do_is_fine(trial: SinkTrial) -> None:
    """A batch without entries, and an entry without ops, change nothing."""
    await trial.commit()
    await trial.commit(trial.entry("a"))
    await trial.see()


async def a_large_batch_is_applied_whole(trial: SinkTrial) -> None:
    """A batch may have hundreds of entries."""
    await trial.commit(*(trial.entry(f"m{number}", number) for number in range(500)))
    await trial.see(*range(500))


async def a_repeated_batch_changes_nothing(trial: SinkTrial) -> None:
    """Applying a batch again changes nothing."""
    batch = [trial.entry("a", 1, 2), trial.entry("b", 3)]
    for _ in range(3):
        await trial.commit(*batch)
        await trial.see(1, 2, 3)


async def a_repeated_entry_in_other_company_changes_nothing(trial: SinkTrial) -> None:
    """An entry that was applied before changes nothing among entries that are new."""
    await trial.commit(trial.entry("a", 1), trial.entry("b", 2))
    await trial.commit(trial.entry("c", 3), trial.entry("b", 2), trial.entry("d", 4))
    await trial.see(1, 2, 3, 4)
    await trial.commit(trial.entry("d", 4), trial.entry("a", 1))
    await trial.see(1, 2, 3, 4)
    await trial.commit(trial.entry("a", 1), trial.entry("e", 5))
    await trial.see(1, 2, 3, 4, 5)


async def a_known_task_key_changes_nothing(trial: SinkTrial) -> None:
    """An entry whose task key was applied before changes nothing, also when its ops are others."""
    await trial.commit(trial.entry("a", 1))
    await trial.commit(trial.entry("a", 2, 3))
    await trial.see(1)


async def messages_are_told_apart_by_task_key(trial: SinkTrial) -> None:
    """Entries of different messages are applied each, also when their ids differ only in case or a colon."""
    names = ["a", "A", "a:1", "1:a", "a "]
    for number, name in enumerate(names):
        await trial.commit(trial.entry(name, number))
    await trial.see(*range(len(names)))


async def a_refused_batch_applies_nothing(trial: SinkTrial) -> None:
    """A batch that is refused applies nothing, and its other entries can be committed without the culprit."""
    assert trial.poison is not None
    culprit = _entry("bad", [trial.make_op(3), trial.poison()])
    batch = CommitBatch([trial.entry("a", 1), culprit, trial.entry("b", 2)])
    error = await trial.raises(Exception, lambda: trial.subject.commit(batch), "a batch with a poison op")
    if isinstance(error, SinkRejected):
        trial.equal(set(error.rejected), {culprit.task_key}, "the rejected task keys")
    await trial.see(about="after the refusal")
    await trial.commit(trial.entry("a", 1), trial.entry("b", 2))
    await trial.see(1, 2)


async def a_cancelled_commit_is_whole_or_not_at_all(trial: SinkTrial) -> None:
    """Cancelled at any checkpoint, a batch is applied whole or not at all, and a repeat heals it."""
    applied: list[int] = []
    for checkpoints in range(_CANCELLATIONS):
        numbers = [checkpoints * 10 + 1, checkpoints * 10 + 2, checkpoints * 10 + 3]
        batch = [trial.entry(f"m{checkpoints}.{number}", number) for number in numbers]
        await cancel_after(checkpoints, partial(trial.commit, *batch))
        seen = list(await trial.visible(trial.subject))
        part = [number for number in seen if number in numbers]
        trial.true(sorted(part) in ([], numbers), f"{numbers} or none of them", part)
        await trial.commit(*batch)
        applied += numbers
        await trial.see(*applied, about=f"repeated after a cancellation at checkpoint {checkpoints}")


async def a_sink_that_is_opened_again_knows_what_it_applied(trial: SinkTrial) -> None:
    """After it was closed and opened again, a sink has what it had, and applies none of it twice."""
    await trial.commit(trial.entry("a", 1), trial.entry("b", 2))
    for number in range(3, 6):
        await trial.reopen()
        await trial.see(*range(1, number), about="opened again")
        await trial.commit(trial.entry("b", 2), trial.entry(f"m{number}", number), trial.entry("a", 1))
        await trial.see(*range(1, number + 1), about="repeated after it was opened again")


async def a_killed_commit_is_healed_by_a_repeat(trial: SinkTrial) -> None:
    """Killed at any checkpoint and opened again, a sink has the batch whole or not at all, and a repeat heals it."""
    applied: list[int] = []
    for checkpoints in range(_CANCELLATIONS):
        numbers = [checkpoints * 10 + 1, checkpoints * 10 + 2]
        batch = [trial.entry(f"m{checkpoints}.{number}", number) for number in numbers]
        await cancel_after(checkpoints, partial(trial.commit, *batch))
        with trio.CancelScope() as scope:
            scope.cancel()
            await trial.close()
        await trial.reopen()
        part = [number for number in await trial.visible(trial.subject) if number in numbers]
        trial.true(sorted(part) in ([], numbers), f"{numbers} or none of them", part)
        await trial.commit(*reversed(batch))
        applied += part or reversed(numbers)
        await trial.see(*applied, about=f"killed at checkpoint {checkpoints}, opened and repeated")


async def a_storm_loses_nothing_and_doubles_nothing(trial: SinkTrial) -> None:
    """Through repeats, cancellations and restarts in any order, nothing is lost and nothing is applied twice."""
    await Storm(trial, trial.seed).rage(trial.rounds)


async def encoded_ops_are_the_same_ops(trial: SinkTrial) -> None:
    """Ops that were encoded are, decoded by a sink that was opened later, applied like those that were not."""
    numbers = [[5, 3, 4], [1], list(range(10, 200))]
    data = [trial.subject.encode_ops([trial.make_op(number) for number in part]) for part in numbers]
    for each in data:
        trial.true(isinstance(each, bytes), "bytes", each)
    await trial.reopen()
    entries = [_entry(f"m{index}", trial.subject.decode_ops(each)) for index, each in enumerate(data)]
    await trial.commit(*entries)
    await trial.see(*(number for part in numbers for number in part))
    again = [trial.subject.encode_ops(entry.ops) for entry in entries]
    await trial.commit(*(_entry(f"n{index}", trial.subject.decode_ops(each)) for index, each in enumerate(again)))
    await trial.see(*(number for part in numbers * 2 for number in part), about="encoded a second time")


def _has_poison(trial: SinkTrial) -> bool:
    return trial.poison is not None


def _reopens(trial: SinkTrial) -> bool:
    return trial.reopens


def _encodes_ops(trial: SinkTrial) -> bool:
    return isinstance(trial.subject, EncodesOps)


SINK_PROMISES: Sequence[Promise[SinkTrial]] = (
    Promise(a_commit_makes_ops_visible),
    Promise(ops_of_an_entry_keep_their_order),
    Promise(nothing_to_do_is_fine),
    Promise(a_large_batch_is_applied_whole),
    Promise(a_repeated_batch_changes_nothing),
    Promise(a_repeated_entry_in_other_company_changes_nothing),
    Promise(a_known_task_key_changes_nothing),
    Promise(messages_are_told_apart_by_task_key),
    Promise(a_refused_batch_applies_nothing, when=_has_poison),
    Promise(a_cancelled_commit_is_whole_or_not_at_all),
    Promise(a_sink_that_is_opened_again_knows_what_it_applied, when=_reopens),
    Promise(a_killed_commit_is_healed_by_a_repeat, when=_reopens),
    Promise(a_storm_loses_nothing_and_doubles_nothing),
    Promise(encoded_ops_are_the_same_ops, when=_encodes_ops),
)
