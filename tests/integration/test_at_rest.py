"""A store that is opened at rest answers and takes changes, and nothing of it runs."""

import pytest
import trio

from naviscope_ingest import (
    Executed,
    HandlerError,
    Ingest,
    IngestRuntime,
    MemorySink,
    Message,
    Permanent,
    RuntimeStopped,
    UnknownKind,
)
from naviscope_ingest.stores.sqlite import StoreLocked, StoreUnavailable


class Notes:
    """Notes ids; raises for what is called bad, and waits for ever with what is called slow."""

    def __init__(self):
        self.seen = []
        self.reached = trio.Event()

    async def execute(self, message):
        self.seen.append(message.id)
        if message.id == "slow":
            self.reached.set()
            await trio.sleep_forever()
        if message.id.startswith("bad"):
            raise Permanent("it is bad")
        return Executed()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ingest.db'}"


def running(url, executor):
    return IngestRuntime.open(url, executor=executor, commit_sink=MemorySink())


async def test_messages_wait_for_the_next_start(url):
    async with IngestRuntime.at_rest(url) as intake:
        epoch = await intake.new_epoch("monday")
        receipt = await epoch.submit([Message("a", 1), Message("b", 2, depends_on=["a"])])
        await epoch.seal()
        assert (receipt.accepted, epoch.report.unfinished, intake.runtime.state) == (2, 2, "at rest")
        with pytest.raises(RuntimeStopped, match="nothing runs here"):
            await epoch.wait()
    notes = Notes()
    async with running(url, notes) as intake:
        assert (await intake.wait_epoch("monday")).succeeded
    assert notes.seen == ["a", "b"]


async def test_more_messages_may_be_submitted_than_a_runtime_lets_in(url):
    async with IngestRuntime.at_rest(url) as intake:
        epoch = await intake.new_epoch()
        receipt = await epoch.submit(Message(f"m{n}", n) for n in range(25_000))
    assert receipt.accepted == 25_000


async def test_an_epoch_that_is_cancelled_at_rest_completes_at_once(url):
    async with IngestRuntime.at_rest(url) as intake:
        epoch = await intake.new_epoch("monday")
        await epoch.submit([Message("a", 1), Message("b", 2, depends_on=["a"])])
        await epoch.cancel()
        assert (await epoch.wait()).cancelled == 2
    async with IngestRuntime.at_rest(url, read_only=True) as intake:
        assert intake.report("monday").is_completed


async def test_a_replay_at_rest_runs_at_the_next_start(url):
    async with running(url, Notes()) as intake, intake.epoch("monday") as epoch:
        await epoch.submit([Message("bad", 1), Message("after", 2, depends_on=["bad"])])
    async with IngestRuntime.at_rest(url) as intake:
        receipt = await intake.dead_letters.replay(epoch="monday", message_id="bad", payload=3)
        assert (receipt.letters, receipt.revived) == (1, 2)
        assert intake.report("monday").state == "repairing"
    notes = Notes()
    async with running(url, notes) as intake:
        await intake.wait_epoch("monday")
    assert notes.seen == ["bad"]


async def test_who_only_reads_changes_nothing_and_may_do_so_beside_a_process(url):
    async with running(url, Notes()) as intake:
        async with intake.epoch("monday") as epoch:
            await epoch.submit([Message("a", 1), Message("bad", 1)])
        async with IngestRuntime.at_rest(url, read_only=True) as reader:
            assert reader.report("monday").committed == 1
            assert [letter.message_id async for letter in reader.dead_letters.find()] == ["bad"]
            with pytest.raises(RuntimeStopped, match="opened to be read"):
                await reader.submit("monday", [Message("c", 1)])
        with pytest.raises(StoreLocked):
            async with IngestRuntime.at_rest(url):
                pass
    with pytest.raises(StoreUnavailable):
        async with IngestRuntime.at_rest("sqlite:////nowhere/at/all.db", read_only=True):
            pass


@pytest.fixture
async def died(url, tmp_path):
    """The URL of a store whose process died while "slow" ran: a copy of a file whose process works."""
    notes = Notes()
    async with running(url, notes) as intake:
        epoch = await intake.new_epoch("monday")
        await epoch.submit([Message("slow", 1), Message("other", 1, depends_on=["slow"])])
        await notes.reached.wait()
        # A claim is safe with the next thing that is.
        await intake.new_epoch("tuesday")
        for suffix in ("", "-wal"):
            (tmp_path / f"died.db{suffix}").write_bytes((tmp_path / f"ingest.db{suffix}").read_bytes())
        intake.runtime.stop(timeout=0)
    return f"sqlite:///{tmp_path / 'died.db'}"


async def test_what_a_dead_process_ran_is_told_to_the_next_start(died):
    async with IngestRuntime.at_rest(died) as intake:
        await intake.submit("monday", [Message("more", 1)])
        assert (await intake.explain("monday", "slow")).state.value == "running"
        assert await intake.cancel("monday", "other")
    async with IngestRuntime.at_rest(died, read_only=True) as intake:
        assert (await intake.explain("monday", "other")).end == "cancelled"
    async with running(died, Notes()) as intake:
        assert intake.runtime.recovery.suspects == 1
        intake.runtime.stop(timeout=0)


async def test_what_ran_when_its_process_died_can_be_cancelled_at_rest(died):
    async with IngestRuntime.at_rest(died) as intake:
        assert await intake.cancel("monday", "slow")
        await intake.cancel_epoch("monday")
    notes = Notes()
    async with running(died, notes) as intake:
        assert (await intake.wait_epoch("monday")).cancelled == 2
    assert notes.seen == []


async def test_an_app_checks_messages_at_rest_as_when_it_runs(url):
    app = Ingest(url)

    @app.handler("customer")
    def load(customer: int) -> None: ...

    async with app.at_rest() as intake:
        epoch = await intake.new_epoch()
        with pytest.raises(UnknownKind):
            await epoch.submit([Message("a", 1, kind="custmer")])
        with pytest.raises(ValueError, match="payload cannot be encoded"):
            await epoch.submit([Message("a", "one", kind="customer")])
        assert (await epoch.submit([Message("a", 1, kind="customer")])).accepted == 1
    with pytest.raises(HandlerError):
        async with Ingest(url).at_rest():
            pass
