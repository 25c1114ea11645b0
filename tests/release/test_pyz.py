"""The command as one file, which needs nothing but Python, and is the same bytes whenever it is
built.
"""

import ast
import json
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path, PurePath

import pytest
from support.documents import ROOT
from support.images import make_image
from support.processes import ended

from hostrouting import __version__

VERSION = "{}.{}".format(*sys.version_info)


def build(output: Path, *pythons: str) -> Path:
    subprocess.run([sys.executable, ROOT / "release/pyz.py", output, *pythons], check=True)
    return output


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a bare Python: without any package, and without settings from the environment."""
    return ended(sys.executable, "-IS", *words, cwd="/")


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pyz") / "hostrouting", VERSION, sys.executable)


def test_two_builds_are_the_same_bytes(pyz: Path, tmp_path: Path) -> None:
    """Two builds of the file are the same bytes, whatever the time, the folder and the order of
    sets.
    """
    assert build(tmp_path / "again", VERSION, sys.executable).read_bytes() == pyz.read_bytes()


def test_a_build_that_fails_leaves_the_file_before_it(tmp_path: Path) -> None:
    """A build that fails, as at the limit of a file's size, leaves the earlier file and no part of
    a new one, which could be published by mistake.
    """
    (output := tmp_path / "hostrouting").write_bytes(b"the one before")
    script = 'ulimit -f 100; exec "$0" "$@"'
    words = ["bash", "-c", script, sys.executable, str(ROOT / "release/pyz.py"), str(output)]
    failed = subprocess.run(words, check=False, capture_output=True, text=True)
    assert "File too large" in failed.stderr
    assert list(tmp_path.iterdir()) == [output]
    assert output.read_bytes() == b"the one before"


@pytest.mark.slow
def test_files_of_editors_and_notes_are_left_out(pyz: Path, tmp_path: Path) -> None:
    """A build of a tree with files of editors and notes gives the same bytes."""
    for name in "hostrouting", "phases", "release":
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in (
        ".cli.py.swp",
        "cli.py~",
        "cli.py.orig",
        "token",
        ".#cli.py",
        "boot/assets/common.sh.rej",
    ):
        (tmp_path / "hostrouting" / name).write_text("secret")
    words = [str(tmp_path / "release/pyz.py"), str(tmp_path / "built"), VERSION, sys.executable]
    subprocess.run([sys.executable, *words], check=True)
    assert (tmp_path / "built").read_bytes() == pyz.read_bytes()


def test_the_file_needs_no_package(pyz: Path) -> None:
    """A Python without site-packages runs the file."""
    result = run(pyz, "--version")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"hostrouting {__version__}\n", result.stderr


def test_compiled_modules_are_those_of_the_version_with_their_magic_number(
    pyz: Path, tmp_path: Path
) -> None:
    """The compiled modules of the running Python come before the sources; those with another magic
    number are passed over.
    """
    entries = (archive := zipfile.ZipFile(pyz)).namelist()
    contents = {name: archive.read(name) for name in entries} | {"hostrouting/__init__.py": b"1/0"}
    for magic, status in (contents[VERSION][:4], 0), (b"\0\0\r\n", 1):
        contents[VERSION] = magic + contents[VERSION][4:]
        with zipfile.ZipFile(tmp_path / "other", "w") as other:
            for name, content in contents.items():
                other.writestr(name, content)
        assert run(tmp_path / "other", "--version").returncode == status


def test_an_apply_of_it_writes_the_program_of_a_boot(pyz: Path, tmp_path: Path) -> None:
    """An apply by the file writes a program of the boot that runs, and a plan afterwards is
    empty.
    """
    image = make_image(tmp_path / "image")
    config = tmp_path / "config.json"
    config.write_text('{"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}}')
    assert run(pyz, "apply", "--root", image, config).returncode == 0
    program = image / "etc/aks-flex-node/hostrouting.zip"
    assert run(program, "try", "word").returncode == 10
    assert run(pyz, "plan", "--exit-code", "--root", image, config).returncode == 0


@pytest.mark.slow
def test_a_python_without_compiled_modules_reads_the_sources(pyz: Path, tmp_path: Path) -> None:
    """A file without compiled modules renders the same from its sources as one with them, as it may
    meet a Python that its build did not have.
    """
    config = tmp_path / "config.json"
    config.write_text('{"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}}')
    result = run(build(tmp_path / "sources"), "render", config, "hostrouting.json")
    assert result.returncode == 0, result.stderr
    assert "172.16.8.0/22" in result.stdout
    assert run(pyz, "render", config, "hostrouting.json").stdout == result.stdout


def test_an_old_python_is_named(pyz: Path) -> None:
    """The file on an old Python ends with status 3 and names the needed version, before any import
    of its own.

    The exit status is that of a command that could not be done, so a check is not taken for one
    that found an overlap.
    """
    main = zipfile.ZipFile(pyz).read("__main__.py").decode()
    old = "import sys; sys.version_info = (3, 9, 2)\n"
    result = run("-c", old + main)
    assert result.returncode == 3
    assert result.stderr == "hostrouting needs Python 3.10 or newer, and this is 3.9\n"
    # Python 3.5 is the first one that allows it in a tuple, and a syntax error comes before the
    # first line.
    assert not any(isinstance(node, ast.Starred) for node in ast.walk(ast.parse(main)))


@pytest.mark.parametrize(
    "form",
    [pytest.param((), marks=pytest.mark.slow), (VERSION, sys.executable)],
    ids=["sources", "compiled"],
)
def test_files_come_from_the_archive(form: tuple[str, ...], tmp_path: Path) -> None:
    """The file renders scripts and units as the package does, and the service of watch starts the
    file itself.
    """
    pyz = build(tmp_path / "one.file", *form)
    config = tmp_path / "config.json"
    routes = {"enabled": True, "routes": [{"destination": "172.16.0.0/16"}]}
    config.write_text(
        json.dumps({"staticRoutes": routes, "watch": {"enabled": True, "mode": "service"}})
    )
    # The folder of a test is no lasting place for a command.
    render = f"""
