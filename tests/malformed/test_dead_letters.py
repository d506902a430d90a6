"""Malformed patches, imports and filters of dead letters: refusals in words, and nothing has changed."""

import random
from collections import Counter

from attrs import define

from naviscope_ingest import (
    Fatal,
    ImportRefused,
    InvalidFilter,
    InvalidMessage,
    Message,
    PatchRefused,
    ReplayInVain,
    UnknownEpoch,
    UnknownLetter,
)
from naviscope_ingest.testing import open_virtual_runtime
from naviscope_pytest import run_virtually
from tests.malformed import junk

REFUSALS = (PatchRefused, ImportRefused, InvalidFilter, InvalidMessage, UnknownLetter, UnknownEpoch, ReplayInVain)


@define
class Line:
    amount: int


@define
class Order:
    url: str
    lines: list[Line]


async def dies(delivery):
    return Fatal("broken")


async def state(world):
    """Return everything that a repair could have changed."""
    letters = world.intake.dead_letters
    found = [(each.message_id, each.run) async for each in letters.find()]
    whole = await letters.show("e", "a")
    noted = [each async for each in letters.audit()]
    return found, repr(whole.payload), whole.edited, noted, [report.submitted for report in world.intake.epochs()]


def refused(rounds, make_call, least=2_000):
    """Make calls that are malformed, and expect refusals that change nothing."""
    ends = Counter()

    async def main():
        rng = random.Random(1)
        async with open_virtual_runtime(dies) as world:
            await world.batch(Message("a", Order("x", [Line(1), Line(2)])), Message("b", {"n": 1}), name="e")
            await world.intake.new_epoch("open")
            lines = [line async for line in world.intake.dead_letters.export_lines(epoch="e")]
            before = await state(world)
            for _ in range(rounds):
                call = make_call(rng, world.intake.dead_letters, lines)
                try:
                    await call()
                except (*REFUSALS, junk.HostileError) as error:
                    ends["refused"] += 1
                    assert isinstance(error, junk.HostileError) or 0 < len(str(error)) < 2_000
                except Exception as error:
                    ends[type(error).__name__, str(error)[:100]] += 1
                else:
                    ends["accepted"] += 1
            after = await state(world)
            assert after == before

    run_virtually(main)
    assert ends["refused"] >= least, ends
    assert ends.keys() <= {"refused", "accepted"}, ends


PATHS = ("url", "ulr", "lines", "lines.0", "lines.9", "lines.0.amount", "lines.-1", "url.x", "", ".", "a..b", "lines.x")


def a_patch(rng, letters, lines):
    draw = rng.random()
    if draw < 0.5:
        # None of these types fits any of those paths.
        patch = {rng.choice(PATHS): rng.choice((None, 1.5, set(), junk.value(rng), object(), b"x"))}
        patch["never"] = 1
    elif draw < 0.8:
        patch = junk.value(rng)
        patch = {} if patch is None else patch
    else:
        patch = {rng.choice((1, None, b"q", "q.r")): junk.value(rng)}
    return lambda: letters.replay(epoch="e", message_id="a", patch=patch)


def test_a_malformed_patch_changes_nothing():
    refused(2_500, a_patch)


def an_import(rng, letters, lines):
    draw = rng.random()
    if draw < 0.7:
        line = junk.damaged_text(rng, rng.choice(lines))
        given = [*lines[: rng.randint(0, 1)], line, "["]
    elif draw < 0.85:
        given = [junk.value(rng), "["]
    else:
        given = junk.value(rng)
        given = [given, "["] if isinstance(given, dict | list | tuple | set | frozenset) else given
    return lambda: letters.import_lines("open", given)


def test_a_malformed_import_submits_nothing():
    refused(2_500, an_import)


KEYS = ("epoch", "message_id", "kind", "error_kind", "fingerprint", "since", "until", "epocj", "x")


def a_filter(rng, letters, lines):
    where = {rng.choice(KEYS): junk.value(rng) for _ in range(rng.randint(1, 2))}
    where["colour"] = "red"
    draw = rng.random()
    if draw < 0.5:
        where.pop("colour")
        where["error_kind"] = rng.choice(("time_out", 7, 1.5, [["timeout"]], object(), {"timeout": 1}))
    return rng.choice(
        [
            lambda: letters.replay(**where),
            lambda: letters.discard(reason="no use", **where),
            lambda: letters.count(**where),
            lambda: letters.groups(**where),
        ]
    )


def test_a_malformed_filter_selects_nothing():
    refused(2_500, a_filter)
