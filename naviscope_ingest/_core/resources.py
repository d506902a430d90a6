"""Resources: what was provided, and who waits for it.

A resource has a version in each scope: globally, and in each epoch. Either satisfies. Versions only grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from naviscope_ingest._core.nodes import Node, Waiter
from naviscope_spi import OnResource, Resource

__all__ = ["Resources", "Scope"]

Scope: TypeAlias = int | None
"""The number of an epoch, or None for everywhere."""

# The lowest version wanted first; the order of arrival keeps waiters from being compared.
_Wanted: TypeAlias = tuple[int, int, Waiter]


class Resources:
    """Versions and values in every scope, and who waits for them: nodes that count, and terms of cases."""

    def __init__(self) -> None:
        self._provided: dict[Scope, dict[str, tuple[int, bytes | None]]] = {None: {}}
        # Most resources have one waiter, which is kept without a heap around it.
        self._waiters: dict[str, Waiter | dict[int, list[_Wanted]]] = {}
        self._order = 0

    def version(self, scope: Scope, name: str) -> int | None:
        """Return the version of a resource in one scope; None when it was never provided there."""
        found = self._provided.get(scope, {}).get(name)
        return None if found is None else found[0]

    def value(self, number: int, name: str) -> bytes | None:
        """Return the value that messages of an epoch get, their own scope first."""
        for scope in (number, None):
            found = self._provided.get(scope, {}).get(name)
            if found is not None and found[1] is not None:
                return found[1]
        return None

    def best(self, number: int, name: str) -> int | None:
        """Return the highest version that messages of an epoch see."""
        here, everywhere = self.version(number, name), self.version(None, name)
        if here is None or everywhere is None:
            return everywhere if here is None else here
        return max(here, everywhere)

    def is_satisfied(self, number: int, wanted: OnResource) -> bool:
        """Tell whether a resource is there for messages of an epoch, in the version they want."""
        best = self.best(number, wanted.name)
        return best is not None and best >= wanted.min_version

    def provide(self, scope: Scope, resource: Resource) -> list[Waiter]:
        """Record a resource and return those that it satisfies; they wait no longer."""
        versions = self._provided.setdefault(scope, {})
        known = versions.get(resource.name)
        if known is None:
            version, value = resource.version or resource.add, resource.value
        else:
            version = known[0] + resource.add if resource.add else resource.version
            if version <= known[0]:
                return []
            value = known[1] if resource.value is None else resource.value
        versions[resource.name] = (version, value)
        return self._release(scope, resource.name, version)

    def wait(self, number: int, waiter: Waiter, wanted: OnResource) -> None:
        """Add a node, or a term, of a message of that epoch to those that wait."""
        known = self._waiters.get(wanted.name)
        if known is None:
            self._waiters[wanted.name] = waiter
            return
        if not isinstance(known, dict):
            self._waiters[wanted.name] = known = self._spread(known)
        self._push(known, number, waiter, wanted)

    def leave(self, waiter: Waiter, wanted: OnResource) -> None:
        """Let somebody wait no longer. Among others it is passed over when its turn comes."""
        if self._waiters.get(wanted.name) is waiter:
            del self._waiters[wanted.name]

    def forget(self, scope: Scope, name: str | None = None) -> None:
        """Take back a resource, or everything in a scope. What was satisfied by it stays satisfied."""
        if name is None:
            self._provided.pop(scope, None)
        else:
            self._provided.get(scope, {}).pop(name, None)

    def _spread(self, only: Waiter) -> dict[int, list[_Wanted]]:
        node, wanted = (only, only.resource) if isinstance(only, Node) else (only.case.node, only.dependency)
        heaps: dict[int, list[_Wanted]] = {}
        if isinstance(wanted, OnResource):
            self._push(heaps, node.epoch.number, only, wanted)
        return heaps

    def _push(self, heaps: dict[int, list[_Wanted]], number: int, waiter: Waiter, wanted: OnResource) -> None:
        self._order += 1
        heappush(heaps.setdefault(number, []), (wanted.min_version, self._order, waiter))

    def _release(self, scope: Scope, name: str, version: int) -> list[Waiter]:
        known = self._waiters.get(name)
        if known is None:
            return []
        if not isinstance(known, dict):
            known = self._spread(known)
        numbers = list(known) if scope is None else [scope]
        released = [waiter for number in numbers for waiter in self._pop(known, number, version)]
        if known:
            self._waiters[name] = known
        else:
            del self._waiters[name]
        return released

    def _pop(self, heaps: dict[int, list[_Wanted]], number: int, version: int) -> Iterator[Waiter]:
        heap = heaps.get(number)
        if heap is None:
            return
        while heap and (heap[0][0] <= version or not _is_waiting(heap[0][2])):
            yield heappop(heap)[2]
        if not heap:
            del heaps[number]


def _is_waiting(waiter: Waiter) -> bool:
    return waiter.resource is not None if isinstance(waiter, Node) else waiter.is_live
