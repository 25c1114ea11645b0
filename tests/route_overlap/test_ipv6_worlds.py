"""The worlds and the oracle by which the proof of IPv6 is judged: they are right where a person can tell."""

import errno
import ipaddress
import socket
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.ipv6_oracle import BLOCKED, IPv6Oracle, Way
from support.ipv6_worlds import IPv6World, arranged, ipv6_worlds, mixed_worlds
from support.kernel import needs_kernel
from support.overlap_worlds import CIDRS
from support.routers import ROUTER, SECOND_ROUTER, RouteInformation, WiredNode

from hostrouting.host.netlink.conversation import in_namespace

pytestmark = needs_kernel

ETH_P_IPV6 = 0x86DD
#: The bytes of an IPv6 header that are its destination.
DESTINATION = slice(24, 40)
#: What `sendto` says of a packet that may not leave.
REFUSALS = {
    errno.EINVAL: "blackhole",
    errno.EHOSTUNREACH: "unreachable",
    errno.EACCES: "prohibit",
    errno.ENETUNREACH: "no-route",
}


def number(text: str) -> int:
    return int(ipaddress.IPv6Address(text))


@pytest.fixture
def node() -> Iterator[WiredNode]:
    with WiredNode.made() as made:
        made.add_links("e0", "e1", "e2")
        made.hold("e0", "2001:db8:1::1/64")
        made.hold("e1", "fd00:1::1/64")
        made.ip("-6", "route", "add", "default", "via", ROUTER, "dev", "e0")
        yield made


def way(node: WiredNode, address: str, source: str | None = None) -> Way:
    [found] = IPv6Oracle(node.name).ways([number(address)], [source])
    return found


@pytest.mark.parametrize(
    ("commands", "wanted"),
    [
        ([], Way("unicast", ("e0",))),
        (["route add fd09::/16 dev e2"], Way("unicast", ("e2",))),
        (["route add fd09::/16 nexthop via fe80::a dev e1 nexthop via fe80::a dev e2"], Way("unicast", ("e1", "e2"))),
        # A metric decides, and then the preference; equal routes decide in turn.
        (["route append fd09::/16 dev e1 metric 9", "route append fd09::/16 dev e2"], Way("unicast", ("e1",))),
        (["route append fd09::/16 dev e1", "route append fd09::/16 dev e2 pref high"], Way("unicast", ("e2",))),
        (["route append fd09::/16 dev e1", "route append fd09::/16 dev e2"], Way("unicast", ("e1", "e2"))),
        # A shorter prefix is no equal, and neither is the same one of another table.
        (["route append fd09::/16 dev e1", "route append fd00::/8 dev e2"], Way("unicast", ("e1",))),
        (
            ["route append fd09::/16 dev e1", "route append fd09::/16 dev e2 table 9", "rule add priority 5 table 9"],
            Way("unicast", ("e2",)),
        ),
        (
            [
                "nexthop add id 7 via fe80::a dev e1",
                "nexthop add id 8 via fe80::a dev e2",
                "route append fd09::/16 nhid 7 proto ra",
                "route append fd09::/16 nhid 8 proto ra",
            ],
            Way("unicast", ("e1", "e2")),
        ),
        (["route add local fd09::/16 dev e1"], Way("local", ("e1",))),
        (["route add anycast fd09::9 dev e1"], Way("anycast", ("e1",))),
        (["address add fd09::9/64 dev e1 nodad"], Way("local", ("e1",))),
        *((["route add " + kind + " fd09::/16"], Way(kind)) for kind in sorted(BLOCKED)),
        (["rule add priority 5 to fd09::/16 type blackhole"], Way("blackhole")),
        (["rule add priority 5 to fd09::/16 type prohibit"], Way("prohibit")),
        # The kernel says the same of a rule `unreachable` as of no route.
        (["rule add priority 5 to fd09::/16 type unreachable"], Way("no-route")),
        (["route add throw fd09::/16"], Way("no-route")),
        (["route delete default"], Way("no-route")),
        (["rule add priority 40000 type prohibit", "rule add priority 5 to fd09::/16 goto 40000"], Way("prohibit")),
        (["rule add priority 5 to fd09::/16 goto 50000"], Way("unicast", ("e0",))),
        (
            ["rule add priority 5 lookup main suppress_prefixlength 0", "rule add priority 6 type blackhole"],
            Way("blackhole"),
        ),
        # A route with `from` hides the one without it.
        (
            ["route add fd09::/16 from fd00:1::/64 dev e1", "route append fd09::/16 dev e2 metric 1"],
            Way("unicast", ("e0",)),
        ),
    ],
)
def test_the_way_of_an_address(node: WiredNode, commands: list[str], wanted: Way) -> None:
    """The oracle names what decides, and every device by which a packet may leave."""
    for command in commands:
        node.ip("-6", *command.split())
    assert way(node, "fd09::9") == wanted


