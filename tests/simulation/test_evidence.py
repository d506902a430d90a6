"""The evidence is complete, and the figures of the documentation are its own."""

import json

from naviscope_ingest.testing import FAULTS
from tests.soak.drivers import play_chunk
from tests.soak.evidence import SOMETIMES, evidence
from tests.soak.figures import EVIDENCE, PAGE, renewed


def committed():
    return json.loads(EVIDENCE.read_text(encoding="utf-8"))


def test_the_figures_of_the_documentation_are_those_of_the_evidence():
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page, committed()), "run python -m tests.soak.figures"
    assert renewed(page, committed() | {"crashes": 1}) != page


def test_the_evidence_shows_every_fault_and_every_state_and_no_violation():
    found = committed()
    assert found["violations"] == 0
    assert {name for name in FAULTS if not found["faults"][name]} == set()
    assert {name for name in SOMETIMES if not found["sometimes"][name]} == set()
    assert len(found["traces"]) == -(-found["kernel_seeds"] // 100)


def test_evidence_is_made_of_what_was_played():
    tally = play_chunk("kernel", 100, 3)
    found = evidence({"kernel": tally, "core": play_chunk("core", 0, 2)}, 100, "abc")
    assert (found["kernel_seeds"], found["core_seeds"], found["violations"]) == (3, 2, 0)
    assert found["crashes"] == tally.counts["crashes"]
    assert list(found["traces"]) == ["100"]
