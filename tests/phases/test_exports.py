from __future__ import annotations

import doctest
import importlib
import inspect
import json
import logging
import pkgutil
import subprocess
import sys

import pytest

import phases
import phases.testing

MODULES = sorted(f"phases.{module.name}" for module in pkgutil.iter_modules(phases.__path__))


def test_exported_members() -> None:
    """The package exports exactly these names, sorted."""
    assert phases.__all__ == [
        "CancelledError",
        "Change",
        "Clock",
        "CommandFailedError",
        "CommandResult",
        "Context",
        "DeadlineExceededError",
        "Event",
        "Group",
        "Parallel",
        "PhaseError",
        "Plan",
        "Plannable",
        "Report",
        "Serial",
        "Task",
        "TaskFailedError",
        "Tolerant",
        "Undoable",
        "UnknownTaskError",
        "cancel_on_signals",
        "execute",
        "plan",
        "run",
        "run_command",
        "task",
        "tolerate",
        "undo",
        "with_retry",
        "with_timeout",
    ]
    assert phases.testing.__all__ == ["ManualClock"]


@pytest.mark.parametrize("module", [phases, phases.testing], ids=lambda module: module.__name__)
def test_every_public_name_is_documented(module: object) -> None:
    """Every exported name has a docstring, and so has every public method of an exported class."""
    undocumented = []
    for name in module.__all__:  # type: ignore[attr-defined]  # a module, which mypy does not narrow to
        value = getattr(module, name)
        if not inspect.getdoc(value):
            undocumented.append(name)
        for member, method in inspect.getmembers(value, inspect.isroutine) if inspect.isclass(value) else ():
            if not member.startswith("_") and not inspect.getdoc(method):
                undocumented.append(f"{name}.{member}")
    assert undocumented == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    """The examples in docstrings give the results that they show."""
    logging.getLogger("phases").addHandler(logging.NullHandler())
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_import_is_light() -> None:
    """`import phases` loads neither hostrouting nor heavy modules that are not always needed."""
    heavy = ["asyncio", "attr", "dataclasses", "datetime", "difflib", "hostrouting", "inspect", "json", "logging"]
    heavy += ["phases.testing", "pyroute2", "shlex", "signal", "subprocess", "tempfile"]
    code = f"import sys; import phases; print(*(name for name in {heavy!r} if name in sys.modules))"
    bare = f"import sys; print(*(name for name in {heavy!r} if name in sys.modules))"
    assert _python(code) == _python(bare)


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True).stdout


def test_report_reaches_json() -> None:
    """A report is plain JSON."""
    report = phases.run(phases.Serial(phases.task("a")(lambda _: None), name="all"))
    assert json.loads(json.dumps(report.to_mapping())) == report.to_mapping()
