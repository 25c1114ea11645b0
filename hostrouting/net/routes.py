"""Routes of both address families, wanted and observed in the kernel, and changes to them.

These are different types on purpose. A `Route` is made by hostrouting and validates itself. An
`ObservedRoute` comes from the kernel, by the hundred thousand, and is trusted. Networks and source
addresses are integers of the route's family (see `hostrouting.net.addresses`). A gateway is an
`Address`, because its family may differ. `str()` formats a route as `ip route` does.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.net.addresses import (
    FAMILY_NAMES,
    IPV4,
    IPV6,
    Address,
    Prefix,
    address_bits,
    format_address,
    mask_of,
)
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The protocol number that marks our routes. The kernel stores it, filters dumps by it and compares
#: it when it deletes a route, so no state file is needed. No program in iproute2's list uses it.
OUR_PROTOCOL: Final = 142
#: The protocols of the kernel's own routes, and of routes that a router advertised.
KERNEL_PROTOCOL: Final = 2
RA_PROTOCOL: Final = 9

MAIN_TABLE: Final = 254
LOCAL_TABLE: Final = 255

SCOPE_UNIVERSE: Final = 0
SCOPE_LINK: Final = 253
SCOPE_HOST: Final = 254

#: Route types by number, named as `ip route` names them.
KINDS: Final = (
    "unspec",
    "unicast",
    "local",
    "broadcast",
    "anycast",
    "multicast",
    "blackhole",
    "unreachable",
    "prohibit",
    "throw",
    "nat",
    "xresolve",
)
KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
#: Route types that drop packets; they have neither gateway nor device.
DEVICELESS_KINDS: Final = frozenset({"blackhole", "unreachable", "prohibit", "throw"})

FLAG_DEAD: Final = 1
FLAG_ONLINK: Final = 4
FLAG_LINKDOWN: Final = 16

PROTOCOL_NAMES: Final = {
    1: "redirect",
    2: "kernel",
    3: "boot",
    4: "static",
    8: "gated",
    9: "ra",
    10: "mrt",
    11: "zebra",
    12: "bird",
    13: "dnrouted",
    14: "xorp",
    15: "ntk",
    16: "dhcp",
    18: "keepalived",
    42: "babel",
    186: "bgp",
    187: "isis",
    188: "ospf",
    189: "rip",
    192: "eigrp",
}
FLAG_NAMES: Final = ((FLAG_DEAD, "dead"), (FLAG_ONLINK, "onlink"), (FLAG_LINKDOWN, "linkdown"))
TABLE_NAMES: Final = {253: "default", 254: "main", 255: "local"}
SCOPE_NAMES: Final = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}

#: Uninterpreted attributes (metrics, realms, ...) as (number, payload) pairs, which a rollback
#: needs to restore a route completely.
Extra: TypeAlias = tuple[tuple[int, bytes], ...]


class Encapsulation(NamedTuple):
    """A tunnel header that a next hop adds: LWTUNNEL_ENCAP_*, and its packed parameters.

    >>> NextHop(None, "eth0", encapsulation=Encapsulation(kind=1, payload=b"")).encapsulation.kind
    1
    """

    kind: int
    payload: bytes


def metric_words(metric: int) -> str:
    """Return a metric as `ip route` shows it, with a leading blank; empty for 0."""
    return f" metric {metric}" if metric else ""


#: LWTUNNEL_ENCAP_IP and _IP6: the header is for the device of the next hop.
IP_TUNNELS: Final = frozenset({2, 4})


class NextHop(NamedTuple):
    """A gateway (None for addresses on the link) and a device for packets of a route."""

    gateway: Address | None
    dev: str
    weight: int = 1
    onlink: bool = False
    extra: Extra = ()
    encapsulation: Encapsulation | None = None
    #: The kernel skips this next hop while its device is down, or has no carrier if that counts.
    #: Equality ignores it, because it is a state.
    dead: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NextHop) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:-1])

    def __str__(self) -> str:
        return _hop_words(self, IPV4 if self.gateway is None else self.gateway.family)


@attrs.frozen(kw_only=True)
class Route:
    """A route that is wanted.

    >>> str(Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0"))
    '172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142'
    >>> Route.parse("172.16.1.5/24", dev="eth0")
    Traceback (most recent call last):
    ValueError: 172.16.1.5/24 has host bits, the network is 172.16.1.0/24

    Without `scope`, the route gets the scope that `ip route` would choose: link for a route without
    gateway, host for a local one, else universe. IPv6 has no scopes.
    """

    network: int
    prefix_length: int
    gateway: Address | None = None
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
    nexthop_id: int = 0
    encapsulation: Encapsulation | None = None
    family: int = IPV4
    #: Only packets from this prefix use the route (IPv6 only).
    from_prefix: Prefix | None = None
    scope: int = attrs.field()  # last, because its default depends on those above

    @scope.default
    def _usual_scope(self) -> int:
        if self.family == IPV6:
            return SCOPE_UNIVERSE
        if self.kind == "local":
            return SCOPE_HOST
        leads_on = self.gateway is not None or self.nexthops or self.nexthop_id
        is_of_link = self.kind == "broadcast" or (self.kind == "unicast" and not leads_on)
        return SCOPE_LINK if is_of_link else SCOPE_UNIVERSE

    def __attrs_post_init__(self) -> None:
        mask = _mask_within_limits(
            self.family, self.prefix_length, self.metric, self.table, self.protocol
        )
        if not 0 <= self.network < 1 << address_bits(self.family):
            name = FAMILY_NAMES[self.family]
            raise ValueError(f"network {self.network} is not an {name} address")
        if self.network & ~mask:
            prefix = Prefix(self.family, self.network, self.prefix_length)
            raise ValueError(f"{prefix} has host bits, the network is {prefix.masked}")
        if self.kind not in KIND_NUMBERS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS[1:])}")
        if self.nexthops and (self.dev is not None or self.gateway is not None):
            raise ValueError(f"{self.destination} has next hops; leave out its 'dev' and 'gateway'")
        needs_dev = not (self.kind in DEVICELESS_KINDS or self.nexthops or self.nexthop_id)
        if needs_dev and self.dev is None:
            # The kernel would choose a device by the gateway, and might choose one of the fabric.
            raise ValueError(f"{self.destination} needs a 'dev', because it is a {self.kind} route")

    @classmethod
    def parse(
        cls,
        destination: str,
        *,
        gateway: str | None = None,
        source: str | None = None,
        **fields: Any,
    ) -> Route:
        """Make a route of either family from text.

        `destination` is a CIDR without host bits, `gateway` and `source` are addresses; `fields`
        are other fields by name, such as `dev`, `metric` and `table`. Raises ValueError if a value
        is invalid or the device is missing.

        >>> print(Route.parse("fd00:1::/64", gateway="fe80::1", dev="eth0", metric=5))
        fd00:1::/64 via fe80::1 dev eth0 proto 142 metric 5
        """
        return cls(**_parsed(destination, gateway, source), **fields)

    @property
    def destination(self) -> str:
        """The destination as CIDR text."""
        return _destination(self)

    def __repr__(self) -> str:
        return f"<Route {self}>"

    def __str__(self) -> str:
        return _format(self, FLAG_ONLINK if self.onlink else 0)


# Thousands of routes differ only in their destination.
@lru_cache(256)
def _mask_within_limits(
    family: int, prefix_length: int, metric: int, table: int, protocol: int
) -> int:
    """Return the mask of a route's network; raise ValueError for a number out of range."""
    for name, value, lowest, highest in (
        ("prefix_length", prefix_length, 0, address_bits(family)),
        # The kernel would turn IPv6 metric 0 into 1024.
        ("metric", metric, int(family == IPV6), 0xFFFFFFFF),
        ("table", table, 1, 0xFFFFFFFF),
        ("protocol", protocol, 0, 0xFF),
    ):
        if not isinstance(value, int):
            raise wrong_argument(name, value, "a whole number", "1")
        if not lowest <= value <= highest:
            raise ValueError(f"{name} {value} is not from {lowest} to {highest}")
    return mask_of(family, prefix_length)


class ObservedRoute(NamedTuple):
    """A route in the kernel, with everything that is needed to restore it.

    >>> str(ObservedRoute.parse("172.16.0.0/16", "ib0", protocol=2, source="172.16.1.4"))
    '172.16.0.0/16 dev ib0 proto kernel src 172.16.1.4'
    >>> str(ObservedRoute.parse("fd00:1::9/128", "azv1234", metric=1024, protocol=3))
    'fd00:1::9 dev azv1234 metric 1024'
    """

    network: int
    prefix_length: int
    #: None for addresses on the link, and if there are several next hops.
    gateway: Address | None = None
    #: None for a route that drops packets, and if there are several next hops.
    dev: str | None = None
    metric: int = 0
    table: int = MAIN_TABLE
    protocol: int = 0
    #: `unicast`, `blackhole`, ...
    kind: str = "unicast"
    scope: int = SCOPE_UNIVERSE
    source: int | None = None
    tos: int = 0
    flags: int = 0
    nexthops: tuple[NextHop, ...] = ()
    extra: Extra = ()
    #: The nexthop object of the route, or 0. The kernel also shows its gateways and devices.
    nexthop_id: int = 0
    encapsulation: Encapsulation | None = None
    family: int = IPV4
    #: Only packets from this prefix use the route (IPv6 only).
    from_prefix: Prefix | None = None
    #: The seconds until the route expires (IPv6 only); 0 if it does not. A route with a negative
    #: value has expired: the kernel skips it and removes it later.
    expires: int = 0

    @classmethod
    def parse(
        cls,
        destination: str,
        dev: str | None = None,
        gateway: str | None = None,
        *,
        source: str | None = None,
        from_prefix: str | None = None,
        **fields: Any,
    ) -> ObservedRoute:
        """Make a route of either family from text; `fields` are its other fields by name."""
        return cls(
            **_parsed(destination, gateway, source),
            dev=dev,
            from_prefix=None if from_prefix is None else Prefix.parse(from_prefix),
            **fields,
        )

    @property
    def destination(self) -> str:
        """The destination as CIDR text."""
        return _destination(self)

    @property
    def onlink(self) -> bool:
        """True if the kernel assumes that the gateway is on the link, without a lookup."""
        return bool(self.flags & FLAG_ONLINK)

    @property
    def hops(self) -> tuple[NextHop, ...]:
        """All next hops, even if there is only one; empty for a route that drops packets."""
        if self.nexthops or self.dev is None:
            return self.nexthops
        dead = bool(self.flags & FLAG_DEAD)
        hop = NextHop(self.gateway, self.dev, 1, self.onlink, self.extra, self.encapsulation, dead)
        return (hop,)

    @property
    def devs(self) -> tuple[str, ...]:
        """Every device that the route may send packets through, in the kernel's order."""
        if self.nexthops:
            return tuple(dict.fromkeys(hop.dev for hop in self.nexthops))
        return () if self.dev is None else (self.dev,)

    def to_route(self) -> Route:
        """Return the route to add in order to restore this one."""
        return Route(**{name: getattr(self, name) for name in _DESIRED})

    def fulfils(self, route: Route | ObservedRoute) -> bool:
        """Return True if this is `route`, whatever the state of its devices."""
        return self.network == route.network and signature(self) == signature(route)

    def __repr__(self) -> str:
        return f"<ObservedRoute {self}>"

    def __str__(self) -> str:
        return _format(self, self.flags)


_DESIRED = tuple(field.name for field in attrs.fields(Route))
#: Every field of either class except its network and the state of its devices.
signature: Final[Callable[[Route | ObservedRoute], tuple[object, ...]]] = attrgetter(*_DESIRED[1:])

#: The type of `route_key`.
RouteKey: TypeAlias = tuple[int, int, int, int, "Prefix | None", int, int]
#: Return the key of a route: table, family, network, prefix length, `from` prefix, tos, metric. Of
#: several routes with the same key, the kernel uses the first that is alive.
route_key: Final[Callable[[Route | ObservedRoute], RouteKey]] = attrgetter(
    "table", "family", "network", "prefix_length", "from_prefix", "tos", "metric"
)


def route_order(route: ObservedRoute) -> tuple[int, ...]:
    """Return the sort key of a dump: table, network, prefix length (longest first), metric."""
    return route.table, route.network, -route.prefix_length, route.metric


#: RTA_PREF, and its values; the kernel does not show the medium one.
_PREF = 20
_PREFERENCES = {b"\1": 1, b"\3": -1}


def preference(route: ObservedRoute) -> int:
    """Return the preference of a route that a router advertised: 1 high, 0 medium, -1 low."""
    return _PREFERENCES.get(dict(route.extra).get(_PREF, b""), 0)


#: The fields that are the same in a plan and in a dump.
_KEPT = tuple(name for name in _DESIRED if name not in {"onlink", "nexthops"})


def resting(route: Route | ObservedRoute) -> ObservedRoute:
    """Return a route as a dump shows it while its devices are up."""
    # Fast path: nearly all routes of events.
    if isinstance(route, ObservedRoute) and not (
        route.flags & ~FLAG_ONLINK or route.nexthops or route.expires
    ):
        return route
    hops = tuple(hop._replace(dead=False) for hop in route.nexthops)
    fields = {name: getattr(route, name) for name in _KEPT}
    return ObservedRoute(**fields, nexthops=hops, flags=FLAG_ONLINK if route.onlink else 0)


class Lookup(NamedTuple):
    """The kernel's answer for one address: the route that decides it, or an errno.

    ENETUNREACH means that no table has a route. EINVAL, EHOSTUNREACH and EACCES stand for a route
    of type blackhole, unreachable and prohibit.
    """

    destination: int
    route: ObservedRoute | None
    errno: int = 0


def _parsed(destination: str, gateway: str | None, source: str | None) -> dict[str, Any]:
    """Return the fields of a route that are given as text."""
    family, network, length = Prefix.parse(destination)
    return {
        "network": network,
        "prefix_length": length,
        "gateway": None if gateway is None else Address.parse(gateway),
        "source": None if source is None else Address.parse(source).number,
        "family": family,
    }


def _destination(route: Route | ObservedRoute) -> str:
    return f"{format_address(route.family, route.network)}/{route.prefix_length}"


def _format(route: Route | ObservedRoute, flags: int) -> str:
    """Return the route as `ip route show` prints it, with its table unless that is main."""
    destination = _destination(route).removesuffix(f"/{address_bits(route.family)}")
    kind = "" if route.kind == "unicast" else f"{route.kind} "
    rest = _after_destination(_shown(route), flags)
    return f"{kind}{destination if route.prefix_length else 'default'}{rest}"


class _Shown(NamedTuple):
    """The fields of a route that its text shows after the destination."""

    family: int
    from_prefix: Prefix | None
    tos: int
    gateway: Address | None
    dev: str | None
    table: int
    protocol: int
    scope: int
    source: int | None
    metric: int
    nexthops: tuple[NextHop, ...]


_shown: Final = attrgetter(*_Shown._fields)


# Thousands of routes differ only in their destination.
@lru_cache(256)
def _after_destination(fields: tuple[Any, ...], flags: int) -> str:
    route = _Shown(*fields)
    words = []
    if route.from_prefix is not None:
        words.append(f" from {route.from_prefix}")
    if route.tos:
        words.append(f" tos {route.tos:#04x}")
    words.append(_via(route.gateway, route.family))
    if route.dev is not None:
        words.append(f" dev {route.dev}")
    if route.table != MAIN_TABLE:
        words.append(f" table {TABLE_NAMES.get(route.table, str(route.table))}")
    protocol = PROTOCOL_NAMES.get(route.protocol, str(route.protocol))
    if protocol != "boot":  # as in the output of ip
        words.append(f" proto {protocol}")
    if route.scope != SCOPE_UNIVERSE:
        words.append(f" scope {SCOPE_NAMES.get(route.scope, str(route.scope))}")
    if route.source is not None:
        words.append(f" src {format_address(route.family, route.source)}")
    words.append(metric_words(route.metric))
    # The state of several next hops is not shown.
    if not route.nexthops:
        words += [f" {word}" for flag, word in FLAG_NAMES if flags & flag]
    words += [f" {_hop_words(hop, route.family)}" for hop in route.nexthops]
    return "".join(words)


def _hop_words(hop: NextHop, family: int) -> str:
    """Return a next hop of a route of this family as an argument of `ip`."""
    onlink = " onlink" if hop.onlink else ""
    return f"nexthop{_via(hop.gateway, family)} dev {hop.dev} weight {hop.weight}{onlink}"


def _via(gateway: Address | None, family: int) -> str:
    """Return `via` and the gateway; `ip` needs the family if it differs from the route's."""
    if gateway is None:
        return ""
    kind = "inet6 " if gateway.family != family else ""
    return f" via {kind}{gateway}"


# --- the default routes of a node


def default_routes(observed: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the default routes of table main that send packets through a device, best first.

    They are sorted by metric, then by router preference, then in the order of `observed`.

    Excluded are our own routes, because default routes supply their gateways; routes for a type of
    service or a source prefix, because few packets use them; and expired routes.
    """
    # By position, which is faster: this line runs for each route of a full table.
    routes = [route for route in observed if route[1] == 0 and route[5] == MAIN_TABLE]
    for_all_packets = (route for route in routes if not route.tos and route.from_prefix is None)
    usable = (route for route in for_all_packets if route.expires >= 0 and route.kind == "unicast")
    return sorted((route for route in usable if route.protocol != OUR_PROTOCOL), key=_rank)


def default_route(observed: Iterable[ObservedRoute]) -> ObservedRoute | None:
    """Return the default route that the kernel uses: the first with a next hop that is not dead.

    The kernel marks a next hop without carrier as dead only if `ignore_routes_with_linkdown` is
    set.
    """
    for route in default_routes(observed):
        if any(not hop.dead for hop in route.hops):
            return route
    return None


def best_default_devs(observed: Iterable[ObservedRoute]) -> tuple[str, ...]:
    """Return the devices of the best default routes without duplicates, in the order of `observed`.

    There are several if the best route has several next hops, or several routes are equally good.
    """
    hops = ((_rank(route), hop) for route in default_routes(observed) for hop in route.hops)
    alive = [(rank, hop.dev) for rank, hop in hops if not hop.dead]
    return tuple(dict.fromkeys(dev for rank, dev in alive if rank == alive[0][0]))


def alternating_routes(observed: Iterable[ObservedRoute]) -> tuple[ObservedRoute, ...]:
    """Return the IPv4 default routes of one table that the kernel alternates between; usually none.

    `observed` are the default routes of the table in the kernel's order. The kernel chooses by the
    neighbour state of each gateway, of either family, and alternates between gateways in the same
    state. It does so only if the first route has a single next hop, which is alive. A later route
    may be dead, and may have several next hops, of which the kernel uses the first.
    """
    routes = [route for route in observed if not route.tos]
    first = routes[0] if routes else None
    if first is None or len(first.hops) != 1 or first.hops[0].dead:
        return ()
    turns = tuple(
        route._replace(nexthops=route.nexthops[:1])
        for route in routes
        if (route.kind, route.metric, route.scope) == ("unicast", first.metric, first.scope)
        and route.hops
        and route.hops[0].gateway is not None
    )
    return turns if len(turns) > 1 and turns[0] == first else ()


def expected_outbound_dev(
    ipv4: Iterable[ObservedRoute], ipv6: Iterable[ObservedRoute]
) -> tuple[str, ...]:
    """Return the expected outbound device of IPv6; empty if it is unknown.

    It is the device of the best IPv4 default route. If there are several or none, it is the only
    device of all IPv6 default routes.
    """
    by_ipv6 = {hop.dev for route in default_routes(ipv6) for hop in route.hops if not hop.dead}
    return next((devs for devs in (best_default_devs(ipv4), tuple(by_ipv6)) if len(devs) == 1), ())


def _rank(route: ObservedRoute) -> tuple[int, int]:
    """Return the kernel's sort key for default routes of one family: the lowest wins."""
    return route.metric, -preference(route)


# --- the steps of a batch, which is applied completely or rolled back


#: A next hop, or a route with a single one.
Hop: TypeAlias = "Route | ObservedRoute | NextHop"


@attrs.frozen
class RouteChange:
    """One step of a batch: `before` must exist now, and `after` exists afterwards.

    An addition has no `before`, and a removal has no `after`. A change with both adds `after` and
    then removes `before`, so that packets always find a route. If the removal would also match
    `after`, it comes first, and both steps follow all other changes of the batch. If both routes
    are the same, it moves among the routes with its key. No change ever overwrites a route: the
    kernel would overwrite the first one with the same key, which may belong to another program.

    The kernel merges IPv6 routes that have gateways and the same key into one multipath route, so
    such a route is added only if its key is free. IPv6 routes are never prepended, and replacing
    one removes the old route first.

    >>> str(RouteChange.add(Route.parse("172.16.1.0/24", dev="eth0")))
    '+ 172.16.1.0/24 dev eth0 proto 142 scope link'
    """

    before: ObservedRoute | None
    after: Route | None
    #: How `after` is installed: `add`, `prepend` or `append`, see the methods of these names.
    verb: str = "add"

    def __attrs_post_init__(self) -> None:
        if not (self.after is None or isinstance(self.after, Route)):
            right = "Route.parse('10.0.0.0/8', dev='eth0')"  # type: ignore[unreachable]  # not all callers are checked
            raise wrong_argument("after", self.after, "a Route", right)
        if not (self.before is None or isinstance(self.before, ObservedRoute)):
            right = "backend.routes()[0]"  # type: ignore[unreachable]  # same as after
            raise wrong_argument("before", self.before, "an ObservedRoute", right)
        if self.before is None and self.after is None:
            raise ValueError("a change has neither 'before' nor 'after'; give one of them")
        if self.after is None:
            return
        if self.after.family == IPV6 and self.verb == "prepend":
            raise ValueError(
                f"'{self.after}' cannot be prepended: a new IPv6 route comes after those with its "
                "key"
            )
        if self.after.family == IPV6 and self.verb == "append" and may_merge(self.after):
            raise ValueError(
                f"'{self.after}' can only be added as the only route with its key: the kernel "
                "merges such routes"
            )
        if self.before is not None and route_key(self.before) != route_key(self.after):
            raise ValueError(
                f"'{self.after}' cannot replace '{self.before}': destination, tos, metric and "
                "table must be the same; add the first, then remove the second"
            )

    @classmethod
    def add(cls, route: Route) -> RouteChange:
        """Install `route`; refused (EEXIST) if a route with its key exists."""
        return cls(None, route)

    @classmethod
    def prepend(cls, route: Route) -> RouteChange:
        """Install `route` before others with its key; refused (EEXIST) only if it exists."""
        return cls(None, route, "prepend")

    @classmethod
    def append(cls, route: Route) -> RouteChange:
        """Install `route` after others with its key; refused (EEXIST) only if it exists."""
        return cls(None, route, "append")

    @classmethod
    def remove(cls, route: ObservedRoute) -> RouteChange:
        """Remove exactly `route`; refused (ESRCH) if it does not exist."""
        return cls(route, None)

    @classmethod
    def replace(cls, before: ObservedRoute, after: Route) -> RouteChange:
        """Install `after` before others with its key (IPv6: alone), and remove exactly `before`."""
        family = getattr(after, "family", IPV4)
        return cls(before, after, "add" if family == IPV6 else "prepend")

    @property
    def route(self) -> Route | ObservedRoute:
        """The route that exists afterwards, or the removed one."""
        return self.after or self.before  # type: ignore[return-value]  # one is not None

    @property
    def removes_first(self) -> bool:
        """True if `before` must be removed before `after` is added: a deletion would match both."""
        if self.before is None or self.after is None:
            return False
        return self.after.family == IPV6 or is_deleted_by(self.before, self.after)

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.after}"
        if self.after is None:
            return f"- {self.before}"
        return f"~ {self.before} -> {self.after}"


def is_deleted_by(named: Route | ObservedRoute, present: Route | ObservedRoute) -> bool:
    """Return True if the kernel, asked to delete `named`, would delete `present`.

    The kernel deletes the first match. A field that the request leaves out matches any value: a
    metric or protocol of 0, and an absent source address, gateway or attribute. Next hops are
    compared one by one, up to the length of the shorter list: a single next hop matches a route
    that begins with it, and several match a route with fewer if these are the same.

    For IPv6 only the key, the protocol and a given next hop are compared. The next hop matches any
    one of several, and any next hop matches a route with a nexthop object. A request to delete a
    route with several next hops names none of them.
    """
    if route_key(named)[:-1] != route_key(present)[:-1] or named.metric not in {0, present.metric}:
        return False
    if named.protocol not in {0, present.protocol}:
        return False
    if named.family == IPV6:
        if named.nexthop_id or present.nexthop_id:
            return bool(present.nexthop_id) and named.nexthop_id in {0, present.nexthop_id}
        if named.nexthops:
            return True
        hops = present.nexthops or (present,)
        return any(_ipv6_hop_fits(named, hop) for hop in hops)
    if (named.kind, named.scope) != (present.kind, present.scope):
        return False
    if named.nexthop_id not in {0, present.nexthop_id}:
        return False
    return (
        named.source in {None, present.source}
        and (named.nexthop_id != 0 or _hops_fit(named, present))
        and named.encapsulation in {None, present.encapsulation}
        and _extra_fits(named, present)
    )


def is_merged(route: ObservedRoute) -> bool:
    """Return True for an IPv6 route that the kernel merged from several.

    hostrouting never adds a multipath IPv6 route. A merged route shows the protocol of one of them.
    """
    return route.family == IPV6 and bool(route.nexthops) and not route.nexthop_id


def may_merge(route: Route | ObservedRoute) -> bool:
    """Return True if the kernel may merge an IPv6 route with another: it has a gateway."""
    hops = route.nexthops or (route,)
    return not route.nexthop_id and any(hop.gateway is not None for hop in hops)


def _hops_fit(named: Route | ObservedRoute, present: Route | ObservedRoute) -> bool:
    hops = present.nexthops or (present,)
    if not named.nexthops:
        return _hop_fits(named, hops[0])
    if len(named.nexthops) < len(hops):
        return False
    pairs = zip(named.nexthops, hops, strict=False)
    return all(_hop_fits(*pair) and _extra_fits(*pair) for pair in pairs)


def _ipv6_hop_fits(named: Hop, present: Hop) -> bool:
    # Routes that drop packets are on the loopback device.
    is_same_device = (named.dev or "lo") == (present.dev or "lo")
    return is_same_device and named.gateway in {None, present.gateway}


def _hop_fits(named: Hop, present: Hop) -> bool:
    return named.gateway in {None, present.gateway} and named.dev in {None, present.dev}


def _extra_fits(named: Hop, present: Hop) -> bool:
    return set(named.extra) <= set(present.extra)
