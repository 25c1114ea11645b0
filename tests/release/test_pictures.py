"""The pictures of the pages have one source: the demo's node, and the layers of the imports."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

from support.documents import ROOT

_DRAW = """
import json, pictures
print(json.dumps({name: draw() for name, draw in pictures.PICTURES.items()}))
"""


def test_each_picture_is_up_to_date() -> None:
    """If it fails: make reference. Each is an SVG whose text ends within it."""
    done = subprocess.run(
        [sys.executable, "-c", _DRAW],
        cwd=ROOT / "release",
        capture_output=True,
        text=True,
        check=True,
    )
    for name, drawn in json.loads(done.stdout).items():
        assert (ROOT / f"docs/{name}.svg").read_text(encoding="utf-8") == drawn
        picture = ET.fromstring(drawn)  # noqa: S314 - our own
        width = int(picture.attrib["viewBox"].split()[2])
        # A phone of 360 px leaves 328 to it.
        assert 328 / width * 13 >= 9
        for text in picture.iter("{http://www.w3.org/2000/svg}text"):
            # A character of 13 px is 7.8 px wide.
            assert float(text.attrib["x"]) + 7.8 * len(f"{text.text}") <= width
