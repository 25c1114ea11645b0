"""Nodes with an announced fabric: its files, its connection, and the answers of the proof and of
the boot script.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st
from support import small_world
from support.kernel import kernel_of
from support.overlap_worlds import ScriptRun, World, run_script, worlds
from support.small_world import pick

from hostrouting import BackendError, OverlapReport, prove_egress
from hostrouting.host import Route, Rule
from hostrouting.host.ports import Routing
from hostrouting.net.addresses import Prefix, format_ipv4, parse_cidr, parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress, agent_mac
from hostrouting.testing import KernelNode, MemoryBackend

_ABSENT = "00155D33FF1D"
#: A name that a shell and the batches of `ip` would split, expand or cut.
_ODD = "*o'd\"d#0"
_NETWORKS = ("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "192.168.0.0/16")


class Announced(NamedTuple):
    """What will be connected: addresses by device, each in a /16, or networks of the config."""

    addresses: Sequence[tuple[str, str]] = ()
    networks: Sequence[str] = ()
    #: True if the device with the odd name is up before.
    odd_is_up: bool = False

    @property
    def is_plain(self) -> bool:
        """True if each network has one device."""
        networks = [address.rpartition(".")[0].rpartition(".")[0] for _, address in self.addresses]
        return len(set(networks)) == len(networks)

    def prepare(self, node: KernelNode | MemoryBackend) -> None:
        """Add the device that the world does not have."""
        node.add_link(_ODD, up=self.odd_is_up)

    def connect(self, node: KernelNode) -> None:
        """Do as the agent does: set each device up, add each address, and go on if it is there
        already.
        """
        for dev, address in self.addresses:
            with suppress(BackendError):
                node.add_link(dev)
            node.set_up(dev)
            with suppress(BackendError):
                node.add_address(dev, f"{address}/16")
        for index, cidr in enumerate(self.networks):
            node.add_link(f"list{index}")
            # As for an address that is not known.
            own = ("dev", f"list{index}", "scope", "link", "proto", "kernel")
            with suppress(BackendError):
                node.ip(f"route append {cidr}", *own)
            prefix = Prefix.parse(cidr)
            if prefix.length < 31:
                # Before Linux 5.14, also the first address.
                before = "broadcast 127.0.0.0 " in node.ip("route show table local")
                for number in (prefix.masked.network, prefix.last) if before else (prefix.last,):
                    with suppress(BackendError):
                        node.ip("route append broadcast", format_ipv4(number), *own, "table local")

    def as_fabric(self, backend: Routing) -> Fabric:
        """The announcement, by the hardware addresses of the devices."""
        if self.networks:
            return Fabric(networks=tuple(self.networks), source="routeOverlap.fabric")
        macs = {device.name: agent_mac(device.name, device.mac) for device in backend.links()}
        return Fabric(
            addresses=tuple(
                FabricAddress(macs.get(dev) or _ABSENT, parse_ipv4(own))
                for dev, own in self.addresses
            ),
            source=POOL,
        )


#: Devices of the node, and one that comes later; addresses in the places where the small world
#: meets.
_addresses = st.lists(
    st.tuples(
        st.sampled_from([*small_world.DEVICES, _ODD, "late0"]),
        st.sampled_from(
            [
                "10.1.0.1",
                "10.1.0.5",
                "10.1.0.77",
                "10.1.255.241",
                "10.2.0.1",
                "10.3.0.4",
                "192.168.7.9",
            ]
        ),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda pair: pair[1],
)
_cidrs = st.sampled_from(
    [
        *_NETWORKS,
        "10.0.0.0/8",
        "10.1.0.0/24",
        "10.1.0.8/29",
        "10.1.0.4/31",
        "10.1.0.6/32",
        "10.1.128.0/17",
        "192.168.7.0/26",
    ]
)
_some_networks = st.lists(_cidrs, min_size=1, max_size=2, unique=True)
# Hypothesis draws what a call leaves out by its type.
announcements = st.builds(Announced, _addresses, st.just(()), st.booleans()) | st.builds(
    Announced, st.just(()), _some_networks, st.booleans()
)


@st.composite
def _rules(draw: st.DrawFn) -> Rule:
    """A rule that suppresses routes, goes on elsewhere, does nothing, or selects one of the places."""
    action = pick(draw, *["lookup"] * 5, "goto", "nop")
    places = st.sampled_from([*small_world.DESTINATIONS, "10.1.0.64/26", "10.1.255.255/32"]).map(
        parse_cidr
    )
    is_lookup = action == "lookup"
    return Rule(
        priority=pick(draw, 1, 50, 100, 32765, 32766, 32767, 40000),
        action=action,
        table=pick(draw, 254, 254, 254, 255, 100, 1000) if is_lookup else 0,
        source=parse_cidr(pick(draw, "0.0.0.0/0", "0.0.0.0/0", "10.1.0.0/16", "10.1.0.1/32")),
        destination=draw(st.just((0, 0)) | places),
        inverted=pick(draw, False, False, False, True),
        goto=pick(draw, 32766, 32767, 40000, 50000) if action == "goto" else None,
        suppress_prefix_length=draw(st.none() | st.sampled_from([0, 8, 15, 16, 24]))
        if is_lookup
        else None,
    )


@st.composite
def _equal_routes(draw: st.DrawFn) -> Route:
    """A route to a network that may be announced."""
    network, length = parse_cidr(draw(_cidrs))
    kind = pick(draw, *["unicast"] * 5, "throw", "blackhole", "unreachable")
    return Route(
        network=network,
        prefix_length=length,
        dev=draw(small_world.devices()) if kind == "unicast" else None,
        metric=pick(draw, 0, 0, 100),
        table=pick(draw, 254, 254, 254, 100),
        protocol=3,
        kind=kind,
        tos=pick(draw, 0, 0, 0, 8),
    )


@st.composite
def announced_worlds(draw: st.DrawFn, *, rare: bool = False) -> World:
    world = draw(worlds(rare=rare))
    return world._replace(
        routes=[*world.routes, *draw(st.lists(_equal_routes(), max_size=3))],
        rules=[*world.rules, *draw(st.lists(_rules() | small_world.selecting_rules(), max_size=3))],
        allowed=pick(draw, world.allowed, world.allowed, ("?o*",)),
    )


def write_files(root: Path, fabric: Fabric) -> None:
    """Write the files from which the agent takes this fabric."""
    pairs = [f"{mac}:{format_ipv4(address)}" for mac, address in fabric.addresses]
    value = "|".join([f"NUMPAIRS:{len(pairs)}", *pairs])
    for path, content in {
        "/etc/waagent.conf": b"OS.EnableRDMA=y\n",
        POOL: b"IPoIB_Data".ljust(512, b"\0") + value.encode().ljust(2048, b"\0"),
    }.items():
        file = root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def both_answers(
    node: KernelNode,
    fabric: Fabric,
    folder: Path,
    cidrs: Sequence[str] = ("10.3.8.0/22",),
    *,
    allowed: Sequence[str] = (),
    expected: Sequence[str] | None = None,
    through: Sequence[str] = (),
) -> tuple[OverlapReport, ScriptRun]:
    """Let the proof and the boot script answer under an announced fabric; the script reads its
    files below `folder`. A yes of the script is one of the proof.
    """
    write_files(folder, fabric)
    kernel = kernel_of(node)
    report = prove_egress(
        kernel, cidrs, allowed_devs=allowed, expected_devs=expected, fabric=fabric
    )
    options = {"fabric": list(fabric.networks)} if fabric.networks else {}
    if expected is not None:
        options["expectedDevs"] = list(expected)
    markers = folder / "markers"
    shutil.rmtree(markers, ignore_errors=True)
    ran = run_script(
        node,
        markers,
        cidrs,
        allowed=allowed,
        files=folder,
        options=options,
        through=through,
    )
    ran.must_follow(report)
    return report, ran
