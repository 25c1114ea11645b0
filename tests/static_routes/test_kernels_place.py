"""Routes of our protocol next to the kernel's own route of an address, which no config can want and
no undo loses.
"""

from collections.abc import Iterator, Sequence

import pytest
from support.kernel import connect, host_of
from support.needs import needs
from support.static_route_nodes import Account
from support.static_route_nodes import converge as converge_routes

from hostrouting.host import Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.testing import KernelNode
from hostrouting.testing.route_texts import route
from phases import Context
from phases.hosting import within

pytestmark = needs("kernel")

OWN_ROUTE = route("172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142")
CONNECTED = "10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4"
#: Of our protocol, in the place of the connected route.
STRAYS = [
    route("10.224.0.0/16 dev eth0 proto 142"),
    route("10.224.0.0/16 via 10.224.0.9 dev eth0 proto 142"),
]


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16")
        yield node


@pytest.fixture
def backend(node: KernelNode) -> NetlinkBackend:
    return NetlinkBackend(netns=node.name)


def converge(backend: NetlinkBackend, routes: Sequence[Route], ctx: Context | None = None) -> None:
    converge_routes(ctx or Context(), routes, host_of(backend))


def shown(backend: NetlinkBackend, destination: str) -> list[str]:
    return [str(route) for route in backend.routes() if route.destination == destination]


def test_a_blackhole_by_a_nexthop_object_goes_and_comes_back(
    node: KernelNode, backend: NetlinkBackend
) -> None:
    """A blackhole of our protocol by a nexthop object is removed, and an undo restores it.

    A dump shows the kind of the object, and a deletion that of the route, which may be another one.
    """
    node.ip("nexthop add id 6 blackhole")
    for text in "172.30.0.0/16", "unreachable 172.31.0.0/16":
        node.ip("route add", text, "nhid 6 proto 142")
    before = backend.routes()
    account = Account()
    converge(backend, [], within(Context(), account))
    assert backend.routes_of(142) == []
    account.undo()
    assert backend.routes() == before


@pytest.mark.parametrize("stray", STRAYS, ids=str)
@pytest.mark.parametrize("verb", ["prepend", "append"])
def test_an_undo_returns_it(
    node: KernelNode, backend: NetlinkBackend, stray: Route, verb: str
) -> None:
    """An undo restores a stray route of our protocol behind the kernel's own route; in front of it
    it never puts one.
    """
    node.insert_route(stray, verb=verb)
    before = backend.routes()
    account = Account()
    converge(backend, [OWN_ROUTE], within(Context(), account))
    assert shown(backend, "10.224.0.0/16") == [CONNECTED]
    is_restored = verb == "append"
    assert {*account.undo()} == {is_restored}
    assert (backend.routes() == before) is is_restored
