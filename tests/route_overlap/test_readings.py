"""What the boot script makes of messages of `ip` among the rows of the tables."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.counted_ip import IP, another_ip
from support.kernel import needs_kernel
from support.overlap_worlds import AMONG_DEBRIS, run_script
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
    """A file there that is not a namespace makes `ip` complain of each device with a peer
    elsewhere, and end well: the worlds of AMONG_DEBRIS show that this changes no verdict.
    """
    argv = ["nsenter", f"--net=/run/netns/{node.name}", *AMONG_DEBRIS, "ip", "link", "show"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert set(listed.stderr.splitlines()) == {"Error: Peer netns reference is invalid."}


@pytest.mark.parametrize("has_overlap", [False, True])
def test_a_library_that_has_gone_changes_nothing(
    node: WiredNode, tmp_path: Path, has_overlap: bool
) -> None:
    """For each line of /etc/ld.so.preload whose file has gone, every program complains on stderr
    before it begins.
    """
    if has_overlap:
        node.ip("address add 172.16.0.4/16 dev e1")
    gone = "/no/such/first.so /no/such/second.so"
    plain = run_script(node, tmp_path / "plain", CIDRS, files=tmp_path)
    ran = run_script(
        node, tmp_path / "gone", CIDRS, files=tmp_path, through=("env", f"LD_PRELOAD={gone}")
    )
    assert "ERROR: ld.so: object '/no/such/second.so'" in ran.output
    assert plain.status == (11 if has_overlap else 10)
    assert (ran.status, ran.markers) == (plain.status, plain.markers)


@pytest.mark.parametrize(
    "message",
    [
        "Dump was interrupted and may be inconsistent.",
        "Error: Something that no ip says today.",
        "Dump terminated",
    ],
)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_any_other_message_is_a_reason_to_read_again(
    node: WiredNode, tmp_path: Path, message: str, times: int
) -> None:
    """The tables are read three times at most; after the third message the check says that it
    failed itself.
    """
    count = tmp_path / "count"
    # The message comes among the rows of the first table.
    environment = another_ip(
        tmp_path / "tools",
        f"""
        printf x >>{count}
        (($(wc -c <{count}) > {times})) && exec {IP} "$@"
        {IP} "$@" 2>&1 | awk '{{ print }} /^Command failed -:/ && !told++ {{ print "{message}" }}'
        """,
    )
    ran = run_script(node, tmp_path / "run", CIDRS[:2], environment=environment)
    if times < 3:
        verdict = "172.16.8.0/22, 10.96.0.0/16 leave by e0\n"
        assert ran == (10, verdict, {"route-overlap.ok": verdict})
    else:
        failed = f"ip cannot read the tables: {message}"
        assert (ran.status, ran.output.splitlines()[0]) == (11, f"cannot prove anything: {failed}")
        assert ran.markers["route-overlap.detected"] == f"the check itself failed: {failed}\n"
        assert count.read_text() == "xxx"