@pytest.mark.parametrize(("preference", "wanted"), [("high", ("e2",)), ("medium", ("e1", "e2")), ("low", ("e1",))])
def test_advertised_routes_are_equal_by_preference(node: WiredNode, preference: str, wanted: tuple[str, ...]) -> None:
    """Of two routes that the kernel has learned, both decide only if their preference is the same."""
    node.switch(e1__accept_ra_rt_info_max_plen=64, e2__accept_ra_rt_info_max_plen=64)
    with node.router("e1") as one, node.router("e2") as other:
        one.advertise(options=[RouteInformation("fd09::/16")])
        other.advertise(options=[RouteInformation("fd09::/16", preference=preference)])
    assert way(node, "fd09::9") == Way("unicast", wanted)


def test_each_source_may_have_a_way(node: WiredNode) -> None:
    """A packet is asked about without a source, from the kernel's choice, and from each address of its device."""
    node.hold("e0", "2001:db8:1::77/64")
    node.ip("-6", "address", "add", "2001:db8:1::78/64", "dev", "e0", "preferred_lft", "0", "nodad")
    for command in (
        "rule add priority 5 from 2001:db8:1::77 lookup 9",
        "rule add priority 6 from 2001:db8:1::78 type blackhole",
        "rule add priority 7 from fd00:1::1 type prohibit",
        "route add default dev e2 table 9",
        "route add fd09::/16 dev e0 src fd00:1::1",
    ):
        node.ip("-6", *command.split())
    oracle = IPv6Oracle(node.name)
    told = oracle.all_ways([number("fd08::1"), number("fd09::1")])
    by_device, by_rule = Way("unicast", ("e0",)), Way("unicast", ("e2",))
    assert told == [{by_device, by_rule}, {by_device, by_rule, Way("prohibit")}]
    assert oracle.wrong("fd08::1/128", ["e0"]) == {number("fd08::1"): {by_rule}}


def test_the_places_of_a_cidr(node: WiredNode) -> None:
    """They are its bounds, those of every route and rule inside, their neighbours, and random ones."""
    node.ip("-6", "route", "add", "fd09::10/124", "dev", "e1", "table", "9")
    node.ip("-6", "rule", "add", "to", "fd09::1:7/112", "table", "9")
    oracle = IPv6Oracle(node.name)
    found = oracle.places("fd09::/64", count=0)
    texts = ["::", "::f", "::10", "::1f", "::20", "::ffff", "::1:0", "::1:ffff", "::2:0", "::ffff:ffff:ffff:ffff"]
    assert found == [number(f"fd09{text}") for text in texts]
    assert len(oracle.places("fd09::/64")) == len(found) + 200
    assert oracle.places("fd09::7/128") == [number("fd09::7")]


def test_what_is_wrong(node: WiredNode) -> None:
    """An address is fine if each way is by the known devices; a local address never is, an anycast one may be."""
    for command in (
        "route add fd09::1 dev e1",
        "route add local fd09::2 dev e0",
        "route add anycast fd09::3 dev e0",
        "route add anycast fd09::4 dev e1",
        "route add blackhole fd09::5",
    ):
        node.ip("-6", *command.split())
    wrong = IPv6Oracle(node.name).wrong("fd09::/125", ["e0"])
    assert {address & 0xF: ways for address, ways in wrong.items()} == {
        0: set(),
        1: {Way("unicast", ("e1",))},
        2: {Way("local", ("e0",))},
        3: set(),
        4: {Way("anycast", ("e1",))},
        5: {Way("blackhole")},
        6: set(),
        7: set(),
    }


