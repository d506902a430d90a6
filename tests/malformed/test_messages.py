"""Malformed messages, dependencies and epochs: `InvalidMessage` or a refusal of the store, and nothing is stored."""

import inspect
import random
from collections import Counter

import trio

from naviscope_ingest import (
    Dependency,
    Executed,
    InvalidMessage,
    Message,
    Resource,
    UnknownEpoch,
    UnknownMessage,
)
from naviscope_ingest.testing import open_virtual_runtime
from naviscope_pytest import run_virtually
from naviscope_spi import EpochOptions
from tests.malformed import junk

ROUNDS = 4_000
OPTIONS = ("otherwise", "timeout", "on_unresolved")
DEPENDENCIES = {
    Dependency.message: (1, ("epoch", *OPTIONS)),
    Dependency.resource: (1, ("min_version", "external", *OPTIONS)),
    Dependency.barrier: (1, OPTIONS),
    Dependency.epoch: (1, OPTIONS),
    Dependency.any_of: (2, ("at_least", *OPTIONS)),
}
FIELDS = [name for name in inspect.signature(Message).parameters if name != "payload"]


def some(rng, names):
    """Return malformed values for some of those names."""
    return {name: junk.value(rng) for name in rng.sample(names, rng.randint(1, min(3, len(names))))}


def message(rng):
    return Message(**{"id": "a", "payload": 1, **some(rng, FIELDS)})


def dependency(rng):
    make, (count, options) = rng.choice(list(DEPENDENCIES.items()))
    names = [junk.value(rng) if rng.random() < 0.6 else f"n{index}" for index in range(count)]
    return make(*names, **{name: junk.value(rng) for name in options if rng.random() < 0.4})


def resource(rng):
    return Resource(junk.value(rng) if rng.random() < 0.5 else "r", **some(rng, ["version", "add", "value"]))


def options(rng):
    return EpochOptions(**some(rng, list(inspect.signature(EpochOptions).parameters)))


def test_what_is_malformed_cannot_be_made():
    rng = random.Random(1)
    for make in (message, dependency, resource, options):
        refused = 0
        for _ in range(ROUNDS):
            try:
                make(rng)
            except InvalidMessage as error:
                refused += 1
                assert 0 < len(str(error)) < 1_000
            except junk.HostileError:
                refused += 1
        assert refused >= 2_000, make


async def submit(rng, intake, epoch, ends):
    """Submit something that is no message, or not only."""
    good = [Message(f"good-{rng.random()}", None)]
    bad = [junk.value(rng) for _ in range(rng.randint(1, 2))]
    things = rng.choice([bad, [*good, *bad], tuple(bad), iter(bad), bad[0]])
    try:
        await epoch.submit(things, **({} if rng.random() < 0.7 else some(rng, ["strict", "unique_for"])))
    except (InvalidMessage, junk.HostileError) as error:
        ends["refused"] += 1
        assert not isinstance(error, InvalidMessage) or 0 < len(str(error)) < 1_000
    except Exception as error:
        ends[type(error).__name__] += 1
    else:
        ends["accepted"] += 1


def test_a_submit_of_anything_else_than_messages_stores_nothing():
    ends = Counter()

    async def main():
        rng = random.Random(2)

        async def work(delivery):
            return Executed()

        async with open_virtual_runtime(work) as world:
            epoch = await world.intake.new_epoch()
            for _ in range(2_500):
                with trio.move_on_after(10):
                    await submit(rng, world.intake, epoch, ends)
            await epoch.seal()
            report = await epoch.wait()
            assert report.submitted == 0, ends

    run_virtually(main)
    assert ends["refused"] >= 2_000, ends
    assert ends.keys() <= {"refused", "accepted"}, ends


def calls(intake, rng):
    """Return a call with something that it does not take, and its name."""
    value = junk.value(rng)
    found = {
        "new_epoch": lambda: intake.new_epoch("e", **some(rng, ["on_unresolved", "retain", "weight", "if_exists"])),
        "new_epoch by name": lambda: intake.new_epoch([] if value is None or isinstance(value, str) else value),
        "notify": lambda: intake.notify_dependency_ready(value),
        "get_epoch": lambda: intake.get_epoch(value),
        "submit": lambda: intake.submit(value, [Message("a", None)]),
        "seal": lambda: intake.seal_epoch(value),
        "wait": lambda: intake.wait_epoch(value, timeout=1),
        "explain": lambda: intake.explain(value),
        "explain one": lambda: intake.explain("known", [] if value is None else value),
        "cancel": lambda: intake.cancel("known", value),
        "cancel_epoch": lambda: intake.cancel_epoch(value),
        "forget": lambda: intake.forget(value),
    }
    return rng.choice(list(found.items()))


def test_calls_with_anything_are_refused_and_change_nothing():
    ends = Counter()

    async def main():
        rng = random.Random(3)

        async def work(delivery):
            return Executed()

        async with open_virtual_runtime(work) as world:
            await world.intake.new_epoch("known")
            for _ in range(3_500):
                name, call = calls(world.intake, rng)
                try:
                    await call()
                except (InvalidMessage, UnknownEpoch, UnknownMessage, junk.HostileError):
                    ends["refused"] += 1
                except Exception as error:
                    ends[name, type(error).__name__, str(error)[:80]] += 1
                else:
                    ends["accepted", name] += 1
            await world.look()
            assert world.messages == {}

    run_virtually(main)
    assert ends.pop("refused") >= 2_000, ends
    assert not [each for each in ends if each[0] != "accepted"], ends
    # A resource that nobody has may be forgotten, and some options are fine.
    assert ends.keys() <= {("accepted", name) for name in ("new_epoch", "forget")}, ends
