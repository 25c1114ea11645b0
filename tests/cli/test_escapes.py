"""Names with control characters, which a terminal would obey: in text, commands and markers."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import run
from support.in_process import run_here
from support.kernel import needs_kernel, uplink

from hostrouting.base.commands import quoted
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.node.at_boot import answer
from hostrouting.route_overlap.script import MARKER_DETECTED
from hostrouting.testing import FakeHost, KernelNode

DEV = "a\x1b[2J\x7f"
SHOWN = r"a\x1b[2J\x7f"


def hostile(node: KernelNode) -> None:
    """Give the node a device that shadows part of the cluster's addresses."""
    node.add_link(DEV)
    node.add_address(DEV, "172.17.1.4/16")


@needs_kernel
@pytest.mark.parametrize(
    "words", ["check {}", "plan {}", "explain 172.17.8.1", "-v check {}", "check --json {}"]
)
def test_no_text_has_a_control_character(node: KernelNode, words: str, tmp_path: Path) -> None:
    """A control character in a name is printed as an escape on stdout and stderr, and in JSON by an
    escape of JSON.
    """
    hostile(node)
    path = tmp_path / "c.json"
    path.write_text('{"routeOverlap": {"expectedCidrs": ["172.17.0.0/16"]}}')
    result = run(*words.format(path).split(), inside=node)
    assert not {"\x1b", "\x7f"} & {*result.stdout, *result.stderr}
    assert (r"a\u001b[2J" if "--json" in words else SHOWN) in result.stdout


def test_the_program_of_a_boot_and_its_marker_have_none() -> None:
    """The lines of a check at boot, and its marker, have a control character in a name as an
    escape.
    """
    host = FakeHost()
    uplink(host.routes, **{DEV: "172.17.1.4/16"})
    text = b'{"hostRouting": {"routeOverlap": {"expectedCidrs": ["172.17.0.0/16"]}}}'
    host.files.write(CONFIG_PATH, text, mode=0o644)
    _, lines = answer(["ask", "STRICT"], host)
    printed = "".join(line for _, line in lines)
    marker = (host.files.read(MARKER_DETECTED) or b"").decode()
    assert not {"\x1b", "\x7f"} & {*printed, *marker}
    assert SHOWN in printed
    assert SHOWN in marker


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_a_quoted_command_runs_as_pasted(words: list[str]) -> None:
    """Bash reads a quoted command as the words that it was made of, and the line has only
    characters that can be shown.
    """
    line = quoted("printf", r"%s\0", *words, "\udcff")
    assert line.isprintable()
    result = subprocess.run(["bash", "-c", line], check=True, capture_output=True).stdout
    # Each word ends with a NUL, so the last part is empty.
    assert result.split(b"\0")[:-1] == [word.encode() for word in words] + [b"\xff"]


def test_a_usage_error_has_none() -> None:
    """An error of usage prints a control character in an argument as an escape."""
    assert "unrecognized arguments: a\\x1b[2J" in run_here("check", "c", "a\x1b[2J").stderr
