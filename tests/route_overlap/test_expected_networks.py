"""A network in `expectedDevs` stands for the device of a default route with an address in it: in
memory, and in the kernel.
"""

from pathlib import Path

import pytest
from support.kernel import needs_kernel
from support.printed import leaves
from support.routers import WiredNode
from support.way_out_nodes import WayOutNode

from hostrouting import Host, HostRoutingConfig, check_node
from hostrouting.route_overlap.waiting import check_with_wait
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context

SERVICES = "10.96.0.0/16"
NODES = "10.224.0.0/16"
WIDE = "10.0.0.0/8"
RIGHT = leaves(SERVICES, "eth0")
WRONG = "1 of 1 expected CIDRs do not leave entirely through {}:"
SEVERAL = "matches several devices (eth0, eth1), so none of them is expected; name one of them, or a narrower network"
#: The devices with default routes, `expectedDevs`, and the first line of the verdict.
CASES = {
    "one": (["eth0"], [NODES], RIGHT),
    "of several default routes": (["eth0", "ib0"], [NODES], RIGHT),
    "beside its name": (["eth0"], ["eth0", NODES], RIGHT),
    "beside another": (["eth0"], [NODES, "eth1"], RIGHT),
    "by another device": (["eth1"], [NODES], WRONG.format(NODES)),
    "several": (["eth0", "eth1"], [WIDE], WRONG.format(WIDE)),
    "no default route": ([], [NODES], WRONG.format(NODES)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_device(prover: WayOutNode, case: str) -> None:
    """A network in `expectedDevs` stands for the device with a default route and an address in it;
    without such a device, or with several, each address is a finding.
    """
    defaults, expected, verdict = CASES[case]
    prover.links("ib0", "eth0", "eth1")
    for metric, dev in enumerate(defaults):
        prover.default(dev, metric=metric)
    report = prover.prove(SERVICES, expectedDevs=expected)
    assert report.verdict.splitlines()[0] == verdict
    steps = {
        "by another device": "eth0: has no IPv4 default route",
        "several": f"{WIDE} in expectedDevs: {SEVERAL}",
    }
    assert report.advice.startswith(steps.get(case, ""))


@needs_kernel
def test_a_dead_next_hop() -> None:
    """A next hop whose device is down is passed over by the kernel; the device, which has an
    address in the expected network, is named as the cause.
    """
    with WiredNode.made() as node:
        prover = WayOutNode(node)
        prover.links("eth0", "eth1")
        prover.default("eth0", "eth1")
        node.set_up("eth1", up=False)
        report = prover.prove(SERVICES, expectedDevs=["10.225.0.0/16"])
    assert [(note.kind, note.subject) for note in report.notes] == [("device-down", "eth1")]


@pytest.mark.parametrize("kind", ["", "infiniband", "bridge"])
def test_infiniband_and_virtual_devices(kind: str) -> None:
    """An InfiniBand or a virtual device does not stand for a network in `expectedDevs`, though it
    has the default route and the address.
    """
    node = MemoryBackend()
    mac = ":".join(["0a"] * 20) if kind == "infiniband" else ""
    node.add_link("ib0", mac=mac, kind=kind if kind == "bridge" else "")
    node.add_address("ib0", "10.224.0.4/16")
    node.add_route("0.0.0.0/0", gateway="10.224.0.1", dev="ib0")
    section = {"expectedCidrs": [SERVICES], "expectedDevs": [NODES]}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    assert check_with_wait(Context(), config, FakeHost(node), seconds=0).ok is (not kind)


def test_an_image(tmp_path: Path) -> None:
    """The check of an image reports a network in `expectedDevs` as left to each boot, as an image
    has no devices.
    """
    section = {"expectedCidrs": [SERVICES], "expectedDevs": [NODES, "eth0"]}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    report = check_node(Context(), config, Host.offline(tmp_path))
    assert [line for line in report.not_asked if "expectedDevs" in line] == [
        f"the device with an address in {NODES} (expectedDevs): each boot finds it"
    ]
