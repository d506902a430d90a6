"""The examples do what they say, as programs of their own."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_orders_are_loaded_once(tmp_path):
    first, second = (run("examples/orders_etl.py", tmp_path / "orders.db").splitlines() for _ in range(2))
    assert first[0].startswith("refused: message 'line-x' of kind 'line': payload.quantity cannot be encoded")
    assert first[1] == "430 records accepted, 0 known already"
    assert first[2:4] == ["449 committed, 1 dead", "  line-77: Permanent: a quantity of -1 makes no sense"]
    assert second[1:] == ["0 records accepted, 430 known already", *first[2:]]
    assert first[4].startswith("20 statements over ")


def test_a_store_on_sqlitedict_knows_what_an_earlier_process_did(tmp_path):
    path = tmp_path / "numbers.sqlite"
    assert run("examples/sqlitedict_store.py", path) == "2 new, 2 committed, in this run [2, 4]\n"
    assert run("examples/sqlitedict_store.py", path) == "0 new, 2 committed, in this run []\n"


def test_a_payment_waits_for_a_person_over_restarts(tmp_path):
    def call(*arguments):
        return run("examples/approval.py", *arguments, "--file", tmp_path / "approval.db").splitlines()

    waiting = call("prepare")
    assert waiting[0] == "3 payments wait for approval:"
    assert "  payment-2: external resource 'approved/payment-2' was never provided; somebody provides it" in waiting
    assert call("list") == waiting
    assert call("approve", "payment-2")[0] == "2 payments wait for approval:"
    call("approve", "payment-1")
    assert call("approve", "payment-3") == ["everything is paid"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing can be killed here")
def test_a_server_on_asyncio_keeps_what_it_accepted(tmp_path):
    command = [sys.executable, "examples/asyncio_server.py", "--port", "0", "--file", str(tmp_path / "server.db")]

    def ask(url, data=None):
        body = None if data is None else json.dumps(data).encode()
        with urllib.request.urlopen(url, body, timeout=30) as answer:
            return answer.status, json.load(answer)

    for turn, how in enumerate((signal.SIGKILL, signal.SIGINT)):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            url = server.stdout.readline().strip()
            assert ask(url, {"id": "a", "item": "tea"}) == (202, {"accepted": 1 - turn, "known already": turn})
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                ask(url, {"id": "b"})
            assert "missing required field" in json.load(refused.value)["error"]
            assert ask(url)[1]["accepted"] == 1
            server.send_signal(how)
            rest = server.stdout.read()
        assert server.returncode == (0 if turn else -signal.SIGKILL)
    assert rest == "stopped\n"


def test_a_sink_that_charges_twice_is_found_and_the_careful_one_passes():
    command = [sys.executable, "examples/crash_test.py"]
    careless = subprocess.run(
        [*command, "careless"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert careless.returncode == 1
    assert "was charged 2 times" in careless.stdout
    assert "were committed by the sink more than once, such as 'simulated:1:payment-ada'" in careless.stdout
    assert "pass it on as an idempotency key" in careless.stdout
    assert "Play it again: crash_everywhere(Payments, seed=0, at=['write " in careless.stdout
    careful = subprocess.run([*command, "careful"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (careful.returncode, careful.stderr) == (0, "")
    assert careful.stdout.count("every customer was charged once") == 2
