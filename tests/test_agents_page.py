"""docs/agents.md: its programs run and have types, and its table of errors is that of the classes."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import ROOT, blocks

import hostrouting.exceptions
import phases
from hostrouting.host import RouteBackend

PAGE = "docs/agents.md"


@pytest.mark.parametrize("code", blocks(PAGE))
def test_each_program_runs(code: str) -> None:
    """It is whole, and its assertions hold."""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.slow
def test_each_program_is_clean_by_a_strict_type_checker(tmp_path: Path) -> None:
    """As the program of an author who uses mypy --strict."""
    files = []
    for number, code in enumerate(blocks(PAGE)):
        files.append(tmp_path / f"program_{number}.py")
        files[-1].write_text(code)
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}/cache"]
    ended = subprocess.run([*words, *map(str, files)], check=False, capture_output=True, text=True, cwd=ROOT)
    assert (ended.stdout.splitlines()[-1:], ended.returncode) == (
        [f"Success: no issues found in {len(files)} source files"],
        0,
    ), ended.stdout


def test_the_table_has_every_error_and_says_if_a_retry_can_help() -> None:
    """Those of both packages; `by case` where an instance decides."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+Error)` \| ([\w ]+) \|", text, flags=re.MULTILINE))
    classes = {
        name: value
        for module in (hostrouting.exceptions, phases)
        for name, value in ((name, getattr(module, name)) for name in module.__all__)
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    by_case = {"BackendError", "LinkNotFoundError", "RouteRejectedError", "RouteOverlapError", "TaskFailedError"}
    assert told == {
        name: "by case" if name in by_case else "yes" if each.retryable else "no" for name, each in classes.items()
    }


def test_a_backend_has_as_many_methods_as_the_examples_say() -> None:
    """In the page and in the example."""
    methods = [name for name, value in inspect.getmembers(RouteBackend, inspect.isfunction) if not name.startswith("_")]
    assert sorted(methods) == ["apply", "links", "lookup", "routes", "routes_of", "rules"]
    for document in (PAGE, "examples/custom_backend.py"):
        assert "has six methods" in (ROOT / document).read_text(encoding="utf-8")
