"""The expected device, which completes routes while it works, live and at boot; otherwise the
default route does.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import FEW
from support.infiniband import infiniband, namespace_of
from support.kernel import host_of, kernel_of, needs_kernel
from support.live_routes import change_routes
from support.patience import at_once
from support.static_route_scripts import config_of, install

from hostrouting import HostRoutingConfig, StaticRoute
from hostrouting.exceptions import BackendError
from hostrouting.host import IPV4, IPV6, OUR_PROTOCOL, Address, Host, NextHop, ObservedRoute
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.outbound import working_devs
from hostrouting.node.at_boot import answer
from hostrouting.static_routes.reconcile import resolve
from hostrouting.testing import FakeHost, KernelNode

ROUTE = StaticRoute(destination="172.16.8.0/22")
ETH0 = ObservedRoute.parse("0.0.0.0/0", "eth0", "10.224.0.1", metric=100, protocol=16)
IB0 = ObservedRoute.parse("0.0.0.0/0", "ib0", "172.16.0.1", protocol=3)
GATEWAY = Address.parse("10.224.0.1")
LINKS = Device("eth0", 2, up=True), Device("ib0", 3, up=True)


@pytest.mark.parametrize("named", [("eth0", "eth1"), ("10.224.0.0/16",), ("ib1", "10.224.0.0/16")])
def test_a_named_exit_completes_routes(named: tuple[str, ...]) -> None:
    """A route is completed by the first default route whose device the config names, by its name or
    its network.
    """
    own = DeviceAddress.parse("10.224.0.4/16")
    links = LINKS[0]._replace(addresses=(own,)), LINKS[1]
    devs = config_of([ROUTE], devs=("eth9", *named)).devs
    [route] = resolve([ROUTE], [IB0, ETH0], devs, links).routes
    assert str(route) == "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"


def test_infiniband_holds_no_named_network() -> None:
    """An InfiniBand device is a working exit only if it is named itself, even if it has an address
    in a named network, since a fabric may have a part of the node's network.
    """
    own = DeviceAddress.parse("10.224.0.4/16")
    links = LINKS[0], LINKS[1]._replace(addresses=(own,), infiniband=True)
    assert working_devs(("10.224.0.0/16",), links, [IB0, ETH0]) == {}
    assert working_devs(("ib0",), links, [IB0, ETH0]) == {IPV4: "ib0"}


def test_infiniband_completes_what_names_it() -> None:
    """A default route through an InfiniBand device completes only routes that name the device, unless
    the exit is named.
    """
    links = LINKS[0], LINKS[1]._replace(infiniband=True)
    named = StaticRoute(destination="172.16.12.0/22", dev="ib0")
    routes, missing = resolve([ROUTE, named], [IB0], links=links)
    assert [*map(str, routes)] == ["172.16.12.0/22 via 172.16.0.1 dev ib0 proto 142"]
    assert [(route, "ib0" in reason) for route, reason in missing] == [(ROUTE, True)]
    [route] = resolve([ROUTE], [IB0, ETH0], links=links).routes
    assert str(route) == "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
    [route] = resolve([ROUTE], [IB0, ETH0], ("ib0",), links).routes
    assert str(route) == "172.16.8.0/22 via 172.16.0.1 dev ib0 proto 142"


@pytest.mark.parametrize(
    ("device", "routes"),
    [
        (None, [IB0, ETH0]),
        (LINKS[0]._replace(up=False, carrier=False), [IB0, ETH0]),
        (LINKS[0]._replace(carrier=False), [IB0, ETH0]),
        (LINKS[0]._replace(failed=(GATEWAY,)), [IB0, ETH0]),
        (LINKS[0], [IB0]),
        (LINKS[0], [IB0, ETH0._replace(table=100)]),
        (
            LINKS[0],
            [
                IB0,
                ETH0._replace(
                    gateway=None,
                    dev=None,
                    nexthops=(
                        NextHop(GATEWAY, "eth0", dead=True),
                        NextHop(Address.parse("172.16.0.1"), "ib0"),
                    ),
                ),
            ],
        ),
    ],
    ids=["gone", "down", "no carrier", "FAILED", "no default route", "other table", "dead"],
)
def test_an_exit_that_does_not_work(device: Device | None, routes: Sequence[ObservedRoute]) -> None:
    """An expected device does not work if it or its default route is lost, or if it is down, without
    carrier or FAILED.
    """
    links = [LINKS[1], *([device] if device else [])]
    assert working_devs(("eth0",), links, routes) == {}


# --- live and at boot


class World(NamedTuple):
    """The states of two devices, the default routes in the order of their addition, and the device
    found.
    """

    defaults: tuple[str, ...]
    states: tuple[str, str]
    found: str

    def arrange(self, node: KernelNode, stack: ExitStack) -> None:
        """Make such a node; one of InfiniBand is that until the end of the stack."""
        for at, state in enumerate(self.states):
            dev = f"e{at}"
            if state == "InfiniBand":
                stack.enter_context(infiniband(namespace_of(node), dev, f"10.{at}.0.4/16"))
            else:
                node.add_link(dev, carrier=state != "no carrier")
                node.add_address(dev, f"10.{at}.0.4/16")
            node.ip(f"-6 address add fe80::{at}4/64 dev {dev} nodad")
        for default in self.defaults:
            with suppress(BackendError):
                node.ip(default)
        for at, state in enumerate(self.states):
            if state == "FAILED":
                for gateway in f"10.{at}.0.1", f"fe80::{at}1":
                    node.fail_neighbour(f"e{at}", gateway)
            if state == "down":
                node.set_up(f"e{at}", up=False)


_HOPS = {IPV4: "via 10.{0}.0.1 dev e{0}", IPV6: "via fe80::{0}1 dev e{0}"}


@st.composite
def default_routes(draw: st.DrawFn) -> str:
    """A command that adds one, by either device or both."""
    family = draw(st.sampled_from([IPV4, IPV4, IPV6]))
    at = draw(st.sampled_from([0, 0, 1, 1, 2]))
    hops = [_HOPS[family].format(hop) for hop in ([0, 1] if at == 2 else [at])]
    text = hops[0] if at < 2 else " ".join(f"nexthop {hop}" for hop in hops)
    option = "-6" if family == IPV6 else "-4"
    metric = draw(st.sampled_from([10, 50, 100]))
    return f"{option} route append default metric {metric} {text}"


_STATES = st.sampled_from(["up", "up", "up", "InfiniBand", "FAILED", "down", "no carrier"])
WORLDS = st.builds(
    World,
    defaults=st.lists(default_routes(), min_size=1, max_size=4).map(tuple),
    states=st.tuples(_STATES, _STATES),
    found=st.sampled_from(["e0", "e0", "e1", "e1", "absent"]),
)
CONFIGS = st.lists(
    st.builds(
        StaticRoute,
        destination=st.sampled_from(["192.0.2.0/24", "198.51.100.0/24", "fd00:8::/64"]),
        dev=st.sampled_from([None, None, None, "e0", "e1"]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda route: route.destination,
).map(config_of)


#: Default routes by the second device, and by the first one with a worse metric.
IB_BETTER = "-4 route append default metric 10 via 10.1.0.1 dev e1"
WORSE = "-4 route append default metric 50 via 10.0.0.1 dev e0"
#: Routes of both families without a device.
OPEN = config_of([ROUTE, StaticRoute(destination="fd00:8::/64")])


def beside(state: str, *, found: str = "e0") -> World:
    """Return a node whose first device has this state, and the worse default routes."""
    defaults = [
        f"{option} route append default metric {metric} {_HOPS[family].format(at)}"
        for option, family in (("-4", IPV4), ("-6", IPV6))
        for at, metric in ((1, 10), (0, 50))
    ]
    return World(tuple(defaults), (state, "up"), found)


def installed(node: KernelNode, config: HostRoutingConfig) -> Host:
    """Return a host with an installed config."""
    fake = install(FakeHost(), config)
    return host_of(kernel_of(node), fake, is_live=True)


def own_routes(node: KernelNode) -> list[str]:
    kernel = kernel_of(node)
    routes = [*kernel.routes_of(OUR_PROTOCOL, IPV4), *kernel.routes_of(OUR_PROTOCOL, IPV6)]
    return [*map(str, routes)]


@needs_kernel
@settings(max_examples=FEW)
@given(WORLDS, CONFIGS)
@example(beside("up"), OPEN)
@example(beside("FAILED"), OPEN)
@example(beside("down"), OPEN)
@example(beside("no carrier"), OPEN)
@example(beside("up", found="absent"), OPEN)
@example(beside("InfiniBand", found="absent"), OPEN)
@example(beside("InfiniBand"), OPEN)
@example(World((IB_BETTER, WORSE), ("up", "InfiniBand"), "absent"), OPEN)
@example(World((IB_BETTER, WORSE), ("up", "InfiniBand"), ""), OPEN)
def test_boot_and_task_end_in_the_same_table(world: World, config: HostRoutingConfig) -> None:
    """A boot and a task end in the same routes, whatever the states of the devices and the default
    routes are.
    """
    config = attrs.evolve(config, found_devs=(world.found,) if world.found else ())
    with ExitStack() as stack:
        booted, configured = nodes = [stack.enter_context(KernelNode.made()) for _ in range(2)]
        for node in nodes:
            world.arrange(node, stack)
        with suppress(BackendError):
            change_routes(at_once(), config, installed(configured, config), waits=False)
            answer(["ask", "STRICT"], installed(booted, config))
            assert own_routes(booted) == own_routes(configured)
