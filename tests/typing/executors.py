# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Classes of a user fit the contracts of an executor and of a sink by their shape alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from naviscope_spi import (
    CommitBatch,
    CommitSink,
    Deferred,
    Delivery,
    Executed,
    Executor,
    Fatal,
    Message,
    Outcome,
    Skipped,
    SupportsBatch,
)


class Order(NamedTuple):
    number: int
    lines: list[str]


class Insert(NamedTuple):
    table: str
    row: tuple[object, ...]


class Loader:
    async def execute(self, message: Delivery[Order]) -> Outcome[Insert]:
        order = message.payload
        if not order.lines:
            return Skipped("nothing ordered")
        if order.number < 0:
            return Fatal(ValueError(order.number))
        if message.attempt == 0 and message.run == 0:
            return Deferred([f"customer-{order.number}"])
        parts = [Message(f"{message.id}.{index}", Order(index, [line])) for index, line in enumerate(order.lines)]
        return Executed([Insert("orders", (order.number,))], derived=parts, value=message.task_key.encode())


class OneOutcome:
    """One that only ever answers in one way may say so."""

    async def execute(self, message: Delivery[Order]) -> Executed[Order, Insert]:
        return Executed([Insert("orders", (message.payload.number,))])


class TakesAnything:
    """One that takes more than it gets fits too."""

    async def execute(self, message: Delivery[object]) -> Skipped:
        return Skipped(repr(message.payload))


class Blocking:
    def execute(self, message: Delivery[Order]) -> Outcome[Insert]:
        return Executed()


class OtherOps:
    async def execute(self, message: Delivery[Order]) -> Outcome[str]:
        return Executed(["insert"])


class NoOutcome:
    async def execute(self, message: Delivery[Order]) -> None:
        return None


class WrongPayload:
    async def execute(self, message: Delivery[str]) -> Outcome[Insert]:
        return Executed()


def executors_fit_by_shape() -> None:
    executor: Executor[Order, Insert] = Loader()
    executor = OneOutcome()
    executor = TakesAnything()
    executor = Blocking()  # type: ignore[assignment]
    executor = OtherOps()  # type: ignore[assignment]
    executor = NoOutcome()  # type: ignore[assignment]
    executor = WrongPayload()  # type: ignore[assignment]
    del executor


class Batches(Loader):
    async def execute_batch(self, messages: Sequence[Delivery[Order]]) -> Sequence[Outcome[Insert]]:
        return [await self.execute(message) for message in messages]


class HalfBatches:
    async def execute_batch(self, messages: Sequence[Delivery[Order]]) -> Outcome[Insert]:
        return Executed()


def an_executor_of_batches_fits_both() -> None:
    single: Executor[Order, Insert] = Batches()
    several: SupportsBatch[Order, Insert] = Batches()
    several = HalfBatches()  # type: ignore[assignment]
    del single, several


class Table:
    async def commit(self, batch: CommitBatch[Insert]) -> None:
        for entry in batch.entries:
            for op in entry.ops:
                print(entry.task_key, op.table, op.row)


class Log:
    """A sink of anything is a sink of inserts."""

    async def commit(self, batch: CommitBatch[object]) -> None:
        print(len(batch.entries))


class Strings:
    async def commit(self, batch: CommitBatch[str]) -> None: ...


class Answers:
    async def commit(self, batch: CommitBatch[Insert]) -> int:
        return len(batch.entries)


def sinks_fit_by_shape() -> None:
    sink: CommitSink[Insert] = Table()
    sink = Log()
    sink = Strings()  # type: ignore[assignment]
    sink = Answers()  # type: ignore[assignment]
    del sink
