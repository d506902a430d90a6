"""The messages of an index, and who waits for whom.

    survey ──► declare (one for each file that changed)
       │          │ provides the resource "module:json.decoder"
       │          └──► resolve (one for each such module)   waits for every module it imports
       ├─────────────► resolve (for those whose names lead through a changed module)
       └─────────────► summarize (one for each package)     waits for every resolve, good or bad

One run is one epoch with one submitted message, the survey; all others are derived. What the survey finds is committed
together with them, so a process that is killed has found nothing, or has left behind everything that is to be done.

Modules may import each other in circles: `resolve` waits for what others *declare*, never for another `resolve`. A
module that does not exist is provided by nobody. When nothing is left that could provide it, those who wait run without
(`on_unresolved="run"`), see that it is not in the tables, and report it.

What a name leads through is only known on the way: `os.path.join` needs `posixpath`, which few import by that name. So
`resolve` may find that it cannot run yet, and is deferred until that module is declared.

The index is a function of the tree alone, in whatever order messages ran, and however often the process died.
"""

from __future__ import annotations

from pathlib import Path

from naviscope_ingest import (
    Deferred,
    Delivery,
    Dependency,
    Executed,
    Ingest,
    KindPolicy,
    Message,
    Outcome,
    Permanent,
    Resource,
    RetryPolicy,
    RuntimeConfig,
    RuntimeMetrics,
)
from naviscope_ingest.faults import Faults
from naviscope_ingest.sinks import Delete, SqliteSink, SqlOp, Upsert

from .names import NotDeclared, Resolver, Target
from .syntax import scan
from .tables import SCHEMA, Index, declare_ops, forget_ops, link_ops, summary_ops
from .tree import SourceFile, changes, content_hash, modules_without_source

__all__ = ["SURVEY", "make_app"]

SURVEY = Message("survey", None, kind="survey")
"""What is submitted: look what there is to do."""

PATIENT = KindPolicy(retry=RetryPolicy(max_attempts=8))
"""What fails for no reason of its own is tried until it works: a gap would stay in the index."""


def make_app(
    root: Path,
    database: Path,
    *,
    with_tests: bool = True,
    metrics: RuntimeMetrics | None = None,
    faults: Faults | None = None,
) -> Ingest:
    """Return the app that keeps the index of a tree.

    Args:
        root: the tree: the folder that would be on the path.
        database: the file of the index.
        with_tests: whether folders named "test" and "tests" belong to it.
        metrics: who is told how it goes.
        faults: what goes wrong on purpose.
    """
    app = Ingest(
        f"sqlite:///{database}",
        # Whoever waits for a module that does not exist is let go as soon as nothing else is left to do.
        config=RuntimeConfig(max_in_flight=32, stall_grace=0.0, other_kinds=PATIENT, faults=faults),
        metrics=metrics,
        threads=2,
        retain=3600.0,
    )
    app.sink(SqliteSink(schema=SCHEMA))

    @app.handler("survey", derives=["declare", "resolve", "summarize"])
    def survey(nothing: None) -> Outcome[SqlOp]:
        return survey_tree(root, database, with_tests=with_tests)

    app.handler("declare", derives=["resolve"], run_in="process")(declare)

    @app.handler("resolve", derives=[])
    def resolve(module: str, message: Delivery[str]) -> Outcome[SqlOp]:
        return resolve_names(module, database, unmet=provided_by_nobody(message))

    @app.handler("summarize", derives=[])
    async def summarize(package: str) -> list[SqlOp]:
        return summary_ops(package)

    return app


