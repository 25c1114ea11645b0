"""Single cases of announced addresses, in the kernel: routes, rules and devices that meet them.

A boot gives the same answer. Random worlds meet few of the conditions of
the rule, so each condition has a case here that needs it.
"""

from collections.abc import Iterator, Sequence

import attrs
import pytest
from support.announced_fabrics import Announced, report_under
from support.fabric_files import announcing
from support.kernel import kernel_of, needs_kernel
from support.overlap_answers import may_start
from support.overlap_checks import check_cidrs
from support.patience import until_unplugged

from hostrouting import HostRoutingConfig, prove_egress
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress
from hostrouting.route_overlap.waiting import check_with_wait
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

pytestmark = needs_kernel


#: The addresses that the agent gives to e1, in 10.3.0.0/16, unless a case has another one.
_PAIRS = (("e1", "10.3.0.4"),)
_WHOLE = "announced 10.3.8.0-10.3.11.255"

#: A rule that came and went parts the tables main and local for good.
_PARTED = "rule add pref 9 to 192.0.2.1 lookup 77; rule del pref 9"

#: For each case the commands of `ip` that arrange it after e0 has 10.1.0.1/16 and the default
#: route, and the finding in 10.3.8.0/22: none, or all of it.
ROUTES: dict[str, tuple[str, str]] = {
    "none but the default route": ("", _WHOLE),
    "a longer one": ("route add 10.3.8.0/22 dev e0", ""),
    "a longer one with a metric": ("route add 10.3.8.0/22 dev e0 metric 9", ""),
    "an equal one": ("route add 10.3.0.0/16 dev e0", ""),
    "an equal one with a metric": ("route add 10.3.0.0/16 dev e0 metric 9", _WHOLE),
    "a shorter one": ("route add 10.2.0.0/15 dev e0", _WHOLE),
    "a longer one in another table": (
        "route add 10.3.8.0/22 dev e0 table 77; rule add to 10.3.8.0/22 lookup 77 pref 99",
        _WHOLE,
    ),
    # Without rules of its own a node has one table for both, and the longest route of both decides.
    "a shorter one in table local": ("route add local 10.0.0.0/8 dev e0 table local", _WHOLE),
    "a shorter one in table local, apart": (
        "rule add pref 9 to 192.0.2.1 lookup 77; route add local 10.0.0.0/8 dev e0 table local",
        "local 10.3.8.0-10.3.11.255",
    ),
    "a shorter one in table local, which is not the first": (
        (
            "rule add pref 9 lookup 77; route add local 10.0.0.0/8 dev e0 table local; "
            "rule add pref 10 lookup local; rule del pref 0"
        ),
        _WHOLE,
    ),
    # The network is connected, by the agent or by an operator.
    "connected, and a rule before it": (
        (
            "route add 10.3.0.0/16 dev e1 proto kernel; route add 10.3.8.0/22 dev e0 table 77; "
            "rule add to 10.3.8.0/22 lookup 77 pref 99"
        ),
        "",
    ),
    # Another program may take its route back.
    "routed by another program, and a rule before it": (
        (
            "route add 10.3.0.0/16 dev e1 proto static; route add 10.3.8.0/22 dev e0 table 77; "
            "rule add to 10.3.8.0/22 lookup 77 pref 99"
        ),
        _WHOLE,
    ),
    "connected with a metric, and a rule before it": (
        (
            "route add 10.3.0.0/16 dev e1 proto kernel metric 9; "
            "route add 10.3.8.0/22 dev e0 table 77; rule add to 10.3.8.0/22 lookup 77 pref 99"
        ),
        _WHOLE,
    ),
    "connected for a type of service, and a rule before it": (
        (
            "route add 10.3.0.0/16 dev e1 proto kernel tos 8; "
            "route add 10.3.8.0/22 dev e0 table 77; rule add to 10.3.8.0/22 lookup 77 pref 99"
        ),
        _WHOLE,
    ),
    "connected without carrier, and a rule before it": (
        (
            "link add name d0 type veth peer name d1; link set dev d0 up; link set dev d1 up; "
            "route add 10.3.0.0/16 dev d0 proto kernel; link set dev d1 down; "
            "route add 10.3.8.0/22 dev e0 table 77; rule add to 10.3.8.0/22 lookup 77 pref 99"
        ),
        _WHOLE,
    ),
    # By then the kernel may send from an announced address.
    "a rule for an announced source": (
        "route add 10.3.8.0/22 dev e0; rule add from 10.3.0.4 lookup 77 pref 99",
        _WHOLE,
    ),
    "a rule for all but another source": (
        "route add 10.3.8.0/22 dev e0; rule add not from 192.0.2.1 lookup 77 pref 99",
        _WHOLE,
    ),
    "a rule for an announced source, which the route fixes": (
        "route add 10.3.8.0/22 dev e0 src 10.1.0.1; rule add from 10.3.0.4 lookup 77 pref 99",
        "",
    ),
    "a rule for another source": (
        "route add 10.3.8.0/22 dev e0; rule add from 192.0.2.1 lookup 77 pref 99",
        "",
    ),
    "a rule for the source of today, which leads to another table": (
        "route add 10.3.8.0/22 dev e0; route add 10.0.0.0/8 dev e0 table 77; rule add from 10.1.0.1 lookup 77 pref 99",
        _WHOLE,
    ),
    # A group may suppress an announced route. That is not followed: too much is found.
    **{
        f"a rule that suppresses group {group} with {dev}, before table {then}": (
            (
                f"route add 10.0.0.0/8 dev e0 table 77; link set {dev} group {group}; rule add pref "
                f"100 lookup {first} suppress_ifgroup {group}; rule add pref 101 lookup {then}"
            ),
            _WHOLE,
        )
        for dev, group in (("e0", 5), ("e1", 5), ("e2", 5), ("e2", 0))
        for first, then in (("main", "77"), ("77", "main"))
    },
    # The agent adds no address that is there, whatever an operator has done with its route.
    "the address is there": ("address add 10.3.0.4/16 dev e1; route del 10.3.0.0/16", ""),
    "the address is there, with another length": ("address add 10.3.0.4/24 dev e1", _WHOLE),
    "the address is there, and the device is down": (
        "address add 10.3.0.4/16 dev e1; link set dev e1 down",
        _WHOLE,
    ),
}


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        for dev in "e0", "e1", "e2":
            made.add_link(dev)
        made.add_address("e0", "10.1.0.1/16")
        made.ip("route append default dev e0")
        yield made


