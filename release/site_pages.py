"""What Sphinx does for the site beside its usual work; docs/conf.py names this as an extension.

- `public-names` describes each public name of a module once.
- Docstrings are plain text with `names`, indented blocks and examples; Sphinx gets its own markup.
- Links between pages are those of a clone; to any other file they lead to the repository.
- docs/external.txt has the names of other projects that the docstrings use.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import typing
import zlib
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import api
from docutils import nodes
from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective, SphinxRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sphinx.application import Sphinx

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
REPOSITORY: Final = "https://github.com/hostrouting/hostrouting/blob/main/"
#: The pages that show a document of the project's folder.
OF_THE_ROOT: Final = {
    "README.md": "index",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
}
#: The heading of a group of names, and the directive that describes one of them.
_DIRECTIVES: Final = {
    "Tasks": "autoclass",
    "Functions": "autofunction",
    "Classes": "autoclass",
    "Exceptions": "autoexception",
    "Values": "autodata",
}


def import_as_type_checker() -> None:
    """Import all modules of ours with the names of their annotations, as a type checker does."""
    # With these it would be a circle.
    for other in "attrs", "hypothesis", "pyroute2", "pytest":
        import_module(other)
    with patch.object(typing, "TYPE_CHECKING", new=True):
        for package in "phases", "hostrouting":
            for found in walk_packages(import_module(package).__path__, f"{package}."):
                if not found.name.endswith(".__main__"):
                    import_module(found.name)


def annotate_attributes() -> None:
    """Annotate what only a constructor sets, which autodoc would not see."""
    described = (getattr(import_module(module), name) for module, name in homes())
    classes = {own for cls in described if isinstance(cls, type) for own in _own_classes(cls)}
    for cls in classes:
        bases = (inspect.get_annotations(base) for base in cls.__mro__)
        known = {name for annotations in bases for name in annotations}
        found = {name: kind for name, kind in _attributes(cls).items() if name not in known}
        cls.__annotations__ = inspect.get_annotations(cls) | found


def _attributes(cls: type) -> dict[str, str]:
    """Return the attributes that the constructor of a class sets, and the type of each."""
    [statement] = api.definition(cls.__module__, cls.__qualname__).statements
    for member in statement.body if isinstance(statement, ast.ClassDef) else ():
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            arguments = (*member.args.args, *member.args.kwonlyargs)
            given = {
                each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation
            }
            found = api.attributes(member)
            return {name: kind or given.get(name, "object") for name, kind in found.items()}
    return {}


# --- the names ------------------------------------------------------------------------------------


@cache
def homes() -> Mapping[tuple[str, str], str]:
    """Return the first public module that lists each definition, and so describes it."""
    found: dict[tuple[str, str], str] = {}
    for module in api.MODULES:
        for name in import_module(module).__all__:
            found.setdefault(api.definition(module, name)[:2], module)
    return found


def home(module: str, name: str) -> str:
    """Return the module whose page describes a public name."""
    return homes()[api.definition(module, name)[:2]]


@cache
def described_names() -> Mapping[str, str]:
    """Return the described name for each public name: as such, and with any module that has it."""
    found: dict[str, str] = {}
    for module in api.MODULES:
        for name in import_module(module).__all__:
            full = f"{home(module, name)}.{name}"
            found |= {f"{module}.{name}": full, name: full}
    return found


class PublicNames(SphinxDirective):
    """`.. public-names:: MODULE` describes the module and each name of its `__all__`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the page."""
        text = "\n".join(page(*self.arguments))
        parsed: list[nodes.Node] = self.parse_text_to_nodes(text, allow_section_headings=True)
        return parsed


def page(module: str) -> Iterator[str]:
    """Yield the lines of a module's page: what it is for, a table of each group, and its names.

    The rest of its docstring, such as the list of its files, is the end of the page.
    """
    text = inspect.getdoc(import_module(module)) or ""
    summary, _, more = text.partition("\n\n")
    yield from (f".. py:module:: {module}", "", *_as_rst([summary]))
    names = import_module(module).__all__
    elsewhere = [name for name in names if home(module, name) != module]
    for title in _DIRECTIVES:
        group = [name for name in names if name not in elsewhere and _kind(module, name) == title]
        if group:
            yield from (title, "-" * len(title), "", ".. autosummary::", "   :nosignatures:", "")
            yield from (f"   {name}" for name in group)
            for name in group:
                yield from ("", *_description(module, name))
            yield ""
    if elsewhere:
        yield from ("Described elsewhere", "-------------------", "")
    for name in elsewhere:
        yield from (f".. py:class:: {name}", "   :no-typesetting:", "")
    yield from (f"- `{home(module, name)}.{name}`" for name in elsewhere)
    if more:
        yield from ("", "The module", "----------", "", *_as_rst(more.split("\n")))


def _kind(module: str, name: str) -> str:
    value = getattr(import_module(module), name)
    if not isinstance(value, type):
        return "Functions" if inspect.isroutine(value) else "Values"
    if issubclass(value, BaseException):
        return "Exceptions"
    return "Tasks" if hasattr(value, "do") else "Classes"


def _description(module: str, name: str) -> Iterator[str]:
    value, kind = getattr(import_module(module), name), _kind(module, name)
    if kind == "Values":
        # autodoc looks for the comment in this module, where there is only an import.
        where = api.definition(module, name).module
        comment = ModuleAnalyzer.for_module(where).find_attr_docs().get(("", name), [])
        yield from (f".. py:data:: {name}", f"   :value: {value!r}", "")
        yield from (f"   {line}" for line in _as_rst(comment))
        return
    yield f".. {_DIRECTIVES[kind]}:: {name}"
    if not isinstance(value, type):
        return
    own = _own_classes(value)
    yield from ("   :members:", "   :undoc-members:")
    if len(own) > 1:
        # The members of the bases that no page describes. autodoc calls `issubclass` with the
        # others, which a protocol refuses.
        others = (cls for cls in value.__mro__ if cls not in own)
        bases = (cls.__name__ for cls in others if not getattr(cls, "_is_protocol", False))
        yield f"   :inherited-members: {', '.join(bases)}"


def _own_classes(cls: type) -> list[type]:
    """Return a class, and those of its bases that no page describes."""
    return [each for each in cls.__mro__ if each is cls or not _is_described_elsewhere(each)]


def _is_described_elsewhere(base: type) -> bool:
    """Return whether the members of a base are described with it, or by another project."""
    return not _is_ours(base.__module__) or (base.__module__, base.__name__) in homes()


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in {"hostrouting", "phases"}


# --- the docstrings -------------------------------------------------------------------------------


def _process_docstring(*arguments: Any) -> None:
    name: str = arguments[2]
    lines: list[str] = arguments[-1]
    # NamedTuple's own words about a field.
    is_empty = re.match("Alias for field number", "".join(lines[:1]))
    lines[:] = [] if is_empty else _as_rst(lines or _words_of_the_manual(name))


def _words_of_the_manual(name: str) -> list[str]:
    """Return the sentence of hostrouting.json(5) about a field of the config; none of another."""
    owner, _, field = name.rpartition(".")
    module, _, cls = owner.rpartition(".")
    value = getattr(sys.modules.get(module), cls, None)
    # Not at the top: `import_as_type_checker` imports the package.
    wire = import_module("hostrouting.config.wire")
    if not isinstance(value, type) or not issubclass(value, wire.WireValue):
        return []
    return [each.text for each in wire.wire_fields(value).values() if each.name == field]


def _process_signature(*arguments: Any) -> tuple[str | None, str | None]:
    """Show members of enumerations as one writes them, and sections by their class."""
    signature, returns = arguments[-2:]
    if signature:
        signature = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", signature)
        values = r"[^()]|\((?:[^()]|\([^()]*\))*\)"
        signature = re.sub(rf"(\w+Config)\((?:{values})*\)", r"\1()", signature)
    return signature, returns


def _as_rst(lines: Sequence[str]) -> list[str]:
    """Return a docstring in Sphinx' markup."""
    found: list[str] = []
    before = ""
    for paragraph in re.split(r"\n(?:\s*\n)+", "\n".join(lines).strip("\n")):
        found += [*_paragraph(paragraph, before).split("\n"), ""]
        before = paragraph
    return found


