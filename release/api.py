"""tests/public_api.txt: every public name of both packages, with its signature as written.

python release/api.py        writes tests/public_api.txt

The sources are read and not imported, so every Python writes the same text.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "tests/public_api.txt"
#: The modules whose `__all__` is public, as docs/releasing.md lists them.
MODULES: Final = (
    "hostrouting",
    "hostrouting.exceptions",
    "hostrouting.fleet",
    "hostrouting.host",
    "hostrouting.host.netlink",
    "hostrouting.host.pyroute",
    "hostrouting.testing",
    "hostrouting.testing.contracts",
    "hostrouting.testing.strategies",
    "phases",
    "phases.testing",
)
_HEAD: Final = """\
The public names with their signatures as written; the first module that lists a name describes it.
`nox -s reference` writes this file. Each change of it is reviewed: is it meant, and is it in
CHANGELOG.md?
"""
#: What the call that makes a field says about the parameter of the constructor; the rest is prose
#: and rules.
_OF_A_FIELD: Final = {"alias", "default", "factory", "init", "kw_only"}
#: Methods by which Python compares, prints or makes any value; no caller calls them.
_INNER: Final = {
    "__attrs_post_init__",
    "__eq__",
    "__hash__",
    "__init_subclass__",
    "__ne__",
    "__reduce__",
    "__repr__",
    "__signature__",
    "__slots__",
}

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


class Definition(NamedTuple):
    """The statements that define a name, and their module."""

    module: str
    name: str
    statements: Sequence[ast.stmt]


def page() -> str:
    """Return tests/public_api.txt."""
    lines = [*_HEAD.splitlines()]
    homes: dict[tuple[str, str], str] = {}
    for module in MODULES:
        lines += ["", f"module {module}"]
        for name in _exported(module):
            found = definition(module, name)
            home = homes.setdefault((found.module, found.name), module)
            if home == module:
                lines += described(found, "    ")
            else:
                lines.append(f"    {name}: see {home}")
    return "\n".join(lines) + "\n"


def described(found: Definition, indent: str) -> Iterator[str]:
    """Yield the lines of a name that is defined in a module."""
    for statement in found.statements:
        if isinstance(statement, ast.ClassDef):
            yield from _class(found.module, statement, indent)
        else:
            yield from _member(statement, indent)


def unlisted() -> Iterator[str]:
    """Yield each class that a public function or attribute returns and that no module lists.

    It comes with the name of that function: `hostrouting.node.check.NodeReport of check_node`.
    """
    found = [definition(module, name) for module in MODULES for name in _exported(module)]
    listed = {(each.module, each.name) for each in found}
    for user, returned in chain.from_iterable(map(_returned, found)):
        is_class = isinstance(returned.statements[0], ast.ClassDef)
        if is_class and (returned.module, returned.name) not in listed:
            yield f"{returned.module}.{returned.name} of {user}"


def _returned(found: Definition) -> Iterator[tuple[str, Definition]]:
    """Yield the definitions in the types that a public name returns or has."""
    for statement in found.statements:
        members = [(found.module, found.name, statement)]
        if isinstance(statement, ast.ClassDef):
            members = [
                (module, f"{found.name}.{name}", member)
                for module, base in _bases(found.module, statement)
                for member in base.body
                for name in _public(member)
            ]
        for module, user, member in members:
            annotation = _type_of(member)
            for name in _words(annotation) if annotation else ():
                with suppress(LookupError, FileNotFoundError):
                    yield user, definition(module, name)


def _type_of(member: ast.stmt) -> ast.expr | None:
    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
        return member.returns
    return member.annotation if isinstance(member, ast.AnnAssign) else None


def _words(annotation: ast.expr) -> Iterator[str]:
    """Yield the names in an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id


def definition(module: str, name: str) -> Definition:
    """Return the definition of a name that a module has, perhaps by an import."""
    statements = [each for each in _statements(module) if name in _names(each)]
    if not statements:
        raise LookupError(f"{module} does not define {name!r}; correct its __all__")
    first = statements[0]
    if not isinstance(first, ast.ImportFrom):
        return Definition(module, name, statements)
    alias = next(each for each in first.names if name == (each.asname or each.name))
    return definition(first.module or "", alias.name)