def survey_tree(root: Path, database: Path, *, with_tests: bool) -> Executed[object, SqlOp]:
    """Find what changed since the last time, and derive a message for everything that has to be done about it."""
    with Index.open(database) as index:
        is_new = not index.rows("SELECT 1 FROM sqlite_schema WHERE name = 'module'")
        found = changes(root, None if is_new else index, with_tests=with_tests)
        imports = {} if is_new else {module: _imports(index, module) for module in found.affected}
    ops: list[SqlOp] = []
    for module in found.removed:
        ops += [*forget_ops(module), Delete("module", {"name": module})]
    for module in found.changed:
        file = found.files[module]
        row = {"name": module, "path": str(Path(file.path).relative_to(root)), "package": file.package, "hash": None}
        ops += [*forget_ops(module), Upsert("module", row, key="name")]
    derived: list[Message[object]] = [
        Message(f"declare:{module}", found.files[module], kind="declare") for module in found.changed
    ]
    derived += [resolve_message(module, imports[module]) for module in found.affected]
    packages = {found.files[module].package for module in (*found.changed, *found.affected)} | {*found.removed.values()}
    derived += [
        Message(f"summarize:{each}", each, kind="summarize", depends_on=[Dependency.barrier("resolve")])
        for each in sorted(packages)
    ]
    as_they_were = (found.files.keys() | modules_without_source()) - set(found.changed)
    return Executed(ops, derived, ready=[resource(module) for module in sorted(as_they_were)])


def declare(file: SourceFile) -> Executed[object, SqlOp]:
    """Read one file. It runs in a process of its own: reading computes."""
    content = Path(file.path).read_bytes()
    try:
        found = scan(content, file.module, is_package=file.is_package)
    except (SyntaxError, ValueError, RecursionError) as error:
        # It ends dead, and costs nobody but those who import it: they run without.
        place = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise Permanent(f"{file.path}{place}: {error.msg if isinstance(error, SyntaxError) else error}") from error
    return Executed(
        declare_ops(file.module, content_hash(content), found),
        derived=[resolve_message(file.module, [imported for imported, _ in found.imports])],
        ready=[resource(file.module)],
    )


def resolve_names(module: str, database: Path, *, unmet: frozenset[str]) -> Outcome[SqlOp]:
    """Follow every name that a module uses to its definition.

    Args:
        module: the module.
        database: the index.
        unmet: modules that it waited for and that will not come.
    """
    with Index.open(database, unreadable=unmet) as index:
        resolver = Resolver(index)
        links: dict[str, Target] = {}
        try:
            for (name,) in index.rows("SELECT DISTINCT name FROM use WHERE module = ?", module):
                target = resolver.resolve(str(name))
                if target is not None:
                    links[str(name)] = target
            missing = [
                (str(name), int(str(line)))
                for name, line in index.rows("SELECT imported, line FROM import WHERE module = ?", module)
                if resolver.resolve(str(name)) is None and not _is_external(str(name), index)
            ]
        except NotDeclared as found:
            return Deferred([wait_for(found.module)])
        # What is imported counts also if nothing of it was found: it may appear.
        consulted = resolver.consulted | set(_imports(index, module))
    return Executed(link_ops(module, links, sorted(consulted - {module}), missing))


def resource(module: str) -> Resource:
    """Say that the names of a module are known."""
    return Resource(f"module:{module}")


def wait_for(module: str) -> Dependency:
    """Wait until the names of a module are known, or nobody is left who could tell them."""
    return Dependency.resource(f"module:{module}", on_unresolved="run")


def provided_by_nobody(message: Delivery[str]) -> frozenset[str]:
    """Return the modules that a message waited for in vain."""
    names = (getattr(each, "name", "") for each in message.unmet)
    return frozenset(name.removeprefix("module:") for name in names)


def resolve_message(module: str, imports: list[str]) -> Message[object]:
    """Return the message that follows the names of a module."""
    depends_on = [wait_for(each) for each in sorted({*imports} - {module})]
    return Message(f"resolve:{module}", module, kind="resolve", depends_on=depends_on)


def _imports(index: Index, module: str) -> list[str]:
    return [str(name) for (name,) in index.rows("SELECT DISTINCT imported FROM import WHERE module = ?", module)]


def _is_external(module: str, index: Index) -> bool:
    top = module.partition(".")[0]
    return top in modules_without_source() and index.find(top) is None
