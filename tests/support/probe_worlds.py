"""A small cloud: the source of probes, the node that forwards, and its pod; three namespaces, two
links.

    cloud  wire ─────── eth0  node  pod0 ─────── eth0  pod
    fe80::1234:5678:9abc                         2001:db8:2::2
    fe80::2, 2001:db8:1::1

The cloud is the node's router, too. Packets are also made by hand here, to the byte, so that they
can be compared.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from socket import AF_INET6, inet_pton
from typing import NamedTuple

from support.kernel import host_of, kernel_of

from hostrouting import ConfigureProbeSNAT, Host, HostRoutingConfig, ProbeSNATConfig
from hostrouting.azure.probe_snat.ruleset import ProbeRules
from hostrouting.host.netlink.conversation import in_namespace
from hostrouting.host.packets.nft import NftCommand
from hostrouting.testing import KernelNode
from phases import Context

PROBE = "fe80::1234:5678:9abc"
ADDRESS = "2603:1062:0:1:fe80:1234:5678:9abc"
#: Others that send from the same place.
CLOUD_LOCAL = "fe80::2"
CLOUD_GLOBAL = "2001:db8:1::1"
NODE = "2001:db8:1::4"
NODE_LOCAL = "fe80::4"
POD = "2001:db8:2::2"
RULES = ProbeRules(dev="eth0", source=PROBE, address=ADDRESS)

TCP = socket.IPPROTO_TCP
UDP = socket.IPPROTO_UDP
ICMPV6 = socket.IPPROTO_ICMPV6

_ETH_P_IPV6 = 0x86DD
#: Nothing here takes longer, unless it never comes.
_PATIENCE = 60.0


class ProbeWorld:
    """The three namespaces: `cloud`, `node` and `pod`; `nft` is the node's."""

    def __init__(self, cloud: KernelNode, node: KernelNode, pod: KernelNode) -> None:
        self.cloud, self.node, self.pod = cloud, node, pod
        self.nft = NftCommand(("ip", "netns", "exec", node.name, "nft"))
        self._open = ExitStack()
        self._taps: dict[tuple[str, str], socket.socket] = {}

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[ProbeWorld]:
        """Addresses and routes are in place, nothing is rewritten yet."""
        with KernelNode.made() as cloud, KernelNode.made() as node, KernelNode.made() as pod:
            world = cls(cloud, node, pod)
            _link(node, "eth0", cloud, "wire")
            _link(node, "pod0", pod, "eth0")
            _addresses(cloud, "wire", f"{PROBE}/64", f"{CLOUD_LOCAL}/64", f"{CLOUD_GLOBAL}/64")
            _addresses(node, "eth0", f"{NODE_LOCAL}/64", f"{NODE}/64")
            _addresses(node, "pod0", f"{NODE_LOCAL}/64", "2001:db8:2::1/64")
            _addresses(pod, "eth0", f"{POD}/64")
            cloud.ip(f"-6 route add 2001:db8::/32 via {NODE_LOCAL} dev wire")
            node.ip(f"-6 route add default via {PROBE} dev eth0")
            pod.ip("-6 route add default via 2001:db8:2::1 dev eth0")
            node.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
            with world._open:
                yield world

    @property
    def host(self) -> Host:
        """The node; its files and systemd are in memory."""
        from hostrouting.host.netlink.link_layer import NetlinkLinkLayer

        layer = NetlinkLinkLayer(netns=self.node.name)
        return host_of(kernel_of(self.node), link_layer=layer, nftables=self.nft)

    def apply(self) -> None:
        """Run the task; it finds the device by itself."""
        config = HostRoutingConfig(
            probe_snat=ProbeSNATConfig(enabled=True, detect="always"), gates=()
        )
        ConfigureProbeSNAT(config, host=self.host).do(Context(timeout=60))

    def open(
        self, node: KernelNode, kind: int, protocol: int = 0, *, family: int = AF_INET6
    ) -> socket.socket:
        """A socket that belongs to one of the namespaces, closed with the world."""
        made = in_namespace(node.name, lambda: socket.socket(family, kind, protocol))
        made.settimeout(_PATIENCE)
        return self._open.enter_context(made)

    def bound(self, node: KernelNode, kind: int, address: str, *, dev: str = "") -> socket.socket:
        """A socket of TCP or UDP with an address; `dev` for a link-local one."""
        made = self.open(node, kind)
        made.bind((address, 0, 0, index_of(node, dev) if dev else 0))
        return made

    def probe(self, kind: int) -> socket.socket:
        """A socket of the load balancer's."""
        return self.bound(self.cloud, kind, PROBE, dev="wire")

    def tap(self, node: KernelNode, dev: str) -> socket.socket:
        """Sends and receives whole IPv6 packets on a device, as the wire has them; one socket for
        each device.
        """
        if (node.name, dev) not in self._taps:
            made = self.open(
                node, socket.SOCK_DGRAM, socket.htons(_ETH_P_IPV6), family=socket.AF_PACKET
            )
            made.bind((dev, _ETH_P_IPV6))
            self._taps[node.name, dev] = made
        return self._taps[node.name, dev]

    def carry(self, data: bytes, *, outward: bool = False) -> bytes:
        """Send a packet on the cloud's wire, or on the pod's; return the packet that arrives at the
        other end.
        """
        wire, pod = (self.cloud, "wire"), (self.pod, "eth0")
        (source, dev), target = (pod, wire) if outward else (wire, pod)
        tap = self.tap(*target)
        gateway = self.tap(self.node, "pod0" if outward else "eth0").getsockname()[4]
        tap.setblocking(False)
        with suppress(BlockingIOError):
            while tap.recv(65535):
                pass  # packets that passed here before
        tap.settimeout(_PATIENCE)
        self.tap(source, dev).sendto(data, (dev, _ETH_P_IPV6, 0, 0, gateway))
        sent = parts(data)
        # The protocol, and the ports, or the fields in their place.
        return next_packet(
            tap, lambda got: got.protocol == sent.protocol and got.payload[:2] == sent.payload[:2]
        )