def _paragraph(text: str, before: str) -> str:
    if text.startswith(">>>"):
        return f".. code-block:: pycon\n\n{textwrap.indent(text, '    ')}"
    if text.startswith("Args:\n"):
        arguments = _escaped(text.removeprefix("Args:\n"))
        return re.sub(r"^    (\w+): ", r":param \1: ", arguments, flags=re.MULTILINE)
    if text.startswith(" "):
        goes_on = before.startswith(" ")
        return text if goes_on else f".. code-block:: {_language(text)}\n\n{text}"
    return _escaped(text)


def _language(block: str) -> str:
    """Return python for a block with a statement; a list of names is an expression."""
    try:
        statements = ast.parse(textwrap.dedent(block)).body
    except SyntaxError:
        return "text"
    return "text" if all(isinstance(each, ast.Expr) for each in statements) else "python"


def _escaped(text: str) -> str:
    """Return text whose `names` alone are markup."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\*|]|_\b)", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{part.strip('` ')}`".replace("\\", r"\\") for part in parts[1::2]]
    # Markup ends where no letter follows.
    return re.sub(r"(?<=\S`)(?=\w)", r"\\ ", "".join(parts))


class Name(SphinxRole):
    """`text`: a link to the public name that it is, or code.

    A word in lower case is one only with its module or with (): `plan` may be a parameter.
    """

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the node."""
        text = " ".join(self.text.split())
        literal = nodes.literal(self.rawtext, text, classes=["xref", "py"])
        is_word = text.isidentifier() and text.islower()
        target = None if is_word else _target(text.removesuffix("()"))
        if not target:
            return [literal], []
        link = addnodes.pending_xref(
            "", literal, refdomain="py", reftype="obj", reftarget=target, refexplicit=True
        )
        return [link], []


