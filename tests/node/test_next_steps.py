"""Whoever follows `next:` of `status` on a node in trouble keeps each gateway that answers."""

import random
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from support.kernel import connect, host_of, kernel_of, needs_kernel
from support.patience import at_once
from support.routers import WiredNode
from support.run_nodes import forget_devs

from hostrouting import Configure, HostRoutingConfig, node_status
from hostrouting.base.commands import CHECK, FIX
from hostrouting.boot.installed_config import require_installed_config
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.fleet import check_record, take_record
from hostrouting.host import Host
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.net.addresses import Prefix
from hostrouting.net.routes import default_routes
from hostrouting.node.check import check_node
from hostrouting.node.fix import fixed
from hostrouting.node.remedies import fix_line
from hostrouting.static_routes.lost_hops import LostHop
from hostrouting.testing import FakeHost
from hostrouting.testing.route_texts import route
from phases import run

CIDRS = ("172.16.8.0/22", "172.16.16.0/24", "10.96.0.0/16", "10.244.0.0/16")
#: The routers that answer, by their device.
ETH0 = ("eth0", "10.224.0.1")
ETH1 = ("eth1", "10.9.0.1")
IB0 = ("ib0", "172.16.0.1")
#: A route without a device and gateway.
ONE_ROUTE = {
    "routeOverlap": {"mode": "STRICT", "expectedCidrs": ["172.16.8.0/22"]},
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
    "gates": [],
}
_MOST_STEPS = 4
#: They only show more.
_LOOKS = {None, CHECK, f"hostrouting plan {CONFIG_PATH}"}


