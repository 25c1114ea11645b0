"""What the route port speaks: desired routes, and what the kernel was seen to hold.

Desired and observed are different types on purpose. A `Route` is made by us, checks itself and
cannot be wrong; an `ObservedRoute` comes from the kernel, by the hundred thousand, and is believed.
Addresses are integers (see `hostrouting.net.addresses`); text is what `str()` gives.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.net.addresses import format_cidr, format_ipv4, netmask, parse_cidr, parse_ipv4
from hostrouting.net.route_text import (
    DEVICELESS_KINDS,
    FLAG_DEAD,
    FLAG_LINKDOWN,
    FLAG_ONLINK,
    KIND_NUMBERS,
    KINDS,
    LOCAL_TABLE,
    MAIN_TABLE,
    OUR_PROTOCOL,
    SCOPE_HOST,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    format_route,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DEVICELESS_KINDS",
    "FLAG_DEAD",
    "FLAG_LINKDOWN",
    "FLAG_ONLINK",
    "KINDS",
    "KIND_NUMBERS",
    "LOCAL_TABLE",
    "MAIN_TABLE",
    "OUR_PROTOCOL",
    "SCOPE_HOST",
    "SCOPE_LINK",
    "SCOPE_UNIVERSE",
    "Address",
    "Link",
    "Lookup",
    "NextHop",
    "ObservedRoute",
    "Route",
    "RouteChange",
    "Rule",
]

#: Attributes that we carry without understanding them (metrics, encapsulation, nexthop objects, ...), as
#: (number, payload) pairs, so that a foreign route which we displace comes back whole.
Extra = tuple[tuple[int, bytes], ...]


class NextHop(NamedTuple):
    """One leg of a multipath route."""

    gateway: int | None
    dev: str
    weight: int = 1
    onlink: bool = False
    extra: Extra = ()
    #: Passed over by the kernel as long as its device is down, or has no carrier where that counts: a state, no part
    #: of what the leg is.
    dead: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NextHop) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:-1])

    def __str__(self) -> str:
        words = ["nexthop"]
        if self.gateway is not None:
            words += ["via", format_ipv4(self.gateway)]
        words += ["dev", self.dev, "weight", str(self.weight)]
        if self.onlink:
            words.append("onlink")
        return " ".join(words)


@attrs.frozen(kw_only=True)
class Route:
    """A route that somebody wants.

    >>> str(Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0"))
    '172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142'
    >>> Route.parse("172.16.1.5/24", dev="eth0")
    Traceback (most recent call last):
    ValueError: 172.16.1.5/24 has host bits, the network is 172.16.1.0/24

    `scope` left out is what `ip route` would take: link for a route without gateway, host for a local
    one, else universe.
    """

    network: int
    prefix_length: int
    gateway: int | None = None
    dev: str | None = None
    metric: int = 0
    table: int = MAIN_TABLE
    protocol: int = OUR_PROTOCOL
    kind: str = "unicast"
    source: int | None = None
    tos: int = 0
    onlink: bool = False
    nexthops: tuple[NextHop, ...] = ()
    extra: Extra = ()
    scope: int = attrs.field()  # last, since what it is by default depends on the others

    @scope.default
    def _usual_scope(self) -> int:
        if self.kind == "local":
            return SCOPE_HOST
        if self.kind == "broadcast" or (
            self.kind == "unicast" and self.gateway is None and not self.nexthops and not self.extra
        ):
            return SCOPE_LINK
        return SCOPE_UNIVERSE

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.prefix_length <= 32:
            raise ValueError(f"prefix_length {self.prefix_length} is not from 0 to 32")
        if not 0 <= self.network <= 0xFFFFFFFF:
            raise ValueError(f"network {self.network} is no IPv4 address")
        if self.network & ~netmask(self.prefix_length):
            wanted = format_cidr(self.network & netmask(self.prefix_length), self.prefix_length)
            raise ValueError(f"{self.destination} has host bits, the network is {wanted}")
        if not 0 <= self.metric <= 0xFFFFFFFF:
            raise ValueError(f"metric {self.metric} is not from 0 to 4294967295")
        if not 0 < self.table <= 0xFFFFFFFF:
            raise ValueError(f"table {self.table} is not from 1 to 4294967295")
        if not 0 <= self.protocol <= 0xFF:
            raise ValueError(f"protocol {self.protocol} is not from 0 to 255")
        if self.kind not in KIND_NUMBERS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS[1:])}")
        if self.nexthops and (self.dev is not None or self.gateway is not None):
            raise ValueError(f"{self.destination} has next hops of its own, so it has no dev or gateway besides")
        if self.dev is None and self.kind not in DEVICELESS_KINDS and not self.nexthops and not self.extra:
            # The kernel would choose a device by the gateway, and might choose the very fabric we are here to avoid.
            raise ValueError(f"{self.destination} has no dev; a {self.kind} route says by which device it leaves")

    @classmethod
    def parse(
        cls,
        destination: str,
        *,
        gateway: str | None = None,
        dev: str | None = None,
        metric: int = 0,
        table: int = MAIN_TABLE,
        protocol: int = OUR_PROTOCOL,
        kind: str = "unicast",
        source: str | None = None,
    ) -> Route:
        """Make a route of text; ValueError says what is wrong with it."""
        network, prefix_length = parse_cidr(destination)
        return cls(
            network=network,
            prefix_length=prefix_length,
            gateway=None if gateway is None else parse_ipv4(gateway),
            dev=dev,
            metric=metric,
            table=table,
            protocol=protocol,
            kind=kind,
            source=None if source is None else parse_ipv4(source),
        )

    @property
    def destination(self) -> str:
        """The destination as CIDR text."""
        return format_cidr(self.network, self.prefix_length)

    def __str__(self) -> str:
        return format_route(self, flags=FLAG_ONLINK if self.onlink else 0)


class ObservedRoute(NamedTuple):
    """A route that the kernel holds, in every detail that it takes to put it back.

    >>> str(ObservedRoute(0xAC100000, 16, dev="ib0", protocol=2, scope=SCOPE_LINK, source=0xAC100104))
    '172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4'
    """

    network: int
    prefix_length: int
    gateway: int | None = None
    dev: str | None = None
    metric: int = 0
    table: int = MAIN_TABLE
    protocol: int = 0
    kind: str = "unicast"
    scope: int = SCOPE_UNIVERSE
    source: int | None = None
    tos: int = 0
    flags: int = 0
    nexthops: tuple[NextHop, ...] = ()
    extra: Extra = ()

    @property
    def destination(self) -> str:
        """The destination as CIDR text."""
        return format_cidr(self.network, self.prefix_length)

    @property
    def onlink(self) -> bool:
        """Whether the gateway is taken to be on the link without asking the table."""
        return bool(self.flags & FLAG_ONLINK)

    @property
    def devs(self) -> tuple[str, ...]:
        """Every device by which this route may send: one, or those of all next hops in the kernel's order."""
        if self.nexthops:
            return tuple(dict.fromkeys(hop.dev for hop in self.nexthops))
        return () if self.dev is None else (self.dev,)

    def to_route(self) -> Route:
        """The desired route that would bring this one back."""
        return Route(
            network=self.network,
            prefix_length=self.prefix_length,
            gateway=self.gateway,
            dev=self.dev,
            metric=self.metric,
            table=self.table,
            protocol=self.protocol,
            kind=self.kind,
            scope=self.scope,
            source=self.source,
            tos=self.tos,
            onlink=self.onlink,
            nexthops=self.nexthops,
            extra=self.extra,
        )

    def fulfils(self, route: Route | ObservedRoute) -> bool:
        """Whether this is what `route` asks for, whatever state its devices are in."""
        return self.network == route.network and signature(self) == signature(route)

    def __str__(self) -> str:
        return format_route(self, flags=self.flags)


#: All that makes a route but its network, on `Route` and on `ObservedRoute` alike; not whether its devices are up.
signature: Final[Callable[[Route | ObservedRoute], tuple[object, ...]]] = attrgetter(
    "prefix_length",
    "gateway",
    "dev",
    "metric",
    "table",
    "protocol",
    "kind",
    "scope",
    "source",
    "tos",
    "onlink",
    "nexthops",
    "extra",
)


@attrs.frozen
class RouteChange:
    """One step of a batch: `before` is what must be there now, `after` what shall be there then.

    An addition has no `before`, a removal no `after`. A change with both adds `after` before all others of its place
    and then removes `before`, so that no packet finds the place empty. Nothing is ever overwritten: the kernel would
    overwrite the first route of the place, and by then that may be another owner's.

    >>> str(RouteChange.add(Route.parse("172.16.1.0/24", dev="eth0")))
    '+ 172.16.1.0/24 dev eth0 proto 142 scope link'
    """

    before: ObservedRoute | None
    after: Route | None
    #: How `after` is installed: `add`, `prepend` or `append`, see the methods of these names.
    verb: str = "add"

    def __attrs_post_init__(self) -> None:
        if self.before is None and self.after is None:
            raise ValueError("a change needs a route before or after it")
        if self.before is None or self.after is None:
            return
        if _place(self.before) != _place(self.after):
            raise ValueError(
                f"'{self.after}' cannot replace '{self.before}': destination, tos, metric and table must be the same; "
                f"add the one, then remove the other"
            )
        if is_deleted_by(self.before, self.after):
            raise ValueError(
                f"'{self.after}' cannot replace '{self.before}': the kernel's deletion of the one takes the other; "
                f"remove the one, then add the other"
            )

    @classmethod
    def add(cls, route: Route) -> RouteChange:
        """Install `route`; refused (EEXIST) where a route of the same destination, tos, metric and table stands."""
        return cls(None, route)

    @classmethod
    def prepend(cls, route: Route) -> RouteChange:
        """Install `route` before others of its place, so that it decides; refused (EEXIST) only where it stands."""
        return cls(None, route, "prepend")

    @classmethod
    def append(cls, route: Route) -> RouteChange:
        """Install `route` behind others of its place; refused (EEXIST) only where it stands."""
        return cls(None, route, "append")

    @classmethod
    def remove(cls, route: ObservedRoute) -> RouteChange:
        """Take exactly `route` away; refused (ESRCH) where it does not stand."""
        return cls(route, None)

    @classmethod
    def replace(cls, before: ObservedRoute, after: Route) -> RouteChange:
        """Install `after` before others of its place, then take exactly `before` away."""
        return cls(before, after, "prepend")

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.after}"
        if self.after is None:
            return f"- {self.before}"
        return f"~ {self.before} -> {self.after}"


