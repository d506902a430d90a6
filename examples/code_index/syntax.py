"""The names of one file: what it defines, what it imports, and what it uses.

Scopes are those of Python: a function sees its own names, those of the functions around it, and those of the module,
but not those of a class around it. Each use is written down with the module at which to start, as far as the file alone
tells: after `import os`, the use of `os.path.join` is "os:path.join". Where that leads is for others to find out. What
can only be known by running the program is left out: an attribute of a local variable, for instance.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Scan", "scan"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NAMELESS = (ast.Lambda, *_COMPREHENSIONS)
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, *_NAMELESS)


@dataclass
class Scan:
    """What one file says.

    Attributes:
        definitions: name within the module, kind, line of the name, first line with decorators.
        bindings: name within the module, and what it stands for. "*" stands for every name of another module,
            "Class.*" for the names of a base class.
        uses: module and name ("os:path.join"), line, column, whether it is called.
        imports: module and line.
        lines: how many lines the file has.
    """

    definitions: list[tuple[str, str, int, int]] = field(default_factory=list)
    bindings: list[tuple[str, str]] = field(default_factory=list)
    uses: list[tuple[str, int, int, bool]] = field(default_factory=list)
    imports: list[tuple[str, int]] = field(default_factory=list)
    lines: int = 0


@dataclass
class _Scope:
    """The names of a block. None stands for what cannot be followed, such as a local variable."""

    kind: Literal["module", "class", "function"]
    prefix: str
    outer: _Scope | None
    names: dict[str, str | None] = field(default_factory=dict)

    def find(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or scope.kind != "class"):
                return scope.names[name]
            scope = scope.outer
        return None


def scan(source: bytes, module: str, *, is_package: bool) -> Scan:
    """Read a file.

    Raises:
        SyntaxError, ValueError: it is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the compiler, about somebody else's file.
        tree = ast.parse(source)
    scanner = _Scanner(module, is_package)
    scanner.read(tree)
    scanner.found.lines = source.count(b"\n")
    return scanner.found


