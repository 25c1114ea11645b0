"""Nodes in memory for tests of runs and of the installed config, their configs and troubles."""

import attrs
from support.kernel import uplink
from support.memory_links import add_address, add_device
from support.patience import at_once

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.installed_config import NewConfig, require_installed_config
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH
from hostrouting.exceptions import ToolNotFoundError
from hostrouting.host import OUR_PROTOCOL, RouteChange
from hostrouting.testing import FakeHost
from phases import execute

OVERLAP = {"routeOverlap": {"expectedCidrs": ["10.224.0.0/16"], "mode": "WARN"}}
PROBES = {"probeSnat": {"enabled": True, "dev": "eth0", "detect": "address"}}
SWEEP = {"staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"]}}
GATES = {"gates": ["systemd-nspawn@.service"]}


def routed(*destinations: str) -> HostRoutingConfig:
    """Return a config with routes to these networks, which it expects under STRICT."""
    routes = [{"destination": destination} for destination in destinations]
    return HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": routes},
            "routeOverlap": {"mode": "STRICT", "expectedCidrs": [*destinations]},
        }
    )


def config(**sections: object) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping({**GATES, **sections})


def gpu_node() -> FakeHost:
    """A node with a default route through eth0, and a fabric."""
    host = FakeHost()
    uplink(host.routes, ib0="172.16.1.4/16")
    return host


def node(*, ipv6: bool = True) -> FakeHost:
    """A node with a default route and the unit of GATES, and with IPv6 if its probes are to have
    rules.
    """
    host = FakeHost()
    unit = b"[Service]\nExecStart=/bin/true\n"
    host.files.write("/lib/systemd/system/systemd-nspawn@.service", unit, mode=0o644)
    uplink(host.routes)
    _boot(host, ipv6=ipv6)
    return host


def crowd(host: FakeHost) -> None:
    """Add what the optional features need: IPv6, and the bridge of an azure-vnet that was
    removed.
    """
    _boot(host, ipv6=True)
    add_device(host.link_layer, "azure0", kind="bridge")


def _boot(host: FakeHost, *, ipv6: bool) -> None:
    host.files.tree.write("/proc/sys/kernel/random/boot_id", b"this-boot\n", mode=0o444)
    if ipv6:
        add_address(host.link_layer, "eth0", "2001:db8::4/64")
        host.routes.add_route("::/0", dev="eth0")


def own_routes(host: Host) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]


def state(host: FakeHost) -> object:
    """All that a run can change."""
    return host.routes.routes(), host.files.tree.snapshot()


def apply(host: FakeHost, **sections: object) -> None:
    execute(Configure(config(**sections), host=host), at_once())


def forget_devs(host: FakeHost) -> None:
    """Let the node be one that was made of an image, where no apply has found its device."""
    config = attrs.evolve(require_installed_config(host), found_devs=())
    put_in_force(host, NewConfig(config=config).file.content)


def put_in_force(host: FakeHost, content: bytes) -> None:
    """Let a node with an installed config be one on which an apply has written this one."""
    for path in CONFIG_PATH, APPLIED_PATH:
        host.files.write(path, content, mode=0o644)


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
