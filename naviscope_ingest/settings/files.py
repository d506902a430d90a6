"""Configuration files, read into trees in which each value knows its line."""

from __future__ import annotations

from pathlib import Path as FilePath

from naviscope_ingest.errors import ConfigurationError
from naviscope_ingest.settings.origins import Origin, Placed, Problem
from naviscope_ingest.settings.toml_lines import lines_of, with_lines
from naviscope_ingest.settings.yaml_trees import read_yaml

__all__ = ["MAX_BYTES", "MAX_DEPTH", "read_file"]

MAX_BYTES = 256 * 1024
"""The largest file that is read."""

MAX_DEPTH = 20
"""How deep tables and lists may be nested."""


def read_file(path: FilePath) -> Placed:
    """Read a file in TOML or YAML, by its suffix.

    Raises:
        ConfigurationError: it cannot be read, is malformed, too large or too deep, or holds what is no plain data.
    """
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".yaml", ".yml"):
        raise _refused(path, f"its suffix is {suffix or 'missing'!r}: give a file that ends in .toml, .yaml or .yml")
    text = _text(path)
    return _read_toml(path, text) if suffix == ".toml" else read_yaml(path, text, MAX_DEPTH)


def _text(path: FilePath) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise _refused(path, f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _refused(path, "it is not UTF-8", data.count(b"\n", 0, error.start) + 1) from error


def _read_toml(path: FilePath, text: str) -> Placed:
    import tomllib

    try:
        found = tomllib.loads(text)
    except RecursionError as error:
        raise _refused(path, f"it is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        reason, _, place = str(error).partition(" (at ")
        digits = place.removeprefix("line ").partition(",")[0]
        line = int(digits) if digits.isdigit() else text.count("\n") + 1 if place else None
        raise _refused(path, f"it is no TOML: {reason[:1].lower()}{reason[1:]}", line) from error
    tree = with_lines(found, lines_of(text), str(path))
    _refuse_depth(path, tree, MAX_DEPTH)
    return tree


def _refuse_depth(path: FilePath, placed: Placed, left: int) -> None:
    if left < 0:
        raise _refused(path, f"it is nested deeper than {MAX_DEPTH} levels", placed.origin.line)
    children = placed.value.values() if isinstance(placed.value, dict) else placed.value
    for child in children if isinstance(placed.value, dict | list) else ():
        _refuse_depth(path, child, left - 1)


def _refused(path: FilePath, reason: str, line: int | None = None) -> ConfigurationError:
    return ConfigurationError([Problem(Origin("file", str(path), line), "", reason)])
