"""The judgements on a node with an announced fabric: against the kernel once it is connected, and
the boot script.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from support.announced_worlds import Announced, both_answers
from support.egress_oracle import KernelOracle, wrong_of
from support.kernel import kernel_of
from support.overlap_worlds import World, claimed

from hostrouting import prove_egress
from hostrouting.net.addresses import format_ipv4
from hostrouting.testing import KernelNode


def check_announced(
    node: KernelNode,
    world: World,
    announced: Announced,
    folder: Path,
    *,
    through: Sequence[str] = (),
) -> None:
    """Assert that the proof finds each address that the kernel loses when the announced ones are
    really added, and that a yes of the boot script, which reads its files below `folder`, is one
    of the proof.

    Without rules of its own, a node has no other findings, but for those that are true today, and
    where a device is allowed: the fabric counts as a whole.
    """
    kernel = kernel_of(node)
    patterns = world.allowed
    report, _ = both_answers(
        node, announced.as_fabric(kernel), folder, world.cidrs, allowed=patterns, through=through
    )
    today = prove_egress(kernel, world.cidrs, allowed_devs=patterns)
    fabric = {dev for dev, _ in announced.addresses}
    is_plain = len(kernel.rules()) == 3 and announced.is_plain
    announced.connect(node)
    oracle = KernelOracle(node)
    expected = oracle.expected()
    devices = {link.name for link in kernel.links()}
    allowed = {
        dev
        for dev in devices
        if dev in expected or any(fnmatchcase(dev, pattern) for pattern in patterns)
    }
    for cidr in (one.cidr for one in report.cidrs):
        said = claimed(report, cidr).keys()
        true = wrong_of(oracle, cidr, frozenset(allowed)).keys()
        assert not true - said, [*map(format_ipv4, sorted(true - said))]
        if expected and is_plain and not allowed & fabric:
            too_much = said - true - claimed(today, cidr).keys()
            assert not too_much, [*map(format_ipv4, sorted(too_much))]
