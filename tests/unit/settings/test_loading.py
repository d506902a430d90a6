"""Settings from keywords, variables and files: what they come to, and what each knows of its origin."""

import pytest

from naviscope_ingest import (
    AdaptiveLimit,
    BreakerPolicy,
    Cap,
    Classified,
    Classifier,
    ConfigurationError,
    KindPolicy,
    Rate,
    RetryPolicy,
    RuntimeConfig,
    load_settings,
)
from naviscope_ingest.settings import Settings

TOML = """\
store = "sqlite:///ingest.db"
max_in_flight = 64
stall_grace_seconds = 2
breaker = "none"

[store_options]
retain_seconds = 3600

[intake]
high_mark = 50_000

[kinds.http]
timeout_seconds = 30
cap = 16
retry = { max_attempts = 5, max_elapsed_seconds = 60 }

[[kinds.http.rates]]
rate = 50
per_seconds = 60

[kinds."a.b"]
adaptive = {}

[derives]
file = ["row"]

[[limits]]
rate = 5
by = "headers.tenant"
cost = { big = 3 }

[[limits]]
cap = 7
"""

YAML = """\
store: sqlite:///ingest.db
max_in_flight: 64
stall_grace_seconds: 2
breaker: null
store_options: {retain_seconds: 3600}
intake:
  high_mark: 50000
kinds:
  http:
    timeout_seconds: 30
    cap: 16
    retry: {max_attempts: 5, max_elapsed_seconds: 60}
    rates:
      - rate: 50
        per_seconds: 60
  "a.b": {adaptive: {}}
derives: {file: [row]}
limits:
  - {rate: 5, by: headers.tenant, cost: {big: 3}}
  - {cap: 7}
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def refusal(**given):
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**{"environ": {}, **given})
    return caught.value


def origins(settings):
    return {each.key: str(each.origin) for each in settings.entries if each.origin.source != "default"}


def test_without_anything_everything_is_the_default():
    settings = load_settings(environ={})
    assert settings == Settings()
    assert settings.runtime == RuntimeConfig()
    assert origins(settings) == {}


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML)])
def test_a_file_makes_the_same_configuration_as_the_program_would(tmp_path, name, text):
    settings = load_settings(write(tmp_path / name, text), environ={})
    assert settings.store == "sqlite:///ingest.db"
    assert settings.store_options.arguments() == {"retain": 3600}
    assert settings.runtime == RuntimeConfig(
        max_in_flight=64,
        stall_grace=2,
        breaker=None,
        intake=settings.runtime.intake,
        derives={"file": ("row",)},
        kinds={
            "http": KindPolicy(
                timeout=30, cap=16, retry=RetryPolicy(max_attempts=5, max_elapsed=60), rates=(Rate(50, per=60),)
            ),
            "a.b": KindPolicy(adaptive=AdaptiveLimit()),
        },
        limits=(Rate(5, by="headers.tenant", cost={"big": 3}), Cap(7)),
    )
    assert settings.runtime.intake.high_mark == 50_000
    assert settings.runtime.intake.low_mark == 5_000


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        (
            "a.toml",
            TOML,
            {
                "store": 1,
                "breaker": 4,
                "store_options.retain_seconds": 7,
                "kinds.http.cap": 14,
                "kinds.http.retry.max_attempts": 15,
                "kinds.http.rates": 17,
                "derives.file": 25,
                "limits": 27,
            },
        ),
        (
            "a.yml",
            YAML,
            {
                "store": 1,
                "breaker": 4,
                "store_options.retain_seconds": 5,
                "kinds.http.cap": 11,
                "kinds.http.retry.max_attempts": 12,
                "kinds.http.rates": 13,
                "derives.file": 17,
                "limits": 18,
            },
        ),
    ],
)
def test_each_value_of_a_file_knows_its_line(tmp_path, name, text, lines):
    path = write(tmp_path / name, text)
    found = origins(load_settings(path, environ={}))
    assert {key: found[key] for key in lines} == {key: f"{path}:{line}" for key, line in lines.items()}


def test_keywords_come_before_variables_and_variables_before_the_file(tmp_path):
    path = write(tmp_path / "a.toml", "max_in_flight = 1\ncommit_batch = 1\nexecute_batch = 1\n")
    settings = load_settings(
        path,
        environ={"NAVISCOPE_MAX_IN_FLIGHT": "2", "NAVISCOPE_COMMIT_BATCH": "2"},
        keywords={"max_in_flight": 3},
    )
    config = settings.runtime
    assert (config.max_in_flight, config.commit_batch, config.execute_batch) == (3, 2, 1)
    assert origins(settings) == {
        "max_in_flight": "keyword",
        "commit_batch": "NAVISCOPE_COMMIT_BATCH",
        "execute_batch": f"{path}:3",
    }


def test_tables_are_merged_and_lists_replaced(tmp_path):
    path = write(tmp_path / "a.toml", TOML)
    variables = {"NAVISCOPE_KINDS__http__CAP": "1", "NAVISCOPE_LIMITS": '[{"cap": 3}]'}
    config = load_settings(path, environ=variables).runtime
    assert (config.kinds["http"].cap, config.kinds["http"].timeout) == (1, 30)
    assert config.limits == (Cap(3),)


def test_what_the_program_says_holds_over_everything_else():
    program = RuntimeConfig(max_in_flight=3, kinds={"http": KindPolicy(timeout=5)}, sink_breaker=None)
    variables = {
        "NAVISCOPE_MAX_IN_FLIGHT": "9",
        "NAVISCOPE_COMMIT_BATCH": "9",
        "NAVISCOPE_KINDS__http__TIMEOUT_SECONDS": "9",
        "NAVISCOPE_KINDS__http__CAP": "9",
        "NAVISCOPE_SINK_BREAKER__FAILURES": "9",
    }
    settings = load_settings(environ=variables, config=program)
    assert settings.runtime == RuntimeConfig(
        max_in_flight=3, commit_batch=9, kinds={"http": KindPolicy(timeout=5, cap=9)}, sink_breaker=None
    )
    assert origins(settings)["kinds.http.timeout_seconds"] == "keyword"


def test_what_no_file_can_hold_is_kept():
    async def probe(): ...

    classifier = Classifier(types={KeyError: Classified("permanent", "schema")})
    program = RuntimeConfig(classifier=classifier, breaker=BreakerPolicy(probe=probe))
    variables = {"NAVISCOPE_BREAKER__FAILURES": "9", "NAVISCOPE_CLASSIFIER__UNKNOWN__DECISION": "permanent"}
    config = load_settings(environ=variables, config=program).runtime
    assert config.breaker == BreakerPolicy(failures=9, probe=probe)
    assert config.classifier.types == classifier.types
    assert config.classifier.unknown.decision == "permanent"


def test_a_partly_given_policy_keeps_the_defaults_of_its_place():
    config = load_settings(environ={"NAVISCOPE_SINK_RETRY__MAX_DELAY_SECONDS": "5"}).runtime
    assert (config.sink_retry.max_attempts, config.sink_retry.max_delay) == (8, 5)


def test_the_file_can_be_named_by_a_variable(tmp_path):
    path = write(tmp_path / "a.toml", "max_in_flight = 7\n")
    settings = load_settings(environ={"NAVISCOPE_CONFIG": str(path)})
    assert settings.runtime.max_in_flight == 7
    assert settings.file == path


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("NAVISCOPE_MAX_IN_FLIGHT", "5")
    assert load_settings().runtime.max_in_flight == 5


def test_entries_list_every_setting_with_its_variable():
    entries = {each.key: each for each in load_settings(environ={}, keywords={"kinds": {"a b": {}}}).entries}
    assert entries["intake.high_mark"].variable == "NAVISCOPE_INTAKE__HIGH_MARK"
    assert entries["epoch_cap"].shown == "none"
    assert entries["limits"].shown == "[]"
    assert 'kinds."a b".cap' in entries
    for each in entries.values():
        if "a b" not in each.key and each.value is not None:
            text = each.value if isinstance(each.value, str) else each.shown
            assert load_settings(environ={each.variable: text}) == Settings(), each.key


def test_a_password_in_a_url_is_not_shown():
    entries = load_settings(environ={}).entries
    (store,) = (each for each in entries if each.key == "store")
    assert type(store)("store", "pg://me:secret@host/db", store.origin, "").shown == "pg://me:***@host/db"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_in_fligt: 3", "{}:1: max_in_fligt: there is no such key: did you mean max_in_flight?"),
        ("\nstall_grace: 3", "{}:2: stall_grace: there is no such key: did you mean stall_grace_seconds?"),
        ("max_in_flight: many", "{}:1: max_in_flight: give a whole number, not 'many'"),
        ("max_in_flight: true", "{}:1: max_in_flight: give a whole number, not true"),
        ("max_in_flight: 0", "{}:1: max_in_flight: give a whole number of at least 1"),
        ("max_in_flight: 1.5", "{}:1: max_in_flight: give a whole number, not 1.5"),
        ("ageing_seconds: 0", "{}:1: ageing_seconds: give seconds above 0"),
        ("lanes: blok", "{}:1: lanes: 'blok' is unknown: did you mean block? it is one of block, pass"),
        ("intake:\n  low_mark: 30000", "{}:1: intake: the low mark must be below the high one"),
        ("intake: 3", "{}:1: intake: give a table as IntakePolicy has, not 3"),
        ("kinds: {http: {cap: x}}", "{}:1: kinds.http.cap: give a whole number, not 'x'"),
        ("kinds:\n  http:\n    cup: 1", "{}:3: kinds.http.cup: there is no such key: did you mean cap?"),
        ("limits: [{kind: http}]", "{}:1: limits[0]: give a table with either cap or rate"),
        ("limits: [{cap: 1, rate: 2}]", "{}:1: limits[0]: give a table with either cap or rate"),
        ("limits:\n  - cap: 1\n  - cap: 0", "{}:3: limits[1].cap: give a whole number of at least 1"),
        ("limits: [{rate: 1, burst: -1}]", "{}:1: limits[0]: give a number above 0"),
        ("limits: 3", "{}:1: limits: give a list, each a table with either cap or rate, not 3"),
        ("breaker: {probe: x}", "{}:1: breaker.probe: it cannot stand in a configuration: give it in the program"),
        (
            "store: mysql://x",
            "{}:1: store: 'mysql://x' names no store that is installed: the schemes are memory:, sqlite:",
        ),
        (
            "store_options:\n  retain_seconds: 3",
            "{}:2: store_options.retain_seconds: the store 'memory:' has no option",
        ),
        ("store_options:\n  more: {x: 3}", "{}:2: store_options.more.x: the store 'memory:' has no option 'x'"),
        ("store_options: {max_payload_bytes: 0}", "{}:1: store_options.max_payload_bytes: give a number above 0"),
        ("endpoint: {port: 70000}", "{}:1: endpoint.port: give a port from 0 (a free one) to 65535"),
        ("endpoint: {stall_after_seconds: 0}", "{}:1: endpoint.stall_after_seconds: give seconds above 0"),
        ("derives: {a: b}", "{}:1: derives.a: give a list, each a string, not 'b'"),
        ("ageing_seconds: .inf", "{}:1: ageing_seconds: give a number, not '.inf'"),
        ("ageing_seconds: 1e999", "{}:1: ageing_seconds: give a finite number, not inf"),
        ("- 1", "{}:1: the whole must be a table"),
    ],
)
def test_what_is_wrong_gets_one_line_with_file_line_and_key(tmp_path, text, told):
    path = write(tmp_path / "a.yaml", text)
    error = refusal(file=path)
    assert str(error).startswith(told.format(path)), str(error)
    assert "\n" not in str(error)


def test_two_limits_of_one_name_are_refused(tmp_path):
    error = refusal(file=write(tmp_path / "a.toml", "[[limits]]\ncap = 1\n[[limits]]\ncap = 2\n"))
    assert "two limits are called 'cap'" in str(error)


def test_all_problems_are_told_at_once(tmp_path):
    path = write(tmp_path / "a.toml", "max_in_flight = 0\nbogus = 1\n[intake]\nhigh_marc = 3\n")
    error = refusal(file=path, environ={"NAVISCOPE_COMMIT_BATCH": "x"})
    assert [(each.key, each.nearest) for each in error.problems] == [
        ("bogus", None),
        ("max_in_flight", None),
        ("commit_batch", None),
        ("intake.high_marc", "high_mark"),
    ]
    assert error.problems[0].origin.line == 2
    assert len(str(error).splitlines()) == 4


def test_keywords_are_checked_as_files_are():
    assert str(refusal(keywords={"max_in_flight": 0})) == "keyword: max_in_flight: give a whole number of at least 1"
    assert "give a list" in str(refusal(keywords={"limits": object()}))
