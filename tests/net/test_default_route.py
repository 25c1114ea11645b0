"""The default route through the task, the check and the program of a boot, against the kernel, with dead
next hops.
"""

import json
import re
import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.kernel import kernel_of, needs_kernel
from support.overlap_answers import may_start
from support.patience import wait_until
from support.static_route_scripts import config_of, repaired_at_boot

from hostrouting import HostRoutingConfig, OverlapReport, StaticRoute, prove_egress
from hostrouting.static_routes.reconcile import resolve
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

CIDR = "10.96.0.0/16"
OPEN = StaticRoute(destination="172.16.1.0/24")
VIA = {f"eth{n}": f"10.22{n}.0.1" for n in range(3)}
NO_CARRIER_ON_ETH1 = (
    "sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1; ip link set wire1 down"
)
CUT_ETH2 = "ip link set wire2 down"


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """Three uplinks whose wires can be cut; no default route."""
    with KernelNode.made() as node:
        for n in range(3):
            node.ip(f"link add eth{n} type veth peer name wire{n}")
            node.set_up(f"wire{n}")
            node.set_up(f"eth{n}")
            node.add_address(f"eth{n}", f"10.22{n}.0.4/16")
        yield node


def arrange(node: KernelNode, commands: str) -> None:
    for command in commands.split(";"):
        node.run(*shlex.split(command))
    for number in re.findall(r"link set wire(\d) down", commands):
        # A work queue of the kernel marks the routes of a lost carrier, up to a second later.
        wait_until(partial(_lacks_carrier, node, number), f"eth{number} still has a carrier")


def _lacks_carrier(node: KernelNode, number: str) -> bool:
    return "linkdown" in node.ip(f"route show 10.22{number}.0.0/16")


def default(*legs: str, options: str = "") -> str:
    hops = " ".join(f"nexthop via {VIA[leg]} dev {leg}" for leg in legs)
    single = f"via {VIA[legs[0]]} dev {legs[0]}"
    return f"ip route add default {options} {hops if len(legs) > 1 else single}"


def two_legs(odd: str) -> list[str]:
    return f"nexthop via {VIA['eth0']} dev {odd} nexthop via {VIA['eth1']} dev eth1".split()


def proof(node: KernelNode) -> OverlapReport:
    return prove_egress(kernel_of(node), [CIDR])


def routes_at_boot(node: KernelNode, route: StaticRoute) -> tuple[int, list[str]]:
    status, _ = repaired_at_boot(node, config_of([route]))
    lines = node.ip("route show proto 142").splitlines()
    return status, [line.strip() for line in lines]


def routes_of_task(node: KernelNode, route: StaticRoute) -> list[str]:
    found = resolve([route], kernel_of(node).routes()).routes
    return [str(one).replace(" proto 142", "") for one in found]


@pytest.mark.parametrize(
    ("commands", "expected", "leaves_by"),
    [
        (default("eth1", "eth0"), ("eth1", "eth0"), "eth1"),
        (f"{default('eth1', 'eth0')}; ip link set eth1 down", ("eth1", "eth0"), "eth0"),
        (f"{default('eth1', 'eth0')}; {NO_CARRIER_ON_ETH1}", ("eth1", "eth0"), "eth0"),
        (
            f"{default('eth1')}; {default('eth0', options='metric 100')}; {NO_CARRIER_ON_ETH1}",
            ("eth0",),
            "eth0",
        ),
        (
            f"{default('eth1', 'eth2')}; {default('eth0', options='metric 1')}; {NO_CARRIER_ON_ETH1}; {CUT_ETH2}",
            ("eth0",),
            "eth0",
        ),
        (f"{default('eth1', options='metric 50')}; {default('eth0')}", ("eth0",), "eth0"),
        (f"{default('eth1', options='tos 0x10')}; {default('eth0')}", ("eth0",), "eth0"),
    ],
    ids=[
        "two legs",
        "leg down",
        "leg without carrier",
        "dead, then another",
        "all dead, then another",
        "metric",
        "tos",
    ],
)
def test_all_use_the_default_route_that_the_kernel_uses(
    node: KernelNode, commands: str, expected: tuple[str, ...], leaves_by: str
) -> None:
    """The check, live and at a boot, expects the device through which `ip route get` leads out, and an open
    route is completed with its gateway.
    """
    arrange(node, commands)
    assert any(f" dev {dev} " in node.ip("route get 10.96.0.1") for dev in expected)
    report = proof(node)
    # The kernel still sends flows to a leg without carrier, where they end.
    ends = "linkdown" in node.ip("route show default") and "dead" not in node.ip(
        "route show default"
    )
    kinds = ["dead-end"] if ends else []
    assert report.expected_devs == expected
    assert [finding.kind for _, finding in report.findings] == kinds
    assert may_start(node, [CIDR]) == report.ok
    wanted = f"172.16.1.0/24 via {VIA[leaves_by]} dev {leaves_by}"
    assert routes_of_task(node, OPEN) == [wanted]
    assert routes_at_boot(node, OPEN) == (10, [wanted])


@pytest.mark.parametrize(
    "commands",
    [
        default("eth0", options="proto 142"),
        default("eth0", options="tos 0x10"),
        default("eth0", options="table 100"),
        "ip route add blackhole default",
        f"{default('eth1')}; {NO_CARRIER_ON_ETH1}",
        f"{default('eth1', 'eth2')}; {NO_CARRIER_ON_ETH1}; {CUT_ETH2}",
    ],
)
def test_all_ignore_routes_that_are_not_default_routes(node: KernelNode, commands: str) -> None:
    """An own route, one for few packets, or one that sends nothing anywhere is not a default route."""
    arrange(node, commands)
    assert proof(node).expected_devs == ()
    assert routes_of_task(node, OPEN) == []
    status, [(_, line)] = repaired_at_boot(node, config_of([OPEN]))
    assert status == 11
    assert ": table main has no IPv4 default route; see " in line


