"""Static routes of IPv6, alone, among other routes, and next to a program in the same places."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import cast

import attrs
import pytest
from support.kernel import host_of, needs_kernel
from support.live_routes import change_routes
from support.needs import require
from support.patience import at_once
from support.static_route_scripts import config_of, static_route

from hostrouting import ConfigureStaticRoutes, HostRoutingConfig, Reset, StaticRoute
from hostrouting.base.commands import FAILED
from hostrouting.cli.shared import status_after
from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host import IPV4, IPV6, OUR_PROTOCOL, Host, NextHop, ObservedRoute, Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import Prefix
from hostrouting.node.status import verdict_now
from hostrouting.static_routes.converge import repair
from hostrouting.static_routes.entries import entries, findings
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend, Node
from hostrouting.testing.contracts.routes import arrange
from hostrouting.testing.route_texts import route
from phases import Context, Transaction, run

PLACE = "fd00:9::/48"
ROUTE = static_route(f"{PLACE} via fd00:1::7 dev eth0")
OWN_ROUTE = f"{PLACE} via fd00:1::7 dev eth0 proto 142 metric 1"
HISTORIES = 500


def prepared(node: Node) -> Host:
    for dev, addresses in (
        ("eth0", ("10.1.0.4/16", "fd00:1::4/64")),
        ("ib0", ("10.2.0.4/16", "fd00:2::4/64")),
    ):
        node.add_link(dev)
        for address in addresses:
            node.add_address(dev, address)
    routes = (
        node
        if isinstance(node, MemoryBackend)
        else NetlinkBackend(netns=cast("KernelNode", node).name)
    )
    return host_of(routes, is_live=True)


@pytest.fixture(params=["kernel", "memory"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if request.param == "memory":
        yield MemoryBackend()
    else:
        require("kernel")
        with KernelNode.made() as made:
            yield made


@pytest.fixture
def host(node: Node) -> Host:
    return prepared(node)


def plan_of(host: Host, *routes: StaticRoute) -> RoutePlan:
    return plan_routes(config_of(routes), host)


def apply(host: Host, *routes: StaticRoute) -> None:
    change_routes(at_once(), config_of(routes), host)


def at(host: Host, destination: str = PLACE) -> list[str]:
    return [str(route) for route in host.routes.routes(IPV6) if route.destination == destination]


def add(
    node: Node, gateway: str | None = None, *, verb: str = "add", metric: int = 1, protocol: int = 4
) -> None:
    foreign = Route.parse(
        PLACE, gateway=gateway, dev="ib0" if gateway is None else "eth0", metric=metric
    )
    node.insert_route(attrs.evolve(foreign, protocol=protocol), verb=verb)


def refusal(host: Host, *routes: StaticRoute) -> str:
    """Return the reason why the routes are refused; nothing has changed, and `plan` and `check`
    report the same.
    """
    before = host.routes.routes(IPV6)
    with pytest.raises(RouteRejectedError) as caught:
        apply(host, *routes)
    assert host.routes.routes(IPV6) == before
    [refused] = caught.value.refusals
    plan = plan_of(host, *routes)
    [planned] = entries(plan)
    assert refused.reason in str(planned)
    [found] = findings(plan)
    assert refused.reason in found.reason
    return refused.reason


def test_both_families_are_one_batch(node: Node, host: Host) -> None:
    """Routes of both families are completed by the default route of each, added together, repeated
    without change, and removed.
    """
    arrange(
        node,
        "default via 10.1.0.1 dev eth0 proto dhcp",
        "::/0 via fe80::1 dev eth0 proto ra metric 1024",
    )
    wanted = [StaticRoute(destination=text) for text in ("172.16.1.0/24", "fd00:9::/48")]
    apply(host, *wanted)
    assert at(host) == [f"{PLACE} via fe80::1 dev eth0 proto 142 metric 1"]
    assert entries(plan_of(host, *wanted)) == []
    assert [str(route) for route in host.routes.routes_of(OUR_PROTOCOL)] == [
        "172.16.1.0/24 via 10.1.0.1 dev eth0 proto 142"
    ]
    with pytest.raises(RouteRejectedError):
        apply(host, *wanted, static_route("fd00:8::/48 via fd00:77::1 dev eth0"))
    apply(host, wanted[0])
    assert at(host) == []
    apply(host, wanted[1])
    assert host.routes.routes_of(OUR_PROTOCOL) == []
    change_routes(Context(), config_of([]), host)
    assert at(host) == []


def test_metric_1_of_another_program(node: Node, host: Host) -> None:
    """A route of another program at metric 1 is the reason for a refusal and stays; at another
    metric it does not matter.
    """
    add(node, "fd00:1::8", metric=7)
    apply(host, ROUTE)
    assert at(host) == [OWN_ROUTE, f"{PLACE} via fd00:1::8 dev eth0 proto static metric 7"]
    apply(host)
    add(node, "fd00:1::8", protocol=3)
    assert refusal(host, ROUTE).startswith(
        f"'{PLACE} via fd00:1::8 dev eth0 metric 1' (protocol boot) has the same dest"
    )


def test_a_route_for_one_source(node: Node, host: Host) -> None:
    """A route for one source hides the own route at any metric, so the refusal names it, even if
    the own route stands.
    """
    apply(host, ROUTE)
    source = route(f"{PLACE} via fd00:1::8 dev eth0 proto static metric 1024")
    node.insert_route(attrs.evolve(source, from_prefix=Prefix.parse("fd00:1::/64")))
    for _ in range(2):
        assert (
            "from fd00:1::/64 via fd00:1::8 dev eth0 proto static metric 1024' (protocol static) hides every"
            in (refusal(host, ROUTE))
        )
        change_routes(Context(), config_of([]), host)


@pytest.mark.parametrize("node", ["kernel"], indirect=True)
@pytest.mark.parametrize("gateway", ["fd00:1::6", "fd00:1::8"])
def test_a_merge_by_another_program(
    node: Node, host: Host, caplog: pytest.LogCaptureFixture, gateway: str
) -> None:
    """A next hop that another program merged with the own route is found by apply, repair and
    reset, and no next hop of others is removed.

    A reset fails, and the command that it names, also in the verdict, removes the own next hop
    alone.
    """
    apply(host, ROUTE)
    add(node, gateway, verb="append")
    [merged] = at(host)
    assert merged.count("nexthop") == 2
    reason = (
        "another program merged a next hop into a route of hostrouting, so "
        f"'{merged}' is left as it is"
    )
    refused = refusal(host, ROUTE)
    assert reason in refused
    other = static_route("fd00:7::/48 via fd00:1::7 dev eth0")
    plan = plan_routes(config_of([ROUTE, other]), host)
    done, _ = repair(Context(), plan, host, logging.getLogger())
    assert [str(route).split() for route, _ in done.waiting.values()] == [OWN_ROUTE.split()]
    assert len(at(host, "fd00:7::/48")) == 1
    error = run(Reset(HostRoutingConfig(), host=host)).error
    assert error is not None
    assert status_after(error) == FAILED
    assert at(host) == [merged]
    assert at(host, "fd00:7::/48") == []
    assert "not removed: another program merged" in caplog.text
    assert reason in str(error)
    verdict = verdict_now(Context(), host).sentence
    [own], both, last = (text.split("`")[1::2] for text in (refused, str(error), verdict))
    assert own in both == last
    assert "hostrouting reset" not in verdict
    assert isinstance(node, KernelNode)
    accepted = []
    for command in both:
        with suppress(BackendError):
            node.ip(command.removeprefix("ip "))
            accepted.append(command)
    assert accepted == [own]
    assert at(host) == [f"{PLACE} via {gateway} dev eth0 proto static metric 1"]
    assert run(Reset(HostRoutingConfig(), host=host)).ok


def test_an_undo_leaves_the_place_to_its_new_holder(
    node: Node, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """An undo does not restore a removed route next to one that took its place."""
    apply(host, ROUTE)
    transaction = Transaction(Context())
    change_routes(transaction.ctx, config_of([]), host)
    add(node, "fd00:1::8")
    assert [result for _, result in transaction.rollback(timeout=15)] == [False]
    assert at(host) == [f"{PLACE} via fd00:1::8 dev eth0 proto static metric 1"]
    assert "is not restored" in caplog.text


def test_a_backend_of_ipv4_alone() -> None:
    """A config with IPv6 routes is refused on a backend of IPv4 alone, by the name of its class."""

    class Old(MemoryBackend):
        families = (IPV4,)

    message = r"the backend Old does not support IPv6.*remove fd00:9::/48 from the config"
    with pytest.raises(BackendError, match=message):
        ConfigureStaticRoutes(config_of([ROUTE]), host=FakeHost(Old()))
    apply(FakeHost(Old()))


# --- histories

WAYS = "fd00:1::7", "fd00:1::8", None
PLACES = "fd00:9::/48", "fd00:8::/64"


def meddle(node: Node, random: Random) -> None:
    """Let another program act in the same places; the kernel may refuse it."""
    gateway = random.choice(WAYS)
    route = Route.parse(
        random.choice(PLACES),
        gateway=gateway,
        dev=random.choice(["eth0", "ib0"]) if gateway is None else "eth0",
        metric=random.choice([1, 1, 2]),
        protocol=4,
    )
    with suppress(BackendError):
        if random.random() < 0.2:
            node.delete_route(route)
        else:
            node.insert_route(route, verb=random.choice(["add", "append", "replace"]))


def hostrouting_acts(host: Host, random: Random, earlier: list[Transaction]) -> None:
    """Apply a config, repair, undo the last run, or reset."""
    wanted = [
        StaticRoute(
            destination=text,
            gateway=random.choice(WAYS[:2]),
            dev="eth0",
            metric=random.choice([0, 2]),
        )
        for text in random.sample(PLACES, random.randrange(3))
    ]
    transaction = Transaction(Context())
    ctx = transaction.ctx
    with suppress(RouteRejectedError):
        match random.randrange(4):
            case 0:
                change_routes(ctx, config_of(wanted), host)
            case 1:
                repair(ctx, plan_routes(config_of(wanted), host), host, logging.getLogger("repair"))
            case 2:
                for last in earlier:
                    [*last.rollback(timeout=15)]
            case _:
                # It fails if it leaves a merged next hop.
                with suppress(BackendError):
                    change_routes(ctx, config_of([]), host)
    earlier[:] = [transaction]


def foreign(routes: Sequence[ObservedRoute]) -> list[str]:
    return [str(route) for route in routes if route.protocol != OUR_PROTOCOL]


def several(routes: Sequence[ObservedRoute]) -> set[frozenset[NextHop]]:
    return {frozenset(route.nexthops) for route in routes if route.nexthops}


def check_history(node: Node, host: Host, seed: int) -> None:
    random = Random(seed)
    earlier = list[Transaction]()
    for _ in range(12):
        if random.random() < 0.5:
            meddle(node, random)
        before = host.routes.routes(IPV6)
        hostrouting_acts(host, random, earlier)
        after = host.routes.routes(IPV6)
        assert foreign(after) == foreign(before), seed
        assert several(after) == several(before), seed


@pytest.mark.parametrize("seed", range(40))
def test_beside_a_program_in_memory(seed: int) -> None:
    """A history of changes next to another program loses nothing of that program and makes no
    multipath route, in the model.
    """
    node = MemoryBackend()
    check_history(node, prepared(node), seed)


@needs_kernel
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(20, HISTORIES, 20))]
)
def test_beside_a_program_in_the_kernel(first: int) -> None:
    """A history of changes next to another program loses nothing of that program in the kernel."""
    for seed in range(first, first + 20):
        with KernelNode.made() as node:
            check_history(node, prepared(node), seed)
