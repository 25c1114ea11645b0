"""Ordinary nodes, as commands of `ip`: of clouds, of CNIs, of VPNs and of routing daemons.

Each but the marked ones is right; a change of the proof must hold none of them. A bond and a VRF
are missing: not every kernel that runs the tests has these devices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from support.fabric_files import announcing, record
from support.overlap_answers import may_start

from hostrouting.host import FileStore
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress
from hostrouting.testing import FakeHost, KernelNode

SERVICES: Final = ("172.16.8.0/22", "172.16.16.0/22", "172.16.24.0/22", "172.16.32.0/22")
_PODS: Final = (*SERVICES, "10.244.0.0/16")
_BOTH: Final = (*SERVICES, "2001:db8:8::/48", "fd00:10::/108")

#: What worlds name: further commands, among them `device NAME ADDRESS...`, a veth pair that is up.
INGREDIENTS: Final = {
    "BASE": "device eth0 10.224.0.4/16; "
    "route add default via 10.224.0.1 dev eth0 proto dhcp src 10.224.0.4 metric 100",
    "STATIC": "; ".join(
        f"route add 172.16.{octet}.0/22 via 10.224.0.1 dev eth0 proto 142"
        for octet in range(8, 40, 4)
    ),
    "GPU": "BASE; device ib0 172.16.1.4/16; STATIC",
    "PODS": "; ".join(
        f"device cali{number}; route add 10.244.2.{number} dev cali{number} scope link"
        for number in range(1, 8)
    ),
    "BRIDGES": "link add docker0 type bridge; addr add 172.17.0.1/16 dev docker0; "
    "link add cni0 type bridge; addr add 10.244.1.1/24 dev cni0; "
    "device v1; link set v1 master cni0; link set cni0 up",
    "FABRICS": "; ".join(f"device ib{number} 172.{16 + number}.1.4/16" for number in range(8)),
    "IPV6": "-6 addr add 2001:db8:1::4/64 dev eth0 nodad",
    "ADVERTISED": "IPV6; -6 route add default via fe80::1 dev eth0 proto ra metric 100 expires 1800",
    "FORWARDING": "sysctl net.ipv6.conf.all.forwarding=1",
    "SECOND": "device eth1 10.225.0.4/16",
    "SECOND_LEASE": "SECOND; route add default via 10.225.0.1 dev eth1 proto dhcp metric 200",
}


class World(NamedTuple):
    """A node, the expected CIDRs, and the verdict on it."""

    #: Ingredients and commands, between semicolons; BESIDE is the name of another namespace.
    commands: str
    cidrs: Sequence[str] = SERVICES
    is_right: bool = True
    expected: Sequence[str] | None = None
    #: The address in the agent's pool; None without an agent.
    pool: str | None = None

    def arrange(self, node: KernelNode, beside: KernelNode) -> None:
        """Make it so; `beside` is a second namespace for its commands."""
        for command in _expanded(self.commands):
            program, _, words = command.replace("BESIDE", beside.name).partition(" ")
            if program == "sysctl":
                node.run("sysctl", "-qw", words)
            else:
                node.ip(program, words)

    def fabric(self, node: KernelNode) -> Fabric:
        """Return the fabric that its pool announces for ib0, or for a device that comes later."""
        if not self.pool:
            return Fabric()
        links = json.loads(node.ip("-j link show"))
        of = {link["ifname"]: link["address"].replace(":", "").upper() for link in links}
        address = FabricAddress(of.get("ib0", "00155D33FF1D"), parse_ipv4(self.pool))
        return Fabric(addresses=(address,), source=POOL)

    def may_start(self, node: KernelNode, options: Mapping[str, object]) -> bool:
        """Return the answer of a boot's program; `options` are further keys of routeOverlap."""
        files = FakeHost().files
        self.write_files(node, files)
        return may_start(node, self.cidrs, files=files, options=options)

    def write_files(self, node: KernelNode, files: FileStore) -> None:
        """Write the files of the agent; RDMA is switched on if the node has a pool."""
        if self.pool is not None:
            for path, content in announcing(self.fabric(node)).items():
                files.write(path, content, mode=0o644)
        if self.pool == "":
            files.write(POOL, record(b"HostName", b"a host"), mode=0o644)