def is_deleted_by(named: Route | ObservedRoute, standing: Route | ObservedRoute) -> bool:
    """Whether the kernel's deletion of `named` may take `standing`: what a deletion does not have fits anything.

    That is a metric or protocol of 0, and a source address, gateway or attribute that is absent.
    """
    return (
        (named.table, named.network, named.prefix_length, named.tos, named.kind, named.scope)
        == (standing.table, standing.network, standing.prefix_length, standing.tos, standing.kind, standing.scope)
        and named.metric in {0, standing.metric}
        and named.protocol in {0, standing.protocol}
        and named.source in {None, standing.source}
        and named.gateway in {None, standing.gateway}
        and (named.dev, named.nexthops) == (standing.dev, standing.nexthops)
        and set(named.extra) <= set(standing.extra)
    )


def _place(route: Route | ObservedRoute) -> tuple[int, int, int, int, int]:
    """What the kernel lists routes by: of several in one place the first that is alive decides."""
    return route.table, route.network, route.prefix_length, route.tos, route.metric


class Address(NamedTuple):
    """An IPv4 address of a link. `peer` is the far end of a point-to-point link, else the address itself."""

    local: int
    prefix_length: int
    peer: int
    broadcast: int | None = None
    scope: int = SCOPE_UNIVERSE
    secondary: bool = False


