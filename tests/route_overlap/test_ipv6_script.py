"""The boot script proves IPv6 as the library does, which test_ipv6_proof.py compares with the
kernel.
"""

import ipaddress
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.announced_worlds import Announced, both_answers
from support.beyond_script import is_beyond_script
from support.examples import FEW
from support.ipv6_worlds import IPv6World, arranged, mixed_worlds
from support.kernel import kernel_of, needs_kernel
from support.overlap_worlds import AMONG_DEBRIS, ScriptRun, run_script
from support.routers import ROUTER, SECOND_ROUTER, WiredNode

from hostrouting import prove_egress

pytestmark = needs_kernel

BY_BOTH = "nexthop via 10.224.0.1 dev e0 nexthop via 10.225.0.1 dev e1"
_FINDING = re.compile(r"(\S+): (\S+) ([0-9a-f:.]+)-([0-9a-f:.]+)(?: by (\S+))?(?: \((.*)\))?")


def run(
    node: WiredNode, cidrs: Sequence[str], *, allowed: Sequence[str] = (), **options: object
) -> ScriptRun:
    """Run the script without patience, and with another folder."""
    with tempfile.TemporaryDirectory() as folder:
        return run_script(node, Path(folder) / "run", cidrs, allowed=allowed, options=options)


def told(lines: Iterable[str]) -> list[tuple[object, ...]]:
    """Return findings as CIDR, kind, devices, first and last address; touching ones that are alike
    are one.

    Of next hops the kernel may name another one first for each packet.
    """
    whole: list[tuple[object, ...]] = []
    for line in lines:
        match = _FINDING.fullmatch(line)
        assert match, line
        one = match[1], match[2], frozenset((match[5] or "").split(","))
        first, last = (int(ipaddress.ip_address(text)) for text in match.group(3, 4))
        if whole and whole[-1][:3] == one and whole[-1][4] == first - 1:
            first = whole.pop()[3]  # type: ignore[assignment]
        whole.append((*one, first, last))
    return whole


@settings(max_examples=2 * FEW)
@given(
    world=mixed_worlds(rare=True),
    expected=st.sampled_from(
        [[], ["e0"], ["10.1.0.0/16"], ["10.0.0.0/8"], ["192.168.7.0/24", "e1"]]
    ),
    has_debris=st.booleans(),
)
def test_the_script_finds_what_the_proof_finds(
    world: IPv6World, expected: list[str], has_debris: bool
) -> None:
    """Of both families, in the order of the CIDRs, by the devices or networks of the config or by
    the devices of the default routes.

    Also where devices have no carrier, and where the kernel passes over a gateway that does not
    answer.
    """
    # So many edges are sorted by another program.
    cidrs = [*world.cidrs, *(f"fd0b:{n}::/32" for n in range(0, 120 * has_debris, 2))]
    with arranged(world) as node, tempfile.TemporaryDirectory() as folder:
        # Default routes in turns, rules by protocol.
        assume(not is_beyond_script(node))
        ran = run_script(
            node,
            Path(folder) / "run",
            cidrs,
            allowed=world.allowed,
            options={"expectedDevs": expected, "fabric": "off"},
            through=AMONG_DEBRIS if has_debris else (),
        )
        report = prove_egress(
            kernel_of(node), cidrs, allowed_devs=world.allowed, expected_devs=expected or None
        )
    assert ran.status == (10 if report.ok else 11), ran.output
    lines = ran.markers.get("route-overlap.detected", "").splitlines()
    assert told(lines) == told(report.lines()), ran.output
    assert "line " not in ran.output, ran.output


