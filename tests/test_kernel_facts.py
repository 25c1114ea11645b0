"""Facts about the kernel and its tools on which the design rests, and which the other tests do not
show.

docs/kernel-facts.md names each of them, together with the tests that prove the other facts.
"""

import errno
import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.kernel import kernel_of, needs_kernel
from support.needs import needs
from support.processes import ended

from hostrouting.host import IPV6
from hostrouting.host.netlink.conversation import BATCH, in_namespace, open_here
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

FABRIC = "172.16.0.0/16"
RTM_NEWROUTE = 24
IPV4_ROUTE_EVENTS = 0x40


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node with its uplink; the fabric's device has no address yet."""
    with KernelNode.made() as made:
        made.add_link("eth0")
        made.ip("address add 10.224.0.4/16 dev eth0")
        made.ip("route add default via 10.224.0.1")
        made.add_link("ib0")
        yield made


def device_for(node: KernelNode, address: str) -> str:
    (answer,) = json.loads(node.ip(f"-json route get {address}"))
    return str(answer["dev"])


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


@pytest.mark.parametrize(
    "destination", ["0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"]
)
def test_the_kernel_accepts_destinations_that_no_packet_should_take(
    node: KernelNode, destination: str
) -> None:
    """Only the config refuses such routes: the kernel would install them."""
    node.ip(f"route add {destination} via 10.224.0.1")
    assert node.ip(f"route show exact {destination}")


@pytest.mark.parametrize("before", ["172.16.0.0/12", "172.16.0.0/16 metric 50"])
def test_a_late_connected_route_decides(node: KernelNode, before: str) -> None:
    """An address that comes later brings a /16 of metric 0, which beats a shorter prefix and a
    higher metric.
    """
    node.ip("route add", *before.split(), "via 10.224.0.1")
    assert device_for(node, "172.16.8.1") == "eth0"
    node.ip("address add 172.16.1.4/16 dev ib0")
    assert device_for(node, "172.16.8.1") == "ib0"


def test_a_longer_route_keeps_its_addresses(node: KernelNode) -> None:
    """A route inside the late /16 still decides for its own addresses; the rest of the /16 leaves
    by the fabric.
    """
    node.ip("route add 172.16.8.0/22 via 10.224.0.1")
    node.ip("address add 172.16.1.4/16 dev ib0")
    assert device_for(node, "172.16.8.1") == "eth0"
    assert device_for(node, "172.16.1.9") == "ib0"


def test_no_route_beats_the_local_table(node: KernelNode) -> None:
    """The node's own address stays local whatever route the main table has for it."""
    node.ip("address add 172.16.1.4/16 dev ib0")
    node.ip("route add 172.16.1.4/32 via 10.224.0.1")
    assert node.ip("route get 172.16.1.4").startswith("local ")


def test_replace_with_another_metric_adds_a_route(node: KernelNode) -> None:
    """NLM_F_REPLACE looks for the same metric, so a connected route of metric 0 stays in addition
    to the new one.
    """
    node.ip("address add 172.16.1.4/16 dev ib0")
    node.ip(f"route replace {FABRIC} via 10.224.0.1 metric 50")
    assert len(node.ip(f"route show exact {FABRIC}").splitlines()) == 2


def test_replace_overwrites_the_kernels_own_route(node: KernelNode) -> None:
    """With metric 0 the connected route is gone, and nothing warns of it."""
    node.ip("address add 172.16.1.4/16 dev ib0")
    node.ip(f"route replace {FABRIC} via 10.224.0.1")
    assert "proto kernel" not in node.ip(f"route show exact {FABRIC}")


def test_an_event_lacks_the_process_that_made_the_change(node: KernelNode) -> None:
    """It has the port of the requesting socket: a process id only for a first socket, and as its
    namespace numbers it.

    So an event of a container names another process of the node, and one of a daemon with two
    sockets names none.
    """
    with in_namespace(node.name, open_here) as listener, ExitStack() as stack:
        listener.bind((0, IPV4_ROUTE_EVENTS))
        add = f"ip -n {node.name} route add 192.0.2.0/24 dev eth0"
        ended("unshare", "--pid", "--fork", *add.split(), check=True)
        announced = listener.recv(1 << 16)
        assert struct.unpack_from("=I", announced, 12) == (1,)
        ports = [stack.enter_context(in_namespace(node.name, open_here)) for _ in range(2)]
        for opened in ports:
            opened.bind((0, 0))
        assert [opened.getsockname()[0] for opened in ports].count(os.getpid()) <= 1


def test_a_default_receive_buffer_holds_a_batch_of_answers(node: KernelNode) -> None:
    """All refusals of a batch in one send can be read; of 400 the kernel drops some."""
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


@pytest.mark.parametrize("verb", ["append", "prepend"])
def test_ipv6_routes_by_gateways_merge_and_others_stand_behind(node: KernelNode, verb: str) -> None:
    """Of those that stand beside each other, the first decides. A dump hides one that stands
    between two next hops.
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


LINES_OF_IP = """\
route add 192.0.2.0/24 via 10.224.0.1
route add 198.51.100.0/24 via 9.9.9.9
route add 203.0.113.0/24 via 10.224.0.1
"""


@pytest.mark.parametrize(("options", "routes"), [([], 1), (["-force"], 2)])
def test_a_batch_of_ip_stops_at_the_first_refusal_unless_forced(
    node: KernelNode, options: list[str], routes: int
) -> None:
    """Routes before the refused line stay either way; the error names the number of the line."""
    command = ["ip", "-n", node.name, "-4", "-o", *options, "-batch", "-"]
    ended = subprocess.run(command, input=LINES_OF_IP, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Command failed -:2" in ended.stderr
    added = node.ip("route show via 10.224.0.1").splitlines()
    assert len([route for route in added if not route.startswith("default")]) == routes


@needs("nft", "ebtables-nft")
def test_nft_does_not_show_the_operands_of_ebtables_rules(node: KernelNode) -> None:
    """Rules of ebtables-nft are read with ebtables-save: in JSON of nft the hardware address is
    missing.
    """
    rule = "-p ARP --arp-op Request --arp-ip-dst 10.240.0.9 -j arpreply --arpreply-mac 02:00:00:00:00:09"
    node.run("ebtables-nft", "-t", "nat", "-A", "PREROUTING", *rule.split())
    assert "02:00:00:00:00:09" not in node.run("nft", "-j", "list", "ruleset").lower()
    assert "--arpreply-mac" in node.run("ebtables-nft-save")
