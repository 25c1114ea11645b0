"""Random IPv6 policy routing, alone or beside that of IPv4: commands of `ip`, and advertisements of
routers.

Shares no code with what it judges: a world is made by `ip`, and what the kernel refuses is left
out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from hypothesis import strategies as st
from support import node_worlds
from support.kernel import do, make
from support.routers import (
    PREFERENCES,
    ROUTER,
    SECOND_ROUTER,
    Prefix,
    RouteInformation,
    WiredNode,
    unplug,
)
from support.small_world import pick

#: The devices of both families: those of `small_world`.
DEVICES = ("e0", "e1", "e2")
#: Nested, of both kinds of global addresses, with every step from ::/0 to one address.
PREFIXES = (
    "2000::/3",
    "2001:db8::/32",
    "2001:db8:1::/48",
    "2001:db8:1::/64",
    "2001:db8:1::8/125",
    "2001:db8:1::5/128",
    "2001:db8:1::6/127",
    "2001:db8:2::/48",
    "2001:db8:2:8000::/49",
    "2001:db8:2:ffff:ffff:ffff:ffff:ffff/128",
    "fc00::/7",
    "fd00:1::/48",
    "fd00:1::/64",
    "fd00:1::100/120",
    "fd00:ec2::254/128",
)
#: What is to be proven: in the places where routes, rules and addresses meet.
CIDRS = (
    "2001:db8:1::/64",
    "2001:db8:1::/124",
    "2001:db8:1::4/126",
    "2001:db8::/46",
    "2001:db8:2::/48",
    "2000::/3",
    "fd00:1::/63",
    "fd00:1::100/121",
    "fd00:ec2::254/128",
    "fc00::/7",
)
#: Of the node, beside a link-local one for each device.
ADDRESSES = (
    "2001:db8:1::2/64",
    "2001:db8:1::9/128",
    "2001:db8:1:7::1/64",
    "2001:db8:2::1/48",
    "2001:db8:2:8000::1/127",
    "fd00:1::1/64",
    "fd00:1::102/120",
    "fd00:ec2::1/32",
)
#: At the other end of each link, with a neighbour entry where a world has it: two routers, and
#: others on the link.
GATEWAYS = (ROUTER, SECOND_ROUTER, "2001:db8:1::5", "2001:db8:1::a", "fd00:1::a")
_SILENT_MAC = "02:00:00:00:00:01"
_TABLES = ("main",) * 5 + ("local", "100", "1000")
_METRICS = ("", "", "", "metric 1", "metric 256", "metric 512", "metric 4294967295")
_REFUSING = ("blackhole", "unreachable", "prohibit")
#: By gateways, and by a link.
_OBJECTS = (
    f"nexthop add id 11 via {ROUTER} dev e0",
    f"nexthop add id 12 via {ROUTER} dev e1",
    "nexthop add id 13 dev e2",
)
#: A group of two, which belongs to no family.
_GROUP = "nexthop add id 14 group 11/12"


class IPv6World(NamedTuple):
    """What makes it, in this order; the kernel may refuse any of it."""

    #: Of `ip -6 -batch`: addresses, neighbours, routes and rules.
    commands: list[str]
    #: Device, router, preference, and options, of advertisements that come before the routes.
    advertised: list[tuple[str, str, str, list[Prefix | RouteInformation]]]
    cidrs: list[str]
    allowed: tuple[str, ...]
    #: As a router, or else as a host, which passes over a gateway that does not answer.
    forwarding: bool
    #: A device that goes down when all else is done.
    down: str | None = None
    #: The same node by IPv4.
    ipv4: node_worlds.World | None = None
    #: A device without carrier, and whether it has one until all else is done; else it loses it
    #: before the routes come.
    unplugged: tuple[str, bool] | None = None
    #: The kernel passes over next hops by a device without carrier.
    ignores_unplugged: bool = False

    def arrange(self, node: WiredNode) -> None:
        """Make it so; what the kernel refuses is left out."""
        node.add_links(*DEVICES)
        if self.forwarding:
            # Before the advertisements: it ends what they brought. And with 2 they are heard by a
            # router, too.
            node.switch(**{f"{dev}__accept_ra": 2 for dev in DEVICES}, all__forwarding=1)
        with ExitStack() as stack:
            for dev, address, preference, options in self.advertised:
                router = stack.enter_context(node.router(dev, address))
                router.advertise(preference=preference, options=options)
        held = [command for command in self.commands if command.startswith("address ")]
        do(node, "-6", commands=_OBJECTS)
        do(node, commands=[_GROUP])
        make(node, "-6", commands=held)
        node.wait_for_addresses()
        if self.ignores_unplugged:
            node.switch(all__ignore_routes_with_linkdown=1)
        lost, is_lost_later = self.unplugged or ("", True)
        if not is_lost_later:
            unplug(node, lost)
        make(node, "-6", commands=self.commands[len(held) :])
        if self.ipv4 is not None:
            make(node, "-4", commands=self.ipv4.commands())
        if self.unplugged and is_lost_later:
            unplug(node, lost)
        if self.down:
            node.set_up(self.down, up=False)


@contextmanager
def arranged(world: IPv6World) -> Iterator[WiredNode]:
    """Make a world in fresh namespaces."""
    with WiredNode.made() as node:
        world.arrange(node)
        node.wait_for_addresses()
        yield node


def devices() -> st.SearchStrategy[str]:
    """One of the devices."""
    return st.sampled_from(DEVICES)


def _words(*words: str) -> str:
    return " ".join(filter(None, words))


@st.composite
def _hops(draw: st.DrawFn) -> str:
    """A next hop: a gateway on the link, one that the kernel is to take as such, or the link alone."""
    gateway = pick(draw, *GATEWAYS)
    return pick(
        draw,
        f"via {pick(draw, ROUTER, SECOND_ROUTER)} dev {draw(devices())}",
        f"via {gateway} dev {draw(devices())} onlink",
        f"dev {draw(devices())}",
    )


@st.composite
def _paths(draw: st.DrawFn) -> str:
    """Where a unicast route leads."""
    # The kernel refuses one of several next hops that has no gateway.
    legs = draw(st.lists(_hops().filter(lambda hop: "via" in hop), min_size=2, max_size=3))
    weights = st.sampled_from(["", "", "weight 3"])
    several = " ".join(_words("nexthop", leg, draw(weights)) for leg in legs)
    single = draw(_hops())
    unbound = f"via {pick(draw, *[gateway for gateway in GATEWAYS if gateway[:2] != 'fe'])}"
    nhid = f"nhid {draw(st.integers(11, 14))}"
    return pick(draw, *[single] * 6, *[several] * 2, unbound, nhid)


def _inside(prefix: str) -> st.SearchStrategy[str]:
    """A shorter part of a prefix, which begins anywhere inside."""
    address, _, length = prefix.partition("/")
    groups = address.removesuffix("::").removesuffix("0::")
    return st.builds(
        lambda number, longer: f"{groups}::{number:x}/{max(int(length), longer)}",
        st.integers(0, 0x1FF),
        st.sampled_from([64, 118, 120, 123, 125, 126, 127, 128]),
    )


def _destinations() -> st.SearchStrategy[str]:
    return (
        st.sampled_from(PREFIXES)
        | _inside("2001:db8:1::/64")
        | _inside("fd00:1::/64")
        | st.just("default")
    )


@st.composite
def _routes(draw: st.DrawFn, held: Sequence[str]) -> str:
    """`ip route` of any kind. The kernel takes a destination with bits behind its prefix, and
    clears them.
    """
    kind = pick(draw, *["unicast"] * 8, "from", "from", *_REFUSING, "throw", "local", "anycast")
    verb = pick(draw, "append", "append", "append", "prepend", "add", "replace")
    table = pick(draw, *_TABLES)
    words = [draw(_destinations())]
    path = ""
    if kind == "from":
        words += [
            "from",
            pick(draw, "2001:db8:1::/64", "fd00:1::/64", "2001:db8:1::2/128", "2001::/16"),
        ]
    if kind in {"local", "anycast"}:
        words += ["dev", pick(draw, *DEVICES, "lo")]
        table = pick(draw, "local", "local", "main", "100")
    elif kind in {"unicast", "from"}:
        path = draw(_paths())
        words += [draw(st.just("") | st.just("") | st.sampled_from(held).map("src {}".format))]
    words += [
        "table",
        table,
        pick(draw, *_METRICS),
        "proto",
        pick(draw, "static", "ra", "boot"),
    ]
    words += [pick(draw, "", "", "", *(f"pref {name}" for name in PREFERENCES))]
    # `ip` takes nothing behind several next hops.
    return _words("route", verb, "" if kind in {"unicast", "from"} else kind, *words, path)


@st.composite
def _defaults(draw: st.DrawFn) -> list[str]:
    """The ways out: what a person, the daemons of routers' advertisements, or nobody made."""
    single = (
        f"route append default via {ROUTER} dev e0 proto ra metric {pick(draw, 100, 512, 1024)}"
    )
    shape = pick(
        draw, *["single"] * 6, "merged", "objects", "links", "order", "refused", "ours", "none"
    )
    return {
        "single": [single],
        # networkd 252: one route of several next hops.
        "merged": [f"route append default via {ROUTER} dev {dev} proto ra" for dev in ("e0", "e1")],
        # networkd 257: several routes.
        "objects": [
            f"route append default nhid {number} proto ra metric 512" for number in (11, 12)
        ],
        "links": [
            f"route append default dev {dev} proto ra" for dev in draw(st.permutations(DEVICES))[:2]
        ],
        # NetworkManager and dhcpcd: by the order in which the devices came.
        "order": [
            f"route append default via {ROUTER} dev {dev} proto ra metric {100 + at}"
            for at, dev in enumerate(draw(st.permutations(DEVICES)))
        ],
        "refused": ["route append unreachable default metric 50", single],
        "ours": ["route append 2001:db8::/32 dev e1 metric 1 proto 142", single],
        "none": [],
    }[shape]


