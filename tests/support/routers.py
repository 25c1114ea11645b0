"""Routers in namespaces that send real router advertisements, by a raw socket: no daemon, and
nothing is sent unasked.

A node gets a veth pair for each device. The other ends lie in one namespace more, that of its
routers.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
from support.kernel import do
from support.patience import wait_until

from hostrouting.host.netlink.conversation import in_namespace
from hostrouting.testing import KernelNode

#: RFC 4191, 2.1.
PREFERENCES = {"high": 0b01, "medium": 0b00, "low": 0b11}
#: The link-local address of every router, and a second one on the same link.
ROUTER = "fe80::a"
SECOND_ROUTER = "fe80::b"
#: Nothing happens unasked: no detection of duplicates, no solicitations, no link-local addresses
#: but the given ones.
_STILL = {"accept_dad": 0, "router_solicitations": 0, "addr_gen_mode": 1}
_ADVERTISEMENT = 134
_PREFIX_INFORMATION, _ROUTE_INFORMATION = 3, 24
_ALL_NODES = "ff02::1"


@attrs.frozen
class Prefix:
    """Prefix information: by default a /64 on the link, from which nodes make an address."""

    cidr: str
    autonomous: bool = True

    def packed(self) -> bytes:
        """Return the option, RFC 4861, 4.6.2."""
        network = ipaddress.IPv6Network(self.cidr)
        flags = 1 << 7 | self.autonomous << 6
        head = (_PREFIX_INFORMATION, 4, network.prefixlen, flags, 3600, 1800)
        return struct.pack("!BBBBIIxxxx", *head) + network.network_address.packed


@attrs.frozen
class RouteInformation:
    """A more specific route, RFC 4191, 2.3."""

    cidr: str
    lifetime: int = 1800

    def packed(self) -> bytes:
        """Return the option."""
        network = ipaddress.IPv6Network(self.cidr)
        head = struct.pack("!BBBxI", _ROUTE_INFORMATION, 3, network.prefixlen, self.lifetime)
        return head + network.network_address.packed


def advertisement(
    lifetime: int, preference: str, options: Sequence[Prefix | RouteInformation]
) -> bytes:
    """Return a router advertisement, RFC 4861, 4.2, without its checksum: that is for the kernel to
    fill in.
    """
    head = struct.pack(
        "!BBHBBHII", _ADVERTISEMENT, 0, 0, 64, PREFERENCES[preference] << 3, lifetime, 0, 0
    )
    return head + b"".join(option.packed() for option in options)


class Router:
    """One router at the far end of a link, by its address there; it sends when it is told to."""

    def __init__(self, namespace: str, dev: str, address: str = ROUTER) -> None:
        self._socket = in_namespace(namespace, lambda: _opened(dev, address))

    def close(self) -> None:
        """Close the socket, without an advertisement that ends the default route."""
        self._socket.close()

    def advertise(
        self,
        *,
        lifetime: int = 1800,
        preference: str = "medium",
        options: Sequence[Prefix | RouteInformation] = (),
    ) -> None:
        """Send one advertisement to all nodes of the link; a lifetime of 0 takes the default route
        back.
        """
        self._socket.send(advertisement(lifetime, preference, options))


def _opened(dev: str, address: str) -> socket.socket:
    opened = socket.socket(
        socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6
    )
    scope = socket.if_nametoindex(dev)
    # A node ignores an advertisement that may have passed a router, and one that is not from a
    # link-local address.
    opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, scope)
    opened.bind((address, 0, 0, scope))
    opened.connect((_ALL_NODES, 0, 0, scope))
    return opened


def _devices_with_ipv6(node: KernelNode) -> set[str]:
    routes = json.loads(node.ip("-6 -j route show table local type multicast") or "[]")
    return {route["dev"] for route in routes if route["dst"] == "ff00::/8"}


class WiredNode(KernelNode):
    """A node whose devices are veth pairs; `far` is the namespace of their other ends, which have
    the same names.
    """

    far: KernelNode

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[WiredNode]:
        """Make both namespaces, with IPv6 in which nothing happens unasked."""
        with super().made() as node, KernelNode.made() as far:
            assert isinstance(node, WiredNode)
            node.far = far
            still = [f"net.ipv6.conf.default.{name}={value}" for name, value in _STILL.items()]
            node.run("sysctl", "-qw", *still)
            far.run("sysctl", "-qw", *still, "net.ipv6.conf.default.accept_ra=0")
            # The kernel announces the carrier of a pair at once if its ends have different indexes;
            # otherwise it may take a second.
            far.add_link("first", up=False)
            yield node

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """Make a pair. The far end has the addresses of both routers; without carrier it is down."""
        self._make_pairs(name, carrier=carrier)
        if up:
            self.set_up(name)
        if up and carrier:
            self._wait_for_ipv6(name)

    def add_links(self, *names: str) -> None:
        """Make several, each with a link-local address: fe80::1, fe80::2 and so on."""
        self._make_pairs(*names)
        commands = [f"link set {name} up" for name in names]
        commands += [
            f"address add fe80::{number}/64 dev {name} nodad"
            for number, name in enumerate(names, 1)
        ]
        do(self, commands=commands)
        self._wait_for_ipv6(*names)
        self.wait_for_addresses()

    def _make_pairs(self, *names: str, carrier: bool = True) -> None:
        """Make pairs that are down here; the far ends are up if this device is to have carrier."""
        pairs = [f"{name} type veth peer name {name} netns {self.far.name}" for name in names]
        do(self, commands=[f"link add {pair}" for pair in pairs])
        far = [
            f"address add {address}/64 dev {name} nodad"
            for name in names
            for address in (ROUTER, SECOND_ROUTER)
        ]
        if carrier:
            far += [f"link set {name} up" for name in names]
        do(self.far, commands=far)

    def _wait_for_ipv6(self, *names: str) -> None:
        # A device has IPv6 a moment after its carrier.
        wait_until(
            lambda: all(_devices_with_ipv6(end).issuperset(names) for end in (self, self.far)),
            f"IPv6 on {names}",
        )

    def hold(self, dev: str, address: str) -> None:
        """Add an IPv6 address, and wait until it is usable."""
        self.ip(f"address add {address} dev {dev} nodad")
        self.wait_for_addresses()

    def wait_for_addresses(self) -> None:
        """Wait until each address has its routes in the table local, which come a moment after it."""
        wait_until(lambda: not self._without_routes(), f"routes of {self._without_routes()}")

    def _without_routes(self) -> set[str]:
        links = [link for link in json.loads(self.ip("-6 -j address show up") or "[]") if link]
        routers = self._forwarding([link["ifname"] for link in links if link["ifname"] != "lo"])
        wanted: set[str] = set()
        for link in links:
            for held in filter(None, link.get("addr_info", [])):
                wanted.add(held["local"])
                # A router holds the first address of each network, too.
                if link["ifname"] in routers and held["prefixlen"] < 127:
                    own = ipaddress.IPv6Interface(f"{held['local']}/{held['prefixlen']}")
                    wanted.add(str(own.network[0]))
        routes = json.loads(self.ip("-6 -j route show table local"))
        return wanted - {route["dst"] for route in routes}

    def _forwarding(self, devs: Sequence[str]) -> set[str]:
        """Return those devices through which the node forwards IPv6."""
        if not devs:
            return set()
        settings = self.run("sysctl", "-n", *(f"net.ipv6.conf.{dev}.forwarding" for dev in devs))
        return {dev for dev, value in zip(devs, settings.split(), strict=True) if value == "1"}

    def switch(self, **settings: object) -> None:
        """Set switches below net.ipv6.conf; a double underscore in a name stands for a dot."""
        words = (
            f"net.ipv6.conf.{name.replace('__', '.')}={value}" for name, value in settings.items()
        )
        self.run("sysctl", "-qw", *words)

    @contextmanager
    def router(self, dev: str, address: str = ROUTER) -> Iterator[Router]:
        """Open a router at the far end of a device."""
        router = Router(self.far.name, dev, address)
        try:
            yield router
        finally:
            router.close()


def add_pod(node: KernelNode, pods: KernelNode) -> None:
    """Add a device whose other end is in another namespace, as that of a pod."""
    node.ip(f"link add pod0 type veth peer name eth0 netns {pods.name}")
