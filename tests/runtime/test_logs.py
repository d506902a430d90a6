"""What a runtime logs carries its facts: epoch, message, attempt, and others."""

import ast
import logging
from pathlib import Path

import pytest

from naviscope_ingest import Dependency, Message, Permanent, Transient
from naviscope_ingest.logs import facts_of
from tests.runtime.worlds import messages, started

RECORDS = ("log", *(f"_log.{level}" for level in ("log", "debug", "info", "warning", "error", "exception")))
PACKAGE = Path(__file__).parents[2] / "naviscope_ingest"


@pytest.fixture
def heard(caplog):
    caplog.set_level(logging.INFO, "naviscope_ingest")

    def having(text):
        return [facts_of(record) for record in caplog.records if text in record.getMessage()]

    return having


async def test_a_message_that_dies_is_named_with_epoch_and_attempt(heard):
    async with started({"a": [Permanent("bad")]}) as world:
        await world.batch(*messages("a"), name="nightly")
    assert heard("message 'a' of epoch 'nightly' ended dead: Permanent: bad") == [
        {
            "epoch": "nightly",
            "epoch_number": 1,
            "message_id": "a",
            "kind": "message",
            "attempt": 1,
            "run": 0,
            "error_kind": "client",
        }
    ]


async def test_an_attempt_that_runs_again_says_when(heard):
    async with started({"a": [Transient("busy", retry_after=7)]}) as world:
        await world.batch(*messages("a"))
    (facts,) = heard("it runs again")
    assert (facts["message_id"], facts["attempt"], facts["delay"]) == ("a", 1, 7)


async def test_epochs_say_when_they_are_blocked_and_how_they_completed(heard):
    async with started({"b": [Permanent("bad")]}) as world:
        epoch = await world.intake.new_epoch("nightly")
        await epoch.submit([*messages("b"), Message("a", None, depends_on=[Dependency.resource("ok", external=True)])])
        await epoch.seal()
        await epoch.wait(until="blocked")
        assert [facts["epoch"] for facts in heard("is blocked")] == ["nightly"]
        await epoch.cancel()
        await epoch.wait()
    (facts,) = heard("epoch 'nightly' completed: 2 submitted, 0 committed, 1 dead, 0 skipped, 1 cancelled, 0 expired")
    assert (facts["event"], facts["dead"], facts["cancelled"], facts["revision"]) == ("completed", 1, 1, 0)


def test_every_record_of_the_runtime_has_facts():
    """Words are for people; who counts or searches needs the facts beside them."""
    bare = []
    for path in [*(PACKAGE / "_kernel").glob("*.py"), *(PACKAGE / "dead_letters").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            is_record = isinstance(node, ast.Call) and ast.unparse(node.func) in RECORDS
            if is_record and not any(each.arg == "extra" for each in node.keywords):
                bare.append(f"{path.name}:{node.lineno}")
    assert bare == []
