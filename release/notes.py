"""The notes of a release: of CHANGELOG.md on stdin, the section of the version, on stdout.

    python release/notes.py vX.Y.Z <CHANGELOG.md

A tag is refused unless the package has its version, and the section a date.
"""

import re
import sys

from hostrouting import __version__


def notes(changelog: str, tag: str) -> str:
    """Return the section for a tag; raise ValueError if it is missing."""
    if tag != f"v{__version__}":
        step = "set __version__ in hostrouting/__init__.py, and tag again"
        raise ValueError(f"the tag {tag} is not v{__version__}: {step}")
    head = rf"^## {re.escape(__version__)} - \d{{4}}-\d\d-\d\d\n"
    section = re.search(rf"{head}(.*?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL)
    if section is None:
        step = "give that of unreleased changes this title"
        raise ValueError(f"CHANGELOG.md lacks a section '## {__version__} - DATE': {step}")
    return section[1].strip() + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(notes(sys.stdin.read(), sys.argv[1]))
    except ValueError as error:
        sys.exit(str(error))
