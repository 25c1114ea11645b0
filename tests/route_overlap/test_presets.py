"""Presets: the addresses without which a node of a cloud is lost, with their names in every form of
a finding.
"""

import pytest
from support.kernel import connect, needs_kernel
from support.way_out_nodes import WayOutNode

from hostrouting import CheckRouteOverlap, Configure, check_node
from hostrouting.config.sections import PRESETS, HostRoutingConfig
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from phases import Context, execute

PLATFORM = "168.63.129.16/32 (Azure platform: DHCP, DNS, health probes)"
UNIT = "/etc/systemd/system/check-route-overlap.service"


def hostile(prover: WayOutNode) -> WayOutNode:
    """A node whose fabric has the network of Azure's platform."""
    prover.links("eth0", "ib0 168.63.1.4/16")
    prover.default("eth0")
    return prover


def test_a_finding_has_the_name_of_its_address() -> None:
    """A finding of a preset has the name of its address in the line, in the text and in JSON, whose
    `cidr` stays bare.
    """
    report = hostile(WayOutNode(MemoryBackend())).prove(expected=["azure"])
    [line] = report.lines()
    assert line.startswith(
        f"{PLATFORM}: overlap 168.63.129.16-168.63.129.16 through ib0 (168.63.0.0/16 dev ib0"
    )
    assert f"\n  {PLATFORM}\n    168.63.129.16: leaves through " in str(report)
    platform, metadata = report.to_mapping()["cidrs"]
    assert platform["cidr"] == "168.63.129.16/32"
    assert platform["name"] == "Azure platform: DHCP, DNS, health probes"
    assert metadata["ok"] is True
    assert metadata["name"] == "Azure instance metadata"
    [route] = report.suggested_routes
    assert route.destination == "168.63.129.16/32"
    assert route.gateway == "10.224.0.1"
    assert route.dev == "eth0"


def test_the_preset_of_an_address_without_a_route_is_named() -> None:
    """The advice for a preset's address without a route names the preset and the way to drop it,
    but not for a CIDR that the config names itself.
    """
    prover = WayOutNode(MemoryBackend())
    prover.links("eth0")
    wanted = ["168.63.129.16/32"]
    advice = prover.prove(*wanted, expected=["azure"], expectedDevs=["eth0"]).advice
    assert (
        "The preset azure expects 169.254.169.254/32: on a node that does not need this, "
        "remove azure from expected of routeOverlap." in advice.splitlines()
    )


@needs_kernel
def test_a_boot_names_it_too() -> None:
    """A boot checks the addresses of a preset, too."""
    with KernelNode.made() as node:
        prover = hostile(WayOutNode(node))
        assert not prover.prove(expected=["azure"]).ok
        assert (
            prover.prove("10.96.0.0/16", expected=["gcp"]).verdict
            == "10.96.0.0/16, 169.254.169.254/32 leave through eth0"
        )


@pytest.mark.parametrize("cloud", [name for name in PRESETS if name != "aws-ipv6"])
def test_a_preset_alone_installs_the_check(cloud: str) -> None:
    """A config with a preset alone installs the check, and a node to which it was not applied has
    that finding.
    """
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16")
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0")
    sections = {"routeOverlap": {"expected": [cloud]}, "watch": {"enabled": True}, "gates": []}
    config = HostRoutingConfig.from_mapping(sections)
    assert [finding.kind for finding in check_node(Context(), config, host).findings] == [
        "not-applied"
    ]
    execute(Configure(config, host=host), Context())
    assert host.files.exists(UNIT)
    assert check_node(Context(), config, host).findings == ()
    CheckRouteOverlap(HostRoutingConfig(), host=host).do(Context())
    assert not host.files.exists(UNIT)
