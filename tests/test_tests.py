"""Rules of the tests themselves that a program can look after."""

import re

from support.documents import ROOT
from system.conftest import STORIES

#: A loop of bash without a pause: the body of its `until` is `:`.
_SPINS = re.compile(r"\bdo\s+(?::|true|continue)?\s*;?\s*done\b")


def test_nothing_waits_by_spinning() -> None:
    """No loop of bash is empty: `SystemdBox.until` and `wait_until` pause, and have a limit."""
    folders = "tests", "hostrouting", "phases", "examples", "release", ".ci"
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    texts = {
        path: path.read_text(errors="replace")
        for path in paths
        if path.suffix in {".py", ".sh", ""}
    }
    assert len(texts) > 300
    assert [path for path, text in texts.items() if _SPINS.search(text)] == []


def test_each_story_is_there() -> None:
    """A test on real systemd that got another name is a slow one until it is listed again."""
    names = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests/system").glob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert STORIES - names == set()


def test_support_imports_are_shallow() -> None:
    """A module of tests/support imports another one, which imports at most one further: whoever
    reads a red test reads three files.
    """
    folder = ROOT / "tests/support"
    imported = {}
    for path in folder.rglob("*.py"):
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        imports = r"^from support(?:\.([\w.]+) import| import (\w+)$)"
        found = re.findall(imports, path.read_text(), re.MULTILINE)
        imported[name] = [module or whole for module, whole in found]

    def depth(name: str) -> int:
        return 1 + max(map(depth, imported.get(name, ())), default=0)

    assert [name for name in imported if depth(name) > 3] == []
