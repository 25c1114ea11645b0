"""Facts about IPv6 routing on which the design rests, and which the other tests do not show.

docs/kernel-facts.md names each of them. What differs between kernels is noted where it is tested.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.kernel import needs_kernel
from support.patience import wait_until
from support.routers import ROUTER, SECOND_ROUTER, Prefix, RouteInformation, WiredNode

from hostrouting.exceptions import BackendError

pytestmark = needs_kernel

PLACE = "fd09::/16"
ADDRESS = "fd09::9"


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


def test_absent_and_zero_are_metric_1024(node: WiredNode) -> None:
    """An IPv6 route with the metric 0, or without one, has the metric 1024."""
    do(node, f"route add {PLACE} dev e0")
    assert held(node) == [("e0", 1024)]
    assert refusal(node, f"route add {PLACE} dev e1 metric 0") == "File exists"


def test_of_several_next_hops_each_has_a_gateway(node: WiredNode) -> None:
    """The kernel refuses an IPv6 multipath route with a next hop that is a device alone, and
    answers a lookup with all next hops of a multipath route.
    """
    refusal_text = refusal(node, f"route add {PLACE} nexthop via {ROUTER} dev e0 nexthop dev e1")
    assert "Device only routes can not be added" in refusal_text
    do(node, f"route add {PLACE} nexthop via {ROUTER} dev e0 nexthop via {ROUTER} dev e1")
    assert decided(node) == decided(node, ADDRESS, "oif", "e1") == ["e0", "e1"]


def test_a_source_is_chosen_after_the_route(node: WiredNode) -> None:
    """A socket without an address looks a route up without a source; if that finds none, with the
    source that the socket would have.

    A route by source therefore serves each such socket where nothing else leads to the destination.
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


@pytest.mark.parametrize("state", ["none", "incomplete", "stale", "reachable", "noarp"])
def test_other_states_of_a_neighbour_hide_no_route(node: WiredNode, state: str) -> None:
    """The kernel does not pass over a gateway whose neighbour entry is missing, or is in another
    state than FAILED.
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


# --- rules


def test_a_rule_keeps_the_bits_behind_its_prefix(node: WiredNode) -> None:
    """The kernel shows a rule as it was given, with the bits behind its prefix, and selects by the
    prefix.
    """
    do(node, f"rule add to {ADDRESS}/16 priority 5 type prohibit")
    assert [rule["dst"] for rule in shown(node, "rule", "show") if "dst" in rule] == [ADDRESS]
    assert refusal(node, "route get fibmatch fd09:7::") == "Permission denied"


def test_via_inet6_makes_a_route_of_ipv6(node: WiredNode) -> None:
    """Only with `-4` does a default route through an IPv6 gateway become one of IPv4."""
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
    """A deletion of an IPv6 route by gateway, device, metric and protocol removes a route by object
    of that metric and protocol.

    The gateway and the device of the deletion play no part.
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
    """A deletion of an IPv4 route by gateway does not remove a route by object with another
    gateway.
    """
    node.ip("address add 10.1.0.1/24 dev e0")
    node.ip("nexthop add id 5 via 10.1.0.2 dev e0")
    node.ip("route add 10.9.0.0/16 nhid 5")
    with pytest.raises(BackendError, match="No such process"):
        node.ip("route delete 10.9.0.0/16 via 10.1.0.3 dev e0")


@pytest.mark.parametrize("order", [1, -1])
def test_a_route_by_object_does_not_merge(node: WiredNode, order: int) -> None:
    """`append` of an IPv6 route to one by object, or the other way round, makes a second route."""
    do(node, f"nexthop add id 5 via {SECOND_ROUTER} dev e0")
    do(
        node,
        *[f"route append {PLACE} nhid 5", f"route append {PLACE} via {ROUTER} dev e1"][::order],
    )
    assert [dev for dev, _ in held(node)] == ["e0", "e1"][::order]
    assert decided(node) == ["e0", "e1"][::order][:1]


# --- advertisements, as the kernel takes them


@pytest.mark.parametrize("written", ["all", "default", "e0", "e1", "lo"])
def test_forwarding_deletes_what_the_kernel_learned(node: WiredNode, written: str) -> None:
    """A 1 in the forwarding switch of any device deletes each learned default route whose device
    has accept_ra other than 2.

    The switch of devices to come deletes nothing, conf.all.accept_ra changes nothing, and a
    program's default route stays.
    """
    node.switch(all__accept_ra=2, e1__accept_ra=2)
    with node.router("e0") as first, node.router("e1") as second:
        first.advertise()
        second.advertise()
    do(node, f"route append default via {ROUTER} dev e0 proto ra metric 2000")
    node.switch(**{f"{written}__forwarding": 1})
    assert held(node, "default") == [
        *([("e0", 1024)] if written == "default" else []),
        ("e1", 1024),
        ("e0", 2000),
    ]


def test_forwarding_leaves_other_learned_routes(node: WiredNode) -> None:
    """Learned prefixes and more specific routes stay when a device begins to forward, and later
    advertisements do not renew them.
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


def test_an_expired_route_stays_in_dumps(node: WiredNode) -> None:
    """Lookups pass over an expired route, which stays in dumps until the kernel collects it, every
    30 s unless a sysctl has another time.
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


def test_a_next_hop_whose_link_is_down_is_dead(node: WiredNode) -> None:
    """A route stays by its other next hop if the link of one is down; the dead next hop is shown,
    and packets do not take it.
    """
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
