"""Messages that bring more than fits into one settlement: read bit by bit, staged, and told as capacity allows."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from naviscope_ingest import Dependency, Executed, Message, Permanent, Transient
from naviscope_ingest.testing import TrioClock
from naviscope_spi import EpochKey, Lease, PutReceipt
from tests.runtime.worlds import START, WaitingStore, failures, messages, started

LIMIT = 10


class Watching(WaitingStore):
    """A store that notes how much is staged at once, and how much a generator had made by then."""

    def __init__(self, pause: float | None = 0.5) -> None:
        super().__init__(TrioClock(START), pause)
        self.steps: list[int] = []
        self.made = self.staged = self.most_ahead = 0

    async def put(self, epoch: EpochKey, messages: Any, *, staged_by: Lease[Any] | None = None) -> PutReceipt:
        receipt = await super().put(epoch, messages, staged_by=staged_by)
        if staged_by is not None:
            self.steps.append(len(messages))
            self.most_ahead = max(self.most_ahead, self.made - self.staged)
            self.staged += len(messages)
        return receipt

    def rows(self, count: int, *, then: Exception | None = None, **fields: Any) -> Any:
        """Make messages as they are asked for."""
        for number in range(count):
            self.made += 1
            yield Message(f"row{number}", None, **fields)
        if then is not None:
            raise then


@pytest.fixture(params=[None, 0.5], ids=["in memory", "on a disk"])
def store(request) -> Watching:
    return Watching(request.param)


@pytest.fixture(params=[4_000, 0], ids=["told at once", "told bit by bit"])
def _at_once(request, monkeypatch) -> None:
    monkeypatch.setattr("naviscope_ingest._kernel.committer._AT_ONCE", request.param)


def makes(make: Any) -> dict[str, Any]:
    """Answer for the message "file" with what is made anew for each run."""

    async def work(delivery: Any) -> Any:
        return make()

    return {"file": work}


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("count", [0, 1, 10, 11, 95])
async def test_a_generator_brings_what_a_list_would(store, count):
    work = makes(lambda: Executed(["file"], store.rows(count)))
    async with started(work, store=store, max_derived=LIMIT) as world:
        report = await world.batch(*messages("file", "row3"), Message("after", None, depends_on=["file"]))
        # The fourth row was submitted as well: the first wins.
        is_known = count > 3
        assert (report.submitted, report.committed) == (count + 3 - is_known, count + 3 - is_known)
        assert report.duplicates == is_known


async def test_many_parents_that_bring_many_each_do_not_ride_in_one_settlement(store, monkeypatch):
    """The store is held for as long as it writes a settlement, whoever the rows in it come from."""
    monkeypatch.setattr("naviscope_ingest._kernel.outcomes._ROWS", 20)
    settled: list[int] = []
    settle = store.settle

    async def noted(session: Any, settlement: Any) -> Any:
        settled.append(sum(len(each.messages) for each in settlement.derived))
        return await settle(session, settlement)

    async def work(delivery: Any) -> Any:
        derived = [Message(f"{delivery.id}/{number}", None) for number in range(LIMIT)]
        return Executed([delivery.id], derived if delivery.id.startswith("file") else ())

    monkeypatch.setattr(store, "settle", noted)
    files = [f"file{number}" for number in range(30)]
    async with started(dict.fromkeys(files, work), store=store, max_derived=LIMIT) as world:
        report = await world.batch(*messages(*files), Message("after", None, depends_on=files))
        assert (report.submitted, report.committed) == (30 * (LIMIT + 1) + 1, 30 * (LIMIT + 1) + 1)
    assert sum(settled) == 30 * LIMIT
    assert max(settled) == 20


async def test_a_generator_is_never_read_far_ahead(store):
    work = makes(lambda: Executed((), store.rows(500)))
    async with started(work, store=store, max_derived=LIMIT) as world:
        report = await world.batch(*messages("file"))
        assert report.committed == 501
    assert max(store.steps) == LIMIT
    assert store.most_ahead <= LIMIT + 1


async def test_a_list_that_is_too_long_is_staged_too(store):
    work = {"file": Executed(["file"], list(store.rows(35)))}
    async with started(work, store=store, max_derived=LIMIT) as world:
        assert (await world.batch(*messages("file"))).committed == 36
    assert store.steps == [10, 10, 10, 5]


@pytest.mark.parametrize("count", [5, 35])
async def test_an_error_of_a_generator_is_one_of_the_executor(store, count):
    turns = [Transient("not yet"), None]

    def make() -> Executed[Any, Any]:
        return Executed(["file"], store.rows(count, then=turns.pop(0)))

    async with started(makes(make), store=store, max_derived=LIMIT) as world:
        report = await world.batch(*messages("file"))
        assert (report.submitted, report.committed) == (count + 1, count + 1)
        assert world.executor.seen.count("file") == 2
        assert sorted(world.sink.ops) == sorted(["file", *(f"row{n}" for n in range(count))])


@pytest.mark.parametrize("count", [5, 35])
@pytest.mark.parametrize(
    ("bad", "text"),
    [(Permanent("torn"), "torn"), ("not a message", "it must be a Message")],
    ids=["raises", "yields something else"],
)
async def test_what_was_staged_for_a_message_that_dies_never_runs(store, count, bad, text):
    def rows() -> Any:
        yield from store.rows(count)
        if isinstance(bad, Exception):
            raise bad
        yield bad

    async with started(makes(lambda: Executed(["file"], rows())), store=store, max_derived=LIMIT) as world:
        report = await world.batch(*messages("file", "other"))
        assert (report.submitted, report.committed, report.dead) == (2, 1, 1)
        assert text in failures(report)["file"][1]
        assert world.sink.ops == ["other"]
        assert world.runtime.statistics().in_flight == 0


async def test_others_commit_while_one_is_staged():
    store = Watching(0.5)
    async with started(makes(lambda: Executed((), store.rows(500))), store=store, max_derived=LIMIT) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("file"))
        await trio.sleep(10)
        assert 0 < store.staged < 500
        report = await world.batch(*messages("other"))
        assert report.committed == 1
        assert 0 < store.staged < 500
        await epoch.seal()
        assert (await epoch.wait()).committed == 501


async def test_a_message_can_be_cancelled_while_it_is_staged():
    store = Watching(0.5)
    async with started(makes(lambda: Executed(["file"], store.rows(500))), store=store, max_derived=LIMIT) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("file", "other"))
        await trio.sleep(10)
        assert await epoch.cancel("file")
        await epoch.seal()
        report = await epoch.wait()
        assert (report.submitted, report.committed, report.cancelled) == (2, 1, 1)
        assert world.sink.ops == ["other"]
        await world.intake.wait_idle()
        assert store.staged < 500


async def test_an_epoch_can_be_cancelled_while_derived_messages_come_in(monkeypatch):
    monkeypatch.setattr("naviscope_ingest._kernel.committer._AT_ONCE", 0)
    store = Watching(0.5)
    has_run = trio.Event()

    async def work(delivery: Any) -> Any:
        if delivery.id == "file":
            return Executed((), store.rows(500))
        await trio.sleep(5)
        has_run.set()
        return Executed([delivery.id])

    config = {"max_derived": LIMIT, "max_in_flight": 2, "commit_batch": 2}
    async with started(work, store=store, **config) as world:
        epoch = await world.intake.new_epoch()
        await epoch.submit(messages("file"))
        await has_run.wait()
        await epoch.cancel()
        report = await epoch.wait()
        assert report.submitted == 501
        assert report.committed + report.cancelled == 501
        assert report.cancelled > 400


async def test_the_core_knows_no_more_of_them_than_it_can_use(monkeypatch):
    monkeypatch.setattr("naviscope_ingest._kernel.committer._AT_ONCE", 0)
    store = Watching(0.5)
    most = 0

    async def work(delivery: Any) -> Any:
        nonlocal most
        if delivery.id == "file":
            return Executed((), store.rows(500))
        most = max(most, len(world.runtime._kernel.core._nodes))
        return Executed([delivery.id])

    config = {"max_derived": LIMIT, "max_in_flight": 4, "commit_batch": 4}
    async with started(work, store=store, **config) as world:
        report = await world.batch(*messages("file"))
        assert report.committed == 501
        assert 2 * LIMIT < most <= 6 * LIMIT
        assert not world.runtime._kernel._fan_outs.are_under_way


async def test_those_that_wait_for_each_other_or_their_parent_do_not_block_the_rest(monkeypatch):
    """The first wait for the last, and all for their parent: what waits takes no capacity."""
    monkeypatch.setattr("naviscope_ingest._kernel.committer._AT_ONCE", 0)

    def rows() -> Any:
        for number in range(300):
            yield Message(f"row{number}", None, depends_on=["file"] if number == 299 else ["file", "row299"])

    config = {"max_derived": LIMIT, "max_in_flight": 1, "commit_batch": 1}
    async with started(makes(lambda: Executed(["file"], rows())), store=Watching(0.01), **config) as world:
        report = await world.batch(*messages("file"), Message("after", None, depends_on=["row0", "row150"]))
        assert report.committed == 302
        assert world.sink.ops[:2] == ["file", "row299"]


async def test_a_barrier_stays_shut_until_all_derived_messages_have_come_in(monkeypatch):
    monkeypatch.setattr("naviscope_ingest._kernel.committer._AT_ONCE", 0)
    work = makes(lambda: Executed(["file"], (Message(f"row{n}", None, kind="row") for n in range(100))))
    config = {"max_derived": LIMIT, "max_in_flight": 1, "commit_batch": 1, "derives": {"file": ["row"], "row": []}}
    async with started(work, store=Watching(0.01), **config) as world:
        total = Message("total", None, kind="total", depends_on=[Dependency.barrier("row")])
        report = await world.batch(Message("file", None, kind="file"), total)
        assert report.committed == 102
        assert world.sink.ops[-1] == "total"


@pytest.mark.parametrize("seconds", [3.0, 20.0, 40.0, 60.0])
async def test_a_process_that_stops_in_the_middle_goes_on_where_it_was(monkeypatch, seconds):
    monkeypatch.setattr("naviscope_ingest._kernel.committer._AT_ONCE", 0)
    store = Watching(0.5)
    work = makes(lambda: Executed(["file"], store.rows(200)))
    config = {"max_derived": LIMIT, "max_in_flight": 8, "commit_batch": 8}
    async with started(work, store=store, **config) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit(messages("file"))
        await epoch.seal()
        await trio.sleep(seconds)
    done = list(world.sink.ops)
    assert len(done) < 201
    async with started(work, store=store, **config) as world:
        report = await (await world.intake.new_epoch("nightly")).wait()
        assert (report.submitted, report.committed) == (201, 201)
        assert set(done) | set(world.sink.ops) == {"file", *(f"row{n}" for n in range(200))}
