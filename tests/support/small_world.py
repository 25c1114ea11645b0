"""A small world for Hypothesis, in which routes meet: one prefix inside another, gateways on and
off the links.

devices, addresses      the devices and their addresses
routes                  desired routes of every kind that the model has
announced_cidrs         networks that an agent may connect
changes_of              a batch for a backend with these routes
rules, selecting_rules  policy rules
places, packets         the questions: addresses of lookups, and packets

It is written in IPv4; the world of IPv6 is the same one, moved to fd00::/96, with sources and
link-local gateways.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
from hypothesis import strategies as st

from hostrouting.fib import Packet
from hostrouting.host import IPV4, IPV6, Address, NextHop, ObservedRoute, Route, RouteChange, Rule
from hostrouting.net.addresses import Prefix, address_bits, format_address, parse_cidr, parse_ipv4
from hostrouting.net.routes import DEVICELESS_KINDS, is_deleted_by
from hostrouting.net.rules import Range

_T = TypeVar("_T")


def pick(draw: st.DrawFn, *choices: _T) -> _T:
    """Draw one of the choices; one that is named twice is drawn twice as often."""
    return draw(st.sampled_from(choices))


#: The devices of `routes`.
DEVICES = ("e0", "e1", "e2")
#: (address, peer) pairs for those devices: nested, secondary, /31, /32 and point-to-point among
#: them.
ADDRESSES = (
    ("10.0.0.1/8", None),
    ("10.1.0.1/16", None),
    ("10.1.0.2/16", None),
    ("10.1.0.9/24", None),
    ("10.1.0.4/31", None),
    ("10.2.0.1/32", None),
    ("10.3.0.1/32", "10.3.0.2"),
    ("192.168.7.1/24", None),
    ("192.168.7.2/24", None),
)
#: The destinations of `routes` and `rules`, and the gateways and tables of `routes`.
DESTINATIONS = (
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.0.0/24",
    "10.1.0.0/31",
    "10.1.0.2/32",
    "10.1.0.3/32",
    "10.2.0.0/15",
    "10.3.0.2/32",
    "192.168.7.0/24",
    "192.168.0.0/16",
    "172.16.0.0/12",
)
GATEWAYS = (
    "10.0.0.7",
    "10.1.0.1",
    "10.1.0.3",
    "10.1.0.5",
    "10.1.0.200",
    "10.3.0.2",
    "192.168.7.254",
    "172.16.0.1",
)
#: The first address of the IPv6 world.
BASE = 0xFD << 120
#: An address that the node often has.
ONE_SOURCE = {IPV4: parse_ipv4("10.1.0.1"), IPV6: BASE + parse_ipv4("10.1.0.1")}
#: Addresses that need a device, and some beyond the world.
UNUSUAL = (
    1,
    0xFE80 << 112 | 9,
    0xFF02 << 112 | 1,
    0xFF05 << 112 | 2,
    0x2001 << 112,
    (1 << 128) - 1,
)
_TABLES = (254, 254, 254, 255, 100, 1000)


def moved(text: str, family: int) -> str:
    """Return an address or CIDR of the small world as one of the family."""
    address, slash, length = text.partition("/")
    if family == IPV4:
        return text
    if length == "0":
        return "::/0"
    return (
        format_address(IPV6, BASE + parse_ipv4(address)) + slash + str(length and 96 + int(length))
    )


def _cidr(text: str, family: int) -> tuple[int, int]:
    return Prefix.parse(moved(text, family))[1:]


def devices() -> st.SearchStrategy[str]:
    """One of the small world's devices."""
    return st.sampled_from(DEVICES)


def addresses(family: int = IPV4) -> st.SearchStrategy[tuple[str, str | None]]:
    """An (address, peer) pair for one of them."""
    pairs = [(moved(address, family), peer and moved(peer, family)) for address, peer in ADDRESSES]
    return st.sampled_from(pairs)


def _own_addresses(family: int) -> st.SearchStrategy[int]:
    return st.sampled_from([_cidr(address, family)[0] for address, _ in ADDRESSES])


def _gateways(family: int) -> st.SearchStrategy[Address]:
    texts = [moved(gateway, family) for gateway in GATEWAYS]
    return st.sampled_from(texts + ["fe80::1"] * (family == IPV6)).map(Address.parse)


def _next_hops(family: int) -> st.SearchStrategy[tuple[NextHop, ...]]:
    gateways = (st.none() if family == IPV4 else st.nothing()) | _gateways(family)
    hops = st.tuples(gateways, devices(), st.integers(1, 3)).map(lambda hop: NextHop(*hop))
    return st.lists(hops, min_size=2, max_size=3).map(tuple)


