"""An InfiniBand device is the outbound device only if the config names it: the check, the boot, and routes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from support.infiniband import infiniband, namespace_of
from support.kernel import connect, kernel_of, needs_kernel
from support.overlap_answers import may_start

from hostrouting import HostRoutingConfig, RouteBackend
from hostrouting.host.pyroute import Pyroute2Backend
from hostrouting.route_overlap.waiting import check_with_wait
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from phases import Context

V4 = "10.96.0.0/16"
V6 = "fd09::/64"
ETH0 = "route append default via 10.224.0.1 dev eth0 metric 100"
IB0 = "route append default via 172.16.0.1 dev ib0 metric 10"
WORSE = "route append default via 172.16.0.1 dev ib0 metric 200"
V6_ETH0 = "-6 route append default via fe80::1 dev eth0 metric 100"
V6_IB0 = "-6 route append default via fe80::2 dev ib0 metric 10"


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node with eth0, and ib0 of link type 32."""
    with KernelNode.made() as made, ExitStack() as stack:
        stack.enter_context(infiniband(namespace_of(made), "ib0", "172.16.1.4/16"))
        connect(made, eth0="10.224.0.4/16")
        for dev in "eth0", "ib0":
            made.ip(f"-6 address add fe80::{'9' if dev == 'eth0' else '8'}/64 dev {dev} nodad")
        yield made


class Case(NamedTuple):
    """Commands that add default routes, and what the check finds under a section."""

    commands: Sequence[str]
    expected: tuple[str, ...]
    kinds: Sequence[str]
    section: Mapping[str, Sequence[str]] = {}
    cidr: str = V4


CASES: dict[str, Case] = {
    "Ethernet alone": Case([ETH0], ("eth0",), []),
    "InfiniBand alone": Case([IB0], (), ["unknown-exit"]),
    "InfiniBand alone, named": Case([IB0], ("ib0",), [], {"expectedDevs": ["ib0"]}),
    "InfiniBand has the better metric": Case([ETH0, IB0], ("eth0",), ["overlap"]),
    "InfiniBand has the worse metric": Case([ETH0, WORSE], ("eth0",), []),
    "in turns": Case(
        [ETH0, "route append default via 172.16.0.1 dev ib0 metric 100"], (), ["unknown-exit"]
    ),
    "one route by both": Case(
        ["route add default nexthop via 10.224.0.1 dev eth0 nexthop via 172.16.0.1 dev ib0"],
        (),
        ["unknown-exit"],
    ),
    "IPv6 by the device of IPv4": Case([IB0, ETH0, V6_ETH0], ("eth0",), [], cidr=V6),
    "IPv6 by InfiniBand alone": Case([V6_IB0], (), ["unknown-exit"], cidr=V6),
    "IPv6 by both": Case([V6_ETH0, V6_IB0], ("eth0",), ["overlap"], cidr=V6),
}


@needs_kernel
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_expected(node: KernelNode, case: Case) -> None:
    """The check of a run and that of a boot agree about InfiniBand devices."""
    for command in case.commands:
        node.ip(command)
    section = {"expectedCidrs": [case.cidr], "mode": "STRICT", "fabric": "off", **case.section}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    report = check_with_wait(Context(), config, FakeHost(kernel_of(node)), seconds=0)
    assert report.expected_devs == case.expected
    assert [finding.kind for _, finding in report.findings] == case.kinds
    options = {"fabric": "off", **case.section}
    assert may_start(node, [case.cidr], options=options) == report.ok


def test_the_answer_names_the_device_and_the_key() -> None:
    """A default route through an InfiniBand device that the config does not name counts as missing, as
    the lease of another device may be late; the verdict names the device and the key.
    """
    memory = MemoryBackend()
    memory.add_link("ib0", mac=":".join(["80"] * 20))
    memory.add_address("ib0", "172.16.1.4/16")
    memory.add_route("default", gateway="172.16.0.1", dev="ib0")
    config = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": [V4]}})
    ctx = Context()
    report = check_with_wait(ctx, config, FakeHost(memory), seconds=0)
    assert report.lacks_default == report.without_outbound_dev
    assert "ib0 (InfiniBand, so expectedDevs must name it)" in report.verdict


@needs_kernel
def test_backends_read_the_link_type(node: KernelNode) -> None:
    """Each backend recognises an InfiniBand device by its link type, whatever its name and hardware
    address are.
    """
    from pyroute2 import NetNS  # takes long to import

    node.add_link("ib1")
    with NetNS(node.name, flags=0) as netns:
        backends: list[RouteBackend] = [kernel_of(node), Pyroute2Backend(netns)]
        for backend in backends:
            assert [link.name for link in backend.links() if link.infiniband] == ["ib0"]