def _do(node: KernelNode, commands: str) -> None:
    for command in filter(None, commands.split("; ")):
        node.ip(command)
        if command == "link set dev d1 down":
            until_unplugged(node, "d0")


def _found(
    node: KernelNode,
    fabric: Fabric,
    cidrs: Sequence[str],
    allowed: Sequence[str] = (),
) -> list[str]:
    """Return what the check finds."""
    report = report_under(node, fabric, cidrs, allowed=allowed)
    return [f"{finding.kind} {finding.first}-{finding.last}" for _, finding in report.findings]


@pytest.mark.parametrize("case", ROUTES)
def test_which_routes_stay(node: KernelNode, case: str) -> None:
    """An address keeps its route in main next to the fabric if that is longer than the announced
    network, or as long with a lower metric, and no rule may lead the packets elsewhere. Where a
    rule suppresses the group of a device, all addresses are found.
    """
    commands, expected = ROUTES[case]
    _do(node, commands)
    fabric = Announced(_PAIRS).as_fabric(kernel_of(node))
    assert _found(node, fabric, ["10.3.8.0/22"]) == ([expected] if expected else [])


#: For each case the hardware addresses and addresses of the pool, the devices with a hardware
#: address, and the allowed ones. All have a device in one /16, and the route of the expected
#: addresses does not precede it.
DEVICES: dict[str, tuple[str, str, str, bool]] = {
    "one, not allowed": ("1D=10.3.0.4", "f1=1d", "", True),
    "one, allowed": ("1D=10.3.0.4", "f1=1d", "f*", False),
    "an expected one": ("1D=10.3.0.4", "f1=1d", "f1", False),
    "two, one allowed": ("1D=10.3.0.4 1E=10.3.0.5", "f1=1d f2=1e", "f2", True),
    # As the agent goes through the devices: a child of an IPoIB device, for example.
    "two with one hardware address, one allowed": ("1D=10.3.0.4", "f1=1d f2=1d", "f1", True),
    "two with one hardware address, both allowed": ("1D=10.3.0.4", "f1=1d f2=1d", "f*", False),
    "one that is not there": ("1D=10.3.0.4 1E=10.3.0.5", "f1=1d", "*", True),
    "one that no device can have": ("x=10.3.0.4", "f1=1d", "*", True),
}


