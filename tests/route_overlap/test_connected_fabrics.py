"""Fabrics that are connected in part: everything that the kernel loses once they are connected is
found.
"""

import json

import pytest
from support.announced_fabrics import Announced, report_under
from support.egress_oracle import KernelOracle, wrong_of
from support.kernel import kernel_of, make, needs_kernel
from support.patience import wait_until

from hostrouting import OverlapReport
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

_ADDRESS = "172.16.1.4"
_UP = "link set f0 up"
#: Commands after eth0 and a device f0 that is down, whether f0 has no carrier yet, and the expected
#: CIDR. The pool has an address for f0.
_CASES = {
    "without carrier": ((_UP, "addr add 172.16.1.4/16 dev f0"), True, "172.16.8.0/22"),
    "without carrier, another network": (
        (_UP, "addr add 172.18.1.4/24 dev f0"),
        True,
        "172.18.1.64/26",
    ),
    "on another device, by a metric": (
        ("addr add 172.16.1.4/16 dev eth0 metric 300",),
        False,
        "172.16.8.0/22",
    ),
    "without carrier, before an equal route": (
        (
            _UP,
            "addr add 172.16.1.4/16 dev f0",
            "route append 172.16.0.0/16 via 10.224.0.1 dev eth0",
        ),
        True,
        "172.16.8.0/22",
    ),
    "in a bridge": (
        (
            "link add b0 type bridge",
            "link set f0 master b0",
            "link set b0 up",
            "addr add 172.18.1.4/24 dev b0",
        ),
        True,
        "172.18.1.64/26",
    ),
    "with a peer": ((_UP, "addr add 172.16.1.4 peer 172.18.7.7/16 dev f0"), False, "172.16.8.0/22"),
    "a broadcast address of a device that is down": (
        ("addr add 172.18.1.4/24 brd 172.19.7.7 dev f0",),
        False,
        "172.19.7.7/32",
    ),
    "a broadcast address without a network": (
        ("addr add 172.18.1.4/32 brd 172.19.7.7 dev f0",),
        False,
        "172.19.7.7/32",
    ),
    "above a device without carrier": (
        (
            "link add u0 link f0 type macvlan",
            _UP,
            "link set u0 up",
            "addr add 172.18.1.4/24 dev u0",
        ),
        True,
        "172.18.1.64/26",
    ),
}


def _arrange(node: KernelNode, commands: tuple[str, ...], *, unplugged: bool) -> None:
    """Make eth0 with the default route, f0, f1, and what a case has; what the kernel refuses is left
    out.
    """
    if unplugged:
        node.run("sysctl", "-qw", "net.ipv4.conf.default.ignore_routes_with_linkdown=1")
    devices = [f"link add {name} type veth peer name p{name}" for name in ("eth0", "f0", "f1")]
    first = ["link set peth0 up", "link set eth0 up", "addr add 10.224.0.4/16 dev eth0"]
    first += ["link set pf1 up", "route add default via 10.224.0.1 dev eth0 metric 100"]
    plugged = [] if unplugged else ["link set pf0 up"]
    make(node, commands=[*devices, *first, *plugged, *commands])


def _proof(node: KernelNode, cidr: str) -> OverlapReport:
    fabric = Announced([("f0", _ADDRESS)]).as_fabric(kernel_of(node))
    return report_under(node, fabric, [cidr], expected=["eth0"])


def _connect(node: KernelNode, *, unplugged: bool) -> None:
    """Do as the agent does, for each device with the hardware address of f0; then the carrier
    comes.
    """
    macs = {link["ifname"]: link["address"] for link in json.loads(node.ip("-j link show"))}
    Announced([(dev, _ADDRESS) for dev in macs if macs[dev] == macs["f0"]]).connect(node)
    if unplugged:
        node.set_up("pf0")


def _lost(node: KernelNode, cidr: str) -> set[int]:
    """Return the addresses of a CIDR that do not leave through eth0."""
    return {*wrong_of(KernelOracle(node), cidr, frozenset({"eth0"}))}


def _has_carriers(node: KernelNode) -> bool:
    """Return True once each device that is up has its carrier; it takes the kernel a moment."""
    links = [*filter(None, json.loads(node.ip("-j link show up")))]
    names = {link["ifname"] for link in links}
    # One above a device that is down has none, nor has the other end of one, or a bridge.
    return all("LOWER_UP" in link["flags"] or link.get("link") not in names for link in links)


@pytest.mark.parametrize(("commands", "unplugged", "cidr"), _CASES.values(), ids=_CASES)
def test_it_is_announced(commands: tuple[str, ...], cidr: str, *, unplugged: bool) -> None:
    """A CIDR that leaves right today and that the kernel loses with the fabric is found as
    announced.
    """
    with KernelNode.made() as node:
        _arrange(node, commands, unplugged=unplugged)
        assert not _lost(node, cidr)
        [finding] = _proof(node, cidr).cidrs[0].findings
        _connect(node, unplugged=unplugged)
        wait_until(lambda: _has_carriers(node), "a carrier")
        first, last = finding.bounds
        wrong = _lost(node, cidr)
    assert finding.kind == "announced"
    assert wrong
    assert first <= min(wrong) <= max(wrong) <= last


@pytest.mark.parametrize(
    "commands",
    [
        (_UP, "addr add 172.16.1.4/16 dev f0 noprefixroute"),
        (_UP, "addr add 172.16.1.4 peer 172.16.7.7/16 dev f0 noprefixroute"),
        ("link set f1 up", "addr add 172.18.1.4/24 dev f1"),
    ],
    ids=["the address is there", "with a peer in its network", "another device is up"],
)
def test_nothing_comes(commands: tuple[str, ...]) -> None:
    """A fabric whose address or network the node has already is not a finding, as the kernel then
    adds nothing.
    """
    cidr = "172.19.8.0/22" if "f1" in commands[0] else "172.16.8.0/22"
    with KernelNode.made() as node:
        _arrange(node, commands, unplugged=False)
        report = _proof(node, cidr)
        _connect(node, unplugged=False)
        assert not _lost(node, cidr)
    assert report.ok
