"""The effect of the rules on packets in the kernel: probes reach pods, and everything else is as it
was.
"""

import json
import socket
import struct
from collections.abc import Generator
from socket import AF_INET6, SOCK_DGRAM, SOCK_STREAM, inet_pton
from typing import Any

import pytest
from support.needs import needs
from support.probe_worlds import (
    ADDRESS,
    CLOUD_GLOBAL,
    CLOUD_LOCAL,
    ICMPV6,
    NODE,
    NODE_LOCAL,
    POD,
    PROBE,
    RULES,
    TCP,
    UDP,
    ProbeWorld,
    checksum_is_right,
    index_of,
    next_packet,
    packet,
    parts,
)

from hostrouting.azure.probe_snat.ruleset import render
from hostrouting.testing import KernelNode
from phases import Context

#: An address without a host: DNAT turns it into the pod's.
SERVICE = "2001:db8:3::80"
pytestmark = needs("kernel", "nft")

#: One header of each protocol, with the payload after it; the rules leave both alone but for
#: checksums.
HEADERS = {
    TCP: struct.pack("!HHIIBBHHH", 40000, 8080, 1, 0, 5 << 4, 2, 65535, 0, 0),
    UDP: struct.pack("!HHHH", 40000, 8080, 8, 0),
    ICMPV6: struct.pack("!BBHHH", 128, 0, 0, 7, 1),
}
FOUR_KILOBYTES = bytes(range(256)) * 16


@pytest.fixture
def plain() -> Generator[ProbeWorld]:
    with ProbeWorld.made() as world:
        yield world


@pytest.fixture
def world(plain: ProbeWorld) -> ProbeWorld:
    plain.apply()
    return plain


def exchange(
    world: ProbeWorld, server: socket.socket, *, to: str = POD, data: bytes = b"GET /healthz"
) -> str:
    """A probe over TCP, there and back; the source that the server saw."""
    server.listen()
    client = world.probe(SOCK_STREAM)
    client.connect((to, server.getsockname()[1]))
    connection, peer = server.accept()
    with connection:
        connection.settimeout(60)
        client.sendall(data)
        connection.sendall(exactly(connection, len(data))[::-1])
        assert exactly(client, len(data)) == data[::-1]
    assert client.getpeername()[0] == to
    return str(peer[0])


