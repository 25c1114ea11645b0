"""The documents: their code and the examples run, and the tests, files and packages that they name
exist.
"""

import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from importlinter.api import read_configuration
from support.documents import ROOT, blocks, links, paths_in
from support.images import make_image
from support.needs import needs
from support.printed import leaves
from support.processes import ended


def run(*argv: str) -> str:
    return ended(sys.executable, *argv, check=True, cwd=ROOT).stdout


def without_times(tree: str) -> str:
    """Return a printed report without the seconds of its steps."""
    return re.sub(r"\d+\.\d{3} s", "0.000 s", tree)


def test_the_readmes_program_prints_the_report_that_it_shows() -> None:
    """The program of the README prints the report that the README shows, and needs neither pytest
    nor Hypothesis.
    """
    [program] = blocks("README.md")
    [shown] = blocks("README.md", language="text")
    output = run("-c", f"import sys; sys.modules.update(pytest=None, hypothesis=None)\n{program}")
    assert without_times(output) == without_times(shown)


def test_the_readmes_transcript_is_part_of_the_page() -> None:
    """Each line of the README's transcript of `make e2e` is in docs/e2e.md, in the same order; `...`
    stands for other lines.
    """
    [shown] = blocks("README.md", language="console")
    page = iter((ROOT / "docs/e2e.md").read_text(encoding="utf-8").splitlines())
    assert [line for line in shown.splitlines() if line != "..." and line not in page] == []


STORY = [
    "eth0  172.16.0.0 - 172.16.255.255        default via 10.224.0.1 dev eth0 proto dhcp",
    "1 of 1 expected CIDRs would not leave entirely through eth0:",
    "will leave through the fabric once 172.16.0.0/16 is connected (/var/lib/hyperv/.kvp_pool_0, written 2",
    "refused: configure/check-route-overlap",
    "fab0  172.16.1.5 - 172.16.7.255          172.16.0.0/16 dev fab0 proto kernel scope link src 172.16.1.4",
    "eth0  172.16.8.0 - 172.16.11.255         172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142",
    leaves("172.16.8.0/22", "eth0"),
    "172.17.1.5   172.17.0.0/16 dev fab1 proto kernel scope link src 172.17.1.4",
]


@needs("kernel")
def test_the_demo_runs_on_the_kernel() -> None:
    """The demo shows its steps in a new namespace: the announcement, the refusal, the fix, the
    late fabric, and its peers unharmed.
    """
    output = run("examples/demo.py")
    assert "in memory" not in output
    assert [line for line in STORY if line not in output] == []


def test_the_demo_runs_in_memory() -> None:
    """The demo shows the same steps where a namespace cannot be created, and prints that."""
    output = run(
        "-c",
        "import sys, os; os.environ['PATH'] = ''; sys.path.insert(0, 'examples'); import demo; demo.main()",
    )
    assert (
        "(a network namespace cannot be created here: this runs on a model of the kernel)" in output
    )
    assert [line for line in STORY if line not in output] == []


def test_the_bootstrap_agent_runs_configure_among_its_own_tasks() -> None:
    """The example of a bootstrap agent runs our tasks among its own, and every task is in the
    report.
    """
    output = run("examples/bootstrap_agent.py").split("\n")
    assert output == [
        "ok        load-kernel-modules",
        "ok        download-kubelet",
        "ok        prepare",
        "ok        plan-changes",
        "ok        install-boot-files",
        "ok        configure-static-routes",
        "ok        check-route-overlap",
        "skipped   clean-stale-cni",
        "skipped   configure-probe-snat",
        "skipped   configure-watch",
        "ok        check-node",
        "ok        configure",
        "ok        start-machine",
        "ok        bootstrap",
        "",
    ]


def test_the_asyncio_agent_follows_and_cancels_its_pipeline() -> None:
    """The example of an asyncio agent sees each step, cancels the run, and the run reverses its
    changes.
    """
    output = run("examples/asyncio_agent.py").split("\n")
    assert output[:2] == ["join: running", "join/configure-static-routes: running"]
    assert (
        "join/configure-static-routes: + 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142" in output
    )
    assert output[-9:] == [
        "join/wait-for-peers: running",
        "join/wait-for-peers: cancelled",
        "join: cancelled",
        "join/configure-static-routes: undone",
        "undone    configure-static-routes",
        "cancelled wait-for-peers",
        "cancelled join",
        "cancelled: the agent stops",
        "",
    ]


@needs("systemctl")
def test_an_image_is_prepared_once(tmp_path: Path) -> None:
    """The example of an image, which has a Python, installs check and gates, and has nothing left to
    do.
    """
    output = run("examples/image.py", str(make_image(tmp_path)))
    assert "/etc/systemd/system/check-route-overlap.service" in output
    assert output.endswith("left to do: nothing\n")
    assert (tmp_path / "etc/systemd/system/kubelet.service.d/10-hostrouting.conf").exists()


@pytest.mark.slow
def test_the_custom_backend_passes_the_contract() -> None:
    """The example of a backend of one's own passes the contract suite."""
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/custom_backend.py")
    assert re.search(r"^\d+ passed", output, flags=re.MULTILINE)


DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
#: Where a test may lie that a document names: in the tests, or in a public contract suite.
TESTS = "tests", "hostrouting"


