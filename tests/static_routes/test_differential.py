"""The boot script with its program and the task, on the same node twice, in real network
namespaces: both end in the same routes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from support import small_world
from support.examples import FEW
from support.kernel import host_of, kernel_of, needs_kernel, node_with_vrf
from support.needs import needs
from support.node_worlds import World, contested_worlds, static_route_configs
from support.patience import at_once
from support.static_route_scripts import config_of, impatient, install, static_route

from hostrouting import ConfigureStaticRoutes, HostRoutingConfig, StaticRoute
from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host import IPV6, OUR_PROTOCOL, Host, ObservedRoute
from hostrouting.net.routes import MAIN_TABLE
from hostrouting.static_routes.at_boot import Outcome, repair_once
from hostrouting.static_routes.plan import plan_routes
from hostrouting.testing import FakeHost, KernelNode


def installed_on(node: KernelNode, config: HostRoutingConfig) -> Host:
    """Return the host of a node on which a config is installed."""
    return host_of(kernel_of(node), install(FakeHost(), config), is_live=True)


def run_script(
    node: KernelNode, config: HostRoutingConfig, *arguments: str
) -> tuple[int, list[str]]:
    """Run the boot script without its waits; return its exit status and the lines for the systemd
    journal.
    """
    argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash", "-s", *arguments]
    done = subprocess.run(argv, input=impatient(config), capture_output=True, check=False)
    return done.returncode, done.stdout.decode().splitlines()


def run_task(node: KernelNode, config: HostRoutingConfig) -> Exception | None:
    host = host_of(kernel_of(node), is_live=True)
    try:
        ConfigureStaticRoutes(config, host=host).do(at_once())
    except BackendError as error:
        return error
    return None


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


#: A boot, and the question of a gate.
STARTS = st.sampled_from([(), ("now",)])


def has_nothing_to_do(node: KernelNode, config: HostRoutingConfig) -> bool:
    return plan_routes(config, host_of(kernel_of(node), is_live=True)).entries == []


def check_both(
    made: Callable[[], AbstractContextManager[KernelNode]],
    world: World | _Ordinary | _WithIPv6,
    config: HostRoutingConfig,
    start: tuple[str, ...],
    *,
    fib: Callable[[KernelNode], list[ObservedRoute]] = fib,
) -> None:
    """Run both on one node each. If the script is right, so is its node for the task; otherwise the
    program ends in the routes of the task.
    """
    with ExitStack() as stack:
        booted, configured = (stack.enter_context(made()) for _ in range(2))
        world.arrange(booted)
        world.arrange(configured)
        before = fib(configured)
        assert fib(booted) == before
        error = run_task(configured, config)
        status, output = run_script(booted, config, *start)
        after = fib(booted)
        check_others(before, after)
        event(f"the script ended with {status}")
        if status == 10:
            assert error is None
            assert has_nothing_to_do(booted, config)
            assert run_script(booted, config, "now") == (10, output[-1:])
            assert fib(booted) == after
            return
        assert status in {11, 12}
        assert output
        outcome = repair_once(at_once(), installed_on(booted, config))
        check_others(before, fib(booted))
        assert bool(outcome.refusals) == bool(error), (outcome, error)
        if error is None:
            assert fib(booted) == fib(configured)
        if isinstance(error, RouteRejectedError):
            assert of_program(outcome) == of_task(error), error


def of_program(outcome: Outcome) -> list[str]:
    """Return the destination of each route that the program refused."""
    return sorted(
        line.split()[0].removesuffix(":").removesuffix("/32").removesuffix("/128")
        for line in outcome.refusals
        if line[0] != "-"
    )


def of_task(error: RouteRejectedError) -> list[str]:
    """Return the destination of each route that the task could not add."""
    added = (refusal.change.after for refusal in error.refusals)
    return sorted(
        str(route).split()[0].removesuffix("/32").removesuffix("/128") for route in added if route
    )


class TestScriptAndTask:
    @needs_kernel
    @settings(max_examples=FEW)
    @given(contested_worlds(), static_route_configs(), STARTS)
    def test_they_end_in_the_same_routes(
        self, world: World, config: HostRoutingConfig, start: tuple[str, ...]
    ) -> None:
        """A node that the script calls right leaves the task nothing to do; on any other node the
        program ends in the task's table or refusals.
        """
        check_both(KernelNode.made, world, config, start)

    @needs("kernel", "vrf")
    @pytest.mark.other_kernel
    @settings(max_examples=FEW)
    @given(
        contested_worlds(),
        static_route_configs(),
        STARTS,
        st.sets(small_world.devices(), min_size=1),
    )
    def test_so_they_do_beside_a_vrf(
        self, world: World, config: HostRoutingConfig, start: tuple[str, ...], in_vrf: set[str]
    ) -> None:
        """The script with its program and the task end in the same routes on a node with a VRF."""
        check_both(partial(node_with_vrf, in_vrf), world, config, start)


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
@given(st.lists(_ORDINARY_ROUTES, max_size=4), _ORDINARY_CONFIGS.map(config_of), STARTS)
def test_so_they_do_on_ordinary_nodes(
    commands: list[str], config: HostRoutingConfig, start: tuple[str, ...]
) -> None:
    """The script with its program and the task end in the same routes on ordinary nodes."""
    check_both(KernelNode.made, _Ordinary(commands), config, start)


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
    # hostrouting adds no route for one source: the task refuses beside one of protocol 142, and the
    # script succeeds.
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
@given(st.lists(_IPV6_ROUTES, max_size=8), _IPV6_CONFIGS.map(config_of), STARTS)
# A removal by device and metric might take a next hop of the first route.
@example(
    [
        "add default via fe80::7 dev e1 metric 1 proto static",
        "append default via fe80::7 dev e0 metric 1 proto static",
        "append default dev e1 metric 1 proto 142",
    ],
    config_of([static_route("fd00:1::/48 via fe80::7 dev e0")]),
    (),
)
def test_so_they_do_with_ipv6(
    commands: list[str], config: HostRoutingConfig, start: tuple[str, ...]
) -> None:
    """The script with its program and the task end in the same IPv6 routes, without a merged route
    or a removed next hop of another program.
    """
    check_both(KernelNode.made, _WithIPv6(commands), config, start, fib=both_families)
