"""The public names, the modules that an import loads, and the examples in docstrings."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import GenericAlias
from typing import get_type_hints

import attrs
import pytest
from support.documents import ROOT, blocks
from support.processes import ended

import hostrouting
import phases

#: The modules whose names are public.
PUBLIC = {*re.findall(r"(?m)^module (\S+)$", (ROOT / "tests/public_api.txt").read_text("utf-8"))}


def modules() -> list[str]:
    """Return the name of every module of both packages."""
    names = []
    for package in hostrouting, phases:
        names += [package.__name__]
        names += [
            module.name
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        ]
    return names


@pytest.mark.parametrize("name", modules())
def test_a_public_module_lists_its_public_names(name: str) -> None:
    """A public module has `__all__`; the names in any exist, are public, and have docstrings (ruff
    sorts them).
    """
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert exported or name not in PUBLIC
    assert len(set(exported)) == len(exported)
    for public in exported:
        assert not public.startswith("_")
        value = getattr(module, public)
        # An alias such as `Callable[[object], Any]` is a class to inspect before Python 3.11.
        needs_words = inspect.isroutine(value) or (
            inspect.isclass(value) and not isinstance(value, GenericAlias)
        )
        assert value.__doc__ or not needs_words, public


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_public_name_has_types_at_run_time(name: str) -> None:
    """The types of each public name can be read at run time, as a container of dependencies reads
    them.
    """
    module = importlib.import_module(name)
    values = [getattr(module, public) for public in module.__all__]
    classes = [value for value in values if isinstance(value, type)]
    members = [
        member
        for each in classes
        for cls in each.__mro__
        for inner, member in vars(cls).items()
        if inner == "__init__" or not inner.startswith("_")
    ]
    getters = [member.fget for member in members if isinstance(member, property)]
    plain = [getattr(member, "__func__", member) for member in members]
    own = {
        function
        for function in (*values, *plain, *getters)
        if inspect.isfunction(function)
        and function.__module__.startswith(("hostrouting", "phases"))
    }
    for function in own:
        inspect.signature(function, eval_str=True)
    for value in (*classes, *own):
        assert isinstance(get_type_hints(value), dict)
    for cls in classes:
        if attrs.has(cls):
            attrs.resolve_types(cls)


@pytest.mark.parametrize("document", ["README.md", "docs/agents.md", "docs/fleet.md"])
def test_what_a_page_shows_to_authors_is_public(document: str) -> None:
    """Each name that a page imports in a program, or writes with its module, is public."""
    text = (ROOT / document).read_text(encoding="utf-8")
    programs = "".join(blocks(document))
    shown = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(programs))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    shown |= set(re.findall(r"`((?:hostrouting|phases)[\w.]*)\.(?!pyz)([A-Za-z]\w+)(?:`|\()", text))
    [*listed] = re.findall(r"In Python it is `([\w.]+)`: (.*?)\n\n", text, flags=re.DOTALL)
    shown |= {
        (module, name) for module, names in listed for name in re.findall(r"`(\w+)[(.]", names)
    }
    own = {pair for pair in shown if re.match(r"(hostrouting|phases)\b", pair[0])}
    assert [
        (module, name)
        for module, name in own
        if f"{module}.{name}" not in PUBLIC
        and not (module in PUBLIC and name in importlib.import_module(module).__all__)
    ] == []


def public_values() -> dict[str, object]:
    """Return the value of each public name."""
    homes = [importlib.import_module(name) for name in PUBLIC]
    return {name: getattr(home, name) for home in homes for name in home.__all__}


def public_docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstring of each public class and function, and of each public member."""
    for name, value in public_values().items():
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        yield name, inspect.getdoc(value) or ""
        for cls in value.__mro__ if inspect.isclass(value) else ():
            if cls.__module__.startswith(("hostrouting", "phases")):
                for inner, member in vars(cls).items():
                    if inner[0] != "_":
                        yield f"{name}.{inner}", inspect.getdoc(member) or ""


def test_what_a_public_docstring_names_is_public() -> None:
    """Each class and function of the packages that a public docstring names can be
    imported from a public module, so that nobody has to search for it.
    """
    own: set[str] = set()
    for name in modules():
        values = vars(importlib.import_module(name))
        own.update(
            each for each, value in values.items() if getattr(value, "__module__", "") == name
        )
    # A word in small letters may be that of a parameter.
    own = {name for name in own if name[0].isupper() or "_" in name.strip("_")}
    unknown = {
        f"{name}: {word}"
        for name, text in public_docstrings()
        for word in re.findall(r"`(\w+)[^`]*`", text)
        if word in own - public_values().keys()
    }
    assert unknown == set()


#: They are values of ports, unions of types, or need root.
WITHOUT_EXAMPLE = {"Exposure", "KernelNode", "NetworkEvent", "Station", "Status", "UnitState"}


