"""Rules of the tests themselves that a program can look after."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.documents import ROOT
from system.conftest import STORIES

#: A loop of bash without a pause: `until CONDITION; do :; done`.
_SPINS: Final = re.compile(r"\bdo\s+(?::|true|continue)?\s*;?\s*done\b")


def _files(*endings: str) -> Iterator[Path]:
    folders = (ROOT / name for name in ("tests", "hostrouting", "phases", "examples", "release", ".ci"))
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return (path for path in files if path.suffix in endings and path.parent.parent.name != "cases")


def _lines_of_idle_loops(text: str) -> list[int]:
    """Return where the empty loops are, but for those whose condition waits for a message."""
    loops = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.While))
    idle = (loop for loop in loops if all(isinstance(each, ast.Pass | ast.Continue) for each in loop.body))
    return [loop.lineno for loop in idle if not re.search(r"\.(get|recv)\(", ast.unparse(loop.test))]


def test_nothing_waits_by_spinning() -> None:
    """No loop of bash or Python is empty: `SystemdBox.until` and `wait_until` pause, and have a limit."""
    files = {path: path.read_text() for path in _files(".py", ".sh", "") if path != Path(__file__)}
    assert len(files) > 300
    found = [f"{path}: {match[0]}" for path, text in files.items() for match in _SPINS.finditer(text)]
    for path, text in files.items():
        if path.suffix == ".py":
            found += [f"{path}:{line}: an empty loop" for line in _lines_of_idle_loops(text)]
    assert found == []


def test_each_story_is_there() -> None:
    """A test on real systemd that got another name is a slow one until it is listed again."""
    names = {f"{path.name}::{name}" for path in (ROOT / "tests/system").glob("test_*.py") for name in _tests_of(path)}
    assert STORIES - names == set()


def _tests_of(path: Path) -> list[str]:
    return re.findall(r"^ *def (test_\w+)", path.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("loop", ["until [[ -e /a ]]; do :; done", "while true; do\n  :\ndone", "until a; do\ndone"])
def test_it_knows_a_spinning_loop(loop: str) -> None:
    """Loops that wait and do nothing else, in one line or several."""
    assert _SPINS.search(loop)
    assert _lines_of_idle_loops("while not a:\n    pass\n") == [1]