@cache
def functions(folder: str, path: str) -> frozenset[str]:
    file = ROOT / folder / path
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return frozenset(re.findall(r"^ *def (\w+)\(", text, flags=re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_that_a_document_names_exist(document: str) -> None:
    """A test that a document names as `folder/test_file.py::test_name` exists below tests/ or
    hostrouting/.
    """
    text = (ROOT / document).read_text(encoding="utf-8")
    lost = []
    for path, test in re.findall(r"`([\w/]+\.py)::(\w+)`", text):
        if not any(test in functions(folder, path) for folder in TESTS):
            lost.append(f"{path}::{test}")
    assert lost == []


@pytest.mark.parametrize("document", ["docs/kernel-facts.md", "docs/design.md"])
def test_every_row_of_a_table_of_facts_names_a_test(document: str) -> None:
    """Each row of a table of facts names a test."""
    text = (ROOT / document).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \|$", text, flags=re.MULTILINE)
    facts = [row for row in rows if not row.startswith(("Fact |", "Invariant |"))]
    assert facts != []
    assert [fact for fact in facts if "::test_" not in fact.rpartition(" | ")[2]] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    """A link to a document names a file of this repository."""
    folder = (ROOT / document).parent
    assert [link for link in links(document) if not (folder / link).exists()] == []


def test_the_readmes_links_are_relative() -> None:
    """The README links to files of the repository by relative paths."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "https://github.com/hostrouting/hostrouting/" not in text


def test_a_package_index_gets_absolute_links() -> None:
    """The README of the package has absolute links: to pages of the repository, and to the files of
    pictures.
    """
    readme = SdistBuilder(str(ROOT)).metadata.core.readme
    assert paths_in(readme) == []
    home = "https://github.com/hostrouting/hostrouting/blob/main/"
    pages = re.findall(re.escape(home) + r"([^\s)#]+)", readme)
    assert [page for page in pages if not (ROOT / page).exists()] == []
    assert {"docs/agents.md", "docs/operators.md", "CHANGELOG.md"} <= set(pages)
    raw = "https://raw.githubusercontent.com/hostrouting/hostrouting/main/"
    assert re.findall(re.escape(raw) + r"(\S+)", readme) == ["docs/problem.svg"]


def test_the_oldest_versions_are_those_of_the_package() -> None:
    """The table of supported versions has the bounds of pyproject.toml, by which pip chooses."""
    text = (ROOT / "docs/supported-versions.md").read_text(encoding="utf-8")
    oldest = dict(re.findall(r"^\| (\w+) \| ([0-9.]+) \|", text, flags=re.MULTILINE))
    required = "\n".join(requires("hostrouting") or [])
    bounds = dict(re.findall(r"^(\w+)>=([0-9.]+)$", required, flags=re.MULTILINE))
    assert bounds != {}
    assert {name: oldest[name] for name in bounds} == bounds
    assert f">={oldest['Python']}" == metadata("hostrouting")["Requires-Python"]


def layers() -> list[set[str]]:
    """Return the enforced layers, the highest first, each as the names of its packages."""
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    [layered] = [each for each in contracts if each["name"] == "imports go one way"]
    return [names_in(layer) for layer in layered["layers"]]


def names_in(layer: str) -> set[str]:
    """Return the names of the packages in the text of a layer."""
    names = [name.strip(" ()") for name in re.split(r"[|:]", layer)]
    return {name.removeprefix("hostrouting.") for name in names}


def packages() -> set[str]:
    """Return the name of each module and package directly below hostrouting/, and `phases`."""
    inside = (ROOT / "hostrouting").iterdir()
    names = {
        path.stem for path in inside if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    return names - {"__init__"} | {"phases"}


def names_in_row(row: str) -> set[str]:
    """Return the names of the packages in a row of the table."""
    names = re.findall(r"`([^`]+)`", row)
    return {name.removesuffix(".py").rstrip("/") for name in names}


def existing_packages(groups: Iterable[set[str]]) -> list[set[str]]:
    """Return the groups without the names that no package has, and without empty groups."""
    found = [group & packages() for group in groups]
    return [group for group in found if group]


def test_the_table_of_packages_is_the_enforced_one() -> None:
    """CONTRIBUTING.md lists every package that exists, in the order of the layers: each may import
    the rows below it.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = text.partition("## Packages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]* \|$", text, flags=re.MULTILINE)
    listed = [names_in_row(row) for row in rows]
    assert existing_packages(listed) == existing_packages(layers())
    assert set.union(*listed) <= set.union(*layers())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_has_the_targets_that_a_document_names(document: str) -> None:
    """A target of `make` that a document names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([\w -]+):", makefile, flags=re.MULTILINE)
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`)make ([\w-]+)", text, flags=re.MULTILINE)
    assert set(named) <= set(" ".join(rules).split())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nox_has_the_sessions_that_a_document_names(document: str) -> None:
    """A session of `nox` that a document names is in noxfile.py."""
    program = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = re.findall(r"^@nox\.session.*?^def (\w+)", program, flags=re.MULTILINE | re.DOTALL)
    text = (ROOT / document).read_text(encoding="utf-8")
    named = " ".join(re.findall(r"nox -s ([\w ]+)", text))
    assert set(named.split()) <= set(sessions)