def index_of(node: KernelNode, dev: str) -> int:
    """The number of a device."""
    return in_namespace(node.name, lambda: socket.if_nametoindex(dev))


def next_packet(tap: socket.socket, is_wanted: Callable[[Packet], bool]) -> bytes:
    """Return the next packet of a kind; skip all others."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        data = tap.recv(65535)
        if is_wanted(parts(data)):
            return data
    raise TimeoutError("no such packet came")


class Packet(NamedTuple):
    """An IPv6 packet, taken apart."""

    source: str
    destination: str
    protocol: int
    hop_limit: int
    payload: bytes


def parts(data: bytes) -> Packet:
    """Take a packet apart."""
    length, protocol, hop_limit = struct.unpack_from("!HBB", data, 4)
    source, destination = (
        socket.inet_ntop(AF_INET6, data[start : start + 16]) for start in (8, 24)
    )
    return Packet(source, destination, protocol, hop_limit, data[40 : 40 + length])


def packet(
    source: str, destination: str, protocol: int, payload: bytes, *, hop_limit: int = 64
) -> bytes:
    """Put a packet together; `payload` begins with the header of its protocol, whose checksum is
    filled in here.
    """
    offset = _CHECKSUM_AT[protocol]
    blank = payload[:offset] + b"\0\0" + payload[offset + 2 :]
    # UDP has no 0 that is not 'none': then it is written as its other form.
    value = _checksum(source, destination, protocol, blank) or 0xFFFF
    whole = blank[:offset] + value.to_bytes(2, "big") + blank[offset + 2 :]
    header = struct.pack("!IHBB", 0x6 << 28 | 0x12345, len(whole), protocol, hop_limit)
    return header + inet_pton(AF_INET6, source) + inet_pton(AF_INET6, destination) + whole


def checksum_is_right(data: bytes) -> bool:
    """Return whether a receiver would accept the packet."""
    one = parts(data)
    return _checksum(one.source, one.destination, one.protocol, one.payload) == 0


_CHECKSUM_AT = {TCP: 16, UDP: 6, ICMPV6: 2}


def _checksum(source: str, destination: str, protocol: int, payload: bytes) -> int:
    pseudo = (
        inet_pton(AF_INET6, source)
        + inet_pton(AF_INET6, destination)
        + struct.pack("!II", len(payload), protocol)
    )
    data = pseudo + payload + b"\0" * (len(payload) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def _link(node: KernelNode, dev: str, other: KernelNode, other_dev: str) -> None:
    node.ip(f"link add {dev} type veth peer name {other_dev} netns {other.name}")
    for one, name in ((node, dev), (other, other_dev)):
        # Only the addresses of the test.
        one.ip(f"link set {name} addrgenmode none")
        one.ip(f"link set {name} up")


def _addresses(node: KernelNode, dev: str, *addresses: str) -> None:
    for address in addresses:
        # Good at once: even where nothing is tried out (accept_dad=0) the kernel takes its time on
        # a busy machine.
        node.ip(f"address add {address} dev {dev} nodad")