_OF_E0 = {"expectedDevs": ["e0"]}
_BY_IPV4 = "-4 route add default via 10.224.0.1 dev e0"
_OBJECT = f"{_BY_IPV4}; nexthop add id 7 via {ROUTER} dev e1"
_SECOND = f"-6 route append default via {ROUTER} dev e1 proto ra metric 2048"
_WHOLE = "fd09::-fd09::ffff:ffff:ffff:ffff"
#: Behind the default route of the node the last one matters only if that fails.
_SILENT = (
    f"-6 route add fd09::/80 via {SECOND_ROUTER} dev e1 metric 7; "
    f"-6 route append default via {SECOND_ROUTER} dev e1 metric 2000; "
    f"-6 neigh replace {SECOND_ROUTER} dev e1"
)
_ASTRAY = f"fd09::/64: overlap fd09::-fd09::ffff:ffff:ffff by e1 (fd09::/80 via {SECOND_ROUTER} dev e1 metric 7)"
#: For each case commands of `ip`, the section, and the finding, if there is one.
DEVICES: dict[str, tuple[str, dict[str, list[str]], str]] = {
    "not by the IPv4 default route's": (
        "-4 route replace default via 10.225.0.1 dev e1",
        {},
        f"fd09::/64: overlap {_WHOLE} by e0 (default via {ROUTER} dev e0 proto ra metric 1024)",
    ),
    # Without one IPv4 device, that of all IPv6 default routes.
    "by the only one of IPv6": (f"-4 route add default {BY_BOTH}", {}, ""),
    "by one of several of IPv6": (
        f"-4 route add default {BY_BOTH}; {_SECOND}",
        {},
        f"fd09::/64: unknown-exit {_WHOLE} by e0 (default via {ROUTER} dev e0 proto ra metric 1024)",
    ),
    "by the expected one": (f"-4 route add default {BY_BOTH}; {_SECOND}", _OF_E0, ""),
    "an equal default by the fabric": (
        f"{_OBJECT}; -6 route append default nhid 7 proto ra metric 1024",
        {},
        f"fd09::/64: overlap {_WHOLE} by e1 (default via {ROUTER} dev e1 proto ra metric 1024)",
    ),
    "a worse default by the fabric": (
        f"{_OBJECT}; -6 route append default nhid 7 proto ra metric 1025",
        {},
        "",
    ),
    "a route for the node's source": (
        "-6 route add fd09::/64 from fd00:1::/64 dev e1; -6 route add fd09::/64 dev e0 metric 1",
        _OF_E0,
        f"fd09::/64: overlap {_WHOLE} by e1 (fd09::/64 from fd00:1::/64 dev e1 metric 1024)",
    ),
    # On a host the kernel passes over a silent gateway; its route is wrong all the same.
    "a gateway that answers": (
        f"{_SILENT} lladdr 02:00:00:00:00:01 nud permanent",
        _OF_E0,
        _ASTRAY,
    ),
    "a gateway that failed": (f"{_SILENT} nud failed", _OF_E0, _ASTRAY),
}


