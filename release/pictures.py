"""docs/problem.svg and docs/packages.svg, from the demo's node and the imports of the packages.

python release/pictures.py        writes both
"""

from __future__ import annotations

import ast
import re
import sys
from html import escape
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from hostrouting import Configure, explain_routing
from phases import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.testing import FakeHost

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
#: Narrow, so that a phone shows the text at nearly its own size.
_WIDTH: Final = 400
#: A character of the font.
_CHARACTER: Final = 7.8
#: The packages from the command down to what all use, each with the columns that it takes, of four.
_ROWS: Final = (
    {"cli": 1, "fleet": 1, "node": 2},
    {"watch": 2, "apply": 2},
    {"static_routes": 2, "route_overlap": 1, "azure": 1},
    {"boot": 2, "testing": 2},
    {"config": 1, "managers": 1, "host": 1, "fib": 1},
    {"net": 2, "base": 2},
    {"phases": 4},
)
_LEFT: Final = 12
_COLUMN: Final = 176
_GAP: Final = 24
_STYLE: Final = """\
<style>
text { font: 13px ui-monospace, monospace; fill: #1f2328 }
.title { font-weight: bold }
.wrong { fill: #cf222e } .right { fill: #1a7f37 } .fabric { fill: #6e7781 }
.paper { fill: #ffffff } .box { fill: #f6f8fa; stroke: #8c959f }
.arrow { fill: none; stroke: #57606a; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } .box { fill: #161b22 } .arrow { stroke: #9198a1 }
text { fill: #e6edf3 } text.wrong { fill: #ff7b72 } text.right { fill: #3fb950 }
}
text.inside { fill: #ffffff }
</style>"""
#: The cluster's addresses, and those around them.
_RANGES: Final = ("172.16.0.0/21", "172.16.8.0/22", "172.16.12.0/22")


def _svg(title: str, height: int, lines: Iterable[str], *, width: int = _WIDTH) -> str:
    # With a size of its own it is not stretched to the width of a page.
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    # A page may be dark where the system is not: the text needs a ground of its own.
    paper = f'<rect width="{width}" height="{height}" rx="6" class="paper"/>'
    return "\n".join([head, f"<title>{title}</title>", _STYLE, paper, *lines, "</svg>\n"])


def _text(left: float, top: float, text: str, kind: str = "") -> str:
    return f'<text x="{left:g}" y="{top:g}" class="{kind}">{escape(text, quote=False)}</text>'


def problem() -> str:
    """Return the picture of the demo's node without the route of `check`, and with it."""
    from examples import demo

    route = {"destination": demo.CLUSTER, "gateway": "10.224.0.1", "dev": "eth0"}
    routes = {"staticRoutes": {"enabled": True, "routes": [route]}}
    lines = [_text(8, 20, f"The cluster's services live in {demo.CLUSTER}", "title")]
    stories: tuple[tuple[str, dict[str, Any]], ...] = (
        ("172.16.0.0/16 of the fabric is connected", {}),
        ("the same after `hostrouting apply`", routes),
    )
    for top, (story, sections) in zip((48, 138), stories, strict=True):
        host = demo.a_node_in_memory()
        if sections:
            run(Configure(demo.as_config(**sections), host=host)).raise_for_failure()
        demo.connect_in_memory(host.routes)
        lines += [_text(8, top, story), *_bar(top + 10, host)]
    return _svg("Which device carries the cluster's addresses", 212, lines)


def _bar(top: int, host: FakeHost) -> Iterator[str]:
    """Yield the devices of the ranges, and a line on the cluster's."""
    left, width = 8, _WIDTH - 16
    for cidr in _RANGES:
        [explanation] = explain_routing(host, [cidr])
        [by] = {part.by for part in explanation.parts}
        share = width // 2 if cidr == _RANGES[0] else width // 4
        kind = "fabric"
        if cidr == _RANGES[1]:
            kind = "right" if by == "eth0" else "wrong"
            text = "services leave through eth0" if by == "eth0" else "lost in the fabric"
            yield _text(left, top + 46, text, kind)
        yield f'<rect x="{left}" y="{top}" width="{share - 2}" height="28" class="{kind}"/>'
        # The demo's hardware is Ethernet, so that any kernel has it; that of a node is InfiniBand.
        yield _text(left + 6, top + 19, by.replace("fab", "ib"), "inside")
        left += share


def packages() -> str:
    """Return the picture of the packages: each uses those below it, and some their neighbour."""
    used = uses()
    title = "A package imports those below it, and its neighbour where there is an arrow."
    lines = [_text(_LEFT, 24, title, "title")]
    top = 40
    for row in _ROWS:
        left, before = _LEFT, ""
        height = 32 + 18 * max(len(_words(package, columns)) for package, columns in row.items())
        for package, columns in row.items():
            lines += _box(left, top, height, package, columns)
            if before in used[package]:
                lines.append(_arrow(left, left - _GAP, top + height // 2))
            elif package in used.get(before, ()):
                lines.append(_arrow(left - _GAP, left, top + height // 2))
            left, before = left + _width(columns) + _GAP, package
        top += height + 16
    return _svg("The packages of hostrouting", top, lines, width=_LEFT + _width(4) + _LEFT)


def _width(columns: int) -> int:
    return columns * _COLUMN + (columns - 1) * _GAP


def _box(left: int, top: int, height: int, package: str, columns: int) -> Iterator[str]:
    """Yield a package with its name and the first words of its docstring."""
    is_package = _sources(package)[0].name == "__init__.py"
    size = f'width="{_width(columns)}" height="{height}"'
    yield f'<rect x="{left}" y="{top}" {size} rx="4" class="box"/>'
    yield _text(left + 8, top + 20, f"{package}/" if is_package else f"{package}.py", "title")
    for line, text in enumerate(_words(package, columns)):
        yield _text(left + 8, top + 40 + 18 * line, text)


def _words(package: str, columns: int) -> list[str]:
    """Return the first words of the docstring of a package, in lines."""
    module = ast.parse(_sources(package)[0].read_text(encoding="utf-8"))
    words = re.split("[.;:,]", f"{ast.get_docstring(module)}")[0].replace("`", "")
    return wrap(words, int((_width(columns) - 16) / _CHARACTER))


def _arrow(tail: int, head: int, top: int) -> str:
    back = 6 if head < tail else -6
    path = f"M{tail} {top}H{head}M{head + back} {top - 5}L{head} {top}L{head + back} {top + 5}"
    return f'<path d="{path}" class="arrow"/>'


def uses() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    found: dict[str, set[str]] = {}
    for package in chain.from_iterable(_ROWS):
        trees = (ast.parse(path.read_text(encoding="utf-8")) for path in _sources(package))
        imports = (each for tree in trees for each in _run_by(tree))
        names = (each.module or "" for each in imports if isinstance(each, ast.ImportFrom))
        imported = {name.removeprefix("hostrouting.").partition(".")[0] for name in names}
        found[package] = {other for row in _ROWS for other in row if other in imported - {package}}
    return found


def _run_by(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a file, without the imports for type checkers alone."""
    for part in ast.iter_child_nodes(tree):
        if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING":
            continue
        yield part
        yield from _run_by(part)


def _sources(package: str) -> list[Path]:
    """Return the files of a package, the one with its docstring first."""
    path = ROOT / package if package == "phases" else ROOT / "hostrouting" / package
    return (
        [path / "__init__.py", *path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")]
    )


#: By the name of the file.
PICTURES: Final = {"problem": problem, "packages": packages}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (ROOT / f"docs/{name}.svg").write_text(draw(), encoding="utf-8")
