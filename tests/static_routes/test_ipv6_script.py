"""The IPv6 routes of the boot script, beside the routes of others, with which it neither merges nor
takes any.
"""

from collections.abc import Iterator, Sequence

import pytest
from support.kernel import kernel_of, needs_kernel
from support.printed import INCOMPLETE
from support.static_route_scripts import boot, boot_with_program, config_of, static_route

from hostrouting import StaticRoute
from hostrouting.host import IPV6, OUR_PROTOCOL
from hostrouting.static_routes.reconcile import resolve
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

GATEWAYS = "fe80::a", "fe80::b"
DEVICES = "e0", "e1"


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        prepare(made)
        yield made


def prepare(node: KernelNode) -> None:
    for dev in DEVICES:
        node.run(
            "sysctl",
            "-qw",
            "net.ipv6.conf.default.addr_gen_mode=1",
            "net.ipv6.conf.default.accept_dad=0",
        )
        node.add_link(dev)
        node.ip(f"-6 address add fe80::{dev[1]}1/64 dev {dev} nodad")
    node.ip("-6 route add default via", GATEWAYS[0], "dev e0 proto ra")


def shown(node: KernelNode, *words: str) -> list[str]:
    text = node.ip("-6 -o route show table all", *words).replace(" pref medium", "")
    return [
        line.strip()
        for line in text.splitlines()
        if not line.startswith(("multicast", "fe80::", "local"))
    ]


def own_routes(node: KernelNode) -> list[str]:
    return shown(node, "proto", "142")


def test_all_is_well(node: KernelNode) -> None:
    """The script completes routes by the default route of their family, with metric 1 for IPv6, and
    the next run changes nothing.
    """
    node.ip("address add 10.224.0.4/16 dev e1")
    node.ip("-4 route add default via 10.224.0.1 dev e1")
    routes = [
        StaticRoute(destination=text) for text in ("fd00:1::/48", "fd00:1::9/128", "10.9.0.0/16")
    ]
    for _ in range(2):
        assert boot(node, *routes) == (10, ["routes in force: 3"])
        assert own_routes(node) == [
            "fd00:1::9 via fe80::a dev e0 metric 1",
            "fd00:1::/48 via fe80::a dev e0 metric 1",
        ]
        assert node.ip("-4 route show proto 142").strip() == "10.9.0.0/16 via 10.224.0.1 dev e1"


@pytest.mark.parametrize(
    ("commands", "completed"),
    [
        # Of one metric the higher preference decides; a default route with `from` is none of the
        # node.
        (
            "add default from fd00:7::/64 dev e1 metric 1; append default dev e1 proto ra pref high",
            "dev e1",
        ),
        # The kernel lists several next hops in the order of their additions; the first as text
        # counts.
        ("append default via fe80::0 dev e0 proto ra", "via fe80:: dev e0"),
        # By several devices there is no exit, and the lowest metric decides.
        ("add default via fe80::b dev e1 metric 9", "via fe80::b dev e1"),
    ],
)
def test_several_default_routes_are_for_the_program(
    node: KernelNode, commands: str, completed: str
) -> None:
    """Several IPv6 default routes are left to the program, which completes a route by the one that
    decides.
    """
    for command in commands.split("; "):
        node.ip(f"-6 route {command}")
    config = config_of([StaticRoute(destination="fd00:1::/48")])
    assert boot(node, *config.static_routes.routes)[0] == 12
    assert own_routes(node) == []
    assert boot_with_program(node, config) == (10, ["routes in force: 1"])
    assert own_routes(node) == [f"fd00:1::/48 {completed} metric 1"]


def test_an_ipv4_route_by_an_ipv6_gateway(node: KernelNode) -> None:
    """An IPv4 route by an IPv6 gateway, of the default route or of the config, is in force."""
    node.ip("-4 route add default via inet6 fe80::b dev e1")
    routes = [
        StaticRoute(destination="10.8.0.0/16"),
        static_route("10.9.0.0/16 via fe80::a dev e0"),
    ]
    for _ in range(2):
        assert boot(node, *routes) == (10, ["routes in force: 2"])
    assert [line.strip() for line in node.ip("-4 route show proto 142").splitlines()] == [
        "10.8.0.0/16 via inet6 fe80::b dev e1",
        "10.9.0.0/16 via inet6 fe80::a dev e0",
    ]