class Node:
    """A node that an apply found right, and then a trouble."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.host = FakeHost()
        self.routers = {ETH0, ETH1}
        connect(self.host.routes, eth0="10.224.0.4/16", ib0="172.16.1.4/16", eth1="10.9.0.4/16")
        routing = self.host.routes
        draw = self.draw
        routing.add_route("default", gateway=ETH0[1], dev="eth0", metric=draw.choice([0, 100]))
        if draw.random() < 0.3:
            routing.add_route("default", gateway=ETH1[1], dev="eth1", metric=200)
        expected = draw.sample(CIDRS, draw.randint(1, 3))
        fabric = [cidr for cidr in CIDRS[:2] if cidr in expected or draw.random() < 0.3]
        given: list[dict[str, Any]] = [{}, {"dev": "eth0"}, {"dev": "eth0", "gateway": ETH0[1]}]
        routes = [{"destination": cidr, **draw.choice(given)} for cidr in fabric]
        section = {"expectedCidrs": expected, "mode": draw.choice(["STRICT", "WARN"])}
        document: dict[str, Any] = {"routeOverlap": section, "gates": []}
        if routes:
            document["staticRoutes"] = {"enabled": True, "routes": routes}
        self.config = HostRoutingConfig.from_mapping(document)
        assert run(Configure(self.config, host=self.host), at_once()).ok
        if draw.random() < 0.3:
            forget_devs(self.host)
        for trouble in draw.sample([*_TROUBLES], draw.choice([1, 1, 2])):
            _TROUBLES[trouble](self)

    @property
    def reached(self) -> set[int]:
        """The expected addresses that leave through a gateway that answers."""
        prefixes = [Prefix.parse(cidr) for cidr in self.config.route_overlap.cidrs]
        addresses = sorted(
            address
            for prefix in prefixes
            for address in (prefix.network, prefix.network + 9, prefix.last)
        )
        answers = self.host.routes.lookup(addresses)
        return {
            answer.destination
            for answer in answers
            if answer.route and (answer.route.dev, str(answer.route.gateway)) in self.routers
        }

    def follow(self) -> Iterator[str]:
        """Do what `status` offers, and yield each step."""
        for _ in range(_MOST_STEPS):
            step = node_status(at_once(), self.host).next
            if step in _LOOKS:
                return
            assert step
            self._do(step)
            yield step

    def _do(self, step: str) -> None:
        host: Host = self.host
        words = step.split()
        if step == FIX:
            mended = fixed(at_once(), require_installed_config(host), host)
            # It is offered only if it has an answer.
            assert isinstance(mended, HostRoutingConfig), mended
            run(Configure(mended, host=host), at_once())
        elif words[:3] == ["ip", "address", "del"]:
            self.host.routes.remove_address(words[5], words[3])
        else:
            assert words == ["hostrouting", "apply", CONFIG_PATH], step
            run(Configure(require_installed_config(host), host=host), at_once())


def _another_gateway(node: Node) -> None:
    """The default route names a router that does not answer."""
    routing = node.host.routes
    held = {link.name: link.addresses for link in routing.links()}
    name = "eth9" if "eth9" in held else "eth0"
    gateway = f"{str(held[name][0].address).rpartition('.')[0]}.9"
    for each in default_routes(routing.routes()):
        if each.dev == name:
            routing.delete_route(each)
    routing.add_route("default", gateway=gateway, dev=name, metric=100)
    node.host.link_layer.mute.add((name, gateway))


def _second_default(node: Node) -> None:
    """A router in the fabric comes, and does not answer."""
    node.host.routes.add_route(
        "default", gateway=IB0[1], dev="ib0", metric=node.draw.choice([5, 50])
    )
    node.host.link_layer.mute.add(IB0)
    if node.draw.random() < 0.5:
        node.host.routes.fail_neighbour(*IB0)


def _better_default(node: Node) -> None:
    """Another router comes, and answers."""
    node.host.routes.add_route("default", gateway=ETH1[1], dev="eth1", metric=7)


def _renamed(node: Node) -> None:
    """The device of the default route has another name."""
    node.host.routes.remove_link("eth0")
    connect(node.host.routes, eth9="10.224.0.4/16")
    node.routers.add(("eth9", ETH0[1]))
    node.host.routes.add_route("default", gateway=ETH0[1], dev="eth9", metric=100)


def _moved(node: Node) -> None:
    """The node is in another network."""
    routing = node.host.routes
    for name in {"eth0", "eth9"} & {link.name for link in routing.links()}:
        routing.remove_link(name)
    connect(routing, eth0="10.225.0.4/16")
    node.routers.add(("eth0", "10.225.0.1"))
    routing.add_route("default", gateway="10.225.0.1", dev="eth0", metric=100)


def _silent(node: Node) -> None:
    """The router itself ends."""
    node.routers.discard(ETH0)
    node.host.link_layer.mute.add(ETH0)
    if "eth0" in [link.name for link in node.host.routes.links()]:
        node.host.routes.fail_neighbour(*ETH0)


def _bridge(node: Node) -> None:
    """Docker starts, with a bridge inside an expected network."""
    node.host.routes.add_link("docker0", kind="bridge")
    network = node.draw.choice(node.config.route_overlap.expected_cidrs).partition("/")[0]
    node.host.routes.add_address("docker0", f"{network[:-1]}1/24")


def _longer_route(node: Node) -> None:
    """A program leads a part of the expected addresses into the fabric, or by another router."""
    cidr = node.draw.choice(node.config.route_overlap.expected_cidrs)
    destination = f"{cidr.partition('/')[0]}/{node.draw.choice([25, 28])}"
    if node.draw.random() < 0.5:
        node.host.routes.add_route(destination, dev="ib0")
    else:
        node.host.routes.add_route(destination, gateway=ETH1[1], dev="eth1")


_TROUBLES = {
    "another gateway": _another_gateway,
    "second default": _second_default,
    "better default": _better_default,
    "renamed": _renamed,
    "moved": _moved,
    "silent": _silent,
    "bridge": _bridge,
    "longer route": _longer_route,
}


@pytest.mark.parametrize(
    ("first", "count"), [(0, 8), pytest.param(8, 1000, marks=pytest.mark.soak)]
)
def test_no_address_loses_a_gateway_that_answers(first: int, count: int) -> None:
    """The steps of `status` on a node in random trouble end after four at most, and none takes an
    expected address from a gateway that answers.
    """
    for seed in range(first, first + count):
        node = Node(seed)
        before = node.reached
        steps = []
        for step in node.follow():
            steps.append(step)
            assert before <= node.reached, (seed, steps)
            before = node.reached
        assert node_status(at_once(), node.host).next in _LOOKS, (seed, steps)


def applied() -> FakeHost:
    """Return a node that an apply under STRICT has made right by eth0."""
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16", eth1="10.9.0.4/16")
    host.routes.add_route("default", gateway=ETH0[1], dev="eth0", metric=100)
    config = HostRoutingConfig.from_mapping(ONE_ROUTE)
    assert run(Configure(config, host=host), at_once()).ok
    return host


def test_the_step_of_such_a_refusal_helps() -> None:
    """The refusal of an apply that would lose a gateway that answers advises to name the gateway,
    and an apply of this config keeps the routes and makes the node right.
    """
    host = applied()
    # Then its default route names another router, which does not answer.
    host.routes.delete_route(default_routes(host.routes.routes())[0])
    host.routes.add_route("default", gateway="10.224.0.9", dev="eth0", metric=100)
    host.link_layer.mute.add(("eth0", "10.224.0.9"))
    [worse] = Configure(require_installed_config(host), host=host).planned(at_once()).forecast.worse
    assert str(worse.fact).endswith(f"or name {ETH0[1]} as gateway of the static route")
    before = host.routes.routes()
    routes = [{"destination": "172.16.8.0/22", "gateway": ETH0[1]}]
    named = {**ONE_ROUTE, "staticRoutes": {"enabled": True, "routes": routes}}
    assert run(Configure(HostRoutingConfig.from_mapping(named), host=host), at_once()).ok
    assert host.routes.routes() == before
    assert node_status(at_once(), host).next is None


@pytest.mark.slow
@needs_kernel
def test_the_kernel_resolves_the_gateway_that_would_be_lost() -> None:
    """A new default route through a router that does not answer leaves the own route where it is:
    `status` and a fix do not offer an apply, which is refused, until the router answers.
    """
    with WiredNode.made() as node:
        connect(node, eth0="10.224.0.4/16")
        node.far.add_address("eth0", "10.224.0.1/16")
        node.add_route("default", gateway="10.224.0.1", dev="eth0")
        link_layer = NetlinkLinkLayer(netns=node.name)
        host = host_of(kernel_of(node), link_layer=link_layer)
        config = HostRoutingConfig.from_mapping(ONE_ROUTE)
        assert run(Configure(config, host=host), at_once()).ok
        node.ip("route replace default via 10.224.0.9 dev eth0")
        before = host.routes.routes()
        assert node_status(at_once(), host).next in _LOOKS
        assert node.ip("neigh show 10.224.0.9").split()[-1] in {"INCOMPLETE", "FAILED"}
        assert "lladdr" in node.ip("neigh show 10.224.0.1")
        [worse] = Configure(config, host=host).planned(at_once()).forecast.worse
        assert isinstance(worse.fact, LostHop)
        assert isinstance(fixed(at_once(), config, host), str)
        assert not run(Configure(config, host=host), at_once()).ok
        assert host.routes.routes() == before
        node.far.add_address("eth0", "10.224.0.9/16")
        # An earlier question may have had its last try.
        node.ip("neigh flush dev eth0")
        assert node_status(at_once(), host).next == f"hostrouting apply {CONFIG_PATH}"
        assert run(Configure(config, host=host), at_once()).ok


def test_a_route_of_an_image_follows_the_default_route() -> None:
    """On a node that was made of an image, a check, a plan and an apply follow a better default
    route alike: the node is wrong until an apply moves its route there.
    """
    host = applied()
    forget_devs(host)
    host.routes.add_route("default", gateway=ETH1[1], dev="eth1", metric=7)
    assert node_status(at_once(), host).next == f"hostrouting apply {CONFIG_PATH}"
    config = require_installed_config(host)
    assert not Configure(config, host=host).planned(at_once()).forecast.worse
    assert run(Configure(config, host=host), at_once()).ok
    assert node_status(at_once(), host).ok


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize(
    ("given", "blackhole", "step"),
    [
        ({}, False, fix_line("new.json")),
        (ONE_ROUTE, False, "hostrouting apply new.json"),
        (ONE_ROUTE, True, None),
    ],
    ids=["without its route", "with its route", "with a blackhole"],
)
def test_a_config_that_would_shut_the_gates_is_no_step(
    given: dict[str, Any], step: str | None, *, blackhole: bool, is_installed: bool
) -> None:
    """The step of a STRICT config that is not in force is its apply only if that leaves all
    addresses right; a fix is offered only if it does.
    """
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
    host.routes.add_route("default", gateway=ETH0[1], dev="eth0")
    if is_installed:
        warned = {"expectedCidrs": ["172.16.8.0/22"], "mode": "WARN"}
        document = {"routeOverlap": warned, "gates": []}
        run(Configure(HostRoutingConfig.from_mapping(document), host=host), at_once())
    if blackhole:
        host.routes.insert_route(route("blackhole 172.16.9.0/24 proto bird"))
    config = HostRoutingConfig.from_mapping({**ONE_ROUTE, "staticRoutes": {}, **given})
    report = check_node(at_once(), config, host, path="new.json")
    assert (report.overlap.ok, report.next) == (False, step)
    if step == fix_line("new.json"):
        mended = fixed(at_once(), config, host)
        assert isinstance(mended, HostRoutingConfig)
        assert run(Configure(mended, host=host), at_once()).ok


def test_a_right_route_that_an_apply_would_move() -> None:
    """Where an apply would move a right route to another expected device, no command is offered,
    and the step names its plan.
    """
    host = applied()
    section = attrs.evolve(
        require_installed_config(host).route_overlap, expected_devs=("eth0", "eth1")
    )
    config = attrs.evolve(require_installed_config(host), route_overlap=section)
    assert run(Configure(config, host=host), at_once()).ok
    host.routes.add_route("default", gateway=ETH1[1], dev="eth1", metric=7)
    status = node_status(at_once(), host)
    assert status.check.overlap.ok
    assert status.next is None
    assert status.step
    assert status.step.text.endswith(f"; see why: hostrouting plan {CONFIG_PATH}")


def test_a_gateway_that_failed_in_a_record() -> None:
    """A plan of a record judges a gateway by the neighbours in the record, and reports that the
    node would be worse by one that has FAILED.
    """
    host = applied()
    host.routes.delete_route(default_routes(host.routes.routes())[0])
    host.routes.add_route("default", gateway="10.224.0.9", dev="eth0", metric=100)
    host.routes.fail_neighbour("eth0", "10.224.0.9")
    forget_devs(host)
    record = take_record(at_once(), host)
    verdict = check_record(record, record.config, planned=True)
    assert verdict.report is not None
    assert [found.kind for found in verdict.report.findings] == ["worse"]
