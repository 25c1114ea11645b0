"""The boot script's routes of IPv6: beside the routes of others, it merges with none and takes none."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import FEW
from support.kernel import needs_kernel
from support.static_route_worlds import config_of, impatient

from hostrouting.config import StaticRoute
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import GIVERS, IPV6
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.static_routes import resolve
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

DESTINATIONS = ("fd00:1::/48", "fd00:1::/64", "fd00:1::9/128", "fd00::/16")
GATEWAYS = ("fe80::a", "fe80::b")
DEVICES = ("e0", "e1")
HELD = "has this destination and metric, and is never overwritten; configure narrower destinations"


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        prepare(made)
        yield made


def prepare(node: KernelNode) -> None:
    for dev in DEVICES:
        node.run("sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1", "net.ipv6.conf.default.accept_dad=0")
        node.add_link(dev)
        node.ip("-6", "address", "add", f"fe80::{dev[1]}1/64", "dev", dev, "nodad")
    node.ip("-6", "route", "add", "default", "via", GATEWAYS[0], "dev", "e0", "proto", "ra")


def run(node: KernelNode, *routes: StaticRoute) -> tuple[int, list[str]]:
    """Run the script; return its exit status, and the output that an operator reads."""
    argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash"]
    with tempfile.TemporaryDirectory() as folder:
        script = impatient(config_of(routes), folder=folder)
        done = subprocess.run(argv, input=script, capture_output=True, check=False)
    return done.returncode, (done.stdout + done.stderr).decode().splitlines()


def shown(node: KernelNode, *words: str) -> list[str]:
    text = node.ip("-6", "-o", "route", "show", "table", "all", *words).replace(" pref medium", "")
    return [line.strip() for line in text.splitlines() if not line.startswith(("multicast", "fe80::", "local"))]


def ours(node: KernelNode) -> list[str]:
    return shown(node, "proto", "142")


def test_all_is_well(node: KernelNode) -> None:
    """Open fields come from the default route of the family, the metric is 1, and the next run finds nothing to do."""
    node.ip("address", "add", "10.224.0.4/16", "dev", "e1")
    node.ip("-4", "route", "add", "default", "via", "10.224.0.1", "dev", "e1")
    routes = [StaticRoute(destination=text) for text in ("fd00:1::/48", "fd00:1::9/128", "10.9.0.0/16")]
    for _ in range(2):
        assert run(node, *routes) == (0, ["routes in force: 3"])
        assert ours(node) == [
            "fd00:1::9 via fe80::a dev e0 metric 1",
            "fd00:1::/48 via fe80::a dev e0 metric 1",
        ]
        assert node.ip("-4", "route", "show", "proto", "142").strip() == "10.9.0.0/16 via 10.224.0.1 dev e1"


def test_the_higher_preference_completes_a_route(node: KernelNode) -> None:
    """Of default routes of one metric, that of the higher preference decides; one with `from` is none of the node."""
    node.ip("-6", "route", "add", "default", "from", "fd00:7::/64", "dev", "e1", "metric", "1")
    node.ip("-6", "route", "append", "default", "dev", "e1", "proto", "ra", "pref", "high")
    assert run(node, StaticRoute(destination="fd00:1::/48")) == (0, ["routes in force: 1"])
    assert ours(node) == ["fd00:1::/48 dev e1 metric 1"]


@pytest.mark.parametrize("gateways", [("fe80::b", "fe80::a"), ("fe80::a", "fe80::b"), ("fe80::a0", "fe80::a")])
def test_of_several_next_hops_the_first_as_text_completes_a_route(node: KernelNode, gateways: Sequence[str]) -> None:
    """The kernel lists those of a default route in the order of their additions; script and task take the same."""
    node.ip("-6", "route", "flush", "default")
    for gateway in gateways:
        node.ip("-6", "route", "append", "default", "via", gateway, "dev", "e0", "metric", "1", "proto", "static")
    route = StaticRoute(destination="fd00:1::/48", dev="e0")
    assert run(node, route) == (0, ["routes in force: 1"])
    assert ours(node) == ["fd00:1::/48 via fe80::a dev e0 metric 1"]
    backend = NetlinkBackend(netns=node.name)
    [wanted] = resolve([route], [*backend.routes(), *backend.routes(IPV6)]).routes
    assert str(wanted) == "fd00:1::/48 via fe80::a dev e0 proto 142 metric 1"


def test_an_ipv4_route_by_an_ipv6_gateway(node: KernelNode) -> None:
    """From the default route, or from the config."""
    node.ip("-4", "route", "add", "default", "via", "inet6", "fe80::b", "dev", "e1")
    routes = [
        StaticRoute(destination="10.8.0.0/16"),
        StaticRoute(destination="10.9.0.0/16", gateway="fe80::a", dev="e0"),
    ]
    for _ in range(2):
        assert run(node, *routes) == (0, ["routes in force: 2"])
    assert [line.strip() for line in node.ip("-4", "route", "show", "proto", "142").splitlines()] == [
        "10.8.0.0/16 via inet6 fe80::b dev e1",
        "10.9.0.0/16 via inet6 fe80::a dev e0",
    ]


def test_without_ipv6(node: KernelNode) -> None:
    """The routes of IPv4 are in force, and those of IPv6 are refused with the reason."""
    node.ip("address", "add", "10.224.0.4/16", "dev", "e1")
    node.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    routes = [
        StaticRoute(destination="fd00:1::/48"),
        StaticRoute(destination="10.9.0.0/16", gateway="10.224.0.1", dev="e1"),
    ]
    status, [line] = run(node, *routes)
    assert status == 1
    reason = f"table main has no IPv6 default route; see {GIVERS[IPV6]}, or "
    assert line.startswith(f"refused: fd00:1::/48 via ? dev ? metric 1: {reason}")
    assert node.ip("-4", "route", "show", "proto", "142").strip() == "10.9.0.0/16 via 10.224.0.1 dev e1"


def test_a_silent_gateway_is_no_fault(node: KernelNode) -> None:
    """The kernel passes over the route, which stands all the same."""
    route = StaticRoute(destination="fd00:1::/48", gateway="fe80::a", dev="e0")
    assert run(node, route)[0] == 0
    node.ip("-6", "neigh", "replace", "fe80::a", "dev", "e0", "nud", "failed")
    assert run(node, route) == (0, ["routes in force: 1"])


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        (
            ["route add fd00:1::/48 via fe80::b dev e1 metric 1 proto bird"],
            f"'fd00:1::/48 via fe80::b dev e1 proto bird metric 1' {HELD}",
        ),
        (
            ["nexthop add id 5 via fe80::b dev e1", "route add fd00:1::/48 nhid 5 metric 1 proto bird"],
            f"'fd00:1::/48 nhid 5 via fe80::b dev e1 proto bird metric 1' {HELD}",
        ),
        (
            ["route add fd00:1::/48 from fd00:7::/64 dev e1"],
            "'fd00:1::/48 from fd00:7::/64 dev e1 metric 1024' hides every other route to this destination",
        ),
    ],
)
def test_a_place_that_another_program_holds(node: KernelNode, commands: Sequence[str], reason: str) -> None:
    """It is refused with the owner's route, which stays: before ours is there, and after."""
    route = StaticRoute(destination="fd00:1::/48", gateway="fe80::a", dev="e0")
    for command in commands:
        node.ip("-6", *command.split())
    before = shown(node)
    refused = f"refused: {route}: {reason}"
    assert run(node, route) == (1, [refused])
    assert shown(node) == before


