"""The boot script proves IPv6: in random worlds it agrees with an oracle that asks the kernel address by address."""

import ipaddress
import re
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from hypothesis import given, settings
from support.examples import FEW
from support.ipv6_oracle import IPv6Oracle
from support.ipv6_worlds import DEVICES, IPv6World, arranged, ipv6_worlds
from support.kernel import needs_kernel
from support.overlap_worlds import ScriptRun, run_script
from support.routers import WiredNode

pytestmark = needs_kernel

_FINDING = re.compile(r"(\S+): (\S+) ([0-9a-f:.]+)-([0-9a-f:.]+)(?: by (\S+))?(?: \((.*)\))?")


def run(node: WiredNode, cidrs: Sequence[str], **options: object) -> ScriptRun:
    """Run the script without patience, and with another folder."""
    allowed = options.pop("allowed", ())
    with tempfile.TemporaryDirectory() as folder:
        return run_script(node, Path(folder) / "run", cidrs, allowed=allowed, options=options)


def claimed(ran: ScriptRun, cidr: str) -> list[tuple[int, int]]:
    """Return the ranges of a CIDR in which the script finds a fault; they are sorted, and none touches another's."""
    if "route-overlap.ok" in ran.markers:
        assert ran.status == 0
        return []
    ranges = []
    for line in ran.markers["route-overlap.detected"].splitlines():
        match = _FINDING.fullmatch(line)
        assert match, ran
        if match[1] == cidr:
            ranges.append(tuple(int(ipaddress.IPv6Address(text)) for text in match.group(3, 4)))
    assert all(first <= last for first, last in ranges)
    assert all(one[1] < other[0] for one, other in zip(ranges, ranges[1:], strict=False))
    return ranges


def check(node: WiredNode, world: IPv6World) -> None:
    ran = run(node, world.cidrs, allowed=world.allowed, expectedDevs=["e0"], fabric="off")
    fine = [dev for dev in DEVICES if dev == "e0" or any(fnmatchcase(dev, pattern) for pattern in world.allowed)]
    oracle = IPv6Oracle(node.name)
    for cidr in world.cidrs:
        ranges = claimed(ran, cidr)
        places = oracle.places(cidr)
        for place, ways in zip(places, oracle.all_ways(places), strict=True):
            wrong = {way for way in ways if not way.devs or not set(fine).issuperset(way.devs)}
            found = any(first <= place <= last for first, last in ranges)
            # Of an address of the node on several links, the oracle knows one.
            is_own = any(way.kind in {"local", "anycast"} for way in ways)
            assert found == bool(wrong) or (found and is_own), (cidr, str(ipaddress.IPv6Address(place)), ways, ran)


@settings(max_examples=FEW)
@given(ipv6_worlds())
def test_the_script_agrees_with_the_kernel(world: IPv6World) -> None:
    """It finds a fault at each address that may leave by another device, and nowhere else."""
    with arranged(world) as node:
        check(node, world)
