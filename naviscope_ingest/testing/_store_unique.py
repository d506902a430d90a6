"""Promises of a store that remembers ids beyond their epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naviscope_ingest.testing._promises import Promise
from naviscope_ingest.testing._store_trial import StoreTrial, is_durable
from naviscope_spi import (
    Ended,
    EpochKey,
    EpochSealed,
    Message,
    PutReceipt,
    Settlement,
    SupportsRetention,
    SupportsUnique,
)

__all__ = ["UNIQUE_PROMISES"]

_LONG = 1e6


async def an_id_is_remembered_beyond_its_epoch(trial: StoreTrial) -> None:
    """A message that was put as unique is a duplicate in other epochs, by its kind and id; the rest is stored."""
    first, second = await trial.epoch("first"), await trial.epoch("second")
    await _put(trial, first, ["a", "b"], accepted=["a", "b"])
    await _put(trial, second, ["a", "c", "b"], accepted=["c"])
    other = trial.message("a", kind="other")
    trial.equal((await _unique(trial, second, [other])).duplicates, 0, "duplicates of another kind")
    view = await trial.view()
    names = sorted((key.name, message.id, message.kind) for key, message in view.messages.values())
    trial.equal(
        names,
        [
            ("first", "a", "message"),
            ("first", "b", "message"),
            ("second", "a", "other"),
            ("second", "c", "message"),
        ],
        "messages",
    )


async def only_what_is_put_as_unique_is_remembered(trial: StoreTrial) -> None:
    """`put` neither asks what is remembered nor remembers, and a duplicate does not prolong anything."""
    first, second, third = await trial.epoch("first"), await trial.epoch("second"), await trial.epoch("third")
    await trial.put(first, "a")
    await _put(trial, second, ["a"], accepted=["a"])
    await trial.put(third, "a")


async def an_epoch_decides_about_its_own_ids(trial: StoreTrial) -> None:
    """In its own epoch a message that is put again is a duplicate, and with another content a conflict."""
    epoch = await trial.epoch()
    await _put(trial, epoch, ["a", "a"], accepted=["a"])
    receipt = await _unique(trial, epoch, [trial.message("a"), trial.message("a", 1)])
    seen = (list(receipt.accepted), receipt.duplicates, list(receipt.conflicts))
    trial.equal(seen, ([], 2, ["a"]), "accepted, duplicates and conflicts")


async def a_sealed_epoch_takes_what_is_remembered_for_a_duplicate(trial: StoreTrial) -> None:
    """A sealed epoch refuses what is not remembered, and then remembers nothing of that call."""
    first, sealed, third = await trial.epoch("first"), await trial.epoch("sealed"), await trial.epoch("third")
    await _put(trial, first, ["a"], accepted=["a"])
    await trial.store.mark_epoch(sealed, "seal")
    await _put(trial, sealed, ["a"], accepted=[])
    both = [trial.message("a"), trial.message("b")]
    await trial.raises(EpochSealed, lambda: _unique(trial, sealed, both))
    await _put(trial, third, ["b"], accepted=["b"])


async def an_id_is_remembered_for_its_time(trial: StoreTrial) -> None:
    """What is remembered for no time to speak of is not remembered."""
    first, second = await trial.epoch("first"), await trial.epoch("second")
    await _put(trial, first, ["a"], accepted=["a"], seconds=1e-9)
    await _put(trial, second, ["a"], accepted=["a"])


async def a_cancelled_message_is_not_remembered(trial: StoreTrial) -> None:
    """A message that ended cancelled can be put again elsewhere; one that ended otherwise cannot."""
    first, second = await trial.epoch("first"), await trial.epoch("second")
    receipt = await _put(trial, first, ["a", "b", "c"], accepted=["a", "b", "c"])
    a, b, c = receipt.accepted
    async with trial.join() as session:
        await trial.settle(session, Settlement(ended=[Ended(a, "cancelled"), Ended(b, "dead")]))
        await trial.commit(session, c)
    await _put(trial, second, ["a", "b", "c"], accepted=["a"])


async def an_id_outlives_its_epoch(trial: StoreTrial) -> None:
    """An id is remembered when its epoch has completed and was pruned."""
    store = trial.store
    assert isinstance(store, SupportsRetention)
    first = await trial.epoch("first")
    receipt = await _put(trial, first, ["a"], accepted=["a"])
    async with trial.join() as session:
        await trial.commit(session, *receipt.accepted)
        await trial.store.mark_epoch(first, "seal")
        await trial.complete(session, first)
    while await store.prune(1e12, 10):
        pass
    again = await trial.epoch("first")
    trial.true(again.number != first.number, "a new epoch of that name", again)
    await _put(trial, again, ["a", "b"], accepted=["b"])


async def ids_are_remembered_after_reopening(trial: StoreTrial) -> None:
    """A durable store remembers ids when it was closed and is opened again."""
    await _put(trial, await trial.epoch("first"), ["a"], accepted=["a"])
    await trial.reopen()
    await _put(trial, await trial.epoch("second"), ["a", "b"], accepted=["b"])


async def _put(
    trial: StoreTrial, epoch: EpochKey, names: Sequence[str], *, accepted: Sequence[str], seconds: float = _LONG
) -> PutReceipt:
    """Put messages as unique, and expect those to be accepted and the others to be duplicates."""
    receipt = await _unique(trial, epoch, [trial.message(name) for name in names], seconds)
    trial.equal([names[index] for index in receipt.indexes], list(accepted), "accepted messages")
    trial.equal(len(receipt.accepted), len(accepted), "their places")
    trial.equal(receipt.duplicates, len(names) - len(accepted), "duplicates")
    return receipt


async def _unique(
    trial: StoreTrial, epoch: EpochKey, messages: Sequence[Message[Any]], seconds: float = _LONG
) -> PutReceipt:
    store = trial.store
    assert isinstance(store, SupportsUnique)
    return await store.put_unique(epoch, messages, seconds)


def _is_unique(trial: StoreTrial) -> bool:
    return isinstance(trial.store, SupportsUnique)


UNIQUE_PROMISES: Sequence[Promise[StoreTrial]] = (
    Promise(an_id_is_remembered_beyond_its_epoch, when=_is_unique),
    Promise(only_what_is_put_as_unique_is_remembered, when=_is_unique),
    Promise(an_epoch_decides_about_its_own_ids, when=_is_unique),
    Promise(a_sealed_epoch_takes_what_is_remembered_for_a_duplicate, when=_is_unique),
    Promise(an_id_is_remembered_for_its_time, when=_is_unique),
    Promise(a_cancelled_message_is_not_remembered, when=_is_unique),
    Promise(
        an_id_outlives_its_epoch, when=lambda trial: _is_unique(trial) and isinstance(trial.store, SupportsRetention)
    ),
    Promise(ids_are_remembered_after_reopening, when=lambda trial: _is_unique(trial) and is_durable(trial)),
)