@pytest.mark.parametrize(
    "case", [name for name, (_, found) in ROUTES.items() if found.startswith("announced")]
)
def test_the_advice_can_be_followed(node: KernelNode, case: str) -> None:
    """A route is advised exactly if it makes the check right, before and after the fabric comes."""
    announced = Announced(_PAIRS)
    node.ip("route replace default via 10.1.0.8 dev e0")
    _do(node, ROUTES[case][0])
    kernel = kernel_of(node)
    fabric = announced.as_fabric(kernel)
    report = check_cidrs(kernel, ["10.3.8.0/22"], fabric=fabric)
    assert not report.ok
    advised = [route.destination for route in report.suggested_routes]
    assert bool(advised) != ("No route in the main table would fix 10.3.8.0/22: " in report.advice)
    for destination in advised or ["10.3.8.0/22"]:
        node.ip(f"route prepend {destination} via 10.1.0.8 dev e0 proto 142")
    assert check_cidrs(kernel, ["10.3.8.0/22"], fabric=fabric).ok == bool(advised)
    announced.connect(node)
    assert prove_egress(kernel, ["10.3.8.0/22"]).ok or not advised


def test_off_announces_nothing(node: KernelNode) -> None:
    """With `"fabric": "off"` neither a run nor a boot reads the files of the agent."""
    host = FakeHost(kernel_of(node))
    for path, content in announcing(Announced(_PAIRS).as_fabric(kernel_of(node))).items():
        host.files.write(path, content, mode=0o644)
    for setting, is_right in ("auto", False), ("off", True):
        section = {"expectedCidrs": ["10.3.8.0/22"], "fabric": setting}
        config = HostRoutingConfig.from_mapping({"routeOverlap": section})
        assert check_with_wait(Context(), config, host).ok == is_right
        options = {"fabric": setting}
        cidrs = section["expectedCidrs"]
        assert may_start(node, cidrs, files=host.files, options=options) == is_right


@pytest.mark.parametrize("case", DEVICES)
def test_which_devices_may_carry_all(node: KernelNode, case: str) -> None:
    """A fabric is not a finding if each announced hardware address has a device and all of these
    devices are allowed.
    """
    pairs, devices, patterns, is_announced = DEVICES[case]
    allowed = patterns.split()
    for device in devices.split():
        name, end = device.split("=")
        node.ip(f"link add {name} address 00:15:5d:33:ff:{end} type bridge")
    announced = [pair.split("=") for pair in pairs.split()]
    addresses = [
        FabricAddress(f"00155D33FF{end}" if len(end) == 2 else end, parse_ipv4(address))
        for end, address in announced
    ]
    fabric = Fabric(addresses=tuple(addresses), source=POOL)
    assert bool(_found(node, fabric, ["10.3.8.0/22"], allowed)) == is_announced
    # A packet from an announced address may then meet a rule.
    node.ip("rule add from 10.3.0.0/24 lookup 77")
    assert _found(node, fabric, ["10.3.8.0/22"], allowed) == [_WHOLE]
    listed = Fabric(networks=("10.3.0.0/16",), source="routeOverlap.fabric")
    assert _found(node, listed, ["10.3.8.0/22"], ["*"]) == [_WHOLE]


def test_the_longest_network_counts(node: KernelNode) -> None:
    """The longer of two nested networks takes the addresses of a route whose length is between
    theirs.
    """
    node.ip("route add 10.3.8.0/23 dev e0")
    listed = Fabric(networks=("10.3.0.0/16", "10.3.8.0/24"), source="routeOverlap.fabric")
    found = _found(node, listed, ["10.3.8.0/22"])
    assert found == ["announced 10.3.8.0-10.3.8.255", "announced 10.3.10.0-10.3.11.255"]


def test_a_source_that_comes_matters_everywhere(node: KernelNode) -> None:
    """An address outside of the announced networks is found as well if a rule may select packets by
    an announced source.
    """
    fabric = Announced(_PAIRS).as_fabric(kernel_of(node))
    assert _found(node, fabric, ["192.168.7.0/30"]) == []
    node.ip("rule add from 10.3.0.0/16 lookup 77")
    assert _found(node, fabric, ["192.168.7.0/30"]) == ["announced 192.168.7.0-192.168.7.3"]
    # The node sends from the address itself, with or without that in its route.
    node.ip("address add 10.9.0.7/32 dev e0")
    assert _found(node, fabric, ["10.1.0.1/32", "10.9.0.7/32"]) == []


