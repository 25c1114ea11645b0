"""The conditions under which the boot script takes a node for plain, each with a node that needs
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from support.counted_ip import IP, another_ip
from support.kernel import kernel_of, needs_kernel
from support.overlap_answers import ScriptRun, run_script
from support.printed import UNPROVEN
from support.routers import ROUTER, SECOND_ROUTER, WiredNode, unplug

from hostrouting import prove_egress

pytestmark = needs_kernel

V4 = "10.96.0.0/16"
V6 = "fd09::/64"
BOTH = (V4, V6)
OF_E0 = {"expectedDevs": ["e0"]}
#: Where ip finds names for tables.
NAMES = "/etc/iproute2/rt_tables"
#: The routes of a node that expects both families by e0.
DEFAULTS = (
    "route add default via 10.224.0.1 dev e0",
    f"-6 route add default via {ROUTER} dev e0 proto ra metric 1024",
)


@pytest.fixture
def node() -> Iterator[WiredNode]:
    """A node with the devices e0, e1 and a CNI's; routes are for the case."""
    with WiredNode.made() as made:
        made.add_links("e0", "e1", "cali1")
        made.hold("e0", "fd00:1::1/64")
        made.ip("address add 10.224.0.4/16 dev e0")
        made.ip("address add 10.225.0.4/16 dev e1")
        yield made


class Case(NamedTuple):
    """Commands of `ip` after the default routes, what is expected, and what is not plain."""

    commands: str
    word: str = ""
    cidrs: Sequence[str] = (V4,)
    options: Mapping[str, Sequence[str]] = {}
    #: The verdict of the proof.
    is_right: bool = False
    has_defaults: bool = True
    #: Whether e0 loses its carrier.
    is_unplugged: bool = False


RIGHT: dict[str, Case] = {
    "the default route": Case(""),
    "both families": Case("", cidrs=BOTH),
    "IPv6 alone, by the device of IPv4": Case("", cidrs=[V6]),
    "a bridge's route for pods at the first address": Case("route add 10.96.0.0/24 dev cali1"),
    "a pod of IPv6 at the first address": Case("-6 route add fd09:: dev cali1", cidrs=BOTH),
    "IPv6 default routes of two metrics by one device": Case(
        f"-6 route add default via {SECOND_ROUTER} dev e0 metric 2048", cidrs=BOTH
    ),
    "another default route with a worse metric": Case(
        "route add default via 10.225.0.1 dev e1 metric 9"
    ),
    "a default route by two gateways of one device": Case(
        "route append default via 10.224.0.2 dev e0"
    ),
    "a route by two gateways of one device": Case(
        "route add 10.96.0.0/17 nexthop via 10.224.0.1 dev e0 nexthop via 10.224.0.2 dev e0"
    ),
    "no route of a table that a mark selects": Case(
        "rule add pref 9 fwmark 0x200/0xf00 lookup 100; route add default dev e1 table 100"
    ),
    "a table for the source of a pod": Case(
        "rule add pref 9 from 10.224.0.30 lookup 100; rule add pref 8 to 10.224.0.30 lookup main; "
        "route add default dev e1 table 100"
    ),
    "a later rule": Case("rule add pref 32767 lookup 100; route add default dev e1 table 100"),
    "table local after rules by mark": Case(
        "rule add pref 9 fwmark 0x200/0xf00 lookup 100; rule add pref 100 lookup local; rule del pref 0"
    ),
    "rules of another program": Case(
        "rule add pref 1 lookup local proto static; rule del pref 0; "
        "rule add pref 2 lookup main proto static"
    ),
    "several expected devices, one without a route": Case(
        "", options={"expectedDevs": ["e1", "e0"]}
    ),
    "the parts of an advertised route": Case(
        f"-6 route add fd09::/64 via {ROUTER} dev e0 proto ra metric 100 expires 1800 mtu 1400 "
        "hoplimit 64 pref high",
        cidrs=BOTH,
    ),
    "the windows of a default route": Case(
        "route replace default via 10.224.0.1 dev e0 initcwnd 32 initrwnd 32"
    ),
}


