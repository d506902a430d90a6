"""Executors keep the contract, and the check notices when one does not."""

import random
import time

import pytest
import trio
import trio.lowlevel

from examples.code_index.pipeline import declare
from examples.code_index.tree import changes
from naviscope_ingest import (
    Deferred,
    Executed,
    Fatal,
    Ingest,
    Message,
    Permanent,
    Resource,
    Skipped,
    SystemFailure,
    Transient,
    UnknownKind,
)
from naviscope_ingest.codecs import MsgspecCodec
from naviscope_ingest.errors import ContractViolation
from naviscope_ingest.handlers.processes import Processes
from naviscope_ingest.handlers.table import HandlerTable
from naviscope_ingest.testing import check_executor, make_delivery
from naviscope_ingest.testing.executor import EXECUTOR_PROMISES
from tests.contract.factories import opens, reopens

MESSAGES = [Message(f"m{number}", {"number": number, "rest": [1]}, kind="ab"[number % 2]) for number in range(6)]


class Sound:
    """An executor that does everything that one may do."""

    async def execute(self, message):
        number = message.payload["number"]
        with trio.move_on_after(0.001):
            await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
        if number == 1:
            return Skipped("nothing to do")
        if number == 2:
            raise Permanent("no")
        if number == 3:
            return Deferred(["m0"])
        if number == 4:
            return Fatal("never")
        derived = (Message(f"{message.id}.{n}", n, kind="c") for n in range(3))
        return Executed([number], derived, [Resource("r", number)], b"v")


async def check(executor, *, factory=opens, messages=MESSAGES, is_deterministic=True, **options):
    await check_executor(factory(executor), messages=messages, is_deterministic=is_deterministic, **options)


@pytest.mark.parametrize("promise", EXECUTOR_PROMISES, ids=lambda promise: promise.name)
async def test_a_sound_executor_keeps_the_promise(promise, autojump_clock):
    await check(Sound, only=[promise.name])


class Batching:
    async def execute_batch(self, messages):
        await trio.lowlevel.checkpoint()
        return [Executed([message.payload["number"]]) for message in messages]


async def test_a_batch_executor_keeps_the_contract():
    await check(Batching)


async def test_the_handlers_of_an_app_keep_the_contract():
    app = Ingest()

    @app.handler("a")
    async def waits(payload: dict[str, object]) -> list[object]:
        await trio.lowlevel.checkpoint()
        return [payload["number"]]

    @app.handler("b")
    def computes(payload: dict[str, object]) -> list[object]:
        return [payload["number"]]

    def make():
        return HandlerTable(
            app.handlers, MsgspecCodec(), encodes=False, has_sink=True, threads=2, processes=Processes(1)
        )

    await check(make)


async def test_the_work_of_the_demo_keeps_the_contract(tmp_path):
    (tmp_path / "a.py").write_text("import b\n\ndef f():\n    b.g()\n")
    (tmp_path / "b.py").write_text("def g(:\n")
    files = changes(tmp_path, None, with_tests=True).files

    class Declare:
        async def execute(self, message):
            return await trio.to_thread.run_sync(declare, message.payload)

    await check(Declare, messages=[Message(name, file) for name, file in files.items()])


async def test_without_messages_there_is_nothing_to_check():
    with pytest.raises(ValueError, match="give messages that the executor is made for"):
        await check(Sound, messages=[])


def test_a_delivery_made_by_hand_is_what_an_executor_gets():
    delivery = make_delivery(Message("a", 1, kind="k"), attempt=2, run=1, values={"b": b"x"})
    assert (delivery.id, delivery.payload, delivery.kind, delivery.attempt, delivery.run) == ("a", 1, "k", 2, 1)
    assert (delivery.task_key, delivery.values, delivery.unmet) == ("test:1:a", {"b": b"x"}, ())


class Simple:
    """What the wrong ones are wrong about."""

    factory = staticmethod(opens)

    async def execute(self, message):
        await trio.lowlevel.checkpoint()
        return Executed([message.payload["number"]])


class AnswersNothing(Simple):
    promise, hint = "it_answers_each_message", "return Executed, Deferred, Skipped or Fatal"

    async def execute(self, message):
        await super().execute(message)


class AnswersBareOps(Simple):
    promise, hint = "it_answers_each_message", "ops=[op]"

    async def execute(self, message):
        return Executed("op")


class DerivesStrings(Simple):
    promise, hint = "it_answers_each_message", "derived holds messages"

    async def execute(self, message):
        return Executed(derived=["m7"])


class ProvidesStrings(Simple):
    promise, hint = "it_answers_each_message", "ready holds resources"

    async def execute(self, message):
        return Executed(ready=["r"])


class WaitsForItself(Simple):
    promise, hint = "it_answers_each_message", "not the message itself"

    async def execute(self, message):
        return Deferred([message.id])


class Stumbles(Simple):
    promise, hint = "it_answers_each_message", "Permanent to give up"

    async def execute(self, message):
        return Executed([message.payload["nummer"]])


