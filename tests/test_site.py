"""The site that `nox -s docs` has built: each public name has an anchor, and no link is dead."""

import re
import zlib
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.documents import ROOT

pytestmark = pytest.mark.site
SITE = ROOT / "build/site"
#: The public modules, as tests/public_api.txt lists them.
MODULES = re.findall(
    r"^module (\S+)$",
    (ROOT / "tests/public_api.txt").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)


class Page(HTMLParser):
    """The anchors of a page, and the addresses that it names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(f"{value}")
            elif name in {"href", "src"}:
                self.addresses.append(f"{value}")


@cache
def pages() -> dict[Path, Page]:
    """Return each page by its file."""
    files = SITE.rglob("*.html")
    return {file: Page(file.read_text(encoding="utf-8")) for file in files}


def anchors() -> dict[str, str]:
    """Return the address of each Python name in the inventory that the build has written."""
    _, _, _, _, packed = (SITE / "objects.inv").read_bytes().split(b"\n", 4)
    lines = (line.split(" ") for line in zlib.decompress(packed).decode().splitlines())
    return {
        name: address.replace("$", name)
        for name, kind, _, address, *_ in lines
        if kind.startswith("py:")
    }


def test_the_pages_are_there() -> None:
    """The site has its first page and more than forty in all."""
    assert len(pages()) > 40
    assert SITE / "index.html" in pages()


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_an_anchor(module: str) -> None:
    """Each public name is in the inventory of the site, and is an anchor of its page."""
    known = anchors()
    names = [module, *(f"{module}.{name}" for name in import_module(module).__all__)]
    assert [name for name in names if name not in known] == []
    lost = []
    for name in names:
        page, _, anchor = known[name].partition("#")
        if anchor not in pages()[SITE / page].anchors:
            lost.append(name)
    assert lost == []


def members(module: str) -> dict[str, list[str]]:
    """Return the methods and fields that tests/public_api.txt lists for each class of a module."""
    text = (ROOT / "tests/public_api.txt").read_text(encoding="utf-8")
    part = text.partition(f"\nmodule {module}\n")[2].partition("\nmodule ")[0]
    classes = re.findall(r"^    class (\w+).*\n((?: {8}.*\n)*)", part, flags=re.MULTILINE)
    member = re.compile(r"^ {8}(?:(?:async )?def |self\.)?([a-z]\w*)(?=[(:]|$| =)", re.MULTILINE)
    return {name: member.findall(lines) for name, lines in classes}


@pytest.mark.parametrize("module", MODULES)
def test_each_public_member_has_an_anchor(module: str) -> None:
    """Each public member of a class is in the inventory, with its class or with a base."""
    known = anchors()
    lost = []
    for name, found in members(module).items():
        bases = {base.__name__ for base in getattr(import_module(module), name).__mro__}
        for member in found:
            owners = {each.split(".")[-2] for each in known if each.endswith(f".{member}")}
            if not owners & bases and not hasattr(Exception, member):
                lost.append(f"{name}.{member}")
    assert lost == []


def test_the_members_of_a_class_are_read() -> None:
    """`members` reads each kind of member of a class from tests/public_api.txt."""
    assert {"errno", "retryable"} <= set(members("hostrouting.exceptions")["BackendError"])
    assert {"do", "plan", "name"} <= set(members("hostrouting")["CheckRouteOverlap"])
    assert {"routes", "live"} <= set(members("hostrouting")["Host"])


def test_no_link_inside_the_site_is_dead() -> None:
    """Each relative address of the site leads to a file, and each anchor is in its page."""
    dead = []
    for file, page in pages().items():
        for address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            is_there = target.is_file() and (
                not parts.fragment
                or target.suffix != ".html"
                or unquote(parts.fragment) in pages()[target].anchors
            )
            if not is_there:
                dead.append(f"{file.relative_to(SITE)}: {address}")
    assert dead == []


def test_links_to_the_repository_lead_to_files() -> None:
    """Each address of the site that leads into the repository is that of a file there."""
    home = "https://github.com/hostrouting/hostrouting/blob/main/"
    named = {
        urlsplit(address.removeprefix(home)).path
        for page in pages().values()
        for address in page.addresses
        if address.startswith(home)
    }
    assert ".github/workflows/release.yml" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_each_name_of_another_project_is_used() -> None:
    """Each name in docs/external.txt is linked from the site."""
    used = {address for page in pages().values() for address in page.addresses}
    text = (ROOT / "docs/external.txt").read_text(encoding="utf-8")
    unused = []
    for part in text.split("\n\n"):
        address, *lines = [line for line in part.splitlines() if not line.startswith("#")]
        for line in lines:
            _, name, page = line.split(" ")
            if address + page.replace("$", name) not in used:
                unused.append(name)
    assert unused == []


def test_a_field_of_the_config_has_its_sentence() -> None:
    """A field of the config, which has no docstring, is shown with the sentence of
    hostrouting.json(5).
    """
    page = (SITE / "api/hostrouting.html").read_text(encoding="utf-8")
    field = page.partition('id="hostrouting.ProbeSNATConfig.detect"')[2].partition("</dd>")[0]
    assert "<p>How to detect IPv6: imds queries the cloud, address reads the device" in field


def test_a_page_begins_with_what_a_user_imports() -> None:
    """A page of a module begins with what a user imports, and lists the files of the package last,
    as plain text.
    """
    page = (SITE / "api/hostrouting.html").read_text(encoding="utf-8")
    names, _, files = page.partition('id="the-module"')
    assert 'id="hostrouting.Configure"' in names
    assert "route_overlap/" not in names.partition('id="tasks"')[0]
    assert 'class="highlight-text' in files
    assert 'class="highlight-python' not in files


def test_plain_output_has_no_colours() -> None:
    """A block of a page without a language is shown as text."""
    page = (SITE / "fleet.html").read_text(encoding="utf-8")
    block = page.partition("of 4,000 nodes")[0].rpartition("<div")[0].rpartition("<div")[2]
    assert "highlight-text" in block


def test_the_pictures_are_shown() -> None:
    """Each picture is on its page of the site."""
    shown = [
        ("index.html", "problem.svg"),
        ("how-it-works.html", "apply.svg"),
        ("how-it-works.html", "boot.svg"),
        ("design.html", "packages.svg"),
    ]
    for page, picture in shown:
        assert f"_images/{picture}" in pages()[SITE / page].addresses
