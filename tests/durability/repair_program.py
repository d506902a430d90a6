"""A program whose messages fail, and which is started again to repair them.

`python -m tests.durability.repair_program FOLDER fail` lets every root message die, and with them those that depend on
them. `… FOLDER repair` replays the epoch. It can be killed at any instant and is simply started again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from naviscope_ingest import Delivery, Executed, IngestRuntime, Message, Permanent, RuntimeConfig
from naviscope_ingest.sinks import Insert, SqliteSink

COUNT = 1_000
EVERY = 5
"""Which messages have one that depends on them."""
SCHEMA = "create table effects (place integer primary key autoincrement, id text, run integer)"


def messages() -> list[Message[int]]:
    roots = [Message(f"m{number}", number) for number in range(COUNT)]
    children = [Message(f"c{number}", number, depends_on=[f"m{number}"]) for number in range(0, COUNT, EVERY)]
    return [*children, *roots]


class Work:
    def __init__(self, fails: bool) -> None:
        self.fails = fails

    async def execute(self, message: Delivery[int]) -> Executed[int, Insert]:
        if self.fails:
            raise Permanent("the service is not there")
        await trio.sleep(0.001)
        return Executed([Insert("effects", {"id": message.id, "run": message.run})])


async def main(folder: Path, mode: str) -> None:
    sink = SqliteSink(None, SCHEMA)
    url = f"sqlite:///{folder / 'ingest.db'}"
    # Killed often enough, an innocent message is alone each time.
    config = RuntimeConfig(poison_threshold=1_000)
    async with IngestRuntime.open(url, executor=Work(mode == "fail"), commit_sink=sink, config=config) as intake:
        letters = intake.dead_letters
        if mode == "fail":
            async with intake.epoch("job") as epoch:
                await epoch.submit(messages())
            print(json.dumps({"dead": epoch.report.dead, "letters": await letters.count()}), flush=True)
            return
        print("repairs", flush=True)
        receipt = await letters.replay(epoch="job", who="the test", reason="it is back", per_second=1_500)
        report = await intake.wait_epoch("job")
        audit = [(each.message_id, each.run, each.who, each.messages) async for each in letters.audit()]
        found = {"committed": report.committed, "dead": report.dead, "succeeded": report.succeeded}
        known = {"replayed": receipt.letters, "letters": await letters.count(), "audit": audit}
        print(json.dumps({**found, **known, "revision": report.revision}), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
