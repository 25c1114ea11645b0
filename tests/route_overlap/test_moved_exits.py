"""Moves of an exit from its pinned device: the route that made the move, and changes that are not a
move.
"""

import pytest
from support.overlap_proofs import check_cidrs

from hostrouting.host import IPV4, IPV6, ObservedRoute
from hostrouting.route_overlap.exits import MovedExit
from hostrouting.testing import MemoryBackend

_CIDR = "fd00:10::/108"


@pytest.fixture
def node() -> MemoryBackend:
    """A node with a fabric, whose default routes of both families are by eth0."""
    made = MemoryBackend()
    for dev, *addresses in (
        ("eth0", "10.224.0.4/16", "2001:db8::4/64"),
        ("ib0", "172.16.1.4/16", "2001:db8:1::4/64"),
    ):
        made.add_link(dev)
        for address in addresses:
            made.add_address(dev, address)
    made.add_route("default", gateway="10.224.0.1", dev="eth0", metric=100)
    made.add_route("::/0", gateway="2001:db8::1", dev="eth0")
    return made


def test_ipv6_moves_by_the_route_of_ipv4(node: MemoryBackend) -> None:
    """The IPv4 default route, and not the right one of IPv6, is named as what moved the IPv6 exit,
    which follows that of IPv4.
    """
    node.add_route("default", gateway="172.16.0.1", dev="ib0")
    report = check_cidrs(node, [_CIDR], pinned={IPV6: "eth0"})
    [move] = report.moved_exits
    assert move.family == IPV6
    assert move.before == "eth0"
    assert move.after == ("ib0",)
    assert move.deletion == "ip route del default via 172.16.0.1 dev ib0"
    assert [finding.cause for _, finding in report.findings] == ["moved-exit"]


def test_a_route_of_ipv6_is_deleted_by_a_command_for_it() -> None:
    """A moved IPv6 exit is undone by `ip -6 route del`, as a command without `-6` would delete the
    route of IPv4; its JSON has the name of the family.
    """
    route = ObservedRoute.parse("::/0", "ib0", "fe80::2", protocol=4, metric=512)
    move = MovedExit(family=IPV6, before="eth0", after=("ib0",), route=route)
    assert move.deletion == "ip -6 route del default via fe80::2 dev ib0 proto static metric 512"
    assert move.to_mapping()["family"] == "IPv6"


def test_routes_in_turns_move_nothing(node: MemoryBackend) -> None:
    """Two default routes in turns are not a move of the exit, as it is unknown which of the devices
    is right.
    """
    for dev, gateway in (("eth0", "10.224.0.1"), ("ib0", "172.16.0.1")):
        node.add_route("default", gateway=gateway, dev=dev)
    report = check_cidrs(node, ["10.96.0.0/16"], pinned={IPV4: "eth0"})
    assert [finding.kind for _, finding in report.findings] == ["unknown-exit"]
    assert report.moved_exits == ()
