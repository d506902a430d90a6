"""An import that can be interrupted at any time and started again.

Orders need their customer, and the statement of a customer needs every order to be through. The messages, and the rows
that come of them, are in one SQLite file. Interrupt it with Ctrl-C, or kill it, and start it again: it goes on where it
was, and no row is written twice. Started once more after its end, it finds that nothing is left to do.

    python examples/durable_import.py [FILE] [--pause SECONDS]
"""

import argparse
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import trio

from naviscope_ingest import (
    Delivery,
    Dependency,
    Epoch,
    EpochReport,
    Executed,
    IngestRuntime,
    IntakeHandle,
    Message,
    Permanent,
    RuntimeConfig,
    RuntimeStopped,
)
from naviscope_ingest.sinks import Execute, Insert, SqliteSink, SqlOp

CUSTOMERS, ORDERS = 40, 300
SCHEMA = """
    CREATE TABLE customer (id TEXT PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE booking (id TEXT PRIMARY KEY, customer TEXT NOT NULL, amount INTEGER NOT NULL);
    CREATE TABLE statement (customer TEXT PRIMARY KEY, bookings INTEGER NOT NULL, total INTEGER NOT NULL);
"""
STATEMENT = "INSERT INTO statement SELECT :id, count(*), coalesce(sum(amount), 0) FROM booking WHERE customer = :id"

Record = dict[str, Any]


class Importer:
    """Turns a record into operations for the sink, and takes its time."""

    def __init__(self, pause: float) -> None:
        self._pause = pause

    async def execute(self, message: Delivery[Record]) -> Executed[Record, SqlOp]:
        await trio.sleep(self._pause)  # As if another system were asked.
        record = message.payload
        if message.kind == "customer":
            return Executed(ops=[Insert("customer", {"id": message.id, "name": record["name"]})])
        if message.kind == "statement":
            return Executed(ops=[Execute(STATEMENT, {"id": record["customer"]})])
        if record["amount"] <= 0:
            raise Permanent(f"an amount of {record['amount']} makes no sense")
        return Executed(ops=[Insert("booking", {"id": message.id, **record})])


def records() -> Iterator[Message[Record]]:
    """Make the messages. They are the same in each run: their ids tell what is known already."""
    for n in range(CUSTOMERS):
        customer = f"customer-{n}"
        everything: list[str | Dependency] = [customer, Dependency.barrier("order")]
        yield Message(f"statement-{n}", {"customer": customer}, kind="statement", depends_on=everything)
    for n in range(ORDERS):
        customer = f"customer-{n * 7 % CUSTOMERS}"
        order = {"customer": customer, "amount": -1 if n == 77 else 10 + n % 50}
        yield Message(f"order-{n}", order, kind="order", depends_on=[customer])
    for n in range(CUSTOMERS):
        yield Message(f"customer-{n}", {"name": f"Customer {n}"}, kind="customer")


async def stop_on_signal(
    intake: IntakeHandle[Record], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Stop in order at the first Ctrl-C. A second one does not wait, and does no harm either."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            intake.runtime.stop(timeout=5)
            return


def say(text: str, end: str = "\n") -> None:
    """Tell a person who watches. In a pipe nobody does."""
    if sys.stderr.isatty():
        print(text, end=end, file=sys.stderr, flush=True)


async def show_progress(epoch: Epoch[Record]) -> None:
    """Rewrite one line of the terminal until the epoch has completed."""
    async for report in epoch.progress(every=0.1):
        ended = report.submitted - report.unfinished
        bar = f"{'#' * round(ended / max(1, report.submitted) * 30):<30}"
        say(f"\r[{bar}] {ended}/{report.submitted} ended, {report.dead} dead", end="")
    say("")


async def submit_all(intake: IntakeHandle[Record]) -> EpochReport | None:
    """Submit the records and wait for them; return the report, or None if the runtime was stopped before."""
    try:
        epoch = await intake.new_epoch("orders")
        await epoch.submit(records())  # What is known already is a duplicate.
        await epoch.seal()
        await show_progress(epoch)
    except RuntimeStopped:
        return None
    return epoch.report


async def run_import(path: str, pause: float) -> EpochReport | None:
    """Start the import, or go on with it; return None if it was interrupted."""
    async with IngestRuntime.open(
        f"sqlite:///{path}",
        executor=Importer(pause),
        commit_sink=SqliteSink(schema=SCHEMA),
        config=RuntimeConfig(max_in_flight=8, derives={"customer": (), "order": (), "statement": ()}),
    ) as intake:
        found = intake.runtime.recovery
        if found.unfinished:
            say(f"going on with {found.unfinished} messages; {found.suspects} were running when the process died")
        async with trio.open_nursery() as nursery:
            await nursery.start(stop_on_signal, intake)
            report = await submit_all(intake)
            nursery.cancel_scope.cancel()
        return report


def show_report(report: EpochReport, path: str) -> None:
    """Print what came of the import."""
    print(f"epoch {report.name!r} is {report.state}: {report.committed} committed, {report.dead} dead")
    with closing(sqlite3.connect(path)) as file:
        for table in ("customer", "booking", "statement"):
            (rows,) = file.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - names of ours
            print(f"  {rows} rows in {table!r}")
        (total,) = file.execute("SELECT sum(total) FROM statement").fetchone()
    print(f"  {total} in all statements")
    for failure in report.failures:
        print(f"  {failure.message_id}: {failure.error}")


def main() -> int:
    parser = argparse.ArgumentParser(description="An import that can be interrupted and started again.")
    parser.add_argument("file", nargs="?", default="durable-import.sqlite3", help="default: durable-import.sqlite3")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that each message takes (default: 0.1)")
    arguments = parser.parse_args()
    report = trio.run(run_import, arguments.file, arguments.pause)
    if report is None:
        say("\ninterrupted: start it again, and it goes on")
        return 130
    show_report(report, arguments.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
