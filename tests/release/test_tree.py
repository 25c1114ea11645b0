"""The documents of the packages, whose links lead to each other as in the project."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import ROOT


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as /usr/share/doc/hostrouting."""
    folder = tmp_path_factory.mktemp("documents")
    script = "import sys, pathlib, tree; tree.pages(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", script, folder], cwd=ROOT / "release", check=True)
    return folder


def test_each_link_of_a_document_leads_to_a_file_of_the_package(documents: Path) -> None:
    """Each link of a packaged document to another document of the project leads to a file of the
    package.
    """
    pages = sorted(documents.rglob("*.md"))
    lost = [
        f"{page.relative_to(documents)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        # The page on releases names workflows, which only a clone has.
        if ".github/" not in link
        and (ROOT / page.relative_to(documents)).parent.joinpath(link).exists()
        and not (page.parent / link).exists()
    ]
    assert len(pages) > 10
    assert lost == []


def test_each_file_of_docs_and_examples_is_in_the_package(documents: Path) -> None:
    """Each file of docs and examples is in the package, except those of the site alone. The build
    finds files by their suffixes, to leave an editor's copies out; one of a new kind would be
    missing.
    """
    junk = {".orig", ".pyc", ".rej", ".swp"}
    files = {
        path for name in ("docs", "examples") for path in (ROOT / name).rglob("*") if path.is_file()
    }
    names = {str(path.relative_to(ROOT)) for path in files if path.suffix not in junk}
    left_out = names - {str(path.relative_to(documents)) for path in documents.rglob("*")}
    assert {name for name in left_out if not name.startswith("docs/api/")} == {
        "docs/changelog.md",
        "docs/conf.py",
        "docs/contributing.md",
        "docs/external.txt",
        "docs/index.md",
        "docs/security.md",
        "docs/static/site.css",
    }


def test_a_program_of_the_examples_stays_one(documents: Path) -> None:
    """The check of the node-problem-detector in the package is executable."""
    assert (documents / "examples/fleet/npd/check_hostrouting.sh").stat().st_mode & 0o100
