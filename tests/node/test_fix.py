"""`check --fix` writes a config that fixes the node, as an apply checks, or refuses where not even
a route for each address would fix it.
"""

from contextlib import suppress
from operator import itemgetter
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_world
from support.examples import FEW
from support.kernel import kernel_of, needs_kernel, uplink
from support.live_routes import change_routes
from support.node_worlds import CIDRS, World, worlds
from support.patience import at_once

from hostrouting import Configure, HostRoutingConfig, node_status
from hostrouting.base.commands import FIX
from hostrouting.exceptions import BackendError
from hostrouting.net.addresses import Prefix
from hostrouting.net.routes import LOCAL_TABLE, OUR_PROTOCOL, Route, default_routes
from hostrouting.net.rules import Rule
from hostrouting.node.fix import fixed
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import Expectation
from hostrouting.route_overlap.fabric import announced_fabric
from hostrouting.static_routes.entries import accepted as accepted_in
from hostrouting.static_routes.plan import plan_routes
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from phases import run


@st.composite
def cases(draw: st.DrawFn) -> tuple[World, dict[str, Any]]:
    """A node and a config, with routes that may be wrong, in the way, or refused.

    Without `throw`, which no answer of the kernel names, routes in table local, and earlier routes
    of ours on a link: by one that goes, the kernel takes a gateway that it refuses at the next
    boot, and so does the forecast.
    """
    world = draw(worlds())
    field = {
        "destination": st.sampled_from([*CIDRS, *small_world.DESTINATIONS[1:]]),
        # Not an address of the node, by which the kernel takes a route, but nobody means one.
        "gateway": st.none() | st.sampled_from(small_world.GATEWAYS[2:]),
        "dev": st.none() | small_world.devices(),
        "metric": st.sampled_from([0, 0, 100]),
    }
    routes = draw(
        st.lists(
            st.fixed_dictionaries(field), max_size=2, unique_by=itemgetter("destination", "metric")
        )
    )
    fabric = draw(
        st.sampled_from(["off", "off", ["10.1.0.0/25"], ["192.168.0.0/16", "10.0.0.0/14"]])
    )
    section = {"expectedCidrs": world.cidrs, "allowedDevs": list(world.allowed), "fabric": fabric}
    kept = [
        route
        for route in world.routes
        if route.kind != "throw"
        and route.table != LOCAL_TABLE
        and (route.gateway is not None or route.nexthops or route.protocol != OUR_PROTOCOL)
    ]
    document = {
        "staticRoutes": {"enabled": bool(routes), "routes": routes},
        "routeOverlap": section,
    }
    return world._replace(routes=kept), document


def judge(node: MemoryBackend | KernelNode, document: dict[str, Any]) -> None:
    """Apply the answer and prove it; of a refusal, prove the reason."""
    config = HostRoutingConfig.from_mapping(document)
    backend = kernel_of(node) if isinstance(node, KernelNode) else node
    host = FakeHost(backend)
    fabric = announced_fabric(at_once(), config.route_overlap.fabric, host)
    accepted = accepted_in(plan_routes(config, host))
    found = fixed(at_once(), config, host)
    mended = config if isinstance(found, str) else found
    # The kernel may refuse a route of the config that nothing needs.
    with suppress(BackendError):
        change_routes(at_once(), mended, host)
        assert "cannot be added" not in str(found)
    report = check_egress(backend, attrs.evolve(Expectation.of(mended), fabric=fabric))
    if isinstance(found, HostRoutingConfig):
        left = [finding for _, finding in report.findings]
        assert all(finding.stays for finding in left)
        assert attrs.evolve(found, static_routes=config.static_routes) == config
        assert {each.route_key for each in accepted.routes} <= {
            each.route_key for each in found.static_routes.routes
        }
        again = fixed(at_once(), HostRoutingConfig.from_mapping(found.to_mapping()), host)
        assert left or again == found
    elif "cannot be added" not in found:
        assert not report.ok
        # A route that names its device or gateway stays, wherever it leads.
        if report.chosen_routes:
            return
        # No route is to take the node's own addresses, or a place of the kernel's. Of a fabric too
        # much may be found.
        is_local = fabric.networks or any(
            finding.kind == "local" or finding.stays for _, finding in report.findings
        )
        kept = {
            route.network
            for route in backend.routes()
            if route.prefix_length == 32 and route.protocol == 2
        }
        ranges = [
            (prefix.network, prefix.last)
            for prefix in (Prefix.parse(cidr.cidr) for cidr in report.cidrs)
        ]
        addresses = {address for first, last in ranges for address in range(first, last + 1)} - kept
        for hop in [
            hop for route in default_routes(backend.routes()) for hop in route.hops if hop.gateway
        ]:
            for address in sorted(addresses):
                with suppress(BackendError):
                    route = Route(
                        network=address, prefix_length=32, gateway=hop.gateway, dev=hop.dev
                    )
                    node.insert_route(route, verb="prepend")
            assert (
                is_local
                or not check_egress(backend, attrs.evolve(Expectation.of(mended), fabric=fabric)).ok
            )


