# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Filters of dead letters are typed, and letters know the payload."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

from naviscope_ingest import (
    AuditEntry,
    DeadLetters,
    DiscardReceipt,
    Epoch,
    IntakeHandle,
    Letter,
    ReplayReceipt,
    WholeLetter,
)
from tests.typing.executors import Order


async def letters_are_typed(intake: IntakeHandle[Order], epoch: Epoch[Order]) -> None:
    letters = intake.dead_letters
    assert_type(letters, DeadLetters[Order])
    assert_type(letters.find(epoch=epoch, error_kind="timeout", since=5), AsyncIterator[Letter])
    whole = await letters.show(epoch, "a")
    assert_type(whole, WholeLetter[Order])
    assert_type(whole.payload, Order)
    assert_type(await letters.replay(epoch="e", message_id="a", patch={"lines.0": 5}), ReplayReceipt)
    assert_type(await letters.discard(fingerprint="f", reason="why"), DiscardReceipt)
    assert_type(letters.audit(), AsyncIterator[AuditEntry])
    await letters.count(epocj="e")  # type: ignore[call-arg]
    await letters.count(error_kind="time_out")  # type: ignore[arg-type]
    await letters.discard(epoch="e")  # type: ignore[call-arg]
