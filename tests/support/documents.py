"""The code in the documents."""

import re
from pathlib import Path

#: The folder of the project.
ROOT = Path(__file__).parents[2]


#: The place of a document on the web, for pages that a package index shows, too.
WEB = "https://github.com/hostrouting/hostrouting/blob/main/"


def links(document: str) -> list[str]:
    """Return the paths in the repository that a document links to, from its own folder."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        *re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text),
        *re.findall(rf"^\[[^]]+\]: {re.escape(WEB)}(\S+)$", text, flags=re.MULTILINE),
    ]


def blocks(document: str, *, language: str = "python") -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
