"""Rules of ebtables in a namespace, loaded and shown by the tool itself; stand-ins for tools."""

from collections.abc import Sequence
from pathlib import Path

from support.processes import ended
from support.tool_versions import version_of

from hostrouting.host import EbtablesRule
from hostrouting.host.packets.ebtables import EbtablesCommand
from phases import Context

#: Debian 11's ebtables-save ends at rules that only nft can show, or shows them differently.
LACKS_CARE = version_of("ebtables-nft") < (1, 8, 8)


class Table:
    """The rules in a namespace: the tool prints them, and the adapter reads and changes them."""

    def __init__(self, namespace: str) -> None:
        self._enter = ("ip", "netns", "exec", namespace)
        self._adapter = EbtablesCommand(self._enter)

    def run(self, *argv: str, stdin: str = "") -> str:
        """Run a program in the namespace."""
        done = ended(*self._enter, *argv, input=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def load(self, *lines: str) -> None:
        """Append rules, or add chains, with a tool that the adapter does not use for this."""
        text = "\n".join(["*nat", *lines, "COMMIT", ""])
        self.run("ebtables-nft-restore", "--noflush", stdin=text)

    def saved(self) -> list[str]:
        """Return the output of ebtables-save without its dated comments."""
        lines = self.run("ebtables-nft-save").split("\n")
        return [line for line in lines if not line.startswith("#")]

    def rules(self) -> tuple[EbtablesRule, ...]:
        """Return the rules that the adapter reads."""
        return self._adapter.read(Context()).rules

    def delete(self, rules: Sequence[EbtablesRule], ctx: Context | None = None) -> None:
        """Let the adapter delete rules."""
        self._adapter.delete(ctx or Context(), rules)


LEGACY_STAND_IN = """#!/bin/sh
[ "$1" = --version ] && echo "ebtables v2.0.11 (legacy) (December 2011)" && exit
[ "$*" = "-t nat -L" ] || [ "$1" = --concurrent ] || exit 1  # a change takes the lock
[ "$1" = --concurrent ] && shift
exec /usr/sbin/ebtables-nft "$@"
"""


def write_tool(folder: Path, name: str, script: str) -> None:
    """Put a program into a folder."""
    tool = folder / name
    tool.write_text(script)
    tool.chmod(0o755)
