"""The ways of the packets that rules select by more than addresses, as the kernel judges them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_world
from support.announced_fabrics import Announced, report_under
from support.examples import FEW
from support.kernel import connect, kernel_of, needs_kernel
from support.node_worlds import World
from support.overlap_answers import claimed
from support.printed import overlap
from support.two_worlds import decisions, let_packets_in

from hostrouting import OverlapReport, prove_egress
from hostrouting.fib import Packet
from hostrouting.fib.rules import Policy
from hostrouting.host import Rule
from hostrouting.net.addresses import parse_cidr, parse_ipv4
from hostrouting.testing import KernelNode
from hostrouting.testing.route_texts import route

pytestmark = needs_kernel

#: Patterns of devices that lead to pods.
_PODS = "cilium_*", "wg*", "azv*"
_CIDRS = ["172.16.8.0/22", "10.96.0.0/16"]
#: The commands of true programs.
_RULE_SETS = {
    "Cilium": (
        "rule add fwmark 0x200/0xf00 pref 9 lookup 2004",
        "rule add fwmark 0xa00/0xf00 pref 10 lookup 2005",
        "rule add pref 100 lookup local",
        "rule del pref 0",
        "route add local default dev lo table 2004",
        "route add 10.0.0.71 dev cilium_host table 2005",
        "route add default via 10.0.0.71 dev cilium_host table 2005",
    ),
    "Tailscale": (
        "rule add pref 5210 fwmark 0x80000/0xff0000 lookup main",
        "rule add pref 5230 fwmark 0x80000/0xff0000 lookup default",
        "rule add pref 5250 fwmark 0x80000/0xff0000 unreachable",
        "rule add pref 5270 lookup 52",
        "route add 100.100.100.100 dev wg0 table 52",
    ),
    "AWS VPC CNI": (
        "rule add pref 512 to 10.96.0.9 lookup main",
        "rule add pref 1024 fwmark 0x80/0x80 lookup main",
        "rule add pref 1536 from 10.96.0.9 lookup 2",
    ),
    # Of its mode `transparent-vlan`, and of a second interface by cloud-init.
    "Azure CNI": (
        "rule add pref 9 fwmark 0x14d lookup 2",
        "route add default dev azv1 table 2",
        "rule add pref 100 from 10.225.0.4 lookup 101",
        "route add default via 10.225.0.1 dev eth1 table 101",
    ),
    "wg-quick": (
        "rule add not fwmark 0xca6c pref 32765 lookup 51820",
        "rule add pref 32764 lookup main suppress_prefixlength 0",
        "route add default dev wg0 table 51820",
    ),
}


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node whose routes are right, next to a connected fabric."""
    with KernelNode.made() as made:
        connect(
            made,
            eth0="10.224.0.4/16",
            eth1="10.225.0.4/16",
            ib0="172.16.1.4/16",
            cilium_host="10.0.0.71/32",
        )
        made.add_link("wg0")
        made.add_link("azv1")
        made.ip("route append default via 10.224.0.1 dev eth0")
        made.ip("route append 172.16.8.0/22 via 10.224.0.1 dev eth0")
        yield made


def _notes(node: KernelNode, *commands: str, allowed: Sequence[str] = _PODS) -> list[str]:
    for command in commands:
        node.ip(command)
    report = prove_egress(kernel_of(node), _CIDRS, allowed_devs=allowed)
    assert report.ok
    return [*map(str, report.notes)]


@pytest.mark.parametrize("commands", _RULE_SETS.values(), ids=_RULE_SETS)
def test_true_rule_sets_are_fine(node: KernelNode, commands: Sequence[str]) -> None:
    """Rules of programs that leave expected addresses alone get no note, and are printed as `ip`
    prints them.

    A node with them that stays right is not held before the fabric is connected; one that does not
    is.
    """
    assert [note for note in _notes(node, *commands) if "policy-rule" in note] == []
    kernel = kernel_of(node)
    shown = [" ".join(line.split()) for line in node.ip("rule show").splitlines()]
    assert [line.partition(" suppress")[0] for line in shown] == [*map(str, kernel.rules())]
    announced = Announced([("ib1", "172.17.1.4")])
    cidrs = [*_CIDRS, "172.17.8.0/22"]
    node.add_link("ib1", up=False)
    fabric = announced.as_fabric(kernel)
    report = report_under(node, fabric, cidrs, allowed=_PODS)
    [finding] = report.findings
    assert finding[0] == "172.17.8.0/22"
    assert finding[1].kind == "announced"
    node.ip("route append 172.17.8.0/22 via 10.224.0.1 dev eth0")
    report = report_under(node, fabric, cidrs, allowed=_PODS)
    assert report.ok
    announced.connect(node)
    assert prove_egress(kernel, cidrs, allowed_devs=_PODS).ok


