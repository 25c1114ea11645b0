"""The routing under announced addresses against the kernel's, after the addresses were really added."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from support.announced_proofs import check_announced_equals_connected, check_script_equals_proof
from support.announced_worlds import Announced, announced_worlds, announcements
from support.kernel import needs_kernel

from hostrouting.testing import KernelNode

if TYPE_CHECKING:
    from pathlib import Path

    from support.overlap_worlds import World


_EXAMPLES = {"kernel": 3, "wheel": 10, "soak": 2000, "hunt": 500}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 60)


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(world=announced_worlds(), announced=announcements)
def test_announced_equals_connected(world: World, announced: Announced) -> None:
    """The addresses that the proof finds under announced addresses are those that it finds once they are there."""
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        check_announced_equals_connected(node, world, announced)


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(world=announced_worlds(), announced=announcements)
def test_the_boot_script_finds_the_same(world: World, announced: Announced, tmp_path: Path) -> None:
    """Under announced addresses the boot script finds the same addresses, with the same devices, as the proof."""
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        check_script_equals_proof(node, world, announced, tmp_path)