class _Scanner:
    def __init__(self, module: str, is_package: bool) -> None:
        self.found = Scan()
        self._module = module
        parts = module.split(".")
        self._package = parts if is_package else parts[:-1]

    def read(self, tree: ast.Module) -> None:
        scope = _Scope("module", "", None)
        self._bind(tree.body, scope)
        self._visit_all(tree.body, scope)

    # What a block binds. Known before its uses are read, for Python does not ask for the order either.

    def _bind(self, body: Iterable[ast.AST], scope: _Scope) -> None:
        imported: dict[str, str] = {}
        own: set[str] = set()
        elsewhere: set[str] = set()
        for node in _block(body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, target in self._import(node):
                    imported.setdefault(name, target)
                    if scope.kind != "function":
                        self.found.bindings.append((scope.prefix + name, target))
            elif isinstance(node, ast.Global | ast.Nonlocal):
                elsewhere.update(node.names)
            else:
                for name in _bound_by(node):
                    if scope.kind != "function" and isinstance(node, ast.Name) and name not in own:
                        self._define(scope.prefix + name, "variable", node.lineno, node.lineno)
                    own.add(name)
        for name, target in imported.items():
            scope.names[name] = target
        for name in own - elsewhere:
            local = scope.kind == "function"
            scope.names[name] = None if local else f"{self._module}:{scope.prefix}{name}"

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.found.imports.append((alias.name, node.lineno))
                top = alias.name.partition(".")[0]
                yield (alias.asname, f"{alias.name}:") if alias.asname else (top, f"{top}:")
            return
        origin = self._origin(node)
        if origin:
            self.found.imports.append((origin, node.lineno))
            for alias in node.names:
                yield alias.asname or alias.name, f"{origin}:{'' if alias.name == '*' else alias.name}"

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        base = self._package[: len(self._package) - (node.level - 1)]
        return ".".join([*base, *([node.module] if node.module else [])])

    def _define(self, name: str, kind: str, line: int, first_line: int) -> None:
        self.found.definitions.append((name, kind, line, first_line))

    # What a block uses.

    def _visit_all(self, nodes: Iterable[ast.AST], scope: _Scope) -> None:
        for node in nodes:
            self._visit(node, scope)

    def _visit(self, node: ast.AST, scope: _Scope) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self._use(node, scope, called=False)
        elif isinstance(node, ast.Attribute):
            if not self._use(node, scope, called=False):
                self._visit(node.value, scope)
        elif isinstance(node, ast.Call):
            if not self._use(node.func, scope, called=True):
                self._visit(node.func, scope)
            self._visit_all(node.args, scope)
            self._visit_all((keyword.value for keyword in node.keywords), scope)
        elif isinstance(node, Function):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, _NAMELESS):
            self._nameless(node, scope)
        else:
            self._visit_all(ast.iter_child_nodes(node), scope)

    def _use(self, node: ast.expr, scope: _Scope, *, called: bool) -> bool:
        """Write down a use of a dotted name; tell whether there is nothing more to read in it."""
        name = self._dotted(node, scope)
        if name:
            self.found.uses.append((name, node.lineno, node.col_offset, called))
        return name is not None

    def _dotted(self, node: ast.expr, scope: _Scope) -> str | None:
        """Return module and name; "" for what leads nowhere; None if it is no dotted name."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = scope.find(node.id)
        return _join(root, *reversed(attributes)) if root else ""

    def _function(self, node: Function, scope: _Scope) -> None:
        if scope.kind != "function":
            kind = "method" if scope.kind == "class" else "function"
            self._define(scope.prefix + node.name, kind, node.lineno, _first_line(node))
        arguments = node.args
        self._visit_all(node.decorator_list, scope)
        self._visit_all(_outside(arguments), scope)
        if node.returns is not None:
            self._visit(node.returns, scope)
        inner = _Scope("function", "", scope, dict.fromkeys(_parameters(arguments)))
        first = next(iter(inner.names), None)
        if scope.kind == "class" and first is not None and not _is_static(node):
            inner.names[first] = f"{self._module}:{scope.prefix[:-1]}"  # self.x is an attribute of the class.
        self._bind(node.body, inner)
        self._visit_all(node.body, inner)

    def _class(self, node: ast.ClassDef, scope: _Scope) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)], scope)
        name = f"{scope.prefix}{node.name}"
        is_known = scope.kind != "function"
        if is_known:
            self._define(name, "class", node.lineno, _first_line(node))
            bases = (self._dotted(base, scope) for base in node.bases)
            self.found.bindings.extend((f"{name}.*", base) for base in bases if base)
        inner = _Scope("class" if is_known else "function", f"{name}.", scope)
        self._bind(node.body, inner)
        self._visit_all(node.body, inner)

    def _nameless(self, node: ast.AST, scope: _Scope) -> None:
        """Read a lambda or a comprehension: a scope of its own, which defines nothing."""
        inner = _Scope("function", "", scope)
        if isinstance(node, ast.Lambda):
            self._visit_all(_outside(node.args), scope)
            inner.names = dict.fromkeys(_parameters(node.args))
            self._visit(node.body, inner)
            return
        generators: list[ast.comprehension] = getattr(node, "generators", [])
        targets = (each for generator in generators for each in ast.walk(generator.target))
        inner.names = dict.fromkeys(each.id for each in targets if isinstance(each, ast.Name))
        self._visit_all(ast.iter_child_nodes(node), inner)


def _join(root: str, *attributes: str) -> str:
    return root + ("" if root.endswith(":") or not attributes else ".") + ".".join(attributes)


def _block(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield every node of a block, but not what is inside scopes of their own."""
    waiting = list(body)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _OWN_SCOPE):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        if node.name is not None:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    for argument in (*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg):
        if argument is not None:
            yield argument.arg


def _outside(arguments: ast.arguments) -> Iterator[ast.AST]:
    """Yield what belongs to parameters and is read outside of the function: defaults and annotations."""
    yield from arguments.defaults
    yield from (default for default in arguments.kw_defaults if default is not None)
    every = (*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg)
    yield from (each.annotation for each in every if each is not None and each.annotation is not None)


def _first_line(node: Function | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _is_static(node: Function) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
