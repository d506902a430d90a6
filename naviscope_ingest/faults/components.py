"""Stand-ins for executor, sink and store, which let faults happen on the way.

Rejected: hooks within the kernel, which everybody would pass by for every message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from attrs import evolve

from naviscope_ingest._stand_ins import stand_in
from naviscope_ingest.config import RuntimeComponents
from naviscope_ingest.faults.injected import InjectedFault, error_of
from naviscope_ingest.faults.injector import INJECTING, Blow, Injector
from naviscope_ingest.faults.spec import Faults
from naviscope_spi import CommitBatch, DeferredStore, Delivery, Session, Settlement, SinkRejected, StoreFailed

__all__ = ["with_faults"]

_CHANGES = ("open_epoch", "mark_epoch", "put", "put_unique", "pop_ready", "notify_ready", "forget_ready", "prune")
"""What changes a store, but for settling."""

_AT_ONCE = ("pop_ready_nowait", "commit_nowait")
"""What a store has that answers at once: one that may be slow does not."""


def with_faults(
    faults: Faults, components: RuntimeComponents[Any, Any], store: DeferredStore[Any]
) -> tuple[RuntimeComponents[Any, Any], DeferredStore[Any], Injector]:
    """Return stand-ins for what a runtime is made of, and who strikes."""
    injector = Injector(faults)
    struck = evolve(
        components,
        executor=_executor(components.executor, injector),
        commit_sink=_sink(components.commit_sink, injector),
    )
    return struck, _store(store, injector), injector


def _name(delivery: Delivery[Any]) -> str:
    return f"{delivery.epoch.number}:{delivery.run}:{delivery.attempt}:{delivery.id}"


def _executor(real: Any, injector: Injector) -> Any:  # noqa: ANN401 - one of two protocols
    async def execute(delivery: Delivery[Any]) -> object:
        INJECTING.set(injector)
        blow = injector.on_message(delivery.kind, _name(delivery))
        if blow is None:
            return await real.execute(delivery)
        return await blow.strike(partial(real.execute, delivery))

    async def execute_batch(deliveries: Sequence[Delivery[Any]]) -> object:
        INJECTING.set(injector)
        for delivery in deliveries:
            blow = injector.on_message(delivery.kind, _name(delivery))
            if blow is not None:
                return await blow.strike(partial(real.execute_batch, deliveries))
        return await real.execute_batch(deliveries)

    return stand_in(real, {"execute": execute, "execute_batch": execute_batch})


def _sink(real: Any, injector: Injector) -> Any:  # noqa: ANN401 - with any optional powers
    def refuse(batch: CommitBatch[Any], blow: Blow) -> None:
        if blow.fault.what == "refuse":
            culprit = batch.entries[injector.choose(len(batch.entries))]
            raise SinkRejected({culprit.task_key: error_of(blow.fault)})

    async def commit(batch: CommitBatch[Any]) -> object:
        blow = injector.on_call("sink") if batch.entries else None
        if blow is None:
            return await real.commit(batch)
        refuse(batch, blow)
        return await blow.strike(partial(real.commit, batch))

    def apply(transaction: object, batch: CommitBatch[Any]) -> object:
        blow = injector.on_call("sink") if batch.entries else None
        if blow is None:
            return real.apply(transaction, batch)
        refuse(batch, blow)
        return blow.strike_in_thread(partial(real.apply, transaction, batch))

    return stand_in(real, {"commit": commit, "apply": apply})


def _store(real: Any, injector: Injector) -> Any:  # noqa: ANN401 - with any optional powers
    failure: InjectedFault | None = None

    @asynccontextmanager
    async def join(who: str, *, lead: bool = True) -> AsyncIterator[Session]:
        async with real.join(who, lead=lead) as session:
            injector.begin(session.token)
            try:
                yield session
            finally:
                injector.end()

    async def call(point: str, method: Callable[..., Awaitable[Any]], *arguments: object, **options: object) -> object:
        nonlocal failure
        if failure is not None:
            raise StoreFailed(str(failure)) from failure
        blow = injector.on_call(point)
        if blow is None:
            return await method(*arguments, **options)
        try:
            return await blow.strike(partial(method, *arguments, **options), shield=True)
        except InjectedFault as error:
            failure = error
            raise

    async def settle(session: Session, settlement: Settlement[Any]) -> object:
        return await call("commit" if settlement.committed else "store", real.settle, session, settlement)

    struck = {name: partial(call, "store", getattr(real, name)) for name in _CHANGES if hasattr(real, name)}
    if hasattr(real, "settle_with"):
        struck["settle_with"] = partial(call, "commit", real.settle_with)
    return stand_in(real, {**struck, "join": join, "settle": settle}, without=_AT_ONCE)
