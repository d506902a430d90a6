"""A small program that is killed and simply started again: `python -m tests.durability.program FOLDER MODE`.

Its executor is not deterministic: what it answers differs from run to run, so a message whose effect was applied twice,
or by halves, cannot look right.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import trio

from naviscope_ingest import Delivery, Executed, IngestRuntime, Message, RuntimeConfig
from naviscope_ingest.sinks import Insert, SqliteSink

COUNT = 240
SCHEMA = "create table effects (place integer primary key autoincrement, id text, nonce text)"
DEADLY = "deadly"


def parents_of(number: int) -> list[str]:
    chance = random.Random(number)
    near = range(max(0, number - 30), number)
    return [f"m{parent}" for parent in sorted(chance.sample(near, min(len(near), chance.randint(0, 2))))]


def messages(deadly: bool) -> list[Message[int]]:
    found = [Message(f"m{number}", number, depends_on=parents_of(number)) for number in range(COUNT)]
    return [*found, Message(DEADLY, 0, kind="deadly")] if deadly else found


def expected_parents() -> dict[str, list[str]]:
    parents = {f"m{number}": parents_of(number) for number in range(COUNT)}
    return parents | {f"child-of-m{number}": [f"m{number}"] for number in range(0, COUNT, 20)}


class Slow:
    is_working = False

    async def execute(self, message: Delivery[int]) -> Executed[int, Insert]:
        if not self.is_working:
            self.is_working = True
            print("works", flush=True)
        if message.kind == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        await trio.sleep(random.uniform(0.002, 0.03))
        ops = [Insert("effects", {"id": message.id, "nonce": random.randbytes(4).hex()})]
        derives = message.kind == "message" and message.payload % 20 == 0
        derived = [Message(f"child-of-{message.id}", 1, kind="child")] if derives else []
        return Executed(ops, derived)


async def main(folder: Path, mode: str) -> None:
    sink = SqliteSink(folder / "effects.db" if mode == "ledger" else None, SCHEMA)
    url = f"sqlite:///{folder / 'ingest.db'}"
    config = RuntimeConfig(max_in_flight=8, commit_batch=8)
    async with IngestRuntime.open(url, executor=Slow(), commit_sink=sink, config=config) as intake:
        async with intake.epoch("job") as epoch:
            await epoch.submit(messages(mode == "deadly"))
        report = epoch.report
        found = {"committed": report.committed, "dead": report.dead, "submitted": report.submitted}
        errors = [failure.error for failure in report.failures]
        print(json.dumps({**found, "state": report.state, "errors": errors}), flush=True)
    await sink.aclose()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
