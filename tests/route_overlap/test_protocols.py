"""Rules by the protocol of packets, of which each must leave right, whichever a lookup is for."""

from collections.abc import Sequence

import pytest
from support.kernel import connect, kernel_of, needs_kernel, uplink
from support.printed import overlap

from hostrouting import OverlapReport, RouteOverlapConfig, explain_routing, prove_egress
from hostrouting.fib import Fib
from hostrouting.net.rules import Rule
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

_CIDR = "172.16.8.0/22"
_TABLES = {
    "main leads into the fabric": ("main", "100"),
    "another table leads into the fabric": ("100", "main"),
}


def _reports(node: KernelNode) -> list[OverlapReport]:
    kernel = kernel_of(node)
    model = Fib.of(kernel.links(), kernel.routes(), kernel.rules())
    reports = [
        prove_egress(routing, [_CIDR], expected_devs=["eth0"]) for routing in (kernel, model)
    ]
    assert reports[0] == reports[1]
    return reports


def _connected(node: KernelNode, *, good: str, bad: str) -> None:
    connect(node, eth0="10.224.0.4/16", ib0="172.17.1.4/16")
    node.ip(f"route add default via 10.224.0.1 dev eth0 table {good}")
    node.ip(f"route add {_CIDR} dev ib0 table {bad}")


@pytest.mark.parametrize(("bad", "good"), _TABLES.values(), ids=_TABLES)
@pytest.mark.parametrize("protocol", ["udp", "tcp", "icmp", "sctp"])
def test_one_protocol_that_leaves_wrong_is_enough(protocol: str, bad: str, good: str) -> None:
    """One protocol whose packets leave wrong is a finding with its route, whichever of the tables
    decides a plain lookup, which is for UDP.
    """
    with KernelNode.made() as node:
        _connected(node, good=good, bad=bad)
        node.ip(f"rule add ipproto {protocol} lookup 100 pref 50")
        report = _reports(node)[0]
    decider = f"{_CIDR} dev ib0 scope link"
    if bad == "100":
        number = "132" if protocol == "sctp" else protocol
        rule = f"50: from all ipproto {number} lookup 100"
        decider = f"{_CIDR} dev ib0 table 100 scope link, by the rule {rule}"
    assert report.lines() == [f"{_CIDR}: overlap 172.16.8.0-172.16.11.255 through ib0 ({decider})"]


def test_a_rule_that_blocks_a_protocol_is_named_once() -> None:
    """A rule that blocks a protocol is named once, with its selector, in the finding and by
    `explain`.
    """
    with KernelNode.made() as node:
        _connected(node, good="main", bad="100")
        node.ip("rule add ipproto icmp blackhole pref 50")
        report = _reports(node)[0]
        [explanation] = explain_routing(kernel_of(node), [_CIDR])
    rule = "50: from all ipproto icmp blackhole"
    assert report.lines() == [f"{_CIDR}: blocked 172.16.8.0-172.16.11.255 ({rule})"]
    [part] = explanation.parts
    assert part.route == f"default via 10.224.0.1 dev eth0; {rule}"
    assert part.rule is None


def test_the_note_names_the_packets() -> None:
    """A finding for packets of protocols that no rule names has a note with these packets, and
    `explain` has both devices.
    """
    section = RouteOverlapConfig(expected_cidrs=(_CIDR,), expected_devs=("eth0",))
    with KernelNode.made() as node:
        _connected(node, good="100", bad="main")
        node.ip("rule add ipproto udp lookup 100 pref 50")
        report = _reports(node)[0]
        [explanation] = explain_routing(kernel_of(node), [_CIDR], overlap=section)
    [note] = [str(note) for note in report.notes if note.kind == "policy-rule"]
    assert note == (
        "note: policy-rule: packets of a protocol that no rule names: "
        + overlap("172.16.8.0 to 172.16.11.255", "ib0", route="172.16.8.0/22 dev ib0 scope link")
    )
    [part] = explanation.parts
    assert (part.by, part.is_expected) == ("eth0+ib0", False)
    assert (
        part.route == "default via 10.224.0.1 dev eth0 table 100; 172.16.8.0/22 dev ib0 scope link"
    )


@pytest.mark.parametrize(
    ("beside", "notes"),
    [("realms 5", 0), ("tun_id 7", 1), ("not tun_id 7 to 10.0.0.0/8", 0)],
)
def test_beside_realms_and_tunnels(beside: str, notes: int) -> None:
    """A rule with realms selects all packets, and one with a tunnel's id none that a program sends,
    which is a note.
    """
    with KernelNode.made() as node:
        _connected(node, good="main", bad="100")
        node.ip("route add default via 10.224.0.1 dev eth0 table 200")
        node.ip(f"rule add {beside} lookup 200 pref 40")
        node.ip("rule add ipproto tcp lookup 200 pref 50")
        assert _reports(node)[0].ok
        node.ip("rule del pref 40")
        node.ip(f"rule add {beside} lookup 100 pref 40")
        report = _reports(node)[0]
    # `not tun_id 7` selects all packets.
    assert report.ok is (beside == "tun_id 7")
    assert [note.kind for note in report.notes] == ["policy-rule"] * notes


