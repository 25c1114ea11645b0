"""Facts about the kernel and its tools on which the design rests, and which the other tests do not
show.

docs/kernel-facts.md names each of them, together with the tests that prove the other facts.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from support.kernel import kernel_of, needs_kernel, uplink
from support.needs import needs

from hostrouting.host import IPV6
from hostrouting.host.netlink.conversation import BATCH, in_namespace, open_here
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

RTM_NEWROUTE = 24


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node with its uplink; the fabric's device has no address yet."""
    with KernelNode.made() as made:
        uplink(made)
        made.add_link("ib0")
        yield made


def answers_received(sender: socket.socket) -> int:
    """Return the number of netlink messages that are queued."""
    number = 0
    while True:
        try:
            datagram = sender.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return number
        offset = 0
        while offset < len(datagram):
            (length,) = struct.unpack_from("=I", datagram, offset)
            number += 1
            offset += (length + 3) & ~3


def test_a_default_receive_buffer_holds_a_batch_of_answers(node: KernelNode) -> None:
    """A default receive buffer holds all refusals of a batch in one send, and not those of 400
    requests.
    """
    impossible = struct.pack("=8BI", socket.AF_INET, 33, 0, 0, 254, 142, 0, 1, 0)
    with in_namespace(node.name, open_here) as sender:
        sender.bind((0, 0))
        for count in BATCH, 400:
            numbers = range(1, count + 1)
            sender.send(
                b"".join(
                    struct.pack("=IHHII", 28, RTM_NEWROUTE, 1, n, 0) + impossible for n in numbers
                )
            )
            if count == BATCH:
                assert answers_received(sender) == count
        with pytest.raises(OSError, match=os.strerror(errno.ENOBUFS)):
            answers_received(sender)


def test_a_connected_route_stands_behind_an_equal_one(node: KernelNode) -> None:
    """The connected route of a new address comes behind a route with metric 0 to the same network,
    which goes on deciding.
    """
    route = "172.16.0.0/16 via 10.224.0.1 dev eth0"
    node.ip(f"route add {route}")
    node.add_address("ib0", "172.16.1.4/16")
    connected = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
    shown = [
        str(each) for each in kernel_of(node).routes() if str(each).startswith("172.16.0.0/16")
    ]
    assert shown == [route, connected]
    assert node.run("ip", "route", "get", "fibmatch", "172.16.9.9").split()[:3] == route.split()[:3]


@pytest.mark.parametrize("verb", ["append", "prepend"])
def test_ipv6_routes_by_gateways_merge_and_others_stand_behind(node: KernelNode, verb: str) -> None:
    """Of IPv6 routes in one place, those by gateways merge, and a route by a device alone stands
    next to them. A dump hides such a route between two next hops.
    """
    for dev, address in ("eth0", "fd00:1::4/64"), ("ib0", "fd00:a::4/64"):
        node.add_address(dev, address)
    plain = "fd00:9::/32 dev ib0 metric 1"
    one = "fd00:9::/32 via fd00:1::7 dev eth0 metric 1"
    two = "fd00:9::/32 via fd00:a::7 dev ib0 metric 1"
    merged = "fd00:9::/32 metric 1 nexthop via fd00:1::7 dev eth0 weight 1 nexthop via fd00:a::7 dev ib0 weight 1"

    def dump(*steps: tuple[str, str]) -> list[str]:
        for words in steps:
            node.ip("-6 route", *" ".join(words).split())
        return [str(route) for route in kernel_of(node).routes(IPV6) if route.prefix_length == 32]

    assert dump(("add", plain), (verb, one), (verb, two)) == [plain, merged]
    assert dump(("delete", plain), ("delete", two), (verb, plain)) == [one, plain]
    assert dump((verb, two)) == [merged]
    assert dump(("delete", "fd00:9::/32")) == [plain]


@needs("nft", "ebtables-nft")
def test_nft_does_not_show_the_operands_of_ebtables_rules(node: KernelNode) -> None:
    """The JSON of nft does not have the hardware address of an ebtables-nft rule, which ebtables-save
    prints.
    """
    rule = "-p ARP --arp-op Request --arp-ip-dst 10.240.0.9 -j arpreply --arpreply-mac 02:00:00:00:00:09"
    node.run("ebtables-nft", "-t", "nat", "-A", "PREROUTING", *rule.split())
    assert "02:00:00:00:00:09" not in node.run("nft", "-j", "list", "ruleset").lower()
    assert "--arpreply-mac" in node.run("ebtables-nft-save")
