"""Facts about IPv6 routing on which the design rests.

docs/kernel-facts.md names each of them. What differs between kernels is noted where it is tested.
"""

import errno
import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support.ipv6_decisions import Decision, each_decision, two_links
from support.kernel import needs_kernel
from support.patience import wait_until
from support.routers import ROUTER, SECOND_ROUTER, Prefix, RouteInformation, WiredNode

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink.conversation import in_namespace, open_here

RTM_DELADDR = 21
RTM_DELROUTE = 25
#: The groups to which a listener binds.
IPV6_ADDRESS_EVENTS = 0x100
IPV6_ROUTE_EVENTS = 0x400


def datagrams(listener: socket.socket) -> Iterator[bytes]:
    """Return the queued events."""
    while True:
        try:
            yield listener.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return


def kinds_of_events(listener: socket.socket) -> list[int]:
    """Return the type of each event that is queued."""
    found: list[int] = []
    for datagram in datagrams(listener):
        offset = 0
        while offset < len(datagram):
            length, kind = struct.unpack_from("=IH", datagram, offset)
            found.append(kind)
            offset += (length + 3) & ~3
    return found


pytestmark = needs_kernel

PLACE = "fd09::/16"
ADDRESS = "fd09::9"
RTM_GETROUTE = 26
#: Of /proc/net/ipv6_route.
RTF_ADDRCONF = 0x40000


@pytest.fixture
def node() -> Iterator[WiredNode]:
    """A host with two links, and a neighbour entry for the first router of each."""
    with WiredNode.made() as made:
        made.add_links("e0", "e1")
        made.hold("e0", "2001:db8:1::1/64")
        made.hold("e1", "fd00:1::1/64")
        for dev in "e0", "e1":
            made.ip(f"neigh add {ROUTER} dev {dev} lladdr 02:00:00:00:00:01 nud permanent")
        yield made


def do(node: WiredNode, *commands: str) -> None:
    for command in commands:
        node.ip("-6", *command.split())


def refusal(node: WiredNode, command: str) -> str:
    with pytest.raises(BackendError) as caught:
        node.ip("-6", *command.split())
    return str(caught.value).rpartition(": ")[2]


def shown(node: WiredNode, *words: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(node.ip("-6 -j", *words) or "[]") if one]


def held(node: WiredNode, prefix: str = PLACE) -> list[tuple[str, int]]:
    """Return device (`multipath` for several) and metric of each route of a place, in the order of
    the kernel.
    """
    routes = shown(node, "route", "show", "exact", prefix)
    return [
        ("multipath" if "nexthops" in route else route["dev"], route["metric"]) for route in routes
    ]


def decided(node: WiredNode, address: str = ADDRESS, *words: str) -> list[str]:
    """Return the devices of the deciding route, sorted; empty if there is none."""
    try:
        [answer] = shown(node, "route", "get", "fibmatch", address, *words)
    except BackendError as error:
        if "Network is unreachable" not in str(error):
            raise
        return []
    return sorted(leg["dev"] for leg in answer.get("nexthops", [answer]))


def flags(node: WiredNode) -> dict[str, list[int]]:
    """Return the flags of each default route by its device, from /proc/net/ipv6_route."""
    found: dict[str, list[int]] = {}
    for line in node.run("cat", "/proc/net/ipv6_route").splitlines():
        destination, length, *_, number, dev = line.split()
        if int(destination, 16) == int(length, 16) == 0 and dev != "lo":
            found.setdefault(dev, []).append(int(number, 16))
    return found


# --- decisions


@pytest.fixture(scope="module")
def links() -> Iterator[WiredNode]:
    with two_links() as made:
        yield made


@each_decision
def test_the_kernel_decides(links: WiredNode, decision: Decision) -> None:
    """Each fact of the table holds; the model, the proof and the oracle run the same table."""
    with decision.arranged(links):
        shown_by = {question: decided_by(links, question) for question in decision.answers}
    assert shown_by == decision.answers


def decided_by(node: WiredNode, question: str) -> str:
    """Return `local`, or the device of the deciding route; empty if there is none."""
    devs = decided(node, *question.split())
    if not devs:
        return ""
    [answer] = shown(node, "route", "get", "fibmatch", *question.split())
    return "local" if answer.get("type") == "local" else "".join(devs)


# --- places


