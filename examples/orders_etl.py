"""Loads orders into tables that refer to each other, from records in any order.

An order needs its customer, a line needs its order and its product, and the statement of a customer needs every line to
be through. A function for each kind of record; the type of its parameter is checked when a record is submitted. It is a
plain script: the runtime works in a thread of its own. Start it again, and nothing is loaded twice.

    python examples/orders_etl.py [FILE]
"""

import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from naviscope_ingest import Delivery, Dependency, Ingest, Message, PayloadNotEncodable, Permanent
from naviscope_ingest.sinks import Execute, Insert, SqliteSink, SqlOp

SCHEMA = """
    CREATE TABLE customer (id TEXT PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE product (sku TEXT PRIMARY KEY, price INTEGER NOT NULL);
    CREATE TABLE purchase (id TEXT PRIMARY KEY, customer TEXT NOT NULL);
    CREATE TABLE line (id TEXT PRIMARY KEY, purchase TEXT NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL);
    CREATE TABLE statement (customer TEXT PRIMARY KEY, lines INTEGER NOT NULL, total INTEGER NOT NULL);
"""
STATEMENT = """
    INSERT INTO statement SELECT :customer, count(*), coalesce(sum(quantity * price), 0)
    FROM purchase JOIN line ON line.purchase = purchase.id JOIN product USING (sku) WHERE customer = :customer
"""


@dataclass
class Customer:
    name: str


@dataclass
class Product:
    price: int


@dataclass
class Order:
    customer: str


@dataclass
class Line:
    order: str
    sku: str
    quantity: int


def make_app(file: str) -> Ingest:
    app = Ingest(f"sqlite:///{file}")
    app.sink(SqliteSink(schema=SCHEMA))

    @app.handler("customer", derives=["statement"])
    async def customer(record: Customer, message: Delivery[Customer]) -> list[SqlOp | Message[str]]:
        after_all = [Dependency.barrier("line")]
        statement = Message(f"statement-{message.id}", message.id, kind="statement", depends_on=after_all)
        return [Insert("customer", {"id": message.id, "name": record.name}), statement]

    @app.handler("product", derives=[])
    async def product(record: Product, message: Delivery[Product]) -> SqlOp:
        return Insert("product", {"sku": message.id, "price": record.price})

    @app.handler("order", derives=[])
    async def order(record: Order, message: Delivery[Order]) -> SqlOp:
        return Insert("purchase", {"id": message.id, "customer": record.customer})

    @app.handler("line", derives=[])
    async def line(record: Line, message: Delivery[Line]) -> SqlOp:
        if record.quantity < 1:
            raise Permanent(f"a quantity of {record.quantity} makes no sense")
        row = {"id": message.id, "purchase": record.order, "sku": record.sku, "quantity": record.quantity}
        return Insert("line", row)

    @app.handler("statement", derives=[])
    async def statement(customer: str) -> SqlOp:
        return Execute(STATEMENT, {"customer": customer})

    return app


def records() -> Iterator[Message[Any]]:
    """Make the records: plain data, as it comes from a file."""
    for n in range(20):
        yield Message(f"customer-{n}", {"name": f"Customer {n}"}, kind="customer")
    for n in range(10):
        yield Message(f"sku-{n}", {"price": 5 + n}, kind="product")
    for n in range(100):
        customer = f"customer-{n % 20}"
        yield Message(f"order-{n}", {"customer": customer}, kind="order", depends_on=[customer])
    for n in range(300):
        order, sku = f"order-{n % 100}", f"sku-{n % 10}"
        line = {"order": order, "sku": sku, "quantity": -1 if n == 77 else 1 + n % 3}
        yield Message(f"line-{n}", line, kind="line", depends_on=[order, sku])


def main(file: str) -> None:
    app = make_app(file)
    messages = list(records())
    random.Random(1).shuffle(messages)
    with app.running_in_thread() as intake:
        with intake.epoch("orders") as epoch:
            receipt = epoch.submit(messages)
            try:
                epoch.submit(Message("line-x", {"order": "order-1", "sku": "sku-1", "quantity": "two"}, kind="line"))
            except PayloadNotEncodable as error:
                print(f"refused: {error}")
        report = epoch.report
    print(f"{receipt.accepted} records accepted, {receipt.duplicates} known already")
    print(f"{report.committed} committed, {report.dead} dead")
    for failure in report.failures:
        print(f"  {failure.message_id}: {failure.error}")
    with closing(sqlite3.connect(file)) as tables:
        (count, total) = tables.execute("SELECT count(*), sum(total) FROM statement").fetchone()
    print(f"{count} statements over {total}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "orders-etl.sqlite3")
