"""A store on a disk makes the runtime wait, and the world goes on meanwhile: what they know must not part."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import Deferred, Dependency, EpochReport, Executed, Fatal, Message, Resource, Skipped, Transient
from naviscope_ingest.testing import TrioClock
from naviscope_spi import Session, Settled, Settlement
from tests.runtime.worlds import START, WaitingStore, chain, failures, messages, naps, started


class Gated(WaitingStore):
    """A store whose next settlement, put or mark can be held up: before it happens, or after.

    Attributes:
        held: which call waits at the gate.
        skipped: how many such calls pass before.
        entered: set when it does.
        gate: lets it go on.
    """

    def __init__(self, clock: TrioClock) -> None:
        super().__init__(clock)
        self.held: tuple[str, str] | None = None
        self.skipped = 0
        self.entered = trio.Event()
        self.gate = trio.Event()

    def hold(self, call: str, when: str, *, after: int = 0) -> None:
        """Hold up the next such call, or one that comes so many calls later."""
        self.held = (call, when)
        self.skipped = after

    async def _pass(self, call: str, when: str) -> None:
        if self.held == (call, when):
            if self.skipped:
                self.skipped -= 1
                return
            self.held = None
            self.entered.set()
            await self.gate.wait()

    async def settle(self, session: Session, settlement: Settlement[Any]) -> Settled:
        await self._pass("settle", "before")
        settled = await super().settle(session, settlement)
        await self._pass("settle", "after")
        return settled

    async def put(self, *args: Any, **options: Any) -> Any:
        await self._pass("put", "before")
        receipt = await super().put(*args, **options)
        await self._pass("put", "after")
        return receipt

    async def mark_epoch(self, *args: Any) -> Any:
        await self._pass("mark", "before")
        record = await super().mark_epoch(*args)
        await self._pass("mark", "after")
        return record


WHEN = pytest.mark.parametrize("when", ["before", "after"])


async def reported_after_a_restart(store: WaitingStore) -> EpochReport:
    """Return the report of the epoch as a new runtime reads it from the store."""
    async with started(store=store) as world:
        return world.intake.report("nightly")


def ends(report: EpochReport) -> tuple[int, ...]:
    return report.committed, report.dead, report.skipped, report.cancelled, report.expired


async def test_an_ordinary_batch():
    store = WaitingStore(TrioClock(START), 0.5)
    work = {"file": Executed(["file"], messages("row1", "row2")), "bad": Fatal("no"), "again": [Transient()]}
    async with started(work, store=store, max_derived=1) as world:
        report = await world.batch(*chain(5), *messages(*work), Message("child", None, depends_on=["bad"]))
        assert (report.submitted, report.committed, report.dead) == (11, 9, 2)
        assert len(world.sink.ops) == 9


async def test_a_resource_that_is_provided_while_its_store_is_busy():
    async with started(store=WaitingStore(TrioClock(START), 0.5)) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(Message("a", None, depends_on=[Dependency.resource("r", external=True)]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(epoch.seal)
            nursery.start_soon(world.intake.notify_dependency_ready, Resource("r"))
        assert (await epoch.wait()).committed == 1


async def test_many_may_submit_at_once():
    async with started(store=WaitingStore(TrioClock(START), 0.5)) as world:
        epoch = await world.intake.new_epoch()
        async with trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(epoch.submit, messages(*(f"m{i}" for i in range(n, n + 10))))
            await trio.sleep(0.1)
            # Sealing waits for the submits that are under way.
            await epoch.seal()
        report = await epoch.wait()
        assert (report.submitted, report.committed, report.duplicates) == (19, 19, 81)


@pytest.mark.parametrize(
    ("answer", "when"),
    [
        pytest.param(Skipped(), "before", id="skipped, before"),
        pytest.param(Skipped(), "after", id="skipped, after"),
        pytest.param(Fatal("no"), "before", id="dead, before"),
        pytest.param(Fatal("no"), "after", id="dead, after"),
    ],
)
async def test_a_message_that_is_cancelled_while_its_end_is_settled_ends_once(answer, when):
    store = Gated(TrioClock(START))
    async with started({"a": answer}, store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        store.hold("settle", when)
        await epoch.submit(messages("a"))
        await store.entered.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(epoch.cancel, "a")
            await trio.sleep(1)
            store.gate.set()
        await world.intake.wait_idle()
        report = epoch.report
        failures(report)
    assert ends(await reported_after_a_restart(store)) == ends(report)


@WHEN
async def test_commit_wins_over_a_cancel_that_comes_while_it_is_settled(when):
    store = Gated(TrioClock(START))
    async with started(store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        store.hold("settle", when)
        await epoch.submit(messages("a"))
        await store.entered.wait()
        assert not await epoch.cancel("a")
        store.gate.set()
        await world.intake.wait_idle()
        assert epoch.report.committed == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_message_whose_epoch_expires_while_its_end_is_settled_ends_once(when):
    store = Gated(TrioClock(START))
    async with started({"a": Skipped()}, store=store) as world:
        epoch = await world.intake.new_epoch("nightly", deadline=START + 5)
        store.hold("settle", when)
        await epoch.submit(messages("a"))
        await store.entered.wait()
        await trio.sleep(10)
        store.gate.set()
        await world.intake.wait_idle()
        report = epoch.report
    assert ends(await reported_after_a_restart(store)) == ends(report)


@WHEN
@pytest.mark.parametrize("answer", [Transient(retry_after=3), Skipped()], ids=["retry", "skip"])
async def test_a_cancelled_epoch_completes_although_a_settlement_was_under_way(answer, when):
    store = Gated(TrioClock(START))
    async with started({"a": answer}, store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        store.hold("settle", when)
        await epoch.submit(messages("a"))
        await store.entered.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(epoch.cancel)
            await trio.sleep(1)
            store.gate.set()
        assert (await epoch.wait()).unfinished == 0


async def test_an_epoch_that_is_cancelled_while_messages_are_stored_counts_them():
    store = Gated(TrioClock(START))
    async with started(naps(100), store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        store.hold("put", "after")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(epoch.submit, messages("a", "b"))
            await store.entered.wait()
            nursery.start_soon(epoch.cancel)
            await trio.sleep(1)
            store.gate.set()
        report = await epoch.wait()
        assert (report.submitted, report.cancelled) == (2, 2)
    assert ends(await reported_after_a_restart(store)) == ends(report)


async def test_an_epoch_that_is_sealed_while_messages_are_stored_counts_them():
    store = Gated(TrioClock(START))
    async with started(store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        store.hold("mark", "before")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(epoch.seal)
            await store.entered.wait()
            sealing, store.gate, store.entered = store.gate, trio.Event(), trio.Event()
            store.hold("put", "after")
            nursery.start_soon(epoch.submit, messages("a", "b"))
            await store.entered.wait()
            sealing.set()
            await trio.sleep(1)
            store.gate.set()
        report = await epoch.wait()
        assert (report.submitted, report.committed) == (2, 2)
    assert ends(await reported_after_a_restart(store)) == ends(report)


async def test_messages_that_were_stored_run_although_their_submit_was_cancelled():
    store = Gated(TrioClock(START))
    async with started(store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        store.hold("put", "after")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(epoch.submit, messages("a"))
                await store.entered.wait()
                scope.cancel()
                store.gate.set()
        await epoch.submit(messages("a"))
        await epoch.seal()
        assert (await epoch.wait()).committed == 1


async def test_a_deferral_that_need_not_wait_does_not_lose_its_next_claim():
    store = Gated(TrioClock(START))
    async with started({"a": [Deferred(["b"])]}, store=store) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit(messages("b", "c"))
        await world.intake.wait_idle()
        # The first settlement records the deferral, the second one the attempt that it spent.
        store.hold("settle", "before", after=1)
        await epoch.submit(messages("a"))
        await store.entered.wait()
        await epoch.submit(messages("d"))
        await trio.sleep(1)
        store.gate.set()
        await epoch.seal()
        report = await epoch.wait()
        assert report.committed == 4
    assert ends(await reported_after_a_restart(store)) == ends(report)
