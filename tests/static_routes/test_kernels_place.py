"""A route of our protocol beside the kernel's own route of an address: no config can want it, and it is not lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from support.needs import needs

from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import Host, Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.static_routes.converge import Convergence
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.host import ObservedRoute
    from phases import Change

pytestmark = needs("kernel")

OURS = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
FOREIGN = Route.parse("172.16.1.0/24", gateway="10.224.0.9", dev="eth0", protocol=16)
CONNECTED = "10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4"
#: Of our protocol, in the place of the connected route.
STRAYS = [Route.parse("10.224.0.0/16", dev="eth0"), Route.parse("10.224.0.0/16", gateway="10.224.0.9", dev="eth0")]


class BusyBackend(NetlinkBackend):
    """A backend on which another program acts before the second reading."""

    readings = 0
    act: Callable[[], None] | None = None

    def routes(self) -> list[ObservedRoute]:
        self.readings += 1
        if self.readings == 2 and self.act is not None:
            self.act()
        return super().routes()


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        node.add_link("eth0")
        node.add_address("eth0", "10.224.0.4/16")
        yield node


@pytest.fixture
def backend(node: KernelNode) -> BusyBackend:
    return BusyBackend(netns=node.name)


def converge(backend: BusyBackend, routes: Sequence[Route], ctx: Context | None = None) -> None:
    fake = FakeHost()
    host = Host(routes=backend, files=fake.files, lock=fake.lock, services=fake.services)
    Convergence(host, logging.getLogger("place")).run(ctx or Context(), routes)


def shown(backend: BusyBackend, destination: str) -> list[str]:
    return [str(route) for route in backend.routes() if route.destination == destination]


class Account:
    """Collects the inverses of changes."""

    def __init__(self) -> None:
        self.inverses: list[Callable[[Context], None]] = []

    def skips(self, _name: str) -> bool:
        return False

    def record(self, _change: Change, undo: Callable[[Context], None] | None) -> None:
        assert undo is not None
        self.inverses.append(undo)


@pytest.mark.parametrize("stray", STRAYS, ids=str)
@pytest.mark.parametrize("verb", ["prepend", "append"])
def test_a_rollback_returns_it(node: KernelNode, backend: BusyBackend, stray: Route, verb: str) -> None:
    """The run removed it before another route was refused: it returns to where it stood, before or after."""
    node.insert_route(stray, verb=verb)
    node.insert_route(FOREIGN)
    before = shown(backend, "10.224.0.0/16")
    node.add_link("ib0")
    backend.readings, backend.act = 0, lambda: node.add_address("ib0", "172.16.1.4/24")
    with pytest.raises(RouteRejectedError, match="nothing was changed"):
        converge(backend, [OURS])
    assert shown(backend, "10.224.0.0/16") == before
    assert str(FOREIGN) in shown(backend, "172.16.1.0/24")


@pytest.mark.parametrize("stray", STRAYS, ids=str)
@pytest.mark.parametrize("verb", ["prepend", "append"])
def test_an_undo_returns_it(node: KernelNode, backend: BusyBackend, stray: Route, verb: str) -> None:
    """The undo of a run that removed it ends in the routes from before the run."""
    node.insert_route(stray, verb=verb)
    before, account = backend.routes(), Account()
    converge(backend, [OURS], Context().within(account))
    assert shown(backend, "10.224.0.0/16") == [CONNECTED]
    for undo in account.inverses:
        undo(Context())
    assert backend.routes() == before


@pytest.mark.parametrize("verb", ["prepend", "append"])
def test_an_undo_of_other_changes_leaves_it(node: KernelNode, backend: BusyBackend, verb: str) -> None:
    """It came after the run: the undo of the run removes what the run added, and nothing else."""
    account = Account()
    converge(backend, [OURS], Context().within(account))
    node.insert_route(STRAYS[0], verb=verb)
    before = shown(backend, "10.224.0.0/16")
    for undo in account.inverses:
        undo(Context())
    assert (shown(backend, "10.224.0.0/16"), shown(backend, "172.16.1.0/24")) == (before, [])


@pytest.mark.parametrize("stray", STRAYS, ids=str)
def test_a_reset_removes_it_alone(node: KernelNode, backend: BusyBackend, stray: Route) -> None:
    """Without a config no route of our protocol is left, and the kernel's own stays."""
    node.insert_route(stray, verb="prepend")
    converge(backend, [])
    assert shown(backend, "10.224.0.0/16") == [CONNECTED]
