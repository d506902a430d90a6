"""How much memory the core takes for each message that waits."""

import gc
import tracemalloc
from collections.abc import Callable

from naviscope_ingest._core import Core
from naviscope_spi import Dependency, EpochKey, EpochOptions, EpochRecord, Message, Seq

Maker = Callable[[int], Message[None]]

SHARED = Dependency.resource("shared")


def own(number: int) -> Message[None]:
    return Message(f"m{number}", None, depends_on=(Dependency.resource(f"r{number}"),))


CASES: dict[str, Maker] = {
    "one shared message": lambda number: Message(f"m{number}", None, depends_on=("shared",)),
    "one shared resource": lambda number: Message(f"m{number}", None, depends_on=(SHARED,)),
    "one own resource each": own,
}


def bytes_per_message(make: Maker, count: int) -> float:
    """Measure what accepting messages adds; the messages themselves belong to the caller and are not counted."""
    batch = [make(number) for number in range(count)]
    seqs = [Seq(number) for number in range(count)]
    core = Core()
    core.open_epoch(EpochRecord(EpochKey(1, "bench"), "open", EpochOptions()))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    core.accept(1, seqs, batch)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert core.epochs[1].waiting == count
    return taken / count


def run(*, quick: bool = False) -> None:
    count = 10_000 if quick else 100_000
    print(f"memory: bytes the core takes for a waiting message ({count:,} of them)")
    for name, make in CASES.items():
        print(f"  {name:<22} {bytes_per_message(make, count):>6.0f}")
    print()
