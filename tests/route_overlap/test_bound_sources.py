"""The IPv6 sources to which a program may bind: each is asked about."""

import pytest
from support.kernel import kernel_of, needs_kernel

from hostrouting import prove_egress
from hostrouting.testing import KernelNode

pytestmark = needs_kernel


@pytest.mark.parametrize(
    ("address", "word"),
    [("2001:db8::9", "optimistic"), ("2001:db8::9", "nodad"), ("fec0::9", "nodad")],
    ids=["optimistic", "global", "site-local"],
)
def test_a_rule_by_its_source_decides(address: str, word: str) -> None:
    """A program may send from it, and then a rule leads its packets into the fabric."""
    with KernelNode.made() as node:
        node.ip("link add eth0 type veth peer name far0")
        node.run("sysctl", "-qw", "net.ipv6.conf.eth0.optimistic_dad=1")
        node.run("sysctl", "-qw", "net.ipv6.conf.eth0.dad_transmits=100")
        node.ip("link set far0 up")
        node.ip("link set eth0 up")
        node.add_link("ib0")
        node.add_address("eth0", "2001:db8::4/64")
        node.ip(f"-6 address add {address}/64 dev eth0 {word}")
        node.ip("-6 route add default via fe80::1 dev eth0")
        node.ip("-6 route add default dev ib0 table 100")
        assert prove_egress(kernel_of(node), ["fd00:10::/108"], expected_devs=["eth0"]).ok
        node.ip(f"-6 rule add from {address} lookup 100 pref 50")
        report = prove_egress(kernel_of(node), ["fd00:10::/108"], expected_devs=["eth0"])
    [line] = report.lines()
    assert line == (
        "fd00:10::/108: overlap fd00:10::-fd00:10::f:ffff by ib0 "
        "(default dev ib0 table 100 metric 1024)"
    )
