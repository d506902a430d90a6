"""Imports go down the layers only, and the core stays free of clocks, I/O and chance.

The checks read syntax trees; nothing is imported. Each rule is a function from a module to its violations, so that
the tests at the end can feed it bad snippets and see it bite.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"naviscope_ingest": ROOT / "naviscope_ingest", "naviscope_spi": ROOT / "spi" / "naviscope_spi"}

CORE = "naviscope_ingest._core"
KERNEL = "naviscope_ingest._kernel"
ADAPTERS = tuple(f"naviscope_ingest.{name}" for name in ("stores", "buses", "sinks", "sources", "metrics"))
ABOVE_KERNEL = tuple(
    f"naviscope_ingest.{name}"
    for name in (
        "runtime",
        "intake",
        "dead_letters",
        "handlers",
        "interop",
        "settings",
        "endpoint",
        "logs",
        "cli",
        "console",
        "stage",
        "flow",
    )
)
CONSOLE, CLI = "naviscope_ingest.console", "naviscope_ingest.cli"
# These know the contracts and their library alone, so that adapters may use them.
SHARED = ("naviscope_ingest.codecs", "naviscope_ingest._encoding", "naviscope_ingest._sqlite_log")
OUR_PACKAGES = ("naviscope_ingest", "naviscope_spi")
ATTRS = ("attr", "attrs")
# Whatever waits, reads a clock, throws dice or touches the world.
NOT_IN_CORE = ("trio", "time", "random", "uuid", "datetime", "asyncio", "threading", "socket", "os", "pathlib")


class Module(NamedTuple):
    """One parsed file."""

    name: str
    is_package: bool
    tree: ast.Module


class Violation(NamedTuple):
    """A broken rule and where it is broken."""

    module: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.what}"


Rule = Callable[[Module], Iterator[Violation]]


def within(name: str, *parents: str) -> bool:
    """Say whether a dotted name is one of the parents or lies inside one."""
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute name of everything a module imports.

    `from a import b` yields `a.b`: b may be a submodule, and then its layer counts, not that of a.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = imported_from(module, node)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def imported_from(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    # One dot is the package of the module. A package's own __init__ is already there.
    drop = node.level - module.is_package
    base = parts[: len(parts) - drop]
    return ".".join([*base, node.module] if node.module else base)


def contracts_stand_alone(module: Module) -> Iterator[Violation]:
    if not within(module.name, "naviscope_spi"):
        return
    for line, name in imports(module):
        if not (is_standard(name) or within(name, "naviscope_spi", *ATTRS)):
            yield Violation(module.name, line, f"the contracts may not import {name}")


def core_only_decides(module: Module) -> Iterator[Violation]:
    if not within(module.name, CORE):
        return
    for line, name in imports(module):
        allowed = is_standard(name) or within(name, CORE, "naviscope_spi", "sortedcontainers", *ATTRS)
        if not allowed or within(name, *NOT_IN_CORE):
            yield Violation(module.name, line, f"the core may not import {name}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield Violation(module.name, node.lineno, "the core may not wait")
        elif isinstance(node, ast.comprehension) and node.is_async:
            yield Violation(module.name, node.iter.lineno, "the core may not wait")


def adapters_know_only_contracts(module: Module) -> Iterator[Violation]:
    home = next((adapter for adapter in ADAPTERS if within(module.name, adapter)), None)
    if home is None:
        return
    for line, name in imports(module):
        if within(name, "naviscope_ingest") and not within(name, home, *SHARED):
            yield Violation(module.name, line, f"{home} may not import {name}")


def shared_modules_know_only_contracts(module: Module) -> Iterator[Violation]:
    if not within(module.name, *SHARED):
        return
    for line, name in imports(module):
        if within(name, "naviscope_ingest", "trio"):
            yield Violation(module.name, line, f"{module.name} may not import {name}")


def kernel_looks_down(module: Module) -> Iterator[Violation]:
    if not within(module.name, KERNEL):
        return
    for line, name in imports(module):
        if within(name, *ABOVE_KERNEL) or is_front_door(name):
            yield Violation(module.name, line, f"the kernel may not import {name}")


def people_are_on_top(module: Module) -> Iterator[Violation]:
    """Nobody below knows of the console or the command line; only that one knows of terminals."""
    if within(module.name, CLI, "naviscope_ingest.__main__"):
        return
    for line, name in imports(module):
        if within(name, CLI) or (within(name, CONSOLE) and not within(module.name, CONSOLE)):
            yield Violation(module.name, line, f"{module.name} may not import {name}")
        elif within(name, "click", "rich"):
            yield Violation(module.name, line, f"{name} is for the command line")


def is_front_door(name: str) -> bool:
    """Say whether a name is taken from `naviscope_ingest/__init__.py`, which imports every layer.

    Public names of the front door are no modules, so `naviscope_ingest.Runtime` has no file of that name.
    """
    parts = name.split(".")
    if parts[0] != "naviscope_ingest" or len(parts) > 2:
        return False
    if len(parts) == 1:
        return True
    target = PACKAGES["naviscope_ingest"] / parts[1]
    return not (target.is_dir() or target.with_suffix(".py").is_file())


def contracts_have_one_path(module: Module) -> Iterator[Violation]:
    for line, name in imports(module):
        if within(name, "spi"):
            yield Violation(module.name, line, "import naviscope_spi: a second path loads its classes twice")


def order_is_repeatable(module: Module) -> Iterator[Violation]:
    """Refuse loops over a set: its order differs from run to run, and so would the decisions."""
    if not within(module.name, CORE, KERNEL):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and is_set(node.iter):
            yield Violation(module.name, node.iter.lineno, "a set has no order to iterate in")


def is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in {"set", "frozenset"}
    return isinstance(node, ast.Set | ast.SetComp)


RULES: tuple[Rule, ...] = (
    contracts_stand_alone,
    core_only_decides,
    adapters_know_only_contracts,
    shared_modules_know_only_contracts,
    kernel_looks_down,
    people_are_on_top,
    contracts_have_one_path,
    order_is_repeatable,
)


def parse(name: str, source: str, *, is_package: bool = False) -> Module:
    return Module(name, is_package, ast.parse(source))


def modules_of(package: str) -> Iterator[Module]:
    root = PACKAGES[package]
    for path in sorted(root.rglob("*.py")):
        parts = (package, *path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        yield parse(name, path.read_text(encoding="utf-8"), is_package=is_package)


@pytest.mark.parametrize("package", OUR_PACKAGES)
def test_every_package_has_modules_to_read(package):
    assert list(modules_of(package))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("package", OUR_PACKAGES)
def test_the_packages_keep_the_rule(package, rule):
    violations = [str(violation) for module in modules_of(package) for violation in rule(module)]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (contracts_stand_alone, "naviscope_spi.message", "import trio"),
        (contracts_stand_alone, "naviscope_spi.message", "import sortedcontainers"),
        (contracts_stand_alone, "naviscope_spi.message", "from naviscope_ingest import errors"),
        (contracts_stand_alone, "naviscope_spi.message", "def f():\n    import typing_extensions"),
        *((core_only_decides, f"{CORE}.graph", f"import {name}") for name in NOT_IN_CORE),
        (core_only_decides, f"{CORE}.graph", "from os.path import join"),
        (core_only_decides, f"{CORE}.graph", "import networkx"),
        (core_only_decides, f"{CORE}.graph", "from naviscope_ingest import errors"),
        (core_only_decides, f"{CORE}.graph", "from .._kernel import loop"),
        (core_only_decides, f"{CORE}.graph", "from .. import runtime"),
        (core_only_decides, f"{CORE}.graph", "async def f(): ..."),
        (core_only_decides, f"{CORE}.graph", "async def f():\n    await g()"),
        (adapters_know_only_contracts, "naviscope_ingest.stores.sqlite", "from naviscope_ingest._core import graph"),
        (adapters_know_only_contracts, "naviscope_ingest.stores.sqlite", "import naviscope_ingest._kernel.loop"),
        (adapters_know_only_contracts, "naviscope_ingest.stores.sqlite", "from naviscope_ingest import Runtime"),
        (adapters_know_only_contracts, "naviscope_ingest.sinks.memory", "from ..stores import memory"),
        (adapters_know_only_contracts, "naviscope_ingest.buses.memory", "from naviscope_ingest import sinks"),
        (adapters_know_only_contracts, "naviscope_ingest.sources.files", "from naviscope_ingest.buses import memory"),
        *((shared_modules_know_only_contracts, name, "from naviscope_ingest.stores import memory") for name in SHARED),
        *((shared_modules_know_only_contracts, name, "import trio") for name in SHARED),
        *((kernel_looks_down, f"{KERNEL}.loop", f"import {name}") for name in ABOVE_KERNEL),
        (kernel_looks_down, f"{KERNEL}.loop", "from naviscope_ingest import runtime"),
        (kernel_looks_down, f"{KERNEL}.loop", "from ..handlers import registry"),
        (kernel_looks_down, f"{KERNEL}.loop", "import naviscope_ingest"),
        (kernel_looks_down, f"{KERNEL}.loop", "from naviscope_ingest import NoSuchModule"),
        (people_are_on_top, "naviscope_ingest.runtime", "from naviscope_ingest import console"),
        (people_are_on_top, "naviscope_ingest.handlers.app", "from naviscope_ingest.cli import main"),
        (people_are_on_top, CONSOLE, "from naviscope_ingest.cli import main"),
        (people_are_on_top, f"{CONSOLE}.server", "import rich.console"),
        (contracts_have_one_path, "naviscope_ingest.runtime", "import spi"),
        (contracts_have_one_path, "naviscope_ingest.runtime", "from spi.naviscope_spi import message"),
        (contracts_have_one_path, "naviscope_ingest.runtime", "from spi import naviscope_spi"),
        (order_is_repeatable, f"{CORE}.graph", "for x in {1, 2}: ..."),
        (order_is_repeatable, f"{CORE}.graph", "for x in {y for y in z}: ..."),
        (order_is_repeatable, f"{CORE}.graph", "for x in set(y): ..."),
        (order_is_repeatable, f"{KERNEL}.loop", "for x in frozenset(y): ..."),
        (order_is_repeatable, f"{KERNEL}.loop", "[x for x in set(y)]"),
        (order_is_repeatable, f"{KERNEL}.loop", "async def f():\n    async for x in set(y): ..."),
    ],
)
def test_a_breach_is_found(rule, name, source):
    assert list(rule(parse(name, source)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "naviscope_spi.message",
            "import attrs, datetime\nfrom . import errors\nfrom naviscope_spi import names",
        ),
        (f"{CORE}.graph", "import heapq\nimport attrs\nfrom sortedcontainers import SortedList\nfrom . import lanes"),
        (f"{CORE}.graph", "from naviscope_spi import Message\nfor x in sorted({1, 2}): ..."),
        (
            "naviscope_ingest.stores.sqlite",
            "import sqlite3, trio, psycopg\nimport naviscope_spi\nfrom . import sql\n"
            "from naviscope_ingest import codecs",
        ),
        (f"{KERNEL}.loop", "import trio\nfrom naviscope_ingest._core import graph\nfrom naviscope_spi import Clock"),
        ("naviscope_ingest.runtime", "import spiral\nfrom naviscope_ingest._kernel import loop"),
    ],
)
def test_good_code_passes(name, source):
    assert not [violation for rule in RULES for violation in rule(parse(name, source))]


@pytest.mark.parametrize(
    ("name", "is_package", "source", "expected"),
    [
        ("a.b.c", False, "from . import d", "a.b.d"),
        ("a.b.c", False, "from .d import e", "a.b.d.e"),
        ("a.b.c", False, "from .. import d", "a.d"),
        ("a.b", True, "from . import d", "a.b.d"),
        ("a.b", True, "from ..d import e", "a.d.e"),
        ("a.b", True, "from x import y", "x.y"),
    ],
)
def test_a_relative_import_is_resolved(name, is_package, source, expected):
    assert [found for _, found in imports(parse(name, source, is_package=is_package))] == [expected]


def test_a_violation_names_module_line_and_import():
    (violation,) = core_only_decides(parse(f"{CORE}.graph", "\nimport random"))
    assert str(violation) == f"{CORE}.graph:2: the core may not import random"
