"""The tables of the index: what is written to them, and what is asked of them.

A row belongs to the module it was read from, and says nothing that another file decides. Only `link` does: it is what
`resolve` makes of the names that a module uses. So when a file changes, its own rows go, and the links of those who
looked into it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from naviscope_ingest.sinks import Delete, Execute, SqlOp

from .names import NotDeclared, Target
from .syntax import Scan

__all__ = ["OF_A_FILE", "SCHEMA", "Index", "Use", "declare_ops", "forget_ops", "link_ops", "summary_ops"]

SCHEMA = """
    -- A module, from the survey on. Its hash is that of the content that was read; NULL until it was.
    CREATE TABLE module (name TEXT PRIMARY KEY, path TEXT NOT NULL, package TEXT NOT NULL, hash TEXT, lines INTEGER);
    CREATE TABLE definition (
        module TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, line INTEGER NOT NULL,
        first_line INTEGER NOT NULL, PRIMARY KEY (module, name, line)
    ) WITHOUT ROWID;
    CREATE TABLE binding (
        module TEXT NOT NULL, name TEXT NOT NULL, place INTEGER NOT NULL, target TEXT NOT NULL,
        PRIMARY KEY (module, name, place)
    ) WITHOUT ROWID;
    CREATE TABLE use (
        module TEXT NOT NULL, name TEXT NOT NULL, line INTEGER NOT NULL, col INTEGER NOT NULL, is_call INTEGER NOT NULL,
        PRIMARY KEY (module, name, line, col, is_call)
    ) WITHOUT ROWID;
    CREATE TABLE import (
        module TEXT NOT NULL, imported TEXT NOT NULL, line INTEGER NOT NULL, PRIMARY KEY (module, imported, line)
    ) WITHOUT ROWID;

    -- What a name that a module uses stands for, and which modules that rests on.
    CREATE TABLE link (
        module TEXT NOT NULL, name TEXT NOT NULL, target_module TEXT NOT NULL, target_name TEXT NOT NULL,
        is_exact INTEGER NOT NULL, PRIMARY KEY (module, name)
    ) WITHOUT ROWID;
    CREATE INDEX link_target ON link (target_module, target_name);
    CREATE TABLE consulted (
        module TEXT NOT NULL, other TEXT NOT NULL, PRIMARY KEY (module, other)
    ) WITHOUT ROWID;
    CREATE INDEX consulted_other ON consulted (other);
    CREATE TABLE missing (
        module TEXT NOT NULL, imported TEXT NOT NULL, line INTEGER NOT NULL, PRIMARY KEY (module, imported, line)
    ) WITHOUT ROWID;

    CREATE TABLE summary (
        package TEXT PRIMARY KEY, modules INTEGER NOT NULL, lines INTEGER NOT NULL, definitions INTEGER NOT NULL,
        uses INTEGER NOT NULL, followed INTEGER NOT NULL
    );
