"""The findings under an announced fabric, against the kernel's answers after the addresses were
really added.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.announced_fabrics import Announced, announcements, check_announced
from support.kernel import needs_kernel
from support.node_worlds import World, announced_worlds
from support.routers import add_pod

from hostrouting.testing import KernelNode


@needs_kernel
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    world=announced_worlds(rare=True),
    announced=announcements,
    expected=st.sampled_from([None, ["e0"]]),
)
def test_nothing_is_missed(
    world: World,
    announced: Announced,
    expected: list[str] | None,
) -> None:
    """Each address that the kernel loses with the fabric is found before, whatever rules and tables
    a node has.
    """
    with KernelNode.made() as node, KernelNode.made() as pods:
        announced.prepare(node)
        world.arrange(node)
        add_pod(node, pods)
        check_announced(
            node,
            announced,
            world.cidrs,
            allowed=world.allowed,
            expected=expected,
        )
