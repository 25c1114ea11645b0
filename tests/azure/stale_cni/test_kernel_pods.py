"""Pods that are hard to distinguish from dead ones, in real namespaces: silent, or on other
bridges.

A running pod has the address LIVE. Another one has REUSED, for which rules of a dead pod are still
there: they and the other objects of STALE are what a sweep removes. A pod is reached if it answers
a datagram of the fabric.
"""

from __future__ import annotations

from support.ebtables_backends import BACKENDS
from support.needs import needs
from support.stale_cni_nodes import LIVE, LIVE_MAC, REUSED, STALE, World
from support.stale_cni_worlds import dnat

from phases import Context

pytestmark = needs("kernel", "ebtables-nft")


def test_a_pod_that_was_silent_for_long_is_probed(world: World) -> None:
    """A pod that the bridge has forgotten and no state lists answers a probe on its veth, and keeps
    its rules, also that of a second address that does not answer: from the answer the bridge learns
    the hardware address of both.
    """
    world.rule(dnat("fd00:10:240::10", LIVE_MAC))
    world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")
    task = world.sweep()
    assert world.planned(task) == STALE
    world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")
    task.do(Context(timeout=60))
    assert world.reaches(LIVE)
    assert world.reaches(REUSED)


# The usual kernel of the tests cannot filter VLANs; `.ci/kernel` has one that can.
if "legacy" in BACKENDS:

    def test_a_bridge_that_filters_vlans_has_heard_the_same_pods(world: World) -> None:
        """Its stations are in VLAN 1 then, and permanent ones are shown twice; the verdicts are the
        same.
        """
        world.node.ip("link set azure0 type bridge vlan_filtering 1")
        assert world.reaches(LIVE)
        stations = world.host().link_layer.stations("azure0")
        assert [one for one in stations if one.mac == LIVE_MAC and not one.permanent]
        before = world.shown()
        task = world.sweep()
        assert world.planned(task) == STALE
        with world.stream(LIVE) as lost:
            task.do(Context(timeout=60))
            assert world.reaches(REUSED)
            task.undo(Context(timeout=60))
        assert world.shown() == before
        assert lost == []
