"""The table of programs on the operators' page has the commands that the adapters offer."""

from __future__ import annotations

import os
import re

from managers.test_managed import DEVICES, found
from support.documents import ROOT

PAGE = ROOT / "docs/operators.md"
#: The device of the page.
DEVICE = "eth0"
#: By program: the states of the three columns.
ROWS = {
    "systemd-networkd": (
        "networkd, the address",
        "networkd is stopped",
        "a renamed device of networkd",
    ),
    "netplan": ("netplan", "networkd is stopped", "networkd asks for a lease"),
    "NetworkManager": (
        "NetworkManager",
        "NetworkManager has disconnected it",
        "a profile with never-default",
    ),
    "ifupdown": (
        "ifupdown",
        "after an ifdown",
        "ifupdown, and its client has got no answer",
    ),
}


def cell(state: str) -> str:
    """Return the command for a state, or why none helps."""
    device = found(DEVICES[state])
    assert device
    text = f"`{device.command}`" if device.command else device.advice
    return text.replace("eth1", DEVICE).replace("1c8a", "UUID")


def test_the_table_of_programs() -> None:
    """The operators' page has, for each program that manages devices, its commands, and what a
    person has to do where none helps; `UPDATE_GOLDEN=1` writes it.
    """
    rows = [f"| {program} | {' | '.join(map(cell, states))} |" for program, states in ROWS.items()]
    page = PAGE.read_text(encoding="utf-8")
    head = re.search(r"^\| Program \| Address .*\n\|[-|]+\|\n", page, flags=re.MULTILINE)
    assert head
    before, after = page[: head.end()], page[head.end() :]
    if "UPDATE_GOLDEN" in os.environ:
        rest = re.sub(r"\A(\| .*\n)*", "", after)
        PAGE.write_text(before + "\n".join([*rows, ""]) + rest, encoding="utf-8")
        return
    assert after.startswith("\n".join([*rows, ""]))