@given(case=cases())
def test_the_answer_mends_or_nothing_does(case: tuple[World, dict[str, Any]]) -> None:
    """The config that `check --fix` writes makes the check right once it is applied, and keeps each
    route of the earlier config that may be added.

    Where it refuses, not even a route for each single address would make the check right.
    """
    node = MemoryBackend()
    case[0].arrange(node)
    judge(node, case[1])


@needs_kernel
@settings(max_examples=FEW, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_in_the_kernel(case: tuple[World, dict[str, Any]]) -> None:
    """On a node of the kernel, the config that `check --fix` writes makes the check right, or not
    even a route for each single address would.
    """
    with KernelNode.made() as node:
        case[0].arrange(node)
        judge(node, case[1])


def test_nothing_is_written_beside_what_an_operator_must_mend() -> None:
    """A fix is refused while a rule prohibits one of the expected CIDRs, though a route would fix
    the other CIDR.
    """
    host = FakeHost()
    uplink(host.routes, ib0="172.16.1.4/16")
    host.routes.add_rule(Rule(100, action="prohibit", destination=(0x0A600000, 16)))
    section = {"expectedCidrs": ["172.16.8.0/22", "10.96.0.0/16"]}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    assert isinstance(fixed(at_once(), config, host), str)
    host.routes.remove_rule(Rule(100, action="prohibit", destination=(0x0A600000, 16)))
    assert isinstance(fixed(at_once(), config, host), HostRoutingConfig)


def by_another_router(host: FakeHost, *, carrier: bool = True) -> HostRoutingConfig:
    """Let expected addresses leave through a router on eth1, and return a config that expects eth0."""
    uplink(host.routes)
    host.routes.add_link("eth1", carrier=carrier)
    host.routes.add_address("eth1", "10.9.0.4/16")
    arrange(host.routes, "172.16.8.0/22 via 10.9.0.1 dev eth1")
    section = {"expectedCidrs": ["172.16.8.0/22"]}
    return HostRoutingConfig.from_mapping({"routeOverlap": section})


def test_no_silent_gateway_takes_the_place_of_one_that_answers() -> None:
    """A fix is refused if it would exchange a gateway that answers for a silent one, and `status`
    does not offer it.
    """
    host = FakeHost()
    config = by_another_router(host)
    host.link_layer.mute.add(("eth0", "10.224.0.1"))
    assert fixed(at_once(), config, host) == (
        "the check would pass, but 172.16.8.0 would leave through 10.224.0.1 dev eth0, which "
        "does not answer, unlike 10.9.0.1 dev eth1, which it uses now: check the router, or name "
        "eth1 in expectedDevs of routeOverlap"
    )
    # So `status` does not offer it.
    run(Configure(config, host=host), at_once())
    assert node_status(at_once(), host).next is None
    host.link_layer.mute.clear()
    assert node_status(at_once(), host).next == FIX


@pytest.mark.parametrize("carrier", [True, False])
def test_where_both_are_silent_the_default_route_counts(*, carrier: bool) -> None:
    """A fix may lead to a silent gateway if the present gateway is silent as well, or its device
    does not have a carrier.
    """
    host = FakeHost()
    config = by_another_router(host, carrier=carrier)
    host.link_layer.mute.add(("eth0", "10.224.0.1"))
    if carrier:
        host.link_layer.mute.add(("eth1", "10.9.0.1"))
    assert isinstance(fixed(at_once(), config, host), HostRoutingConfig)