def run(node: WiredNode, folder: Path, case: Case) -> ScriptRun:
    """Make the node so, and run the script without the program."""
    commands = [*(DEFAULTS if case.has_defaults else ()), *filter(None, case.commands.split("; "))]
    for command in commands:
        node.ip(command)
    ran = run_script(node, folder, case.cidrs, options={"fabric": "off", **case.options})
    expected = case.options.get("expectedDevs")
    report = prove_egress(kernel_of(node), case.cidrs, expected_devs=expected)
    ran.must_follow(report)
    assert report.ok == (case in RIGHT.values() or case.is_right), report.lines()
    return ran


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_it_is_plain(node: WiredNode, tmp_path: Path, case: Case) -> None:
    """The script accepts a plain node by itself, in the words of the proof."""
    ran = run(node, tmp_path / "run", case)
    assert ran.is_plain, ran.output
    expected = case.options.get("expectedDevs")
    report = prove_egress(kernel_of(node), case.cidrs, expected_devs=expected)
    assert ran.markers == {"route-overlap.ok": f"{report.verdict}\n"}


#: Each needs a condition of the script: without it, a wrong node passes.
NOT_PLAIN: dict[str, Case] = {
    # Rows.
    "a row with a header": Case(
        "route add 10.96.3.0/24 encap ip id 5 dst 10.224.0.9 via 10.224.0.1 dev e0", "row"
    ),
    "a row that refuses": Case("route add unreachable 10.96.3.0/24", "row"),
    "a row that refuses, and has a device": Case(
        "-6 nexthop add id 7 blackhole; -6 route add fd09:0:0:0:1::/80 nhid 7", "row", BOTH
    ),
    "a row for a type of service": Case(
        "route add 10.96.3.0/24 dev e0 tos 8; route add 10.96.3.0/24 dev e1", "row"
    ),
    "a row of IPv6 for one source": Case(
        "-6 route add fd09::/80 from fd00:1::/64 dev e1; -6 route add fd09::/80 dev e0", "row", BOTH
    ),
    "a row whose source is of the loopback device": Case(
        "route add 10.96.3.0/24 dev e0 src 127.0.0.1", "row"
    ),
    "a row whose source is invalid": Case("route add 10.96.3.0/24 dev cali1 scope host", "row"),
    "an odd name of a device": Case(
        "link add cali+ type ifb; link set cali+ up; route add 10.96.3.0/24 dev cali+",
        "row",
        is_right=True,
    ),
    # Devices.
    "a part by another device": Case("route add 10.96.3.0/24 dev e1", "device"),
    "one of two next hops by another device": Case(
        "route add 10.96.3.0/24 nexthop via 10.224.0.1 dev e0 nexthop via 10.225.0.1 dev e1",
        "device",
    ),
    "an address of another device": Case("address add 10.96.3.1/32 dev e1", "device"),
    "no carrier": Case("link set e0 alias x,LOWER_UP,y", "carrier", is_unplugged=True),
    "no device": Case("", "carrier", options={"expectedDevs": ["e7", "e0"]}, is_right=True),
    # Default routes.
    "no default route": Case("", "ip", has_defaults=False),
    "no default route, and a route to all of it": Case(
        "route add 10.0.0.0/8 dev e0", "default", has_defaults=False
    ),
    "default routes in turns": Case(
        "route append default via 10.225.0.1 dev e1; route add 10.96.0.0/16 dev e1", "default"
    ),
    "default routes in turns, with an expected device": Case(
        "route append default via 10.225.0.1 dev e1", "default", options=OF_E0
    ),
    "a default route of hostrouting": Case(
        "route del default; route add default via 10.224.0.1 dev e0 metric 9; "
        "route add default via 10.225.0.1 dev e1 proto 142",
        "default",
    ),
    "IPv6 default routes of two metrics": Case(
        f"-6 route add default via {SECOND_ROUTER} dev e1 metric 2048",
        "device",
        BOTH,
        is_right=True,
    ),
    # Routes that decide.
    "another device around, and a longer route at the last addresses": Case(
        "route add 10.96.255.0/24 dev e0; route add 10.0.0.0/8 dev e1", "inside"
    ),
    "table local around": Case("route add 10.0.0.0/8 dev e1 table local", "device"),
    "table local around, for own addresses": Case(
        "-6 route add local fd09::/48 dev e1 table local", "device", BOTH
    ),
    "table local around, for a source": Case(
        "-6 route add fd00::/8 from fd00:1::/64 dev e1 table local", "row", BOTH
    ),
    "no route around, and one at the last addresses": Case(
        "route del default; route add 10.96.255.0/24 dev e0", "inside", options=OF_E0
    ),
    "a route to all of it by another device": Case("route add 10.0.0.0/8 dev e1", "device"),
    "an equal route of IPv6": Case(
        f"-6 route append default via {SECOND_ROUTER} dev e1 proto ra metric 1024", "device", BOTH
    ),
    "an equal route of IPv6 around": Case(
        "-6 route add fd09::/48 dev e0; -6 route append fd09::/48 dev e1", "device", BOTH
    ),
    "an equal route of IPv6 to a part": Case(
        "-6 route add fd09::/80 dev e0; -6 route append fd09::/80 dev e1", "device", BOTH
    ),
    "a gateway that a host passes over": Case(
        f"-6 route add fd09::/64 via {SECOND_ROUTER} dev e1; "
        f"-6 neigh replace {SECOND_ROUTER} dev e1 nud failed",
        "device",
        BOTH,
    ),
    # Rules.
    "a table by source": Case(
        "rule add pref 9 from 10.224.0.4 lookup 100; route add 10.0.0.0/8 dev e1 table 100", "rule"
    ),
    "a table by a source that a route names": Case(
        "route add local 10.9.9.0/24 dev lo; route add 10.96.3.0/24 dev e0 src 10.9.9.9; "
        "rule add pref 9 from 10.9.9.9 lookup 100; route add 10.96.3.0/24 dev e1 table 100",
        "rule",
    ),
    "a table by the source of an answer": Case(
        "route add local 10.9.9.0/24 dev lo; route replace default via 10.224.0.1 dev e0 src 10.9.9.9; "
        "rule add pref 9 from 10.9.9.9 lookup 100; route add 10.96.3.0/24 dev e1 table 100",
        "rule",
    ),
    "a table by protocol": Case(
        "rule add pref 9 ipproto tcp lookup 100; route add 10.0.0.0/8 dev e1 table 100", "rule"
    ),
    "a table for packets without a mark": Case(
        "rule add pref 9 fwmark 0x100/0xff lookup 100; route add 10.96.3.0/24 dev e1 table 100",
        "rule",
    ),
    "a table that is fine": Case(
        "rule add pref 9 to 10.96.0.9 lookup 100; route add default dev e0 table 100",
        "rule",
        is_right=True,
    ),
    "a rule that goes on elsewhere": Case(
        "rule add pref 9 goto 40000; rule add pref 40000 lookup 100; "
        "route add 10.0.0.0/8 dev e1 table 100",
        "rule",
    ),
    "a rule that refuses": Case("rule add pref 9 to 10.96.3.0/24 prohibit", "rule"),
    "main without its default route": Case(
        "rule del pref 32766; rule add pref 32766 lookup main suppress_prefixlength 0; "
        "rule add pref 32767 lookup 100; route add default dev e1 table 100",
        "rule",
    ),
    "no lookup of main": Case("rule add pref 9 to 192.0.2.1 lookup 9; rule del pref 32766", "ip"),
    # An older ip does not print each selector, so the lookup of main of the kernel counts.
    "a table between two lookups of main": Case(
        "rule add pref 9 lookup main; rule add pref 10 lookup 100; "
        "route add default dev e1 table 100",
        "rule",
        is_right=True,
    ),
    "no lookup of main of the kernel": Case(
        "rule add pref 9 lookup main; rule del pref 32766", "rule", is_right=True
    ),
    "a rule before table local": Case(
        "rule add pref 1 lookup local; rule add pref 0 to 10.0.0.0/8 lookup main; "
        "rule del pref 0 lookup local",
        "rule",
        is_right=True,
    ),
    "the rule of VRFs": Case("rule add pref 1000 l3mdev", "rule", is_right=True),
    "a worse route to a part": Case(
        "route add 10.96.3.0/24 dev e0; route add 10.96.3.0/24 dev e1 metric 9",
        "device",
        is_right=True,
    ),
    "multicast addresses": Case("", "row", ["192.0.0.0/2"], is_right=True),
    "a nexthop object": Case(
        "nexthop add id 7 via 10.224.0.1 dev e0; route add 10.96.3.0/24 nhid 7",
        "row",
        is_right=True,
    ),
}


