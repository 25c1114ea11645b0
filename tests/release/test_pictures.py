"""The pictures of the pages have one source: the demo's node, and the imports of the rooms."""

import json
import subprocess
import sys
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support.documents import ROOT

_DRAW = """
import json, pictures
print(json.dumps({
    "drawn": {name: draw() for name, draw in pictures.PICTURES.items()},
    "rows": [[*row] for row in pictures._ROWS],
    "uses": {room: sorted(used) for room, used in pictures.uses().items()},
}))
"""
_SVG = "{http://www.w3.org/2000/svg}"


@cache
def made() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _DRAW],
        cwd=ROOT / "release",
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["problem", "rooms"])
def test_a_picture_is_up_to_date(name: str) -> None:
    """If it fails: nox -s reference."""
    assert (ROOT / f"docs/{name}.svg").read_text(encoding="utf-8") == made()["drawn"][name]


@pytest.mark.parametrize(("name", "screen"), [("problem", 328), ("rooms", 800)])
def test_the_text_of_a_picture_is_legible_and_inside(name: str, screen: int) -> None:
    """A phone of 360 px leaves 328 to the problem; the rooms need 800. No text leaves its box."""
    picture = ET.fromstring(made()["drawn"][name])  # noqa: S314 - our own
    width = int(picture.attrib["viewBox"].split()[2])
    assert screen / width * 13 >= 9
    boxes = [
        tuple(float(box.attrib.get(key, 0)) for key in ("x", "y", "width", "height"))
        for box in picture.iter(f"{_SVG}rect")
        if box.attrib["class"] in {"box", "paper"}
    ]
    for text in picture.iter(f"{_SVG}text"):
        left = float(text.attrib["x"])
        bottom = float(text.attrib["y"])
        # A character of 13 px is 7.8 px wide; 10 px are above the line, and 4 below it.
        right = left + 7.8 * len(f"{text.text}")
        around = [
            (x + width, y + height)
            for x, y, width, height in boxes
            if x <= left <= x + width and y <= bottom - 10 <= y + height
        ]
        assert around
        assert all(right <= end and bottom + 4 <= foot for end, foot in around)


def test_the_picture_of_the_rooms_is_true() -> None:
    """It has every room. Each uses rooms of lower rows, and in its row those that arrows lead to."""
    rows: list[list[str]] = made()["rows"]
    uses: dict[str, list[str]] = made()["uses"]
    found = {
        path.stem for path in (ROOT / "hostrouting").iterdir() if (path / "__init__.py").exists()
    }
    assert {room for row in rows for room in row} == found | {"exceptions", "phases"}
    for number, row in enumerate(rows):
        below = {room for lower in rows[number + 1 :] for room in lower}
        for place, room in enumerate(row):
            reached = set()
            for others in reversed(row[:place]), row[place + 1 :]:
                last = room
                for other in others:
                    if other not in uses[last]:
                        break
                    reached.add(other)
                    last = other
            assert set(uses[room]) <= below | reached
