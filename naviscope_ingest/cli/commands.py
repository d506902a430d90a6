"""How commands are declared: what all of them take, how they reach a desk, and how they end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from difflib import get_close_matches
from functools import partial, wraps
from typing import Any, Literal, TypeAlias

import click
import trio
from attrs import frozen

from naviscope_ingest.cli.failures import Exit, Failure
from naviscope_ingest.cli.screen import Screen
from naviscope_ingest.cli.targets import Target
from naviscope_ingest.console import Desk
from naviscope_ingest.plain_messages import time_of
from naviscope_spi import InvalidMessage

__all__ = ["Call", "Duration", "Group", "Moment", "command", "operator"]


@frozen
class Call:
    """One call of a command.

    Attributes:
        screen: where it prints.
        target: what it works on.
        desk: where operations are asked for.
        is_running: whether the process of the store runs.
    """

    screen: Screen
    target: Target
    desk: Desk
    is_running: bool

    def note_rest(self) -> None:
        """Say to those who look that nothing goes on by itself."""
        if not self.is_running and self.screen.errors.is_terminal and not self.screen.is_json:
            self.screen.note("no process works on this store: what is said here goes on at the next run")


Work: TypeAlias = Callable[..., Coroutine[Any, Any, Exit | None]]
"""An async function of a `Call` and of the options of a command."""


class Group(click.Group):
    """Commands of one noun. A name that is misspelt gets the nearest one that is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            close = get_close_matches(args[0], known, 1)
            hint = f"did you mean {ctx.command_path} {close[0]}?" if close else f"there are {', '.join(known)}"
            raise Failure(f"there is no command {ctx.command_path} {args[0]}", hint)
        return super().resolve_command(ctx, args)


_STORE = click.option("--store", "-s", metavar="FILE|URL", help="The store.  [env: NAVISCOPE_STORE]")
_APP = click.option("--app", "-a", metavar="MODULE:APP", help="The app: says which store, and checks payloads.")
_SOCKET = click.option("--socket", metavar="PATH", help="The control socket, if it is not beside the store.")
_CONFIG = click.option("--config", metavar="FILE", help="The configuration.  [env: NAVISCOPE_CONFIG]")
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")


def command(
    group: click.Group,
    name: str,
    *,
    mode: Literal["ask", "change", "make", "none"],
) -> Callable[[Work], click.Command]:
    """Declare a command: an async function of a `Call` and of its own options, which may return an exit code.

    Args:
        group: the noun.
        name: the verb.
        mode: whether it only asks, changes something, makes a store if there is none, or needs none.
    """

    def declare(work: Work) -> click.Command:
        @wraps(work)
        def run(
            *args: Any,  # noqa: ANN401 - its own
            store: str | None = None,
            app: str | None = None,
            socket: str | None = None,
            config: str | None = None,
            is_json: bool,
            **options: Any,  # noqa: ANN401 - its own
        ) -> Exit:
            target = Target(store, app, socket, config)
            return trio.run(partial(_run, work, Screen(is_json=is_json), target, mode=mode, given=(args, options)))

        shared = [_JSON, _DEBUG] if mode == "none" else [_STORE, _APP, _CONFIG, _SOCKET, _JSON, _DEBUG]
        decorated: Any = run
        for option in reversed(shared):
            decorated = option(decorated)
        made: click.Command = group.command(name)(decorated)
        return made

    return declare


async def _run(
    work: Callable[..., Awaitable[Exit | None]],
    screen: Screen,
    target: Target,
    *,
    mode: str,
    given: tuple[tuple[Any, ...], dict[str, Any]],
) -> Exit:
    args, options = given
    if mode == "none":
        return await work(Call(screen, target, _Nowhere(), False), *args, **options) or Exit.DONE
    opening = target.open(changes=mode != "ask", makes=mode == "make")
    # What ends a command is told only after everything was closed: closing may wrap it into a group.
    failure: Exception | None = None
    code: Exit | None = None
    async with opening as (desk, is_running):
        try:
            code = await work(Call(screen, target, desk, is_running), *args, **options)
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure
    return code or Exit.DONE


class _Nowhere:
    """Stands for a desk where none is needed."""

    async def ask(self, name: str, /, **given: Any) -> Any:  # noqa: ANN401 - plain data
        raise NotImplementedError(name)

    def stream(self, name: str, /, **given: Any) -> Any:  # noqa: ANN401 - plain data
        raise NotImplementedError(name)


class Moment(click.ParamType[float]):
    """A wall-clock time: ISO 8601 with its zone, seconds since the Unix epoch, or how long ago, such as 2h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - of click
        """Return it in seconds since the Unix epoch."""
        if isinstance(value, float):
            return value
        ago = _seconds(value)
        if ago is not None and value[-1:].isalpha():
            return time.time() - ago
        try:
            return float(value)
        except ValueError:
            pass
        try:
            found = time_of("it", value)
        except InvalidMessage:
            found = None
        if found is None:
            self.fail(f"{value!r} is no time: write 2026-11-18T20:00:00Z, or how long ago, such as 2h", param, ctx)
        return found


class Duration(click.ParamType[float]):
    """A duration: seconds, or a number with s, m, h or d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - of click
        """Return it in seconds."""
        found = value if isinstance(value, float) else _seconds(value)
        if found is None:
            self.fail(f"{value!r} is no duration: write seconds, or 30s, 5m, 2h, 7d", param, ctx)
        return found


def _seconds(text: str) -> float | None:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        found = float(number) * unit
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None


def operator() -> str:
    """Return who asks, for audit entries: whoever is logged in."""
    for variable in ("SUDO_USER", "USER", "LOGNAME"):
        if name := os.environ.get(variable):
            return name
    return str(os.getuid()) if sys.platform != "win32" else "somebody"
