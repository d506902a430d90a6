"""Stores by URL. Schemes are entry points, so that a package can bring its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.metadata import entry_points
from inspect import Parameter, signature
from typing import Any

from naviscope_spi import DeferredStore, UnknownOption

__all__ = ["GROUP", "check_options", "open_store"]

GROUP = "naviscope_ingest.stores"
"""The entry points that open stores: the name is the scheme, the object takes what follows its colon, and options.

An option that the object does not name among its keywords is refused before it is called."""


def open_store(url: str, **options: Any) -> AbstractAsyncContextManager[DeferredStore[Any]]:  # noqa: ANN401 - of the store
    """Return a context manager that opens the store of a URL, for as long as its block lasts.

    Args:
        url: "sqlite:///relative.db", "sqlite:////absolute/path.db", "memory://", or a scheme that another package has.
        **options: passed on to the store.

    Raises:
        ValueError: no installed package knows the scheme, or the URL is malformed.
        UnknownOption: the store has no such option.
    """
    scheme, colon, place = url.partition(":")
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if not colon or scheme not in known:
        installed = ", ".join(f"{name}:" for name in sorted(known)) or "none"
        raise ValueError(f"{url!r:.80} names no store that is installed: the schemes are {installed}")
    opener = known[scheme].load()
    check_options(f"{scheme}:", options, opener)
    opened: AbstractAsyncContextManager[DeferredStore[Any]] = opener(place, **options)
    return opened


def check_options(store: str, options: Mapping[str, Any], opener: Callable[..., Any]) -> None:
    """Refuse options that an opener does not name among its keywords. One that takes any checks them itself.

    Args:
        store: which store, as its URL begins.
        options: what was given.
        opener: what takes them.

    Raises:
        UnknownOption: there is no such option.
    """
    parameters = signature(opener).parameters.values()
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise UnknownOption(store, option, known)
