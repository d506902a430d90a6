"""What the promises of a store need: an open store, short ways to fill it, and a reader of its facts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attrs import define

from naviscope_ingest.testing._promises import Trial
from naviscope_ingest.testing._view import View
from naviscope_spi import (
    DeferredStore,
    Derived,
    EpochChange,
    EpochKey,
    EpochOptions,
    EpochRecord,
    Fact,
    Lease,
    Message,
    Position,
    Seq,
    Session,
    Settled,
    Settlement,
)

__all__ = ["FactReader", "StoreTrial", "can_crash", "finishes_calls", "is_alone", "is_durable", "is_shared"]


@define(eq=False, kw_only=True)
class StoreTrial(Trial[DeferredStore[Any]]):
    """One promise and the store that is to keep it."""

    payload: Callable[[int], Any]
    kill: Callable[[Any, Session], Awaitable[None]] | None

    @property
    def store(self) -> DeferredStore[Any]:
        """The store."""
        return self.subject

    @asynccontextmanager
    async def join(self, *, lead: bool = True) -> AsyncIterator[Session]:
        """Join, and expect to lead if it was asked for: nobody else does."""
        async with self.store.join("check", lead=lead) as session:
            self.true((session.fence is not None) == lead, "a fence for the one who leads", session)
            yield session

    async def crash(self, session: Session) -> None:
        """Let a session die without leaving. In a store that is not shared the next one to join does that."""
        if self.kill is not None:
            await self.kill(self.store, session)

    async def epoch(self, name: str | None = None) -> EpochKey:
        """Open an epoch."""
        return (await self.store.open_epoch(name, EpochOptions())).key

    async def record(self, epoch: EpochKey) -> EpochRecord:
        """Return an epoch as the store has it."""
        return await self.store.open_epoch(epoch.name, EpochOptions())

    def message(self, name: str, number: int = 0, **fields: Any) -> Message[Any]:  # noqa: ANN401 - fields of Message
        """Make a message with the payload of a number."""
        return Message(name, self.payload(number), **fields)

    async def put(self, epoch: EpochKey, *names: str) -> list[Seq]:
        """Put new messages and return their places."""
        receipt = await self.store.put(epoch, [self.message(name) for name in names])
        self.equal(len(receipt.accepted), len(names), "accepted messages")
        return list(receipt.accepted)

    async def claim(self, session: Session, seqs: Sequence[Seq]) -> list[Lease[Any]]:
        """Claim messages and expect to get all of them."""
        leases = list(await self.store.pop_ready(session, seqs))
        self.equal([lease.seq for lease in leases], list(seqs), "claimed messages")
        return leases

    async def settle(self, session: Session, settlement: Settlement[Any], refused: Sequence[Seq] = ()) -> Settled:
        """Settle and expect only these to be refused."""
        settled = await self.store.settle(session, settlement)
        self.equal(sorted(settled.refused), sorted(refused), "refused messages")
        return settled

    async def commit(self, session: Session, *seqs: Seq, derived: Sequence[Derived[Any]] = ()) -> Settled:
        """Claim and commit messages."""
        leases = await self.claim(session, seqs)
        return await self.settle(session, Settlement(committed=leases, derived=derived))

    async def complete(self, session: Session, epoch: EpochKey, report: bytes = b"report") -> None:
        """Complete an epoch, as the leader does."""
        await self.settle(session, Settlement(epochs=[EpochChange(epoch, "completed", report)]))

    async def view(self) -> View:
        """Recover: return what a new reader knows."""
        async with self.reading() as reader:
            return reader.view

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[FactReader]:
        """Read facts from the start; the recovery is over when the block begins."""
        async with _closing(self.store.facts()) as facts:
            reader = FactReader(facts, View(), [])
            await reader.until(lambda view: view.is_caught_up)
            yield reader

    @asynccontextmanager
    async def going_on(self, view: View, after: Position) -> AsyncIterator[FactReader]:
        """Read facts after a position, into a picture that knows what was before."""
        async with _closing(self.store.facts(after)) as facts:
            yield FactReader(facts, view, [])


@define(eq=False)
class FactReader:
    """A reader of facts: what it knows, and every batch it got."""

    facts: AsyncIterator[Sequence[Fact]]
    view: View
    batches: list[Sequence[Fact]]

    async def until(self, is_enough: Callable[[View], bool]) -> None:
        """Read until the picture shows something."""
        while not is_enough(self.view):
            batch = await anext(self.facts)
            self.batches.append(batch)
            self.view.take(batch)

    async def message(self, seq: Seq) -> None:
        """Read until a message is known."""
        await self.until(lambda view: seq in view.messages)

    async def up_to(self, position: Position) -> None:
        """Read until everything up to a position is known."""
        await self.until(lambda view: view.position >= position)


@asynccontextmanager
async def _closing(facts: AsyncIterator[Sequence[Fact]]) -> AsyncIterator[AsyncIterator[Sequence[Fact]]]:
    try:
        yield facts
    finally:
        aclose = getattr(facts, "aclose", None)
        if aclose is not None:
            await aclose()


def is_alone(trial: StoreTrial) -> bool:
    """Whether the store has one session at a time."""
    return not trial.store.info.is_shared


def can_crash(trial: StoreTrial) -> bool:
    """Whether a session can be made to die."""
    return is_alone(trial) or trial.kill is not None


def is_shared(trial: StoreTrial) -> bool:
    """Whether several may join the store."""
    return trial.store.info.is_shared


def is_durable(trial: StoreTrial) -> bool:
    """Whether the store outlives its process."""
    return trial.store.info.durability != "none"


def finishes_calls(trial: StoreTrial) -> bool:
    """Whether a call that began is not cancelled any more."""
    return trial.store.info.finishes_calls
