"""Malformed configuration: `ValueError`s in words, all of them of documented kinds."""

import inspect
import json
import random
import string

import pytest

from naviscope_ingest import (
    AdaptiveLimit,
    BreakerPolicy,
    Cap,
    ConfigurationError,
    IntakePolicy,
    KindPolicy,
    Rate,
    RetryPolicy,
    RuntimeConfig,
    load_settings,
)
from naviscope_ingest.faults import VARIABLE, Fault, Faults, InvalidFaults
from tests.malformed import junk

CLASSES = [RuntimeConfig, KindPolicy, RetryPolicy, BreakerPolicy, IntakePolicy, AdaptiveLimit, Cap, Rate, Fault, Faults]
ROUNDS = 3_000
FILE = """
store = "sqlite:///ingest.db"
max_in_flight = 64
limits = [{ cap = 4, kind = "http" }, { rate = 2.5, by = "headers.tenant" }]
faults = "seed=7,http:0.05:5xx"

[kinds.http]
timeout_seconds = 30
delivery = "at_least_once"
retry = { max_attempts = 5 }

[intake]
high_mark = 1000
low_mark = 100
when_full = "reject"
"""
YAML = """
store: sqlite:///ingest.db
max_in_flight: 64
limits:
  - {cap: 4, kind: http}
kinds:
  http:
    timeout_seconds: 30
    retry: {max_attempts: 5}
breaker: null
"""


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_what_is_malformed_cannot_be_made(made):
    rng = random.Random(made.__name__)
    parameters = inspect.signature(made).parameters
    needed = {name: 1 for name, each in parameters.items() if each.default is inspect.Parameter.empty}
    refused = 0
    for _ in range(ROUNDS):
        names = rng.sample(list(parameters), rng.randint(1, min(3, len(parameters))))
        try:
            made(**{**needed, **{name: junk.value(rng) for name in names}})
        except ValueError as error:
            refused += 1
            assert 0 < len(str(error)) < 1_000
        except junk.HostileError:
            refused += 1
    assert refused >= 2_000


def settings_are_refused(rounds, load, least=2_000):
    refused = 0
    for number in range(rounds):
        try:
            load(random.Random(number))
        except ConfigurationError as error:
            refused += 1
            assert str(error)
        except junk.HostileError:
            refused += 1
    assert refused >= least


@pytest.mark.parametrize(("suffix", "text"), [("toml", FILE), ("yaml", YAML)])
def test_a_damaged_file_is_refused(tmp_path, suffix, text):
    path = tmp_path / f"settings.{suffix}"
    path.write_text(text)
    assert load_settings(path, environ={}).runtime.max_in_flight == 64

    def load(rng):
        path.write_bytes(junk.damaged_text(rng, text).encode(errors="surrogatepass"))
        load_settings(path, environ={})

    settings_are_refused(3_500, load)


def test_a_file_of_anything_is_refused(tmp_path):
    path = tmp_path / "settings.yaml"

    def load(rng):
        if rng.random() < 0.5:
            path.write_text(json.dumps(junk.plain(rng)))
        else:
            path.write_bytes(rng.randbytes(rng.choice((1, 10, 1_000))))
        load_settings(path, environ={})

    settings_are_refused(2_500, load)


KEYS = (
    "MAX_IN_FLIGHT",
    "KINDS__http__CAP",
    "INTAKE__LOW_MARK",
    "LIMITS",
    "BREAKER",
    "AGEING_SECONDS",
    "DERIVES",
    "FAULTS",
)


def test_an_environment_of_anything_is_refused():
    def load(rng):
        environ = {}
        for _ in range(rng.randint(1, 3)):
            key = (
                rng.choice(KEYS) if rng.random() < 0.7 else "".join(rng.choices(string.printable, k=rng.randint(0, 20)))
            )
            draw = rng.random()
            text = rng.choice(junk.TEXTS) if draw < 0.5 else json.dumps(junk.plain(rng))
            environ[f"NAVISCOPE_{key}"] = text
        load_settings(environ=environ)

    settings_are_refused(3_000, load)


def test_faults_of_anything_are_refused():
    rng, refused = random.Random(5), 0
    good = "seed=7,http:0.05:5xx,sink:0.03:timeout,commit:0.01:crash,store:0.1:slow=2.5"
    for _ in range(4_000):
        text = junk.damaged_text(rng, good) if rng.random() < 0.7 else rng.choice(junk.TEXTS)
        try:
            Faults.from_environment({VARIABLE: text})
        except InvalidFaults as error:
            refused += 1
            assert str(error).startswith(VARIABLE)
            assert len(str(error)) < 1_000
    assert refused >= 2_000


def test_keywords_of_anything_are_refused():
    def load(rng):
        load_settings(environ={}, keywords={rng.choice(("store", "kinds", "limits", "breaker", "x")): junk.value(rng)})

    settings_are_refused(3_500, load)
