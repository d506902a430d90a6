"""What is written about the configuration: the JSON Schema, and the page of documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from naviscope_ingest.settings._shapes import (
    Either,
    Field,
    ListOf,
    Nullable,
    OneOf,
    Record,
    Shape,
    TableOf,
    plain_value,
)
from naviscope_ingest.settings.loading import root_record

__all__ = ["configuration_page", "json_schema"]

_HEAD = """\
# Configuration

<!-- Written by `make docs` from the classes; do not edit. -->

A value comes from a keyword in the program, else from an environment variable, else from a file, else it is the
default. Nothing is read at import: `load_settings(file)` reads, and says of each value where it comes from; on the
command line `naviscope-ingest config show` prints that.

```python
from naviscope_ingest.settings import load_settings

settings = load_settings(environ={"NAVISCOPE_KINDS__http__CAP": "16"}, keywords={"max_in_flight": 64})
print(settings.runtime.max_in_flight, settings.runtime.kinds["http"].cap)
print([f"{each.key} from {each.origin}" for each in settings.entries if each.origin.source != "default"])
```

`load_settings(config=RuntimeConfig(...))` takes what a program says as keywords, wherever it differs from the defaults.

## Files

TOML (`.toml`) or YAML (`.yaml`, `.yml`, with the extra `yaml`), named by the program or by `NAVISCOPE_CONFIG`.

```toml
store = "sqlite:///ingest.db"
max_in_flight = 64

[intake]
high_mark = 50_000

[kinds.http]
timeout_seconds = 30
cap = 16

[kinds.http.retry]
max_attempts = 5

[[limits]]
rate = 50
by = "headers.tenant"
```

- Keys are the keywords of the class; a key whose value is a duration or a size **carries the unit**: `stall_grace` in
  Python is `stall_grace_seconds` here.
- In a table only what is given differs from the default. A limit is `cap = 16` or `rate = 50`; what Python calls
  `limit` goes by the name of its class.
- `none` (in YAML also `null`) turns off what may be off, such as `breaker`.
- Unknown keys, keys that are there twice, and values of another type are refused, with file, line, key and the nearest
  valid key. All problems are named at once. Nothing of a refused configuration holds.
- A file has at most 256 KiB and 20 levels. YAML is read by the core schema of YAML 1.2 (`no` is a string), without
  aliases, anchors and tags, and as one document.
- What is a function (`classifier.rules`, the `probe` of a breaker) can only be said in the program.

[configuration.schema.json](configuration.schema.json) is a JSON Schema for editors; `json_schema()` returns it. It
knows keys, types and words; whether numbers make sense together is checked when the file is read.

## Environment variables

`NAVISCOPE_` and the keys, parted by two underscores. Keys of ours are in capitals, names of yours as they are:
`NAVISCOPE_INTAKE__HIGH_MARK=50000`, `NAVISCOPE_KINDS__http__TIMEOUT_SECONDS=30`. A string is taken as it stands, every
other value as JSON, so a whole table or list can be given: `NAVISCOPE_LIMITS='[{"rate": 50}]'`. Tables are merged with
those of the file key by key, lists replace. A variable that begins so and means nothing is refused, but for those that
Kubernetes sets for a service called "naviscope".
"""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file."""
    root = root_record()
    definitions = {record.made.__name__: record.definition() for record in _records(root)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "naviscope-ingest",
        **definitions.pop(root.made.__name__),
        "$defs": definitions,
    }


def configuration_page() -> str:
    """Return the page of documentation, in Markdown."""
    return _HEAD + "".join(_section(record) for record in _records(root_record()))


def _section(record: Record) -> str:
    title = "All keys" if record is root_record() else f"{record.made.__name__}"
    lines = [f"\n## {title}\n"]
    if record is not root_record():
        lines.append(f"{(record.made.__doc__ or '').splitlines()[0]}\n")
    lines.append("| key | value | default | meaning |\n|---|---|---|---|")
    lines.extend(_row(each) for each in record.fields.values())
    return "\n".join(lines) + "\n"


def _row(each: Field) -> str:
    return f"| `{each.key}` | {_value(each.shape)} | {_default(each)} | {each.text} |".replace("\n", " ")


def _value(shape: Shape) -> str:
    """Return what a value looks like, with links to the tables that it may be."""
    if isinstance(shape, Record):
        return f"[{shape.made.__name__}](#{shape.made.__name__.lower()})"
    if isinstance(shape, OneOf):
        return " or ".join(_value(each) for each in shape.records.values())
    if isinstance(shape, TableOf):
        return f"a table: name = {_value(shape.item)}"
    if isinstance(shape, ListOf):
        return f"a list of: {_value(shape.item)}"
    if isinstance(shape, Nullable):
        return f"{_value(shape.shape)}, or none"
    if isinstance(shape, Either):
        return f"{_value(shape.plain)}, or {_value(shape.table)}"
    return shape.words()


def _default(each: Field) -> str:
    if each.default is attrs.NOTHING:
        return "must be given"
    value = plain_value(each.shape, each.default)
    if value is None:
        return "none"
    if value in ({}, []):
        return "as below" if isinstance(each.shape, Record | Nullable) else "empty"
    if isinstance(value, dict):
        return ", ".join(f"`{key}` {_json(part)}" for key, part in value.items())
    return f"`{_json(value)}`"


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _records(shape: Shape) -> Iterable[Record]:
    """Return every table that a configuration may hold, each once, those of the top first."""
    found: dict[str, Record] = {}
    waiting: list[Shape] = [shape]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, Record):
            if each.made.__name__ in found:
                continue
            found[each.made.__name__] = each
        waiting.extend(_within(each))
    return found.values()


def _within(shape: Shape) -> Iterator[Shape]:
    if isinstance(shape, Record):
        yield from (each.shape for each in shape.fields.values())
    elif isinstance(shape, OneOf):
        yield from shape.records.values()
    elif isinstance(shape, TableOf | ListOf):
        yield shape.item
    elif isinstance(shape, Nullable):
        yield shape.shape
    elif isinstance(shape, Either):
        yield from (shape.plain, shape.table)
