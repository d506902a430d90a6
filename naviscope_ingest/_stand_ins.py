"""Stand-ins for what a runtime is made of: the real thing, with some of it replaced.

Optional powers are told by what a component has, and asked for in many places. So a stand-in is made to measure: its
class has a name for everything that the real thing has, and what is not replaced leads to the real thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

__all__ = ["stand_in"]


def stand_in(real: Any, replaced: Mapping[str, Any], without: Sequence[str] = ()) -> Any:  # noqa: ANN401 - of any kind
    """Make something that has what the real thing has, with some of it replaced.

    Args:
        real: the real thing.
        replaced: what takes the place of some of it, if it is there.
        without: what it does not have.
    """
    names = [name for name in dir(real) if not name.startswith("_") and name not in without]
    body: dict[str, Any] = {name: property(partial(_read, real, name)) for name in names}
    body |= {name: staticmethod(thing) for name, thing in replaced.items() if name in body}
    return type(type(real).__name__, (), body)()


def _read(real: object, name: str, _: object) -> Any:  # noqa: ANN401 - whatever it is
    return getattr(real, name)
