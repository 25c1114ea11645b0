"""What a check expects of a node's routing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from hostrouting.boot.installed_config import with_found_devs
from hostrouting.config.sections import DEFAULT_ALLOWED_DEVS, HostRoutingConfig, StaticRoutesConfig
from hostrouting.net.addresses import Prefix
from hostrouting.route_overlap.fabric import Fabric

if TYPE_CHECKING:
    import hostrouting.host
    from hostrouting.base.findings import NodeFinding
    from hostrouting.host import Host

#: Returns the section without the routes that the kernel would refuse; it may read the node.
Accepted: TypeAlias = Callable[[], StaticRoutesConfig]


@attrs.frozen(kw_only=True, eq=False)
class Expectation:
    """What to check: do all of `cidrs` leave through an expected or allowed device?"""

    cidrs: Sequence[Prefix]
    allowed_devs: Sequence[str] = DEFAULT_ALLOWED_DEVS
    #: None means the found devices, or those of the default route.
    expected_devs: Sequence[str] | None = None
    #: The outbound device when an apply last found the node healthy; expected while it works.
    found_devs: Sequence[str] = ()
    #: The networks that will be connected.
    fabric: Fabric = attrs.field(factory=Fabric)
    #: The units of `after` that are not up.
    late: Sequence[NodeFinding] = ()
    #: The config that this comes from: suggested routes are added to its section, or to `accepted`.
    config: HostRoutingConfig = attrs.field(factory=HostRoutingConfig)
    accepted: Accepted | None = None

    @classmethod
    def of(cls, config: HostRoutingConfig) -> Expectation:
        """Return what a config expects of any node."""
        section = config.route_overlap
        return cls(
            cidrs=prefixes_of(section.cidrs),
            allowed_devs=(*DEFAULT_ALLOWED_DEVS, *section.allowed_devs),
            expected_devs=section.expected_devs or None,
            found_devs=config.found_devs,
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
    """Return what a config expects of a host, with the devices that were found there."""
    expectation = Expectation.of(with_found_devs(config, host.files))
    return attrs.evolve(expectation, fabric=fabric, late=late, accepted=accepted)


def prefixes_of(
    cidrs: Iterable[str | hostrouting.host.Network] | Mapping[str, object],
) -> tuple[Prefix, ...]:
    """Return CIDRs as networks without host bits."""
    return tuple(Prefix.parse(str(cidr)).masked for cidr in cidrs)
