"""`demo` and `completion`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from naviscope_ingest.cli.commands import Call, command
from naviscope_ingest.cli.failures import Exit, Failure

__all__ = ["declare_completion", "declare_demo"]

_PLACES: Final = ("naviscope_ingest._demo.code_index", "examples.code_index")
"""Where the demo is: in an installed package, or in a checkout."""

_SHELLS: Final = ("bash", "zsh", "fish")


def declare_demo(group: click.Group) -> None:
    """Add the command. It starts runs of its own, so it is no command like the others."""

    @group.command("demo", context_settings={"ignore_unknown_options": True, "help_option_names": []})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def demo(arguments: tuple[str, ...]) -> int:
        """Index the standard library of this Python, and ask who calls json.dumps; see `demo --help`."""
        for place in _PLACES:
            try:
                module = importlib.import_module(f"{place}.__main__")
            except ModuleNotFoundError as error:
                if error.name is not None and place.startswith(error.name):
                    continue
                raise
            code: int = module.main([each for each in arguments if each != "--debug"], prog="naviscope-ingest demo")
            return code
        raise Failure("the demo is not installed", "it is in the folder examples of a checkout", Exit.UNAVAILABLE)


def declare_completion(group: click.Group) -> None:
    """Add the command."""

    @command(group, "completion", mode="none")
    @click.argument("shell", type=click.Choice(_SHELLS))
    async def completion(call: Call, shell: str) -> None:
        """Print the script that lets a shell complete commands and options.

        For bash: naviscope-ingest completion bash > ~/.local/share/bash-completion/completions/naviscope-ingest
        """
        program = Path(sys.argv[0]).name
        name = "naviscope-ingest" if program.startswith("__main__") else program
        found = get_completion_class(shell)
        assert found is not None
        call.screen.text(found(group, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE").source())
