"""Environment variables: their names, how they are read, and what is refused."""

import pytest

from naviscope_ingest import BreakerPolicy, Cap, ConfigurationError, KindPolicy, Rate, RuntimeConfig, load_settings
from naviscope_ingest.faults import Fault, Faults


def runtime(**variables):
    return load_settings(environ={f"NAVISCOPE_{name}": value for name, value in variables.items()}).runtime


def test_keys_are_parted_by_two_underscores():
    assert runtime(INTAKE__HIGH_MARK="9000").intake.high_mark == 9000


def test_names_of_the_user_are_left_as_they_are():
    assert runtime(KINDS__Http__CAP="3").kinds == {"Http": KindPolicy(cap=3)}
    assert runtime(BREAKERS__db__FAILURES="3").breakers == {"db": BreakerPolicy(failures=3)}


def test_a_value_that_is_no_string_is_json():
    config = runtime(
        LIMITS='[{"cap": 1}, {"rate": 2.5, "cost": {"a": 2}}]',
        KINDS='{"a__b": {"cap": 2}}',
        BREAKER="null",
        SINK_BREAKER="none",
        EPOCH_CAP="7",
    )
    assert config.limits == (Cap(1), Rate(2.5, cost={"a": 2}))
    assert config.kinds == {"a__b": KindPolicy(cap=2)}
    assert (config.breaker, config.sink_breaker, config.epoch_cap) == (None, None, 7)


def test_a_string_is_taken_as_it_stands():
    assert runtime(NAME="12").name == "12"
    assert runtime(KINDS__a__BREAKER="true").kinds["a"].breaker == "true"


def test_faults_are_written_as_text():
    assert runtime(FAULTS="seed=7,http:0.05:5xx").faults == Faults((Fault("executor", 0.05, "5xx", kind="http"),), 7)
    assert not runtime(FAULTS="").faults
    with pytest.raises(ConfigurationError, match=r"NAVISCOPE_FAULTS.*perhaps 'sink' was meant"):
        runtime(FAULTS="snik:0.1:error")


def test_faults_of_the_program_hold_over_those_of_the_environment():
    config = RuntimeConfig(faults=Faults.parse("sink:0.5:error"))
    assert load_settings(environ={"NAVISCOPE_FAULTS": "sink:0.1:error"}, config=config).runtime == config


def test_the_longer_name_holds_over_the_shorter():
    config = runtime(INTAKE='{"high_mark": 10, "low_mark": 1}', INTAKE__LOW_MARK="2")
    assert (config.intake.high_mark, config.intake.low_mark) == (10, 2)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MAX_IN_FLIGT", "1", "there is no such variable: did you mean NAVISCOPE_MAX_IN_FLIGHT?"),
        ("INTAKE_HIGH_MARK", "1", "there is no such variable"),
        ("INTAKE__HIGH_MARC", "1", "did you mean NAVISCOPE_INTAKE__HIGH_MARK?"),
        ("KINDS__http__CUP", "1", "did you mean NAVISCOPE_KINDS__http__CAP?"),
        ("KINDS__", "1", "a name is missing below NAVISCOPE_KINDS"),
        ("NAME__X", "1", "there is nothing below NAVISCOPE_NAME"),
        ("", "1", "there is no such variable"),
        ("BREAKER__PROBE", "x", "give it in the program"),
        ("MAX_IN_FLIGHT", "", "max_in_flight: give a whole number, not ''"),
        ("MAX_IN_FLIGHT", "0x10", "max_in_flight: give a whole number, not '0x10'"),
        ("MAX_IN_FLIGHT", "9" * 5000, "max_in_flight: give a whole number"),
        ("AGEING_SECONDS", "NaN", "ageing_seconds: give a finite number"),
        ("KINDS", '{"a": {"cap": 1, "cap": 2}}', "kinds: give a table"),
        ("LIMITS", "[" * 60_000, "it is nested too deeply"),
        ("LIMITS", "[" * 400 + "]" * 400, "limits[0]: give a table with either cap or rate"),
        ("NAME", "x" * 70_000, "it is longer than 65536 characters"),
        ("HTTP_PORT", "8080", "there is no such variable"),
    ],
)
def test_a_variable_that_is_wrong_is_named(name, value, told):
    with pytest.raises(ConfigurationError) as caught:
        runtime(**{name: value})
    assert str(caught.value).startswith(f"NAVISCOPE_{name}: ")
    assert told in str(caught.value)


def test_variables_of_a_cluster_and_of_others_are_left_alone():
    runtime(
        SERVICE_HOST="10.0.0.1",
        SERVICE_PORT="80",
        SERVICE_PORT_HTTP="80",
        PORT="tcp://10.0.0.1:80",
        PORT_80_TCP="tcp://10.0.0.1:80",
        PORT_80_TCP_ADDR="10.0.0.1",
        WEB_SERVICE_HOST="10.0.0.1",
    )
    assert load_settings(environ={"NAVISCOP_X": "1", "PATH": "/bin"})
