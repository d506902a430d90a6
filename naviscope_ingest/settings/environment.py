"""Settings from environment variables.

`NAVISCOPE_` and the keys that lead to a value, parted by two underscores: `NAVISCOPE_MAX_IN_FLIGHT`,
`NAVISCOPE_INTAKE__HIGH_MARK`. Keys of ours are written in capitals, names of yours as they are:
`NAVISCOPE_KINDS__http__CAP`. A string is taken as it stands; every other value is read as JSON, tables and lists too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from naviscope_ingest.settings._shapes import Either, Nullable, Record, Shape, TableOf
from naviscope_ingest.settings.origins import Origin, Path, Placed, Problem, place, put

__all__ = ["PREFIX", "read_environment", "variable_of"]

PREFIX: Final = "NAVISCOPE_"

NOT_SETTINGS: Final = ("NAVISCOPE_CONFIG",)
"""Variables that are no settings: where the file is."""

MAX_TEXT: Final = 64 * 1024
"""The longest variable that is read, in characters."""

# Kubernetes sets such variables in every container for services called "naviscope" or "naviscope-something".
_OF_A_CLUSTER: Final = re.compile(
    r"NAVISCOPE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=.*"
    r"|NAVISCOPE_(\w+_)?PORT=(tcp|udp|sctp)://.*"
)


def read_environment(environ: Mapping[str, str], root: Record, problems: list[Problem]) -> Placed | None:
    """Return what variables say, noting those that say nothing that is known."""
    found: Placed | None = None
    # Sorted, so that NAVISCOPE_INTAKE__LOW_MARK comes after NAVISCOPE_INTAKE, and holds.
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or _OF_A_CLUSTER.match(f"{name}={environ[name]}"):
            continue
        each = _read(name, environ[name], root, problems)
        if each is not None:
            found = each if found is None else each.over(found)
    return found


def variable_of(path: Path, root: Record) -> str:
    """Return the variable of a setting."""
    parts = []
    shape: Shape | None = root
    for part in map(str, path):
        table = None if shape is None else _table(shape)
        is_ours = isinstance(table, Record) and part in table.fields
        parts.append(part.upper() if is_ours else part)
        shape = table.fields[part].shape if isinstance(table, Record) and is_ours else getattr(table, "item", None)
    return PREFIX + "__".join(parts)


def _read(name: str, text: str, root: Record, problems: list[Problem]) -> Placed | None:
    origin = Origin("environment", name)
    parts = name.removeprefix(PREFIX).split("__")
    path: list[str] = []
    shape: Shape = root
    for index, part in enumerate(parts):
        table = _table(shape)
        if isinstance(table, TableOf) and part:
            path.append(part)
            shape = table.item
        elif isinstance(table, Record) and part.lower() in table.fields:
            path.append(part.lower())
            shape = table.fields[part.lower()].shape
        else:
            problems.append(_unknown(origin, "__".join(parts[:index]), part, table))
            return None
    if len(text) > MAX_TEXT:
        problems.append(Problem(origin, "", f"it is longer than {MAX_TEXT} characters"))
        return None
    try:
        return put(path, place(_value(text, shape), origin))
    except RecursionError:
        problems.append(Problem(origin, "", "it is nested too deeply"))
        return None


def _table(shape: Shape) -> Record | TableOf | None:
    if isinstance(shape, Nullable):
        return _table(shape.shape)
    if isinstance(shape, Either):
        return _table(shape.table)
    return shape if isinstance(shape, Record | TableOf) else None


def _unknown(origin: Origin, before: str, part: str, table: Record | TableOf | None) -> Problem:
    if not isinstance(table, Record):
        what = "a name is missing" if table is not None else "there is nothing"
        return Problem(origin, "", f"{what} below {PREFIX}{before}")
    start = f"{PREFIX}{before}__" if before else PREFIX
    if part.lower() in table.in_python_only:
        return Problem(origin, "", "it cannot stand in a configuration: give it in the program")
    known = [f"{start}{key.upper()}" for key in table.fields]
    near = get_close_matches(f"{start}{part.upper()}", known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return Problem(origin, "", f"there is no such variable: {hint}", near[0] if near else None)


def _value(text: str, shape: Shape) -> Any:  # noqa: ANN401 - what JSON can hold
    if shape.takes_text and not (isinstance(shape, Nullable) and text == "null"):
        return text
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except ValueError:
        # Not JSON, so it is a string; whether one fits is for the shape to say.
        return text


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found