def _expanded(commands: str) -> Iterator[str]:
    """Yield each command, those of ingredients in their places."""
    for command in re.split(r";\s*", commands):
        word, *rest = command.split()
        if word in INGREDIENTS:
            yield from _expanded(INGREDIENTS[word])
        elif word == "device":
            name, *addresses = rest
            yield f"link add {name} type veth peer name p{name}"
            yield f"link set p{name} up"
            yield f"link set {name} up"
            yield from (f"addr add {address} dev {name}" for address in addresses)
        else:
            yield command


NODES: Final = {
    "a GPU node after an apply": World("GPU"),
    "with idle and used bridges": World("GPU; BRIDGES"),
    "a route for each pod, in an expected CIDR": World("GPU; PODS", _PODS),
    "pods behind a bridge": World("GPU; BRIDGES", _PODS),
    "the subnet of the node is expected": World("GPU", [*SERVICES, "10.224.0.0/16"]),
    "Cilium's rules by marks": World(
        "GPU; rule add pref 9 fwmark 0x200/0xf00 lookup 2004; rule add pref 100 lookup local; "
        "rule del pref 0; route add local default dev lo table 2004; "
        "route add 10.0.1.0/24 via 10.224.0.9 dev eth0 proto kernel; device cilium_host 10.0.0.7/32"
    ),
    "Cilium's routes of pods": World(
        "GPU; device cilium_host 10.0.0.7/32; "
        "route add 10.0.0.0/24 via 10.0.0.7 dev cilium_host proto kernel src 10.0.0.7; "
        "route add 10.0.1.0/24 via 10.0.0.7 dev cilium_host src 10.0.0.7 mtu 1450",
        [*SERVICES, "10.0.0.0/16"],
    ),
    "a table for each of two NICs": World(
        "GPU; SECOND_LEASE; route add default via 10.225.0.1 dev eth1 table 101; "
        "rule add pref 1000 from 10.225.0.4 lookup 101"
    ),
    "Azure CNI's rules for pods": World(
        "GPU; rule add pref 20001 from 10.224.0.30 lookup 400; "
        "rule add pref 20000 to 10.224.0.30 lookup main; "
        "route add default via 10.224.0.1 dev eth0 table 400"
    ),
    "AWS' rules for pods of a second interface": World(
        "GPU; device eth1; rule add pref 512 to 10.224.7.9 lookup main; "
        "rule add pref 1024 fwmark 0x80/0x80 lookup main; "
        "rule add pref 1536 from 10.224.7.9 lookup 2; "
        "route add default via 10.224.0.1 dev eth1 onlink table 2"
    ),
    "AWS' rule for one interface": World("GPU; rule add pref 1024 fwmark 0x80/0x80 lookup main"),
    "two default routes by metric": World("GPU; SECOND_LEASE"),
    "routes of a lease to the cloud's addresses": World(
        "GPU; "
        "route add 168.63.129.16 via 10.224.0.1 dev eth0 proto dhcp src 10.224.0.4 metric 100; "
        "route add 169.254.169.254 via 10.224.0.1 dev eth0 proto dhcp metric 100",
        [*SERVICES, "168.63.129.16/32", "169.254.169.254/32"],
    ),
    "eight devices of a fabric": World("BASE; FABRICS; STATIC"),
    "a fabric without carrier": World("GPU; link set pib0 down"),
    "an advertised default route": World("GPU; ADVERTISED", _BOTH),
    "a pod of IPv6, on a node that forwards": World(
        "GPU; ADVERTISED; FORWARDING; device cali9; -6 route add fd00:10::9 dev cali9", _BOTH
    ),
    "a block of Calico, with pods": World(
        "GPU; PODS; route add blackhole 10.244.2.0/26 proto 80", _PODS
    ),
    "a block of Calico, with its own address": World(
        "GPU; device vxlan.calico 10.244.3.0/32; route add blackhole 10.244.3.0/26 proto 80", _PODS
    ),
    "a block of Calico, left by another node": World(
        "GPU; PODS; route add blackhole 10.244.9.0/26 proto 80", _PODS, is_right=False
    ),
    "a blackhole of bird beside pods of Calico": World(
        "GPU; PODS; route add blackhole 10.244.2.0/26 proto bird", _PODS, is_right=False
    ),
    "an IPv6 block of Calico": World(
        "GPU; ADVERTISED; device cali9; -6 route add fd00:10::9 dev cali9; "
        "-6 route add blackhole fd00:10::/122 proto 80",
        _BOTH,
    ),
    "the IPv6 subnet of the node, with anycast": World(
        "GPU; ADVERTISED; FORWARDING", [*SERVICES, "2001:db8:1::/64"]
    ),
    "a second advertised default route, by the fabric": World(
        "GPU; ADVERTISED; -6 route add default via fe80::2 dev ib0 proto ra metric 1024", _BOTH
    ),
    "two routers of IPv6": World(
        "GPU; IPV6; -6 route add default proto ra metric 1024 "
        "nexthop via fe80::1 dev eth0 nexthop via fe80::2 dev eth0",
        _BOTH,
    ),
    "an advertised default route through a nexthop object": World(
        "GPU; IPV6; -6 nexthop add id 77 via fe80::1 dev eth0; "
        "-6 route add default nhid 77 proto ra metric 1024",
        _BOTH,
    ),
    "wg-quick for all traffic": World(
        "GPU; device wg0; route add default dev wg0 table 51820; "
        "rule add pref 32764 not fwmark 0xca6c lookup 51820; "
        "rule add pref 32763 lookup main suppress_prefixlength 0"
    ),
    "wg-quick for its own network": World("GPU; device wg0 10.99.0.2/24"),
    "the rule of VRFs": World("GPU; rule add pref 1000 l3mdev"),
    "Tailscale's rules": World(
        "GPU; device tailscale0; rule add pref 5210 fwmark 0x80000/0xff0000 lookup main; "
        "rule add pref 5230 fwmark 0x80000/0xff0000 lookup main; "
        "rule add pref 5250 fwmark 0x80000/0xff0000 unreachable; "
        "rule add pref 5270 lookup 52; route add 100.64.0.9 dev tailscale0 table 52"
    ),
    "services by two gateways of one device": World(
        "GPU; route add 10.96.0.0/12 proto bgp "
        "nexthop via 10.224.0.1 dev eth0 nexthop via 10.224.0.2 dev eth0",
        [*SERVICES, "10.96.0.0/12"],
    ),
    "services by a nexthop object": World(
        "GPU; nexthop add id 20 via 10.224.0.1 dev eth0; "
        "route add 10.96.0.0/12 nhid 20 proto bgp metric 20",
        [*SERVICES, "10.96.0.0/12"],
    ),
    "without a default route": World("device eth0 172.16.1.4/16", expected=["eth0"]),
    "a pool whose fabric is connected": World("GPU", pool="172.16.1.4"),
    "a pool whose fabric is down": World(
        "BASE; device ib0; link set ib0 down; STATIC", pool="172.16.1.4"
    ),
    "a pool elsewhere": World("BASE", ["10.96.0.0/12", "192.168.0.0/16"], pool="172.16.1.4"),
    "a pool without addresses": World("GPU", pool=""),
    "a CIDR wider than the network of the pool": World(
        "BASE", ["172.16.0.0/12"], is_right=False, pool="172.31.1.4"
    ),
    "debris: a device whose other end is in a namespace": World(
        "GPU; link add vx type veth peer name vy netns BESIDE; link set vx up"
    ),
    "two gateways of one device in turns": World(
        "device eth0 10.224.0.4/16; route append default via 10.224.0.1 dev eth0; "
        "route append default via 10.224.0.2 dev eth0"
    ),
}
