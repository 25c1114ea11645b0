"""A boot starts the gates with the config that `hostrouting init` prints on an ordinary node."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from support.kernel import needs_kernel
from support.overlap_checks import check_cidrs
from support.patience import at_once
from support.worlds import NODES, World

from hostrouting import HostRoutingConfig
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.links import Device
from hostrouting.node.first_config import first_config
from hostrouting.testing import FakeHost, KernelNode

pytestmark = needs_kernel


class _Machine(NetlinkBackend):
    """A namespace whose veth devices are hardware, and one of them InfiniBand."""

    def links(self) -> list[Device]:
        """Return the devices as those of a machine."""
        return [self._as_hardware(link) for link in super().links()]

    def _as_hardware(self, link: Device) -> Device:
        if link.name.startswith("ib"):
            return link._replace(kind="", infiniband=True)
        return link._replace(kind="") if link.kind == "veth" else link


class Init(NamedTuple):
    """A node, and what `init` writes for it."""

    node: World
    devs: Sequence[str] = ()
    gates: Sequence[str] = ()
    #: The address of the API server in the kubelet's files.
    server: str = ""


_SERVICES = ["10.96.0.10/32", "10.0.0.1/32"]
_IPV6_SERVICE = "fd00:10::a/128"
_NETWORK = ["10.224.0.0/16"]
#: The nodes that the issue of this table names; a bond is in no namespace of every kernel.
NAMED = {
    "IPv4 alone": Init(World("BASE", _SERVICES), _NETWORK),
    "IPv6 alone": Init(World("device eth0; ADVERTISED", [_IPV6_SERVICE]), ["eth0"]),
    "both families": Init(World("BASE; ADVERTISED", [*_SERVICES, _IPV6_SERVICE]), _NETWORK),
    "two NICs, one default route": Init(World("BASE; SECOND", _SERVICES), _NETWORK),
    "two NICs of one subnet, one default route": Init(
        World("BASE; device eth1 10.224.0.5/16", _SERVICES), ["eth0"]
    ),
    "two NICs with a default route each": Init(World("BASE; SECOND_LEASE", _SERVICES)),
    "a fabric of InfiniBand": Init(
        World("GPU", [*_SERVICES, "172.16.8.0/22"], pool="172.16.1.4"), _NETWORK
    ),
    "a kubelet": Init(World("BASE", _SERVICES), _NETWORK, ["kubelet.service"]),
    "a control plane": Init(
        World("BASE", ["10.96.0.10/32"]), _NETWORK, ["kubelet.service"], "10.224.0.4"
    ),
    "k3s": Init(World("BASE", _SERVICES), _NETWORK, ["k3s.service"]),
}


def _booted(ordinary: World, files: Mapping[str, bytes]) -> HostRoutingConfig:
    """Return the config of `init` on a node, with which its gates start."""
    with KernelNode.made() as node, KernelNode.made() as beside:
        ordinary.arrange(node, beside)
        host = FakeHost(_Machine(netns=node.name))
        for path, content in files.items():
            host.files.write(path, content, mode=0o644)
            if path.endswith(".service"):
                host.files.link(path.replace("system/", "system/multi-user.target.wants/"), path)
        document, _ = first_config(at_once(), host, ordinary.cidrs)
        config = HostRoutingConfig.from_mapping(document)
        section = document["hostRouting"]["routeOverlap"]
        options = {key: section[key] for key in section.keys() - {"expectedCidrs", "mode"}}
        cidrs = config.route_overlap.expected_cidrs
        assert ordinary._replace(cidrs=cidrs).may_start(node, options)
        proven = check_cidrs(
            host.routes,
            cidrs,
            expected_devs=config.route_overlap.expected_devs or None,
            fabric=ordinary.fabric(node),
        )
    assert proven.ok, proven.lines()
    return config


@pytest.mark.parametrize("name", NAMED)
def test_a_named_node_boots(name: str) -> None:
    """The config of `init` on an ordinary node names its device and its agent, and a boot starts
    the agent.
    """
    ordinary, devs, gates, server = NAMED[name]
    files = {
        f"/etc/systemd/system/{gate}": b"[Service]\nExecStart=/bin/k\n[Install]\nWantedBy=multi-user.target\n"
        for gate in gates
    }
    if server:
        files["/etc/kubernetes/kubelet.conf"] = f"    server: https://{server}:6443\n".encode()
    config = _booted(ordinary, files)
    assert config.route_overlap.expected_devs == (*devs,)
    assert config.gates == (tuple(gates) or HostRoutingConfig().gates)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name for name, node in NODES.items() if node.is_right and node.expected is None],
)
def test_each_right_node_boots(name: str) -> None:
    """A boot of each ordinary right node starts the gates with the config of `init`."""
    assert _booted(NODES[name], {}).asks