@st.composite
def _rules(draw: st.DrawFn) -> str:
    """`ip rule add` by source or destination; some go elsewhere, and some suppress what they find."""
    action = pick(draw, *["lookup"] * 6, "goto", *_REFUSING)
    words = [
        "rule add priority",
        pick(draw, "1", "50", "100", "100", "32765", "32766", "32767", "40000"),
    ]
    sources = ["", "2001:db8:1::1/128", "2001:db8:1::/64", "fd00:1::/64", "2001::/16"]
    source = draw(st.just("") | st.sampled_from(sources))
    destination = draw(st.just("") | st.sampled_from(PREFIXES) | _inside("2001:db8:1::/64"))
    if action in _REFUSING and not (source or destination):
        destination = pick(draw, *PREFIXES)
    words.insert(0, "")
    words += [f"from {source}"] if source else []
    words += [f"to {destination}"] if destination else []
    if action == "lookup":
        words += [f"lookup {pick(draw, 'main', 'main', 'local', '100', '1000')}"]
        words += [
            pick(draw, "", "", "", *(f"suppress_prefixlength {n}" for n in (0, 32, 48, 63, 127)))
        ]
    elif action == "goto":
        words += [f"goto {pick(draw, 100, 32765, 32766, 40000, 50000)}"]
    else:
        words += [f"type {action}"]
    inverted = pick(draw, False, False, False, True) and (source or destination)
    return _words(*words).replace("rule add", "rule add not" if inverted else "rule add")


