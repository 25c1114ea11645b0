"""A real machine of systemd-nspawn from boot to reset, which docs/e2e.md shows."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from e2e.boot_to_reset import Step, tell
from support.documents import ROOT
from support.golden import assert_golden
from support.nspawn_node import API, MACHINE, NspawnError
from support.printed import leaves
from support.systemd_box import require_program

PAGE: Final = ROOT / "docs/e2e.md"
TOP: Final = """\
# A real node from boot to reset

`make e2e` shows hostrouting on a node with a real systemd, a real systemd-nspawn machine and real packets. It takes about a minute
and needs root and systemd-nspawn (Debian: `systemd-container`). This page is the output of a run, and a test repeats every
command and compares the output.

The node is a systemd in namespaces of its own, so to boot again means to start systemd again with the same files. Three things are
simulated:

- The kubelet is a script in the machine that asks the API server for `/readyz` twice a second and logs each new answer.
- The API server is a web server in another network namespace, behind a router.
- The fabric is a network namespace in which nobody answers.
"""
#: What differs from run to run.
VOLATILE: Final = re.compile(r"\d+\.\d{3} s|\d\d/[A-Z][a-z]{2}/\d{4} \d\d:\d\d:\d\d")
BY_ETH0: Final = f"{API} via 10.224.0.1 dev eth0 src 10.224.0.4 uid 0"
BY_IB0: Final = f"{API} dev ib0 src 172.16.1.4 uid 0"
ROUTE: Final = "172.16.8.0/22 via 10.224.0.1 dev eth0"
#: Lines that must be printed in this order, each with the beginning of its command. UPDATE_GOLDEN
#: does not change them.
FACTS: Final = (
    ("ip route get", BY_ETH0),
    ("tail", f"API server {API}: ok"),
    ("ip route get", BY_IB0),
    ("tail", f"API server {API}: no answer"),
    ("python3 bootstrap_agent.py check.json", "failed    bootstrap"),
    ("systemctl is-active", "failed"),
    ("hostrouting status", f"wrong: {leaves('172.16.8.0/22', 'ib0')}; {MACHINE} is held"),
    ("systemctl is-active", "active"),
    ("tail", f"API server {API}: ok"),
    ("python3 bootstrap_agent.py watch.json", "ok        bootstrap"),
    ("ip route show proto 142", ROUTE),
    ("systemctl is-active", "active"),
    ("ip route show dev ib0", "172.16.0.0/16 proto kernel scope link src 172.16.1.4"),
    ("ip route get", BY_ETH0),
    ("cat /run/routes.log", f"Deleted {ROUTE} proto 142"),
    ("cat /run/routes.log", f"{ROUTE} proto 142"),
    ("journalctl", f"repaired: + {ROUTE} proto 142"),
    ("systemctl is-active", "active"),
    ("ip route get", BY_IB0),
)


def plain(text: str) -> str:
    """Return a text without what differs from run to run."""
    return VOLATILE.sub("@", text)


def page_of(steps: list[Step]) -> str:
    """Return the page with these steps."""
    parts = [TOP]
    for step in steps:
        shown = "".join(f"$ {command}\n{output}" for command, output in step.commands)
        sentence = textwrap.fill(step.sentence, 132)
        parts.append(f"{sentence}\n\n```console\n{shown}```\n")
    return "\n".join(parts)


def lines_of(steps: list[Step]) -> Iterator[tuple[str, str]]:
    """Return each printed line with its command."""
    for step in steps:
        for command, output in step.commands:
            for line in output.splitlines():
                yield command, line


def test_a_machine_from_boot_to_reset(tmp_path: Path) -> None:
    """In STRICT mode, a machine that the fabric has cut off is held until a route is added. Then it
    reaches its API server, also after a boot and after a daemon deleted the route, until a reset.

    docs/e2e.md has the output of each command.
    """
    require_program()
    try:
        steps = tell(tmp_path)
    except NspawnError as error:
        pytest.skip(f"systemd-nspawn cannot run here: {error}")
    printed = lines_of(steps)
    for words, line in FACTS:
        assert any(command.startswith(words) and line == shown for command, shown in printed), (
            f"{words}: {line}"
        )
    page = page_of(steps)
    # Without this, each update would change the times on the page.
    if not PAGE.exists() or plain(page) != plain(PAGE.read_text(encoding="utf-8")):
        assert_golden(PAGE, page)
