"""The command line `naviscope-ingest`: nouns and verbs over the operations of the console.

It needs the extra `cli`; without it, it says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: those of the process unless they are given.
    """
    try:
        from naviscope_ingest.cli.program import run_program
    except ImportError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"error: the command line needs {error.name}, which is not installed\n"
            "hint: pip install 'naviscope-ingest[cli]'\n"
        )
        return 2
    return run_program(arguments)
