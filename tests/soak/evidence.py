"""What a soak has shown, as a file that is committed; the figures of the documentation are taken from it."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import apsw

from naviscope_ingest.testing import FAULTS
from tests.soak.drivers import Tally

ROOT = Path(__file__).resolve().parents[2]

SOMETIMES = (
    "a message ended committed",
    "a message ended dead",
    "a message ended skipped",
    "a power cut found all synced",
    "a power cut found changes in doubt",
    "a process ended in order",
    "a process failed",
    "a process found messages that were running",
    "a process found recorded outcomes",
    "a process found unfinished messages",
    "a sink got again what it had committed",
)
"""What must have happened now and then, or the soak has shown less than it seems."""


def source_now() -> str:
    """Return the commit that is played, with a plus if the package has been changed since."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", "naviscope_ingest", "spi", "tests")
    return f"{commit}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def evidence(tallies: Mapping[str, Tally], seed: int, commit: str) -> dict[str, Any]:
    """Return what was shown. A driver that did not play has shown nothing."""
    kernel = tallies.get("kernel", Tally("kernel"))
    return {
        "kernel_seeds": kernel.programs,
        "core_seeds": tallies["core"].programs if "core" in tallies else 0,
        "crashes": kernel.counts["crashes"],
        "power_cuts": kernel.counts["power_cuts"],
        "faults": {name: kernel.counts[f"faults:{name}"] for name in FAULTS},
        "sometimes": {name: kernel.counts[f"sometimes:{name}"] for name in SOMETIMES},
        "violations": sum(each.violations for each in tallies.values()),
        "programs": {name: each.programs for name, each in tallies.items()},
        "first_seed": seed,
        "commit": commit,
        "versions": {
            "naviscope-ingest": metadata.version("naviscope-ingest"),
            "trio": metadata.version("trio"),
            "sqlite": apsw.sqlite_lib_version(),
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "traces": {str(number): digest for number, digest in sorted(kernel.digests.items())},
    }


def write_evidence(path: Path, tallies: Mapping[str, Tally], seed: int, commit: str) -> None:
    """Write a file of what was shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(evidence(tallies, seed, commit), indent=2) + "\n", encoding="utf-8")