"""

OF_A_FILE = ("definition", "binding", "use", "import", "link", "consulted", "missing")
"""The tables whose rows belong to one file."""


def forget_ops(module: str) -> list[SqlOp]:
    """Remove everything that was read from a file."""
    return [Delete(table, {"module": module}) for table in OF_A_FILE]


def declare_ops(module: str, content_hash: str, found: Scan) -> list[SqlOp]:
    """Write down what a file says. One op for each table: rows travel as JSON, which SQLite unpacks by itself."""
    bindings = [(name, place, target) for place, (name, target) in enumerate(found.bindings)]
    return [
        *forget_ops(module),
        _insert("definition", module, found.definitions),
        _insert("binding", module, bindings),
        _insert("use", module, [(name, line, column, int(called)) for name, line, column, called in found.uses]),
        _insert("import", module, found.imports),
        Execute("UPDATE module SET hash = ?, lines = ? WHERE name = ?", (content_hash, found.lines, module)),
    ]


def link_ops(
    module: str, links: dict[str, Target], consulted: Sequence[str], missing: Sequence[tuple[str, int]]
) -> list[SqlOp]:
    """Write down where the names of a module lead."""
    rows = [(name, each.module, each.name, int(each.is_exact)) for name, each in links.items()]
    return [
        *(Delete(table, {"module": module}) for table in ("link", "consulted", "missing")),
        _insert("link", module, rows),
        _insert("consulted", module, [(other,) for other in consulted]),
        _insert("missing", module, missing),
    ]


def summary_ops(package: str) -> list[SqlOp]:
    """Count what is in a package. SQL does it, inside the transaction."""
    return [
        Delete("summary", {"package": package}),
        Execute(
            """
            INSERT INTO summary
            SELECT package, count(*), total(lines),
                sum((SELECT count(*) FROM definition WHERE module = module.name)),
                sum((SELECT count(*) FROM use WHERE module = module.name)),
                sum((SELECT count(*) FROM use JOIN link USING (module, name) WHERE module = module.name))
            FROM module WHERE package = ? AND hash IS NOT NULL GROUP BY package
            """,
            (package,),
        ),
    ]


def _insert(table: str, module: str, rows: Sequence[Sequence[object]]) -> SqlOp:
    width = {"definition": 4, "binding": 3, "use": 4, "import": 2, "link": 4, "consulted": 1, "missing": 2}[table]
    columns = ", ".join(f"value ->> {place}" for place in range(width))
    sql = f"INSERT OR IGNORE INTO {table} SELECT ?1, {columns} FROM json_each(?2)"  # noqa: S608 - names of ours
    return Execute(sql, (module, json.dumps(rows)))


@dataclass(frozen=True)
class Use:
    """A place where a definition is used."""

    path: str
    line: int
    is_call: bool


class Index:
    """Reads the tables, also while they are written. Make one with `Index.open`."""

    def __init__(self, connection: apsw.Connection, unreadable: frozenset[str] = frozenset()) -> None:
        self._connection = connection
        self._unreadable = unreadable
        self._known: dict[str, _Names | None] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, unreadable: frozenset[str] = frozenset()) -> Iterator[Index]:
        """Open the file for reading.

        By apsw, as the store does. The standard library's `sqlite3` is another copy of SQLite, and two copies in one
        process undo each other's locks.

        Args:
            path: the file.
            unreadable: modules that will not be read any more: they count as absent.
        """
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(30_000)
            connection.execute("BEGIN")  # One state of the tables, for as long as it is open.
            yield cls(connection, unreadable)

    def rows(self, sql: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """Ask anything."""
        return self._connection.execute(sql, parameters).fetchall()

    def consulters(self, module: str) -> list[str]:
        """Return the modules whose links rest on one."""
        rows = self._connection.execute("SELECT module FROM consulted WHERE other = ?", (module,))
        return [name for (name,) in rows]

    def find(self, module: str) -> _Names | None:
        """Return the names of a module, for `Resolver`."""
        if module not in self._known:
            self._known[module] = self._load(module)
        return self._known[module]

    def _load(self, module: str) -> _Names | None:
        row = self._connection.execute("SELECT hash FROM module WHERE name = ?", (module,)).fetchone()
        if row is None or (row[0] is None and module in self._unreadable):
            return None
        if row[0] is None:
            raise NotDeclared(module)
        defined = self._connection.execute("SELECT DISTINCT name FROM definition WHERE module = ?", (module,))
        names = _Names({name for (name,) in defined}, {})
        order = "SELECT name, target FROM binding WHERE module = ? ORDER BY name, place"
        for name, target in self._connection.execute(order, (module,)):
            names.bound.setdefault(name, []).append(target)
        return names

    def where(self, target: Target) -> list[tuple[str, int, int]]:
        """Return path, line and first line of a definition, or of a module."""
        if not target.name:
            return self._connection.execute("SELECT path, 1, 1 FROM module WHERE name = ?", (target.module,)).fetchall()
        sql = """
            SELECT path, line, first_line FROM definition JOIN module ON module.name = definition.module
            WHERE definition.module = ? AND definition.name = ? ORDER BY line
        """
        return self._connection.execute(sql, (target.module, target.name)).fetchall()

    def uses(self, target: Target) -> list[Use]:
        """Return every place where a definition is used."""
        sql = """
            SELECT path, line, max(is_call AND is_exact) FROM link JOIN use USING (module, name)
            JOIN module ON module.name = link.module
            WHERE target_module = ? AND target_name = ? GROUP BY path, line ORDER BY path, line
        """
        rows = self._connection.execute(sql, (target.module, target.name))
        return [Use(path, line, bool(called)) for path, line, called in rows]


@dataclass
class _Names:
    defined: set[str]
    bound: dict[str, list[str]]

    def is_defined(self, name: str) -> bool:
        return name in self.defined

    def targets(self, name: str) -> Sequence[str]:
        return self.bound.get(name, ())