def exactly(stream: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = stream.recv(length - len(data))
        assert more, "the connection has ended early"
        data += more
    return data


class TestWithout:
    """A node without the rules, on which a router may not forward a link-local source: the
    counterpart of the checks below.
    """

    def test_no_connection_reaches_a_pod(self, plain: ProbeWorld) -> None:
        """A connection from the source of probes to a pod fails with "No route to host"."""
        server = plain.bound(plain.pod, SOCK_STREAM, POD)
        server.listen()
        client = plain.probe(SOCK_STREAM)
        with pytest.raises(OSError, match="No route to host"):
            client.connect((POD, server.getsockname()[1]))


class TestProbes:
    @pytest.mark.parametrize("data", [b"GET /healthz", FOUR_KILOBYTES])
    def test_tcp(self, world: ProbeWorld, data: bytes) -> None:
        """The pod of a TCP probe receives the global address as its source, and the load balancer
        receives the pod's answer.
        """
        assert exchange(world, world.bound(world.pod, SOCK_STREAM, POD), data=data) == ADDRESS

    @pytest.mark.parametrize("data", [b"x", FOUR_KILOBYTES])
    def test_udp(self, world: ProbeWorld, data: bytes) -> None:
        """Datagrams of probes are rewritten there and back, even in fragments."""
        server = world.bound(world.pod, SOCK_DGRAM, POD)
        client = world.probe(SOCK_DGRAM)
        client.sendto(data, server.getsockname())
        received, peer = server.recvfrom(65535)
        assert received == data
        assert peer[0] == ADDRESS
        server.sendto(data, peer)
        received, peer = client.recvfrom(65535)
        assert received == data
        assert peer[0] == POD

    @pytest.mark.parametrize("backend", [POD, NODE])
    def test_dnat(self, world: ProbeWorld, backend: str) -> None:
        """A probe of a service, as kube-proxy forwards it to a pod or to a listener of the node, is
        answered from the service's address.
        """
        node = world.node if backend == NODE else world.pod
        server = world.bound(node, SOCK_STREAM, backend)
        port = server.getsockname()[1]
        rule = f"ip6 daddr {SERVICE} tcp dport {port} dnat to [{backend}]:{port}"
        chain = f"chain services {{ type nat hook prerouting priority dstnat; {rule}; }}"
        world.nft.load(Context(), f"table ip6 nat {{\n{chain}\n}}\n")
        assert exchange(world, server, to=SERVICE, data=FOUR_KILOBYTES) == ADDRESS

    @pytest.mark.parametrize("to", [NODE, NODE_LOCAL])
    def test_listeners_of_the_node_go_on(self, world: ProbeWorld, to: str) -> None:
        """A listener of the node is reached at either of its addresses, and receives the global
        source.
        """
        assert exchange(world, world.bound(world.node, SOCK_STREAM, "::"), to=to) == ADDRESS

    @pytest.mark.parametrize("protocol", HEADERS)
    def test_there_and_back_again_to_the_byte(self, world: ProbeWorld, protocol: int) -> None:
        """A rewritten packet differs in one address, the checksum and the hop limit alone, and its
        checksum is right.
        """
        content = HEADERS[protocol] + FOUR_KILOBYTES[:999]
        there = world.carry(packet(PROBE, POD, protocol, content))
        assert there == packet(ADDRESS, POD, protocol, content, hop_limit=63)
        back = world.carry(packet(POD, ADDRESS, protocol, content), outward=True)
        assert back == packet(POD, PROBE, protocol, content, hop_limit=63)
        assert checksum_is_right(there)
        assert checksum_is_right(back)


class TestOthers:
    @pytest.mark.parametrize("protocol", HEADERS)
    def test_untouched_to_the_byte(self, world: ProbeWorld, protocol: int) -> None:
        """A packet between a global address and the pod differs in its hop limit alone; its
        checksum stays, right or wrong.
        """
        content = HEADERS[protocol] + FOUR_KILOBYTES[:999]
        for checksum in packet, without_checksum:
            there = checksum(CLOUD_GLOBAL, POD, protocol, content)
            assert world.carry(there) == one_hop_later(there)
            back = checksum(POD, CLOUD_GLOBAL, protocol, content)
            assert world.carry(back, outward=True) == one_hop_later(back)

    def test_another_link_local_source_stays_one(self, world: ProbeWorld) -> None:
        """Another link-local source on the link reaches the node unchanged."""
        assert self.seen_from(world, world.cloud, CLOUD_LOCAL, dev="wire") == CLOUD_LOCAL

    def test_another_device_is_left_alone(self, world: ProbeWorld) -> None:
        """The source address of probes is left alone on another device, such as the pods' gateway
        of some CNIs.
        """
        world.pod.ip(f"address add {PROBE}/64 dev eth0 nodad")
        assert self.seen_from(world, world.pod, PROBE, dev="eth0") == PROBE

    @staticmethod
    def seen_from(world: ProbeWorld, there: KernelNode, source: str, *, dev: str) -> str:
        """Send a datagram to the node and back; return the source that the node saw."""
        server = world.bound(world.node, SOCK_DGRAM, "::")
        client = world.bound(there, SOCK_DGRAM, source, dev=dev)
        client.sendto(b"x", (NODE_LOCAL, server.getsockname()[1]))
        received, peer = server.recvfrom(9)
        server.sendto(received, peer)
        assert client.recv(9) == b"x"
        return str(peer[0]).partition("%")[0]


class TestNeighbourDiscovery:
    """Neighbour discovery, without which IPv6 ends sooner or later, and which comes from the very
    address that is rewritten.
    """

    #: The rules without their exemption.
    CARELESS = "\n".join(line for line in render(RULES).splitlines() if "icmpv6" not in line)

    def test_neighbours_find_each_other(self, world: ProbeWorld) -> None:
        """Node and router find each other from empty neighbour tables, whichever side begins."""
        for _ in range(2):
            for node in world.cloud, world.node:
                node.ip("-6 neigh flush all")
            exchange(world, world.bound(world.pod, SOCK_STREAM, POD))
        # Now the node begins.
        world.node.ip("-6 neigh flush all")
        server = world.bound(world.cloud, SOCK_DGRAM, PROBE, dev="wire")
        client = world.bound(world.node, SOCK_DGRAM, NODE_LOCAL, dev="eth0")
        client.sendto(b"x", server.getsockname())
        assert server.recv(9) == b"x"

    @pytest.mark.parametrize("is_careless", [False, True])
    def test_router_advertisements(self, plain: ProbeWorld, *, is_careless: bool) -> None:
        """A default route of a short life is renewed by router advertisements, and would not come
        without the exemption.
        """
        plain.node.ip("-6 route del default")
        plain.node.run("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=2")
        plain.nft.load(Context(), self.CARELESS if is_careless else render(RULES))
        for lifetime in 9, 900:
            message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, lifetime, 0, 0)
            send_icmpv6(plain, message, "ff02::1")
            found: Any = json.loads(plain.node.ip("-6 -json route show default"))
            assert [route["gateway"] for route in found] == ([] if is_careless else [PROBE])
            # A second may have passed.
            assert all(lifetime - 3 <= route["expires"] <= lifetime for route in found)

    def test_multicast_groups(self, plain: ProbeWorld) -> None:
        """A multicast query from the probes' address is answered with a report, which would be
        missing without the exemption.
        """
        tap = plain.tap(plain.cloud, "wire")
        # Which queries one group each, so that their reports differ.
        for ruleset, group in (self.CARELESS, "ff05::77"), (render(RULES), "ff05::88"):
            plain.nft.load(Context(), ruleset)
            member = struct.pack("=16sI", inet_pton(AF_INET6, group), index_of(plain.node, "eth0"))
            plain.open(plain.node, SOCK_DGRAM).setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member
            )
            query_group(plain, group)
        groups = []
        while "ff05::88" not in groups:
            report = parts(
                next_packet(tap, lambda got: got.protocol == 0 and got.payload[8] == 143)
            ).payload[8:]
            # A record of how things are (1 or 2) is an answer; when a group was joined, its change
            # was given (3 to 6).
            if report[8] in {1, 2}:
                groups.append(socket.inet_ntop(AF_INET6, report[12:28]))
        assert "ff05::77" not in groups

    def test_redirects(self, plain: ProbeWorld) -> None:
        """A redirect of the router is followed, and would not be without the exemption."""
        better = "fe80::99"
        # A router takes no redirects on a device on which it routes; of this one it is a host.
        plain.node.run(
            "sysctl",
            "-qw",
            "net.ipv6.conf.eth0.forwarding=0",
            "net.ipv6.conf.eth0.accept_redirects=1",
        )
        for ruleset, way in (self.CARELESS, PROBE), (render(RULES), better):
            plain.nft.load(Context(), ruleset)
            redirect(plain, destination="2001:db8:9::9", target=better)
            assert f" via {way} dev eth0 " in plain.node.ip("-6 route get 2001:db8:9::9")


