"""The pictures of the pages and their sources: the demo's node, and the imports of the packages."""

import json
import sys
from functools import cache
from typing import Any

import pytest
from support.documents import ROOT
from support.processes import ended

_DRAW = """
import json, pictures
print(json.dumps({
    "drawn": {name: draw() for name, draw in pictures.PICTURES.items()},
    "rows": [[*row] for row in pictures._ROWS],
}))
"""


@cache
def made() -> Any:
    done = ended(sys.executable, "-c", _DRAW, check=True, cwd=ROOT / "release")
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["problem", "packages"])
def test_a_picture_is_up_to_date(name: str) -> None:
    """A picture of the pages is as its source makes it; if it differs, run nox -s reference."""
    assert (ROOT / f"docs/{name}.svg").read_text(encoding="utf-8") == made()["drawn"][name]


def test_the_picture_of_the_packages_has_each() -> None:
    """The picture of the packages shows each; `nox -s lint` enforces their order."""
    found = {
        path.stem for path in (ROOT / "hostrouting").iterdir() if (path / "__init__.py").exists()
    }
    assert {package for row in made()["rows"] for package in row} == found | {"phases"}