import sys, zipimport; sys.path.insert(0, {str(pyz)!r}); __loader__ = zipimport.zipimporter(sys.path[0])
exec(__loader__.get_data(sys.path[0] + "/__main__.py").partition(b"from hostrouting.__main__")[0])
from hostrouting import cli; from hostrouting.watch import unit
unit._problem = lambda *_: ""; cli.main(["render", {str(config)!r}, "--out", {str(tmp_path / "files")!r}])
"""
    assert run("-c", render).returncode == 0
    script = tmp_path / "files/etc/aks-flex-node/static-routes.sh"
    subprocess.run(["bash", "-n", script], check=True)
    unit = (tmp_path / "files/etc/systemd/system/hostrouting-watch.service").read_text()
    assert f"\nExecStart={pyz} watch " in unit


def test_its_metadata_are_those_of_its_packages(pyz: Path) -> None:
    """A program with the file on its path reads the versions of the modules in the file, also
    next to installed packages.
    """
    script = "import sys; sys.path[:0] = sys.argv[1:]; import attr; from importlib import metadata as of; "
    script += "print(*(of.version(name) for name in ('hostrouting', 'attrs')), attr.__version__, attr.__file__)"
    versions = [__version__, *[version("attrs")] * 2, f"{pyz}/attr/__init__.py"]
    for isolated in "-IS", "-I":
        words = [sys.executable, isolated, "-c", script, pyz]
        assert ended(*words, check=True).stdout.split() == versions


def test_the_library_names_the_backend_that_needs_pyroute2(pyz: Path) -> None:
    """An import of the pyroute2 backend from the file is an error that names the package, and the
    backend that needs none.
    """
    script = f"import sys; sys.path.insert(0, {str(pyz)!r}); import hostrouting.host.pyroute"
    last = run("-c", script).stderr.splitlines()[-1]
    assert last == (
        "ImportError: Pyroute2Backend needs pyroute2, which is not installed for this Python; "
        "install pyroute2, or use NetlinkBackend, which needs no package"
    )


def test_every_kind_of_file_of_the_packages_is_in_it(pyz: Path) -> None:
    """The file has every kind of file that the packages have, as the build finds files by their
    suffixes.
    """
    junk = {"", ".orig", ".pyc", ".rej", ".swp"}
    kinds = {
        path.suffix
        for name in ("hostrouting", "phases")
        for path in (ROOT / name).rglob("*")
        if path.is_file()
    }
    packed = {PurePath(name).suffix for name in zipfile.ZipFile(pyz).namelist()}
    assert kinds - junk <= packed
