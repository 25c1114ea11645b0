"""A rendered file is its asset, but for the places that are filled in: tests compare these only."""

import re
from difflib import unified_diff
from pathlib import Path

import hostrouting
from hostrouting.boot.layout import read_asset

_PACKAGE = Path(str(hostrouting.__file__)).parent
_MARK = re.compile(r"^ *# @(if [a-z0-9 ]+|end)@\n", re.MULTILINE)


def asset(path: str, **included: str) -> str:
    """Return an asset by `package/name`; at each place `included` it has another asset."""
    package, _, name = path.rpartition("/")
    text = read_asset(f"{_PACKAGE}/{package}/__init__.py", name).decode()
    for place, other in included.items():
        mark = f"# @{place}@\n"
        assert text.count(mark) == 1
        text = text.replace(mark, asset(other))
    return text


def without(text: str, name: str) -> str:
    """Return an asset without the sections that only configs of this name need."""
    return re.sub(rf"^ *# @if {name}@\n.*?^ *# @end@\n", "", text, flags=re.MULTILINE | re.DOTALL)


def changes(before: str, after: bytes) -> list[str]:
    """Return the lines that go (`-`) and come (`+`) from an asset to a file; the marks of sections
    go unsaid.
    """
    lines = unified_diff(
        _MARK.sub("", before).splitlines(), after.decode().splitlines(), n=0, lineterm=""
    )
    return [line for line in list(lines)[2:] if not line.startswith("@@")]
