"""The program of a boot and the tasks, on the same node twice, in real network namespaces: both end
in the same routes and the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import small_world
from support.examples import FEW
from support.kernel import host_of, kernel_of, needs_kernel, node_with_vrf
from support.needs import needs
from support.node_worlds import World, contested_worlds, static_route_configs
from support.overlap_answers import verdict_of
from support.patience import at_once
from support.static_route_scripts import config_of, install, static_route
from support.worlds import NODES

from hostrouting import CheckRouteOverlap, ConfigureStaticRoutes, HostRoutingConfig, StaticRoute
from hostrouting.exceptions import BackendError, RouteOverlapError, RouteRejectedError
from hostrouting.host import IPV6, OUR_PROTOCOL, Host, ObservedRoute
from hostrouting.net.routes import MAIN_TABLE
from hostrouting.node.at_boot import answer
from hostrouting.route_overlap.script import MARKER_OK, MARKERS
from hostrouting.testing import FakeHost, KernelNode


def checked(config: HostRoutingConfig) -> HostRoutingConfig:
    """Return the config with the destinations of its routes as expected CIDRs."""
    cidrs = dict.fromkeys(route.destination for route in config.static_routes.routes)
    section = {"expectedCidrs": [*cidrs], "mode": "STRICT", "fabric": "off"}
    return HostRoutingConfig.from_mapping({**config.to_mapping(), "routeOverlap": section})


def run_tasks(host: Host, config: HostRoutingConfig) -> Exception | None:
    """Run the tasks of the routes and of the check; return the error of the first one."""
    try:
        ConfigureStaticRoutes(config, host=host, force=True).do(at_once())
    except BackendError as error:
        return error
    with suppress(RouteOverlapError):
        CheckRouteOverlap(config, host=host).do(at_once())
    return None


def marker_of(host: Host) -> dict[str, str]:
    texts = {path: (host.files.read(path) or b"").decode() for path in MARKERS}
    return {path: verdict_of(path, text) for path, text in texts.items() if text}


def fib(node: KernelNode) -> list[ObservedRoute]:
    """All routes; of those that hold one place, the order is part of it."""
    return kernel_of(node).routes()


def check_others(before: list[ObservedRoute], after: list[ObservedRoute]) -> None:
    """Assert that all foreign routes are still there, in their order, and none was merged with an
    own one.
    """
    assert {route for route in after if route.nexthops} <= {*before}
    kept = [route for route in after if route.protocol != OUR_PROTOCOL]
    assert kept == [route for route in before if route.protocol != OUR_PROTOCOL]


def check_both(
    made: Callable[[], AbstractContextManager[KernelNode]],
    world: World | _Ordinary | _WithIPv6,
    config: HostRoutingConfig,
    *,
    fib: Callable[[KernelNode], list[ObservedRoute]] = fib,
) -> None:
    """Run both on one node each: the program ends in the routes and the answer of the tasks, or
    refuses the routes that the task refuses.
    """
    config = checked(config)
    with ExitStack() as stack:
        booted, configured = (stack.enter_context(made()) for _ in range(2))
        world.arrange(booted)
        world.arrange(configured)
        before = fib(configured)
        assert fib(booted) == before
        host = host_of(kernel_of(configured), is_live=True)
        error = run_tasks(host, config)
        asking = host_of(kernel_of(booted), install(FakeHost(), config), is_live=True)
        status, lines = answer(["ask", "STRICT"], asking)
        check_others(before, fib(booted))
        refused = [line.removeprefix("refused: ") for _, line in lines if "refused: " in line]
        assert bool(refused) == bool(error), (lines, error)
        if error is None:
            assert fib(booted) == fib(configured)
            assert marker_of(asking) == marker_of(host)
            assert (status == 10) == (MARKER_OK in marker_of(host))
        if isinstance(error, RouteRejectedError):
            assert of_program(refused) == of_task(error), error


def of_program(refused: Sequence[str]) -> list[str]:
    """Return the destination of each route that the program refused."""
    return sorted(
        line.split()[0].removesuffix(":").removesuffix("/32").removesuffix("/128")
        for line in refused
        if line[0] != "-"
    )


def of_task(error: RouteRejectedError) -> list[str]:
    """Return the destination of each route that the task could not add."""
    added = (refusal.change.after for refusal in error.refusals)
    return sorted(
        str(route).split()[0].removesuffix("/32").removesuffix("/128") for route in added if route
    )


class TestProgramAndTasks:
    @needs_kernel
    @settings(max_examples=FEW)
    @given(contested_worlds(), static_route_configs())
    def test_they_end_in_the_same_routes(self, world: World, config: HostRoutingConfig) -> None:
        """The program of a boot ends in the tasks' routes, refusals and answer."""
        check_both(KernelNode.made, world, config)

    @needs("kernel", "vrf")
    @pytest.mark.other_kernel
    @settings(max_examples=FEW)
    @given(
        contested_worlds(),
        static_route_configs(),
        st.sets(small_world.devices(), min_size=1),
    )
    def test_so_they_do_beside_a_vrf(
        self, world: World, config: HostRoutingConfig, in_vrf: set[str]
    ) -> None:
        """The program and the tasks agree on a node with a VRF."""
        check_both(partial(node_with_vrf, in_vrf), world, config)


