"""The reference page of the command line, written from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Final

import click

from naviscope_ingest.cli.failures import EXITS
from naviscope_ingest.cli.program import PROGRAM, program
from naviscope_ingest.plain_messages import FIELDS

__all__ = ["command_line_page"]

_HEAD: Final = """# Command line

<!-- Written by `make docs` from the commands; do not edit. -->

`naviscope-ingest` comes with the extra `cli`: `pip install 'naviscope-ingest[cli]'`. `python -m naviscope_ingest` is
the same. Commands are a noun and a verb. `--json` and `--debug` are options of all of them, but for `demo`.

- **Which store.** `--store` takes the path of a SQLite file or a URL; `--app shop:app` takes the store of an app, and
  its handlers to check payloads. Without both, `NAVISCOPE_STORE` counts, then the configuration.
- **Whose process.** If a process works on the store and serves a control socket, as `naviscope-ingest run` does, the
  command asks it, and changes hold at once. If none does, the command opens the file itself: questions only read it,
  and changes take the lock of the file for a moment. Nothing is executed then: what is submitted or replayed runs at
  the next start. A process that serves no socket can be asked, but not changed; see
  [embed it](../howto/embed-it.md#a-control-socket).
- **What is printed.** The answer goes to the standard output, everything else to the standard error. `--json` prints
  one document, or one object on each line where the help says so. Tables fit the terminal, and leave out columns for
  it; in a pipe they are whole and plain. `NO_COLOR` is honoured.
- **When something is wrong**, one line says what, and one says what to do. `--debug` shows the traceback.
"""


def command_line_page() -> str:
    """Return the page, in Markdown."""
    parts = [_HEAD, "## Exit codes\n\n| code | meaning |\n|---|---|"]
    parts += [f"| {code.value} | {text} |" for code, text in EXITS.items()]
    parts.append("\n## Lines of messages\n\nWhat `submit` reads. Each line is one JSON object with these fields:\n")
    parts.append("| field | meaning |\n|---|---|")
    parts += [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()]
    parts.append(_DEPENDENCIES)
    for path, command in _commands(program, ()):
        parts.append(_section(path, command))
    return "\n".join(parts).rstrip() + "\n"


_DEPENDENCIES: Final = """
Times are seconds since the Unix epoch, or texts such as `"2026-11-18T20:00:00Z"`. An entry of `depends_on` is an id of
the same epoch, or an object:

| object | waits for |
|---|---|
| `{"message": "a", "epoch": "monday"}` | a message of another epoch |
| `{"resource": "rates", "min_version": 3, "external": true}` | a version of a resource |
| `{"barrier": "order"}` | every message of a kind in the same epoch |
| `{"epoch": "sunday"}` | a whole epoch |
| `{"any_of": ["a", "b"], "at_least": 1}` | some of several |

Each of them may have `otherwise` (`"follow"`, `"fail"`, `"skip"`, `"run"`, `"hold"`, or one of these for each end),
`timeout` in seconds, and `on_unresolved`; see [semantics](../explanation/semantics.md).
"""


def _commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, found in sorted(group.commands.items()):
        if isinstance(found, click.Group):
            yield from _commands(found, (*path, name))
        else:
            yield (*path, name), found


def _section(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join([PROGRAM, *path]))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = cleandoc(command.help or "")
    lines = [f"## {' '.join(path)}\n", f"```text\n{usage}\n```\n", f"{_escaped(text)}\n"]
    options = [
        each for each in command.params if isinstance(each, click.Option) and each.name not in ("is_json", "debug")
    ]
    records = [record for each in options if (record := each.get_help_record(context)) is not None]
    if records:
        lines.append("| option | |\n|---|---|")
        lines += [f"| `{_cell(names)}` | {_cell(_escaped(meaning))} |" for names, meaning in records]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Keep what stands in angle brackets and stars as it is."""
    return text.replace("*", "\\*").replace("<", "&lt;")