class TestDevices:
    """The devices by which IPv6 must leave."""

    @pytest.fixture
    def node(self) -> Iterator[WiredNode]:
        with WiredNode.made() as made:
            made.add_links("e0", "e1")
            made.hold("e0", "fd00:1::1/64")
            made.ip("address add 10.224.0.4/16 dev e0")
            made.ip("address add 10.225.0.4/16 dev e1")
            made.ip(f"-6 route add default via {ROUTER} dev e0 proto ra")
            yield made

    def test_that_of_the_ipv4_default_route(self, node: WiredNode) -> None:
        """A mixed config is one verdict, in the order of the config."""
        node.ip("-4 route add default via 10.224.0.1 dev e0")
        cidrs = ["fd09::/64", "10.96.0.0/16", "2001:db8::/32"]
        assert run(node, cidrs).output == "fd09::/64, 10.96.0.0/16, 2001:db8::/32 leave by e0\n"

    @pytest.mark.parametrize("case", DEVICES)
    def test_which_routes_are_right(self, node: WiredNode, case: str) -> None:
        """The kernel shows one route for the first address; each that may take packets counts."""
        commands, section, expected = DEVICES[case]
        for command in commands.split("; "):
            node.ip(command)
        ran = run(node, ["fd09::/64"], **section)
        lines = ran.markers.get("route-overlap.detected", "").splitlines()
        assert [line.partition(" pref ")[0] for line in lines] == ([expected] if expected else [])

    def test_the_texts_are_those_of_the_family_that_fails(self, node: WiredNode) -> None:
        """The missing default route, and the way that packets should take."""
        cidrs = ["fd09::/64", "10.96.0.0/16"]
        told = run(node, cidrs).output
        assert told.startswith(
            "the node has no IPv4 default route, so nothing leads to 10.96.0.0/16\n  10.96.0.0/16: no-route"
        )
        node.ip("-4 route add default via 10.224.0.1 dev e0")
        node.ip("-4 route add 10.96.3.0/24 via 10.225.0.1 dev e1")
        assert "\nexpected: dev e0 via 10.224.0.1; " in run(node, cidrs).output
        node.ip("-4 route delete 10.96.3.0/24")
        node.ip(f"-6 route add fd09::/96 via {ROUTER} dev e1")
        assert f"\nexpected: dev e0 via {ROUTER}; " in run(node, cidrs).output
        node.ip("-4 route delete default")
        node.ip(f"-6 route append default via {ROUTER} dev e1 metric 2048")
        assert "\nName the device in expectedDevs; " in run(node, cidrs[:1]).output

    def test_an_announced_fabric_takes_nothing_from_ipv6(self, node: WiredNode) -> None:
        """It is of IPv4; IPv6 is proven all the same."""
        node.ip("-4 route add default via 10.224.0.1 dev e0")
        ran = run(node, ["fd09::/64", "172.16.8.0/24"], fabric=["172.16.0.0/16"])
        assert ran.markers["route-overlap.detected"].startswith(
            "172.16.8.0/24: announced 172.16.8.0-172.16.8.255 ("
        )
        assert ran.markers["route-overlap.detected"].count("\n") == 1

    def test_an_announced_fabric_is_judged_by_the_devices_of_ipv4(
        self, node: WiredNode, tmp_path: Path
    ) -> None:
        """Also where IPv6, which is proven before, must leave by fewer."""
        node.ip(f"-4 route add default {BY_BOTH}")
        fabric = Announced([("e1", "172.16.0.4")]).as_fabric(kernel_of(node))
        report, ran = both_answers(node, fabric, tmp_path, ["fd09::/64", "172.16.8.0/24"])
        assert report.ok
        assert ran.markers == {"route-overlap.ok": f"{report.verdict}\n"}

    def test_a_node_without_ipv6(self, node: WiredNode) -> None:
        """Nothing leads there, and IPv4 is proven all the same."""
        node.ip("-4 route add default via 10.224.0.1 dev e0")
        node.switch(all__disable_ipv6=1)
        ran = run(node, ["fd09::/64", "10.96.0.0/16"])
        assert ran.markers == {
            "route-overlap.detected": "fd09::/64: no-route fd09::-fd09::ffff:ffff:ffff:ffff\n"
        }

    def test_a_route_that_the_kernel_names_otherwise(self, node: WiredNode) -> None:
        """It names several next hops with the preference of the one that the flow takes, and of
        routes that share a nexthop object one that was looked up before.
        """
        commands = f"""-6 route append fd09::/80 via {ROUTER} dev e1 pref high
            -6 route append fd09::/80 via {SECOND_ROUTER} dev e1
            -6 route append fd09::/80 dev e0
            -6 nexthop add id 7 via {ROUTER} dev e0
            -6 nexthop add id 8 via {ROUTER} dev e1
            nexthop add id 9 group 7/8
            -6 route add fd08::1 nhid 7
            -6 route add fd0a::/80 nhid 9
            -6 route append fd0b::/80 via {ROUTER} dev e0
            -6 route append fd0b::/80 via {SECOND_ROUTER} dev e0 pref high
            -6 route append fd0b::/80 nhid 8
            -6 route append fd0c::/80 nhid 7
            -6 route append fd0c::/80 via fe80::99 dev e0 pref low
            -6 route append fd0c::/80 via {ROUTER} dev e1 pref high
            -6 neigh replace fe80::99 dev e0 nud failed"""
        for command in commands.splitlines():
            node.ip(command)
        for number in range(8):
            for net in "9abc":
                cidrs = ["fd08::1/128", f"fd0{net}::{number}/128"]
                assert run(node, cidrs, **_OF_E0).status == 11


