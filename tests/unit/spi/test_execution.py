"""What an executor gets, and the errors that mean a decision."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_spi import (
    Delivery,
    Dependency,
    EpochExists,
    EpochKey,
    EpochSealed,
    InvalidMessage,
    Lease,
    Message,
    Permanent,
    Seq,
    SessionLost,
    SinkRejected,
    StoreRefused,
    SystemFailure,
    Transient,
    UnknownEpoch,
    task_key,
)

identities = st.tuples(
    st.text("a0", min_size=1, max_size=2), st.integers(0, 11), st.text("a:01", min_size=1, max_size=5)
)


@given(identities, identities)
def test_two_messages_never_share_a_task_key(one, other):
    """Also with colons in ids."""
    assert (task_key(*one) == task_key(*other)) is (one == other)


@given(identities)
def test_a_task_key_can_be_taken_apart(identity):
    store_id, number, message_id = identity
    assert task_key(*identity).split(":", 2) == [store_id, str(number), message_id]


def test_a_delivery_shows_its_lease():
    message = Message("load", {"rows": 3}, kind="load")
    lease = Lease(Seq(9), EpochKey(4, "night"), message, token=1, run=2, attempt=1)
    unmet = [Dependency.message("fetch")]
    delivery = Delivery(lease, "5f1c", unmet, {"schema": b"7"})
    assert (delivery.id, delivery.payload, delivery.kind, delivery.message) == ("load", {"rows": 3}, "load", message)
    assert (delivery.epoch, delivery.run, delivery.attempt) == (EpochKey(4, "night"), 2, 1)
    assert (delivery.unmet, delivery.values) == (unmet, {"schema": b"7"})
    assert delivery.task_key == "5f1c:4:load"
    assert repr(delivery) == "<Delivery '5f1c:4:load' run 2 attempt 1>"


def test_what_a_delivery_does_not_get_is_empty_and_cannot_be_filled_by_mistake():
    delivery = Delivery(Lease(Seq(1), EpochKey(1, "e"), Message("a", None), token=1), "s")
    assert not delivery.unmet
    assert not delivery.values
    with pytest.raises(TypeError):
        delivery.values["a"] = b"for everybody"


@pytest.mark.parametrize(
    ("error", "text", "facts"),
    [
        (
            EpochSealed("night", "late"),
            "epoch 'night' is sealed and does not know message 'late': nothing of this call was stored; "
            "submit it to an open epoch",
            {"epoch": "night", "message_id": "late"},
        ),
        (
            EpochExists("night"),
            "epoch 'night' exists: choose another name, or rejoin it with if_exists=\"rejoin\"",
            {"epoch": "night"},
        ),
        (
            UnknownEpoch("night"),
            "there is no epoch 'night': it was never opened in this store, or it was forgotten",
            {"epoch": "night"},
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_refusal_says_what_is_wrong_and_carries_the_facts(error, text, facts):
    assert isinstance(error, StoreRefused)
    assert str(error) == text
    assert {name: getattr(error, name) for name in facts} == facts


def test_a_sink_that_refuses_many_names_a_few():
    rejected = {f"s:1:m{i}": ValueError(str(i)) for i in range(9)}
    error = SinkRejected(rejected)
    assert str(error) == "the sink refused 9 messages: s:1:m0, s:1:m1, s:1:m2, s:1:m3, s:1:m4"
    rejected.clear()
    assert len(error.rejected) == 9


def test_a_transient_failure_may_say_when_to_come_back():
    assert (str(Transient("busy")), Transient("busy").retry_after) == ("busy", None)
    assert Transient(retry_after=2.5).retry_after == 2.5


def test_decisions_are_told_apart_by_their_type():
    """An executor that raises one of them must not be taken to have raised another."""
    decisions = [Transient, Permanent, SystemFailure, SinkRejected, SessionLost, StoreRefused, InvalidMessage]
    for one in decisions:
        assert [other for other in decisions if issubclass(one, other)] == [one]


def test_importing_the_contracts_loads_neither_trio_nor_the_runtime():
    script = (
        "import sys, naviscope_spi\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'trio', 'naviscope_ingest', 'sortedcontainers'}))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
