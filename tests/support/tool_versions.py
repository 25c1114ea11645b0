"""The installed release of a tool: a few tests allow for older ones."""

import re
from functools import cache

from support.processes import ended


@cache
def version_of(tool: str) -> tuple[int, ...]:
    """The release of the tool that is found on PATH, such as (1, 8, 9); () where there is none.

    >>> version_of("no-such-tool")
    ()
    """
    try:
        printed = ended(tool, "--version", check=True).stdout
    except FileNotFoundError:
        return ()
    found = re.search(r"[0-9]+(?:\.[0-9]+)+", printed)
    return tuple(map(int, found[0].split("."))) if found else ()
