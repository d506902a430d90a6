"""What goes wrong on purpose can be said in words, and what cannot happen is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_ingest.faults import POINTS, VARIABLE, Fault, Faults, InvalidFaults, spec
from naviscope_ingest.faults.injected import InjectedFault, error_of
from naviscope_ingest.faults.injector import Injector
from naviscope_spi import StoreFailed, SystemFailure, Transient


def test_a_text_names_points_kinds_and_a_seed():
    faults = Faults.parse(" seed=7, http:0.05:5xx ,sink:0.03:timeout,commit:1:crash, store:0.1:slow=2.5")
    assert faults == Faults(
        (
            Fault("executor", 0.05, "5xx", kind="http"),
            Fault("sink", 0.03, "timeout"),
            Fault("commit", 1.0, "crash"),
            Fault("store", 0.1, "slow", seconds=2.5),
        ),
        seed=7,
    )


def test_a_kind_may_be_called_as_a_point_is_or_have_a_colon():
    faults = Faults.parse("kind=sink:0.5:error,a:b:0.5:error")
    assert [fault.kind for fault in faults] == ["sink", "a:b"]


WHATS = [
    (point.name, what)
    for point in POINTS.values()
    for effect in point.effects
    for what in (("4xx", "5xx", "429", "599") if effect == "status" else (effect,))
]


@given(
    st.lists(
        st.builds(
            lambda place, probability, seconds: Fault(
                place[0], probability, place[1], seconds=seconds if place[1] in ("slow", "busy") else None
            ),
            st.sampled_from(WHATS),
            st.sampled_from([0.0, 0.001, 0.5, 1.0]),
            st.sampled_from([None, 0.0, 0.25, 30.0]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 2**64 - 1),
)
def test_faults_are_written_as_they_are_read(faults, seed):
    written = Faults(tuple(faults), seed)
    assert Faults.parse(str(written)) == written


@pytest.mark.parametrize(
    ("text", "part", "hint"),
    [
        (",", "", "point:probability:what"),
        ("sink", "sink", "point:probability:what"),
        ("sink:0.1:error,", "", "point:probability:what"),
        ("http:0.1:error,sink:0.03:timeot", "sink:0.03:timeot", "perhaps 'timeout' was meant"),
        ("snik:0.3:timeout", "snik:0.3:timeout", "perhaps 'sink' was meant"),
        ("Store:0.3:stop", "Store:0.3:stop", "kind=Store if it is a kind of message"),
        ("sink:2:timeout", "sink:2:timeout", "a number from 0 to 1"),
        ("sink:nan:timeout", "sink:nan:timeout", "a number from 0 to 1"),
        ("sink:often:timeout", "sink:often:timeout", "a number from 0 to 1"),
        ("store:0.1:5xx", "store:0.1:5xx", "allowed: slow, stop, crash"),
        ("sink:0.1:status", "sink:0.1:status", "4xx, 5xx, 429"),
        ("sink:0.1:600", "sink:0.1:600", "4xx, 5xx, 429"),
        ("lookup:0.1:crash", "lookup:0.1:crash", "connection"),
        ("sink:0.1:slow=long", "sink:0.1:slow=long", "a number from 0 on"),
        ("sink:0.1:slow=-1", "sink:0.1:slow=-1", "a number from 0 on"),
        ("sink:0.1:slow=inf", "sink:0.1:slow=inf", "a number from 0 on"),
        ("sink:0.1:timeout=3", "sink:0.1:timeout=3", "slow=2.5"),
        ("kind=:0.1:error", "kind=:0.1:error", "the kind is empty"),
        ("seed=x,sink:0.1:error", "seed=x", "seed=7"),
        ("seed=5", "seed=5", "names no fault"),
        ("seed=99999999999999999999,sink:0.1:error", "seed=99999999999999999999", "a whole number"),
        ("sink:0.1:error," * 200 + "sink:0.1:error", "201 faults", "at most 100"),
        ("x" * 20_000, "x" * 40 + "...", "at most 10000"),
    ],
)
def test_an_error_names_the_part_and_what_is_allowed(text, part, hint):
    with pytest.raises(InvalidFaults, match=r"^faults: ") as caught:
        Faults.parse(text)
    assert caught.value.part == part
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fault("disk", 0.1, "error"),
        lambda: Fault(None, 0.1, "error"),
        lambda: Fault("sink", True, "error"),
        lambda: Fault("sink", "0.1", "error"),
        lambda: Fault("sink", 0.1, None),
        lambda: Fault("sink", 0.1, "error", kind="http"),
        lambda: Fault("executor", 0.1, "error", kind=7),
        lambda: Fault("executor", 0.1, "slow", seconds="1"),
        lambda: Faults("sink:0.1:error"),
        lambda: Faults([("sink", 0.1, "error")]),
        lambda: Faults([], seed=-1),
        lambda: Faults.parse(None),
        lambda: Faults.parse(b"sink:0.1:error"),
    ],
)
def test_what_cannot_happen_is_refused_where_it_is_made(make):
    with pytest.raises(InvalidFaults):
        make()


def test_the_environment_is_read_when_it_is_asked_for(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Faults.from_environment() is None
    assert Faults.from_environment({VARIABLE: "  "}) is None
    assert not Faults.parse("  ")
    monkeypatch.setenv(VARIABLE, "sink:0.1:error")
    assert Faults.from_environment() == Faults((Fault("sink", 0.1, "error"),))
    monkeypatch.setenv(VARIABLE, "sink:0.1:eror")
    with pytest.raises(InvalidFaults, match=r"^NAVISCOPE_FAULTS: .*perhaps 'error' was meant"):
        Faults.from_environment()


def test_what_injects_is_not_loaded_unless_it_is_asked_for():
    program = "import sys, naviscope_ingest; print('naviscope_ingest.faults.components' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_errors_are_what_the_real_thing_raises_and_say_that_they_were_made():
    errors = {what: error_of(Fault(point, 1, what)) for point, what in WHATS if what not in ("slow", "crash")}
    assert isinstance(errors["connection"], ConnectionError)
    assert isinstance(errors["timeout"], TimeoutError)
    assert (errors["4xx"].status_code, errors["5xx"].status_code, errors["429"].status_code) == (400, 503, 429)
    assert isinstance(errors["busy"], Transient)
    assert errors["busy"].retry_after == 1.0
    assert isinstance(error_of(Fault("executor", 1, "stop")), SystemFailure)
    assert isinstance(error_of(Fault("store", 1, "stop")), StoreFailed)
    assert all(isinstance(error, InjectedFault) and "on purpose" in str(error) for error in errors.values())


def draws(seed, names, start=1):
    injector = Injector(Faults((Fault("executor", 0.3, "error"),), seed))
    injector.begin(start)
    return {name for name in names if injector.on_message("message", name) is not None}


def test_the_same_seed_strikes_the_same_messages_in_any_order():
    names = [f"1:1:0:m{number}" for number in range(1_000)]
    struck = draws(7, names)
    assert 240 < len(struck) < 360
    assert draws(7, reversed(names)) == struck
    assert draws(8, names) != struck


def test_each_start_draws_anew():
    names = [f"1:1:0:m{number}" for number in range(100)]
    assert draws(7, names, start=1) != draws(7, names, start=2)


def test_a_message_that_was_struck_is_not_struck_for_ever():
    injector = Injector(Faults.parse("executor:0.5:busy"))
    for number in range(100):
        tries = 1
        while injector.on_message("message", str(number)) is not None:
            tries += 1
        assert tries < 20


def test_the_reference_lists_every_point_and_what_can_happen_there():
    reference = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md").read_text(encoding="utf-8")
    rows = [
        f"| `{point.name}` | {point.what} | {', '.join(f'`{each}`' for each in spec._written(point))} |"
        for point in POINTS.values()
    ]
    assert [line for line in reference.splitlines() if line in rows] == rows
    effects = {effect for point in POINTS.values() for effect in point.effects} - {"status"}
    assert [effect for effect in effects if f"| `{effect}`" not in reference] == []
