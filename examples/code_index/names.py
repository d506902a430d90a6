"""Where a dotted name leads: through imports, re-exports, star imports and base classes, to a definition.

`json.dumps` is easy: module `json` defines it. `os.path.join` goes through a binding of module `os` to `posixpath`.
`self.assertEqual` may go through several base classes. Names may also lead in circles, or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ModuleNames", "NotDeclared", "Resolver", "Target"]

_MOST_STEPS = 200
"""How many steps a name may take. Real ones take a handful."""


class ModuleNames(Protocol):
    """The names of one module."""

    def is_defined(self, name: str) -> bool:
        """Whether the module defines it."""
        ...

    def targets(self, name: str) -> Sequence[str]:
        """What an imported name stands for; several, if the module imports it in several places."""
        ...


class Modules(Protocol):
    """All modules of a tree."""

    def find(self, module: str) -> ModuleNames | None:
        """Return the names of a module; None if there is no such module.

        Raises:
            NotDeclared: there is, but it has not been read yet.
        """
        ...


class NotDeclared(Exception):  # noqa: N818 - a fact, not a fault
    """A name leads into a module that has not been read yet."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


@dataclass(frozen=True)
class Target:
    """A definition, or a module if the name is empty.

    `is_exact` is false for an attribute of something that is defined, such as a method of a variable: then the target
    is the variable.
    """

    module: str
    name: str
    is_exact: bool = True


class Resolver:
    """Follows names.

    Args:
        modules: where they lead through.

    Attributes:
        consulted: every module that an answer rests on.
    """

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self.consulted: set[str] = set()
        self._steps = 0
        self._seen: set[str] = set()

    def resolve(self, name: str) -> Target | None:
        """Return what a name stands for; None if the tree does not tell.

        Args:
            name: module and name ("json.decoder:JSONDecoder.decode"), or just a dotted name.

        Raises:
            NotDeclared: it depends on a module that has not been read yet.
        """
        self._steps = 0
        self._seen = set()
        return self._follow(name if ":" in name else name.replace(".", ":", 1))

    def _follow(self, name: str) -> Target | None:
        self._steps += 1
        if name in self._seen or self._steps > _MOST_STEPS:
            return None
        self._seen.add(name)
        module, _, inner = name.partition(":")
        rest = inner.split(".") if inner else []
        names = self._modules.find(module)
        if names is None:
            # What is imported like a module may be a name of another: os.path is.
            package, _, last = module.rpartition(".")
            return self._follow(_anchored(package, [last, *rest])) if package else None
        self.consulted.add(module)
        return self._within(module, names, rest) if rest else Target(module, "")

    def _within(self, module: str, names: ModuleNames, rest: list[str]) -> Target | None:
        whole = ".".join(rest)
        if names.is_defined(whole):
            return Target(module, whole)
        for way in self._ways(module, names, rest):
            found = self._follow(way)
            if found is not None:
                return found
        for length in range(len(rest) - 1, 0, -1):
            part = ".".join(rest[:length])
            if names.is_defined(part):
                return Target(module, part, is_exact=False)
        return None

    def _ways(self, module: str, names: ModuleNames, rest: list[str]) -> Iterator[str]:
        """Yield what a name may stand for elsewhere: an import, a base class, a submodule, a star import."""
        for length in range(len(rest), 0, -1):
            for target in names.targets(".".join(rest[:length])):
                yield _longer(target, rest[length:])
        for length in range(len(rest) - 1, 0, -1):
            for target in names.targets(".".join([*rest[:length], "*"])):
                yield _longer(target, rest[length:])
        if self._modules.find(f"{module}.{rest[0]}") is not None:
            yield _anchored(f"{module}.{rest[0]}", rest[1:])
        if not rest[0].startswith("_"):
            for target in names.targets("*"):
                yield _longer(target, rest)


def _anchored(module: str, rest: Sequence[str]) -> str:
    return f"{module}:{'.'.join(rest)}"


def _longer(target: str, rest: Sequence[str]) -> str:
    module, _, inner = target.partition(":")
    return _anchored(module, [*([inner] if inner else []), *rest])
