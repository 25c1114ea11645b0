"""What is expected of a node's routing: the question of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from hostrouting.boot.intent import read_exits
from hostrouting.config.sections import DEFAULT_ALLOWED_DEVS, HostRoutingConfig, StaticRoutesConfig
from hostrouting.net.addresses import Prefix
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.route_overlap.fabric import Fabric

if TYPE_CHECKING:
    import hostrouting.host
    from hostrouting.base.findings import NodeFinding
    from hostrouting.host import Host
    from hostrouting.net.exits import Exits

#: Returns the section without the routes that the kernel certainly refuses; it may read the node.
Accepted: TypeAlias = Callable[[], StaticRoutesConfig]


@attrs.frozen(kw_only=True, eq=False)
class Expectation:
    """The question of a check: do all of `cidrs` leave through an expected or allowed device?"""

    cidrs: Sequence[Prefix]
    allowed_devs: Sequence[str] = DEFAULT_ALLOWED_DEVS
    #: None: the devices of the default route.
    expected_devs: Sequence[str] | None = None
    #: The networks that will be connected.
    fabric: Fabric = attrs.field(factory=Fabric)
    #: The outbound devices at the last apply that ended well, if the config expects none by name.
    pinned: Exits = attrs.field(factory=dict)
    #: The units of `after` that are not up.
    late: Sequence[NodeFinding] = ()
    #: The config of all this: suggested routes complete its section, or the accepted one.
    config: HostRoutingConfig = attrs.field(factory=HostRoutingConfig)
    accepted: Accepted | None = None

    @classmethod
    def of(cls, config: HostRoutingConfig) -> Expectation:
        """Return what a config expects, whatever the node is like."""
        section = config.route_overlap
        return cls(
            cidrs=prefixes_of(section.cidrs),
            allowed_devs=(*DEFAULT_ALLOWED_DEVS, *section.allowed_devs),
            expected_devs=section.expected_devs or None,
            config=config,
        )


def expectation_on(
    host: Host,
    config: HostRoutingConfig,
    fabric: Fabric,
    *,
    late: Sequence[NodeFinding] = (),
    accepted: Accepted | None = None,
) -> Expectation:
    """Return what a config expects of a host, with the devices that are pinned there."""
    pinned: Exits = {}
    # A config that names its devices has no use for others, which take a dump of routes.
    if not config.route_overlap.expected_devs:
        pinned = read_exits(host.files) or _exits_in_force(config, host)
    expectation = Expectation.of(config)
    return attrs.evolve(expectation, fabric=fabric, pinned=pinned, late=late, accepted=accepted)


def _exits_in_force(config: HostRoutingConfig, host: Host) -> Exits:
    """Return the device that completes the routes in force: no apply pins that of an image."""
    open_routes = {
        route.prefix for route in config.static_routes.routes if not (route.dev or route.gateway)
    }
    exits: dict[int, str] = {}
    for family in host.routes.families if open_routes and config.route_overlap.cidrs else ():
        devs = {
            route.dev
            for route in host.routes.routes_of(OUR_PROTOCOL, family)
            if (route.family, route.network, route.prefix_length) in open_routes
        }
        if len(devs) == 1 and (dev := devs.pop()):
            exits[family] = dev
    return exits


def prefixes_of(
    cidrs: Iterable[str | hostrouting.host.Network] | Mapping[str, object],
) -> tuple[Prefix, ...]:
    """Return CIDRs as networks without host bits."""
    return tuple(Prefix.parse(str(cidr)).masked for cidr in cidrs)
