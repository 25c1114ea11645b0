"""A test whose machine lacks something is skipped with a reason, which is repeated at the end, or
fails on CI.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import needs
from support.needs import missing, require

ROOT = Path(__file__).parents[1]
INNER = """
import subprocess
from support.needs import needs, require

@needs("nft")
def test_by_mark():
    raise AssertionError

def test_by_call():
    require("nft")
    raise AssertionError

@needs("root", "ip")
def test_another():
    raise AssertionError

def test_shellcheck_is_found():
    subprocess.run(["shellcheck", "--version"], check=True)
"""


def run_inner(
    folder: Path,
    inner: str = INNER,
    *,
    words: Sequence[str] = (".",),
    root: Path | None = None,
    **environment: str,
) -> tuple[int, str]:
    """Run a small test suite with this project's conftest.py and an empty PATH; `words` name its
    files.
    """
    shutil.copy(ROOT / "tests/conftest.py", folder)
    (folder / "test_inner.py").write_text(inner)
    done = subprocess.run(
        [
            Path(sysconfig.get_path("scripts"), "pytest"),
            "-p",
            "no:cacheprovider",
            "--rootdir",
            root or folder,
            *words,
        ],
        check=False,
        cwd=root or folder,
        capture_output=True,
        text=True,
        env={"PATH": str(folder), "PYTHONPATH": str(ROOT / "tests"), **environment},
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_skips_are_told_again_by_reason(tmp_path: Path) -> None:
    """The run is green; at its end each reason stands once, with its package and the number of
    tests it has cost.
    """
    status, told = run_inner(tmp_path)
    assert status == 0, told
    another = "needs root" if os.geteuid() else "needs `ip` (Debian: apt-get install iproute2)"
    assert re.findall(r"^ +(\d+) (.*)$", told, flags=re.MULTILINE) == [
        ("2", "needs `nft` (Debian: apt-get install nftables)"),
        ("1", another),
    ]
    assert re.search(r"^=+ 1 passed, 3 skipped in ", told, flags=re.MULTILINE)


@pytest.mark.slow
def test_on_ci_a_skip_is_a_failure(tmp_path: Path) -> None:
    """With HOSTROUTING_NO_SKIP a machine that lacks something is red, and the reason is in the
    report.
    """
    status, told = run_inner(tmp_path, HOSTROUTING_NO_SKIP="1")
    assert status == 1
    # A mark is judged before the test, which pytest calls an error.
    assert re.search(r"^=+ 1 failed, 1 passed, 2 errors in ", told, flags=re.MULTILINE)
    assert "skipped, which is a failure here: " in told


MARKED = """
import pytest

@pytest.mark.{}
def test_marked():
    pass

def test_not_marked():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "profile", "words", "passed"),
    [
        ("slow", "default", [], "1 passed, 1 deselected"),
        ("slow", "default", ["tests/test_inner.py"], "2 passed"),
        ("slow", "check", [], "2 passed"),
        ("slow", "quick", ["tests/test_inner.py"], "1 passed, 1 deselected"),
        ("other_kernel", "check", [], "1 passed, 1 deselected"),
        ("other_kernel", "soak", [], "1 passed, 1 deselected"),
        ("other_kernel", "kernel", [], "2 passed"),
    ],
)
def test_a_test_for_another_run(
    mark: str, profile: str, words: list[str], passed: str, tmp_path: Path
) -> None:
    """`make test` leaves a slow one out, unless its file is named; only `make kernel-*` needs
    modules that CI lacks.
    """
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ntestpaths = tests\nmarkers = {mark}: a test for another run\n"
    )
    status, told = run_inner(
        tmp_path / "tests",
        MARKED.format(mark),
        words=words,
        root=tmp_path,
        HYPOTHESIS_PROFILE=profile,
        HOSTROUTING_NO_SKIP="1",
    )
    assert status == 0, told
    assert re.search(rf"^=+ {passed}[, ]", told, flags=re.MULTILINE), told


def test_ci_installs_every_package_that_a_skip_names() -> None:
    """A reason to skip names a package that .ci/packages installs: CI has no skips, also not on a
    fresh machine.
    """
    installed = re.search(
        r"^packages=\((.*?)^\)", (ROOT / ".ci/packages").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert installed is not None
    words = {word for line in installed[1].splitlines() for word in line.partition("#")[0].split()}
    assert {*needs.PACKAGES.values()} - words == set()


def test_a_tool_without_an_entry_is_a_mistake() -> None:
    """A tool without an entry in the table would be skipped for ever under a wrong name: it is an
    error instead.
    """
    with pytest.raises(KeyError, match="ntf"):
        missing("ntf")
    with pytest.raises(KeyError, match="ntf"):
        require("ntf")
