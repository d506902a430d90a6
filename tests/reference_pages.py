"""Reference pages that are written from the code: `python -m tests.reference_pages` writes them, a test compares."""

import json
from collections.abc import Callable
from pathlib import Path

from naviscope_ingest.cli.reference import command_line_page
from naviscope_ingest.metrics import metrics_page
from naviscope_ingest.settings import configuration_page, json_schema

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"


def schema_file() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": command_line_page,
    "configuration.md": configuration_page,
    "configuration.schema.json": schema_file,
    "metrics.md": metrics_page,
}
"""What writes each file below docs/reference."""


def main() -> None:
    for name, write in PAGES.items():
        (REFERENCE / name).write_text(write(), encoding="utf-8")
        print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
