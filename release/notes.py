"""The notes of a release: of CHANGELOG.md on stdin, the section of the version, on stdout.

python release/notes.py vX.Y.Z <CHANGELOG.md   a tag: refused unless the package has that version and the section a date
"""

import re
import sys

from hostrouting import __version__


def notes(changelog: str, tag: str) -> str:
    """Return the section for a tag; ValueError says why there is none."""
    if tag != f"v{__version__}":
        raise ValueError(
            f"the tag {tag} is not v{__version__}: set __version__ in hostrouting/__init__.py, and tag again"
        )
    head = rf"^## {re.escape(__version__)} - \d{{4}}-\d\d-\d\d\n"
    section = re.search(rf"{head}(.*?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(
            f"CHANGELOG.md has no section '## {__version__} - DATE': give that of unreleased changes this title"
        )
    return section[1].strip() + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(notes(sys.stdin.read(), sys.argv[1]))
    except ValueError as error:
        sys.exit(str(error))
