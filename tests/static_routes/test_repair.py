"""Repairs, which restore each route that the node allows, and never wait."""

import logging
from collections.abc import Callable

import attrs
import pytest
from support.kernel import connect
from support.printed import NO_DEVICE
from support.static_route_nodes import Account
from support.static_route_scripts import config_of, static_route

from hostrouting import StaticRoute
from hostrouting.host import OUR_PROTOCOL
from hostrouting.static_routes.converge import repair
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.route_texts import route
from phases import Context
from phases.hosting import within

FIRST = static_route("172.16.1.0/24 via 10.224.0.1 dev eth0")
SECOND = static_route("172.16.2.0/24 via 10.225.0.1 dev eth1")
FOREIGN = route("172.16.1.0/24 via 10.224.0.9 dev eth0 proto dhcp")


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16", eth1="10.225.0.4/16")
    return node


@pytest.fixture
def host(node: MemoryBackend) -> FakeHost:
    return FakeHost(node)


def repaired(
    host: FakeHost,
    *routes: StaticRoute,
    leave: tuple[StaticRoute, ...] = (),
    account: Account | None = None,
) -> RoutePlan:
    plan = plan_routes(config_of(routes), host)
    plan = attrs.evolve(plan, leave=[route.route_key for route in leave])
    return repair(
        within(Context(), account or Account()), plan, host, logging.getLogger("repair")
    ).plan


def own_routes(node: MemoryBackend) -> list[str]:
    return [
        f"{route.destination} dev {route.dev}"
        for route in node.routes()
        if route.protocol == OUR_PROTOCOL
    ]


def test_a_foreign_route_that_is_hidden_again_and_again_is_not_logged(
    host: FakeHost, node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A repair that hides a foreign route again names it in its outcome and does not log it, as
    `Watch` logs changes at its own pace.
    """
    repaired(host, FIRST)
    node.insert_route(FOREIGN, verb="prepend")
    [[hidden]] = repaired(host, FIRST).outcome.hidden.values()
    assert str(hidden) == "172.16.1.0/24 via 10.224.0.9 dev eth0 proto dhcp"
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (lambda node: node.remove_link("eth1"), NO_DEVICE),
        (lambda node: node.set_up("eth1", up=False), "invalid gateway"),
        (lambda node: node.remove_address("eth1", "10.225.0.4/16"), "invalid gateway"),
    ],
)
def test_a_refused_route_waits_alone(
    host: FakeHost, node: MemoryBackend, trouble: Callable[[MemoryBackend], None], reason: str
) -> None:
    """A route whose device is absent, down or without an address waits with the reason, and all
    others are restored.
    """
    trouble(node)
    waiting = repaired(host, FIRST, SECOND).waiting
    assert [*waiting] == [SECOND.route_key]
    route, why = waiting[SECOND.route_key]
    assert str(route) == "172.16.2.0/24 via 10.225.0.1 dev eth1 proto 142"
    assert reason in why
    assert own_routes(node) == ["172.16.1.0/24 dev eth0"]


def test_routes_that_are_refused_together_wait_together(
    host: FakeHost, node: MemoryBackend
) -> None:
    """Several refused routes are found by one batch, and the next batch is accepted."""
    refused = [static_route(f"172.16.{n}.0/24 via 10.225.0.1 dev eth1") for n in (2, 3, 4)]
    node.remove_address("eth1", "10.225.0.4/16")
    node.operations.calls.clear()
    assert [*repaired(host, FIRST, *refused).waiting] == [one.route_key for one in refused]
    assert node.operations.calls.count(("apply",)) == 2


def test_a_route_that_needs_a_default_route_waits(host: FakeHost, node: MemoryBackend) -> None:
    """A route without gateway waits for a default route, and stays in force if the default route is
    lost later.
    """
    incomplete = StaticRoute(destination="172.16.3.0/24")
    assert repaired(host, FIRST, incomplete).waiting == {
        incomplete.route_key: (incomplete, "table main has no IPv4 default route")
    }
    default = route("default via 10.224.0.1 dev eth0 proto static")
    node.insert_route(default)
    assert repaired(host, FIRST, incomplete).waiting == {}
    node.delete_route(default)
    assert repaired(host, FIRST, incomplete).waiting == {}
    assert "172.16.3.0/24 dev eth0" in own_routes(node)


def test_a_place_that_is_left(host: FakeHost, node: MemoryBackend) -> None:
    """A place that is to be left stays as it is, with an own route or without."""
    node.insert_route(FOREIGN)
    repaired(host, FIRST, SECOND, leave=(FIRST,))
    assert own_routes(node) == ["172.16.2.0/24 dev eth1"]
    repaired(host, FIRST, SECOND)
    repaired(host, SECOND, leave=(FIRST,))
    assert own_routes(node) == ["172.16.1.0/24 dev eth0", "172.16.2.0/24 dev eth1"]


def test_the_changes_are_recorded(host: FakeHost, node: MemoryBackend) -> None:
    """The account of the caller has the routes that changed; a route that waits is not recorded as
    removed.
    """
    repaired(host, FIRST, SECOND)
    node.set_up("eth1", up=False)
    node.delete_route(next(route for route in node.routes() if route.protocol == OUR_PROTOCOL))
    account = Account()
    repaired(host, FIRST, SECOND, account=account)
    assert account.changes == ["+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"]
