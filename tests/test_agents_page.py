"""docs/agents.md: its programs run and have types, its table is that of the classes, and it is read in ten minutes."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.documents import ROOT, blocks

import hostrouting.exceptions
import phases
from hostrouting import ConfigureStaticRoutes, HostRoutingConfig, HostRoutingError
from hostrouting.host import RouteBackend
from hostrouting.testing import FakeHost
from phases import Context, PhaseError, TaskFailedError
from phases.testing import ManualClock

PAGE: Final = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
PROGRAMS: Final = blocks("docs/agents.md")
EXAMPLE: Final = (ROOT / "examples/custom_backend.py").read_text(encoding="utf-8")
NUMBERS: Final = {5: "five", 6: "six", 7: "seven", 8: "eight"}

#: Errors to which a task adds, when it passes them on, if a retry can help.
COMPLETED: Final = {"RouteRejectedError"}

type_of_error = type[HostRoutingError] | type[PhaseError]


def errors() -> dict[str, type_of_error]:
    """Return every public error of both packages, in their order."""
    named = [
        vars(module)[name]
        for module, names in (
            (hostrouting.exceptions, hostrouting.exceptions.__all__),
            (phases, phases.__all__),
        )
        for name in names
    ]
    return {
        each.__name__: each
        for each in named
        if isinstance(each, type) and issubclass(each, HostRoutingError | PhaseError)
    }


def retryable(error: type_of_error) -> str:
    """Return what a class says of a retry: `depends` if an instance or a kind of it may say something else."""
    if error.retryable:
        return "yes"
    init = vars(error).get("__init__")
    of_an_instance = init is not None and "retryable" in (*init.__code__.co_names, *init.__code__.co_varnames)
    of_a_kind = any(each != error and issubclass(each, error) and retryable(each) != "no" for each in errors().values())
    return "depends" if of_an_instance or of_a_kind or error.__name__ in COMPLETED else "no"


def run(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], check=False, capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(1, len(PROGRAMS) + 1))
def test_each_program_is_whole_and_its_assertions_hold(program: str, tmp_path: Path) -> None:
    """A reader may paste any one of them into a file and run it."""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    ended = run("-W", "error", str(file), cwd=tmp_path)
    assert (ended.returncode, ended.stderr if ended.returncode else "") == (0, "")
    assert "assert " in program


@pytest.mark.slow
def test_the_programs_are_clean_by_mypy_strict(tmp_path: Path) -> None:
    """An author's type checker has nothing to say about what the page shows, without any setting."""
    files = [tmp_path / f"program{number}.py" for number in range(len(PROGRAMS))]
    for file, program in zip(files, PROGRAMS, strict=True):
        file.write_text(program, encoding="utf-8")
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    ended = run("-m", "mypy", *options, *map(str, files))
    assert ended.stdout == f"Success: no issues found in {len(files)} source files\n"


def test_the_table_has_each_error_and_says_if_a_retry_helps() -> None:
    """One row for each public error, in the order of the packages' lists, compared with what its class says."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", PAGE, flags=re.MULTILINE)
    found = {name: answer for name, answer, *_ in rows}
    assert len(rows) == len(found)
    assert found == {name: retryable(error) for name, error in errors().items()}


def test_errors_are_completed_where_they_are_passed_on() -> None:
    """A route that the network refuses today may be accepted tomorrow: the task knows, and its error says so."""
    host = FakeHost()
    host.routes.add_link("eth0")
    route = {"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0"}
    config = HostRoutingConfig.from_mapping({"staticRoutes": {"enabled": True, "routes": [route]}})
    report = phases.run(ConfigureStaticRoutes(config, host=host), Context(clock=ManualClock(auto=True)))
    assert isinstance(report.error, TaskFailedError)
    assert [(type(each).__name__, getattr(each, "retryable", None)) for each in report.error.failures] == [
        ("RouteRejectedError", True)
    ]


def test_the_table_names_attributes_that_the_errors_have() -> None:
    """What an agent reports can be had: each attribute is in the source of its class or of a parent."""
    for name, reports in re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, flags=re.MULTILINE):
        classes = errors()[name].__mro__
        told = {
            word
            for each in classes
            for part in vars(each).values()
            for code in [getattr(getattr(part, "fget", part), "__code__", None)]
            if code is not None
            for word in (code.co_name, *code.co_names)
        }
        assert set(re.findall(r"`(\w+)`", reports)) <= told | {"path", "message"}, name


def test_the_page_is_read_in_ten_minutes() -> None:
    """Outside its programs it has at most 1,100 words."""
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"\S*\w\S*", prose)) <= 1_100


def test_how_many_methods_a_backend_has() -> None:
    """The page and the example count them right, and the example has them all."""
    methods = {
        name
        for each in RouteBackend.__mro__
        for name, part in vars(each).items()
        if callable(part) and not name.startswith("_")
    }
    told = f"{NUMBERS[len(methods)]} methods"
    assert f"`families` and {told}" in PAGE
    assert f"has {told}" in EXAMPLE
    (listed,) = re.findall(r"methods: ([^.]+)\.", PAGE)
    assert set(re.findall(r"`(\w+)`", listed)) == methods
    assert set(re.findall(r"^    def ([a-z]\w+)", EXAMPLE, flags=re.MULTILINE)) - {"node", "backend"} == methods