def test_without_ipv6(node: KernelNode) -> None:
    """A node without IPv6 has its IPv4 routes in force, and its IPv6 routes are refused with the
    reason.
    """
    node.ip("address add 10.224.0.4/16 dev e1")
    node.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    routes = [
        StaticRoute(destination="fd00:1::/48"),
        static_route("10.9.0.0/16 via 10.224.0.1 dev e1"),
    ]
    refused = f"refused: fd00:1::/48 via ? dev ? metric 1: {INCOMPLETE}"
    assert boot(node, *routes) == (11, [refused])
    assert node.ip("-4 route show proto 142").strip() == "10.9.0.0/16 via 10.224.0.1 dev e1"


def test_a_silent_gateway_is_not_a_fault(node: KernelNode) -> None:
    """A route by a silent gateway, which the kernel passes over, is in force."""
    route = static_route("fd00:1::/48 via fe80::a dev e0")
    assert boot(node, route)[0] == 10
    node.ip("-6 neigh replace fe80::a dev e0 nud failed")
    assert boot(node, route) == (10, ["routes in force: 1"])


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        (
            ["route add fd00:1::/48 via fe80::b dev e1 metric 1 proto bird"],
            (
                "'fd00:1::/48 via fe80::b dev e1 proto bird metric 1' (protocol bird) has this "
                "destination and metric, and the kernel might merge the two; configure another metric"
            ),
        ),
        (
            ["route add fd00:1::/48 from fd00:7::/64 dev e1"],
            (
                "'fd00:1::/48 from fd00:7::/64 dev e1 metric 1024' (protocol boot) hides every other route to this "
                "destination, at any metric; configure narrower destinations"
            ),
        ),
    ],
)
def test_a_place_that_another_program_holds(
    node: KernelNode, commands: Sequence[str], reason: str
) -> None:
    """A route whose place another program holds is refused, and the refusal names that program's
    route, which stays.
    """
    route = static_route("fd00:1::/48 via fe80::a dev e0")
    for command in commands:
        node.ip(f"-6 {command}")
    before = shown(node)
    assert boot(node, route)[0] == 12
    assert boot_with_program(node, config_of([route])) == (11, [f"refused: {route}: {reason}"])
    assert shown(node) == before


def test_a_merge_by_another_program_is_named(node: KernelNode) -> None:
    """A route into which `append` of another program merged a next hop is refused, and stays
    whole.
    """
    route = static_route("fd00:1::/48 via fe80::a dev e0")
    assert boot(node, route)[0] == 10
    node.ip("-6 route append fd00:1::/48 via fe80::b dev e1 metric 1 proto bird")
    before = shown(node)
    assert "nexthop" in before[0]
    assert boot(node, route)[0] == 12
    status, [line] = boot_with_program(node, config_of([route]))
    assert status == 11
    assert line.startswith(f"refused: {route}: another program has merged ")
    assert shown(node) == before
    other = static_route("fd00:7::/48 via fe80::a dev e0")
    status, output = boot_with_program(node, config_of([other]))
    assert status == 10
    assert output[-1] == "routes in force: 1"
    assert {*before} <= {*shown(node)}


def test_a_better_default_of_the_fabric_takes_no_route(node: KernelNode) -> None:
    """A route without a device leaves by that of the IPv4 default route, although the fabric has
    the better IPv6 one; the program completes it.
    """
    node.ip("-4 address add 10.224.0.4/16 dev e0")
    node.ip("-4 route add default via 10.224.0.1 dev e0")
    node.ip("-6 route add default via fe80::9 dev e1 metric 9 proto ra")
    routes = [StaticRoute(destination="fd00:1::/48")]
    for now in False, True:
        assert boot(node, *routes, now=now)[0] == 12
        assert boot_with_program(node, config_of(routes), now=now) == (10, ["routes in force: 1"])
    [route] = kernel_of(node).routes_of(OUR_PROTOCOL, IPV6)
    assert route.dev == "e0"
    backend = kernel_of(node)
    [wanted] = resolve(routes, [*backend.routes(), *backend.routes(IPV6)]).routes
    assert route.fulfils(wanted)