@pytest.mark.parametrize("trouble", [NO_CARRIER_ON_ETH1, "ip link set eth1 down"])
def test_a_named_device_has_its_gateway_though_it_is_dead(node: KernelNode, trouble: str) -> None:
    """A route by a named device gets the gateway of the default route by that device, even if the
    device does not have a carrier or is down.
    """
    arrange(node, f"{default('eth1', 'eth0')}; {trouble}")
    route = StaticRoute(destination="172.16.1.0/24", dev="eth1")
    assert routes_of_task(node, route) == ["172.16.1.0/24 via 10.221.0.1 dev eth1"]
    status, routes = routes_at_boot(node, route)
    is_down = trouble.endswith("eth1 down")
    assert (status, routes) == (
        (11, []) if is_down else (10, ["172.16.1.0/24 via 10.221.0.1 dev eth1 dead linkdown"])
    )


def test_no_packet_has_the_source_of_a_dead_next_hop(node: KernelNode) -> None:
    """A rule that selects the address of an uplink is a finding while the uplink is up, and is
    ignored once the uplink is down.
    """
    rule = "ip rule add from 10.221.0.4 lookup 101 priority 50"
    arrange(node, f"{default('eth1', 'eth0')}; ip route add unreachable default table 101; {rule}")
    assert not proof(node).ok
    arrange(node, "ip link set eth1 down")
    assert proof(node).ok


@pytest.fixture
def odd(node: KernelNode, name: str) -> str:
    """Give the device of the default route an odd name."""
    node.ip("link set dev eth0 down")
    node.ip(f"link set dev eth0 name {name}")
    node.ip(f"link set dev {name} up")
    node.ip("route add default via", VIA["eth0"], f"dev {name}")
    return name


@pytest.mark.parametrize("name", ["a\\b", "a\\", 'a"b', "'", "#x", "a#"])
def test_names_that_a_batch_of_ip_cannot_have(node: KernelNode, odd: str) -> None:
    """The task, the check and a boot accept a device whose name a batch of `ip` cannot have."""
    assert proof(node).ok
    wanted = f"172.16.1.0/24 via 10.220.0.1 dev {odd}"
    assert routes_of_task(node, OPEN) == [wanted]
    assert routes_at_boot(node, OPEN) == (10, [wanted])


@pytest.mark.parametrize("name", ["-x", "*"])
class TestNames:
    """Devices with names that mean something to bash or to ip, and that a config cannot contain."""

    def test_the_default_routes_device_may_have_any_name(self, node: KernelNode, odd: str) -> None:
        """The task, the check and a boot find a default route through a device with an odd name; a
        second repair leaves the same routes.
        """
        report = proof(node)
        assert report.expected_devs == (odd,)
        assert report.ok
        assert may_start(node, [CIDR]) == report.ok
        wanted = f"172.16.1.0/24 via 10.220.0.1 dev {odd}"
        assert routes_of_task(node, OPEN) == [wanted]
        for _ in range(2):
            assert routes_at_boot(node, OPEN) == (10, [wanted])

    def test_our_route_by_such_a_device_is_removed(self, node: KernelNode, odd: str) -> None:
        """A route that the config no longer has is removed even if its device has an odd name, with
        one next hop or with several.
        """
        node.ip(f"route add 172.16.9.0/24 dev {odd} proto 142")
        node.ip("route add 172.16.8.0/24 proto 142", *two_legs(odd))
        assert routes_at_boot(node, OPEN) == (10, [f"172.16.1.0/24 via 10.220.0.1 dev {odd}"])

    def test_sources_of_next_hops_are_looked_up(self, node: KernelNode, odd: str) -> None:
        """A default route with several next hops is looked up with the source of each, so that a
        rule by source is found.
        """
        node.ip("route replace default", *two_legs(odd))
        node.ip("route add 10.96.0.0/24 dev eth2 table 101")
        node.ip("rule add from 10.220.0.4 lookup 101")
        report = proof(node)
        lines = [
            f"{CIDR}: overlap 10.96.0.0-10.96.0.255 through eth2 (10.96.0.0/24 dev eth2 table 101 scope link, by the rule 32765: from 10.220.0.4 lookup 101)"
        ]
        assert report.lines() == lines
        assert may_start(node, [CIDR]) == report.ok

    def test_a_suggested_route_can_be_configured(self, node: KernelNode, odd: str) -> None:
        """The route that the check suggests by a device with an odd name can be configured, and
        repairs the finding.
        """
        node.ip("route add 10.96.0.0/12 dev eth1")
        [proposed] = pasted(str(proof(node)))
        [route] = HostRoutingConfig.from_mapping(proposed).static_routes.routes
        assert routes_at_boot(node, route) == (10, [f"10.96.0.0/16 via 10.220.0.1 dev {odd}"])
        assert proof(node).ok


def pasted(output: str) -> list[dict[str, Any]]:
    """The sections that an output proposes for a config."""
    lines = [line.strip() for line in output.splitlines()]
    return [json.loads(f"{{{line}}}") for line in lines if line.startswith('"staticRoutes"')]