@st.composite
def routes(draw: st.DrawFn, *, protocols: Sequence[int] = (142,), family: int = IPV4) -> Route:
    """A desired route of the small world; the kernel may refuse it."""
    network, length = _cidr(pick(draw, *DESTINATIONS), family)
    is_ipv6 = family == IPV6
    gateway = draw(_gateways(family))
    shape = pick(
        draw, "gateway", "gateway", "gateway", "link", "link", "multipath", "nowhere", "local"
    )
    kind = {"nowhere": pick(draw, *sorted(DEVICELESS_KINDS)), "local": "local"}.get(
        shape, "unicast"
    )
    return Route(
        network=network,
        prefix_length=length,
        gateway=gateway if shape == "gateway" else None,
        dev=draw(devices()) if shape in {"gateway", "link", "local"} else None,
        metric=pick(
            draw, *([1, 50, 256, 1024, 1024, 4294967295] if is_ipv6 else [0, 0, 0, 50, 4294967295])
        ),
        table=pick(draw, *_TABLES),
        protocol=pick(draw, *protocols),
        kind=kind,
        source=draw(st.none() | _own_addresses(family)) if shape != "nowhere" else None,
        nexthops=draw(_next_hops(family)) if shape == "multipath" else (),
        # The model has on-link gateways of IPv6 in this shape only.
        onlink=shape == "gateway"
        and (not is_ipv6 or gateway.is_link_local)
        and draw(st.booleans()),
        tos=0 if is_ipv6 else pick(draw, 0, 0, 0, 8),
        from_prefix=draw(_sources()) if is_ipv6 else None,
        family=family,
    )


def _sources() -> st.SearchStrategy[Prefix | None]:
    texts = ["10.0.0.0/8", "10.1.0.0/16", "10.1.0.1/32", "192.168.7.0/24"]
    return st.sampled_from([None] * 6 + [Prefix.parse(moved(text, IPV6)) for text in texts])


@st.composite
def changes_of(
    draw: st.DrawFn, held: Sequence[ObservedRoute], family: int = IPV4
) -> list[RouteChange]:
    """A batch against a backend that holds these routes; much of it is refused, a part of all
    batches succeeds.
    """
    # Of IPv6 these are for routes without a gateway.
    rare = [] if family == IPV6 else [RouteChange.prepend, RouteChange.append]
    additions = st.sampled_from([RouteChange.add, RouteChange.add, *rare])
    changes = [
        draw(additions)(route) for route in draw(st.lists(routes(family=family), max_size=3))
    ]
    # Some routes of the kernel do not come back unchanged.
    others = [route for route in held if route.table != 255 and route.protocol != 2]
    for old in draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others else ():
        new = _in_place_of(old, draw(routes(family=family)))
        if draw(st.booleans()) or is_deleted_by(old, new):
            changes.append(RouteChange.remove(old))
        else:
            changes.append(RouteChange.replace(old, new))
    return draw(st.permutations(changes))


def _in_place_of(old: ObservedRoute, new: Route) -> Route:
    kept = {
        name: getattr(old, name)
        for name in ("network", "prefix_length", "from_prefix", "tos", "metric", "table")
    }
    return attrs.evolve(new, **kept)


@st.composite
def rules(draw: st.DrawFn, family: int = IPV4) -> Rule:
    """A policy rule of the small world, by source or destination."""
    action = pick(draw, *["lookup"] * 4, "blackhole", "unreachable", "prohibit")
    lookup = action == "lookup"
    destinations = st.sampled_from(DESTINATIONS).map(lambda text: _cidr(text, family))
    return Rule(
        family=family,
        priority=pick(draw, *([1, 100, 100, 32766, 40000] if lookup else [1, 100, 40000])),
        action=action,
        table=pick(draw, *_TABLES) if lookup else 0,
        source=draw(
            st.just((0, 0))
            | _own_addresses(family).map(lambda address: (address, address_bits(family)))
        )
        if lookup
        else (0, 0),
        destination=draw((st.just((0, 0)) if lookup else st.nothing()) | destinations),
        inverted=pick(draw, False, False, False, True) if lookup else False,
    )


