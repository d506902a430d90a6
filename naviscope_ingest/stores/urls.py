"""Stores by URL. Schemes are entry points, so that a package can bring its own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib.metadata import entry_points
from typing import Any

from naviscope_spi import DeferredStore

__all__ = ["GROUP", "open_store"]

GROUP = "naviscope_ingest.stores"
"""The entry points that open stores: the name is the scheme, the object takes what follows its colon."""


def open_store(url: str, **options: Any) -> AbstractAsyncContextManager[DeferredStore[Any]]:  # noqa: ANN401 - of the store
    """Return a context manager that opens the store of a URL, for as long as its block lasts.

    Args:
        url: "sqlite:///relative.db", "sqlite:////absolute/path.db", "memory://", or a scheme that another package has.
        **options: passed on to the store.

    Raises:
        ValueError: no installed package knows the scheme, or the URL is malformed.
    """
    scheme, colon, place = url.partition(":")
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if not colon or scheme not in known:
        installed = ", ".join(f"{name}:" for name in sorted(known)) or "none"
        raise ValueError(f"{url!r:.80} names no store that is installed: the schemes are {installed}")
    opened: AbstractAsyncContextManager[DeferredStore[Any]] = known[scheme].load()(place, **options)
    return opened
