"""Writes the figures of the documentation from what the last soak has shown: `python -m tests.soak.figures`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "evidence" / "reliability.json"
PAGE = ROOT / "docs" / "explanation" / "what-we-prove.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def shown(found: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    others = sum(count for name, count in found["faults"].items() if name not in ("kill", "power"))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rows = [
        "The soak that is committed with this page ([evidence/reliability.json](../../evidence/reliability.json)):",
        "",
        "| | |",
        "|---|---|",
        f"| programs through the whole runtime | {found['kernel_seeds']:,} |",
        f"| programs through the core, compared with the model | {found['core_seeds']:,} |",
        f"| processes that crashed | {found['crashes']:,} |",
        f"| power cuts | {found['power_cuts']:,} |",
        f"| other faults | {others:,} |",
        f"| broken promises | {found['violations']:,} |",
        "",
        f"It played commit `{found['commit'][:12]}` with {versions}.",
    ]
    return "\n".join(rows)


def renewed(page: str, found: dict[str, Any]) -> str:
    """Return a page with its figures."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{shown(found)}\n{END}{after}"


def main() -> int:
    found = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
