"""Settings put together: keywords over environment variables over a file over defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from naviscope_ingest.config import RuntimeConfig
from naviscope_ingest.errors import ConfigurationError
from naviscope_ingest.settings._classes import record_of
from naviscope_ingest.settings._shapes import Record
from naviscope_ingest.settings.environment import read_environment, variable_of
from naviscope_ingest.settings.files import read_file
from naviscope_ingest.settings.origins import DEFAULT, KEYWORD, Origin, Placed, Problem, place, put, shown_path
from naviscope_ingest.settings.values import Entry, Settings
from naviscope_ingest.stores import open_store
from naviscope_spi import UnknownOption

__all__ = ["load_settings", "root_record"]

FILE_VARIABLE = "NAVISCOPE_CONFIG"
"""Names the file when the program does not."""


def load_settings(
    file: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config: RuntimeConfig | None = None,
    keywords: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the configuration: keywords, then environment variables, then a file, then defaults.

    Args:
        file: in TOML or YAML, by its suffix. Unless it is given, the one that `NAVISCOPE_CONFIG` names, if any.
        environ: the environment variables; those of the process unless they are given. `{}` for none.
        config: what the program says. Where it differs from the defaults it is a keyword; what no file can hold,
            such as a classifier, is kept.
        keywords: plain values under keys as a file has them, above everything else: `{"store": "memory://"}`.

    Raises:
        ConfigurationError: something in it is wrong. It names everything that is.
    """
    variables = os.environ if environ is None else environ
    path = variables.get(FILE_VARIABLE) if file is None else file
    problems: list[Problem] = []
    root = root_record()
    found = Placed({}, DEFAULT)
    if path:
        found = read_file(FilePath(path)).over(found)
    read = read_environment(variables, root, problems)
    for layer in (
        read,
        None if config is None else _said(config),
        None if keywords is None else _given(keywords, problems),
    ):
        found = found if layer is None else layer.over(found)
    settings = _settings(found, config or RuntimeConfig(), problems)
    if problems:
        raise ConfigurationError(problems)
    return Settings(**settings, file=FilePath(path) if path else None, entries=_entries(settings, found))


def _given(keywords: Mapping[str, Any], problems: list[Problem]) -> Placed | None:
    try:
        return place(keywords, KEYWORD)
    except RecursionError:
        problems.append(Problem(KEYWORD, "", "they are nested too deeply"))
        return None


@cache
def root_record() -> Record:
    """Return the shape of a configuration: what `Settings` has, with the fields of `RuntimeConfig` beside the rest."""
    own, runtime = _own_record(), record_of(RuntimeConfig)
    return Record(Settings, {**own.fields, **runtime.fields}, runtime.in_python_only)


def _own_record() -> Record:
    known = record_of(Settings)
    fields = {key: each for key, each in known.fields.items() if key not in ("runtime", "entries", "file")}
    return Record(Settings, fields, ())


def _said(config: RuntimeConfig) -> Placed:
    """Return where a configuration of a program differs from the defaults."""
    found = Placed({}, KEYWORD)
    for path, value, is_default in record_of(RuntimeConfig).leaves(config, (), None):
        if not is_default:
            found = put([str(part) for part in path], place(value, KEYWORD)).over(found)
    return found


def _settings(placed: Placed, config: RuntimeConfig, problems: list[Problem]) -> dict[str, Any]:
    root, runtime = root_record(), record_of(RuntimeConfig)
    if not isinstance(placed.value, dict):
        problems.append(Problem(placed.origin, "", "the whole must be a table: keys with values"))
        return {}
    root.refuse_unknown(placed, (), root.fields, problems)
    before = len(problems)
    given = runtime.read_fields(placed, (), config, problems)
    made = runtime.make(given, config, placed, (), problems) if len(problems) == before else None
    own = _own_record().read_fields(placed, (), None, problems)
    if not problems:
        _check_store(Settings(**own), placed, problems)
    return {**own, "runtime": made}


def _check_store(settings: Settings, placed: Placed, problems: list[Problem]) -> None:
    """Note a URL that names no store, and options that the store does not have."""
    try:
        open_store(settings.store, **settings.store_options.arguments())
    except UnknownOption as error:
        origin, key = _origin_of_option(placed, error.option)
        problems.append(Problem(origin, key, str(error)))
    except ValueError as error:
        problems.append(Problem(placed.origin_of(("store",)), "store", str(error)))


def _origin_of_option(placed: Placed, option: str) -> tuple[Origin, str]:
    options = placed.value["store_options"].value
    key = next((each for each in options if each.startswith(option)), None)
    path = ("store_options", "more", option) if key is None else ("store_options", key)
    return placed.origin_of(path), shown_path(path)


def _entries(settings: Mapping[str, Any], found: Placed) -> list[Entry]:
    made = Settings(**settings)
    leaves = [*_own_record().leaves(made, (), None), *record_of(RuntimeConfig).leaves(made.runtime, (), None)]
    return [
        Entry(shown_path(path), value, found.origin_of(path), variable_of(path, root_record()))
        for path, value, _ in leaves
    ]
