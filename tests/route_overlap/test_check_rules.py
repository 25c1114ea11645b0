"""Findings of a check that rules, routes that refuse, and sources decide."""

from functools import partial

import pytest
from support.kernel import connect, kernel_of, needs_kernel, uplink
from support.overlap_checks import prove

from hostrouting.base.findings import NodeFinding
from hostrouting.fib import Fib
from hostrouting.host import Route, Rule
from hostrouting.net.addresses import parse_cidr
from hostrouting.route_overlap.check import prove_egress
from hostrouting.route_overlap.explain import explain_routing
from hostrouting.route_overlap.report import Finding
from hostrouting.testing import KernelNode, MemoryBackend
from hostrouting.testing.contracts.routes import arrange


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit"])
def test_a_refusal_of_the_kernel_names_the_route_that_blocks(
    node: MemoryBackend, kind: str
) -> None:
    """A route that refuses packets is named by the table, as the kernel answers with an errno
    alone; two side by side are one finding.
    """
    node.add_route("10.96.0.0/24", kind=kind)
    node.add_route("10.96.1.0/24", kind=kind)
    [finding] = prove(node, "10.96.0.0/16").findings
    both = f"{kind} 10.96.0.0/24; {kind} 10.96.1.0/24"
    program = "an administrator" if kind == "blackhole" else None
    assert finding == Finding(
        kind="blocked", first="10.96.0.0", last="10.96.1.255", route=both, program=program
    )


def test_a_route_for_a_type_of_service_blocks_no_other_packets(node: MemoryBackend) -> None:
    """A refusing route for one type of service is passed over, and the less specific one is
    named.
    """
    node.insert_route(Route.parse("10.96.0.0/24", kind="blackhole", tos=8, protocol=3))
    arrange(node, "prohibit 10.96.0.0/16")
    [finding] = prove(node, "10.96.0.0/24").findings
    assert finding.kind == "blocked"
    assert finding.route == "prohibit 10.96.0.0/16"


@pytest.mark.parametrize(
    "rule",
    [
        Rule(100, action="blackhole", destination=parse_cidr("10.97.0.0/16")),
        Rule(100, action="blackhole", source=parse_cidr("10.97.0.0/16")),
        Rule(100, action="blackhole", destination=parse_cidr("10.96.0.0/16"), inverted=True),
        Rule(100, table=88, destination=parse_cidr("10.97.0.0/16")),
    ],
    ids=["destination", "source", "not", "table"],
)
def test_a_rule_for_other_packets_blocks_nothing(node: MemoryBackend, rule: Rule) -> None:
    """A rule for other packets is passed over, and the route that refuses is named."""
    arrange(node, "prohibit 10.96.0.0/16", "blackhole 10.96.0.0/24 table 88")
    # The rule is added last, since it may block other destinations.
    node.add_rule(rule)
    [finding] = prove(node, "10.96.0.0/24").findings
    assert finding.kind == "blocked"
    assert finding.route == "prohibit 10.96.0.0/16"


@pytest.mark.parametrize("rules", [(), (Rule(50, table=100, mark=1, mark_mask=1),)])
def test_an_exit_is_a_device_by_which_expected_addresses_leave(
    node: MemoryBackend, rules: tuple[Rule, ...]
) -> None:
    """An expected device through which no expected address leaves is not an exit, whether rules select
    some packets or not.
    """
    node.add_link("cilium_host")
    node.add_route("10.96.0.0/16", dev="cilium_host")
    for rule in rules:
        node.add_rule(rule)
    report = prove_egress(node, ["10.96.0.0/16"], allowed_devs=["cilium_*"])
    assert report.ok
    assert report.expected_devs == ("eth0",)
    assert report.outbound_devs == ()


@needs_kernel
@pytest.mark.parametrize(("option", "cidr"), [("-4", "10.96.0.0/24"), ("-6", "fd00:5::/64")])
def test_a_built_in_rule_that_is_gone_is_named(option: str, cidr: str) -> None:
    """A built-in rule that is gone has a warning whose command, with local's first, makes the node
    right.

    A rule that was moved is not one that is gone, and one for fewer packets does not replace it.
    """
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16")
        node.add_address("eth0", "fd00:1::4/64")
        node.add_route(cidr, gateway={"-4": "10.224.0.1", "-6": "fd00:1::1"}[option], dev="eth0")
        backend = kernel_of(node)
        prove_here = partial(prove_egress, backend, [cidr], expected_devs=["eth0"])
        node.ip(option, "rule add pref 200 lookup local")
        for number in "0", "32766":
            node.ip(option, "rule del pref", number)
        node.ip(option, "rule add pref 90 lookup main suppress_prefixlength 0")
        node.ip(option, "rule add pref 91 iif eth0 lookup main")
        assert [str(note) for note in prove_here().notes] == [str(lost("32766", "main", option))]
        node.ip(option, "rule del pref 200")
        node.ip(option, "rule del pref 90")
        report = prove_here()
        assert not report.ok
        assert report.notes == (lost("0", "local", option), lost("32766", "main", option))
        assert [note.text in report.advice for note in report.notes] == [True, True]
        for note in report.notes:
            node.ip(note.command.removeprefix("ip "))
        report = prove_here()
        assert report.ok
        assert report.notes == ()