def test_packets_and_the_device_by_which_they_leave_are_named(node: KernelNode) -> None:
    """A note names the packets of a rule whose table leads into the fabric, and the device through which
    they leave.

    A later rule for the same packets, and a rule for a device that is not inverted, have no note.
    """
    notes = _notes(
        node,
        "route add 172.16.0.0/16 dev ib0 table 88",
        "route add default dev wg0 table 89",
        "rule add pref 50 fwmark 0x200/0xf00 lookup 88",
        "rule add pref 51 fwmark 0x200/0xf00 to 172.16.0.0/16 lookup 89",
        "rule add pref 60 iif ib0 ipproto tcp dport 443 lookup 88",
        "rule add pref 70 uidrange 1000-2000 prohibit",
        "rule add pref 80 oif ib0 lookup 88",
        "rule add pref 90 uidrange 0-0 lookup main",
        "rule add pref 91 not oif wg0 lookup 88",
        allowed=(),
    )
    route = "172.16.0.0/16 dev ib0 table 88 scope link"
    leave = overlap("172.16.8.0 to 172.16.11.255", "ib0", route=route)
    assert notes == [
        f"note: policy-rule: packets with mark 0x200/0xf00: {leave}",
        f"note: policy-rule: packets that arrive through ib0, of protocol tcp, to port 443: {leave}",
        f"note: policy-rule: packets other than those with oif wg0: {leave}",
    ]


def test_packets_that_leave_by_a_router_of_the_fabric_are_named(node: KernelNode) -> None:
    """A note names packets that a rule leads to a router of the fabric."""
    by_router = "10.96.0.0/17 via 172.16.0.1 dev ib0 table 88"
    [note] = _notes(node, f"route add {by_router}", "rule add pref 50 fwmark 1 lookup 88")
    leave = overlap("10.96.0.0 to 10.96.127.255", "ib0", route=by_router)
    assert note == f"note: policy-rule: packets with mark 0x1: {leave}"


class _Judgement:
    """What a report has about addresses, and about packets."""

    def __init__(self, report: OverlapReport, allowed: Iterable[str]) -> None:
        self.fine = {
            dev
            for dev in small_world.DEVICES
            if any(fnmatchcase(dev, pattern) for pattern in allowed)
        }
        self.fine |= set(report.expected_devs)
        self.found = {address for cidr in report.cidrs for address in claimed(report, cidr.cidr)}
        notes = [note for note in report.notes if note.kind == "policy-rule"]
        # A note names three ranges at most.
        self.undecided = [
            note.subject
            for note in notes
            if note.reason.startswith("the model ") or note.reason.endswith("more ranges")
        ]
        # A range that a rule blocks has no devices.
        way = overlap("", "([^(]*)", route="").removesuffix(" ()").rpartition(", ")[2]
        pattern = re.compile(rf"([\d.]+)(?: to ([\d.]+))?: (?:blocked|[^;]*?{way})")
        reasons = [
            (note.subject, *match.groups())
            for note in notes
            for match in pattern.finditer(note.reason)
        ]
        assert {note.subject for note in notes} == {subject for subject, *_ in reasons}.union(
            self.undecided
        )
        self._reported = [
            (packets, parse_ipv4(a), parse_ipv4(b or a), devs or "")
            for packets, a, b, devs in reasons
        ]

    def wrong(self, answer: str) -> set[str]:
        """Return the devices of an answer of the kernel that are not allowed."""
        return (
            set()
            if answer.startswith("local")
            else {*re.findall(r" dev (\S+)", answer)} - self.fine
        )

    def judges(self, address: int, devs: Iterable[str], subject: str = "") -> bool:
        return any(
            first <= address <= last
            and any(dev in named for dev in devs)
            and subject in {"", packets}
            for packets, first, last, named in self._reported
        )


