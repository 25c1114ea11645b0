"""The IPv6 sources to which a program may bind, each of which a check looks up."""

from collections.abc import Iterator

import pytest
from support.kernel import connect, kernel_of, needs_kernel

from hostrouting import prove_egress
from hostrouting.testing import KernelNode

pytestmark = needs_kernel


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node with the default route through eth0, where optimistic addresses stay so, and with that of
    table 100 through ib0.
    """
    with KernelNode.made() as made:
        made.ip("link add eth0 type veth peer name far0")
        made.run("sysctl", "-qw", "net.ipv6.conf.eth0.optimistic_dad=1")
        made.run("sysctl", "-qw", "net.ipv6.conf.eth0.dad_transmits=100")
        made.ip("link set far0 up")
        made.ip("link set eth0 up")
        made.add_link("ib0")
        made.ip("-6 route add default via fe80::1 dev eth0")
        made.ip("-6 route add default dev ib0 table 100")
        yield made


@pytest.mark.parametrize(
    ("address", "word"),
    [("2001:db8::9", "optimistic"), ("2001:db8::9", "nodad"), ("fec0::9", "nodad")],
    ids=["optimistic", "global", "site-local"],
)
def test_a_rule_by_its_source_decides(node: KernelNode, address: str, word: str) -> None:
    """A rule that leads packets of an address into the fabric is an overlap if a program may bind
    to the address.
    """
    node.add_address("eth0", "2001:db8::4/64")
    node.ip(f"-6 address add {address}/64 dev eth0 {word}")
    assert prove_egress(kernel_of(node), ["fd00:10::/108"], expected_devs=["eth0"]).ok
    node.ip(f"-6 rule add from {address} lookup 100 pref 50")
    report = prove_egress(kernel_of(node), ["fd00:10::/108"], expected_devs=["eth0"])
    [line] = report.lines()
    assert line == (
        "fd00:10::/108: overlap fd00:10::-fd00:10::f:ffff through ib0 "
        f"(default dev ib0 table 100 metric 1024, by the rule 50: from {address} lookup 100)"
    )


_OF_ANOTHER_DEVICE = [
    ("2001:db8:9::/124", "fec0::4/64", "nodad", ""),
    ("2001:db8:9::/124", "2001:db8:1::4/64", "optimistic", ""),
    ("fec0:9::/124", "2001:db8:1::4/64", "nodad", ""),
    ("2001:db8:9::/124", "", "", " ipproto tcp"),
    ("2001:db8:9::/124", "fec0::4/64", "nodad", " ipproto tcp"),
]


@pytest.mark.parametrize(
    ("cidr", "address", "word", "protocol"),
    _OF_ANOTHER_DEVICE,
    ids=["site-local", "optimistic", "to-site-local", "by-protocol", "site-local-by-protocol"],
)
def test_a_rule_by_the_source_of_another_device_decides(
    node: KernelNode, cidr: str, address: str, word: str, protocol: str
) -> None:
    """The kernel prefers a source of another device to one of an unfitting scope, to an optimistic
    one, and to none; a rule by that source is then an overlap.
    """
    scope = "fec0:1" if cidr.startswith("fec0") else "2001:db8:2"
    connect(node, eth1=f"{scope}::5/64")
    if address:
        node.ip(f"-6 address add {address} dev eth0 {word}")
    node.ip(f"-6 rule add from {scope}::5{protocol} lookup 100 pref 50")
    packet = f"-6 route get {cidr[:-4]} ipproto tcp"
    assert f"dev eth0 src {scope}::5 " in node.ip(packet)
    assert "dev ib0 " in node.ip(f"{packet} from {scope}::5")
    report = prove_egress(kernel_of(node), [cidr], expected_devs=["eth0"])
    [line] = report.lines()
    rule = f"50: from {scope}::5{protocol} lookup 100"
    decider = f"default dev ib0 table 100 metric 1024, by the rule {rule}"
    assert line == f"{cidr}: overlap {cidr[:-4]}-{cidr[:-4]}f through ib0 ({decider})"


def test_a_part_begins_with_the_site_local_addresses(node: KernelNode) -> None:
    """A part of a check begins at fec0::, where the kernel prefers another source, whatever the
    routes are.
    """
    connect(node, eth1="fec0:1::5/64")
    node.ip("-6 address add 2001:db8:1::4/64 dev eth0 nodad")
    node.ip("-6 rule add from fec0:1::5 lookup 100 pref 50")
    report = prove_egress(kernel_of(node), ["fe00::/8"], expected_devs=["eth0"])
    assert "fec0::" in [str(finding.first) for _, finding in report.findings]