class StopsEverything(Simple):
    promise, hint = "it_answers_each_message", "this would stop the runtime"

    async def execute(self, message):
        raise SystemFailure("no")


class LosesOne(Batching):
    promise, hint = "a_batch_has_an_answer_for_each_message", "one for each message"
    factory = staticmethod(opens)

    async def execute_batch(self, messages):
        answers = await super().execute_batch(messages)
        return answers if len(answers) < 3 else answers[1:]


class MixesThemUp(Batching):
    promise, hint = "a_batch_has_an_answer_for_each_message", "the same as before"
    factory = staticmethod(opens)

    async def execute_batch(self, messages):
        return await super().execute_batch(sorted(messages, key=lambda message: message.id))


class GeneratesAnswers(Batching):
    promise, hint = "it_answers_each_message", "a sequence of 1 outcomes"
    factory = staticmethod(opens)

    async def execute_batch(self, messages):
        return iter(await super().execute_batch(messages))


class RefusesRepeats(Simple):
    promise, hint = "a_message_may_come_again", "an answer, as the first time"

    def __init__(self):
        self.seen = set()

    async def execute(self, message):
        if message.id in self.seen:
            raise Permanent("that was done already")
        self.seen.add(message.id)
        return await super().execute(message)


class Rolls(Simple):
    promise, hint = "a_message_may_come_again", "is_deterministic=True"

    async def execute(self, message):
        return Executed([random.random()])


class CountsStarts(Simple):
    promise, hint = "a_message_may_come_to_another_executor", "after a restart"
    factory = staticmethod(opens)
    starts = 0

    def __init__(self):
        CountsStarts.starts += 1
        self.start = CountsStarts.starts

    async def execute(self, message):
        return Executed([self.start])


class ChangesThePayload(Simple):
    promise, hint = "what_it_is_given_stays_as_it_is", "work on a copy"

    async def execute(self, message):
        message.payload["rest"].append(2)
        return Executed([message.payload["number"]])


class SharesAField(Simple):
    promise, hint = "calls_may_overlap", "among others at once"

    async def execute(self, message):
        self.message = message
        await trio.lowlevel.checkpoint()
        return Executed([self.message.payload["number"]])


class OneAtATime(Simple):
    promise, hint = "calls_may_overlap", "Transient"
    is_busy = False

    async def execute(self, message):
        if self.is_busy:
            raise RuntimeError("one at a time")
        self.is_busy = True
        await trio.lowlevel.checkpoint()
        self.is_busy = False
        return Executed([message.payload["number"]])


class SwallowsCancellation(Simple):
    promise, hint = "a_cancelled_call_ends_cancelled", "never BaseException"

    async def execute(self, message):
        try:
            return await super().execute(message)
        except BaseException:
            return Skipped("something went wrong")


class TranslatesCancellation(Simple):
    promise, hint = "a_cancelled_call_ends_cancelled", "it raised Transient"

    async def execute(self, message):
        try:
            return await super().execute(message)
        except BaseException as error:
            raise Transient("something went wrong") from error


class KeepsTheLock(Simple):
    promise, hint = "a_cancelled_call_ends_cancelled", "it still waits"

    def __init__(self):
        self.gate = trio.CapacityLimiter(1)

    async def execute(self, message):
        await self.gate.acquire_on_behalf_of(message)
        outcome = await super().execute(message)
        self.gate.release_on_behalf_of(message)
        return outcome


class Blocks(Simple):
    promise, hint = "others_get_their_turn", "trio.to_thread"

    async def execute(self, message):
        time.sleep(0.02)  # noqa: ASYNC251 - that is what is wrong with it
        return await super().execute(message)


class RefusesItsOwn(Simple):
    promise, hint = "messages_it_takes_pass_its_own_check", "UnknownKind"

    def check_messages(self, messages):
        raise UnknownKind(messages[0].id, messages[0].kind, [])


@pytest.mark.parametrize(
    "executor",
    [
        AnswersNothing,
        AnswersBareOps,
        DerivesStrings,
        ProvidesStrings,
        WaitsForItself,
        Stumbles,
        StopsEverything,
        LosesOne,
        MixesThemUp,
        GeneratesAnswers,
        RefusesRepeats,
        Rolls,
        CountsStarts,
        ChangesThePayload,
        SharesAField,
        OneAtATime,
        SwallowsCancellation,
        TranslatesCancellation,
        KeepsTheLock,
        Blocks,
        RefusesItsOwn,
    ],
)
async def test_a_broken_executor_is_caught(executor):
    with pytest.raises(ContractViolation) as caught:
        await check(executor, factory=executor.factory, patience=0.01 if executor is Blocks else 1.0, limit=2.0)
    assert caught.value.promise.partition(":")[0] == executor.promise
    assert executor.hint in str(caught.value)


async def test_an_executor_on_its_own_state_need_not_be_deterministic():
    await check(Rolls, factory=reopens, is_deterministic=False)