def lost(number: str, table: str, option: str) -> NodeFinding:
    ip, end = {"-4": ("ip", ""), "-6": ("ip -6", " once any rule is added")}[option]
    return NodeFinding(
        "lost-rule",
        f"the IPv{option[1]} rule '{number}: from all lookup {table}'",
        f"is gone, so the kernel does not search the table{end}",
        "warning",
        command=f"{ip} rule add pref {number} lookup {table}",
    )


def test_the_source_that_the_kernel_chooses_is_looked_up(node: MemoryBackend) -> None:
    """A rule for packets from eth0's address is an overlap, although a plain lookup leaves through
    eth0.
    """
    arrange(node, "10.96.0.0/16 dev ib0 table 88")
    node.add_rule(Rule(100, table=88, source=parse_cidr("10.224.0.4/32")))
    [finding] = prove(node, "10.96.0.0/12").findings
    assert finding.kind == "overlap"
    assert finding.first == "10.96.0.0"
    assert finding.last == "10.96.255.255"
    assert finding.route == "10.96.0.0/16 dev ib0 table 88 scope link"


@needs_kernel
def test_a_rule_that_came_and_went_changes_no_words() -> None:
    """The findings of a node and of its model stay the same after a rule came and went, though the
    kernel names table local from then on.
    """
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
        node.ip("route append default via 10.224.0.1 dev eth0")
        backend = kernel_of(node)
        lines = prove_egress(backend, ["172.16.1.4/32"]).lines()
        for verb in "add", "del":
            node.ip(f"rule {verb} priority 9 to 10.9.0.0/16 lookup 88")
        model = Fib.of(backend.links(), backend.routes(), backend.rules())
        assert (
            lines
            == prove_egress(backend, ["172.16.1.4/32"]).lines()
            == prove_egress(model, ["172.16.1.4/32"]).lines()
        )


@needs_kernel
@pytest.mark.parametrize(
    ("rules", "named", "program", "command"),
    [
        (
            ["rule add pref 5270 lookup 52"],
            "172.16.0.0/16 dev ib0 table 52 scope link, by the rule 5270: from all lookup 52, probably added by Tailscale",
            "Tailscale",
            "ip rule del pref 5270",
        ),
        (
            [
                "rule add pref 32764 not fwmark 0xca6c lookup 51820",
                "rule add pref 32763 lookup main suppress_prefixlength 0",
            ],
            "172.16.0.0/16 dev ib0 table 51820 scope link, by the rule 32764: not from all fwmark 0xca6c lookup 51820, probably added by wg-quick",
            "wg-quick",
            "ip rule del pref 32764",
        ),
        (
            ["rule add pref 100 to 172.16.8.0/22 unreachable"],
            "100: from all to 172.16.8.0/22 unreachable",
            None,
            "ip rule del pref 100",
        ),
        (
            ["rule add pref 100 to 10.9.0.0/16 lookup 52", "rule add pref 100 lookup 90"],
            "172.16.0.0/16 dev ib0 table 90 scope link, by the rule 100: from all lookup 90",
            None,
            "ip rule del pref 100 from all lookup 90",
        ),
    ],
    ids=["tailscale", "wg-quick", "unreachable", "two-of-one-priority"],
)
def test_the_rule_that_decides_has_a_command_that_deletes_it(
    rules: list[str], named: str, program: str | None, command: str
) -> None:
    """A rule that leads astray is named with its selectors, its table and its program; its deletion
    by the offered command makes the node right.
    """
    with KernelNode.made() as node:
        uplink(node, ib0="10.9.0.4/24")
        for table in ("52", "90", "51820"):
            node.ip(f"route add 172.16.0.0/16 dev ib0 table {table}")
        for rule in rules:
            node.ip(rule)
        report = prove_egress(kernel_of(node), ["172.16.8.0/22"], expected_devs=["eth0"])
        [part] = explain_routing(kernel_of(node), ["172.16.8.0/22"])[0].parts
        [(_, finding)] = report.findings
        assert finding.program == program
        assert finding.command == command
        assert report.lines()[0].endswith(f"({named})")
        assert f"or run: {command}" in report.steps
        assert str(part.rule or part.route) in named
        node.ip(command.removeprefix("ip "))
        assert prove_egress(kernel_of(node), ["172.16.8.0/22"], expected_devs=["eth0"]).ok
