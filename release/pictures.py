"""docs/problem.svg and docs/rooms.svg, from the demo's own node and from the layers of the imports.

python release/pictures.py        writes both
"""

from __future__ import annotations

import ast
import re
import sys
from html import escape
from pathlib import Path
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
_STYLE: Final = """\
<style>
text { font: 13px ui-monospace, monospace; fill: #1f2328 }
.title { font-weight: bold }
.wrong { fill: #cf222e } .right { fill: #1a7f37 } .fabric { fill: #6e7781 }
.box { fill: none; stroke: #8c959f }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } text.wrong { fill: #ff7b72 } text.right { fill: #3fb950 }
}
text.inside { fill: #ffffff }
</style>"""
#: The cluster's addresses, and those around them.
_RANGES: Final = ("172.16.0.0/21", "172.16.8.0/22", "172.16.12.0/22")


def _svg(title: str, height: int, lines: Iterable[str]) -> str:
    # With a size of its own it is not stretched to the width of a page.
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<title>{title}</title>", _STYLE, *lines, "</svg>\n"])


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
            text = "services leave by eth0" if by == "eth0" else "lost in the fabric"
            yield _text(left, top + 46, text, kind)
        yield f'<rect x="{left}" y="{top}" width="{share - 2}" height="28" class="{kind}"/>'
        yield _text(left + 6, top + 19, by, "inside")
        left += share


def rooms() -> str:
    """Return the picture of the rooms: each imports only those below it."""
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [layers] = re.findall(r"^layers = (\[.*?^\])", settings, re.MULTILINE | re.DOTALL)
    lines = [_text(8, 20, "Each room imports only those below it.", "title")]
    top = 32
    for layer in ast.literal_eval(layers):
        paths = [name.replace(".", "/") for name in layer.split(" | ")]
        packages = [path for path in paths if (ROOT / path / "__init__.py").exists()]
        for number, path in enumerate(packages):
            module = ast.parse((ROOT / path / "__init__.py").read_text(encoding="utf-8"))
            width = (_WIDTH - 16) // len(packages)
            left = 8 + number * width
            lines += [
                f'<rect x="{left}" y="{top}" width="{width - 4}" height="40" class="box"/>',
                _text(left + 8, top + 17, f"{path.removeprefix('hostrouting/')}/", "title"),
                _text(left + 8, top + 33, re.split("[.;:,]", f"{ast.get_docstring(module)}")[0]),
            ]
        top += 46 * bool(packages)
    return _svg("The rooms of hostrouting", top + 2, lines)


#: By the name of the file.
PICTURES: Final = {"problem": problem, "rooms": rooms}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (ROOT / f"docs/{name}.svg").write_text(draw(), encoding="utf-8")
