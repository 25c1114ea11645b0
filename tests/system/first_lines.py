"""The first lines of `status` on broken nodes, in one golden file.

`UPDATE_FIRST_LINES=1` writes those of the tests that run anew; the diff is for the reviewer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_GOLDEN: Final = Path(__file__).with_suffix(".txt")


def first_lines() -> dict[str, str]:
    """Return the first line of each node, by its trouble."""
    text = _GOLDEN.read_text(encoding="utf-8")
    troubles_and_lines = [block.split("\n    ") for block in text.split("\n\n")]
    return {trouble: line.rstrip() for trouble, line in troubles_and_lines}


def assert_first_line(trouble: str, printed: str) -> None:
    """Assert that this is the first line of a node with this trouble."""
    lines = first_lines()
    if "UPDATE_FIRST_LINES" in os.environ:
        lines[trouble] = printed
        blocks = [f"{name}\n    {line}" for name, line in sorted(lines.items())]
        _GOLDEN.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    assert printed == lines[trouble]
