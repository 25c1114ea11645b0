"""The model answers "unknown" where it has no rule for the kernel's decision, and only there."""

import errno

import pytest
from support.kernel import connect, kernel_of, needs_kernel, uplink
from support.printed import NO_GROUP

from hostrouting.fib import Fib, Packet, UnknownDecisionError
from hostrouting.host import IPV6, Device, ObservedRoute, Rule
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import parse_ipv4
from hostrouting.net.rules import FIRST_RULES, Range
from hostrouting.testing import KernelNode

DEFAULT = ObservedRoute.parse("0.0.0.0/0", "eth0")
ETH0 = Device("eth0", 2, up=True)
NINE = 9 << 24
EIGHT = 8 << 24
#: Blocks the packets that it selects, so that a decision shows if it was applied.
BLOCKING = Rule(100, action="blackhole", destination=(NINE, 8))
DSCP = ((30, b"\x08"),)
SINGLE_PORT = (28, b"\xff\xff"), (29, b"\xff\xff")


def model(backend: NetlinkBackend) -> Fib:
    return Fib.of(backend.links(), backend.routes(), backend.rules())


def fib(*rules: Rule) -> Fib:
    return Fib.of([ETH0], [DEFAULT], [FIRST_RULES[0], *rules, *FIRST_RULES[1:]])


@pytest.mark.parametrize("packet", [Packet(NINE, oif="eth0"), Packet(NINE, iif="eth0")])
def test_a_vrf_makes_packets_of_a_device_unknown(packet: Packet) -> None:
    """Packets of a device are undecided on a node with a VRF, as the kernel chooses tables by VRF;
    packets without a device are decided.
    """
    node = Fib.of([ETH0, Device("blue", 3, up=True, kind="vrf")], [DEFAULT])
    decision = node.decide(packet)
    assert decision.route is None
    assert decision.errno == 0
    assert decision.unknown == "the model cannot decide which packets belong to the node's VRF"
    [answer] = node.lookup([NINE])
    assert answer.route == DEFAULT


@pytest.mark.parametrize(
    ("rule", "selector"),
    [
        (BLOCKING._replace(unknown=DSCP), "dscp"),
        (BLOCKING._replace(unknown=((26, b"\0\0\0\x01"),)), "flowlabel"),
        (BLOCKING._replace(unknown=((99, b""),)), "attribute 99"),
        (BLOCKING._replace(unknown=((28, b"\xff\0"),)), "sport"),
        (BLOCKING._replace(action="action 9"), "action 9"),
    ],
)
def test_a_selector_beyond_the_model_is_named(rule: Rule, selector: str) -> None:
    """A packet that a rule with an unknown selector may select is undecided, and the error names
    the rule and the selector.
    """
    reason = f"the model cannot apply rule 100: {selector}"
    assert fib(rule).decide(Packet(NINE)).unknown == reason
    with pytest.raises(UnknownDecisionError) as caught:
        fib(rule).lookup([NINE])
    assert str(caught.value) == reason


def test_the_group_of_a_device_that_came_meanwhile() -> None:
    """A rule that suppresses a device group leaves a route undecided if its device is missing from
    the model.
    """
    node = Fib.of([ETH0], [DEFAULT], [Rule(100, table=254, suppress_group=5)])
    assert node.decide(Packet(NINE)).route == DEFAULT
    late = Fib.of([], [DEFAULT], node.rules())
    assert late.decide(Packet(NINE)).unknown == f"{NO_GROUP}eth0"
    grouped = Fib.of([ETH0._replace(group=5)], [DEFAULT], node.rules())
    assert grouped.decide(Packet(NINE)).errno


@pytest.mark.parametrize("missing", FIRST_RULES[3:])
def test_a_built_in_rule_of_ipv6_that_is_missing(missing: Rule) -> None:
    """A packet is undecided while a built-in IPv6 rule is missing, since the kernel searches its
    table until the first rule is added.
    """
    packet = Packet(1, family=IPV6)
    routes = [ObservedRoute.parse("::/0", "eth0", metric=1024, table=missing.table)]
    rules = [rule for rule in FIRST_RULES if rule != missing]
    assert "built-in rule" in Fib.of([ETH0], routes, rules).decide(packet).unknown
    rules.append(Rule(9, table=88, family=IPV6))
    assert Fib.of([ETH0], routes, rules).decide(packet).errno == errno.ENETUNREACH


def test_an_unknown_selector_counts_only_if_the_known_ones_fit() -> None:
    """A rule with an unknown selector is passed over if one of its known selectors does not fit the
    packet.
    """
    decision = fib(BLOCKING._replace(unknown=DSCP)).decide(Packet(EIGHT))
    assert decision.route == DEFAULT
    assert decision.unknown == ""


def test_an_earlier_rule_decides_in_spite_of_a_later_unknown_one() -> None:
    """A packet that an earlier rule decides is decided, whatever selectors a later rule has."""
    later = BLOCKING._replace(priority=40000, unknown=DSCP)
    node = Fib.of([ETH0], [DEFAULT], [*FIRST_RULES, later])
    assert node.decide(Packet(NINE)).route == DEFAULT


