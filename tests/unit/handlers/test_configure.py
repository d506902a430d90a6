"""An app takes from a configuration what it does not say itself."""

import pytest

from naviscope_ingest import Ingest, RuntimeConfig
from naviscope_ingest.errors import ConfigurationError


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "ingest.toml"
    file.write_text(
        'store = "sqlite:///configured.db"\n'
        "max_in_flight = 3\n"
        "[store_options]\nretain_seconds = 60\n"
        "[kinds.order]\ncap = 5\ntimeout_seconds = 9\n"
        "[other_kinds]\ntimeout_seconds = 7\n"
    )
    return file


def app_with(**options):
    app = Ingest(**options)

    @app.handler("order", cap=2)
    async def order(amount: int) -> None: ...

    @app.handler("plain")
    async def plain(amount: int) -> None: ...

    return app


def test_what_the_program_says_goes_first(file):
    app = app_with(url="sqlite:///own.db", config=RuntimeConfig(max_in_flight=4))
    settings = app.configure(file, environ={})
    assert settings is app.settings
    assert (app.url, app.config.max_in_flight) == ("sqlite:///own.db", 4)
    order = app.config.policy("order")
    assert (order.cap, order.timeout) == (2, 9)


def test_what_it_does_not_say_comes_from_variables_and_the_file(file):
    app = app_with()
    app.configure(file, environ={"NAVISCOPE_MAX_IN_FLIGHT": "6"})
    assert (app.url, app.config.max_in_flight) == ("sqlite:///configured.db", 6)
    assert app.config.policy("plain").timeout == 7
    assert app.settings.store_options.retain == 60


def test_nothing_is_read_unless_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("NAVISCOPE_MAX_IN_FLIGHT", "6")
    assert app_with().config.max_in_flight == RuntimeConfig().max_in_flight


def test_a_configuration_that_is_wrong_changes_nothing(tmp_path):
    (tmp_path / "bad.toml").write_text("max_in_flight = 0\n")
    app = app_with()
    with pytest.raises(ConfigurationError, match=r"bad.toml:1: max_in_flight"):
        app.configure(tmp_path / "bad.toml", environ={})
    assert (app.url, app.settings, app.config.max_in_flight) == ("memory://", None, RuntimeConfig().max_in_flight)


async def test_every_kind_with_a_handler_is_known_before_its_first_message():
    app = app_with()
    async with app.running() as intake:
        intake.runtime.pause("plain", reason="a test")
        kinds = {each.kind: (each.unfinished, list(each.held_by)) for each in intake.runtime.kinds()}
    assert kinds == {"order": (0, []), "plain": (0, ["pause: a test"])}
