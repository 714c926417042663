"""The contract's questions answered from vLLM's source files, which are parsed and never imported.

So a release can be held against the contract that cannot be installed here: one for GPUs, or one too new. Follows
imports, re-exports, names given to other names, conditional definitions (all branches count, since nobody knows which
will run) and base classes. What is made at run time by other means, such as `setattr`, it does not see.
"""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vllm_specplug.bridge.source_files import SourceFiles
from vllm_specplug.errors import ConfigError

_MAX_HOPS = 50  # of imports and other names: modules that import each other may go round in circles


@dataclass(frozen=True)
class _Imported:
    """What an import binds: a module, or a name out of one."""

    module: str
    name: str | None = None


_Binding: TypeAlias = ast.AST | _Imported


@dataclass(frozen=True)
class _Definition:
    """A function, a class, another value, or (`node` is None) a module."""

    module: str
    node: ast.AST | None


class SourceSymbols:
    """A vLLM of which there are sources only. See `symbols.Vllm`."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._bindings: dict[str, dict[str, list[_Binding]]] = {}

    def find(self, module: str, attributes: Sequence[str]) -> list[_Definition]:
        """See `Vllm`; several definitions where it depends on a condition which one there is."""
        if self._path(module) is None:
            raise LookupError(f"module {module} is missing")
        found = [_Definition(module, None)]
        for number, name in enumerate(attributes, 1):
            owners, found = found, [each for owner in found for each in self._attribute(owner, name)]
            if not found:
                text = f"{module}:{'.'.join(attributes[:number])} is missing"
                raise LookupError(text + self._instead(owners, name))
        return found

    def parameters(self, symbol: list[_Definition]) -> Collection[str] | None:
        """See `Vllm`; those that all definitions take."""
        known = [names for names in map(self._parameters, symbol) if names is not None]
        return set.intersection(*known) if known else None

    def attributes(self, symbol: list[_Definition]) -> Collection[str]:
        """See `Vllm`."""
        return {name for each in symbol for owner in self._family(each) for name in _members(owner.node)}

    def literals(self, symbol: list[_Definition]) -> Collection[str]:
        """See `Vllm`."""
        return {word for each in symbol for word in self._literals(each)}

    # Modules.

    def _path(self, module: str) -> str | None:
        path = module.replace(".", "/")
        return next((name for name in (f"{path}/__init__.py", f"{path}.py") if name in self._files.paths), None)

    def _module(self, module: str) -> dict[str, list[_Binding]]:
        """What a module binds at its top level; "*" has the modules of which it takes everything."""
        if module not in self._bindings:
            path = self._path(module)
            body = self._parse(path) if path else []
            package = module if path and path.endswith("/__init__.py") else module.rpartition(".")[0]
            self._bindings[module] = _bindings(body, package)
        return self._bindings[module]

    def _parse(self, path: str) -> list[ast.stmt]:
        try:
            return ast.parse(self._files.read(path)).body
        except SyntaxError as error:
            python = platform.python_version()
            raise ConfigError(
                f"{path} of {self._files.label} cannot be parsed by Python {python}: {error}; use a newer Python"
            ) from error

    def _in_module(self, module: str, name: str, hops: int) -> Iterator[_Definition]:
        bindings = self._module(module)
        if name in bindings:
            for binding in bindings[name]:
                yield from self._definitions(module, binding, hops)
        elif self._path(f"{module}.{name}"):
            yield _Definition(f"{module}.{name}", None)
        elif hops:
            for star in bindings.get("*", ()):
                assert isinstance(star, _Imported)
                yield from self._in_module(star.module, name, hops - 1)

    def _definitions(self, module: str, binding: _Binding, hops: int = _MAX_HOPS) -> Iterator[_Definition]:
        """What stands behind a binding of `module`."""
        if isinstance(binding, _Imported):
            if binding.name is None:
                yield _Definition(binding.module, None)
            elif hops:
                yield from self._in_module(binding.module, binding.name, hops - 1)
        elif isinstance(binding, ast.Name | ast.Attribute):  # another name for something
            found = list(self._named(module, binding, hops))
            yield from found or [_Definition(module, binding)]
        else:
            yield _Definition(module, binding)

    def _named(self, module: str, name: ast.expr, hops: int = _MAX_HOPS) -> Iterator[_Definition]:
        """What a name, dotted or not, means in `module`; nothing where that is outside the sources."""
        if isinstance(name, ast.Name) and hops:
            yield from self._in_module(module, name.id, hops - 1)
        elif isinstance(name, ast.Attribute) and hops:
            for owner in self._named(module, name.value, hops - 1):
                yield from self._attribute(owner, name.attr)

    # Classes.

    def _attribute(self, owner: _Definition, name: str) -> Iterator[_Definition]:
        if owner.node is None:
            yield from self._in_module(owner.module, name, _MAX_HOPS)
        for each in self._family(owner):
            bindings = _bindings(_body(each.node), "")
            for binding in bindings.get(name, ()):
                if isinstance(binding, ast.Name) and binding.id in bindings:  # another method's second name
                    yield from self._attribute(each, binding.id)
                else:
                    yield from self._definitions(each.module, binding)
            if name in bindings:
                return
        if name == "__init__" and isinstance(owner.node, ast.ClassDef):  # made for it, as for a dataclass
            yield owner

    def _family(self, owner: _Definition, hops: int = _MAX_HOPS) -> Iterator[_Definition]:
        """A class and its bases, as far as they are in the sources."""
        if isinstance(owner.node, ast.ClassDef):
            yield owner
            for base in _without_subscript(owner.node.bases):
                for each in self._named(owner.module, base) if hops else ():
                    yield from self._family(each, hops - 1)

    def _parameters(self, definition: _Definition) -> set[str] | None:
        node = definition.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            positional = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            return {each.arg for each in (*positional, arguments.vararg, arguments.kwarg) if each is not None}
        if isinstance(node, ast.ClassDef):
            made = next(self._attribute(definition, "__init__"))
            if made != definition:
                return self._parameters(made)
            return {"self", *(name for each in self._family(definition) for name in _fields(each.node))}
        return None

    # The rest.

    def _literals(self, definition: _Definition, hops: int = _MAX_HOPS) -> Iterator[str]:
        for node in ast.walk(definition.node) if definition.node is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.Name) and hops:
                for each in self._named(definition.module, node):
                    if isinstance(each.node, ast.expr) and each.node is not node:
                        yield from self._literals(each, hops - 1)

    def _instead(self, owners: Sequence[_Definition], name: str) -> str:
        """Where something of that name is now; what else would help."""
        outside = [
            ast.unparse(base)
            for owner in owners
            for each in self._family(owner)
            if isinstance(each.node, ast.ClassDef)
            for base in _without_subscript(each.node.bases)
            if not list(self._named(each.module, base))
        ]
        pattern = re.compile(
            rf"^\s*(?:class|(?:async )?def) {re.escape(name)}\b|^{re.escape(name)}\s*[:=]".encode(), re.M
        )
        places = [path for path in sorted(self._files.paths) if pattern.search(self._files.read(path))]
        text = f", unless it comes from {', '.join(outside)}, outside these sources" if outside else ""
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        return text + (f"; one of that name is in {', '.join(places[:3])}{more}" if places else "")


def _bindings(body: Sequence[ast.stmt], package: str) -> dict[str, list[_Binding]]:
    """Name -> what the statements of a module or class may bind it to. A later one replaces an earlier one."""
    found: dict[str, list[_Binding]] = {}
    makes_names = _makes_names(body)
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[statement.name] = [statement]
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                found.update(_assigned(target, statement.value))
        elif isinstance(statement, ast.AnnAssign):
            found.update(_assigned(statement.target, statement.value or statement.annotation))
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for name, imported in _imports(statement, package):
                found[name] = [*found.get(name, ()), imported] if name == "*" else [imported]
        else:
            for branch in _branches(statement, makes_names):
                for name, bindings in _bindings(branch, package).items():
                    found[name] = [*found.get(name, ()), *bindings]
    return found


def _assigned(target: ast.expr, value: ast.AST) -> dict[str, list[_Binding]]:
    if isinstance(target, ast.Name):
        return {target.id: [value]}
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []  # else of some object, not a name
    return {part.id: [target] for part in parts if isinstance(part, ast.Name)}


def _imports(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, _Imported]]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            first = alias.name.partition(".")[0]
            yield alias.asname or first, _Imported(alias.name if alias.asname else first)
        return
    module = statement.module or ""
    if statement.level:
        parents = package.split(".")
        above = parents[: len(parents) - statement.level + 1]
        module = ".".join([*above, module]).rstrip(".")
    for alias in statement.names:
        yield alias.asname or alias.name, _Imported(module, None if alias.name == "*" else alias.name)


def _branches(statement: ast.stmt, makes_names: bool) -> Iterator[Sequence[ast.stmt]]:
    """The lists of statements in a compound statement, each of which may run or not."""
    if isinstance(statement, ast.If) and ast.unparse(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        # For type checkers only, except where `__getattr__` makes the same names when asked.
        yield from [statement.body, statement.orelse] if makes_names else [statement.orelse]
        return
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _makes_names(body: Sequence[ast.stmt]) -> bool:
    """Whether a module has a `__getattr__`, perhaps only where no type checker reads it."""
    return any(
        (isinstance(each, ast.FunctionDef) and each.name == "__getattr__")
        or (isinstance(each, ast.If) and _makes_names(each.orelse))
        for each in body
    )


def _body(node: ast.AST | None) -> Sequence[ast.stmt]:
    return node.body if isinstance(node, ast.ClassDef) else []


def _fields(node: ast.AST | None) -> set[str]:
    return {
        each.target.id for each in _body(node) if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _members(node: ast.AST | None) -> set[str]:
    """What a class binds, and what its methods set on `self`."""
    stores = (each for each in ast.walk(node) if isinstance(each, ast.Attribute)) if node is not None else ()
    on_self = {
        each.attr
        for each in stores
        if isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name) and each.value.id == "self"
    }
    return on_self | _bindings(_body(node), "").keys()


def _without_subscript(bases: Sequence[ast.expr]) -> list[Any]:
    return [base.value if isinstance(base, ast.Subscript) else base for base in bases]