def without_checksum(source: str, destination: str, protocol: int, payload: bytes) -> bytes:
    """A packet whose checksum is wrong, which no router on the way examines."""
    right = packet(source, destination, protocol, payload)
    return right[:-1] + bytes([right[-1] ^ 0xFF])


def one_hop_later(data: bytes) -> bytes:
    return data[:7] + bytes([data[7] - 1]) + data[8:]


def redirect(world: ProbeWorld, *, destination: str, target: str) -> None:
    hardware = struct.pack("!BB6s", 2, 1, b"\x02\0\0\0\0\x99")
    message = (
        struct.pack("!BBHI", 137, 0, 0, 0)
        + inet_pton(AF_INET6, target)
        + inet_pton(AF_INET6, destination)
    )
    send_icmpv6(world, message + hardware, NODE_LOCAL)


def query_group(world: ProbeWorld, group: str) -> None:
    """Return if a listener answers within a millisecond."""
    message = struct.pack("!BBHHH16sBBH", 130, 0, 0, 1, 0, inet_pton(AF_INET6, group), 2, 20, 0)
    # The option `router alert`, without which a query is none.
    send_icmpv6(world, message, group, hops=1, options=bytes([0, 0, 5, 2, 0, 0, 1, 0]))


def send_icmpv6(
    world: ProbeWorld, message: bytes, to: str, *, hops: int = 255, options: bytes = b""
) -> None:
    """From the probes' address, as the cloud's router does; the kernel fills the checksum in."""
    raw = world.open(world.cloud, socket.SOCK_RAW, ICMPV6)
    for option in socket.IPV6_UNICAST_HOPS, socket.IPV6_MULTICAST_HOPS:
        raw.setsockopt(socket.IPPROTO_IPV6, option, hops)
    if options:
        raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, options)
    index = world.probe(SOCK_DGRAM).getsockname()[3]
    raw.bind((PROBE, 0, 0, index))
    raw.sendto(message, (to, 0, 0, index))
    # When the node has received the packet that was sent after it, it has dealt with it.
    server = world.bound(world.node, SOCK_DGRAM, NODE)
    world.bound(world.cloud, SOCK_DGRAM, CLOUD_GLOBAL).sendto(b"x", server.getsockname())
    assert server.recv(9) == b"x"
