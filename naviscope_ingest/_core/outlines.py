"""What the core keeps of a message whose store has the rest.

Of a million messages that wait, each differs from the others by its id and by the name of what it waits for; kind and
policy are those of thousands. A durable store has the messages, so the core keeps only what tells one from another, and
makes the dependency anew when somebody asks: that is when the wait is over, or in trouble.

A message with a key, a priority or times of its own is kept as a `Message` without its payload; one whose payload is a
number or a short text is kept as it is. Outlines have the same attributes, so nobody who decides has to know which of
them a node has.

Rejected: everything that can be shared in one more object, for every message: a key or a time is seldom shared, and
then there is an object more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from naviscope_spi import Dependency, DependsOn, Message, OnResource

__all__ = ["Outline", "Outlines"]

_SIZED: Final = frozenset((str, bytes))
_SMALL: Final = 64
"""How long a payload may be to be kept with its message: an outline would take as much room, and time to make."""

_MAX_SHARED: Final = 4_096
"""How many policies are remembered to be shared. Who makes more of them than that has one for each message."""


class Outline:
    """A message without payload, headers, key, priority and times.

    Attributes:
        id: its id.
        kind: its kind.
    """

    __slots__ = ("_like", "_waits_for", "id", "kind")

    # What none of them has. Nothing of it takes room in an outline.
    if TYPE_CHECKING:
        key: str | None
        priority: int
        not_before: float | None
        expires_at: float | None
        headers: Mapping[str, str]
    else:
        key = None
        priority = 0
        not_before = None
        expires_at = None
        headers = MappingProxyType({})

    def __init__(self, message: Message[Any], waits_for: DependsOn | str, like: OnResource | None) -> None:
        self.id = message.id
        self.kind = sys.intern(message.kind)
        # The dependencies; or the name of one resource, and a dependency that is the same but for the name.
        self._waits_for = waits_for
        self._like = like

    @property
    def depends_on(self) -> DependsOn:
        """What it waits for."""
        if self._like is None:
            return self._waits_for  # type: ignore[return-value]  # a name only if it is like something
        return (self._like.named(self._waits_for),)  # type: ignore[arg-type]  # a name, for it is like something

    def check_dependencies(self, depends_on: Iterable[str | Dependency]) -> None:
        """Refuse dependencies that this very message could never satisfy.

        Raises:
            InvalidMessage: it would wait for itself, or for the barrier of its own kind.
        """
        Message(self.id, None, self.kind).check_dependencies(depends_on)


class Outlines:
    """Makes outlines, which share what is equal.

    Attributes:
        keeps_headers: whether headers are needed too, because a limit goes by them.
    """

    def __init__(self) -> None:
        self.keeps_headers = False
        self._shared: dict[object, OnResource] = {}

    def of(self, message: Message[Any] | Outline) -> Message[Any] | Outline:
        """Return as much of a message as decisions need; an outline stays as it is."""
        if isinstance(message, Outline):
            return message
        if (
            message.key is not None
            or message.priority
            or message.not_before is not None
            or message.expires_at is not None
            or (self.keeps_headers and message.headers)
        ):
            return message.outline(with_headers=self.keeps_headers)
        depends_on = message.depends_on
        if len(depends_on) == 1 and isinstance(only := depends_on[0], OnResource):
            like = self._like(only)
            if like is not None:
                return Outline(message, only.name, like)
        payload = message.payload
        kind = type(payload)
        if (kind is int or kind is float or (kind in _SIZED and len(payload) <= _SMALL)) and not message.headers:
            return message
        return Outline(message, depends_on, None)

    def _like(self, wanted: OnResource) -> OnResource | None:
        """Return a dependency that is the same but for the name; None if there are too many kinds of them."""
        policy = (wanted.otherwise, wanted.timeout, wanted.on_unresolved, wanted.min_version, wanted.external)
        like = self._shared.get(policy)
        if like is None and len(self._shared) < _MAX_SHARED:
            like = self._shared[policy] = wanted
        return like
