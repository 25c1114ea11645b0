"""Ordinary nodes, as commands of `ip`: of clouds, of CNIs, of VPNs and of routing daemons.

Each but the marked ones is right; a change of the proof must hold none of them. A bond and a VRF
are missing: not every kernel that runs the tests has these devices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from support.fabric_files import record, write_files
from support.overlap_answers import ScriptRun, run_script

from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress
from hostrouting.testing import KernelNode

#: In a command, the name of another namespace.
BESIDE: Final = "BESIDE"


class OrdinaryNode(NamedTuple):
    """A node, the expected CIDRs, and the verdict on it."""

    commands: Sequence[str]
    cidrs: Sequence[str]
    is_right: bool = True
    expected: Sequence[str] | None = None
    #: The address in the agent's pool; None without an agent.
    pool: str | None = None

    def arrange(self, node: KernelNode, beside: KernelNode) -> None:
        """Make it so; `beside` is a second namespace for its commands."""
        for command in self.commands:
            program, _, words = command.replace(BESIDE, beside.name).partition(" ")
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

    def boot(self, node: KernelNode, folder: Path, options: Mapping[str, object]) -> ScriptRun:
        """Run the boot script, where RDMA is switched on if the node has a pool.

        `options` are further keys of routeOverlap.
        """
        if self.pool is not None:
            write_files(folder, self.fabric(node))
        if self.pool == "":
            (folder / POOL[1:]).write_bytes(record(b"HostName", b"a host"))
        return run_script(node, folder / "run", self.cidrs, files=folder, options=options)


def _device(name: str, *addresses: str, up: bool = True) -> list[str]:
    commands = [f"link add {name} type veth peer name p{name}", f"link set p{name} up"]
    commands += [f"link set {name} up"] if up else []
    return commands + [f"addr add {address} dev {name}" for address in addresses]


def _hops(*gateways: str) -> str:
    return " ".join(f"nexthop via {gateway} dev eth0" for gateway in gateways)


def _forwarding() -> list[str]:
    return ["sysctl net.ipv6.conf.all.forwarding=1"]


_BASE = [
    *_device("eth0", "10.224.0.4/16"),
    "route add default via 10.224.0.1 dev eth0 proto dhcp src 10.224.0.4 metric 100",
]
_STATIC = [
    f"route add 172.16.{octet}.0/22 via 10.224.0.1 dev eth0 proto 142" for octet in range(8, 40, 4)
]
_GPU = [*_BASE, *_device("ib0", "172.16.1.4/16"), *_STATIC]
_PODS = [
    command
    for number in range(1, 8)
    for command in (
        *_device(f"cali{number}"),
        f"route add 10.244.2.{number} dev cali{number} scope link",
    )
]
_BRIDGES = [
    "link add docker0 type bridge",
    "addr add 172.17.0.1/16 dev docker0",
    "link add cni0 type bridge",
    "addr add 10.244.1.1/24 dev cni0",
    *_device("v1"),
    "link set v1 master cni0",
    "link set cni0 up",
]
_OF_IPV6 = ["-6 addr add 2001:db8:1::4/64 dev eth0 nodad"]
_ADVERTISED = [
    *_OF_IPV6,
    "-6 route add default via fe80::1 dev eth0 proto ra metric 100 expires 1800",
]
_TAILSCALE = [
    *_device("tailscale0"),
    "rule add pref 5210 fwmark 0x80000/0xff0000 lookup main",
    "rule add pref 5230 fwmark 0x80000/0xff0000 lookup main",
    "rule add pref 5250 fwmark 0x80000/0xff0000 unreachable",
    "rule add pref 5270 lookup 52",
    "route add 100.64.0.9 dev tailscale0 table 52",
]
_SERVICES = ("172.16.8.0/22", "172.16.16.0/22", "172.16.24.0/22", "172.16.32.0/22")
_IPV6 = (*_SERVICES, "2001:db8:8::/48", "fd00:10::/108")

NODES: Final = {
    "a GPU node after an apply": OrdinaryNode(_GPU, _SERVICES),
    "with idle and used bridges": OrdinaryNode([*_GPU, *_BRIDGES], _SERVICES),
    "a route for each pod, in an expected CIDR": OrdinaryNode(
        [*_GPU, *_PODS], [*_SERVICES, "10.244.0.0/16"]
    ),
    "pods behind a bridge": OrdinaryNode([*_GPU, *_BRIDGES], [*_SERVICES, "10.244.0.0/16"]),
    "the subnet of the node is expected": OrdinaryNode(_GPU, [*_SERVICES, "10.224.0.0/16"]),
    "Cilium's rules by marks": OrdinaryNode(
        [
            *_GPU,
            "rule add pref 9 fwmark 0x200/0xf00 lookup 2004",
            "rule add pref 100 lookup local",
            "rule del pref 0",
            "route add local default dev lo table 2004",
            "route add 10.0.1.0/24 via 10.224.0.9 dev eth0 proto kernel",
            *_device("cilium_host", "10.0.0.7/32"),
        ],
        _SERVICES,
    ),
    "Cilium's routes of pods": OrdinaryNode(
        [
            *_GPU,
            *_device("cilium_host", "10.0.0.7/32"),
            "route add 10.0.0.0/24 via 10.0.0.7 dev cilium_host proto kernel src 10.0.0.7",
            "route add 10.0.1.0/24 via 10.0.0.7 dev cilium_host src 10.0.0.7 mtu 1450",
        ],
        [*_SERVICES, "10.0.0.0/16"],
    ),
    "a table for each of two NICs": OrdinaryNode(
        [
            *_GPU,
            *_device("eth1", "10.225.0.4/16"),
            "route add default via 10.225.0.1 dev eth1 table 101",
            "rule add pref 1000 from 10.225.0.4 lookup 101",
            "route add default via 10.225.0.1 dev eth1 proto dhcp metric 200",
        ],
        _SERVICES,
    ),
    "Azure CNI's rules for pods": OrdinaryNode(
        [
            *_GPU,
            "rule add pref 20001 from 10.224.0.30 lookup 400",
            "rule add pref 20000 to 10.224.0.30 lookup main",
            "route add default via 10.224.0.1 dev eth0 table 400",
        ],
        _SERVICES,
    ),
    "AWS' rules for pods of a second interface": OrdinaryNode(
        [
            *_GPU,
            *_device("eth1"),
            "rule add pref 512 to 10.224.7.9 lookup main",
            "rule add pref 1024 fwmark 0x80/0x80 lookup main",
            "rule add pref 1536 from 10.224.7.9 lookup 2",
            "route add default via 10.224.0.1 dev eth1 onlink table 2",
        ],
        _SERVICES,
    ),
    "AWS' rule for one interface": OrdinaryNode(
        [*_GPU, "rule add pref 1024 fwmark 0x80/0x80 lookup main"], _SERVICES
    ),
    "two default routes by metric": OrdinaryNode(
        [
            *_GPU,
            *_device("eth1", "10.225.0.4/16"),
            "route add default via 10.225.0.1 dev eth1 proto dhcp metric 200",
        ],
        _SERVICES,
    ),
    "routes of a lease to the cloud's addresses": OrdinaryNode(
        [
            *_GPU,
            "route add 168.63.129.16 via 10.224.0.1 dev eth0 proto dhcp src 10.224.0.4 metric 100",
            "route add 169.254.169.254 via 10.224.0.1 dev eth0 proto dhcp metric 100",
        ],
        [*_SERVICES, "168.63.129.16/32", "169.254.169.254/32"],
    ),
    "eight devices of a fabric": OrdinaryNode(
        [
            *_BASE,
            *(
                command
                for number in range(8)
                for command in _device(f"ib{number}", f"172.{16 + number}.1.4/16")
            ),
            *_STATIC,
        ],
        _SERVICES,
    ),
    "a fabric without carrier": OrdinaryNode([*_GPU, "link set pib0 down"], _SERVICES),
    "an advertised default route": OrdinaryNode([*_GPU, *_ADVERTISED], _IPV6),
    "a pod of IPv6, on a node that forwards": OrdinaryNode(
        [
            *_GPU,
            *_ADVERTISED,
            *_forwarding(),
            *_device("cali9"),
            "-6 route add fd00:10::9 dev cali9",
        ],
        _IPV6,
    ),
    "a block of Calico, with pods": OrdinaryNode(
        [*_GPU, *_PODS, "route add blackhole 10.244.2.0/26 proto 80"],
        [*_SERVICES, "10.244.0.0/16"],
    ),
    "a block of Calico, with its own address": OrdinaryNode(
        [
            *_GPU,
            *_device("vxlan.calico", "10.244.3.0/32"),
            "route add blackhole 10.244.3.0/26 proto 80",
        ],
        [*_SERVICES, "10.244.0.0/16"],
    ),
    "a block of Calico, left by another node": OrdinaryNode(
        [*_GPU, *_PODS, "route add blackhole 10.244.9.0/26 proto 80"],
        [*_SERVICES, "10.244.0.0/16"],
        is_right=False,
    ),
    "a blackhole of bird beside pods of Calico": OrdinaryNode(
        [*_GPU, *_PODS, "route add blackhole 10.244.2.0/26 proto bird"],
        [*_SERVICES, "10.244.0.0/16"],
        is_right=False,
    ),
    "an IPv6 block of Calico": OrdinaryNode(
        [
            *_GPU,
            *_ADVERTISED,
            *_device("cali9"),
            "-6 route add fd00:10::9 dev cali9",
            "-6 route add blackhole fd00:10::/122 proto 80",
        ],
        _IPV6,
    ),
    "the IPv6 subnet of the node, with anycast": OrdinaryNode(
        [*_GPU, *_ADVERTISED, *_forwarding()], [*_SERVICES, "2001:db8:1::/64"]
    ),
    "a second advertised default route, by the fabric": OrdinaryNode(
        [*_GPU, *_ADVERTISED, "-6 route add default via fe80::2 dev ib0 proto ra metric 1024"],
        _IPV6,
    ),
    "two routers of IPv6": OrdinaryNode(
        [
            *_GPU,
            *_OF_IPV6,
            f"-6 route add default proto ra metric 1024 {_hops('fe80::1', 'fe80::2')}",
        ],
        _IPV6,
    ),
    "an advertised default route by a nexthop object": OrdinaryNode(
        [
            *_GPU,
            *_OF_IPV6,
            "-6 nexthop add id 77 via fe80::1 dev eth0",
            "-6 route add default nhid 77 proto ra metric 1024",
        ],
        _IPV6,
    ),
    "wg-quick for all traffic": OrdinaryNode(
        [
            *_GPU,
            *_device("wg0"),
            "route add default dev wg0 table 51820",
            "rule add pref 32764 not fwmark 0xca6c lookup 51820",
            "rule add pref 32763 lookup main suppress_prefixlength 0",
        ],
        _SERVICES,
    ),
    "wg-quick for its own network": OrdinaryNode(
        [*_GPU, *_device("wg0", "10.99.0.2/24")], _SERVICES
    ),
    "the rule of VRFs": OrdinaryNode([*_GPU, "rule add pref 1000 l3mdev"], _SERVICES),
    "Tailscale's rules": OrdinaryNode([*_GPU, *_TAILSCALE], _SERVICES),
    "services by two gateways of one device": OrdinaryNode(
        [
            *_GPU,
            f"route add 10.96.0.0/12 proto bgp {_hops('10.224.0.1', '10.224.0.2')}",
        ],
        [*_SERVICES, "10.96.0.0/12"],
    ),
    "services by a nexthop object": OrdinaryNode(
        [
            *_GPU,
            "nexthop add id 20 via 10.224.0.1 dev eth0",
            "route add 10.96.0.0/12 nhid 20 proto bgp metric 20",
        ],
        [*_SERVICES, "10.96.0.0/12"],
    ),
    "without a default route": OrdinaryNode(
        _device("eth0", "172.16.1.4/16"), _SERVICES, expected=["eth0"]
    ),
    "a pool whose fabric is connected": OrdinaryNode(_GPU, _SERVICES, pool="172.16.1.4"),
    "a pool whose fabric is down": OrdinaryNode(
        [*_BASE, *_device("ib0", up=False), *_STATIC], _SERVICES, pool="172.16.1.4"
    ),
    "a pool elsewhere": OrdinaryNode(_BASE, ["10.96.0.0/12", "192.168.0.0/16"], pool="172.16.1.4"),
    "a pool without addresses": OrdinaryNode(_GPU, _SERVICES, pool=""),
    "a CIDR wider than the network of the pool": OrdinaryNode(
        _BASE, ["172.16.0.0/12"], is_right=False, pool="172.31.1.4"
    ),
    "debris: a device whose other end is in a namespace": OrdinaryNode(
        [*_GPU, f"link add vx type veth peer name vy netns {BESIDE}", "link set vx up"],
        _SERVICES,
    ),
    "two gateways of one device in turns": OrdinaryNode(
        [
            *_device("eth0", "10.224.0.4/16"),
            "route append default via 10.224.0.1 dev eth0",
            "route append default via 10.224.0.2 dev eth0",
        ],
        _SERVICES,
    ),
}

#: Right nodes that the boot script leaves to the program, with the reason (docs/limits.md).
NOT_PLAIN = {
    "a table for each of two NICs": "rule (1000: from 10.225.0.4 lookup 101)",
    "a second advertised default route, by the fabric": "default (default via fe80::1 ",
    "an advertised default route by a nexthop object": "row (default nhid 77 ",
    "a block of Calico, with pods": "row (6 ",
    "a block of Calico, with its own address": "row (6 ",
    "an IPv6 block of Calico": "row (6 ",
    "wg-quick for all traffic": "rule (32764: ",
    "the rule of VRFs": "rule (1000: ",
    "Tailscale's rules": "rule (5270: ",
    "services by a nexthop object": "row (10.96.0.0/12 nhid 20 ",
}
