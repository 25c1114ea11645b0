"""The routers by which the node leaves, and those of them that are silent; only `hostrouting check` asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.findings import NodeFinding
from hostrouting.net.addresses import IPV4
from hostrouting.net.default_route import default_routes
from hostrouting.net.routes import OUR_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host import Host
    from hostrouting.net.routes import ObservedRoute
    from phases import Context

__all__ = ["routers", "silent_routers"]


def routers(routes: Sequence[ObservedRoute], devs: Sequence[str]) -> list[tuple[str, str]]:
    """Return each (device, gateway) of the default routes and of our routes, by these devices; each once."""
    ours = (route for route in routes if route.protocol == OUR_PROTOCOL)
    hops = [hop for route in (*default_routes(routes), *ours) for hop in route.hops]
    return [
        *dict.fromkeys(
            (hop.dev, str(hop.gateway))
            for hop in hops
            if hop.dev in devs and not hop.dead and hop.gateway and hop.gateway.family == IPV4
        )
    ]


def silent_routers(ctx: Context, host: Host, devs: Sequence[str]) -> Iterable[NodeFinding]:
    """Return a warning for each router that does not answer when the kernel asks for its hardware address."""
    asked = routers(host.routes.routes(), devs)
    silent = host.link_layer.silent(ctx, asked)
    reason = "does not answer, though the kernel has asked again just now: see the router, and the link to it"
    return [
        NodeFinding("silent-gateway", f"{address} dev {dev}", reason, "warning")
        for dev, address in asked
        if (dev, address) in silent
    ]