def test_a_silent_gateway_is_passed_over(node: WiredNode) -> None:
    """The oracle is the kernel's view: what a gateway hides is the next route."""
    node.ip("-6", "route", "add", "fd09::/16", "via", SECOND_ROUTER, "dev", "e1")
    node.ip("neigh", "add", SECOND_ROUTER, "dev", "e1", "nud", "failed")
    assert way(node, "fd09::9") == Way("unicast", ("e0",))
    node.switch(all__forwarding=1)
    assert way(node, "fd09::9") == Way("unicast", ("e1",))


@pytest.mark.slow
def test_worlds_are_rich() -> None:
    """Few commands are refused, and among sixty worlds nearly each kind of answer is there."""
    commands, kinds, seen = 0, Counter[str](), Counter[str]()

    @settings(max_examples=60, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(ipv6_worlds(silent=True))
    def draw(world: IPv6World) -> None:
        nonlocal commands
        with WiredNode.made() as node:
            refused = world.arrange(node)
            commands += len(world.commands)
            seen["refused"] += len(refused)
            seen["several tables"] += any(" table 1" in command for command in world.commands)
            seen["as a router"] += world.forwarding
            oracle = IPv6Oracle(node.name)
            for cidr in world.cidrs:
                for ways in oracle.all_ways(oracle.places(cidr, count=5)):
                    kinds.update({each.kind for each in ways})
                    seen["several devices"] += any(len(each.devs) > 1 for each in ways)
                    seen["several ways"] += len(ways) > 1

    draw()
    assert seen["refused"] < commands / 10
    assert set(kinds) - BLOCKED == {"unicast", "local", "anycast", "no-route"}
    # Of the kinds that block, a world has one at most.
    assert len(BLOCKED & set(kinds)) > 1
    assert min(seen.values()) > 3


@pytest.mark.soak
@given(ipv6_worlds(), st.data())
def test_packets_leave_as_the_oracle_says(world: IPv6World, data: st.DataObject) -> None:
    """A packet that a socket sends comes out at the far end of a device that the oracle names, or is refused so."""
    with arranged(world) as node:
        oracle = IPv6Oracle(node.name)
        places = oracle.places(data.draw(st.sampled_from(world.cidrs)), count=5)
        asked = data.draw(st.lists(st.sampled_from(places), min_size=5, max_size=20))
        left = departures(node, asked)
        for address, ways in zip(asked, oracle.all_ways(asked), strict=True):
            told = {each.kind for each in ways} | {dev for each in ways for dev in each.devs}
            told |= {"here"} if told & {"local", "anycast"} else set()
            assert left[address] in told, (address, ways)


def departures(node: WiredNode, addresses: Sequence[int]) -> dict[int, str]:
    """Send a packet to each address; return by which device it left, how it was refused, or where it stayed."""
    with in_namespace(node.far.name, listening) as far, in_namespace(node.name, sending) as sender:
        left: dict[int, str] = {}
        for address in addresses:
            text = str(ipaddress.IPv6Address(address))
            for dev in ("e0", "e1", "e2"):
                # Whoever asks for the neighbour gets no answer; so each address is one.
                node.ip("neigh", "replace", text, "lladdr", "02:00:00:00:00:02", "nud", "permanent", "dev", dev)
            try:
                sender.sendto(b"?", (text, 9))
            except OSError as error:
                left[address] = REFUSALS[error.errno or 0]
                continue
            left[address] = arrived(far, address) or "here"
        return left


def listening() -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IPV6))
    opened.setblocking(False)
    return opened


def sending() -> socket.socket:
    return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)


def arrived(far: socket.socket, address: int) -> str | None:
    while True:
        try:
            packet, (dev, *_) = far.recvfrom(2048)
        except BlockingIOError:
            return None
        if int.from_bytes(packet[DESTINATION], "big") == address:
            return str(dev)


@pytest.mark.slow
@given(mixed_worlds())
def test_a_mixed_world_is_both(world: IPv6World) -> None:
    """The same devices have routes of both families, and the CIDRs are of both."""
    assert world.ipv4 is not None
    assert {cidr for cidr in world.cidrs if "." in cidr} == set(world.ipv4.cidrs) <= set(CIDRS)
    assert {cidr for cidr in world.cidrs if ":" in cidr}
    with arranged(world) as node:
        assert "10.1.0.1" in node.ip("-4", "address", "show", "e0")
        assert node.ip("-4", "route", "show", "table", "all")
        assert "2001:db8:1::1" in node.ip("-6", "address", "show", "e0") or world.down == "e0"