def _target(text: str) -> str | None:
    """Return the described name that a text is, or a member of one."""
    names = described_names()
    if text in names or text in api.MODULES:
        return names.get(text, text)
    owner, _, member = text.rpartition(".")
    module, _, name = names.get(owner, "").rpartition(".")
    value = getattr(import_module(module), name) if module else None
    for cls in value.__mro__ if isinstance(value, type) else ():
        if member in {*vars(cls), *inspect.get_annotations(cls)}:
            # A base that no page describes has its members described with the class.
            is_described = cls is not value and _is_described_elsewhere(cls)
            return f"{names[cls.__name__] if is_described else names[owner]}.{member}"
    return None


def _complete_names(_app: Sphinx, document: nodes.document) -> None:
    """Complete the types that a signature names as their module does."""
    for link in document.findall(addnodes.pending_xref):
        name = link["reftarget"]
        if link.get("refdomain") != "py":
            continue
        if name.startswith("_thread.") or name == "Lock":
            # The name of the class depends on the Python that builds the site.
            link["reftarget"] = "threading.Lock"
            link.children = [nodes.Text("Lock")]
        elif "." not in name:
            link["reftarget"] = described_names().get(name) or _imported(name) or name


@cache
def _imported(name: str) -> str | None:
    """Return the full name of what one of our modules has by this name."""
    for module in [*sys.modules]:
        value = vars(sys.modules[module]).get(name) if _is_ours(module) else None
        if value is not None:
            return f"{value.__module__ if isinstance(value, type) else module}.{name}"
    return None


def _resolve_inner(
    _app: Sphinx, _env: object, link: addnodes.pending_xref, content: nodes.Node
) -> nodes.Node | None:
    """Show a type of ours that is not public without a link."""
    module, _, name = link["reftarget"].rpartition(".")
    is_inner = _is_ours(module) and hasattr(sys.modules.get(module), name)
    return content if is_inner and link["reftarget"] not in described_names() else None


# --- other projects -------------------------------------------------------------------------------


def inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """Write an inventory for each project of docs/external.txt; return what intersphinx wants."""
    found = {}
    for part in (DOCS / "external.txt").read_text(encoding="utf-8").split("\n\n"):
        address, *lines = [line for line in part.splitlines() if not line.startswith("#")]
        project = address.partition("://")[2].partition("/")[0]
        names = (line.split(" ") for line in lines)
        entries = "".join(f"{name} py:{kind} 1 {page} -\n" for kind, name, page in names)
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n# zlib\n"
        file = folder / f"{project}.inv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(head.encode() + zlib.compress(entries.encode()))
        found[project] = (address, str(file))
    return found


# --- the links ------------------------------------------------------------------------------------


def _lead_links(app: Sphinx, document: nodes.document) -> None:
    """Lead a link to a file that is no page to the page that shows it, or to the repository."""
    for link in [*document.findall(_is_link_to_file)]:
        path = _path(app.env.docname, link)
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
        is_page = link.get("refdomain") == "doc" and path.is_relative_to(DOCS)
        if name in OF_THE_ROOT:
            link.attributes |= {"refdomain": "doc", "reftarget": OF_THE_ROOT[name]}
            link.attributes.setdefault("reftargetid", None)
        elif name and path.exists() and not is_page:
            link.replace_self(nodes.reference("", "", *link.children, refuri=REPOSITORY + name))


def _path(page: str, link: nodes.Element) -> Path:
    """Return the file that a link of a page means."""
    if link.get("refdomain") == "doc":
        return (DOCS / f"{link['reftarget']}.md").resolve()
    # MyST has changed those of a document of the root that lead below docs/.
    folders = (ROOT, DOCS) if page in OF_THE_ROOT.values() else ((DOCS / page).parent,)
    paths: list[Path] = [(folder / link["reftarget"]).resolve() for folder in folders]
    return next((path for path in paths if path.exists()), paths[0])


def _is_link_to_file(node: nodes.Node) -> bool:
    is_link = isinstance(node, addnodes.pending_xref | addnodes.download_reference)
    return is_link and node["reftype"] == "myst"


def _add_decisions(_app: Sphinx, page: str, source: list[str]) -> None:
    """Give the list of decisions its pages; a clone shows the list as it is."""
    if page == "decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Add all of it to Sphinx."""
    app.add_directive("public-names", PublicNames)
    app.add_role("name", Name())
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("doctree-read", _complete_names)
    app.connect("doctree-read", _lead_links, priority=100)
    app.connect("source-read", _add_decisions)
    app.connect("missing-reference", _resolve_inner, priority=900)
    return {"parallel_read_safe": True}