def test_a_place_is_table_destination_source_and_metric(node: WiredNode) -> None:
    """A second `add` with another gateway or device is refused; in another place it is not. tos
    plays no part.
    """
    do(node, f"route add {PLACE} via {ROUTER} dev e0")
    for other in (
        f"via {SECOND_ROUTER} dev e0",
        f"via {ROUTER} dev e1",
        "dev e1",
        f"via {ROUTER} dev e1 proto ra",
    ):
        assert refusal(node, f"route add {PLACE} {other}") == "File exists"
    for elsewhere in "metric 9", "table 9", "from fd00:1::/64":
        do(node, f"route add {PLACE} via {ROUTER} dev e1 {elsewhere}")


def test_absent_and_zero_are_metric_1024(node: WiredNode) -> None:
    """That is what `ip` and the kernel make of both."""
    do(node, f"route add {PLACE} dev e0")
    assert held(node) == [("e0", 1024)]
    assert refusal(node, f"route add {PLACE} dev e1 metric 0") == "File exists"


@pytest.mark.parametrize("verb", ["append", "prepend"])
def test_gateways_of_a_place_merge(node: WiredNode, verb: str) -> None:
    """`append` and `prepend` make one multipath route of two that have gateways, even of two
    protocols.
    """
    do(node, f"route add {PLACE} via {ROUTER} dev e0 proto static")
    do(node, f"route {verb} {PLACE} via {ROUTER} dev e1 proto ra")
    assert held(node) == [("multipath", 1024)]
    assert decided(node) == ["e0", "e1"]
    # Of one device, too; and to add one of them again is refused.
    do(node, f"route {verb} {PLACE} via {SECOND_ROUTER} dev e0")
    assert decided(node) == ["e0", "e0", "e1"]
    assert refusal(node, f"route {verb} {PLACE} via {ROUTER} dev e1") == "File exists"


@pytest.mark.parametrize(("verb", "first"), [("append", "e0"), ("prepend", "e0")])
@pytest.mark.parametrize(
    "paths", [("dev e0", f"via {ROUTER} dev e1"), (f"via {ROUTER} dev e0", "dev e1")]
)
def test_beside_a_route_without_gateway_there_are_two(
    node: WiredNode, verb: str, first: str, paths: tuple[str, str]
) -> None:
    """They stand as two routes, and the first decides: `prepend` is the same as `append`."""
    do(node, f"route add {PLACE} {paths[0]}", f"route {verb} {PLACE} {paths[1]}")
    assert [dev for dev, _ in held(node)] == [first, "e1"]
    assert decided(node) == [first]


def test_of_several_next_hops_each_has_a_gateway(node: WiredNode) -> None:
    """The kernel refuses a multipath route with a next hop that is a device alone; and it lists all
    of all of them.
    """
    refusal_text = refusal(node, f"route add {PLACE} nexthop via {ROUTER} dev e0 nexthop dev e1")
    assert "Device only routes can not be added" in refusal_text
    do(node, f"route add {PLACE} nexthop via {ROUTER} dev e0 nexthop via {ROUTER} dev e1")
    assert decided(node) == decided(node, ADDRESS, "oif", "e1") == ["e0", "e1"]


def test_a_replacement_takes_the_route_of_its_metric(node: WiredNode) -> None:
    """`replace` of the owner at its own metric leaves the own route; at metric 1 it takes that,
    whatever its protocol.
    """
    do(
        node,
        f"route add {PLACE} via {ROUTER} dev e0 proto ra",
        f"route add {PLACE} via {ROUTER} dev e1 metric 1",
    )
    do(node, f"route replace {PLACE} via {SECOND_ROUTER} dev e0 proto ra")
    assert held(node) == [("e1", 1), ("e0", 1024)]
    do(node, f"route replace {PLACE} via {ROUTER} dev e0 metric 1 proto ra")
    assert held(node) == [("e0", 1), ("e0", 1024)]


def test_a_source_is_chosen_after_the_route(node: WiredNode) -> None:
    """A socket without an address looks up without a source; if that finds no route, with the
    source that it would have.

    So a route by source serves each such socket where nothing else leads there.
    """
    do(node, f"route add {PLACE} from fd00:1::/64 dev e1")
    assert decided(node) == []
    program = (
        "import socket; asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM);"
        f"asking.connect(('{ADDRESS}', 9)); print(asking.getsockname()[0])"
    )
    assert node.run("python3", "-c", program) == "fd00:1::1\n"
    do(node, f"route add fd00::/8 via {ROUTER} dev e0")
    assert node.run("python3", "-c", program) == "2001:db8:1::1\n"


