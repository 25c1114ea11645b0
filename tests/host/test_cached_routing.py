"""A reading answers several questions about one moment of a node."""

import subprocess
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.needs import needs
from support.patience import wait_until
from support.run_nodes import gpu_node

from hostrouting.host import (
    IPV4,
    IPV6,
    OUR_PROTOCOL,
    Address,
    Device,
    ObservedRoute,
    Route,
    RouteBackend,
    RouteChange,
)
from hostrouting.host.cached_routing import cached_routing, with_cached_routing
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import Prefix
from hostrouting.net.routes import route_key
from hostrouting.testing import FakeHost, KernelNode

OWN_ROUTE = Route.parse("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")


@pytest.fixture
def host() -> FakeHost:
    return gpu_node()


def test_it_is_of_the_moment_of_its_first_question(host: FakeHost) -> None:
    """A reading keeps the routes, rules and devices of its first query; later ones are in the next
    reading.
    """
    node = with_cached_routing(host).routes
    before = node.routes(), node.rules(), node.links()
    host.routes.add_route("10.9.0.0/16", gateway="10.224.0.9", dev="eth0")
    host.routes.add_link("eth1")
    assert (node.routes(), node.rules(), node.links()) == before
    assert with_cached_routing(host).routes.routes() == host.routes.routes() != before[0]


