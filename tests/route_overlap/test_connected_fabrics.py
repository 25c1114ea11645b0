"""Fabrics that are connected in part: everything that the kernel loses once they are connected is
found.
"""

from __future__ import annotations

import ipaddress
import json
import random
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from support.announced_fabrics import both_answers
from support.egress_oracle import answers_of_kernel
from support.kernel import make, needs_kernel
from support.patience import wait_until

from hostrouting import OverlapReport
from hostrouting.exceptions import BackendError
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress
from hostrouting.testing import KernelNode


class FabricWorld(NamedTuple):
    """A node, what is expected on it, and what its agent will connect."""

    #: Commands of `ip`.
    commands: list[str]
    cidrs: list[str]
    #: Devices with the address in the pool.
    pairs: list[tuple[str, str]]
    #: Devices that pass over a route without carrier.
    ignoring: list[str]
    #: The other ends of devices that have no carrier yet.
    unplugged: list[str]


def arrange(node: KernelNode, world: FabricWorld) -> None:
    """Make the node so; what the kernel refuses is left out."""
    make(node, commands=[one for one in world.commands if one.startswith("link add")])
    for name in world.ignoring:
        # This kernel may lack the type of the device.
        with suppress(BackendError):
            node.run("sysctl", "-qw", f"net.ipv4.conf.{name}.ignore_routes_with_linkdown=1")
    make(node, commands=[one for one in world.commands if not one.startswith("link add")])


def macs(node: KernelNode) -> dict[str, str]:
    """Return the hardware address of each device, as a pool has it."""
    links = json.loads(node.ip("-j link show"))
    return {link["ifname"]: link["address"].replace(":", "").upper() for link in links}


def connect(node: KernelNode, world: FabricWorld) -> None:
    """Do as the agent does, for each device with the hardware address of a pair; then the carrier
    comes.
    """
    of = macs(node)
    commands = []
    for dev, own in world.pairs:
        for name in [name for name, mac in of.items() if mac == of[dev]]:
            commands += [f"link set {name} up", f"addr add {own}/16 dev {name}"]
    # A device that a pair sets up brings those above it.
    make(node, commands=commands)
    make(node, commands=[f"link set {name} up" for name in world.unplugged])


def lost(node: KernelNode, cidrs: Iterable[str]) -> set[int]:
    """Return the addresses of CIDRs, of many that are asked, that do not leave by eth0."""
    draw = random.Random(0)
    shown = json.loads(node.ip("-4 -j route show table all"))
    edges = {0, 1}
    for row in shown:
        network = ipaddress.ip_network("0.0.0.0/0" if row["dst"] == "default" else row["dst"])
        first = int(network[0])
        last = int(network[-1])
        edges |= {first - 1, first, first + 1, last - 1, last, last + 1}
    asked: set[int] = set()
    for cidr in cidrs:
        network = ipaddress.ip_network(cidr)
        first = int(network[0])
        last = int(network[-1])
        asked |= {edge for edge in {*edges, first, last} if first <= edge <= last}
        asked |= {draw.randint(first, last) for _ in range(200)}
    addresses = sorted(asked)
    questions = [f"route get fibmatch {ipaddress.ip_address(number)}" for number in addresses]
    answers = answers_of_kernel(node.name, "-4", questions)
    return {
        number
        for number, answer in zip(addresses, answers, strict=True)
        if answer.get("dev") != "eth0"
    }


def has_carriers(node: KernelNode) -> bool:
    """Return True once each device that is up has its carrier; it takes the kernel a moment."""
    links = [*filter(None, json.loads(node.ip("-j link show up")))]
    names = {link["ifname"] for link in links}
    # One above a device that is down has none, nor has the other end of one, or a bridge.
    return all("LOWER_UP" in link["flags"] or link.get("link") not in names for link in links)


pytestmark = needs_kernel

