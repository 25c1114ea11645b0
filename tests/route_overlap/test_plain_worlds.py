"""Random nodes: where the boot script accepts, the proof does, in the same words.

A right node that is not plain is left to the program; `--hypothesis-show-statistics` counts these.
More worlds are in test_judged_worlds.py, and under a fabric in test_announced.py, where the kernel
judges.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import event, given, settings
from hypothesis import strategies as st
from support import small_world
from support.examples import FEW
from support.ipv6_worlds import IPv6World, arranged, mixed_worlds
from support.kernel import kernel_of, needs_kernel
from support.node_worlds import World, worlds
from support.overlap_answers import AMONG_DEBRIS, ScriptRun, run_script

from hostrouting import OverlapReport, prove_egress
from hostrouting.exceptions import UnknownDecisionError
from hostrouting.host import Rule
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

_EXPECTED = st.sampled_from([[], ["e0"], ["e1", "e0"]])


def _judge(
    node: KernelNode,
    world: World | IPv6World,
    expected: Sequence[str],
    through: Sequence[str] = (),
) -> None:
    """Compare the script and the proof."""
    with tempfile.TemporaryDirectory() as folder:
        ran = run_script(
            node,
            Path(folder) / "run",
            world.cidrs,
            allowed=world.allowed,
            options={"expectedDevs": expected, "fabric": "off"},
            through=through,
        )
    try:
        report = prove_egress(
            kernel_of(node), world.cidrs, allowed_devs=world.allowed, expected_devs=expected or None
        )
    except UnknownDecisionError:
        # The model cannot follow a rule that comes with one by protocol.
        return
    _count(report, ran)
    ran.must_follow(report)


def _count(report: OverlapReport, ran: ScriptRun) -> None:
    if report.ok:
        event("right and plain" if ran.is_plain else "right, and not plain")


@settings(max_examples=2 * FEW)
@given(
    world=worlds(rare=True),
    expected=_EXPECTED,
    more=st.lists(small_world.selecting_rules(), max_size=1),
    has_debris=st.booleans(),
)
def test_ipv4(world: World, expected: list[str], more: list[Rule], has_debris: bool) -> None:
    """With rules and routes of all kinds, devices without carrier, and default routes in turns."""
    with KernelNode.made() as node:
        world._replace(rules=[*world.rules, *more]).arrange(node)
        _judge(node, world, expected, AMONG_DEBRIS if has_debris else ())


@settings(max_examples=2 * FEW)
@given(world=mixed_worlds(rare=True), expected=_EXPECTED)
def test_both_families(world: IPv6World, expected: list[str]) -> None:
    """With advertisements, silent gateways, and nexthop objects."""
    with arranged(world) as node:
        _judge(node, world, expected)
