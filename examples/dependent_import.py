"""Imports a small shop in which records depend on each other, and says what came of it.

Orders need their customer. Lines need their order, and a product in the version they were sold under. The summary of a
customer needs every line to be through, good or bad. Records come in any order, and three of them are wrong: a line
sells a negative quantity, an order (with three lines) names a customer that does not exist, and a line comes twice.

    python examples/dependent_import.py
"""

import random
import sys
from collections.abc import Iterator
from typing import Any

import trio

from naviscope_ingest import (
    CommitBatch,
    Delivery,
    Dependency,
    Epoch,
    EpochReport,
    Executed,
    IngestRuntime,
    Message,
    Permanent,
    Resource,
    RuntimeComponents,
    RuntimeConfig,
)

CUSTOMERS, ORDERS, LINES, PRODUCTS = 60, 400, 1_200, 25
KINDS = ("customer", "product", "order", "line", "summary")

Record = dict[str, Any]


class Shop:
    """The system that is filled: tables of rows. It applies the rows of a message once, however often they come."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Record]] = {kind: {} for kind in KINDS}
        self._applied: set[str] = set()

    async def commit(self, batch: CommitBatch[tuple[str, str, Record]]) -> None:
        for entry in batch.entries:
            if entry.task_key not in self._applied:
                self._applied.add(entry.task_key)
                for table, key, row in entry.ops:
                    self.tables[table][key] = row


class Importer:
    """Turns a record into a row. Whatever it needs from other records is in the shop already."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def execute(self, message: Delivery[Record]) -> Executed[Record, tuple[str, str, Record]]:
        await trio.sleep(random.uniform(0.005, 0.025))  # As if another system were asked.
        record, tables = message.payload, self._shop.tables
        ready: list[Resource] = []
        row = dict(record)
        if message.kind == "product":
            ready.append(Resource(f"product/{record['sku']}", record["version"]))
        elif message.kind == "line":
            if record["quantity"] < 1:
                raise Permanent(f"quantity {record['quantity']} of {record['sku']} makes no sense")
            row["customer"] = tables["order"][record["order"]]["customer"]
            row["total"] = record["quantity"] * tables["product"][record["sku"]]["price"]
        elif message.kind == "summary":
            lines = [line for line in tables["line"].values() if line["customer"] == record["customer"]]
            row |= {"lines": len(lines), "total": sum(line["total"] for line in lines)}
        return Executed(ops=[(message.kind, message.id, row)], ready=ready)


def records() -> Iterator[Message[Record]]:
    """Make the messages of the import, the wrong ones among them."""
    dice = random.Random(7)  # The same shop each time.
    for n in range(CUSTOMERS):
        customer = f"customer-{n}"
        yield Message(customer, {"name": f"Customer {n}"}, kind="customer")
        everything = [customer, Dependency.barrier("line")]
        yield Message(f"summary-{n}", {"customer": customer}, kind="summary", depends_on=everything)
    for n in range(PRODUCTS):
        yield Message(f"sku-{n}", {"sku": f"sku-{n}", "version": 2, "price": 5 + n}, kind="product")
    for n in range(ORDERS):
        customer = "customer-999" if n == 123 else f"customer-{dice.randrange(CUSTOMERS)}"
        yield Message(f"order-{n}", {"customer": customer}, kind="order", depends_on=[customer])
    for n in range(LINES):
        order, sku = f"order-{n % ORDERS}", f"sku-{dice.randrange(PRODUCTS)}"
        line = {"order": order, "sku": sku, "quantity": -3 if n == 77 else dice.randint(1, 9)}
        yield Message(
            f"line-{n}", line, kind="line", depends_on=[order, Dependency.resource(f"product/{sku}", min_version=2)]
        )


async def show_progress(epoch: Epoch[Record]) -> None:
    """Rewrite one line of the terminal until the epoch has completed."""
    async for report in epoch.progress(every=0.05):
        ended = report.submitted - report.unfinished
        share = ended / max(1, report.submitted)
        bar = f"{'#' * round(share * 30):<30}"
        print(f"\r[{bar}] {ended}/{report.submitted} ended, {report.dead} dead", end="", flush=True)
    print()


async def show_report(epoch: Epoch[Record], report: EpochReport, shop: Shop) -> None:
    """Print what came of the import, and why what failed has failed."""
    print(f"epoch {report.name!r} is {report.state}: {report.submitted} messages, {report.duplicates} duplicate")
    print(f"  {report.committed} committed, {report.dead} dead, {report.skipped} skipped")
    print("  " + ", ".join(f"{len(rows)} in {table!r}" for table, rows in shop.tables.items()))
    for failure in report.failures:
        explanation = await epoch.explain(failure.message_id)
        print(f"  {failure.message_id}: {'; '.join(reason.text for reason in explanation.reasons)}")


async def main() -> None:
    shop = Shop()
    runtime = IngestRuntime(
        RuntimeComponents(executor=Importer(shop), commit_sink=shop),
        # Nothing here derives messages, so barriers need not allow for it. What cannot come is given up soon.
        RuntimeConfig(max_in_flight=32, derives=dict.fromkeys(KINDS, ()), stall_grace=0.2),
    )
    messages = list(records())
    messages.append(messages[-1])
    random.Random(8).shuffle(messages)
    async with runtime.running() as intake:
        epoch = await intake.new_epoch("shop-import")
        await epoch.submit(messages)
        await epoch.seal()
        if sys.stdout.isatty():
            await show_progress(epoch)
        report = await epoch.wait()
        await show_report(epoch, report, shop)


if __name__ == "__main__":
    trio.run(main)