def test_each_public_name_has_an_example() -> None:
    """Each public name is in an example: of a docstring, of a page, or in examples/. A port has its
    contract instead, and an error its row in the table of the page for agents.
    """
    programs = [path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")]
    for page in ("README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
        programs += blocks(page)
    for name in modules():
        for test in doctest.DocTestFinder().find(importlib.import_module(name)):
            # That of a method is one of its class, and of the values that it makes.
            programs += (
                [test.name, *(f"{each.source} {each.want}" for each in test.examples)]
                if test.examples
                else []
            )
    words = set(re.findall(r"\w+", " ".join(programs)))
    shown = {
        name
        for name, value in public_values().items()
        if getattr(value, "_is_protocol", False)
        or (inspect.isclass(value) and issubclass(value, Exception))
        or name in words
    }
    assert public_values().keys() - shown == WITHOUT_EXAMPLE


def test_the_public_modules_are_those_of_the_page_on_releases() -> None:
    """The page on releases lists exactly the public modules, whose names a release may not remove
    without a new MINOR.
    """
    page = (ROOT / "docs/releasing.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"of these modules: ([^:]*?)\.\n", page)
    assert set(re.findall(r"`([\w.]+)`", listed)) == PUBLIC


def test_the_version_is_the_installed_one() -> None:
    """`hostrouting.__version__` is the version of the distribution."""
    assert hostrouting.__version__ == version("hostrouting")


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """The package imports its names on first use, lists them before that, and refuses an unknown
    one as any module does.
    """
    assert dir(hostrouting) == sorted(hostrouting.__all__)
    with pytest.raises(AttributeError, match="module 'hostrouting' has no attribute 'Hots'"):
        _ = hostrouting.Hots  # type: ignore[attr-defined]  # the mistake
    with pytest.raises(AttributeError, match=r"'hostrouting\.host' has no attribute 'Hots'"):
        _ = hostrouting.host.Hots  # type: ignore[attr-defined]  # the mistake


def loaded_by(statement: str) -> set[str]:
    program = (
        f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    )
    done = ended(sys.executable, "-c", program, check=True)
    return set(done.stdout.split())


def test_importing_loads_no_netlink_and_no_test_tools() -> None:
    """`import hostrouting` and its config load neither pyroute2 nor any other module that costs
    start-up time.
    """
    heavy = {
        "pyroute2",
        "asyncio",
        "pytest",
        "hypothesis",
        "subprocess",
        "ipaddress",
        "ctypes",
        "difflib",
    }
    assert loaded_by("import hostrouting") & {"attr", "json", "logging", *heavy} == set()
    if sys.version_info < (3, 11):
        heavy.remove("subprocess")  # attrs imports platform, which imports it there
    assert loaded_by("import hostrouting.config.sections, hostrouting.host") & heavy == set()
    agents = loaded_by("from hostrouting import Configure, Host, HostRoutingConfig")
    rare = {"hostrouting.net.events", "hostrouting.host.packets.ebtables_rules"}
    assert agents & {"shutil", "socket", *rare} == set()
    assert "shutil" not in loaded_by("import hostrouting.cli.commands.check")
    assert loaded_by("import hostrouting.testing") & {"pyroute2", "pytest", "hypothesis"} == set()
    rare = {"attr", "dataclasses", "datetime", "hostrouting", "inspect", "json", "phases.testing"}
    assert loaded_by("import phases") & {"tempfile", *rare, *heavy, "subprocess"} == set()


def test_an_import_stands_at_the_top_of_its_file_or_says_why_not() -> None:
    """An import within a function has its reason in the line above."""
    unexplained = []
    for package in hostrouting, phases:
        folder = Path(str(package.__file__)).parent
        for file in folder.rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            above = text.splitlines()
            for line in sorted(lines_of_late_imports(ast.parse(text))):
                # Imports below one another have one reason.
                reason = next(each for each in reversed(above[: line - 1]) if each)
                if "# Imported " in reason or " import " in f" {reason}":
                    continue
                unexplained += [f"{file}:{line}: say above it: # Imported here because WHY"]
    assert unexplained == []


def lines_of_late_imports(tree: ast.Module) -> set[int]:
    """Return the lines of the imports within functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        node.lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


@pytest.mark.parametrize("statement", ["import hostrouting.config", "import hostrouting.__main__"])
def test_a_foreign_package_phases_is_named_with_the_remedy(statement: str, tmp_path: Path) -> None:
    """An import next to the unrelated project `phases` of PyPI, whose files replace or precede those
    of the runner, is an error with the remedy.
    """
    foreign = tmp_path / "phases/__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("from phases.app import App\n", encoding="utf-8")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {statement}"
    done = ended(sys.executable, "-c", program)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {foreign} is not hostrouting's own package 'phases'")
    assert "pip uninstall --yes phases; pip install --force-reinstall --no-deps hostrouting" in last


def test_the_package_declares_what_it_imports() -> None:
    """The metadata of the package declares both import names, so that an installer may refuse
    another project with one of them.
    """
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    assert ProjectMetadata(str(ROOT), PluginManager()).core.import_names == [
        package.__name__ for package in (hostrouting, phases)
    ]


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name: str) -> None:
    """Every example of a docstring gives the output that it shows."""
    flags = doctest.IGNORE_EXCEPTION_DETAIL if name.endswith("exceptions") else 0
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | flags)
    for docstring in doctest.DocTestFinder().find(importlib.import_module(name)):
        # The runner prepares a debugger for each, even for the thousands of docstrings without an
        # example.
        if docstring.examples:
            runner.run(docstring)
    assert runner.failures == 0