def _special(rule: Rule) -> Rule:
    rule = rule._replace(
        priority=min(rule.priority, 100), table=rule.table and 100, destination=(0, 0)
    )
    return rule if rule.packets else rule._replace(mark=1, mark_mask=3)


@st.composite
def _worlds(draw: st.DrawFn) -> World:
    """A node whose default route is right, with routes aside, and rules that lead there."""
    places = st.sampled_from(["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/24", "10.1.0.128/25"])
    aside = st.tuples(places, small_world.devices(), st.sampled_from([100, 100, 100, 254]))
    asides = draw(st.lists(aside, min_size=1, max_size=4))
    special = st.lists(small_world.selecting_rules().map(_special), min_size=1, max_size=3)
    others = [route(f"{place} dev {dev} table {table} metric 9") for place, dev, table in asides]
    return World(
        addresses=[("e0", ("10.1.0.1/16", None)), ("e1", ("192.168.7.1/24", None))],
        routes=[route("default via 10.1.0.200 dev e0 proto dhcp"), *others],
        rules=draw(st.lists(small_world.rules(), max_size=1)) + draw(special),
        cidrs=["10.1.0.0/24", "10.3.0.0/29"],
        allowed=draw(st.sampled_from([(), ("e1",)])),
    )


@settings(max_examples=FEW, suppress_health_check=[HealthCheck.too_slow])
@given(world=_worlds(), packets=st.lists(small_world.packets([0]), min_size=20, max_size=40))
def test_the_kernel_leads_astray_what_is_reported_and_nothing_else(
    world: World, packets: list[Packet]
) -> None:
    """A packet that leaves through a wrong device belongs to a finding or a note; a note's own packets
    leave as described.
    """
    cidrs = [*map(parse_cidr, world.cidrs)]
    places = [
        place
        for place in small_world.places()
        if any(not (place ^ first) >> 32 - length for first, length in cidrs)
    ]
    with KernelNode.made() as node:
        let_packets_in(node)
        world.arrange(node)
        kernel = kernel_of(node)
        judged = _Judgement(
            prove_egress(kernel, world.cidrs, allowed_devs=world.allowed), world.allowed
        )
        special = [rule for rule in kernel.rules() if rule.packets]
        packets_of_rules = [
            (rule.packets, _typical(rule)) for rule in special if _is_typical(rule, special)
        ]
        packets_of_rules += [("", packet) for packet in packets]
        pairs = [
            (of, packet._replace(destination=place, oif=""))
            for of, packet in packets_of_rules
            for place in places
        ]
        answers = decisions(node, [packet for _, packet in pairs])
    for (of, packet), answer in zip(pairs, answers, strict=True):
        wrong = judged.wrong(answer)
        if packet.destination not in judged.found and not (
            judged.undecided and (not of or of in judged.undecided)
        ):
            reported = judged.judges(packet.destination, wrong or small_world.DEVICES, of)
            assert reported == bool(wrong) or (reported and not of), (of, packet, answer)


def _typical(rule: Rule) -> Packet:
    """Return a packet that a rule selects by its mark, device, protocol, ports and user."""
    ranges = rule.source_ports, rule.destination_ports, rule.uids
    numbers = [some.first if some else 0 for some in ranges]
    source = parse_ipv4("198.51.100.9") if rule.iif in small_world.DEVICES else 0
    return Packet(0, source, 0, rule.mark, rule.iif or "lo", "", rule.ip_protocol or 17, *numbers)


def _is_typical(rule: Rule, special: Sequence[Rule]) -> bool:
    """Return True if the kernel can look up a packet that this rule selects, and no other
    special one.
    """
    packet = _typical(rule)
    unasked = (
        rule.inverted
        or rule.ip_protocol == 1
        or (packet.source and rule.uids)
        or rule.iif == "absent0"
    )
    others = Policy(other for other in special if other.packets != rule.packets)
    return any(Policy([rule]).selected(packet)) and not unasked and not any(others.selected(packet))
