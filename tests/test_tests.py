"""Rules of the tests themselves that a program can look after."""

import re
from collections.abc import Iterator
from pathlib import Path

from support.documents import ROOT
from system.conftest import STORIES

#: A loop of bash without a pause: `until CONDITION; do :; done`.
_SPINS = re.compile(r"\bdo\s+(?::|true|continue)?\s*;?\s*done\b")


def _files(*endings: str) -> Iterator[Path]:
    folders = (
        ROOT / name for name in ("tests", "hostrouting", "phases", "examples", "release", ".ci")
    )
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return (path for path in files if path.suffix in endings and path.parent.parent.name != "cases")


def test_nothing_waits_by_spinning() -> None:
    """No loop of bash is empty: `SystemdBox.until` and `wait_until` pause, and have a limit."""
    files = {path: path.read_text() for path in _files(".py", ".sh", "") if path != Path(__file__)}
    assert len(files) > 300
    assert [path for path, text in files.items() if _SPINS.search(text)] == []


def test_each_story_is_there() -> None:
    """A test on real systemd that got another name is a slow one until it is listed again."""
    names = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests/system").glob("test_*.py")
        for name in _tests_of(path)
    }
    assert STORIES - names == set()


def _tests_of(path: Path) -> list[str]:
    return re.findall(r"^ *def (test_\w+)", path.read_text(), flags=re.MULTILINE)
