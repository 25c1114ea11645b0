"""`check --fix`: the config that mends a node, as an apply proves; or no config does, as every address proves."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_world
from support.examples import FEW
from support.in_process import run_here
from support.kernel import needs_kernel
from support.overlap_worlds import CIDRS, World, worlds

from hostrouting.config import HostRoutingConfig
from hostrouting.exceptions import BackendError
from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.fix import fixed
from hostrouting.host import RouteBackend
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import bounds, format_ipv4
from hostrouting.net.default_route import default_routes
from hostrouting.net.routes import Route
from hostrouting.route_overlap import prove_config
from hostrouting.route_overlap.fabric import Fabric
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from phases import Context
from phases.testing import ManualClock


def in_time() -> Context:
    return Context(clock=ManualClock(auto=True))


@st.composite
def own_routes(draw: st.DrawFn) -> dict[str, Any]:
    """A route of a config, which may be wrong, in the way, or refused."""
    given = {
        "destination": draw(st.sampled_from([*CIDRS, *small_world.DESTINATIONS[1:]])),
        "gateway": draw(st.none() | st.sampled_from(small_world.GATEWAYS)),
        "dev": draw(st.none() | small_world.devices()),
        "metric": draw(st.sampled_from([0, 0, 100])),
    }
    return {name: value for name, value in given.items() if value}


CONFIGS = st.lists(own_routes(), max_size=2, unique_by=lambda route: (route["destination"], route.get("metric")))


def judge(node: MemoryBackend | KernelNode, backend: RouteBackend, world: World, routes: list[dict[str, Any]]) -> str:
    """Apply the answer and prove it; of a refusal, prove the reason. Return the reason."""
    section = {"expectedCidrs": world.cidrs, "allowedDevs": list(world.allowed), "fabric": "off"}
    config = HostRoutingConfig.from_mapping(
        {"staticRoutes": {"enabled": bool(routes), "routes": routes}, "routeOverlap": section}
    )
    host = FakeHost(backend)
    found = fixed(in_time(), config, host)
    apply = ConfigureStaticRoutes(config if isinstance(found, str) else found, host=host)
    if isinstance(found, HostRoutingConfig):
        apply.act(in_time())
        assert prove_config(found, Fabric(), backend).ok
        assert attrs.evolve(found, static_routes=config.static_routes) == config
        places = {(route.destination, route.metric) for route in found.static_routes.routes}
        assert {(route.destination, route.metric) for route in config.static_routes.routes} <= places
        assert fixed(in_time(), HostRoutingConfig.from_mapping(found.to_mapping()), host) == found
        return ""
    if found.startswith("routes of the config cannot be added now: "):
        # A device without an address may have a route to the gateway all the same: nothing is risked.
        with suppress(BackendError):
            apply.act(in_time())
            assert "has no IPv4 address" in found
    elif found.startswith("the effect of a change cannot be foreseen: "):
        model = Fib.of(backend.links(), backend.routes(), backend.rules())
        with suppress(BackendError), pytest.raises(UnknownDecisionError):
            apply.act(in_time())
            prove_config(config, Fabric(), model)
    else:
        with suppress(BackendError):
            apply.act(in_time())
        assert not prove_config(config, Fabric(), backend).ok
        assert not any(makes_right(node, backend, config, gateway) for gateway in gateways(backend))
    return found.partition(":")[0]


def gateways(backend: RouteBackend) -> Iterator[tuple[str, str]]:
    hops = (hop for route in default_routes(backend.routes()) for hop in route.hops)
    return ((str(hop.gateway), hop.dev) for hop in hops if hop.gateway)


def makes_right(
    node: MemoryBackend | KernelNode, backend: RouteBackend, config: HostRoutingConfig, way: tuple[str, str]
) -> bool:
    """Give each expected address a route of its own, where the kernel has none, and prove; take them back."""
    kept = {route.network for route in backend.routes() if route.prefix_length == 32 and route.protocol == 2}
    ranges = [bounds(cidr) for cidr in config.route_overlap.cidrs]
    addresses = {address for first, last in ranges for address in range(first, last + 1)} - kept
    added = []
    for address in sorted(addresses):
        route = Route.parse(f"{format_ipv4(address)}/32", gateway=way[0], dev=way[1])
        with suppress(BackendError):
            node.insert_route(route, verb="prepend")
            added.append(route)
    is_right = prove_config(config, Fabric(), backend).ok
    for route in added:
        node.delete_route(route)
    return is_right


def without_throw(world: World) -> World:
    """Leave out the routes that no answer of the kernel names."""
    return world._replace(routes=[route for route in world.routes if route.kind != "throw"])


@given(world=worlds(), routes=CONFIGS)
def test_the_answer_mends_or_nothing_does(world: World, routes: list[dict[str, Any]]) -> None:
    """The config that it writes makes the proof right once it is applied, and has all that was in it.

    If it refuses, not even a route for each single address would.
    """
    node = MemoryBackend()
    without_throw(world).arrange(node)
    judge(node, node, world, routes)