def places(family: int = IPV4) -> list[int]:
    """Every address of the small world at which a lookup's answer can change, and its neighbours."""
    found = {parse_ipv4(text) for text in GATEWAYS}
    for text in (*DESTINATIONS, *(address for address, _ in ADDRESSES)):
        address, length = parse_cidr(text)
        first = address & 0xFFFFFFFF << 32 - length
        behind = first + (1 << 32 - length)
        found |= {address, first, first + 1, behind - 1, behind}
    # 0/8, 127/8 and multicast have lookup rules that only they have.
    usual = sorted(a for a in found if 1 << 24 <= a < 127 << 24 or 128 << 24 <= a < 224 << 24)
    return usual if family == IPV4 else [*(BASE + a for a in usual), *UNUSUAL]


def _ranges(*pairs: tuple[int, int]) -> st.SearchStrategy[Range | None]:
    return st.none() | st.sampled_from(pairs).map(lambda pair: Range(*pair))


@st.composite
def selecting_rules(draw: st.DrawFn, family: int = IPV4) -> Rule:
    """A policy rule with up to two selectors of the model beside the addresses, or with another
    action.
    """
    rule = draw(rules(family))
    choices: dict[str, st.SearchStrategy[Any]] = {
        "tos": st.sampled_from([8, 16]),
        "mark": st.sampled_from([0, 1, 2]),
        "iif": st.sampled_from(["lo", *DEVICES, "absent0"]),
        "oif": st.sampled_from(DEVICES),
        "ip_protocol": st.sampled_from([1, 6, 17]),
        "source_ports": _ranges((1000, 1000), (1000, 2000)),
        "destination_ports": _ranges((53, 53), (1, 442)),
        "uids": _ranges((0, 0), (1, 65533), (65534, 65534)),
        "l3mdev": st.just(value=True),
        "suppress_prefix_length": st.sampled_from(
            [0, *(address_bits(family) - n for n in (24, 17, 16, 8))]
        ),
        "suppress_group": st.sampled_from([0, 5]),
        "goto": st.sampled_from([50, 100, 200, 32766, 40000]),
        "nop": st.just(value=True),
    }
    chosen = {
        name: draw(choices[name])
        for name in draw(st.lists(st.sampled_from(sorted(choices)), max_size=2, unique=True))
    }
    if "mark" in chosen:
        chosen["mark_mask"] = pick(draw, 1, 3, 0xFFFFFFFF)
    is_nop = chosen.pop("nop", False)
    action = "goto" if "goto" in chosen else "nop" if is_nop else rule.action
    if action != "lookup":
        for name in "suppress_prefix_length", "suppress_group", "l3mdev":
            chosen.pop(name, None)
    table = 0 if action != "lookup" or "l3mdev" in chosen else rule.table
    return rule._replace(**chosen, action=action, table=table)


@st.composite
def packets(draw: st.DrawFn, sources: Sequence[int], family: int = IPV4) -> Packet:
    """A packet of the small world: one that the node sends from one of `sources`, or one that comes
    in by a device.
    """
    fields: dict[str, Any] = {
        "tos": pick(draw, 0, 0, 8, 16),
        "mark": pick(draw, 0, 1, 2, 3),
        "ip_protocol": pick(draw, 6, 17),
        "source_port": pick(draw, 1000, 1500, 3000),
        "destination_port": pick(draw, 53, 443),
    }
    if draw(st.booleans()):
        fields["source"] = pick(draw, 0, *sources)
        fields["oif"] = pick(draw, "", "", *DEVICES)
        fields["uid"] = pick(draw, 0, 1000, 65534)
    else:
        fields["source"] = _cidr("198.51.100.9/32", family)[0]
        fields["iif"] = draw(devices())
        # The kernel's answer for one of IPv6 that comes in is for no user, while the packet itself
        # is root's.
        fields["uid"] = -1 if family == IPV6 else 0
    # Of IPv6 multicast that comes in the kernel does not show the route.
    destinations = [
        address for address in places(family) if "iif" not in fields or address >> 120 != 0xFF
    ]
    return Packet(pick(draw, *destinations), **fields, family=family)


#: Networks whose ends meet the routes and addresses of this world.
_ANNOUNCED = (
    "10.1.0.0/16",
    "10.2.0.0/16",
    "10.3.0.0/16",
    "192.168.0.0/16",
    "10.0.0.0/8",
    "10.1.0.0/24",
    "10.1.0.8/29",
    "10.1.0.4/31",
    "10.1.0.6/32",
    "10.1.128.0/17",
    "192.168.7.0/26",
)


def announced_cidrs() -> st.SearchStrategy[str]:
    """Networks that an agent may connect."""
    return st.sampled_from(_ANNOUNCED)
