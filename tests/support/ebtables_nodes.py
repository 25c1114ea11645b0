"""Rules of ebtables in a namespace, loaded and shown by the tool itself; stand-ins for tools."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.tool_versions import version_of

#: Debian 11's ebtables-save ends at rules that only nft can show, or shows them differently.
LACKS_CARE = version_of("ebtables-nft") < (1, 8, 8)


def run(name: str, *argv: str, stdin: str = "") -> str:
    """Run a program in a namespace."""
    done = subprocess.run(
        ["ip", "netns", "exec", name, *argv],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(name: str, lines: Sequence[str], *, chains: Sequence[str] = ()) -> None:
    """Append rules with a tool that the adapter does not use for this."""
    run(
        name,
        "ebtables-nft-restore",
        "--noflush",
        stdin="\n".join(["*nat", *chains, *lines, "COMMIT", ""]),
    )


def saved(name: str) -> list[str]:
    """Return the output of ebtables-save without its dated comments."""
    return [line for line in run(name, "ebtables-nft-save").split("\n") if not line.startswith("#")]


LEGACY_STAND_IN = """#!/bin/sh
[ "$1" = --version ] && echo "ebtables v2.0.11 (legacy) (December 2011)" && exit
[ "$1" = --concurrent ] && shift
exec /usr/sbin/ebtables-nft "$@"
"""


def write_tool(folder: Path, name: str, script: str) -> None:
    """Put a program into a folder."""
    tool = folder / name
    tool.write_text(script)
    tool.chmod(0o755)
