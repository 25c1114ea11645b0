"""The findings under an announced fabric, against the kernel's answers after the addresses were
really added.
"""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.announced_fabrics import Announced, announcements, check_announced
from support.kernel import needs_kernel
from support.node_worlds import World, announced_worlds
from support.overlap_answers import AMONG_DEBRIS
from support.routers import add_pod

from hostrouting.testing import KernelNode


@needs_kernel
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    world=announced_worlds(rare=True),
    announced=announcements,
    expected=st.sampled_from([None, ["e0"]]),
    has_debris=st.booleans(),
)
def test_nothing_is_missed(
    world: World,
    announced: Announced,
    expected: list[str] | None,
    has_debris: bool,
    tmp_path: Path,
) -> None:
    """Each address that the kernel loses with the fabric is found before, whatever rules and tables
    a node has, and a node that the boot script accepts has none.
    """
    with KernelNode.made() as node, KernelNode.made() as pods:
        announced.prepare(node)
        world.arrange(node)
        add_pod(node, pods)
        through = AMONG_DEBRIS if has_debris else ()
        check_announced(
            node,
            announced,
            world.cidrs,
            tmp_path,
            allowed=world.allowed,
            expected=expected,
            through=through,
        )
