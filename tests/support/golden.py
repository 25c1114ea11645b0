"""Golden files: words that stand in the code and here.

`UPDATE_GOLDEN=1` writes those of the tests that run anew; the diff is for the reviewer.
"""

import os
from pathlib import Path
from typing import Final

#: The first lines of `status` on broken nodes.
FIRST_LINES: Final = Path(__file__).parents[1] / "system/first_lines.txt"


def assert_golden(path: Path, text: str) -> None:
    """Assert that a golden file has this text."""
    if "UPDATE_GOLDEN" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"if {path.name} is to have this, run the test with UPDATE_GOLDEN=1"
    )


def golden_lines(path: Path) -> dict[str, str]:
    """Return the lines of a golden file by what they answer, which stands above each."""
    blocks = path.read_text(encoding="utf-8").removesuffix("\n").split("\n\n")
    return dict(block.split("\n    ") for block in blocks)


def assert_golden_lines(path: Path, lines: dict[str, str]) -> None:
    """Assert that a golden file has these lines, in this order."""
    assert_golden(path, "\n\n".join(f"{asked}\n    {line}" for asked, line in lines.items()) + "\n")


def assert_first_line(trouble: str, printed: str) -> None:
    """Assert that this is the first line of a node with this trouble."""
    assert_golden_lines(FIRST_LINES, {**golden_lines(FIRST_LINES), trouble: printed})