@pytest.mark.parametrize("shorter", [False, True])
def test_a_gateway_that_fails_is_passed_over_by_a_host(node: WiredNode, shorter: bool) -> None:
    """With forwarding=0 a higher metric or a shorter prefix decides; with forwarding=1 the table
    does.
    """
    do(node, f"route add {PLACE} via {SECOND_ROUTER} dev e0", "neigh add fe80::b dev e0 nud failed")
    do(node, f"route add {'fd00::/8' if shorter else PLACE} via {ROUTER} dev e1 metric 2000")
    assert decided(node) == ["e1"]
    node.switch(all__forwarding=1)
    assert decided(node) == ["e0"]


@pytest.mark.parametrize("other", [[], ["fd00::/8 via fe80::b dev e1"], ["default dev e1 table 9"]])
def test_a_gateway_that_fails_decides_where_nothing_better_is(
    node: WiredNode, other: list[str]
) -> None:
    """A host looks for a better one in the same table only; where none answers there, the table
    decides.
    """
    do(
        node,
        f"route add {PLACE} via {SECOND_ROUTER} dev e0",
        *(f"route add {route}" for route in other),
    )
    do(node, "neigh add fe80::b dev e0 nud failed", "neigh add fe80::b dev e1 nud failed")
    do(node, "rule add priority 40000 table 9")
    assert decided(node) == ["e0"]


@pytest.mark.parametrize("state", ["none", "incomplete", "stale", "reachable", "noarp"])
def test_other_states_of_a_neighbour_hide_no_route(node: WiredNode, state: str) -> None:
    """A gateway is passed over only while its entry is FAILED; without an entry, too, the table
    decides.
    """
    do(
        node,
        f"route add {PLACE} via {SECOND_ROUTER} dev e0",
        f"route add {PLACE} dev e1 metric 2000",
    )
    if state != "none":
        mac = "" if state == "incomplete" else "lladdr 02:00:00:00:00:01 "
        do(node, f"neigh add {SECOND_ROUTER} dev e0 {mac}nud {state}")
    assert decided(node) == ["e0"]


# --- refusals and rules


@pytest.mark.parametrize(
    ("kind", "refusal_text"),
    [
        ("blackhole", "Invalid argument"),
        ("unreachable", "Network is unreachable"),
        ("prohibit", "Permission denied"),
    ],
)
def test_the_answer_of_a_refusing_rule(node: WiredNode, kind: str, refusal_text: str) -> None:
    """It is that of a route, but for `unreachable`, which is the answer of no route at all."""
    do(node, f"route add {kind} {PLACE}")
    of_route = "No route to host" if kind == "unreachable" else refusal_text
    assert refusal(node, f"route get fibmatch {ADDRESS}") == of_route
    do(node, f"rule add to {PLACE} priority 5 type {kind}")
    assert refusal(node, f"route get fibmatch {ADDRESS}") == refusal_text


def test_a_malformed_question_is_a_blackhole(node: WiredNode) -> None:
    """The kernel answers EINVAL to a destination that is too short, as to one in a blackhole."""
    do(node, f"route add blackhole {PLACE}")
    for destination in bytes(3), socket.inet_pton(socket.AF_INET6, ADDRESS):
        body = struct.pack("=8BI", socket.AF_INET6, 128, 0, 0, 0, 0, 0, 0, 0x2000)
        body += (
            struct.pack("=HH", 4 + len(destination), 1) + destination + bytes(-len(destination) % 4)
        )
        with in_namespace(node.name, open_here) as querier:
            querier.send(struct.pack("=IHHII", 16 + len(body), RTM_GETROUTE, 1, 1, 0) + body)
            answer = querier.recv(4096)
        assert struct.unpack_from("=i", answer, 16) == (-errno.EINVAL,)


def test_there_are_two_rules(node: WiredNode) -> None:
    """A fresh namespace searches local, then main; a rule for a table default is absent."""
    assert [(rule["priority"], rule["table"]) for rule in shown(node, "rule", "show")] == [
        (0, "local"),
        (32766, "main"),
    ]


def test_a_rule_keeps_the_bits_behind_its_prefix(node: WiredNode) -> None:
    """It is shown as it was given, and it selects by its prefix."""
    do(node, f"rule add to {ADDRESS}/16 priority 5 type prohibit")
    assert [rule["dst"] for rule in shown(node, "rule", "show") if "dst" in rule] == [ADDRESS]
    assert refusal(node, "route get fibmatch fd09:7::") == "Permission denied"