def test_a_merge_by_another_program_is_named(node: KernelNode) -> None:
    """`append` merges its gateway with ours into one route; no change of ours takes either from it."""
    route = StaticRoute(destination="fd00:1::/48", gateway="fe80::a", dev="e0")
    assert run(node, route)[0] == 0
    node.ip("-6", "route", "append", "fd00:1::/48", "via", "fe80::b", "dev", "e1", "metric", "1", "proto", "bird")
    before = shown(node)
    assert "nexthop" in before[0]
    status, [line] = run(node, route)
    assert status == 1
    assert line.startswith(f"refused: {route}: 'fd00:1::/48 proto 142 metric 1")
    assert shown(node) == before
    other = StaticRoute(destination="fd00:7::/48", gateway="fe80::a", dev="e0")
    for _ in range(2):
        status, [line] = run(node, other)
        assert status == 0
        assert line == "routes in force: 1"
    assert {*before} <= {*shown(node)}


@st.composite
def histories(draw: st.DrawFn) -> list[str]:
    """Commands of another program, and stale routes of ours."""
    gateway, dev, destination = map(st.sampled_from, (GATEWAYS, DEVICES, DESTINATIONS))
    commands = ["nexthop add id 5 via fe80::b dev e1"]
    for _ in range(draw(st.integers(0, 6))):
        hop = draw(st.sampled_from([f"via {draw(gateway)} dev {draw(dev)}", f"dev {draw(dev)}", "nhid 5"]))
        verb = draw(st.sampled_from(["add", "append", "prepend", "replace"]))
        metric = draw(st.sampled_from(["", "metric 1", "metric 7"]))
        source = draw(st.sampled_from(["", "", "", "", "from fd00:7::/64"]))
        owner = draw(st.sampled_from(["bird", "static", "142"]))
        if owner == "142":
            verb, source = "add", ""
        commands.append(f"route {verb} {draw(destination)} {source} {hop} {metric} proto {owner}")
    return commands