def test_an_inverted_rule_with_an_unknown_selector_can_be_certain() -> None:
    """An inverted rule applies to a packet that its known selector does not fit, whatever the
    unknown selector is; other packets are undecided.
    """
    node = fib(BLOCKING._replace(inverted=True, unknown=DSCP))
    assert node.decide(Packet(EIGHT)).errno
    assert node.decide(Packet(NINE)).unknown


def test_the_masks_of_single_ports_mask_nothing() -> None:
    """The model decides a rule whose single ports have a full mask, as newer kernels show them."""
    source = Range(1000, 1000)
    destination = Range(53, 53)
    node = fib(
        BLOCKING._replace(source_ports=source, destination_ports=destination, unknown=SINGLE_PORT)
    )
    assert node.decide(Packet(NINE, source_port=1000, destination_port=53)).errno
    other = node.decide(Packet(NINE, source_port=1001, destination_port=53))
    assert other.route == DEFAULT
    assert other.unknown == ""


@needs_kernel
def test_a_single_port_as_the_kernel_shows_it_is_known() -> None:
    """The model decides a rule with single ports as the running kernel shows the rule."""
    with KernelNode.made() as kernel:
        kernel.add_rule(
            BLOCKING._replace(source_ports=Range(1000, 1000), destination_ports=Range(53, 53))
        )
        read = kernel_of(kernel).rules()
    node = Fib.of([ETH0], [DEFAULT], read)
    assert node.decide(Packet(NINE, source_port=1000, destination_port=53)).errno
    assert node.decide(Packet(NINE, source_port=1000)).route == DEFAULT


@needs_kernel
@pytest.mark.parametrize("was_changed", [False, True])
def test_the_order_of_local_and_main_is_unknown(*, was_changed: bool) -> None:
    """A packet for which local and main disagree is undecided: once a rule was changed, the kernel
    searches local before main for good, and readings do not show if one was.
    """
    with KernelNode.made() as node:
        connect(node, eth0="192.168.7.1/24")
        node.ip("route add local 10.0.0.0/8 dev lo table local")
        node.ip("route add 10.1.0.0/16 dev eth0")
        if was_changed:
            node.add_rule(BLOCKING)
            node.remove_rule(BLOCKING)
        backend = kernel_of(node)
        [answer] = backend.lookup([10 << 24 | 1 << 16])
        assert answer.route is not None
        assert answer.route.destination == ("10.0.0.0/8" if was_changed else "10.1.0.0/16")
        known = model(backend)
        with pytest.raises(UnknownDecisionError, match="used only if no rule was ever changed"):
            known.lookup([10 << 24 | 1 << 16])
        others = [10 << 24 | 2 << 16, NINE, 192 << 24 | 168 << 16 | 7 << 8 | 9]
        of_model = [one.route and one.route.destination for one in known.lookup(others)]
        of_kernel = [one.route and one.route.destination for one in backend.lookup(others)]
        assert of_model == of_kernel


@needs_kernel
@pytest.mark.parametrize("source", [None, "10.224.0.4", "10.224.0.9"])
def test_addresses_for_which_no_table_is_searched(source: str | None) -> None:
    """The model returns the errno of the kernel for zero, for multicast and reserved addresses, for
    rules with an action, and behind a `goto` without a target.
    """
    destinations = [0, 224 << 24, 0xEFFFFFFF, 0xF0000000, 0xFFFFFFFF, 7 << 24]
    with KernelNode.made() as node:
        uplink(node)
        node.add_rule(Rule(90, action="goto", goto=95))
        for action in "blackhole", "unreachable", "prohibit":
            destinations.append(destinations[-1] + (1 << 24))
            node.add_rule(Rule(100, action=action, destination=(destinations[-1], 8)))
        backend = kernel_of(node)
        sources = [parse_ipv4(source) if source else None] * len(destinations)
        of_model = model(backend).lookup(destinations, sources=sources)
        of_kernel = backend.lookup(destinations, sources=sources)
        assert [one.errno for one in of_model] == [one.errno for one in of_kernel]


@needs_kernel
def test_a_route_with_the_scope_of_the_node_is_unknown() -> None:
    """A route with scope host is undecided for packets without a source: the kernel refuses them
    with EINVAL if the device does not have an address.
    """
    with KernelNode.made() as node:
        node.add_link("e0")
        node.ip("route add 9.0.0.0/8 dev e0 scope host table local")
        kernel = kernel_of(node)
        [answer] = kernel.lookup([NINE | 1])
        assert answer.errno == errno.EINVAL
        with pytest.raises(UnknownDecisionError, match="scope host"):
            model(kernel).lookup([NINE | 1])
        node.add_address("e0", "10.1.0.1/16")
        assert kernel.lookup([NINE | 1]) != [answer]
        with pytest.raises(UnknownDecisionError, match="scope host"):
            model(kernel).lookup([NINE | 1])
        for each in kernel, model(kernel):
            [bound] = each.lookup([NINE | 1], sources=[parse_ipv4("10.1.0.1")])
            assert bound.route
            assert bound.route.dev == "e0"
