"""A small program that is killed and simply started again: `python -m tests.durability.program FOLDER MODE`.

Its executor is not deterministic: what it answers differs from run to run, so a message whose effect was applied twice,
or by halves, cannot look right. A message that derives another one names it in its own row: if it ran a second time
after its row was written, there is a child that no row names.

Modes: "colocated" has its rows in the store's file; "ledger" in a file of their own; "severed" too, and the program
often kills itself between the sink's commit and the settlement; "unrecorded" is the same with a sink that cannot encode
its ops, which must show; "deadly" has a message that kills the program.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import trio

from naviscope_ingest import CommitBatch, Delivery, Executed, IngestRuntime, Message, RuntimeConfig
from naviscope_ingest.sinks import Insert, SqliteSink

COUNT = 240
EVERY = 4
"""Which messages derive another one."""
SCHEMA = "create table effects (place integer primary key autoincrement, id text, nonce text, child text)"
DEADLY = "deadly"


def parents_of(number: int) -> list[str]:
    chance = random.Random(number)
    near = range(max(0, number - 30), number)
    return [f"m{parent}" for parent in sorted(chance.sample(near, min(len(near), chance.randint(0, 2))))]


def messages(deadly: bool) -> list[Message[int]]:
    found = [Message(f"m{number}", number, depends_on=parents_of(number)) for number in range(COUNT)]
    return [*found, Message(DEADLY, 0, kind="deadly")] if deadly else found


def expected_parents() -> dict[str, list[str]]:
    return {f"m{number}": parents_of(number) for number in range(COUNT)}


class Slow:
    is_working = False

    async def execute(self, message: Delivery[int]) -> Executed[int, Insert]:
        if not self.is_working:
            self.is_working = True
            print("works", flush=True)
        if message.kind == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        await trio.sleep(random.uniform(0.002, 0.03))
        nonce = random.randbytes(4).hex()
        derives = message.kind == "message" and message.payload % EVERY == 0
        child = f"child-of-{message.id}-{nonce}" if derives else None
        ops = [Insert("effects", {"id": message.id, "nonce": nonce, "child": child})]
        return Executed(ops, [] if child is None else [Message(child, 1, kind="child")])


class Unrecorded:
    """A sink that often kills the program when it has committed, and cannot encode its ops."""

    def __init__(self, sink: SqliteSink) -> None:
        self.sink = sink

    async def commit(self, batch: CommitBatch[Insert]) -> None:
        await self.sink.commit(batch)
        if random.random() < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)


class Severed(Unrecorded):
    """The same, but it can."""

    def __init__(self, sink: SqliteSink) -> None:
        super().__init__(sink)
        self.encode_ops = sink.encode_ops
        self.decode_ops = sink.decode_ops


WRAPPERS = {"severed": Severed, "unrecorded": Unrecorded}
ELSEWHERE = ("ledger", *WRAPPERS)


async def main(folder: Path, mode: str) -> None:
    rows = SqliteSink(folder / "effects.db" if mode in ELSEWHERE else None, SCHEMA)
    sink = WRAPPERS[mode](rows) if mode in WRAPPERS else rows
    url = f"sqlite:///{folder / 'ingest.db'}"
    config = RuntimeConfig(max_in_flight=8, commit_batch=8)
    async with IngestRuntime.open(url, executor=Slow(), commit_sink=sink, config=config) as intake:
        async with intake.epoch("job") as epoch:
            await epoch.submit(messages(mode == "deadly"))
        report = epoch.report
        found = {"committed": report.committed, "dead": report.dead, "submitted": report.submitted}
        errors = [failure.error for failure in report.failures]
        print(json.dumps({**found, "state": report.state, "errors": errors}), flush=True)
    await rows.aclose()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
