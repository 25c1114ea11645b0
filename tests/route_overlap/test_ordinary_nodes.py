"""Ordinary nodes, live and as a record, whose verdicts a change of the proof must keep."""

from pathlib import Path

import pytest
from support.kernel import kernel_of, needs_kernel
from support.patience import at_once
from support.worlds import NODES, NOT_PLAIN

from hostrouting import HostRoutingConfig
from hostrouting.fleet.record import NodeRecord, take_record
from hostrouting.route_overlap.proof import prove_families
from hostrouting.testing import FakeHost, KernelNode

pytestmark = needs_kernel


@pytest.mark.parametrize("name", NODES)
def test_it_is_right(name: str, tmp_path: Path) -> None:
    """An ordinary node is held exactly if it is wrong, a record of it has the same findings, and
    most right ones are plain for the boot script.
    """
    ordinary = NODES[name]
    with KernelNode.made() as node, KernelNode.made() as beside:
        ordinary.arrange(node, beside)
        fabric = ordinary.fabric(node)
        kernel = kernel_of(node)
        ran = ordinary.boot(node, tmp_path, {"expectedDevs": [*(ordinary.expected or ())]})
        recorded = NodeRecord.parse(take_record(at_once(), FakeHost(kernel)).to_line()).host
        reports = [
            prove_families(
                routing,
                ordinary.cidrs,
                HostRoutingConfig(),
                expected_devs=ordinary.expected,
                fabric=fabric,
            )
            for routing in (kernel, recorded.routes)
        ]
    assert reports[0].ok == ordinary.is_right, reports[0].lines()
    assert reports[1].lines() == reports[0].lines()
    reason = NOT_PLAIN.get(name, "")
    assert ran.is_plain == (ordinary.is_right and not reason), ran.output
    assert reason in ran.output
