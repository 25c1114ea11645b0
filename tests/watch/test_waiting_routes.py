"""A route that the kernel refuses returns when an event makes its gateway acceptable, not after the
interval.
"""

from collections.abc import Iterator
from math import inf

import attrs
import pytest
from support.kept_routes import ROUTE as WANTED
from support.kept_routes import Kept, standing
from support.kernel import kernel_host
from support.needs import needs
from support.watched_nodes import CONFIG, OWN_ROUTES, Watched, arrange, watching

from hostrouting.host import Device, NetworkEvent, Rule
from hostrouting.net.events import DeviceEvent, NexthopEvent, RouteEvent, RuleEvent
from hostrouting.net.routes import resting
from hostrouting.testing import KernelNode, MemoryBackend
from hostrouting.testing.route_texts import route
from phases import Context

#: What hides the way to the gateway 10.224.0.1, and what shows it again; both are words for `ip`.
HIDDEN = {
    **{
        kind: (
            f"route add {kind} 10.224.0.1/32 scope link",
            f"route delete {kind} 10.224.0.1/32 scope link",
        )
        for kind in ("blackhole", "unreachable", "prohibit", "throw")
    },
    "broadcast": (
        "route add broadcast 10.224.0.1 dev eth0",
        "route delete broadcast 10.224.0.1 dev eth0",
    ),
    "rule": ("rule add to 10.224.0.1 priority 10 blackhole", "rule delete priority 10"),
    "table of a rule": (
        "rule add priority 10 lookup 50",
        "route delete blackhole 10.224.0.1 table 50 scope link",
    ),
    "several devices": (
        "address delete 10.224.0.4/16 dev eth0",
        "route add 10.224.0.0/16 scope link nexthop dev eth0 nexthop dev eth1",
    ),
    "rule to a table": ("address delete 10.224.0.4/16 dev eth0", "rule add priority 10 lookup 51"),
}


@pytest.fixture
def watched() -> Iterator[Watched]:
    seldom = attrs.evolve(CONFIG, watch=attrs.evolve(CONFIG.watch, interval=3600))
    with KernelNode.made() as node:
        arrange(node)
        node.ip("route add blackhole 10.224.0.1 table 50 scope link")
        node.ip("route add 10.224.0.1 dev eth0 table 51")
        with watching(kernel_host(node), node, seldom) as watched:
            yield watched


@needs("kernel")
@pytest.mark.parametrize(("hide", "show"), HIDDEN.values(), ids=HIDDEN)
def test_it_returns_with_the_way_to_its_gateway(
    watched: Watched, hide: str, show: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A route that waits for its gateway returns when a change of a rule, a table or an address
    shows the way to the gateway.

    The kernel looks a gateway up by all rules and tables, and passes over routes of a wider scope
    than a link.
    """
    node = watched.node
    assert isinstance(node, KernelNode)
    node.ip(*hide.split())
    if watched.own_routes() == OWN_ROUTES:
        node.ip("route delete 172.16.1.0/24")
    if "address" in hide:
        # With it, the kernel removed the route in that table.
        node.ip("route replace 10.224.0.1 dev eth0 table 51")
    watched.until(lambda: any("waits: " in message for message in caplog.messages))
    node.ip(*show.split())
    watched.until_repaired()


@pytest.mark.parametrize(
    "event",
    [
        RouteEvent("add", resting(route("10.9.0.0/16 dev eth1 proto static"))),
        RouteEvent("remove", resting(route("blackhole 10.224.0.1 proto static"))),
        RuleEvent("add", Rule(100, table=100)),
        NexthopEvent("set", 7),
    ],
    ids=["another route", "a blackhole", "a rule", "a next hop"],
)
def test_it_cannot_return(event: NetworkEvent, caplog: pytest.LogCaptureFixture) -> None:
    """A reconciler with a waiting route acts on an event that may lead to the gateway, and on no other;
    a route that still waits is not logged again.
    """
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_link("eth1")
    with node.events.listen(Context()) as listener:
        kept = Kept(node, listener, WANTED)
        kept.act()
        caplog.clear()
        assert kept.reconciler.receive([event]) == 0
        assert kept.reconciler.receive([DeviceEvent("set", Device("veth7", 7, up=True))]) == inf
        node.insert_route(route("10.224.0.0/16 dev eth1 proto static"))
        # It wants to act in 0 seconds.
        assert kept.catch_up() == 0
        kept.act()
    assert caplog.messages == []
    assert standing(node) == []