def test_rules_in_a_batch_are_of_its_family(node: WiredNode) -> None:
    """`rule show` shows those of IPv4, and `-6` is no word inside; in a batch of `ip -6` it shows
    those of IPv6.
    """
    do(node, "rule add priority 5 table 66")

    def batch(*options: str, text: str = "rule show") -> subprocess.CompletedProcess[str]:
        argv = ["ip", "-n", node.name, *options, "-batch", "-"]
        return subprocess.run(argv, input=f"{text}\n", capture_output=True, text=True, check=False)

    assert "lookup default" in batch().stdout
    assert "lookup 66" not in batch().stdout
    assert 'Object "-6" is unknown' in batch(text="-6 rule show").stderr
    assert "lookup 66" in batch("-6").stdout


def test_via_inet6_makes_a_route_of_ipv6(node: WiredNode) -> None:
    """Only with `-4` does a default route by an IPv6 gateway become one of IPv4."""
    node.ip(f"route add default via inet6 {ROUTER} dev e0")
    assert node.ip("-4 route show default") == ""
    assert held(node, "default") == [("e0", 1024)]
    node.ip(f"-4 route add default via inet6 {ROUTER} dev e0")
    assert f"via inet6 {ROUTER} dev e0" in node.ip("-4 route show default")


# --- next hop objects


@pytest.mark.parametrize(("own_text", "foreign_text"), [("e0", "e0"), ("e0", "e1")])
def test_a_deletion_takes_a_foreign_route_by_object(
    node: WiredNode, own_text: str, foreign_text: str
) -> None:
    """A deletion by gateway, device, metric and protocol takes one by object of that metric and
    protocol.

    Its gateway plays no part, and neither does its device.
    """
    do(
        node,
        f"nexthop add id 5 via {SECOND_ROUTER} dev {foreign_text}",
        f"route add {PLACE} nhid 5 metric 1 proto static",
    )
    assert "No such process" in refusal(
        node, f"route delete {PLACE} via {ROUTER} dev {own_text} metric 1 proto 142"
    )
    do(node, f"route delete {PLACE} via {ROUTER} dev {own_text} metric 1 proto static")
    assert held(node) == []


def test_of_ipv4_it_does_not(node: WiredNode) -> None:
    """There the gateway is compared."""
    node.ip("address add 10.1.0.1/24 dev e0")
    node.ip("nexthop add id 5 via 10.1.0.2 dev e0")
    node.ip("route add 10.9.0.0/16 nhid 5")
    with pytest.raises(BackendError, match="No such process"):
        node.ip("route delete 10.9.0.0/16 via 10.1.0.3 dev e0")


@pytest.mark.parametrize("order", [1, -1])
def test_a_route_by_object_does_not_merge(node: WiredNode, order: int) -> None:
    """Beside it, whichever comes first, `append` makes a second route."""
    do(node, f"nexthop add id 5 via {SECOND_ROUTER} dev e0")
    do(
        node,
        *[f"route append {PLACE} nhid 5", f"route append {PLACE} via {ROUTER} dev e1"][::order],
    )
    assert [dev for dev, _ in held(node)] == ["e0", "e1"][::order]
    assert decided(node) == ["e0", "e1"][::order][:1]


# --- advertisements, as the kernel takes them


def advertise_both(node: WiredNode, **settings: Any) -> None:
    """Let a router advertise itself on each link; on the second one with other settings."""
    with node.router("e0") as first, node.router("e1") as second:
        first.advertise()
        second.advertise(**settings)


@pytest.mark.parametrize(("preference", "first"), [("high", "e1"), ("medium", "e0"), ("low", "e0")])
def test_two_links_have_two_default_routes(node: WiredNode, preference: str, first: str) -> None:
    """Each stays apart, with metric 1024; the higher preference decides. A lookup shows one, of a
    device its own.
    """
    advertise_both(node, preference=preference)
    assert held(node, "default") == [("e0", 1024), ("e1", 1024)]
    assert decided(node, "2001:db8:9::9") == [first]
    assert [decided(node, "2001:db8:9::9", "oif", dev) for dev in ("e0", "e1")] == [["e0"], ["e1"]]


