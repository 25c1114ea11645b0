"""The runner of mutants on a tree of one function, and its choice among failing tests."""

from pathlib import Path

import pytest
from mutants.run import (
    PACKAGES,
    ROOT,
    Mutant,
    changed_lines,
    diff_since,
    judge,
    mutants,
    report,
    split,
)

CODE = "def twice(number):\n    return number * 2\n"
MUTANT = Mutant(
    "net", "code_of_net.py", "twice", "it adds", "number * 2", "number + 2", survives=False
)
RIGHT = "def test_twice():\n    assert twice(3) == 6\n"
WRONG = "def test_is_wrong():\n    assert twice(3) == 7\n"
#: It fails the first time.
BY_CHANCE = """
def test_by_chance():
    marker = Path(__file__).with_name("ran")
    ran = marker.exists()
    marker.touch()
    assert ran
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_each_mutant_has_its_place(package: str) -> None:
    """The code that each mutant of a package quotes is in its function exactly once."""
    for mutant in mutants():
        if mutant.package == package:
            split(mutant, ROOT)


SHELL = """\
first() { # device
    echo "$1"
}
second() {
    echo "$1"
}
"""
PYTHON = """\
class Table:
    @property
    def rows(self):
        def size():
            return 1
        return size() + 1

    def size(self):
        return 1
"""


@pytest.mark.parametrize(
    ("file", "function", "before", "line"),
    [
        ("table.py", "Table.rows.size", "return 1", 5),
        ("table.py", "Table.size", "return 1", 9),
        ("table.py", "Table.rows", "property", 2),
        ("table.py", "Table", "size() +", 6),
        ("table.py", "<module>", "class", 1),
        ("table.sh", "second", "echo", 5),
        ("table.sh", "<module>", "device", 1),
    ],
)
def test_a_mutant_is_found_in_its_function(
    tmp_path: Path, file: str, function: str, before: str, line: int
) -> None:
    """A mutant changes the code of its own function, even if others have the same code."""
    (tmp_path / "table.py").write_text(PYTHON)
    (tmp_path / "table.sh").write_text(SHELL)
    mutant = MUTANT._replace(file=file, function=function, before=before)
    assert split(mutant, tmp_path)[0].count("\n") == line - 1


@pytest.mark.parametrize(
    ("file", "function", "before", "problem"),
    [
        ("table.py", "Table.size", "return 3", "Table.size has 0 times 'return 3'"),
        ("table.py", "Table", "return 1", "Table has 2 times 'return 1'"),
        ("table.py", "Table.rank", "return 1", "Table.rank does not exist"),
        ("lost.py", "<module>", "return 1", "<module> does not exist"),
    ],
)
def test_a_mutant_that_lost_its_code_is_named(
    tmp_path: Path, file: str, function: str, before: str, problem: str
) -> None:
    """If the code of a mutant has been moved or copied, the error names both and the next step."""
    (tmp_path / "table.py").write_text(PYTHON)
    mutant = MUTANT._replace(file=file, function=function, before=before)
    with pytest.raises(SystemExit) as caught:
        split(mutant, tmp_path)
    assert caught.value.code == (
        f"tests/mutants/net.txt: it adds: {problem} in {file}; "
        "update the mutant together with the code"
    )


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(PACKAGES, "net", "tests/net")
    (tmp_path / "tests/net").mkdir(parents=True)
    (tmp_path / "code_of_net.py").write_text(CODE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "first", "killer", "doubtful"),
    [
        (RIGHT, "", "test_twice", []),
        (RIGHT, "test_twice", "test_twice", []),
        (WRONG + RIGHT, "", "test_twice", ["test_is_wrong"]),
        (WRONG + RIGHT, "test_is_wrong", "test_twice", ["test_is_wrong"]),
        (BY_CHANCE + RIGHT, "", "test_twice", ["test_by_chance"]),
        (BY_CHANCE + WRONG, "", "", ["test_by_chance", "test_is_wrong"]),
    ],
)
def test_a_killer_is_green_without_the_mutant(
    tree: Path, tests: str, first: str, killer: str, doubtful: list[str]
) -> None:
    """A test that fails by chance, or on the unchanged tree, does not kill a mutant, even if it did
    the last time.
    """
    header = "from pathlib import Path\nfrom code_of_net import twice\n"
    (tree / "tests/net/test_twice.py").write_text(header + tests)
    name = "tests/net/test_twice.py::"
    outcome = judge(MUTANT, tree, f"{name}{first}" if first else "")
    assert outcome.killer == (f"{name}{killer}" if killer else "")
    assert [test.removeprefix(name) for test in outcome.doubtful] == doubtful
    assert (tree / "code_of_net.py").read_text() == CODE


def test_a_lost_file_of_a_package_is_an_error(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of a package that names a missing file ends the run, as its mutants would seem to
    survive.
    """
    monkeypatch.setitem(PACKAGES, "net", "tests/net tests/test_lost.py")
    with pytest.raises(SystemExit, match=r"not found: .*tests/test_lost\.py"):
        judge(MUTANT, tree, "")


def test_mutants_of_a_change_that_were_not_tried_fail_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Untried mutants of a change fail the run by name; those of a whole package are the rest of a
    sample.
    """
    assert report([], [MUTANT], is_of_a_change=False) == 0
    assert report([], [MUTANT], is_of_a_change=True) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "not tried: net: it adds"


DIFF = """\
diff --git a/phases/code.py b/phases/code.py
index 1f0c1a7..0cc0c5c 100644
--- a/phases/code.py
+++ b/phases/code.py
@@ -2 +2 @@ line 1
-line 2
+another
@@ -5,2 +4,0 @@ line 4
-line 5
-line 6
@@ -9,0 +8,2 @@ line 9
+new
+newer
"""


def test_the_lines_that_a_change_touches() -> None:
    """The lines of a change are its new and changed ones, and the line before those that are
    removed.
    """
    assert changed_lines(DIFF) == {ROOT / "phases/code.py": {2, 4, 8, 9}}


def test_a_commit_that_git_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the mutants since an unknown commit ends with the reason of git and a next step."""
    # Not every machine has git, and a tree from an archive has no commits.
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 'fatal: bad revision' >&2\nexit 128\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        diff_since("absent")
    assert caught.value.code == (
        "--since absent: fatal: bad revision; name a commit that git has here"
    )
