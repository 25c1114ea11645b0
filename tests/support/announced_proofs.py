"""The judgements on a node with an announced fabric: against the kernel once it is connected, and the boot script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import assume
from support.announced_worlds import LINE, both_answers
from support.overlap_worlds import claimed, parts_of

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import format_ipv4, parse_ipv4
from hostrouting.route_overlap import prove_egress
from hostrouting.route_overlap.assumed import Assumed

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from support.announced_worlds import Announced
    from support.overlap_worlds import World

    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap.fabric import Fabric
    from hostrouting.testing import KernelNode

__all__ = ["check_announced_equals_connected", "check_script_equals_proof"]


def check_announced_equals_connected(node: KernelNode, world: World, announced: Announced) -> None:
    """Assert that the proof finds the same addresses before and after the announced ones are added."""
    kernel = NetlinkBackend(netns=node.name)
    before = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed, fabric=announced.as_fabric(kernel))
    announced.connect(node)
    after = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed)
    for cidr in (report.cidr for report in after.cidrs):
        said, true = claimed(before, cidr), claimed(after, cidr)
        assert said.keys() == true.keys()
        for address, (kind, _) in said.items():
            assert kind == "announced" or kind == true[address][0], format_ipv4(address)


def check_script_equals_proof(node: KernelNode, world: World, announced: Announced, folder: Path) -> None:
    """Assert that the boot script, which reads its files below `folder`, finds the same as the proof."""
    kernel = NetlinkBackend(netns=node.name)
    fabric = announced.as_fabric(kernel)
    # Where a rule selects by source, the script asks the kernel with the source of today. A route without one, by a
    # device that gets an address or has none, may send from a new one. Only the model knows that.
    assume(_sends_as_before(kernel, fabric, world.cidrs))
    report, ran = both_answers(node, fabric, folder, world.cidrs, allowed=world.allowed)
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
