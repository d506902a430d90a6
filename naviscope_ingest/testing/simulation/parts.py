"""Executor, sink and intake of a simulated process: the user's own, with trouble around them and somebody who looks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import trio

from naviscope_ingest.intake import Epoch, IntakeHandle
from naviscope_ingest.reports import EpochReport, SubmitReceipt
from naviscope_ingest.testing.simulation.faults import FaultName, Mix
from naviscope_ingest.testing.simulation.history import History, Violation
from naviscope_ingest.testing.simulation.program import World
from naviscope_spi import (
    CommitBatch,
    Delivery,
    Entry,
    EpochSealed,
    Executed,
    Message,
    SystemFailure,
    Transient,
    task_key,
)

__all__ = ["Life", "SimulatedExecutor", "SimulatedIntake", "SimulatedSink"]

T = TypeVar("T")

_POWERS_OF_EXECUTORS = ("check_messages",)
_POWERS_OF_SINKS = ("encode_ops", "decode_ops", "commit_epoch", "stable_batches", "colocation")
_HANGS = 900.0


class Life(Protocol):
    """The process that the parts belong to."""

    world: World
    history: History
    mix: Mix
    is_over: bool

    def hits(self, rng: random.Random, fault: FaultName) -> bool:
        """Tell whether a fault happens here and now."""
        ...

    def violate(self, error: Violation) -> None:
        """Note what is wrong, and end."""
        ...

    def records_outcomes(self, kind: str) -> bool:
        """Tell whether outcomes of a kind are recorded before a sink sees them."""
        ...

    def inside(self, part: str) -> Any:  # noqa: ANN401 - a context manager
        """Enter code of the user, in a scope that ends with the process."""
        ...


def _gone() -> SystemFailure:
    return SystemFailure("the simulated process is dead")


@contextmanager
def _looking(life: Life) -> Iterator[None]:
    """Report a violation to the process it was found in."""
    try:
        yield
    except Violation as error:
        life.violate(error)
        raise _gone() from None


class SimulatedExecutor:
    """Runs the user's executor."""

    def __init__(self, executor: Any, life: Life) -> None:  # noqa: ANN401 - one of two contracts
        self._executor = executor
        self._life = life
        self._rng = life.world.random("executor")
        # Who runs in each lane.
        self._lanes: dict[str, int] = {}
        if hasattr(executor, "execute_batch"):
            self.execute_batch = self._execute_batch
        if hasattr(executor, "execute"):
            self.execute = self._execute
        for power in _POWERS_OF_EXECUTORS:
            if hasattr(executor, power):
                setattr(self, power, getattr(executor, power))

    async def _execute(self, message: Delivery[Any]) -> Any:  # noqa: ANN401 - an outcome, or what the user returns
        (outcome,) = await self._run([message], lambda: _listed(self._executor.execute(message)))
        return outcome

    async def _execute_batch(self, messages: Sequence[Delivery[Any]]) -> Any:  # noqa: ANN401 - outcomes
        return await self._run(messages, lambda: self._executor.execute_batch(messages))

    async def _run(self, messages: Sequence[Delivery[Any]], work: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        life, rng = self._life, self._rng
        if life.is_over:
            raise _gone()
        with _looking(life), self._in_lanes(messages):
            for message in messages:
                life.history.see_to_start(message)
            life.world.note(f"executes {' '.join(message.id for message in messages)}")
            with life.inside("executor"):
                if life.hits(rng, "slow executor"):
                    await trio.sleep(rng.choice((0.01, 1.0, 30.0)))
                if life.hits(rng, "hanging executor"):
                    await trio.sleep(_HANGS)
                fails = rng.choice(("before", "after")) if life.hits(rng, "failing executor") else None
                if fails == "before":
                    raise Transient("simulated: it failed before it did anything", retry_after=0.5)
                outcomes = await work()
                if fails == "after":
                    raise Transient("simulated: it failed after it had done its work", retry_after=0.5)
            if life.is_over:
                raise _gone()
            self._note_ops(messages, outcomes)
            return outcomes

    @contextmanager
    def _in_lanes(self, messages: Sequence[Delivery[Any]]) -> Iterator[None]:
        history = self._life.history
        entered = []
        for message in messages:
            key = message.message.key
            place = history.place_of(message.epoch.number, message.id)
            if key is None or place is None:
                continue
            ahead = self._lanes.get(key)
            # Whoever was cancelled has left its lane, although its task has not noticed yet.
            if ahead is not None and ahead not in history.ends and ahead in history.messages:
                raise Violation(f"{message.id!r} and {history.messages[ahead].id!r} run at once in lane {key!r}")
            self._lanes[key] = place
            entered.append((key, place))
        try:
            yield
        finally:
            for key, place in entered:
                if self._lanes.get(key) == place:
                    del self._lanes[key]

    def _note_ops(self, messages: Sequence[Delivery[Any]], outcomes: Any) -> None:  # noqa: ANN401
        for message, outcome in zip(messages, outcomes, strict=False):
            if isinstance(outcome, Executed) and outcome.ops:
                place = self._life.history.place_of(message.epoch.number, message.id)
                if place is not None:
                    self._life.history.effects[place] = message.task_key


async def _listed(call: Awaitable[Any]) -> list[Any]:
    return [await call]


class SimulatedSink:
    """Commits to the user's sink."""

    def __init__(self, sink: Any, life: Life, store_id: str) -> None:  # noqa: ANN401 - a sink, and its powers
        self._sink = sink
        self._life = life
        self._store_id = store_id
        self._rng = life.world.random("sink")
        for power in _POWERS_OF_SINKS:
            if hasattr(sink, power):
                setattr(self, power, getattr(sink, power))
        if hasattr(sink, "apply"):
            self.apply = self._apply

    async def commit(self, batch: CommitBatch[Any]) -> None:
        """Commit a batch, with trouble before and after."""
        life, rng = self._life, self._rng
        with _looking(life), life.inside("sink"):
            self._look_at(batch.entries)
            if life.hits(rng, "slow sink"):
                await trio.sleep(rng.choice((0.01, 1.0, 30.0)))
            if life.hits(rng, "hanging sink"):
                await trio.sleep(_HANGS)
            if life.hits(rng, "failing sink"):
                raise Transient("simulated: the sink failed and did nothing")
            answer = await self._sink.commit(batch)
            self._note_done(batch.entries)
            if life.hits(rng, "deceiving sink"):
                raise Transient("simulated: the sink committed, and its answer was lost")
        if life.is_over:
            raise _gone()
        return answer  # type: ignore[no-any-return]  # anything but None is an error, which the runtime reports

    def _apply(self, transaction: Any, batch: CommitBatch[Any]) -> None:  # noqa: ANN401 - the driver's own type
        life, rng = self._life, self._rng
        with _looking(life):
            self._look_at(batch.entries)
            if life.hits(rng, "failing sink"):
                raise Transient("simulated: the sink failed and did nothing")
            self._sink.apply(transaction, batch)
            if life.hits(rng, "deceiving sink"):
                raise Transient("simulated: the sink wrote, and then failed")
            life.history.inside.update(entry.task_key for entry in batch.entries)

    def _look_at(self, entries: Sequence[Entry[Any]]) -> None:
        if self._life.is_over:
            raise _gone()
        history = self._life.history
        together = {history.place_of(entry.epoch.number, entry.message_id) for entry in entries}
        self._life.world.note(f"sink gets {' '.join(entry.message_id for entry in entries)}")
        for entry in entries:
            place = history.place_of(entry.epoch.number, entry.message_id)
            if place is None:
                raise Violation(f"{entry.message_id!r} comes to the sink, and the store does not have it")
            if place in history.ends:
                raise Violation(f"{entry.message_id!r} comes to the sink, and has ended {history.ends[place]}")
            if entry.task_key != task_key(self._store_id, entry.epoch.number, entry.message_id):
                raise Violation(f"{entry.message_id!r} comes to the sink with task key {entry.task_key!r}")
            known = history.messages[place]
            for parent in () if known.message is None else history.parents(place, known):
                if parent in together:
                    name = history.messages[parent].id
                    raise Violation(f"{entry.message_id!r} is in one batch with {name!r}, which it depends on")
            self._see_to_answer(entry)

    def _see_to_answer(self, entry: Entry[Any]) -> None:
        """See that what was recorded comes again as it was."""
        encode = getattr(self._sink, "encode_ops", None)
        if encode is None or hasattr(self._sink, "apply") or not self._life.records_outcomes(entry.kind):
            return
        run = self._life.history.run_of(entry.epoch.number, entry.message_id)
        ops = encode(entry.ops)
        before = self._life.history.answers.setdefault((entry.task_key, run), ops)
        if before != ops:
            raise Violation(f"{entry.message_id!r} comes to the sink again with another answer than before")

    def _note_done(self, entries: Sequence[Entry[Any]]) -> None:
        self._life.history.delivered.update(entry.task_key for entry in entries)


class SimulatedIntake(IntakeHandle[Any]):
    """Takes messages in, and remembers what it promised."""

    def __init__(self, intake: IntakeHandle[Any], life: Life) -> None:
        super().__init__(intake.runtime, intake._kernel)
        self._life = life
        self._rng = life.world.random("intake")

    async def new_epoch(self, name: str | None = None, **options: Any) -> Epoch[Any]:  # noqa: ANN401
        """Open an epoch, and expect it to stay."""
        epoch = await super().new_epoch(name, **options)
        if not self._life.is_over:
            self._life.history.opened[epoch.number] = epoch.name
        return epoch

    async def _submit(
        self,
        epoch: Epoch[Any] | str,
        messages: Any,  # noqa: ANN401 - whatever can be submitted
        strict: bool,
        unique_for: float | None,
        *,
        may_wait: bool,
    ) -> SubmitReceipt:
        """Submit, and expect the messages to stay."""
        page = self._page(epoch)
        sent: list[Message[Any]] = []
        receipt = await super()._submit(epoch, _noting(messages, sent), strict, unique_for, may_wait=may_wait)
        if receipt.dropped or unique_for is not None or self._life.is_over:
            return receipt
        acknowledged = self._life.history.acknowledged
        acknowledged.update({(page.key.number, message.id): None for message in sent})
        self._life.world.note(f"submitted {' '.join(message.id for message in sent)}: {receipt.accepted} new")
        if sent and not strict and self._life.hits(self._rng, "resend"):
            again = await super()._submit(epoch, sent, False, None, may_wait=may_wait)
            if again.accepted:
                self._life.violate(
                    Violation(f"{again.accepted} messages were accepted again in epoch {page.key.name!r}")
                )
        return receipt

    async def seal_epoch(self, epoch: Epoch[Any] | str) -> None:
        """Seal an epoch, and expect it to stay sealed."""
        await super().seal_epoch(epoch)
        if self._life.is_over:
            return
        key = self._page(epoch).key
        self._life.history.sealed[key.number] = key.name
        if self._life.hits(self._rng, "late submit"):
            try:
                await super()._submit(epoch, [Message("too-late", None)], False, None, may_wait=True)
            except EpochSealed:
                return
            except Exception as error:
                self._life.world.note(f"a late submit raised {error!r:.80}")
                return
            self._life.violate(Violation(f"a message was accepted into epoch {key.name!r}, which was sealed"))

    async def _wait(self, page: Any, until: Any) -> EpochReport:  # noqa: ANN401 - as the handle has it
        report = await super()._wait(page, until)
        if report.is_completed and not self._life.is_over:
            self._life.history.reports[report.number] = report
        return report


def _noting(messages: Any, sent: list[Message[Any]]) -> Any:  # noqa: ANN401 - whatever can be submitted
    """Note what is submitted. What is no message is left to the runtime to refuse."""
    if isinstance(messages, Message):
        sent.append(messages)
        return messages
    if isinstance(messages, list | tuple):
        sent += [each for each in messages if isinstance(each, Message)]
        return messages
    if hasattr(messages, "__aiter__"):
        return _noting_later(messages, sent)
    if isinstance(messages, Iterable) and not isinstance(messages, str | bytes):
        return _noting_now(messages, sent)
    return messages


def _noting_now(messages: Iterable[Any], sent: list[Message[Any]]) -> Iterator[Any]:
    for each in messages:
        sent.append(each)
        yield each


async def _noting_later(messages: AsyncIterator[Any], sent: list[Message[Any]]) -> AsyncIterator[Any]:
    async for each in messages:
        sent.append(each)
        yield each