def test_what_the_kernel_learned_is_marked(node: WiredNode) -> None:
    """A default and a prefix route of the kernel have RTF_ADDRCONF; one that a program made as
    `proto ra` has not.
    """
    with node.router("e0") as router:
        router.advertise(options=[Prefix("fd02::/64")])
    do(node, f"route append default via {ROUTER} dev e1 proto ra")
    assert {
        dev: [bool(number & RTF_ADDRCONF) for number in each] for dev, each in flags(node).items()
    } == {
        "e0": [True],
        "e1": [False],
    }
    # The two have gateways, and yet they do not merge.
    assert held(node, "default") == [("e0", 1024), ("e1", 1024)]
    assert held(node, "fd02::/64") == [("e0", 256)]
    assert [route["protocol"] for route in shown(node, "route", "show", "exact", "fd02::/64")] == [
        "kernel"
    ]


@pytest.mark.parametrize("written", ["all", "default", "e0", "e1", "lo"])
def test_forwarding_deletes_what_the_kernel_learned(node: WiredNode, written: str) -> None:
    """To write 1 to the switch of any device deletes each learned default whose device has
    accept_ra other than 2.

    The switch of devices to come deletes nothing, conf.all.accept_ra changes nothing, and a
    program's default stays.
    """
    node.switch(all__accept_ra=2, e1__accept_ra=2)
    advertise_both(node)
    do(node, f"route append default via {ROUTER} dev e0 proto ra metric 2000")
    node.switch(**{f"{written}__forwarding": 1})
    assert held(node, "default") == [
        *([("e0", 1024)] if written == "default" else []),
        ("e1", 1024),
        ("e0", 2000),
    ]


@pytest.mark.parametrize("written", ["all", "e0", "e1"])
def test_forwarding_written_again_deletes_again(node: WiredNode, written: str) -> None:
    """It does so even where the switch is 1 already: what came since then goes, too.

    A router learns with accept_ra=2 alone; so that is switched back here, as by hand.
    """
    node.switch(all__forwarding=1, e0__accept_ra=2, e1__accept_ra=2)
    advertise_both(node)
    node.switch(e0__accept_ra=1)
    assert held(node, "default") == [("e0", 1024), ("e1", 1024)]
    node.switch(**{f"{written}__forwarding": 1})
    assert held(node, "default") == [("e1", 1024)]


def test_forwarding_leaves_other_learned_routes(node: WiredNode) -> None:
    """Prefixes and more specific routes stay; but they expire, as no advertisement is taken any
    more.
    """
    node.run("sysctl", "-qw", "net.ipv6.route.gc_interval=1000")
    node.switch(e0__accept_ra_rt_info_max_plen=64)
    options: list[Prefix | RouteInformation] = [
        Prefix("fd02::/64"),
        RouteInformation(PLACE, lifetime=600),
    ]
    with node.router("e0") as router:
        router.advertise(options=options)
        node.switch(all__forwarding=1)
        assert held(node, "default") == []
        assert held(node) == [("e0", 1024)]
        assert held(node, "fd02::/64") == [("e0", 256)]
        router.advertise(options=[RouteInformation(PLACE, lifetime=1800)])
    assert shown(node, "route", "show", "exact", PLACE)[0]["expires"] <= 600
    assert held(node, "default") == []


def test_the_switch_for_defaults_leaves_the_old_one(node: WiredNode) -> None:
    """accept_ra_defrtr=0 ignores new advertisements: the old default stays, and even one of
    lifetime 0 leaves it.
    """
    with node.router("e0") as router:
        router.advertise()
        node.switch(e0__accept_ra_defrtr=0)
        assert held(node, "default") == [("e0", 1024)]
        router.advertise(lifetime=0)
        assert held(node, "default") == [("e0", 1024)]
        do(node, "route delete default dev e0")
        router.advertise()
        assert held(node, "default") == []


def test_more_specific_routes_have_another_switch(node: WiredNode) -> None:
    """accept_ra_rt_info_max_plen, 0 at first, lets them in up to this length; accept_ra_defrtr
    does not matter.
    """
    node.switch(e0__accept_ra_defrtr=0)
    with node.router("e0") as router:
        router.advertise(options=[RouteInformation(PLACE)])
        assert held(node) == []
        node.switch(e0__accept_ra_rt_info_max_plen=16)
        router.advertise(options=[RouteInformation(PLACE), RouteInformation("fd08::/17")])
    assert held(node) == [("e0", 1024)]
    assert held(node, "fd08::/17") == []
    assert held(node, "default") == []


