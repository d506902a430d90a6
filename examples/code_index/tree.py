"""The files of a source tree, and what has changed in it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .tables import Index

__all__ = ["Changes", "SourceFile", "changes", "content_hash", "modules_without_source", "source_files"]

_TESTS = {"test", "tests"}


@dataclass(frozen=True)
class SourceFile:
    """One file, as a message carries it.

    Attributes:
        module: what it is imported as.
        path: where it is.
        is_package: whether it is the `__init__.py` of a package.
    """

    module: str
    path: str
    is_package: bool = False

    @property
    def package(self) -> str:
        """The package it belongs to; modules of no package belong together."""
        return self.module if self.is_package else self.module.rpartition(".")[0] or "(top level)"


def source_files(root: Path, *, with_tests: bool = True) -> Iterator[SourceFile]:
    """Yield every Python file that can be imported when the root is on the path, packages before modules."""
    yield from _files_in(root, (), with_tests=with_tests)


def _files_in(folder: Path, above: tuple[str, ...], *, with_tests: bool) -> Iterator[SourceFile]:
    folders = []
    for entry in sorted(folder.iterdir()):
        name = entry.stem if entry.suffix == ".py" else entry.name
        if not name.isidentifier() or (name in _TESTS and not with_tests):
            continue
        if entry.is_dir():
            if entry.name != "__pycache__" and not entry.is_symlink() and not (entry / "pyvenv.cfg").exists():
                folders.append(entry)
        elif entry.suffix == ".py" and (above or name != "__init__"):
            is_package = name == "__init__"
            # A package hides a module of the same name beside it.
            if not (entry.parent / name / "__init__.py").exists():
                yield SourceFile(".".join(above if is_package else (*above, name)), str(entry), is_package)
    for each in folders:
        yield from _files_in(each, (*above, each.name), with_tests=with_tests)


def content_hash(content: bytes) -> str:
    """Return what tells one content of a file from another."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def modules_without_source() -> frozenset[str]:
    """Return what may be imported without being in the tree: the standard library, and the program itself."""
    return frozenset((*sys.stdlib_module_names, "__main__"))


@dataclass(frozen=True)
class Changes:
    """How a tree differs from its index.

    Attributes:
        files: every file there is, by module.
        changed: modules to read: new ones, and those whose content is another.
        removed: modules whose file is gone, with their packages.
        affected: modules that are as they were, and whose names lead through one that is not.
    """

    files: dict[str, SourceFile]
    changed: list[str]
    removed: dict[str, str]
    affected: list[str]


def changes(root: Path, index: Index | None, *, with_tests: bool = True) -> Changes:
    """Compare a tree with its index.

    Args:
        root: the tree.
        index: what is known; None if nothing is.
        with_tests: whether folders of tests belong to it.
    """
    files = {each.module: each for each in source_files(root, with_tests=with_tests)}
    known = {} if index is None else {row[0]: row[1:] for row in index.rows("SELECT name, hash, package FROM module")}
    changed = [
        module
        for module, each in files.items()
        if module not in known or known[module][0] != content_hash(Path(each.path).read_bytes())
    ]
    removed = {str(module): str(package) for module, (_, package) in known.items() if module not in files}
    touched = {*changed, *removed}
    # A module that comes or goes may change what a name of its package means, to those who looked into the package.
    touched |= {module.rpartition(".")[0] for module in touched if module not in known or module in removed}
    affected = {module for other in touched for module in ([] if index is None else index.consulters(other))}
    return Changes(files, changed, removed, sorted((affected & files.keys()) - set(changed)))
