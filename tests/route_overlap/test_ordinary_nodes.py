"""Ordinary nodes, live and as a record, whose verdicts a change of the check must keep."""

import pytest
from support.kernel import kernel_of, needs_kernel
from support.overlap_checks import check_cidrs
from support.patience import at_once
from support.worlds import NODES

from hostrouting.fleet.record import NodeRecord, take_record
from hostrouting.testing import FakeHost, KernelNode

pytestmark = needs_kernel


@pytest.mark.parametrize("name", NODES)
def test_it_is_right(name: str) -> None:
    """A boot holds an ordinary node exactly if it is wrong, and a record of it has the same
    findings.
    """
    ordinary = NODES[name]
    with KernelNode.made() as node, KernelNode.made() as beside:
        ordinary.arrange(node, beside)
        fabric = ordinary.fabric(node)
        kernel = kernel_of(node)
        options = {"expectedDevs": [*(ordinary.expected or ())]}
        is_started = ordinary.may_start(node, options)
        recorded = NodeRecord.parse(take_record(at_once(), FakeHost(kernel)).to_line()).host
        reports = [
            check_cidrs(
                routing,
                ordinary.cidrs,
                expected_devs=ordinary.expected,
                fabric=fabric,
            )
            for routing in (kernel, recorded.routes)
        ]
    assert reports[0].ok == ordinary.is_right, reports[0].lines()
    assert reports[1].lines() == reports[0].lines()
    assert is_started == ordinary.is_right
