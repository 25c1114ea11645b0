"""Each of the eleven commands prints its golden file on a terminal of 80 columns, with colours and
without.
"""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import get_args
from unittest.mock import patch

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import CHECKED, MENDED, OTHER_COMMAND
from support.golden import assert_golden
from support.in_process import run_in_process
from support.kernel import connect
from support.run_nodes import lose_our_routes
from support.run_nodes import node as node_in_memory

from hostrouting import CidrReport, Finding, Host, NodeReport, OverlapMode, OverlapReport
from hostrouting.base.findings import NodeFinding
from hostrouting.node.output import wrapped
from hostrouting.node.sentences import cut
from hostrouting.route_overlap.judgement import Kind
from hostrouting.testing import FakeHost

pytestmark = pytest.mark.skipif(bool(OTHER_COMMAND), reason="most run within this process")
SCREENS = Path(__file__).parent / "screens"
GATED = {"gates": ["systemd-nspawn@.service"], **MENDED}
#: What differs from run to run.
MASKS = {
    r"checksum: \w+": "checksum: @",
    r"last change: .* ago": "last change: @ ago",
    r"\d{4}-\d\d-\d\d[ T][\d:]+( UTC|Z)": "@",
    r'(?<="time": ")[^"]*': "@",
    r"/\S+/config.json": "config.json",
}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A node whose fabric takes the addresses of its cluster."""
    host = node_in_memory()
    connect(host.routes, ib0="172.16.1.4/16")
    monkeypatch.setattr(Host, "live", lambda: host)
    return host


@contextmanager
def terminal(columns: int) -> Iterator[list[str]]:
    """Let stdout be a terminal, and append to the list what it showed."""
    terminal_end, program_end = pty.openpty()
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown: list[str] = []
    chunks: list[bytes] = []

    def read() -> None:
        # Linux reports an error once the program's end is closed.
        try:
            while chunk := os.read(terminal_end, 65536):
                chunks.append(chunk)
        except OSError:
            pass

    reader = Thread(target=read)
    reader.start()
    with (
        os.fdopen(program_end, "w", encoding="utf-8") as stdout,
        patch.object(sys, "stdout", stdout),
    ):
        yield shown
    reader.join()
    os.close(terminal_end)
    shown.append(b"".join(chunks).decode().replace("\r\n", "\n"))


def screen(*words: str, term: str) -> str:
    """Return a command as it is typed, what it shows, and its exit status."""
    with patch.dict(os.environ, {"TERM": term}):
        os.environ.pop("COLUMNS", None)
        os.environ.pop("NO_COLOR", None)
        with terminal(80) as shown:
            status, stderr = run_in_process(*words)
    text = f"$ hostrouting {' '.join(words)}\n{stderr}{shown[0]}[{status}]\n"
    for mask, place in MASKS.items():
        text = re.sub(mask, place, text)
    return text


def story(host: FakeHost, path: Path, term: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each command with a screen of it: on a right node, and on a wrong one."""
    config = str(path)

    def show(*words: str) -> tuple[str, str]:
        return words[0], screen(*words, term=term)

    yield show("init")
    path.write_text(json.dumps({"hostRouting": CHECKED}), encoding="utf-8")
    yield show("check", config)
    path.write_text(json.dumps({"hostRouting": GATED}), encoding="utf-8")
    yield show("plan", config)
    yield show("apply", config)
    yield show("status")
    yield show("check")
    yield show("explain", "172.16.8.0/21")
    lose_our_routes(host)
    host.files.remove("/etc/aks-flex-node/static-routes.sh")
    yield show("status")
    yield show("check")
    yield show("plan")
    yield show("explain", "172.16.8.9")
    yield show("apply", config)
    yield show("sweep", "--dry-run")
    name, text = show("record")
    yield name, f"{text[:200]}...\n"
    name, text = show("render", config)
    yield name, "".join(text.splitlines(keepends=True)[:8]) + "...\n"
    yield show("reset")
    yield show("status")
    yield show("watch", config)


@pytest.mark.parametrize(("term", "ending"), [("xterm", "coloured.txt"), ("dumb", "txt")])
def test_the_screens(host: FakeHost, tmp_path: Path, term: str, ending: str) -> None:
    """The screens of the eleven commands, on a right node and on a wrong one, are as in the golden
    files.
    """
    screens: dict[str, str] = {}
    for name, text in story(host, tmp_path / "config.json", term):
        screens[name] = screens.get(name, "") + text.replace("\x1b", "\\x1b")
    assert len(screens) == 11
    for name, text in screens.items():
        assert_golden(SCREENS / f"{name}.{ending}", text)


WORDS = st.lists(st.text("abc./:", min_size=1, max_size=30), min_size=1, max_size=40).map(" ".join)
COMMANDS = st.sampled_from(["", "; run: ip rule del pref 52", "; see: journalctl -b -u a.service"])


@given(indent=st.integers(0, 4), prose=WORDS, command=COMMANDS, width=st.integers(40, 120))
def test_a_wrapped_line(indent: int, prose: str, command: str, width: int) -> None:
    """A wrapped line has the same words in lines of the width, and the command whole, on a line of
    its own if it does not fit.
    """
    text = " " * indent + prose + command
    lines = [*wrapped([text], width=width)]
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith(" " * indent) for line in lines)
    _, _, whole = command.partition(" ")
    assert lines[-1].endswith(whole)


@given(text=st.lists(st.text("ab /", min_size=1, max_size=100).map(str.strip)).map(", ".join))
def test_a_first_line(text: str) -> None:
    """A first line has the clauses that fit into 80 columns, each whole, and always the first."""
    first = cut(text)
    clauses = first.removesuffix(", ...").split(", ")
    assert len(first) <= 80 or len(clauses) == 1
    assert text.split(", ")[: len(clauses)] == clauses


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_first_line_about_addresses(kind: Kind) -> None:
    """The first line about wrong addresses has its clause and its number of others whole, also for
    the longest names.
    """
    dev = "e" * 15
    finding = Finding(
        kind=kind,
        first="fd00:9::",
        last="fd00:9::1",
        devs=(dev,),
        dev=dev,
        network="fd00::/8" if kind == "announced" else None,
    )
    cidr = CidrReport(
        cidr="fd00:1234:5678:9abc:def0:1234:5678:9a00/120", findings=(finding,) * 1000
    )
    overlap = OverlapReport(
        expected_devs=("eth0",), cidrs=(cidr, attrs.evolve(cidr, cidr="fd01::/16"))
    )
    report = NodeReport(overlap=overlap, mode=OverlapMode.STRICT)
    first = report.lines()[0]
    assert first.startswith("wrong: part of fd00:1234:5678:9abc:def0:1234:5678:9a00/120 ")
    assert first.endswith(", and 1 more")


def test_the_first_line_of_a_finding() -> None:
    """The first line of a finding has the severity, the kind and the beginning of the subject; a
    path is not parted.
    """
    subject = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
    finding = NodeFinding("wrong-router", subject, "is lost " * 20)
    first, *_ = wrapped([str(finding)], width=80)
    assert first == f"error: wrong-router: {subject}: is lost is"
    path = "+ /etc/systemd/system/hostrouting-ready.service.requires/check-route-overlap.service"
    assert [*wrapped([path], width=80)] == [path]
