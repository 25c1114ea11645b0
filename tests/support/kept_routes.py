"""A reconciler of routes on a fake node."""

import logging

import attrs

from hostrouting import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.boot.reconciler import InstalledConfig
from hostrouting.host import IPV4, Address, Listener, ObservedRoute, Route
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.watch.routes import RouteReconciler
from phases import Context
from phases.context import Clock

ROUTE = StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
OWN_ROUTE = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
FOREIGN = attrs.evolve(OWN_ROUTE, gateway=Address.parse("10.224.0.9"), protocol=16)


class CountedNode(MemoryBackend):
    """A node that counts the readings of all routes."""

    readings = 0

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        self.readings += 1
        return super().routes(family)


def standing(node: MemoryBackend) -> list[str]:
    """Return the routes to the destination of our route."""
    return [
        str(route) for route in MemoryBackend.routes(node) if route.network == OWN_ROUTE.network
    ]


class Kept:
    """A reconciler of routes that no run has installed."""

    def __init__(self, node: MemoryBackend, listener: Listener, *routes: StaticRoute) -> None:
        self.host, logger = FakeHost(node), logging.getLogger("watch")
        self._listener = listener
        config = HostRoutingConfig(static_routes=StaticRoutesConfig(enabled=True, routes=routes))
        self._installed = InstalledConfig(config, self.host.files, logger)
        self.reconciler = RouteReconciler(self.host, logger, self._installed)

    def wants(self, *routes: StaticRoute) -> None:
        """Put a config with these routes into force."""
        section = StaticRoutesConfig(enabled=True, routes=routes)
        self._installed.config = HostRoutingConfig(static_routes=section)
        self.reconciler.lose()

    def catch_up(self) -> float:
        """Deliver the events by now; return in how many seconds the reconciler wants to act."""
        return self.reconciler.receive(self._listener.take())

    def act(self, clock: Clock | None = None) -> float:
        """Let the reconciler act; return the seconds to its next act."""
        return self.reconciler.act(Context(clock=clock))
