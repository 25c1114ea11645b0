"""A test whose machine does not have something is skipped with a reason, or fails on CI."""

import re
import shutil
import sysconfig
from pathlib import Path

import pytest
from support import needs
from support.needs import missing, require
from support.processes import ended

ROOT = Path(__file__).parents[1]
INNER = """
import subprocess

import pytest
from support.needs import needs, require

@needs("root", "strace")
def test_by_mark():
    raise AssertionError

def test_by_call():
    require("strace")
    raise AssertionError

def test_shellcheck_is_found():
    subprocess.run(["shellcheck", "--version"], check=True)

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.soak
def test_soak():
    raise AssertionError
"""


@pytest.mark.slow
def test_on_ci_a_skip_is_a_failure(tmp_path: Path) -> None:
    """With HOSTROUTING_NO_SKIP a test that does not have a tool fails, and the reason is in the report. The
    run of CI has the slow tests, and leaves those of a soak out.
    """
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_inner.py").write_text(INNER)
    words = [f"{sysconfig.get_path('scripts')}/pytest", "--rootdir=.", "-otestpaths=."]
    paths = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "tests")}
    env = {**paths, "HOSTROUTING_NO_SKIP": "1", "HYPOTHESIS_PROFILE": "again"}
    done = ended(*words, cwd=tmp_path, env=env)
    assert done.returncode == 1
    # A mark is judged before the test, which pytest calls an error.
    assert "= 1 failed, 2 passed, 1 deselected" in done.stdout
    assert ", 1 error in " in done.stdout
    assert "skipped, which is a failure here: " in done.stdout


def test_no_file_skips_itself() -> None:
    """A file of tests does not skip itself, since its tests would have no report that could fail on
    CI.
    """
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    itself = re.compile("importorskip|allow_module_level")
    assert [path for path in files if itself.search(path.read_text())] == []


def test_ci_installs_every_package_that_a_skip_names() -> None:
    """Each package that a reason to skip names is one that .ci/packages installs."""
    installed = re.search(
        r"^packages=\((.*?)^\)", (ROOT / ".ci/packages").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert installed is not None
    words = {word for line in installed[1].splitlines() for word in line.partition("#")[0].split()}
    assert {*needs.PACKAGES.values()} - words == set()


def test_a_tool_without_an_entry_is_a_mistake() -> None:
    """A tool without an entry in the table raises an error, since its tests would be skipped for
    ever.
    """
    for look_up in missing, require:
        with pytest.raises(KeyError, match="ntf"):
            look_up("ntf")
