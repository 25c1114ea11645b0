"""examples/container.py, the program of a DaemonSet: pods on a node in a network namespace."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.documents import ROOT
from support.kernel import needs_kernel, uplink
from support.patience import wait_until

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.testing import KernelNode

PROGRAM = ROOT / "examples/container.py"
FIRST = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
SECOND = "172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142"
#: As the DaemonSet mounts the folders of the node: only /run may be written to. The image has no
#: systemctl, and this program no right but that to change routes.
POD = """
for folder in etc var/lib; do mount --bind "$0/$folder" "$0/$folder"; mount -o remount,bind,ro "$0/$folder"; done
export PATH=/nowhere
exec /usr/bin/setpriv --bounding-set=-all,+net_admin,+dac_read_search --inh-caps=-all "$@" "$0"
"""


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        uplink(node, ib0="172.16.1.4/16")
        yield node


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in "etc/aks-flex-node", "run", "var/lib":
        (tmp_path / "host" / folder).mkdir(parents=True)
    return tmp_path / "host"


def own_routes(node: KernelNode) -> list[str]:
    routes = NetlinkBackend(netns=node.name).routes()
    return [str(route) for route in routes if route.protocol == 142]


def started(node: KernelNode, root: Path, destination: str) -> subprocess.Popen[str]:
    """Start the pod of a config with one destination."""
    config = root.parent / "config.json"
    section = {"enabled": True, "routes": [{"destination": destination}]}
    expected = {"expectedCidrs": [destination], "mode": "STRICT"}
    config.write_text(json.dumps({"staticRoutes": section, "routeOverlap": expected}))
    enter = ["nsenter", f"--net=/run/netns/{node.name}", "unshare", "--mount", "sh", "-ec", POD]
    command = [*enter, str(root), sys.executable, str(PROGRAM), str(config)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True)


@contextmanager
def pod(node: KernelNode, root: Path, destination: str) -> Iterator[None]:
    """Run a pod; it has configured the node when the block begins, and gets SIGTERM at its end."""
    process = started(node, root, destination)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        while not lines or (lines[-1] and "started task=container/watch" not in lines[-1]):
            lines.append(process.stdout.readline())
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 0, [*lines, output]


def lose(node: KernelNode, destination: str) -> None:
    """Delete a route, and wait until it is restored."""
    before = own_routes(node)
    node.ip(f"route del {destination}")
    wait_until(lambda: own_routes(node) == before, "the lost route")


@needs_kernel
def test_pods_of_a_daemonset_look_after_the_routes_of_a_node(node: KernelNode, root: Path) -> None:
    """The first pod adds the route of its config, the second one finds it, and one of a changed
    config replaces it; each restores its route when it is lost. They write nothing but /run, and
    where a config is installed, a pod changes nothing and says why.
    """
    own = ("172.16.8.0/22", FIRST)
    for destination, route in own, own, ("172.16.16.0/24", SECOND):
        with pod(node, root, destination):
            assert own_routes(node) == [route]
            # A pod that is stopped before its watch runs exits with 1.
            lose(node, destination)
    assert [
        path for path in root.rglob("*") if path.is_file() and root / "run" not in path.parents
    ] == []
    (root / "etc/aks-flex-node/hostrouting.json").write_text("{}")
    refused = started(node, root, "172.16.8.0/22")
    output, _ = refused.communicate()
    assert refused.returncode == 1
    assert "a config is installed on this host (/etc/aks-flex-node/hostrouting.json)" in output
    assert own_routes(node) == [SECOND]
