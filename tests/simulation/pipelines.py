"""Small pipelines for tests of the simulator: a sink that is safe to repeat, and some that are not."""

from __future__ import annotations

from naviscope_ingest import Executed, Message, RuntimeComponents
from naviscope_ingest.testing import Program


class Answers:
    """An executor that gives the id on."""

    async def execute(self, message):
        return Executed([message.id])


class Pipeline(Program):
    """A chain of messages and a sink that looks keys up before it writes.

    Attributes:
        rows: what the sink wrote, in order, by task key.
        events: what a process saw of itself.
    """

    COUNT = 2

    def __init__(self):
        self.rows = []
        self.keys = set()
        self.checks = []

    def components(self, world):
        return RuntimeComponents(executor=Answers(), commit_sink=self)

    async def workload(self, intake):
        messages = [Message(f"m{n}", n, depends_on=[f"m{n - 1}"] if n else ()) for n in range(self.COUNT)]
        async with intake.epoch("job") as epoch:
            await epoch.submit(messages)

    async def commit(self, batch):
        for entry in batch.entries:
            if entry.task_key not in self.keys:
                self.keys.add(entry.task_key)
                self.rows += entry.ops

    def check(self, world):
        self.checks.append(world.moment)
        committed = [message for _, message in sorted(world.committed)]
        assert set(committed) <= set(self.rows), "something is settled and was not written"
        assert len(set(self.rows)) == len(self.rows), "something was written twice"
        if world.is_over:
            assert self.rows == [f"m{n}" for n in range(self.COUNT)]


class Repeating(Pipeline):
    """Writes whatever comes."""

    async def commit(self, batch):
        for entry in batch.entries:
            self.rows += entry.ops
