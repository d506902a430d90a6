"""Barriers: every message of one kind in an epoch has ended.

The hard part is that a message may still derive others, so "none of the kind is unfinished" comes too early: the last
parent may be running. A barrier opens, once its epoch is sealed, when no unfinished message has a kind that may derive
the kind waited for, directly or through others. Kinds say with `derives` what they derive; a kind that does not say may
derive anything. That rule alone would keep the barrier shut when its own waiters could derive, so there is a second
one for an idle epoch, in `stuck`.

Rejected: "sealed and none of the kind unfinished" opened early in a fifth of random programs; "everything that is not
behind the barrier has ended" hung in another fifth.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naviscope_ingest._core.terms import Term

__all__ = ["Barrier", "Derivations"]


class Barrier:
    """The barrier of one kind in one epoch."""

    __slots__ = ("is_open", "kind", "waiters")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_open = False
        self.waiters: list[Term] = []


class Derivations:
    """Which kinds may derive which.

    Args:
        derives: for each kind that says so, the kinds it derives. Kinds that are not listed may derive any.
    """

    def __init__(self, derives: Mapping[str, Collection[str]] | None = None) -> None:
        self._derives = {kind: frozenset(derived) for kind, derived in (derives or {}).items()}
        self._reached: dict[str, frozenset[str] | None] = {}

    def may_bring(self, kind: str, target: str) -> bool:
        """Tell whether an unfinished message of one kind may bring a message of the target kind, itself included."""
        if kind == target:
            return True
        reached = self._reach(kind)
        return reached is None or target in reached

    def declares(self, kind: str, target: str) -> bool:
        """Tell whether a kind says that it may bring the target kind, directly or through others that say so."""
        return target in self._said(kind)

    def _reach(self, kind: str) -> frozenset[str] | None:
        """Return the kinds that may come of a kind; None means any."""
        if kind not in self._reached:
            said = self._said(kind)
            is_complete = kind in self._derives and all(each in self._derives for each in said)
            self._reached[kind] = said if is_complete else None
        return self._reached[kind]

    def _said(self, kind: str) -> frozenset[str]:
        """Return the kinds that are said to come of a kind, directly or through others."""
        found: dict[str, None] = {}
        todo = [kind]
        while todo:
            for each in sorted(self._derives.get(todo.pop(), ())):
                if each not in found:
                    found[each] = None
                    todo.append(each)
        return frozenset(found)