def wanted() -> st.SearchStrategy[list[StaticRoute]]:
    """Routes of a config."""
    routes = st.builds(
        StaticRoute,
        destination=st.sampled_from(DESTINATIONS),
        gateway=st.none() | st.sampled_from(GATEWAYS),
        dev=st.none() | st.just("e0"),
        metric=st.sampled_from([0, 0, 7]),
    )
    return st.lists(routes, min_size=1, max_size=4, unique_by=lambda route: (route.destination, route.metric))


def place(line: str) -> tuple[str, str]:
    """Return destination and metric of a shown route."""
    words = line.replace("\\\t", " ").split()
    return words[0], words[words.index("metric") + 1]


@settings(max_examples=FEW)
@given(histories(), wanted())
def test_no_history_makes_it_merge(history: list[str], routes: list[StaticRoute]) -> None:
    """Foreign routes stay as they are; what the kernel can accept is accepted, and the rest refused."""
    with KernelNode.made() as node:
        prepare(node)
        for command in history:
            subprocess.run(["ip", "-n", node.name, "-6", *command.split()], capture_output=True, check=False)
        before = shown(node)
        foreign = [line for line in before if "proto 142" not in line]
        status, said = run(node, *routes)
        after = shown(node)
        assert [line for line in after if "proto 142" not in line] == foreign, said
        assert {line for line in after if "nexthop" in line} <= {line for line in before if "nexthop" in line}
        held = {place(line) for line in before if "proto 142" not in line or "nexthop" in line}
        hidden = {line.split()[0] for line in before if " from " in line}
        refused = [
            route
            for route in routes
            if (text := route.destination.removesuffix("/128")) in hidden or (text, str(route.metric)) in held
        ]
        assert (status == 1) == bool(refused), (said, before)
        lines = [line for line in said if line.startswith("refused: ")]
        assert len(lines) == len(refused), (said, before)
        standing = {
            f"{route.destination.removesuffix('/128')} via {route.gateway or GATEWAYS[0]} dev {route.dev or 'e0'} "
            f"proto 142 metric {route.metric}"
            for route in routes
            if route not in refused
        }
        mine = {line for line in after if "proto 142" in line}
        assert standing <= mine, (said, before, after)
        if not refused:
            assert mine == standing, (said, before, after)
        assert run(node, *routes) == (status, said)
        assert shown(node) == after


def test_a_better_default_of_the_fabric_takes_no_route(node: KernelNode) -> None:
    """An open device is that by which IPv6 must leave, in task and script: that of the IPv4 default route."""
    node.ip("-4", "address", "add", "10.224.0.4/16", "dev", "e0")
    node.ip("-4", "route", "add", "default", "via", "10.224.0.1", "dev", "e0")
    node.ip("-6", "route", "add", "default", "via", "fe80::9", "dev", "e1", "metric", "9", "proto", "ra")
    routes = [StaticRoute(destination="fd00:1::/48")]
    assert run(node, *routes) == (0, ["routes in force: 1"])
    [route] = NetlinkBackend(netns=node.name).routes_of(OUR_PROTOCOL, IPV6)
    assert route.dev == "e0"
    backend = NetlinkBackend(netns=node.name)
    [wanted] = resolve(routes, [*backend.routes(), *backend.routes(IPV6)]).routes
    assert route.fulfils(wanted)