_PAIR = ("f0", "172.16.1.4")
_UP = "link set f0 up"
#: Commands after eth0 and a device f0 that is down, the device without carrier, and the expected
#: CIDR. The pool has 172.16.1.4 for f0.
_CASES = {
    "without carrier": ((_UP, "addr add 172.16.1.4/16 dev f0"), "f0", "172.16.8.0/22"),
    "without carrier, another network": (
        (_UP, "addr add 172.18.1.4/24 dev f0"),
        "f0",
        "172.18.1.64/26",
    ),
    "on another device, by a metric": (
        ("addr add 172.16.1.4/16 dev eth0 metric 300",),
        "",
        "172.16.8.0/22",
    ),
    "without carrier, before an equal route": (
        (
            _UP,
            "addr add 172.16.1.4/16 dev f0",
            "route append 172.16.0.0/16 via 10.224.0.1 dev eth0",
        ),
        "f0",
        "172.16.8.0/22",
    ),
    "in a bridge": (
        (
            "link add b0 type bridge",
            "link set f0 master b0",
            "link set b0 up",
            "addr add 172.18.1.4/24 dev b0",
        ),
        "f0 b0",
        "172.18.1.64/26",
    ),
    "with a peer": ((_UP, "addr add 172.16.1.4 peer 172.18.7.7/16 dev f0"), "", "172.16.8.0/22"),
    "a broadcast address of a device that is down": (
        ("addr add 172.18.1.4/24 brd 172.19.7.7 dev f0",),
        "",
        "172.19.7.7/32",
    ),
    "a broadcast address without a network": (
        ("addr add 172.18.1.4/32 brd 172.19.7.7 dev f0",),
        "",
        "172.19.7.7/32",
    ),
    "above a device without carrier": (
        (
            "link add u0 link f0 type macvlan",
            _UP,
            "link set u0 up",
            "addr add 172.18.1.4/24 dev u0",
        ),
        "f0 u0",
        "172.18.1.64/26",
    ),
}


def _world(commands: tuple[str, ...], unplugged: str, cidr: str) -> FabricWorld:
    devices = [f"link add {name} type veth peer name p{name}" for name in ("eth0", "f0", "f1")]
    first = ["link set peth0 up", "link set eth0 up", "addr add 10.224.0.4/16 dev eth0"]
    first += ["link set pf1 up", "route add default via 10.224.0.1 dev eth0 metric 100"]
    plugged = [] if unplugged else ["link set pf0 up"]
    names = unplugged.split()
    late = ["pf0"] if names else []
    return FabricWorld([*devices, *first, *plugged, *commands], [cidr], [_PAIR], names, late)


def _proof(node: KernelNode, world: FabricWorld) -> OverlapReport:
    """Return the proof; a yes of the boot script is one of it."""
    of = macs(node)
    addresses = tuple(FabricAddress(of[dev], parse_ipv4(own)) for dev, own in world.pairs)
    fabric = Fabric(addresses=addresses, source=POOL)
    with tempfile.TemporaryDirectory() as folder:
        report, _ = both_answers(node, fabric, Path(folder), world.cidrs, expected=["eth0"])
    return report


@pytest.mark.parametrize(("commands", "unplugged", "cidr"), _CASES.values(), ids=_CASES)
def test_it_is_announced(commands: tuple[str, ...], unplugged: str, cidr: str) -> None:
    """A CIDR that leaves right today and that the kernel loses with the fabric is found as
    announced.
    """
    world = _world(commands, unplugged, cidr)
    with KernelNode.made() as node:
        arrange(node, world)
        assert not lost(node, world.cidrs)
        [finding] = _proof(node, world).cidrs[0].findings
        connect(node, world)
        wait_until(lambda: has_carriers(node), "a carrier")
        first, last = finding.bounds
        wrong = lost(node, world.cidrs)
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
    world = _world(commands, "", "172.19.8.0/22" if "f1" in commands[0] else "172.16.8.0/22")
    with KernelNode.made() as node:
        arrange(node, world)
        report = _proof(node, world)
        connect(node, world)
        assert not lost(node, world.cidrs)
    assert report.ok