@pytest.mark.parametrize(
    ("commands", "cidr", "expected"),
    [
        # Longer routes lead to all of 10.3.0.0/16.
        ("", "10.3.0.0/29", "announced 10.3.0.4"),
        ("", "10.3.255.248/29", "announced 10.3.255.255"),
        ("address add 10.3.0.4/24 dev e0", "10.3.0.4/32", ""),
        (
            "route add local 10.3.0.4 dev e0 table local metric 9",
            "10.3.0.4/32",
            "announced 10.3.0.4",
        ),
        ("route add local 10.3.0.4 dev e0 table local tos 8", "10.3.0.4/32", "announced 10.3.0.4"),
        ("route add broadcast 10.3.255.255 dev e0 table local", "10.3.255.248/29", ""),
        # Before Linux 5.14, as the loopback device shows.
        (
            "route replace broadcast 127.0.0.0 dev lo table local",
            "10.3.0.0/31",
            "announced 10.3.0.0",
        ),
        # The kernel adds the route of an address again when the agent sets its device up.
        (
            "address add 10.3.0.4/16 dev e1; link set e1 down; route del local 10.3.0.4 dev e1 table local",
            "10.3.0.4/32",
            "announced 10.3.0.4",
        ),
        # A device that is down, and gets its other networks back.
        (
            "address add 10.9.0.1/24 dev e2; link set e2 down",
            "10.9.0.0/30",
            "announced 10.9.0.0, local 10.9.0.1, announced 10.9.0.2",
        ),
        ("address add 10.9.0.1/32 dev e2; link set e2 down", "10.9.0.0/31", "local 10.9.0.1"),
        (
            "address add 10.9.0.1/32 dev e2; link set e2 down; rule add pref 10 lookup local; rule del pref 0",
            "10.9.0.1/32",
            "local 10.9.0.1",
        ),
        ("address add 10.9.0.1/24 dev e2; link set e1 down", "10.9.0.2/32", "overlap 10.9.0.2"),
    ],
)
def test_addresses_that_no_longer_route_takes(
    node: KernelNode, commands: str, cidr: str, expected: str
) -> None:
    """The announced address and the broadcast address of its network are found unless the node has
    them, as they come to table local, which is searched before a longer route in main.
    """
    _do(node, f"route add 10.3.0.0/17 dev e0; route add 10.3.128.0/17 dev e0; {commands}")
    fabric = Announced(_PAIRS).as_fabric(kernel_of(node))
    found = _found(node, fabric, [cidr])
    assert {line.partition("-")[0] for line in found} == {*filter(None, expected.split(", "))}


@pytest.mark.parametrize(
    ("commands", "dev", "cidrs", "expected"),
    [
        (
            "route add throw 10.3.0.0/31 table local",
            "late0",
            "10.3.0.0/29",
            "no-route 10.3.0.0, announced 10.3.0.2",
        ),
        (
            f"route add throw 10.3.0.0/31 table local; {_PARTED}",
            "late0",
            "10.3.0.0/29",
            "announced 10.3.0.0",
        ),
        (
            "route add 10.0.0.0/8 dev e0 table local; route add blackhole 10.3.0.6",
            "late0",
            "10.3.0.0/29",
            "announced 10.3.0.0, blocked 10.3.0.6, announced 10.3.0.7",
        ),
        (
            f"route add 10.0.0.0/8 dev e0 table local; route add blackhole 10.3.0.6; {_PARTED}",
            "late0",
            "10.3.0.0/29",
            "announced 10.3.0.4",
        ),
        (
            (
                "address add 192.168.7.1/24 dev e1; route del default; "
                "route add default nexthop dev e0 nexthop via 192.168.7.254 dev e1; link set e0 down"
            ),
            "e1",
            "10.2.0.0/30",
            "",
        ),
        (
            "address add 10.2.0.1 peer 10.2.0.2 dev e2; address add 10.1.0.9/24 dev e2; link set e2 down",
            "e2",
            "10.2.0.0/30 10.1.0.8/29",
            "local 10.2.0.1, announced 10.2.0.2, announced 10.1.0.8, local 10.1.0.9, announced 10.1.0.10",
        ),
    ],
    ids=[
        "throw in both",
        "throw in local",
        "wide in both",
        "wide in local",
        "next hop down",
        "down",
    ],
)
def test_routes_that_meet_announced_ones(
    *, node: KernelNode, commands: str, dev: str, cidrs: str, expected: str
) -> None:
    """The check distinguishes one table from two, and finds the routes that a device which is down
    brings.
    """
    _do(node, commands)
    fabric = Announced([(dev, "10.3.0.4")]).as_fabric(kernel_of(node))
    found = [line.partition("-1")[0] for line in _found(node, fabric, cidrs.split())]
    assert ", ".join(found) == expected


