"""The code in the documents."""

import re
from pathlib import Path

#: The folder of the project.
ROOT = Path(__file__).parents[2]


def blocks(document: str, *, language: str = "python") -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
