"""Random nodes: where the boot script says yes, the proof says yes.

A node that is right, and not plain, is left to the program; the soak counts these.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support import small_world
from support.announced_worlds import Announced, announced_worlds, announcements, write_files
from support.examples import FEW
from support.ipv6_worlds import IPv6World, arranged, mixed_worlds
from support.kernel import kernel_of, needs_kernel
from support.overlap_worlds import AMONG_DEBRIS, World, run_script, worlds

from hostrouting import prove_egress
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

#: Of the config: none, a device, and two.
_EXPECTED = st.sampled_from([[], ["e0"], ["e1", "e0"]])


@settings(max_examples=2 * FEW)
@given(
    world=worlds(rare=True),
    expected=_EXPECTED,
    more=st.lists(small_world.selecting_rules(), max_size=1),
    has_debris=st.booleans(),
)
def test_ipv4(world: World, expected: list[str], more, has_debris: bool) -> None:
    """With rules and routes of all kinds, devices without carrier, and default routes in turns."""
    with KernelNode.made() as node, tempfile.TemporaryDirectory() as folder:
        world._replace(rules=[*world.rules, *more]).arrange(node)
        ran = run_script(
            node,
            Path(folder) / "run",
            world.cidrs,
            allowed=world.allowed,
            options={"expectedDevs": expected, "fabric": "off"},
            through=AMONG_DEBRIS if has_debris else (),
        )
        report = prove_egress(
            kernel_of(node), world.cidrs, allowed_devs=world.allowed, expected_devs=expected or None
        )

    with open("/tmp/count4", "a") as f:
        f.write(f"{int(ran.is_plain)} {int(report.ok)}\n")
    if ran.is_plain:
        assert report.ok
        assert ran.markers["route-overlap.ok"] == f"{report.verdict}\n"


@settings(max_examples=2 * FEW)
@given(world=mixed_worlds(rare=True), expected=_EXPECTED)
def test_both_families(world: IPv6World, expected: list[str]) -> None:
    """Both families, with silent gateways, and nexthop objects."""
    with arranged(world) as node, tempfile.TemporaryDirectory() as folder:
        ran = run_script(
            node,
            Path(folder) / "run",
            world.cidrs,
            allowed=world.allowed,
            options={"expectedDevs": expected, "fabric": "off"},
        )
        report = prove_egress(
            kernel_of(node), world.cidrs, allowed_devs=world.allowed, expected_devs=expected or None
        )
    with open("/tmp/count6", "a") as f:
        f.write(f"{int(ran.is_plain)} {int(report.ok)}\n")
    if ran.is_plain:
        assert report.ok
        assert ran.markers["route-overlap.ok"] == f"{report.verdict}\n"


@settings(max_examples=2 * FEW)
@given(world=announced_worlds(rare=True), announced=announcements)
def test_announced(world: World, announced: Announced) -> None:
    """Under an announced fabric."""
    with KernelNode.made() as node, tempfile.TemporaryDirectory() as folder:
        announced.prepare(node)
        world.arrange(node)
        fabric = announced._replace(networks=()).as_fabric(kernel_of(node))
        write_files(Path(folder), fabric)
        ran = run_script(
            node,
            Path(folder) / "run",
            world.cidrs,
            allowed=world.allowed,
            options={"expectedDevs": ["e0"]},
            files=Path(folder),
        )
        report = prove_egress(
            kernel_of(node),
            world.cidrs,
            allowed_devs=world.allowed,
            expected_devs=["e0"],
            fabric=fabric,
        )
    with open("/tmp/countf", "a") as f:
        f.write(f"{int(ran.is_plain)} {int(report.ok)}\n")
    if ran.is_plain:
        assert report.ok
        assert ran.markers["route-overlap.ok"] == f"{report.verdict}\n"
