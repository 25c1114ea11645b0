"""A first release needs links that lead somewhere, and pages that hold."""

import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from mutants.run import PACKAGES
from support.documents import ROOT, blocks, links
from support.processes import ended

from benchmarks.targets import PROMISES
from hostrouting import __version__

#: The versions of Python that .ci/pythons looks for.
PYTHONS = re.findall(
    r"3\.\d+",
    (ROOT / ".ci/pythons")
    .read_text(encoding="utf-8")
    .partition("for version in ")[2]
    .split(";")[0],
)


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_supported_pythons_are_those_that_ci_looks_for() -> None:
    """The metadata of the package and .ci/pythons name the same versions of Python, and pip
    requires the oldest.
    """
    classifiers = metadata("hostrouting").get_all("Classifier") or []
    assert [
        one.rpartition(" ")[2] for one in classifiers if re.search(r":: 3\.\d+$", one)
    ] == PYTHONS
    assert metadata("hostrouting")["Requires-Python"] == f">={PYTHONS[0]}"


def test_a_change_is_tried_on_each_python() -> None:
    """The workflow of a change names the versions of Python that .ci/pythons looks for."""
    [listed] = re.findall(r"python: \[(.*)\]", text(".github/workflows/change.yml"))
    assert listed == ", ".join(f'"{version}"' for version in PYTHONS)


def test_the_night_runs_each_of_its_sessions_and_packages() -> None:
    """The workflow of the night has a job for each session with its tag, and for the mutants of
    each package.
    """
    night = text(".github/workflows/night.yml")
    tagged = re.findall(
        r'tags=\["night"\].*?^def (\w+)', text("noxfile.py"), re.DOTALL | re.MULTILINE
    )
    parts = re.findall(r"part: (\w+)", night)
    assert {*parts, "mutants"} == set(tagged)
    [packages] = re.findall(r"package: \[(.*)\]", night)
    assert packages == ", ".join(PACKAGES)


def test_the_archive_of_the_sources_has_what_its_documents_link_to() -> None:
    """The archive of the sources has each file of the repository that its documents link to."""
    held = {
        Path(file.distribution_path) for file in SdistBuilder(str(ROOT)).recurse_included_files()
    }
    documents = [path for path in held if path.suffix == ".md"]
    assert {Path("README.md"), Path("SECURITY.md"), Path("docs/releasing.md")} <= set(documents)
    folders = {folder for path in held for folder in path.parents}
    lost = [
        f"{document}: {link}"
        for document in documents
        for link in links(str(document))
        if (target := (ROOT / document.parent / link).resolve()).exists()
        and target.relative_to(ROOT) not in held | folders
    ]
    assert lost == []


def test_our_own_address_is_one() -> None:
    """The metadata of the package, templates and documents name one repository."""
    links = dict(link.split(", ") for link in metadata("hostrouting").get_all("Project-URL") or [])
    home = links["Repository"]
    assert links["Issues"] == f"{home}/issues"
    assert links["Changelog"] == f"{home}/blob/main/CHANGELOG.md"
    assert home in text(".github/ISSUE_TEMPLATE/config.yml")
    assert f'_HOME = "{home}"\n' in text("release/packages.py")
    assert f"--repo {home.removeprefix('https://github.com/')}`" in text("docs/releasing.md")


CHANGELOG = f"# Changelog\n\n## {__version__} - 2026-12-01\n\nThe first.\n\n### Added\n\n- All.\n\n## 0.0.1 - 2026-01-01\n"


def notes(changelog: str, tag: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "release/notes.py", tag]
    return ended(*words, input=changelog, cwd=ROOT)


def test_the_notes_of_a_release_are_its_section() -> None:
    """The notes of a release are its section of the changelog, without the title."""
    assert notes(CHANGELOG, f"v{__version__}").stdout == "The first.\n\n### Added\n\n- All.\n"


@pytest.mark.parametrize(
    ("changelog", "tag", "why"),
    [
        (CHANGELOG, "v99.0.0", "the tag v99.0.0 is not v"),
        (
            CHANGELOG.replace(__version__, "Unreleased"),
            f"v{__version__}",
            "CHANGELOG.md lacks a section",
        ),
        (CHANGELOG.replace(" - 2026-12-01", ""), f"v{__version__}", "CHANGELOG.md lacks a section"),
    ],
)
def test_a_tag_that_is_not_prepared_is_refused(changelog: str, tag: str, why: str) -> None:
    """The notes of a tag are refused if the tag names another version than the package, or the
    changelog does not have a dated section.
    """
    done = notes(changelog, tag)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(why)


def test_the_page_of_performance_has_the_rows_of_the_benchmark() -> None:
    """The page of performance has one dated run with exactly the promises of the benchmark."""
    (run,) = blocks("docs/performance.md", language="text")
    head, _, rows = run.partition("±: ")
    assert re.match(r"20\d\d-\d\d-\d\d\nLinux \S+, \d+ CPUs \(.+\), load .*\nPython 3\.", head)
    promises = [line[2:68].strip() for line in rows.splitlines()[1:]]
    assert promises == [row.promise for row in PROMISES]
