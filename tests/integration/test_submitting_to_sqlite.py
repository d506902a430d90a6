"""What a submit of one message costs beside its row."""

from naviscope_ingest import Dependency, IngestRuntime, MemorySink, Message


class Nothing:
    async def execute(self, message):
        raise AssertionError("it waits for something that nobody brings")


async def test_a_submit_to_a_store_that_finishes_its_calls_pays_for_no_shield(tmp_path, monkeypatch):
    """A scope for each submit would cost more than storing its message."""
    shielded = []
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with IngestRuntime.open(url, executor=Nothing(), commit_sink=MemorySink()) as intake:
        epoch = await intake.new_epoch("job")
        membership = intake._kernel._membership
        ask = membership.ask
        monkeypatch.setattr(membership, "ask", lambda call: shielded.append(call) or ask(call))
        await epoch.submit(Message("a", None, depends_on=[Dependency.resource("later", external=True)]))
        assert shielded == []
        await epoch.seal()
        assert len(shielded) == 1
        await epoch.cancel()
