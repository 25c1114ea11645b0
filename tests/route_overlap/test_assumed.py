"""The routing under announced addresses against the kernel's, after the addresses were really added."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, assume, given, settings
from support.announced_worlds import LINE, Announced, announced_worlds, announcements, both_answers
from support.kernel import needs_kernel
from support.overlap_worlds import World, claimed, parts_of

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import format_ipv4, parse_ipv4
from hostrouting.route_overlap import prove_egress
from hostrouting.route_overlap.assumed import Assumed
from hostrouting.testing import KernelNode

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap.fabric import Fabric


_EXAMPLES = {"wheel": 10, "soak": 2000, "hunt": 500}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 60)


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(world=announced_worlds(), announced=announcements)
def test_announced_equals_connected(world: World, announced: Announced) -> None:
    """The addresses that the proof finds under announced addresses are those that it finds once they are there."""
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        before = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed, fabric=announced.as_fabric(kernel))
        announced.connect(node)
        after = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed)
    for cidr in (report.cidr for report in after.cidrs):
        said, true = claimed(before, cidr), claimed(after, cidr)
        assert said.keys() == true.keys()
        for address, (kind, _) in said.items():
            assert kind == "announced" or kind == true[address][0], format_ipv4(address)


def _addresses_in(findings: Iterable[re.Match[str] | None]) -> set[tuple[str, int]]:
    return {
        (found["cidr"], address)
        for found in findings
        if found
        for address in range(parse_ipv4(found["first"]), parse_ipv4(found["last"]) + 1)
    }


def _sources(backend: Routing, cidr: str) -> dict[tuple[int, object], list[int]]:
    """Return the sources from which the node may send, by address and deciding route."""
    return {
        (address, part.plain.route): [source for _, source in part.answers]
        for part in parts_of(backend, cidr)
        for address in range(part.first, part.last + 1)
    }


def _sends_as_before(backend: Routing, fabric: Fabric, cidrs: Sequence[str]) -> bool:
    """Return True if new addresses change the source by no route that is there today."""
    then = Assumed(backend, fabric)
    both = [(_sources(backend, cidr), _sources(then, cidr)) for cidr in cidrs]
    return all(now[key] == later[key] for now, later in both for key in now.keys() & later.keys())


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(world=announced_worlds(), announced=announcements)
def test_the_boot_script_finds_the_same(world: World, announced: Announced, tmp_path: Path) -> None:
    """Under announced addresses the boot script finds the same addresses, with the same devices, as the proof."""
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        fabric = announced.as_fabric(kernel)
        # Where a rule selects by source, the script asks the kernel with the source of today. A route without one, by a
        # device that gets an address or has none, may send from a new one. Only the model knows that.
        assume(_sends_as_before(kernel, fabric, world.cidrs))
        report, ran = both_answers(node, fabric, tmp_path, world.cidrs, allowed=world.allowed)
    assert ran.status == (0 if report.ok else 1), ran.output
    lines = ran.markers.get("route-overlap.detected", "").splitlines()
    by_script = [LINE.fullmatch(line) for line in lines]
    by_python = [LINE.fullmatch(line) for line in report.lines()]
    if announced.networks and any(rule.source[1] for rule in world.rules):
        # The address from which the node will send by a network of the config is not known: the proof takes another of
        # the node's, and the script none. So a finding of one may be of another kind, but none is missed.
        assert _addresses_in(by_script) == _addresses_in(by_python)
    else:
        assert [found and found.groups() for found in by_script] == [found and found.groups() for found in by_python]
        assert not report.ok or ran.markers["route-overlap.ok"] == f"{report.verdict}\n"
    assert "line " not in ran.output, ran.output
