"""The check of `DeferredStore`: a table of promises, each tried on a store of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from naviscope_ingest.testing._promises import Promise, select, try_promise
from naviscope_ingest.testing._store_derived import DERIVED_PROMISES
from naviscope_ingest.testing._store_epochs import EPOCH_PROMISES
from naviscope_ingest.testing._store_facts import FACT_PROMISES
from naviscope_ingest.testing._store_messages import MESSAGE_PROMISES
from naviscope_ingest.testing._store_powers import POWER_PROMISES
from naviscope_ingest.testing._store_sessions import SESSION_PROMISES
from naviscope_ingest.testing._store_settlements import SETTLEMENT_PROMISES
from naviscope_ingest.testing._store_trial import StoreTrial
from naviscope_ingest.testing._store_unique import UNIQUE_PROMISES
from naviscope_spi import DeferredStore, Session

__all__ = ["STORE_PROMISES", "check_deferred_store"]

STORE_PROMISES: Sequence[Promise[StoreTrial]] = (
    *EPOCH_PROMISES,
    *MESSAGE_PROMISES,
    *SESSION_PROMISES,
    *SETTLEMENT_PROMISES,
    *DERIVED_PROMISES,
    *FACT_PROMISES,
    *POWER_PROMISES,
    *UNIQUE_PROMISES,
)
"""Every promise, simple ones first: the first that is broken is usually the cause of the others."""


def _text(number: int) -> str:
    return f"payload {number}"


async def check_deferred_store(
    open_store: Callable[[str], AbstractAsyncContextManager[DeferredStore[Any]]],
    *,
    payload: Callable[[int], Any] = _text,
    kill: Callable[[Any, Session], Awaitable[None]] | None = None,
    limit: float = 60.0,
    only: Iterable[str] | None = None,
) -> None:
    """Hold a store to its contract. Returns when every promise was kept.

    Promises of optional powers are tried if the store has the power; those about a second session depend on
    `info.is_shared`; a durable store is also closed and opened again.

    Args:
        open_store: opens the store of a name: a new, empty one for a new name. For a durable store the same name, after
            the block was left, is the same store again: a file, a schema, a key prefix of that name.
        payload: makes the payload of a number; payloads of different numbers are not equal. The default is text.
        kill: for a shared store, lets a session die as if its process had (`await kill(store, session)`); without it
            the promises about crashes are not tried. In a store that is not shared, joining ends the session before.
        limit: seconds that one promise may take.
        only: names of promises; None tries them all.

    Raises:
        ContractViolation: a promise was broken; it is named, with what was expected and what was seen.
    """
    for promise in select(STORE_PROMISES, only):
        trial = StoreTrial(str(promise), promise.name, open_store, payload=payload, kill=kill)
        await try_promise(promise, trial, limit)
