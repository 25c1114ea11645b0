"""Random nodes, in whose kernels every address is looked up: by source, protocol and flow, and with
gateways in several states.
"""

import tempfile
from pathlib import Path

import pytest
from support.asked_worlds import AskedWorld, arrange, asked_world, sent, wrong
from support.kernel import kernel_of, needs_kernel
from support.overlap_worlds import ScriptRun, run_script
from support.patience import in_time

from hostrouting import OverlapReport, prove_egress
from hostrouting.exceptions import UnknownDecisionError
from hostrouting.fleet.record import NodeRecord, take_record
from hostrouting.host.ports import Routing
from hostrouting.testing import FakeHost, KernelNode

pytestmark = needs_kernel


def _judge(seed: int, family: int) -> None:
    """Assert that a right verdict, also of the boot script, is right for each packet, and that a
    record has the findings.
    """
    world = asked_world(seed, family)
    with KernelNode.made() as node:
        arrange(node, world)
        kernel = kernel_of(node)
        live = _proof(kernel, world)
        _run_script(node, world).must_follow(live)
        recorded = NodeRecord.parse(take_record(in_time(), FakeHost(kernel)).to_line()).host
        try:
            assert _proof(recorded.routes, world).lines() == live.lines()
        except UnknownDecisionError:
            # The model chooses no IPv6 source.
            assert family == 6
        if not live.ok:
            return
        fine = {*live.expected_devs, *world.allowed}
        astray = [packet for packet, answer in sent(node, world, seed) if wrong(answer, fine)]
    assert astray == []


def _run_script(node: KernelNode, world: AskedWorld) -> ScriptRun:
    options = {"expectedDevs": world.expected or [], "fabric": "off"}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        return run_script(node, run, world.cidrs, allowed=world.allowed, options=options)


def _proof(routing: Routing, world: AskedWorld) -> OverlapReport:
    return prove_egress(
        routing, world.cidrs, allowed_devs=world.allowed, expected_devs=world.expected
    )


@pytest.mark.parametrize(("seed", "family"), [(99, 4), (107, 4), (372, 4), (99, 6), (296, 6)])
def test_no_packet_of_some_nodes_goes_astray(seed: int, family: int) -> None:
    """Nodes that were right by their proof once, and are not."""
    _judge(seed, family)


@pytest.mark.slow
@pytest.mark.parametrize("family", [4, 6])
def test_no_packet_goes_astray(family: int) -> None:
    """Where the proof is right, the kernel sends no packet by another device; live and recorded
    are one answer.
    """
    for seed in range(1000, 1020):
        _judge(seed, family)


@pytest.mark.soak
@pytest.mark.parametrize("family", [4, 6])
def test_no_packet_goes_astray_in_2000_nodes(family: int) -> None:
    """As above."""
    for seed in range(2000):
        _judge(seed, family)
