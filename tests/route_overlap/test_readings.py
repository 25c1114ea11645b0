"""Messages of `ip` among the rows of the tables that the boot script reads."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.counted_ip import IP, another_ip
from support.kernel import needs_kernel
from support.overlap_answers import AMONG_DEBRIS, run_script
from support.printed import UNPROVEN
from support.routers import ROUTER, WiredNode

pytestmark = needs_kernel

CIDRS = ["172.16.8.0/22", "10.96.0.0/16", "fd09::/64"]


@pytest.fixture
def node() -> Iterator[WiredNode]:
    """A node whose devices are pairs with another namespace, as those of pods are."""
    with WiredNode.made() as made:
        made.add_links("e0", "e1")
        made.ip("address add 10.224.0.4/16 dev e0")
        made.ip("route add default via 10.224.0.1 dev e0")
        made.ip(f"-6 route add default via {ROUTER} dev e0")
        yield made


def test_debris_in_run_netns(node: WiredNode) -> None:
    """A file in /run/netns that is not a namespace makes `ip` complain of devices with a peer
    elsewhere, and end well.

    The worlds of AMONG_DEBRIS show that this changes no verdict.
    """
    argv = ["nsenter", f"--net=/run/netns/{node.name}", *AMONG_DEBRIS, "ip", "link", "show"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert set(listed.stderr.splitlines()) == {"Error: Peer netns reference is invalid."}


@pytest.mark.parametrize("has_overlap", [False, True])
def test_a_library_that_has_gone_changes_nothing(
    node: WiredNode, tmp_path: Path, has_overlap: bool
) -> None:
    """A missing library of LD_PRELOAD, as one of /etc/ld.so.preload, about which every program
    complains on stderr, does not change the verdict.
    """
    if has_overlap:
        node.ip("address add 172.16.0.4/16 dev e1")
    gone = "/no/such/first.so /no/such/second.so"
    plain = run_script(node, tmp_path / "plain", CIDRS, files=tmp_path)
    ran = run_script(
        node, tmp_path / "gone", CIDRS, files=tmp_path, through=("env", f"LD_PRELOAD={gone}")
    )
    assert "ERROR: ld.so: object '/no/such/second.so'" in ran.output
    assert plain.is_plain != has_overlap
    assert ran.status == plain.status
    assert ran.markers == plain.markers


@pytest.mark.parametrize(
    "message",
    [
        "Dump was interrupted and may be inconsistent.",
        "Error: Something that no ip prints today.",
        "Dump terminated",
    ],
)
def test_any_other_message_is_not_plain(node: WiredNode, tmp_path: Path, message: str) -> None:
    """A node is not plain if `ip` prints any other message among its rows, as a table may have
    changed meanwhile.
    """
    edit = f"""awk '{{ print }} /^Command failed -:/ && !shown++ {{ print "{message}" }}'"""
    environment = another_ip(tmp_path / "tools", f'{IP} "$@" 2>&1 | {edit}')
    ran = run_script(node, tmp_path / "run", CIDRS[:2], environment=environment)
    assert not ran.is_plain
    assert ran.output.startswith(f"{UNPROVEN}ip ({message}); ")


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        ("s/metric 9/metric 9 expires 9sec/", ""),
        ("s/metric 9/metric 9 expires -9sec/", "row"),
        ("s/dev e0 scope/dev e0 dead scope/", "row"),
        ("s/dev e0 scope/dev e0 linkdown scope/", ""),
        ("s/dev e0 scope/dev *e0* scope/", "default"),
        ("s/default dev e0/local default dev e0/", "default"),
        ("s/link-netnsid/master b0 link-netnsid/", ""),
        ("s/LOWER_UP/LOWER_UPPER/; s/ qlen/ ,LOWER_UP, qlen/", "carrier"),
        ("s/,UP,/,/", "carrier"),
    ],
)
def test_rows_that_are_hard_to_make(node: WiredNode, tmp_path: Path, edit: str, word: str) -> None:
    """Rows with expired routes, dead next hops, odd names and flags of devices are plain or not as
    the kernel treats them.
    """
    node.ip("route del default")
    node.ip("route add default dev e0 metric 9")
    environment = another_ip(tmp_path / "tools", f"{IP} \"$@\" 2>&1 | sed '{edit}'")
    ran = run_script(node, tmp_path / "run", CIDRS[:2], environment=environment)
    assert ran.is_plain == (not word), ran.output
    assert ran.output.startswith(f"{UNPROVEN}{word} (") or not word, ran.output
