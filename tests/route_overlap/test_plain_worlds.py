"""Random nodes: where the boot script accepts, the proof does, in the same words.

A right node that is not plain is left to the program; `--hypothesis-show-statistics` counts these.
More worlds are in test_judged_worlds.py and test_connected_fabrics.py, where the kernel judges.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hypothesis import event, given, settings
from hypothesis import strategies as st
from support import small_world
from support.announced_fabrics import Announced, announcements, both_answers
from support.examples import FEW
from support.ipv6_worlds import IPv6World, arranged, mixed_worlds
from support.kernel import kernel_of, needs_kernel
from support.node_worlds import World, announced_worlds, worlds
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


@settings(max_examples=2 * FEW)
@given(world=announced_worlds(rare=True), announced=announcements)
def test_announced(world: World, announced: Announced) -> None:
    """With a fabric of the agent."""
    with KernelNode.made() as node, tempfile.TemporaryDirectory() as folder:
        announced.prepare(node)
        world.arrange(node)
        fabric = announced._replace(networks=()).as_fabric(kernel_of(node))
        # The model cannot follow each source.
        with suppress(UnknownDecisionError):
            report, ran = both_answers(
                node, fabric, Path(folder), world.cidrs, allowed=world.allowed, expected=["e0"]
            )
            _count(report, ran)
