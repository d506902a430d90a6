"""Is this sink safe to repeat? Kill its pipeline everywhere, and see.

    python examples/crash_test.py careless    # finds out that customers are charged twice
    python examples/crash_test.py careful     # passes

A bank charges customers. It lives elsewhere: it knows nothing of our crashes. The careless sink just asks it to charge.
When the process dies after the bank has charged and before the store knows, the same payment comes again. The careful
sink says for which task it asks, and the bank does what it has done already only once.
"""

import sys

from naviscope_ingest import CommitBatch, Delivery, Executed, Message, RuntimeComponents
from naviscope_ingest.testing import Program, SimulationFailed, World, crash_everywhere, simulate


class Bank:
    """Charges customers; with a key, once for each key."""

    def __init__(self):
        self.charges: list[str] = []
        self.keys: set[str] = set()

    def charge(self, customer: str, key: str | None = None) -> None:
        if key is not None:
            if key in self.keys:
                return
            self.keys.add(key)
        self.charges.append(customer)


class Accountant:
    """Says whom to charge."""

    async def execute(self, message: Delivery[str]) -> Executed[str, str]:
        return Executed([message.payload])


class CarelessSink:
    def __init__(self, bank: Bank):
        self.bank = bank

    async def commit(self, batch: CommitBatch[str]) -> None:
        for entry in batch.entries:
            for customer in entry.ops:
                self.bank.charge(customer)


class CarefulSink(CarelessSink):
    async def commit(self, batch: CommitBatch[str]) -> None:
        for entry in batch.entries:
            for place, customer in enumerate(entry.ops):
                self.bank.charge(customer, key=f"{entry.task_key}:{place}")


class Payments(Program):
    """Three payments. The bank outlives every crash, because the program object does."""

    sink = CarelessSink

    def __init__(self):
        self.bank = Bank()

    def components(self, world: World) -> RuntimeComponents:
        return RuntimeComponents(executor=Accountant(), commit_sink=self.sink(self.bank))

    async def workload(self, intake) -> None:
        async with intake.epoch("march") as epoch:
            await epoch.submit([Message(f"payment-{name}", name) for name in ("ada", "bob", "eve")])

    def check(self, world: World) -> None:
        for customer in ("ada", "bob", "eve"):
            charged = self.bank.charges.count(customer)
            assert charged <= 1, f"{customer} was charged {charged} times"
            if ("march", f"payment-{customer}") in world.committed:
                assert charged == 1, f"the payment of {customer} is settled, and the bank knows nothing of it"


class CarefulPayments(Payments):
    sink = CarefulSink


def main(which: str) -> int:
    program = {"careless": Payments, "careful": CarefulPayments}[which]
    try:
        report = crash_everywhere(program)
        print(f"killed at {report.crashes} places: every customer was charged once")
        more = simulate(program, seeds=25)
        print(f"25 seeds with {more.crashes} crashes and {more.power_cuts} power cuts: every customer was charged once")
    except SimulationFailed as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "careless"))