class Link(NamedTuple):
    """A network device with its IPv4 addresses. `up` is what the administrator set, `carrier` what the wire says.

    `neighbours` are those on its link whose hardware address is known now: some of its peers, hardly ever all.
    """

    name: str
    ifindex: int
    up: bool
    carrier: bool
    loopback: bool = False
    addresses: tuple[Address, ...] = ()
    neighbours: tuple[int, ...] = ()


class Rule(NamedTuple):
    """A policy rule. `source` and `destination` are (network, prefix length); (0, 0) selects everything.

    `other_selectors` names, sorted, what else it selects by (`fwmark`, `iif`, `ipproto`, ...): a lookup by
    address alone does not cover such a rule, and whoever proves something must say so.
    """

    priority: int
    action: str = "lookup"
    table: int = 0
    source: tuple[int, int] = (0, 0)
    destination: tuple[int, int] = (0, 0)
    inverted: bool = False
    goto: int | None = None
    other_selectors: tuple[str, ...] = ()


class Lookup(NamedTuple):
    """The kernel's answer for one address: the route that decides it, or the errno with which it refuses.

    ENETUNREACH is no route at all, EINVAL a blackhole, EHOSTUNREACH unreachable, EACCES prohibited.
    """

    destination: int
    route: ObservedRoute | None
    errno: int = 0
