"""The check of `Executor`, and of `SupportsBatch` for executors that take many messages at once.

The caller brings messages that the executor is made for; the check knows nothing of what the work is. It looks at what
any work must keep: that it answers, with something a runtime understands, as often as it is asked, also after it was
cancelled in the middle, and that it keeps its hands off what it was given.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import trio
from attrs import define, field, frozen

from naviscope_ingest.errors import ContractViolation
from naviscope_ingest.failures import Classifier
from naviscope_ingest.testing._promises import Promise, Trial, Watched, cancel_after, select, try_promise
from naviscope_ingest.testing.deliveries import make_delivery
from naviscope_spi import (
    ChecksMessages,
    Deferred,
    Delivery,
    Executed,
    Executor,
    Fatal,
    Message,
    Resource,
    Skipped,
    SupportsBatch,
    SystemFailure,
)

__all__ = ["EXECUTOR_PROMISES", "check_executor"]

ExecutorT = TypeVar("ExecutorT", bound="Executor[Any, Any] | SupportsBatch[Any, Any]")

# A call is cancelled at its start, and at its first, second, … checkpoint; most have answered after a few.
_CANCELLATIONS: Final = 20
_MOST_DERIVED: Final = 10_000


async def check_executor(
    open_executor: Callable[[str], AbstractAsyncContextManager[ExecutorT]],
    *,
    messages: Sequence[Message[Any]],
    is_deterministic: bool = False,
    patience: float = 1.0,
    limit: float = 60.0,
    only: Iterable[str] | None = None,
) -> None:
    """Hold an executor to its contract. Returns when every promise was kept.

    Args:
        open_executor: opens an executor.
        messages: messages it is made for, of every kind; work on them may fail, but in a way that a runtime
            understands.
        is_deterministic: whether it answers the same for the same message.
        patience: for how many seconds it may keep all other tasks from running.
        limit: seconds that one promise may take.
        only: names of promises; None tries them all.

    Raises:
        ContractViolation: a promise was broken; it is named, with what was expected and what was seen.
        ValueError: there are no messages.
    """
    if not messages:
        raise ValueError("check_executor(messages=[]): give messages that the executor is made for, one of each kind")
    for promise in select(EXECUTOR_PROMISES, only):
        trial = ExecutorTrial(
            str(promise),
            promise.name,
            open_executor,
            messages=messages,
            is_deterministic=is_deterministic,
            patience=patience,
        )
        await try_promise(promise, trial, limit)


@frozen
class _Answer:
    """What came of a message.

    Attributes:
        what: the class of the outcome, or of the error.
        parts: what it holds, in a form that can be compared.
        derived: the messages among that.
    """

    what: str
    parts: Mapping[str, Any] = field(factory=dict)
    derived: Sequence[Message[Any]] = field(default=(), eq=False)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {part!r:.200}" for name, part in self.parts.items() if part not in ([], None))
        return f"{self.what} {parts}".rstrip()

    def unlike(self, other: _Answer) -> _Answer:
        """Leave out what both have in common."""
        if self.what != other.what:
            return self
        return _Answer(self.what, {name: part for name, part in self.parts.items() if part != other.parts.get(name)})


def _content(message: Message[Any]) -> tuple[object, ...]:
    return message.id, message.kind, message.payload, message.key, message.priority, message.depends_on


@define(eq=False, kw_only=True)
class ExecutorTrial(Trial[Any]):
    """One promise and the executor that is to keep it."""

    messages: Sequence[Message[Any]]
    is_deterministic: bool
    patience: float

    @property
    def runs_batches(self) -> bool:
        """Whether it takes many messages at once; then a runtime never calls it for one."""
        return isinstance(self.subject, SupportsBatch)

    async def call(self, delivery: Delivery[Any]) -> object:
        """Call it for one message, as a runtime would; return what it answered, whatever that is."""
        if not self.runs_batches:
            answer: object = await self.subject.execute(delivery)
            return answer
        answers = await self.call_batch([delivery])
        return answers[0]

    async def call_batch(self, deliveries: Sequence[Delivery[Any]]) -> Sequence[object]:
        """Call it for many messages; expect as many answers."""
        answers: object = await self.subject.execute_batch(deliveries)
        if not isinstance(answers, Sequence) or isinstance(answers, str | bytes) or len(answers) != len(deliveries):
            self.fail(answers, f"a sequence of {len(deliveries)} outcomes, one for each message, in their order")
        return answers

    async def answer(self, message: Message[Any], *, attempt: int = 0, run: int = 0) -> _Answer:
        """Call it for one message; expect an outcome, or an error that a runtime understands."""
        try:
            outcome = await self.call(make_delivery(message, attempt=attempt, run=run))
            return self.read(message.id, outcome)
        except ContractViolation:
            raise
        except Exception as error:
            return self.understand(message.id, error)

    def understand(self, name: str, error: Exception) -> _Answer:
        """Expect an error to mean something."""
        meaning = Classifier().classify(error, 0.0)
        if isinstance(error, SystemFailure):
            self.fail(f"it raised {error!r:.200} for message {name!r}", "an answer: this would stop the runtime")
        if not meaning.is_known:
            self.fail(
                f"it raised {error!r:.200} for message {name!r}",
                "an outcome, or an error that says what it means: Transient to try again, Permanent to give up "
                "(if it is right to raise here, translate it, or leave this message out)",
            )
        return _Answer(f"raised {type(error).__name__}", {"which is": meaning.decision})

    def read(self, name: str, outcome: object) -> _Answer:
        """Expect something to be an outcome, and all its parts to be what they should."""
        if isinstance(outcome, Executed):
            return self._read_executed(name, outcome)
        if isinstance(outcome, Deferred):
            waits = list(outcome.depends_on)
            own = name in waits
            self.true(bool(waits) and not own, "Deferred names what to wait for, and not the message itself", outcome)
            return _Answer("Deferred", {"on": waits})
        if isinstance(outcome, Skipped):
            return _Answer("Skipped")
        if isinstance(outcome, Fatal):
            return _Answer("Fatal")
        return self.fail(
            f"{outcome!r:.100} for message {name!r}", "an outcome: return Executed, Deferred, Skipped or Fatal"
        )

    def _read_executed(self, name: str, outcome: Executed[Any, Any]) -> _Answer:
        about = f"message {name!r}"
        ops = outcome.ops
        self.true(
            isinstance(ops, Sequence) and not isinstance(ops, str | bytes),
            f"{about}: ops is a sequence of ops, also for a single one: ops=[op]",
            f"{ops!r:.100}",
        )
        derived: list[Message[Any]] = []
        for each in outcome.derived:
            self.true(isinstance(each, Message), f"{about}: derived holds messages", f"{each!r:.100}")
            derived.append(each)
            if len(derived) >= _MOST_DERIVED:
                break
        ready = list(outcome.ready)
        for provided in ready:
            self.true(isinstance(provided, Resource), f"{about}: ready holds resources", f"{provided!r:.100}")
        parts = {
            "ops": list(ops),
            "derived": [_content(each) for each in derived],
            "ready": ready,
            "value": outcome.value,
        }
        return _Answer("Executed", parts, derived)

    def same(self, seen: _Answer, before: _Answer, about: str) -> None:
        """Expect two answers for one message to be alike; the same, if the executor says that it is deterministic."""
        if self.is_deterministic and seen != before:
            self.fail(
                str(seen.unlike(before)), f"{before.unlike(seen)}, the same as before (is_deterministic=True)", about
            )


async def it_answers_each_message(trial: ExecutorTrial) -> None:
    """Each message is answered with a well-formed outcome, or fails with an error that means something."""
    for message in trial.messages:
        await trial.answer(message)


async def a_batch_has_an_answer_for_each_message(trial: ExecutorTrial) -> None:
    """A batch of any size is answered with as many outcomes, in the order of its messages."""
    for kind in dict.fromkeys(message.kind for message in trial.messages):
        own = [message for message in trial.messages if message.kind == kind]
        single = {message.id: await trial.answer(message) for message in own}
        raised = [name for name, answer in single.items() if answer.what.startswith("raised")]
        # Never two of one key.
        by_key = {message.key or f" {message.id}": message for message in own if message.id not in raised}
        good = list(by_key.values())
        for batch in (good[:1], good[:2], good, good[::-1]):
            if not batch:
                continue
            answers = await trial.call_batch([make_delivery(message) for message in batch])
            for message, outcome in zip(batch, answers, strict=True):
                trial.same(trial.read(message.id, outcome), single[message.id], f"message {message.id!r} in a batch")


async def a_message_may_come_again(trial: ExecutorTrial) -> None:
    """After a crash, a retry or a replay the same message comes again, and is answered again."""
    for message in trial.messages:
        first = await trial.answer(message)
        for attempt, run in ((0, 0), (1, 0), (0, 1)):
            about = f"message {message.id!r} again"
            answer = await trial.answer(message, attempt=attempt, run=run)
            if first.what == "Executed" and answer.what not in ("Executed", "Skipped", "Deferred"):
                trial.fail(str(answer), f"an answer, as the first time: {first}", about)
            trial.same(answer, first, about)


async def a_message_may_come_to_another_executor(trial: ExecutorTrial) -> None:
    """After a restart the same message comes again to an executor that was opened anew."""
    before = [await trial.answer(message) for message in trial.messages]
    await trial.reopen()
    for message, first in zip(trial.messages, before, strict=True):
        trial.same(await trial.answer(message), first, f"message {message.id!r} after a restart")


async def calls_may_overlap(trial: ExecutorTrial) -> None:
    """Calls for different messages overlap, and each gets the answer for its own message."""
    alone = [await trial.answer(message) for message in trial.messages]
    answers: dict[int, _Answer] = {}

    async def run(index: int) -> None:
        answers[index] = await trial.answer(trial.messages[index % len(alone)])

    async with trio.open_nursery() as nursery:
        for index in range(max(len(alone), 2) * 4):
            nursery.start_soon(run, index)
    for index in sorted(answers):
        name = trial.messages[index % len(alone)].id
        trial.same(answers[index], alone[index % len(alone)], f"message {name!r} among others at once")


async def a_cancelled_call_ends_cancelled(trial: ExecutorTrial) -> None:
    """Cancelled at any checkpoint, a call raises `trio.Cancelled` and nothing else, and the next one works."""
    for message in trial.messages:
        first = await trial.answer(message)
        for checkpoints in range(_CANCELLATIONS):
            scope = trio.CancelScope()
            watched = Watched(trial.call(make_delivery(message)), scope)
            ended: list[str] = []

            async def call(watched: Watched = watched, ended: list[str] = ended) -> None:
                try:
                    outcome = await watched
                except Exception as error:
                    ended.append(f"it raised {error!r:.100}")
                else:
                    ended.append(f"it returned {outcome!r:.100}")

            await cancel_after(checkpoints, call, scope)
            if watched.was_cancelled and ended:
                trial.fail(
                    f"message {message.id!r}, cancelled at checkpoint {checkpoints}: {ended[0]}",
                    "trio.Cancelled is raised on (catch Exception, never BaseException or a bare except:)",
                )
            again = await trial.answer(message)
            trial.same(again, first, f"message {message.id!r} after a call that was cancelled")
            if ended and not watched.was_cancelled and checkpoints:
                break


async def others_get_their_turn(trial: ExecutorTrial) -> None:
    """While it works or waits, other tasks run: it does not block the thread that everything runs in."""
    for message in trial.messages:
        longest = _Longest(trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(longest)
        try:
            await trial.answer(message)
        finally:
            trio.lowlevel.remove_instrument(longest)
        trial.true(
            longest.seconds <= trial.patience,
            f"no step longer than {trial.patience:g} s (wait with trio, or work in trio.to_thread.run_sync)",
            f"message {message.id!r}: nothing else could run for {longest.seconds:.2f} s",
        )


async def what_it_is_given_stays_as_it_is(trial: ExecutorTrial) -> None:
    """The payload and the headers of a message are not changed: a retry gets the same object again."""
    for message in trial.messages:
        before = _kept(message)
        if before is None:
            continue
        await trial.answer(message)
        now = _kept(message)
        if now != before:
            trial.fail(f"message {message.id!r}: {now!r:.200}", f"{before!r:.200} (work on a copy)")


async def messages_it_takes_pass_its_own_check(trial: ExecutorTrial) -> None:
    """`check_messages` takes the messages that it works on, and those that it derives."""
    trial.subject.check_messages(trial.messages)
    for message in trial.messages:
        answer = await trial.answer(message)
        trial.subject.check_messages(answer.derived)


class _Longest(trio.abc.Instrument):
    """Measures the longest time that one task kept all others from running."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.seconds = 0.0
        self._task = task
        self._began = time.perf_counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self.seconds = max(self.seconds, time.perf_counter() - self._began)


def _kept(message: Message[Any]) -> tuple[Any, dict[str, str]] | None:
    """Return a copy of what a message carries; None if it cannot be copied, or compared with its copy."""
    try:
        kept = copy.deepcopy((message.payload, dict(message.headers)))
        return kept if kept == copy.deepcopy(kept) else None
    except Exception:
        return None


def _runs_batches(trial: ExecutorTrial) -> bool:
    return trial.runs_batches


def _checks_messages(trial: ExecutorTrial) -> bool:
    return isinstance(trial.subject, ChecksMessages)


EXECUTOR_PROMISES: Sequence[Promise[ExecutorTrial]] = (
    Promise(it_answers_each_message),
    Promise(a_batch_has_an_answer_for_each_message, when=_runs_batches),
    Promise(a_message_may_come_again),
    Promise(a_message_may_come_to_another_executor),
    Promise(what_it_is_given_stays_as_it_is),
    Promise(calls_may_overlap),
    Promise(a_cancelled_call_ends_cancelled),
    Promise(others_get_their_turn),
    Promise(messages_it_takes_pass_its_own_check, when=_checks_messages),
)
