"""A recorded node has the check of the live one: random worlds in the kernel, with announced
fabrics and rules.
"""

import re
from collections.abc import Iterable, Mapping

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from support.announced_fabrics import Announced, announcements
from support.examples import FEW
from support.fabric_files import announcing
from support.kernel import do, kernel_of, needs_kernel
from support.node_worlds import World, announced_worlds
from support.patience import at_once
from support.routers import WiredNode

from hostrouting import Host, HostRoutingConfig
from hostrouting.boot.installed_config import NewConfig
from hostrouting.fleet import NodeRecord, check_record, take_record
from hostrouting.host import Address, FileStore
from hostrouting.host.offline import absent
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import expectation_on
from hostrouting.route_overlap.fabric import announced_fabric
from hostrouting.route_overlap.report import CidrReport, Finding
from hostrouting.testing import FakeHost, KernelNode

pytestmark = needs_kernel


def check(node: KernelNode, files: FileStore, section: Mapping[str, object]) -> tuple[bool, str]:
    """Assert that the record of a node under a config has the findings of the live check; return
    if that is right, and why the record has none.
    """
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    installed = NewConfig(config=config).file
    files.write(installed.path, installed.content, mode=installed.mode)
    host = Host(
        routes=kernel_of(node),
        files=files,
        services=absent("services"),
        lock=absent("lock"),
    )
    ctx = at_once()
    record = take_record(ctx, host)
    read = NodeRecord.parse(record.to_line())
    assert read == record
    assert read.config == config
    fabric = announced_fabric(ctx, config.route_overlap.fabric, host)
    live = check_egress(host, expectation_on(host, config, fabric))
    verdict = check_record(read)
    if verdict.report is not None:
        assert told_alike(verdict.report.overlap.cidrs) == told_alike(live.cidrs)
    return live.ok, verdict.undecided


@settings(
    max_examples=FEW,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=announced_worlds(rare=True), announced=announcements)
def test_a_record_has_the_findings(world: World, announced: Announced) -> None:
    """A record has the findings of the live check under rules of any kind, several tables and next
    hops, and a fabric that the agent or the config announces.

    tests/route_overlap/test_judged_worlds.py has both families, without a fabric.
    """
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        files = FakeHost().files
        for path, content in announcing(announced.as_fabric(kernel_of(node))).items():
            files.write(path, content, mode=0o644)
        section: dict[str, object] = {
            "expectedCidrs": world.cidrs,
            "allowedDevs": list(world.allowed),
        }
        if announced.networks:
            section["fabric"] = list(announced.networks)
        _, undecided = check(node, files, section)
        assert not undecided or "scope host" in undecided, undecided


@pytest.mark.parametrize("forwarding", [0, 1])
def test_a_gateway_that_failed(forwarding: int) -> None:
    """A record has the findings of the live check for a failed gateway, which a host passes over
    while another route is left, and a router does not.
    """
    with WiredNode.made() as node:
        node.add_links("e0", "e1")
        node.switch(all__forwarding=forwarding)
        files = FakeHost().files
        switch = "/proc/sys/net/ipv6/conf/all/forwarding"
        files.write(switch, b"%d\n" % forwarding, mode=0o644)
        routes = ["route add fd07::/48 via fe80::b dev e0", "route add fd07::/32 dev e1"]
        do(node, "-6", commands=routes)
        section = {"expectedCidrs": ["fd07::/64"], "expectedDevs": ["e0"]}
        assert check(node, files, section) == (True, "")
        node.ip("neigh add fe80::b dev e0 nud failed")
        assert check(node, files, section) == (bool(forwarding), "")
        node.ip("-6 route del fd07::/32 dev e1")
        assert check(node, files, section) == (True, "")


def told_alike(reports: Iterable[CidrReport]) -> list[CidrReport]:
    """Return reports without the protocols of routes by several next hops.

    Of those that several programs have added, the kernel shows another one for each packet, and
    parts of the address range differ by nothing else.
    """
    return [
        attrs.evolve(one, findings=tuple(_joined(map(_without_protocol, one.findings))))
        for one in reports
    ]


def _without_protocol(finding: Finding) -> Finding:
    route = finding.route
    if route and " nexthop " in route:
        route = re.sub(r" proto \w+", "", route)
    return attrs.evolve(finding, route=route)


def _joined(findings: Iterable[Finding]) -> list[Finding]:
    found: list[Finding] = []
    for one in findings:
        family, first = Address.parse(one.first)
        is_next = found and Address(family, first - 1) == Address.parse(found[-1].last)
        if is_next and attrs.evolve(found[-1], first=one.first, last=one.last) == one:
            found[-1] = attrs.evolve(found[-1], last=one.last)
        else:
            found.append(one)
    return found
