"""A node in memory for tests of runs: its state before them, and its troubles."""

from support.kernel import uplink
from support.memory_links import add_address, add_device

from hostrouting import HostRoutingConfig
from hostrouting.exceptions import ToolNotFoundError
from hostrouting.host import OUR_PROTOCOL, RouteChange
from hostrouting.testing import FakeHost

PROBES = {"probeSnat": {"enabled": True, "detect": "address"}}
SWEEP = {"staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"]}}


def routed(*destinations: str) -> HostRoutingConfig:
    """Return a config with routes to these networks, which it expects under STRICT."""
    routes = [{"destination": destination} for destination in destinations]
    return HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": routes},
            "routeOverlap": {"mode": "STRICT", "expectedCidrs": [*destinations]},
        }
    )


def gpu_node() -> FakeHost:
    """A node with a default route through eth0, and a fabric."""
    host = FakeHost()
    uplink(host.routes, ib0="172.16.1.4/16")
    return host


def crowd(host: FakeHost) -> None:
    """Add the objects of the siblings: IPv6, and the bridge of an azure-vnet that was removed."""
    host.files.tree.write("/proc/sys/kernel/random/boot_id", b"this-boot\n", mode=0o444)
    add_address(host.link_layer, "eth0", "2001:db8::4/64")
    host.routes.add_route("::/0", dev="eth0")
    add_device(host.link_layer, "azure0", kind="bridge")


def lose_our_routes(host: FakeHost) -> None:
    host.routes.apply([RouteChange.remove(route) for route in host.routes.routes_of(OUR_PROTOCOL)])


def lose_the_default_route(host: FakeHost) -> None:
    host.routes.apply(
        [RouteChange.remove(route) for route in host.routes.routes() if not route.prefix_length]
    )


def lose_nft(host: FakeHost) -> None:
    for number in range(1, 9):
        host.nftables.fail_at(
            number, ToolNotFoundError("nft", package="nftables", purpose="for the probes' rules")
        )
