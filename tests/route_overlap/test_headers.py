"""Routes that add a header to packets, which decides where they leave."""

from collections.abc import Iterator
from ipaddress import ip_network

import pytest
from support.kernel import connect, kernel_of, needs_kernel

from hostrouting import OverlapReport, prove_egress
from hostrouting.fib import Fib
from hostrouting.net.routes import Encapsulation
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

_CIDR = "172.16.8.0/22"
_GATEWAY = "via 10.224.0.1 dev eth0"


def _proof(node: KernelNode, cidr: str = _CIDR, allowed: tuple[str, ...] = ()) -> OverlapReport:
    kernel = kernel_of(node)
    families = (2, 10)
    routes = [route for family in families for route in kernel.routes(family)]
    model = Fib.of(kernel.links(), routes, [*kernel.rules(), *kernel.rules(10)])
    reports = [
        prove_egress(routing, [cidr], expected_devs=["eth0"], allowed_devs=allowed)
        for routing in (kernel, model)
    ]
    assert reports[0] == reports[1]
    return reports[0]


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node with eth0 and a device for tunnels."""
    with KernelNode.made() as made:
        connect(made, eth0="10.224.0.4/16")
        made.add_address("eth0", "2001:db8::4/64")
        made.add_link("geneve0")
        made.ip(f"route add default {_GATEWAY}")
        yield made


@pytest.mark.parametrize(
    ("commands", "cidr"),
    [
        (f"route add {_CIDR} encap seg6 mode encap segs fc00::1 {_GATEWAY}", _CIDR),
        (f"route add {_CIDR} encap ip id 7 dst 10.9.0.1 {_GATEWAY}", _CIDR),
        (f"route add {_CIDR} encap ip6 id 7 dst 2001:db8::9 {_GATEWAY}", _CIDR),
        # The kernel shows the header of an object with each route that uses it.
        (
            f"nexthop add id 7 encap ip id 7 dst 10.9.0.1 {_GATEWAY}; route add {_CIDR} nhid 7",
            _CIDR,
        ),
        # The kernel looks up the segment, whatever the device of the route is.
        ("-6 route add fd00:10::/64 encap seg6 mode encap segs fc00::1 dev eth0", "fd00:10::/64"),
    ],
)
def test_a_header_is_undecided(node: KernelNode, commands: str, cidr: str) -> None:
    """Addresses whose route adds a header are undecided, live and on the model, as the header may
    lead them elsewhere.
    """
    for command in commands.split("; "):
        node.ip(command)
    [line] = _proof(node, cidr).lines()
    network = ip_network(cidr)
    assert line.startswith(f"{cidr}: undecided {network[0]}-{network[-1]} through eth0 (")


def test_a_label_is_undecided(node: KernelNode) -> None:
    """Addresses whose route adds an MPLS label are undecided on a recorded node, though a kernel
    without mpls refuses such a route.
    """
    kernel = kernel_of(node)
    labelled = [
        route._replace(encapsulation=Encapsulation(1, b"")) if not route.prefix_length else route
        for route in kernel.routes()
    ]
    model = Fib.of(kernel.links(), labelled, kernel.rules())
    [finding] = prove_egress(model, [_CIDR], expected_devs=["eth0"]).cidrs[0].findings
    assert finding.kind == "undecided"
    assert finding.dev == "eth0"


def test_an_allowed_tunnel_is_right(node: KernelNode) -> None:
    """A route that adds a tunnel's header is right by a device that is allowed, but not one that
    adds segments.
    """
    node.ip(f"route add {_CIDR} encap ip id 7 dst 10.9.0.1 dev geneve0")
    assert _proof(node, allowed=("geneve0",)).ok
    node.ip(f"route replace {_CIDR} encap seg6 mode encap segs fc00::1 dev geneve0")
    [finding] = _proof(node, allowed=("geneve0",)).cidrs[0].findings
    assert finding.kind == "undecided"
    assert finding.dev == "geneve0"


def test_elsewhere_it_does_not_matter(node: KernelNode) -> None:
    """A route with a header to other addresses does not change the verdict."""
    node.ip(f"route add 10.99.0.0/16 encap ip id 7 dst 10.9.0.1 {_GATEWAY}")
    assert _proof(node).ok
