"""docs/agents.md: its programs run and have types, and its table has each public error."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.documents import ROOT, blocks
from support.processes import ended

import hostrouting.exceptions
import phases
from hostrouting import RouteBackend

PAGE = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
PROGRAMS = blocks("docs/agents.md")


@pytest.mark.parametrize("program", PROGRAMS, ids=range(1, len(PROGRAMS) + 1))
def test_each_program_is_whole_and_its_assertions_hold(program: str, tmp_path: Path) -> None:
    """Each program of the page runs as a file of its own, and its assertions hold."""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    done = ended(sys.executable, "-W", "error", file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "assert " in program


@pytest.mark.slow
def test_the_programs_are_clean_by_mypy_strict(tmp_path: Path) -> None:
    """An author's type checker finds nothing in what the page shows, without any setting."""
    files = [tmp_path / f"program{number}.py" for number in range(len(PROGRAMS))]
    for file, program in zip(files, PROGRAMS, strict=True):
        file.write_text(program, encoding="utf-8")
    options = [
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    done = ended(sys.executable, "-m", "mypy", *options, *files, cwd=ROOT)
    assert done.stdout == f"Success: no issues found in {len(files)} source files\n"


def public_errors(module: ModuleType) -> dict[str, type[Exception]]:
    """Return the exceptions among the public values of a module, by their names."""
    values = [getattr(module, name) for name in module.__all__]
    classes = [value for value in values if isinstance(value, type)]
    return {each.__name__: each for each in classes if issubclass(each, Exception)}


def test_the_table_has_each_error_and_if_a_retry_helps() -> None:
    """The table of the page has a row for each public error, with `yes` if a retry can help by
    default.
    """
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]+ \| [^|]+ \|$", PAGE, flags=re.MULTILINE))
    errors = public_errors(hostrouting.exceptions) | public_errors(phases)
    assert rows.keys() == errors.keys()
    marked = {name for name, answer in rows.items() if answer == "yes"}
    retried = [name for name, error in errors.items() if getattr(error, "retryable", False) is True]
    assert marked == set(retried)


def test_the_methods_of_a_backend() -> None:
    """The page names exactly the methods of a backend of routes."""
    (listed,) = re.findall(r"methods: ([^.]+)\.", PAGE)
    assert set(re.findall(r"`(\w+)`", listed)) == {
        name
        for cls in RouteBackend.__mro__
        for name, part in vars(cls).items()
        if callable(part) and name[0] != "_"
    }
