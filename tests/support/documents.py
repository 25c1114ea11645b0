"""The code in the documents."""

import re
from pathlib import Path

#: The folder of the project.
ROOT = Path(__file__).parents[2]


def links(document: str) -> list[str]:
    """Return the paths in the repository that a document links to, from its own folder."""
    return paths_in((ROOT / document).read_text(encoding="utf-8"))


def paths_in(text: str) -> list[str]:
    """Return the relative paths that a Markdown text links to, without anchors."""
    return [
        *re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text),
        *re.findall(r"^\[[^]]+\]: ([^\s#:]+)(?:#\S*)?$", text, flags=re.MULTILINE),
    ]


def blocks(document: str, *, language: str = "python") -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