@st.composite
def _advertisements(draw: st.DrawFn) -> tuple[str, str, str, list[Prefix | RouteInformation]]:
    options = st.lists(
        st.sampled_from(
            [
                Prefix("2001:db8:1::/64"),
                Prefix("fd00:1::/64", autonomous=False),
                Prefix("fd00:2::/64"),
            ]
        ),
        max_size=1,
    )
    return (
        draw(devices()),
        pick(draw, ROUTER, SECOND_ROUTER),
        pick(draw, *list(PREFERENCES)),
        list(draw(options)),
    )


@st.composite
def ipv6_worlds(draw: st.DrawFn, *, silent: bool = False, unplugged: bool = False) -> IPv6World:
    """A node with the devices e0 to e2, and the CIDRs to be proven on it.

    Its tables alone decide: it forwards, or has an entry for each neighbour. With `silent`, a host
    may have gateways that do not answer; with `unplugged`, the node may have a device without
    carrier.
    """
    forwarding = draw(st.booleans())
    pairs = st.tuples(st.sampled_from(ADDRESSES), devices())
    held = [
        ("2001:db8:1::1/64", "e0"),
        *draw(st.lists(pairs, max_size=4, unique_by=lambda pair: pair[0])),
    ]
    ways = draw(
        st.lists(
            _routes([address.partition("/")[0] for address, _ in held]), min_size=1, max_size=10
        )
    )
    rules = draw(st.lists(_rules(), max_size=4))
    late_local = ["rule add priority 32800 lookup local", "rule del priority 0"]
    commands = [
        *(f"address add {address} dev {dev} nodad" for address, dev in held),
        *(draw(_neighbours(silent=silent)) if not forwarding else []),
        *draw(_defaults()),
        *ways,
        *rules,
        *pick(draw, *[[]] * 9, late_local),
    ]
    return IPv6World(
        commands=commands,
        advertised=draw(st.lists(_advertisements(), max_size=2)),
        cidrs=draw(st.lists(st.sampled_from(CIDRS), min_size=1, max_size=3, unique=True)),
        allowed=pick(draw, (), (), ("e1",), ("e[12]",)),
        forwarding=forwarding,
        down=draw(st.none() | st.none() | st.none() | devices()),
        unplugged=draw(st.none() | st.tuples(devices(), st.booleans())) if unplugged else None,
        ignores_unplugged=unplugged and draw(st.booleans()),
    )


@st.composite
def _neighbours(draw: st.DrawFn, *, silent: bool) -> list[str]:
    every = list(itertools.product(GATEWAYS, DEVICES))
    failed = draw(st.lists(st.sampled_from(every), max_size=4)) if silent else []
    return [
        # An advertisement has made some of them.
        f"neigh replace {address} dev {dev} "
        + ("nud failed" if (address, dev) in failed else f"lladdr {_SILENT_MAC} nud permanent")
        for address, dev in every
    ]


@st.composite
def mixed_worlds(draw: st.DrawFn, *, rare: bool = False) -> IPv6World:
    """The same, with the routes and rules of IPv4 on the same devices; its CIDRs are those of both
    families.

    With `rare`, it may have all that the worlds of either family may have.
    """
    world = draw(ipv6_worlds(silent=rare, unplugged=rare))
    ipv4 = draw(node_worlds.worlds(rare=rare))
    return world._replace(
        ipv4=ipv4._replace(down=None, unplugged=None),
        cidrs=draw(st.permutations([*world.cidrs, *ipv4.cidrs])),
        allowed=world.allowed,
    )