@pytest.mark.parametrize("case", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_it_is_not_plain(node: WiredNode, tmp_path: Path, case: Case) -> None:
    """The script leaves a node that is not plain to the program, with a word for the condition."""
    if case.is_unplugged:
        for command in DEFAULTS:
            node.ip(command)
        unplug(node, "e0")
        case = case._replace(has_defaults=False)
    ran = run(node, tmp_path / "run", case)
    assert not ran.is_plain
    assert re.match(rf"{UNPROVEN}{case.word}(;| \()", ran.output), ran.output


def test_an_alias_that_looks_like_a_device(node: WiredNode, tmp_path: Path) -> None:
    """An alias of a device that looks like the line of another one does not give that one a
    carrier.
    """
    for command in DEFAULTS:
        node.ip(command)
    unplug(node, "e0")
    number = node.ip("link show dev e0").partition(":")[0]
    node.run("ip", "link", "set", "lo", "alias", f"x\n{number}: e0: <UP,LOWER_UP>")
    ran = run(node, tmp_path / "run", Case("", has_defaults=False))
    assert not ran.is_plain


def test_a_table_by_a_source_that_is_optimistic(node: WiredNode, tmp_path: Path) -> None:
    """A rule by an optimistic address is not plain, as the kernel sends from an address that it
    still tests.
    """
    settings = (f"net.ipv6.conf.{dev}.optimistic_dad=1" for dev in ("all", "e0"))
    node.run("sysctl", "-qw", *settings)
    commands = (
        "-6 address add fd00:1::7/64 dev e0; -6 rule add pref 9 from fd00:1::7 lookup 100; "
        "-6 route add fd09::/48 dev e1 table 100"
    )
    ran = run(node, tmp_path / "run", Case(commands, cidrs=BOTH))
    assert ran.output.startswith(f"{UNPROVEN}rule (9: from fd00:1::7 "), ran.output


def test_an_expired_route(node: WiredNode, tmp_path: Path) -> None:
    """A node with an expired route, which stays listed for a while though the kernel does not take
    it, is not plain.
    """
    for command in DEFAULTS:
        node.ip(command)
    node.ip(f"-6 route add fd09::/64 via {ROUTER} dev e0 proto ra metric 100 expires 1800")
    late = f'{IP} "$@" 2>&1 | sed "s/expires [0-9]*sec/expires -5sec/"'
    [path] = another_ip(tmp_path / "bin", late).values()
    for through in (), ("env", f"PATH={path}"):
        ran = run_script(node, tmp_path / "run", BOTH, options={"fabric": "off"}, through=through)
        assert ran.is_plain == (not through), ran.output


def test_a_dot_in_a_name_is_a_dot(node: WiredNode, tmp_path: Path) -> None:
    """The dot in a device's name is not matched by another character, so the carrier is that of the
    named device.
    """
    for dev in "e0x1", "e0.1":
        node.ip(f"link add {dev} type veth peer name {dev} netns {node.far.name}")
        node.far.set_up(dev)
        node.set_up(dev)
    node.ip("address add 10.226.0.4/16 dev e0.1")
    node.ip("route add default via 10.226.0.1 dev e0.1")
    assert run(node, tmp_path / "run", Case("", has_defaults=False, is_right=True)).is_plain
    unplug(node, "e0.1")
    ran = run(node, tmp_path / "run", Case("", has_defaults=False))
    assert ran.output.startswith(f"{UNPROVEN}carrier (e0.1)"), ran.output


@pytest.mark.parametrize("name", ["isp", "main", "local", "254"])
def test_tables_of_one_name(node: WiredNode, tmp_path: Path, name: str) -> None:
    """Two tables that a file names alike are read by their numbers."""
    for command in (
        "route add default via 10.224.0.1 dev e0",
        "rule add pref 9 from 10.224.0.4 lookup 101",
        "route add 10.0.0.0/8 dev e0 table 100",
        "route add 10.0.0.0/8 dev e1 table 101",
    ):
        node.ip(command)
    names = tmp_path / "rt_tables"
    names.write_text(f"255 local\n254 main\n253 default\n100 {name}\n101 {name}\n")
    through = ("unshare", "--mount", "sh", "-ec", f'mount --bind {names} {NAMES}; exec "$@"', "sh")
    ran = run_script(node, tmp_path / "run", [V4], options={"fabric": "off"}, through=through)
    assert ran.output.startswith(f"{UNPROVEN}rule (9: "), ran.output
    assert not prove_egress(kernel_of(node), [V4]).ok
