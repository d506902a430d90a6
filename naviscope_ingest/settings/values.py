"""What a configuration comes to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import optional

from naviscope_ingest._core.units import Bytes, Seconds
from naviscope_ingest.config import RuntimeConfig
from naviscope_ingest.settings.origins import Origin

__all__ = ["EndpointOptions", "Entry", "Settings", "StoreOptions"]


def _not_negative(instance: object, attribute: Attribute[Any], value: float) -> None:
    if value < 0:
        raise ValueError(f"StoreOptions({attribute.name}={value!r}): give a number of at least 0")


def _positive(instance: object, attribute: Attribute[Any], value: float) -> None:
    if value <= 0:
        raise ValueError(f"StoreOptions({attribute.name}={value!r}): give a number above 0")


@frozen(kw_only=True)
class StoreOptions:
    """What a store is opened with. What is left out is as the store has it.

    Attributes:
        retain: how long ids and report of a completed epoch are kept.
        max_payload: the largest payload.
        max_recent: how much of what was put lately stays in memory.
        more: options of stores that other packages bring, by their names.
    """

    retain: Seconds | None = field(default=None, validator=optional(_not_negative))
    max_payload: Bytes | None = field(default=None, validator=optional(_positive))
    max_recent: Bytes | None = field(default=None, validator=optional(_not_negative))
    more: Mapping[str, str | int | float | bool] = field(factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return what was given, as keywords for `open_store`."""
        known = {"retain": self.retain, "max_payload": self.max_payload, "max_recent": self.max_recent}
        return {**self.more, **{name: value for name, value in known.items() if value is not None}}


def _port(instance: object, attribute: Attribute[Any], value: int) -> None:
    if not 0 <= value <= 65_535:
        raise ValueError(f"EndpointOptions({attribute.name}={value!r}): give a port from 0 (a free one) to 65535")


def _above_zero(instance: object, attribute: Attribute[Any], value: float) -> None:
    if value <= 0:
        raise ValueError(f"EndpointOptions({attribute.name}={value!r}): give seconds above 0")


@frozen(kw_only=True)
class EndpointOptions:
    """Where health and metrics are served over HTTP while an app runs. Needs the extra `endpoint`.

    Attributes:
        port: on which port; 0 for a free one, none for no endpoint.
        host: where to listen. There is no password: leave it on the loopback unless the network is trusted.
        stall_after: for how many seconds nothing may be executed or settled while there is something to do; then it is
            not ready.
        metrics: whether the app is measured for `/metrics`, if the program gives it no metrics of its own. Needs the
            extra `metrics`.
    """

    port: int | None = field(default=None, validator=optional(_port))
    host: str = "127.0.0.1"
    stall_after: Seconds = field(default=300.0, validator=_above_zero)
    metrics: bool = True


@frozen
class Entry:
    """One setting, for those who want to see where it comes from.

    Attributes:
        key: the keys that lead to it: "kinds.http.cap".
        value: its value, as a file would have it.
        origin: where it comes from.
        variable: the environment variable that sets it.
    """

    key: str
    value: Any
    origin: Origin
    variable: str

    @property
    def shown(self) -> str:
        """The value for people and logs: a password within a URL is left out."""
        if isinstance(self.value, str):
            return re.sub(r"(?<=://)([^/@:\s]*):[^/@\s]+@", r"\1:***@", self.value)
        return "none" if self.value is None else json.dumps(self.value)


@frozen(kw_only=True)
class Settings:
    """What a configuration comes to. Made by `load_settings`.

    Attributes:
        store: the URL of the store.
        store_options: what it is opened with.
        endpoint: where an app serves health and metrics over HTTP.
        runtime: how the runtime behaves.
        file: the file that was read.
        entries: every setting with its origin.
    """

    store: str = "memory://"
    store_options: StoreOptions = field(factory=StoreOptions)
    endpoint: EndpointOptions = field(factory=EndpointOptions)
    runtime: RuntimeConfig = field(factory=RuntimeConfig)
    file: Path | None = None
    entries: Sequence[Entry] = field(default=(), repr=False, eq=False)
