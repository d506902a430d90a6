"""The program: its nouns, and how it ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import click

from naviscope_ingest.cli.commands import Group
from naviscope_ingest.cli.dead_letters import dead_letter
from naviscope_ingest.cli.doctor import declare_doctor
from naviscope_ingest.cli.epochs import epoch, message
from naviscope_ingest.cli.extras import declare_completion, declare_demo
from naviscope_ingest.cli.failures import Exit, failure_of
from naviscope_ingest.cli.live import kind, limit
from naviscope_ingest.cli.run import declare_run
from naviscope_ingest.cli.screen import Screen
from naviscope_ingest.cli.settings import config
from naviscope_ingest.cli.stores import store
from naviscope_ingest.cli.submit import declare_submit

__all__ = ["PROGRAM", "program", "run_program"]

PROGRAM = "naviscope-ingest"


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("naviscope-ingest"), "-V", "--version", prog_name=PROGRAM)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def program() -> None:
    """Run messages that depend on each other, and look after them.

    Commands work on a store: through its process, if one runs and serves a control socket, or on the file itself.
    """


declare_run(program)
declare_submit(program)
for _noun in (epoch, message, dead_letter, limit, kind, store, config):
    program.add_command(_noun)
declare_doctor(program)
declare_demo(program)
declare_completion(program)


def run_program(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        answer: Any = program.main(args=given, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it has seen enough. What is left must not be written when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except (Exception, KeyboardInterrupt) as error:
        return _failed(error, is_debug="--debug" in given)
    return answer if isinstance(answer, int) else Exit.DONE


def _failed(error: BaseException, *, is_debug: bool) -> int:
    if is_debug:
        traceback.print_exception(error)
    failure = failure_of(error)
    Screen().failure(failure.reason, failure.hint)
    return failure.code