@pytest.mark.parametrize(("inverted", "is_right"), [("", True), ("not", False)])
def test_beside_a_selector_that_nobody_understands(
    inverted: str, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule with an unknown selector selects no packet of a lookup, so the protocols are checked
    without the rule, and a note names it.
    """
    with KernelNode.made() as node:
        _connected(node, good="main", bad="100")
        node.ip(f"rule add {inverted} dsfield 0x10 lookup 100 pref 40")
        node.ip("rule add ipproto tcp lookup main pref 50")
        kernel = kernel_of(node)
        label = ((26, b"\0\0\0\x04"),)
        rules = [rule._replace(tos=0, unknown=label if rule.tos else ()) for rule in kernel.rules()]
        monkeypatch.setattr(kernel, "rules", lambda _family: rules)
        report = prove_egress(kernel, [_CIDR], expected_devs=["eth0"])
    assert report.ok is is_right
    named = [note.subject for note in report.notes if note.kind == "policy-rule"]
    assert named == ["packets with flowlabel 0x00000004"] * is_right


def test_a_rule_by_mark_has_one_note() -> None:
    """A rule by mark whose table has many routes has one note, which names three ranges and counts
    the rest.
    """
    with KernelNode.made() as node:
        _connected(node, good="main", bad="200")
        for number in range(6):
            node.ip(f"route add 172.16.9.{8 * number}/32 dev ib0 table 100")
        node.add_rule(Rule(50, table=100, mark=1, mark_mask=0xFF))
        report = _reports(node)[0]
    assert report.ok
    [note] = map(str, report.notes)
    ranges = [
        overlap(first, "ib0", route=f"{first} dev ib0 table 100 scope link")
        for first in ("172.16.9.0", "172.16.9.8", "172.16.9.16")
    ]
    listed = "; ".join([*ranges, "and 3 more ranges"])
    assert note == f"note: policy-rule: packets with mark 0x1/0xff: {listed}"


def test_findings_of_several_protocols_are_in_order() -> None:
    """Findings of plain lookups and of protocols are one list by address, also with rules by a
    network.
    """
    with KernelNode.made() as node:
        _connected(node, good="main", bad="100")
        node.ip("route add 172.16.9.0/24 dev ib0")
        node.ip("rule add ipproto tcp to 172.16.8.0/24 lookup 100 pref 50")
        node.ip("rule add ipproto icmp to 172.16.10.0/24 lookup 100 pref 50")
        report = _reports(node)[0]
        [explanation] = explain_routing(kernel_of(node), [_CIDR])
    beside = f"{_CIDR} dev ib0 table 100 scope link, by the rule 50: from all"
    assert report.lines() == [
        f"{_CIDR}: overlap 172.16.8.0-172.16.8.255 through ib0 ({beside} to 172.16.8.0/24 ipproto tcp lookup 100)",
        f"{_CIDR}: overlap 172.16.9.0-172.16.9.255 through ib0 (172.16.9.0/24 dev ib0 scope link)",
        f"{_CIDR}: overlap 172.16.10.0-172.16.10.255 through ib0 ({beside} to 172.16.10.0/24 ipproto icmp lookup 100)",
    ]
    assert [(part.by, part.span) for part in explanation.parts] == [
        ("eth0+ib0", "172.16.8.0 - 172.16.8.255"),
        ("ib0", "172.16.9.0 - 172.16.9.255"),
        ("eth0+ib0", "172.16.10.0 - 172.16.10.255"),
        ("eth0", "172.16.11.0 - 172.16.11.255"),
    ]


@pytest.mark.parametrize("by_protocol", [(), ("-6 rule add pref 80 ipproto tcp lookup 99",)])
def test_a_suppressed_next_hop_leaves_its_flows_undecided(by_protocol: Sequence[str]) -> None:
    """If a rule suppresses the group of one next hop of an IPv6 route, a lookup shows the way of
    one flow, so the addresses are undecided, also for the protocols that a rule selects.
    """
    with KernelNode.made() as node:
        uplink(node)
        node.add_link("eth1")
        for command in (
            "link set eth1 group 7",
            "-6 addr add fd24::4/64 dev eth0 nodad",
            "-6 addr add fd25::4/64 dev eth1 nodad",
            "-6 route add default via fd24::1 dev eth0",
            "-6 route add fd96::/64 nexthop via fd24::7 dev eth0 nexthop via fd25::7 dev eth1",
            "-6 rule add pref 90 lookup main suppress_ifgroup 7",
            *by_protocol,
        ):
            node.ip(command)
        report = prove_egress(kernel_of(node), ["fd96::/64"], expected_devs=["eth0", "eth1"])
    [(_, finding)] = report.findings
    assert (finding.kind, finding.cause) == ("undecided", "by-flow")
    assert "suppress_ifgroup" in finding.sentence()
