"""An announced fabric: its connection, the check under it, and the judgement on it, by the
kernel once it is connected.
"""

from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import NamedTuple

from hypothesis import strategies as st
from support import small_world
from support.egress_oracle import KernelOracle, wrong_of
from support.fabric_files import announcing
from support.kernel import kernel_of
from support.overlap_answers import claimed, may_start
from support.overlap_checks import check_cidrs

from hostrouting import OverlapReport, prove_egress
from hostrouting.exceptions import BackendError
from hostrouting.host.ports import Routing
from hostrouting.net.addresses import Prefix, format_ipv4, parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress, agent_mac
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend

_ABSENT = "00155D33FF1D"


#: A name that a shell and the batches of `ip` would split, expand or cut.
_ODD = "*o'd\"d#0"


class Announced(NamedTuple):
    """The networks to connect: addresses by device, each in a /16, or networks of the config."""

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
            # The route of the kernel, without its address.
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


_some_networks = st.lists(small_world.announced_cidrs(), min_size=1, max_size=2, unique=True)


# Hypothesis draws missing arguments by their types.
announcements = st.builds(Announced, _addresses, st.just(()), st.booleans()) | st.builds(
    Announced, st.just(()), _some_networks, st.booleans()
)


def report_under(
    node: KernelNode,
    fabric: Fabric,
    cidrs: Sequence[str] = ("10.3.8.0/22",),
    *,
    allowed: Sequence[str] = (),
    expected: Sequence[str] | None = None,
) -> OverlapReport:
    """Return the report under an announced fabric; the program of a boot must give its answer."""
    report = check_cidrs(
        kernel_of(node),
        cidrs,
        allowed_devs=allowed,
        expected_devs=expected,
        fabric=fabric,
    )
    options = {"fabric": list(fabric.networks)} if fabric.networks else {}
    if expected is not None:
        options["expectedDevs"] = list(expected)
    files = FakeHost().files
    for path, content in announcing(fabric).items():
        files.write(path, content, mode=0o644)
    assert may_start(node, cidrs, allowed=allowed, options=options, files=files) == report.ok
    return report


def check_announced(
    node: KernelNode,
    announced: Announced,
    cidrs: Sequence[str],
    *,
    allowed: Sequence[str] = (),
    expected: Sequence[str] | None = None,
) -> None:
    """Assert that the check finds each address that the kernel loses when the announced ones are
    really added, and that the program of a boot gives the same answer.

    Without rules of its own, a node has no other findings, but for those that are true today, and
    where a device is allowed: the fabric counts as a whole.
    """
    kernel = kernel_of(node)
    report = report_under(
        node,
        announced.as_fabric(kernel),
        cidrs,
        allowed=allowed,
        expected=expected,
    )
    today = prove_egress(kernel, cidrs, allowed_devs=allowed, expected_devs=expected)
    fabric = {dev for dev, _ in announced.addresses}
    is_plain = len(kernel.rules()) == 3 and announced.is_plain
    announced.connect(node)
    oracle = KernelOracle(node)
    exits = expected or oracle.expected()
    devices = {link.name for link in kernel.links()}
    right = {
        dev
        for dev in devices
        if dev in exits or any(fnmatchcase(dev, pattern) for pattern in allowed)
    }
    for cidr in (one.cidr for one in report.cidrs):
        claims = claimed(report, cidr).keys()
        true = wrong_of(oracle, cidr, frozenset(right)).keys()
        assert not true - claims, [*map(format_ipv4, sorted(true - claims))]
        if exits and is_plain and not right & fabric:
            too_much = claims - true - claimed(today, cidr).keys()
            assert not too_much, [*map(format_ipv4, sorted(too_much))]