def test_sources_that_are_wrong_in_different_ways() -> None:
    """Where a rule refuses each address of a device in its own way, the script tells of the same
    one as the proof.
    """
    with WiredNode.made() as node:
        node.add_links("e0")
        rules = {
            "2001:db8:1::2": "unreachable",
            "2001:db8:2::2": "blackhole",
            "2001:db8:3::2": "prohibit",
        }
        for source, action in rules.items():
            node.hold("e0", f"{source}/64")
            node.ip(f"-6 rule add from {source} {action}")
        node.ip(f"-6 route add default via {ROUTER} dev e0")
        cidrs = [f"2001:db8:{network}:9::/64" for network in range(1, 4)]
        lines = run(node, cidrs, expectedDevs=["e0"]).markers["route-overlap.detected"].splitlines()
        report = prove_egress(kernel_of(node), cidrs, expected_devs=["e0"])
    assert told(lines) == told(report.lines())


def test_a_nexthop_object_is_not_named() -> None:
    """A finding has the route as the proof prints it, of both families."""
    with WiredNode.made() as node:
        node.add_links("e0", "e1")
        node.ip("address add 10.1.0.1/16 dev e1")
        node.ip("nexthop add id 7 via 10.1.0.2 dev e1")
        node.ip(f"-6 nexthop add id 8 via {ROUTER} dev e1")
        node.ip("route add 10.9.0.0/24 nhid 7")
        node.ip("-6 route add fd09::/64 nhid 8")
        cidrs = ["10.9.0.0/24", "fd09::/64"]
        ran = run(node, cidrs, expectedDevs=["e0"])
        report = prove_egress(kernel_of(node), cidrs, expected_devs=["e0"])
    assert ran.markers["route-overlap.detected"].splitlines() == report.lines()


@pytest.mark.parametrize(
    ("cidr", "shown"),
    [
        ("2001:db8:0:1::/127", "2001:db8:0:1::-2001:db8:0:1::1"),
        ("2001:0:0:1::5/128", "2001:0:0:1::5-2001:0:0:1::5"),
        ("2001:db8:1:1:1:1:0:1/128", "2001:db8:1:1:1:1:0:1-2001:db8:1:1:1:1:0:1"),
        ("fe00::/9", "fe00::-fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ],
)
def test_addresses_are_shown_as_ip_shows_them(cidr: str, shown: str) -> None:
    """The first of the longest rows of zeros is short."""
    with WiredNode.made() as node:
        ran = run(node, [cidr])
        assert ran.markers["route-overlap.detected"] == f"{cidr}: no-route {shown}\n"


@pytest.mark.parametrize(
    ("network", "shown"),
    [
        ("::ffff:10.0.0.0/104", "::ffff:10.0.0.0-::ffff:10.255.255.255"),
        ("::10.0.0.0/112", "::10.0.0.0-::10.0.255.255"),
    ],
)
def test_an_ipv4_address_written_as_ipv6_is_shown_so(network: str, shown: str) -> None:
    """A config names no such network, but a route to one may lie within a wider one."""
    with WiredNode.made() as node:
        node.add_links("e0", "e1")
        node.ip(f"-6 route add {network} dev e1")
        ran = run(node, ["::/64"], expectedDevs=["e0"])
        report = prove_egress(kernel_of(node), ["::/64"], expected_devs=["e0"])
    [line] = [line for line in report.lines() if " by e1 " in line]
    assert line.startswith(f"::/64: overlap {shown} by e1 (")
    assert line in ran.markers["route-overlap.detected"].splitlines()