@pytest.mark.parametrize(
    ("network", "found"),
    [
        ("10.3.0.4/32", ["10.3.0.4"]),
        ("10.3.0.4/31", ["10.3.0.4"]),
        # A longer route leads to its last address, which is not one of broadcasts.
        ("10.3.0.6/31", ["10.3.0.6"]),
        ("0.0.0.0/4", []),
        ("0.0.0.0/0", []),
    ],
)
def test_networks_of_any_length(node: KernelNode, network: str, found: list[str]) -> None:
    """An announced network of one address is found, and one that begins in 0.0.0.0/8 is not, as the
    kernel never connects it.

    The check does not take the one address for the node's own.
    """
    _do(node, "route del default; route add default dev e0 metric 9; route add 10.3.0.7 dev e0")
    fabric = Fabric(networks=(network,), source="routeOverlap.fabric")
    report = report_under(node, fabric, ["10.3.0.0/29"])
    assert [(finding.kind, finding.first, finding.own) for _, finding in report.findings] == [
        ("announced", address, ()) for address in found
    ]


@pytest.mark.parametrize("cidr", ["10.3.0.4/31", "10.3.0.0/24"])
def test_addresses_that_no_route_takes(node: KernelNode, cidr: str) -> None:
    """Advice for addresses of the fabric that no route can take names them, and neither proposes a
    route nor calls one inactive.
    """
    is_routed = cidr == "10.3.0.0/24"
    _do(
        node,
        "route replace default via 10.1.0.8"
        + "; route add 10.3.0.0/24 via 10.1.0.8 proto 142" * is_routed,
    )
    fabric = Announced([("e1", "10.3.0.4"), ("e2", "10.3.0.5")]).as_fabric(kernel_of(node))
    report = report_under(node, fabric, [cidr])
    assert [(one.first, one.last) for _, one in report.findings] == [("10.3.0.4", "10.3.0.5")]
    assert "No route can take 10.3.0.4, 10.3.0.5 from the fabric" in report.advice
    assert not [
        words for words in ("staticRoutes", "not in force", "would fix") if words in report.advice
    ]


def test_an_expected_device_of_the_fabric_is_set_up(node: KernelNode) -> None:
    """An expected device that is down leads out once the agent has set it up."""
    announced = Announced(_PAIRS)
    node.set_up("e1", up=False)
    kernel = kernel_of(node)
    report = report_under(node, announced.as_fabric(kernel), expected=["e0", "e1"])
    announced.connect(node)
    assert prove_egress(kernel, ["10.3.8.0/22"], expected_devs=["e0", "e1"]).ok
    assert report.ok


def test_a_fabric_with_the_network_of_the_node(node: KernelNode) -> None:
    """A gateway in the network of a fabric stays on the link of e0, though the fabric takes the
    other addresses.

    The suggested route is taken by the kernel when the fabric is there, and fixes the finding.
    """
    announced = Announced([("e1", "10.1.3.4")])
    _do(node, "address del 10.1.0.1/16 dev e0; address add 10.1.0.4/16 dev e0 metric 100")
    _do(node, "route add default via 10.1.0.1 dev e0 metric 100")
    kernel = kernel_of(node)
    report = check_cidrs(kernel, ["10.1.9.0/24"], fabric=announced.as_fabric(kernel))
    assert [finding.kind for _, finding in report.findings] == ["announced"]
    [route] = report.suggested_routes
    announced.connect(node)
    [connected] = prove_egress(kernel, ["10.1.9.0/24"]).suggested_routes
    assert connected == attrs.evolve(route, takes_from=("e1",))
    node.ip(f"route add {route.destination} via {route.gateway} dev {route.dev}")
    assert prove_egress(kernel, ["10.1.9.0/24"]).ok