def _exported(module: str) -> list[str]:
    lists = [each for each in _statements(module) if isinstance(each, ast.Assign)]
    [names] = [ast.literal_eval(each.value) for each in lists if _names(each) == ["__all__"]]
    return [*names]


@cache
def _statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module that define its names, those for the type checker too."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return [*_flat(ast.parse(file.read_text(encoding="utf-8")).body)]


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, ast.If):
            yield from _flat(statement.body)
        else:
            yield statement


def _names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, ast.AnnAssign):
        return [ast.unparse(statement.target)]
    if isinstance(statement, ast.Assign):
        return [*map(ast.unparse, statement.targets)]
    return []


def _class(module: str, cls: ast.ClassDef, indent: str) -> Iterator[str]:
    yield from _decorators(cls, indent)
    words = ", ".join(ast.unparse(each) for each in (*cls.bases, *cls.keywords))
    yield f"{indent}class {cls.name}({words})" if words else f"{indent}class {cls.name}"
    seen: set[str] = set()
    for _, each in _bases(module, cls):
        # The getter and the setter of a property have one name; a base's own one is replaced.
        shown = [member for member in each.body if _public(member) - seen]
        for member in shown:
            yield from _member(member, f"{indent}    ")
        seen |= {name for member in shown for name in _public(member)}


def _public(member: ast.stmt) -> set[str]:
    """Return the names of a class that its users may use."""
    return {name for name in _names(member) if not _is_private(name)} - _INNER


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _bases(module: str, cls: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield a class, and those of its bases that no public module lists: their members are its.

    Each comes with its module.
    """
    yield module, cls
    for base in cls.bases:
        name = ast.unparse(base)
        try:
            found = definition(module, name)
        except (LookupError, FileNotFoundError):
            # A class of Python or of a library.
            continue
        is_listed = any(name in _exported(public) for public in MODULES)
        if not is_listed and isinstance(found.statements[0], ast.ClassDef):
            yield from _bases(found.module, found.statements[0])


def _member(statement: ast.stmt, indent: str) -> Iterator[str]:
    """Yield the lines of a function or a value."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _decorators(statement, indent)
        word = "async def" if isinstance(statement, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(statement.returns)}" if statement.returns else ""
        yield f"{indent}{word} {statement.name}({ast.unparse(statement.args)}){returns}"
        if statement.name == "__init__":
            for attribute, kind in attributes(statement).items():
                yield f"{indent}self.{attribute}: {kind}" if kind else f"{indent}self.{attribute}"
    elif isinstance(statement, ast.AnnAssign):
        name, kind = ast.unparse(statement.target), ast.unparse(statement.annotation)
        yield f"{indent}{name}: {kind}{_value(statement.value)}"
    elif isinstance(statement, ast.Assign):
        yield f"{indent}{', '.join(_names(statement))}{_value(statement.value)}"


def _decorators(statement: Function | ast.ClassDef, indent: str) -> Iterator[str]:
    """Yield the lines of the decorators, but for that which only refuses wrong arguments."""
    words = map(ast.unparse, statement.decorator_list)
    yield from (f"{indent}@{each}" for each in words if not each.startswith("checked("))


def attributes(init: Function) -> dict[str, str]:
    """Return the public attributes that a constructor sets, each with its type or an empty text."""
    kinds: dict[str, str] = {}
    for statement in ast.walk(init):
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        kind = ast.unparse(statement.annotation) if isinstance(statement, ast.AnnAssign) else ""
        for name in _names(statement):
            if name.startswith("self.") and not name.startswith("self._"):
                kinds.setdefault(name.removeprefix("self."), kind)
    return kinds


def _value(value: ast.expr | None) -> str:
    """Return the words of a default, without those that only describe it."""
    if value is None:
        return ""
    if not isinstance(value, ast.Call):
        return f" = {ast.unparse(value)}"
    kept = [keyword for keyword in value.keywords if keyword.arg in _OF_A_FIELD]
    return f" = {ast.unparse(value.func)}({', '.join(map(ast.unparse, kept))})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