#: Most of what an ordinary node has, and a little of what it has not.
_ORDINARY_ROUTES = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["add", "add", "append", "prepend"]),
    st.sampled_from(["default", "default", "172.20.1.0/24", "172.20.0.0/16", "172.21.0.0/16"]),
    st.sampled_from(["via 10.0.0.7 dev e0", "via 10.0.0.7 dev e0", "via 10.1.0.7 dev e1"]),
    st.sampled_from(["", "", "metric 5", "metric 100", "metric 100 mtu 1400", "tos 8"]),
    st.sampled_from(["proto dhcp src 10.0.0.4", "proto static", "proto 142", "proto 142 onlink"]),
)
_ORDINARY_CONFIGS = st.lists(
    st.builds(
        StaticRoute,
        destination=st.sampled_from(["172.20.1.0/24", "172.20.0.0/16", "172.21.0.9/32"]),
        gateway=st.sampled_from([None, "10.0.0.7", "10.0.0.8"]),
        dev=st.sampled_from([None, "e0", "e0"]),
        metric=st.sampled_from([0, 0, 5]),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda route: (route.destination, route.metric),
)


class _Ordinary(NamedTuple):
    commands: Sequence[str]

    def arrange(self, node: KernelNode) -> None:
        for dev in "e0", "e1":
            node.add_link(dev, carrier=dev == "e0")
            node.add_address(dev, f"10.{dev[1]}.0.4/16")
        for command in self.commands:
            with suppress(BackendError):
                node.ip(f"route {command}")


@needs_kernel
@settings(max_examples=FEW)
@given(st.lists(_ORDINARY_ROUTES, max_size=4), _ORDINARY_CONFIGS.map(config_of))
def test_so_they_do_on_ordinary_nodes(commands: list[str], config: HostRoutingConfig) -> None:
    """The program and the tasks agree on ordinary nodes."""
    check_both(KernelNode.made, _Ordinary(commands), config)


#: What stands on the node of IPv6: defaults, and foreign routes and own ones of earlier configs in
#: the same few places.
_IPV6_ROUTES = st.builds(
    "{} {} {} {} {} {}".format,
    st.sampled_from(["add", "append"]),
    st.sampled_from(["default", "default", "fd00:1::/48", "fd00:1::/64", "fd00:1::9/128"]),
    st.sampled_from(["", "", "", "", "from fd00:7::/64"]),
    st.sampled_from(
        ["via fe80::7 dev e0", "via fe80::8 dev e0", "via fe80::7 dev e1", "dev e1", "nhid 5"]
    ),
    st.sampled_from(["metric 1", "metric 1", "metric 5", "metric 1024"]),
    st.sampled_from(["proto static", "proto ra pref high", "proto 142", "proto 142"]),
    # hostrouting adds no route for one source.
).filter(lambda words: not {"from", "142"} <= {*words.split()})
_IPV6_CONFIGS = st.lists(
    st.builds(
        StaticRoute,
        destination=st.sampled_from(["fd00:1::/48", "fd00:1::/64", "fd00:1::9/128"]),
        gateway=st.sampled_from([None, None, "fe80::7", "fe80::8"]),
        dev=st.sampled_from([None, "e0", "e1"]),
        metric=st.sampled_from([0, 0, 5]),
    )
    | st.builds(
        StaticRoute,
        destination=st.just("10.9.0.0/16"),
        gateway=st.just("fe80::7"),
        dev=st.just("e1"),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda route: (route.destination, route.metric),
).filter(lambda routes: any(route.family == IPV6 for route in routes))


class _WithIPv6(NamedTuple):
    commands: Sequence[str]

    def arrange(self, node: KernelNode) -> None:
        for dev in "e0", "e1":
            node.add_link(dev)
            node.ip(f"-6 address add fe80::{dev[1]}1/64 dev {dev} nodad")
        node.ip("-6 nexthop add id 5 via fe80::8 dev e1")
        for command in self.commands:
            with suppress(BackendError):
                node.ip(f"-6 route {command}")


def both_families(node: KernelNode) -> list[ObservedRoute]:
    # The kernel's own routes of an address come some time later.
    ipv6 = kernel_of(node).routes(IPV6)
    return [*fib(node), *(route for route in ipv6 if route.table == MAIN_TABLE)]


@needs_kernel
@settings(max_examples=FEW)
@given(st.lists(_IPV6_ROUTES, max_size=8), _IPV6_CONFIGS.map(config_of))
# A removal by device and metric might take a next hop of the first route.
@example(
    [
        "add default via fe80::7 dev e1 metric 1 proto static",
        "append default via fe80::7 dev e0 metric 1 proto static",
        "append default dev e1 metric 1 proto 142",
    ],
    config_of([static_route("fd00:1::/48 via fe80::7 dev e0")]),
)
def test_so_they_do_with_ipv6(commands: list[str], config: HostRoutingConfig) -> None:
    """The program and the tasks agree about IPv6 routes, without a merged route or a removed next
    hop of another program.
    """
    check_both(KernelNode.made, _WithIPv6(commands), config, fib=both_families)


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("name", NODES)
def test_so_they_do_on_named_nodes(name: str) -> None:
    """The program and the tasks agree on nodes of clouds, CNIs and VPNs."""
    ordinary = NODES[name]
    section = {"expectedCidrs": ordinary.cidrs, "expectedDevs": [*(ordinary.expected or ())]}
    routes = [StaticRoute(destination=f"172.16.{octet}.0/22") for octet in range(8, 40, 4)]
    document = config_of(routes).to_mapping()
    config = HostRoutingConfig.from_mapping(
        {**document, "routeOverlap": {**section, "mode": "STRICT"}}
    )
    found = []
    for asks in True, False:
        with KernelNode.made() as node, KernelNode.made() as beside:
            ordinary.arrange(node, beside)
            fake = install(FakeHost(), config) if asks else FakeHost()
            ordinary.write_files(node, fake.files)
            host = host_of(kernel_of(node), fake, is_live=True)
            if asks:
                status, _ = answer(["ask", "STRICT"], host)
                is_refused = status == 11 and not marker_of(host)
            else:
                is_refused = run_tasks(host, config) is not None
            own = [] if is_refused else [*map(str, host.routes.routes_of(OUR_PROTOCOL))]
            found.append((is_refused, marker_of(host), own))
    assert found[0] == found[1]
