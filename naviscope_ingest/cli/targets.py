"""What a command works on: a process that serves a control socket, or a store whose process does not run."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import frozen

from naviscope_ingest.cli.failures import Exit, Failure
from naviscope_ingest.console import Desk, LocalDesk, connect_control, control_path
from naviscope_ingest.handlers import Ingest
from naviscope_ingest.runtime import IngestRuntime
from naviscope_ingest.settings import load_settings
from naviscope_ingest.stores.sqlite import StoreLocked

__all__ = ["CONFIG", "STORE", "Target", "environment", "load_app", "url_of", "where"]

STORE = "NAVISCOPE_STORE"
"""The environment variable that names the store where no option does."""

_OURS = str(Path(__file__).parents[1])

CONFIG = "NAVISCOPE_CONFIG"
"""The one that names a file of configuration."""


@frozen
class Target:
    """Which store, and how it is reached.

    Attributes:
        store: a path or a URL, if one was named.
        app: "module:app", if one was named.
        socket: a control socket, if one was named.
        config: a file of configuration, if one was named.
    """

    store: str | None = None
    app: str | None = None
    socket: str | None = None
    config: str | None = None

    @property
    def url(self) -> str:
        """The URL of the store.

        Raises:
            Failure: none was named.
        """
        if self.store:
            return url_of(self.store)
        if self.app is not None:
            return load_app(self.app, config=self.config).url
        if named := os.environ.get(STORE):
            return url_of(named)
        if self.config is not None or os.environ.get(CONFIG):
            return load_settings(self.config, environ=environment()).store
        raise Failure("no store was named", f"give --store ingest.db, or set {STORE}")

    @property
    def file(self) -> Path | None:
        """The file of the store; None if it is none in a file."""
        url = self.url
        return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None

    @property
    def control(self) -> Path | None:
        """The control socket that its process would serve."""
        if self.socket is not None:
            return Path(self.socket)
        file = self.file
        return None if file is None else control_path(file)

    @asynccontextmanager
    async def open(self, *, changes: bool, makes: bool = False) -> AsyncIterator[tuple[Desk, bool]]:
        """Reach the process of the store, or else open the store at rest; tell whether the process runs.

        Args:
            changes: whether something will be changed.
            makes: whether a file is made if there is none.

        Raises:
            Failure: there is no such store.
        """
        control = self.control
        async with AsyncExitStack() as stack:
            desk: Desk | None = None
            if control is not None:
                try:
                    desk = await stack.enter_async_context(connect_control(control))
                except ConnectionRefusedError as error:
                    if self.socket is not None:
                        raise Failure(str(error), "is its process running?", Exit.UNAVAILABLE) from error
            is_running = desk is not None
            if desk is None:
                desk = await stack.enter_async_context(self._at_rest(changes=changes, makes=makes))
            yield desk, is_running

    @asynccontextmanager
    async def _at_rest(self, *, changes: bool, makes: bool) -> AsyncIterator[LocalDesk]:
        url, file = self.url, self.file
        if url.startswith("memory:"):
            raise Failure("a store in memory is gone with its process", "name the file of a store: --store ingest.db")
        if file is not None and not makes and not file.exists():
            raise Failure(f"there is no store at {file}", "naviscope-ingest submit and run make one")
        app = None if self.app is None else load_app(self.app, url, config=self.config)
        opening = (
            IngestRuntime.at_rest(url, read_only=not changes) if app is None else app.at_rest(read_only=not changes)
        )
        try:
            async with opening as intake:
                yield LocalDesk(intake)
        except StoreLocked as error:
            raise Failure(
                str(error), "it offers no control socket: stop it, or let it serve one", Exit.UNAVAILABLE
            ) from error


def url_of(named: str) -> str:
    """Return the URL of a store that was named by a path or a URL."""
    if "://" in named or named.startswith(("sqlite:", "memory:")):
        return named
    return f"sqlite:///{named}"


def environment() -> dict[str, str]:
    """Return the environment variables; the one that names the store may name it by its path."""
    found = dict(os.environ)
    if named := found.get(STORE):
        found[STORE] = url_of(named)
    return found


def load_app(named: str, url: str | None = None, *, config: str | None = None) -> Ingest:
    """Return the app that "module:app" names; a function without arguments that returns one will do too.

    Args:
        named: the name.
        url: a store to use instead of the app's own.
        config: a file of configuration, for what the app does not say itself.

    Raises:
        Failure: there is none of that name.
    """
    module_name, colon, name = named.partition(":")
    if not (module_name and colon and name):
        raise Failure(f"{named!r} names no app", 'write MODULE:APP, such as "shop:app" for `app` in shop.py')
    found = getattr(_load(module_name, named), name, None)
    if found is None:
        module = sys.modules[module_name]
        apps = [each for each, value in vars(module).items() if isinstance(value, Ingest)]
        close = get_close_matches(name, apps, 1) or apps[:1]
        hint = f"did you mean {module_name}:{close[0]}?" if close else f"there is no Ingest in {module.__file__}"
        raise Failure(f"module {module_name!r} has no {name!r}", hint)
    if callable(found) and not isinstance(found, Ingest):
        found = _made(found, named)
    if not isinstance(found, Ingest):
        raise Failure(f"{named} is {found!r:.80}", "name an Ingest, or a function without arguments that returns one")
    if url is not None:
        found.url = url
    found.configure(config, environ=environment())
    return found


def _load(module_name: str, named: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Failure(
                f"there is no module {module_name!r}", f"run it in the folder that holds it; this is {here}"
            ) from error
        raise Failure(f"{named} cannot be loaded: {where(error)}", "--debug shows the traceback") from error
    except Exception as error:
        raise Failure(f"{named} cannot be loaded: {where(error)}", "--debug shows the traceback") from error


def _made(function: Any, named: str) -> object:  # noqa: ANN401 - something that can be called
    try:
        made: object = function()
    except Exception as error:
        raise Failure(f"{named}() failed: {where(error)}", "--debug shows the traceback") from error
    return made


def where(error: BaseException) -> str:
    """Say what an error of the user's code is, and where it was raised."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    # Where it is ours that refuses something, the line that is wrong is the one that called us.
    theirs = [each for each in frames if not each.filename.startswith(_OURS)] or frames
    place = f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""
    return f"{place}{type(error).__name__}: {error}"
