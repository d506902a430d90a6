# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The runtime knows payloads and ops by its executor and its sink."""

from __future__ import annotations

from typing import assert_type

from naviscope_ingest import (
    Epoch,
    EpochExplanation,
    EpochReport,
    IngestRuntime,
    IntakeHandle,
    MemorySink,
    MemoryStore,
    Message,
    MessageExplanation,
    RuntimeComponents,
    SubmitReceipt,
)
from tests.typing.executors import Insert, Loader, Order, Strings, Table


def components_are_told_apart() -> None:
    assert_type(RuntimeComponents(executor=Loader(), commit_sink=Table()), RuntimeComponents[Order, Insert])
    sink: MemorySink[Insert] = MemorySink()
    assert_type(RuntimeComponents(executor=Loader(), commit_sink=sink), RuntimeComponents[Order, Insert])
    RuntimeComponents[Order, Insert](executor=Loader(), commit_sink=Strings())  # type: ignore[arg-type]
    RuntimeComponents[str, Insert](executor=Loader(), commit_sink=Table())  # type: ignore[arg-type]
    RuntimeComponents(executor=Loader(), commit_sink=Table(), store=MemoryStore[Order]())
    RuntimeComponents[Order, Insert](executor=Loader(), commit_sink=Table(), store=MemoryStore[str]())  # type: ignore[arg-type]


async def an_intake_takes_messages_of_the_payload() -> None:
    runtime = IngestRuntime(RuntimeComponents(executor=Loader(), commit_sink=Table()))
    assert_type(runtime, IngestRuntime[Order, Insert])
    async with runtime.running() as intake:
        assert_type(intake, IntakeHandle[Order])
        epoch = await intake.new_epoch("night")
        assert_type(epoch, Epoch[Order])
        assert_type(await epoch.submit([Message("a", Order(1, []))]), SubmitReceipt)
        await epoch.submit(Message("a", Order(1, [])))
        await epoch.submit([Message("a", "no order")])  # type: ignore[arg-type]
        await epoch.wait(until="done")  # type: ignore[arg-type]
        assert_type(await epoch.wait(), EpochReport)
        assert_type(await epoch.explain(), EpochExplanation)
        assert_type(await epoch.explain("a"), MessageExplanation)