def test_each_family_is_read_when_it_is_needed(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading dumps a family once and on demand; own routes of a family are queried without a
    dump.
    """
    node = with_cached_routing(host).routes
    routes = host.routes.routes
    families: list[int] = []

    def read(family: int = IPV4) -> list[ObservedRoute]:
        families.append(family)
        return routes(family)

    monkeypatch.setattr(host.routes, "routes", read)
    for _ in range(2):
        assert node.routes() == routes()
        assert node.routes_of(OUR_PROTOCOL) == []
        assert node.routes_of(OUR_PROTOCOL, IPV6) == []
    assert families == [IPV4]


def test_a_list_that_it_returned_may_be_changed(host: FakeHost) -> None:
    """A caller may change a list that a reading returned, as a check does, without a change of
    later answers.
    """
    node = with_cached_routing(host).routes
    node.routes().clear()
    node.rules().clear()
    node.links().clear()
    assert node.routes() == host.routes.routes()
    assert node.rules() == host.routes.rules()
    assert node.links() == host.routes.links()


def test_lookups_are_of_the_kernel(host: FakeHost) -> None:
    """A lookup on a reading is decided by a route that the node got after the reading."""
    node = with_cached_routing(host).routes
    node.routes()
    host.routes.insert_route(OWN_ROUTE)
    [answer] = node.lookup([OWN_ROUTE.network])
    assert answer.route is not None
    # Before, the default route decided.
    assert answer.route.destination == OWN_ROUTE.destination


def test_it_forgets_all_with_its_own_change(host: FakeHost) -> None:
    """A reading through which a change was made reads the node again."""
    node = with_cached_routing(host).routes
    assert node.routes_of(OUR_PROTOCOL) == []
    node.routes()
    node.apply([RouteChange.add(OWN_ROUTE)])
    assert [str(route) for route in node.routes_of(OUR_PROTOCOL)] == [str(OWN_ROUTE)]
    assert node.routes() == host.routes.routes()


def test_an_image_has_none_to_read() -> None:
    """A reading of an image has its files, units and lock."""
    image = FakeHost(is_live=False)
    node = with_cached_routing(image)
    assert node.files == image.files
    assert node.services == image.services
    assert node.lock == image.lock
    assert not node.is_live


# --- what changes after a reading


DEVICES = (
    "link add e0 type veth peer name p0",
    "link add ib0 type ifb",
    # A link-local address would appear later, after duplicate address detection.
    *(f"link set {dev} addrgenmode none" for dev in ("e0", "p0", "ib0")),
    "link set p0 up",
)
IN_USE = (
    "link set e0 up",
    "link set ib0 up",
    "addr add 10.224.0.4/16 dev e0",
    "addr add 172.16.1.4/16 dev ib0",
    "route add default via 10.224.0.1 dev e0",
    "-6 addr add fd24::4/64 dev e0 nodad",
    "-6 route add default via fd24::1 dev e0",
    "route add 172.16.9.0/24 dev ib0 metric 5",
    "route append 172.16.9.0/24 via 10.224.0.1 dev e0 metric 5",
)
PREFIXES = ("172.16.9.0/24", "172.16.9.64/26", "172.16.9.77/32")
IPV6_PREFIXES = ("fd96:9::/32", "fd96:9:0:7::/64")
HOPS = (
    "dev ib0",
    "via 10.224.0.1 dev e0",
    "via 10.224.0.1 dev e0 src 10.224.0.9",
    "nhid 7",
    "nexthop via 10.224.0.1 dev e0 nexthop dev ib0",
)
IPV6_HOPS = ("dev ib0", "via fd24::1 dev e0", "via fd24::2 dev e0", "nhid 7")
VERBS = ("add", "append", "prepend", "replace", "del")
#: Without a loss of carrier, which the kernel announces up to a second later.
CHANGES = st.one_of(
    st.builds(
        "route {} {} {} metric {} table {}".format,
        st.sampled_from(VERBS),
        st.sampled_from(PREFIXES),
        st.sampled_from(HOPS),
        st.sampled_from([0, 5]),
        st.sampled_from(["main", "90"]),
    ),
    st.builds(
        "-6 route {} {} {}".format,
        st.sampled_from(VERBS),
        st.sampled_from(IPV6_PREFIXES),
        st.sampled_from(IPV6_HOPS),
    ),
    st.sampled_from(
        [
            f"{family}rule {verb} pref {number} to {prefix} lookup 90"
            for family, prefix in (("", PREFIXES[0]), ("-6 ", IPV6_PREFIXES[0]))
            for verb in ("add", "del")
            for number in (90, 91)
        ]
        + [
            "link set ib0 down",
            "link set ib0 up",
            "link set e0 down",
            "link set e0 up",
            "link set ib0 name ib9",
            "link set ib9 name ib0",
            "link del ib0",
            "link add ib0 type ifb",
            "addr add 10.224.0.9/16 dev e0",
            "addr del 10.224.0.9/16 dev e0",
            "addr del 172.16.1.4/16 dev ib0",
            "addr add 10.224.0.7/16 dev e0 scope link",
            "addr del 10.224.0.7/16 dev e0",
            "route add 172.16.9.64/26 dev ib0 scope host",
            "-6 addr add fd96:9::4/64 dev ib0 nodad",
            "-6 addr del fd96:9::4/64 dev ib0",
            "nexthop add id 7 dev ib0",
            "nexthop replace id 7 dev e0",
            "nexthop del id 7",
        ]
    ),
)


def run_batch(node: KernelNode, commands: Sequence[str]) -> None:
    """Run commands of ip, of which some may be refused."""
    for family, some in groupby(commands, key=lambda command: command.startswith("-6 ")):
        argv = ["ip", "-n", node.name, "-force", *(["-6"] if family else []), "-batch", "-"]
        text = "".join(f"{command.removeprefix('-6 ')}\n" for command in some)
        subprocess.run(argv, input=text, text=True, capture_output=True, check=False)


def answers(backend: RouteBackend, family: int) -> dict[int, tuple[object, ...]]:
    """Return the way of each address where the answer may change, and of those next to it."""
    prefixes = [Prefix.parse(text) for text in (PREFIXES if family == IPV4 else IPV6_PREFIXES)]
    edges = {edge for prefix in prefixes for edge in (prefix.network, prefix.last)}
    found = backend.lookup(sorted(edges | {edge + 1 for edge in edges}), family=family)
    return {
        answer.destination: (
            answer.errno,
            # The kernel may show the hops in any order, and of equal routes any.
            answer.route and (answer.route.prefix_length, {*answer.route.devs}),
        )
        for answer in found
    }


def in_any_order(routes: Sequence[ObservedRoute]) -> dict[object, list[ObservedRoute]]:
    """Return routes by their route key, without the seconds that they have left."""
    by_key: dict[object, list[ObservedRoute]] = {}
    for route in routes:
        # Multicast routes take no packet of a check.
        if route.kind != "multicast":
            by_key.setdefault(route_key(route), []).append(route._replace(expires=0))
    return by_key


def settled(links: Sequence[Device]) -> Sequence[object]:
    """Return devices without neighbours, and without what the kernel announces later: IPv6
    addresses, and the carrier of the peer of a device that was set up or down.
    """
    return sorted(
        (
            link._replace(
                neighbours=(), failed=(), addresses=(), carrier=link.carrier and link.name != "p0"
            ),
            [own for own in link.addresses if own.family == IPV4],
        )
        for link in links
    )


FIRST, SECOND = f"172.16.9.0/24 {HOPS[0]}", f"172.16.9.0/24 {HOPS[1]}"
IPV6_FIRST, IPV6_SECOND = (f"fd96:9::/32 {hop}" for hop in IPV6_HOPS[1:3])


@needs("kernel")
@pytest.mark.parametrize("is_announced", [True, False], ids=["events", "comparison"])
@example(early=[], changes=[["link set ib0 down", "link set e0 down"]])
@example(early=[], changes=[[f"route add {FIRST}", f"route append {SECOND}"]])
@example(
    early=[],
    changes=[
        [f"-6 route add {IPV6_FIRST}", f"-6 route append {IPV6_SECOND}"],
        [f"-6 route del {IPV6_SECOND}"],
    ],
)
@example(
    early=[],
    changes=[
        ["nexthop add id 7 dev ib0", "route add 172.16.9.0/24 nhid 7"],
        ["nexthop replace id 7 dev e0"],
    ],
)
# The events before a dump, which has the second route of the route key.
@example(
    early=[
        "route replace 172.16.9.0/24 via 10.224.0.1 dev e0 src 10.224.0.4 metric 5",
        "route del 172.16.9.0/24 src 10.224.0.4 metric 5",
    ],
    changes=[["route add 172.16.9.64/26 dev ib0"]],
)
@example(early=["route del default", "link set ib0 down"], changes=[["link set e0 down"]])
@example(
    early=[],
    changes=[["route add 172.16.9.64/26 dev ib0 scope host"], ["link set ib0 down"]],
)
@example(
    early=[],
    changes=[
        ["link set ib0 down", "-6 addr add fd96:9::4/64 dev ib0 nodad"],
        ["link set ib0 address 02:00:00:00:00:01"],
    ],
)
@example(early=["route add 172.16.9.64/26 dev ib0", "link set ib0 down"], changes=[])
@example(
    early=[],
    changes=[["route append 172.16.9.0/24 dev e0 metric 5", "link set ib0 down"]],
)
@example(early=[], changes=[["addr add 10.224.0.7/16 dev e0 scope link"]])
@example(
    early=[
        "addr add 10.9.0.4 peer 10.9.0.1 dev e0",
        "addr add 10.9.0.4 peer 10.9.0.2 dev e0",
    ],
    changes=[["addr del 10.9.0.4 peer 10.9.0.1 dev e0"]],
)
@given(
    early=st.lists(CHANGES, max_size=4),
    changes=st.lists(st.lists(CHANGES, min_size=1, max_size=6), min_size=1, max_size=4),
)
def test_a_reading_follows_the_kernel(
    early: list[str], changes: list[list[str]], *, is_announced: bool
) -> None:
    """Whatever changes while a node is read and later, a reading that has caught up is what a new
    one reads, and each address that goes another way is in a network that it has named.
    """
    with KernelNode.made() as node:
        run_batch(node, [*DEVICES, *IN_USE])
        # Otherwise the kernel announces the routes of a changed nexthop object, too.
        setting = "echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode"
        subprocess.run(["ip", "netns", "exec", node.name, "sh", "-c", setting], check=True)
        backend = NetlinkBackend(netns=node.name)
        if not is_announced:
            backend.listen = lambda: None  # type: ignore[method-assign]
        reading = cached_routing(backend)
        # It listens from its first question on.
        reading.rules(IPV6)
        run_batch(node, early)
        reading.links()
        before = {}
        for family in (IPV4, IPV6):
            reading.routes(family)
            reading.rules(family)
            before[family] = answers(backend, family)
        for some in [[], *changes]:
            run_batch(node, some)
            for family in (IPV4, IPV6):
                networks = reading.catch_up(family)
                after = answers(backend, family)
                assert in_any_order(reading.routes(family)) == in_any_order(backend.routes(family))
                assert reading.rules(family) == backend.rules(family)
                assert settled(reading.links()) == settled(backend.links())
                for number, way in after.items():
                    if way != before[family][number]:
                        address = Address(family, number)
                        assert any(network.covers(address) for network in networks), str(address)
                before[family] = after


def has_ipv6(node: KernelNode) -> bool:
    """Return True once the kernel has added its own routes, a moment after the carrier."""
    shown = node.ip("-6 route show table local")
    own = "local fd24::4 dev e0", "multicast ff00::/8 dev e0", "multicast ff00::/8 dev ib0"
    return all(route in shown for route in own)


@needs("kernel")
@pytest.mark.parametrize(
    ("rule", "networks"),
    [
        ("to 172.16.9.0/24 lookup 90", ["172.16.9.0/24"]),
        ("from 10.224.0.4 lookup 90", ["0.0.0.0/0"]),
        ("from 10.224.0.4 to 172.16.9.0/24 lookup 90", ["172.16.9.0/24"]),
        # Of a pod, as a CNI adds one for each.
        ("from 10.224.7.7 lookup 90", []),
        ("not from 10.224.7.7 lookup 90", ["0.0.0.0/0"]),
        ("fwmark 0x1 lookup 90", []),
        ("iif ib0 lookup 90", []),
        ("iif lo lookup 90", ["0.0.0.0/0"]),
        ("oif ib0 lookup 90", []),
        ("to 172.16.9.0/24 goto 32766", ["0.0.0.0/0"]),
    ],
)
def test_a_rule_concerns_its_destinations(rule: str, networks: list[str]) -> None:
    """A rule that is added or removed after a reading concerns the destinations that it selects, and
    none if it selects no packet of the node itself; the routes are not read again.
    """
    with KernelNode.made() as node:
        run_batch(node, [*DEVICES, *IN_USE])
        wait_until(lambda: has_ipv6(node), "IPv6 on e0 and ib0")
        backend = NetlinkBackend(netns=node.name)
        reading = cached_routing(backend)
        reading.links()
        for family in (IPV4, IPV6):
            reading.routes(family)
            reading.rules(family)
        backend.routes = None  # type: ignore[method-assign, assignment]
        for verb in ("add", "del"):
            node.ip(f"rule {verb} pref 200 {rule}")
            assert [str(network) for network in reading.catch_up(IPV4)] == networks
            assert reading.catch_up(IPV6) == []
            assert reading.routes(IPV4)
            assert len(reading.rules(IPV4)) == (4 if verb == "add" else 3)