def test_an_unchanged_renewal_sends_no_event(node: WiredNode) -> None:
    """It moves the time of expiry, and nothing announces that; a loss is announced."""
    with node.router("e0") as router:
        router.advertise(lifetime=100)
        with in_namespace(node.name, open_here) as listener:
            listener.bind((0, IPV6_ROUTE_EVENTS))
            router.advertise(lifetime=1800)
            [route] = shown(node, "route", "show", "exact", "default")
            assert route["expires"] > 100
            assert kinds_of_events(listener) == []
            router.advertise(lifetime=0)
            assert kinds_of_events(listener) == [RTM_DELROUTE]


def test_an_expired_route_stays_in_dumps(node: WiredNode) -> None:
    """Lookups skip it; the kernel takes it away when it collects, every 30 s unless a sysctl has
    otherwise.
    """
    node.run("sysctl", "-qw", "net.ipv6.route.gc_interval=1000")
    with node.router("e0") as router:
        router.advertise(lifetime=1)
    assert decided(node, "2001:db8:9::9") == ["e0"]
    wait_until(lambda: decided(node, "2001:db8:9::9") == [], "the end of the route")
    # iproute2 shows no expiry in the second in which it is 0.
    wait_until(
        lambda: shown(node, "route", "show", "exact", "default")[0].get("expires", 0) < 0,
        "a time below 0",
    )


# --- devices


@pytest.mark.parametrize("forwarding", [0, 1])
def test_a_link_that_goes_down_takes_all_with_it(node: WiredNode, forwarding: int) -> None:
    """Its static routes and addresses go, with events; up brings none of them back."""
    node.switch(all__forwarding=forwarding)
    do(
        node,
        f"route add {PLACE} via {ROUTER} dev e0 metric 1 proto 142",
        "route add fd08::/16 dev e0",
    )
    with in_namespace(node.name, open_here) as listener:
        listener.bind((0, IPV6_ROUTE_EVENTS | IPV6_ADDRESS_EVENTS))
        node.set_up("e0", up=False)
        gone = list(datagrams(listener))
        node.set_up("e0")
    # Unlike those of IPv4, of each static route there is an event.
    network = socket.inet_pton(socket.AF_INET6, "fd09::")
    kinds = {struct.unpack_from("=H", event, 4)[0] for event in gone}
    assert {RTM_DELROUTE, RTM_DELADDR} <= kinds
    assert network in b"".join(gone)
    assert held(node) == []
    assert held(node, "fd08::/16") == []
    assert held(node, "2001:db8:1::/64") == []
    assert not shown(node, "address", "show", "dev", "e0", "scope", "global")


def test_a_next_hop_whose_link_is_down_is_dead(node: WiredNode) -> None:
    """The route stays by its other next hop; the dead one is shown, and no packet takes it."""
    do(node, f"route add {PLACE} nexthop via {ROUTER} dev e0 nexthop via {ROUTER} dev e1")
    node.set_up("e0", up=False)
    [route] = shown(node, "route", "show", "exact", PLACE)
    legs = route.get("nexthops", [route])
    assert [leg["dev"] for leg in legs if "dead" not in leg["flags"]] == ["e1"]
    for port in range(20):
        [answer] = shown(
            node, "route", "get", ADDRESS, "sport", str(1000 + port), "dport", "9", "ipproto", "udp"
        )
        assert answer["dev"] == "e1"


def test_an_address_brings_its_routes(node: WiredNode) -> None:
    """A connected route of metric 256, and a local one; as a router also the anycast address of the
    network.
    """

    def local() -> set[tuple[str, str]]:
        routes = shown(node, "route", "show", "table", "local")
        return {
            (route.get("type", ""), route["dst"])
            for route in routes
            if route["dst"].startswith("2001:db8:1:")
        }

    assert held(node, "2001:db8:1::/64") == [("e0", 256)]
    assert local() == {("local", "2001:db8:1::1")}
    node.switch(all__forwarding=1)
    assert local() == {("local", "2001:db8:1::1"), ("anycast", "2001:db8:1::")}


def test_a_node_without_ipv6(node: WiredNode) -> None:
    """Where it is disabled on each device there are no routes, and a lookup finds none."""
    node.switch(all__disable_ipv6=1)
    assert [
        route for route in shown(node, "route", "show", "table", "all") if route.get("dev") != "lo"
    ] == []
    assert refusal(node, f"route get fibmatch {ADDRESS}") == "Network is unreachable"
