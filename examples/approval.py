"""Payments that a person has to approve.

A payment is prepared at once and paid when somebody approves it: it depends on an external resource. Until then the
epoch is blocked, which is no error: nothing runs, nothing is given up, and the process may end. Approve days later,
with another call of the program.

    python examples/approval.py prepare
    python examples/approval.py list
    python examples/approval.py approve payment-2
"""

import argparse
import sys

from naviscope_ingest import Delivery, Dependency, Ingest, Message, Resource
from naviscope_ingest.interop import BlockingEpoch
from naviscope_ingest.sinks import Insert, SqliteSink, SqlOp

SCHEMA = "CREATE TABLE entry (id TEXT PRIMARY KEY, what TEXT NOT NULL, amount INTEGER NOT NULL)"
PAYMENTS = {"payment-1": 120, "payment-2": 4_500, "payment-3": 80}


def make_app(file: str) -> Ingest:
    app = Ingest(f"sqlite:///{file}")
    app.sink(SqliteSink(schema=SCHEMA))

    @app.handler("prepare", derives=["pay"])
    async def prepare(amount: int, message: Delivery[int]) -> list[SqlOp | Message[int]]:
        approved = Dependency.resource(f"approved/{message.id}", external=True)
        pay = Message(f"pay/{message.id}", amount, kind="pay", depends_on=[approved])
        return [Insert("entry", {"id": message.id, "what": "prepared", "amount": amount}), pay]

    @app.handler("pay", derives=[])
    async def pay(amount: int, message: Delivery[int]) -> SqlOp:
        return Insert("entry", {"id": message.id, "what": "paid", "amount": amount})

    return app


def show(epoch: BlockingEpoch[int]) -> None:
    report = epoch.wait(until="blocked")
    if report.is_completed:
        print("everything is paid")
        return
    print(f"{report.unfinished} payments wait for approval:")
    for each in epoch.explain().examples:
        print(f"  {each.id.removeprefix('pay/')}: {each.reasons[0].text}; {each.reasons[0].release}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Payments that a person has to approve.")
    parser.add_argument("action", choices=["prepare", "list", "approve"])
    parser.add_argument("payment", nargs="?", choices=sorted(PAYMENTS))
    parser.add_argument("--file", default="approval.sqlite3")
    arguments = parser.parse_args()
    if (arguments.action == "approve") != (arguments.payment is not None):
        parser.error("name the payment to approve, and only then")
    with make_app(arguments.file).running_in_thread() as intake:
        epoch: BlockingEpoch[int] = intake.new_epoch("payments")
        if arguments.action == "prepare":
            epoch.submit(Message(name, amount, kind="prepare") for name, amount in PAYMENTS.items())
            epoch.seal()
        elif arguments.action == "approve":
            intake.notify_dependency_ready(Resource(f"approved/{arguments.payment}"))
            intake.wait_idle()
        show(epoch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
