"""A `--node-ip` that is not on the exit of the node is a note; on a fake machine."""

import pytest
from support.kernel import connect, uplink
from support.patience import at_once

from hostrouting import Configure, HostRoutingConfig
from hostrouting.node.check import check_node
from hostrouting.testing import FakeHost
from phases import execute

CONFIG = HostRoutingConfig.from_mapping(
    {"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"]}, "gates": []}
)
ARGV = b"/usr/bin/kubelet\0--config=/etc/kubelet.yaml\0%s\0"


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    uplink(host.routes, ib0="172.16.1.4/16")
    connect(host.routes, eth1="10.9.0.4/16")
    host.routes.add_address("ib0", "fd00:16::4/64")
    execute(Configure(CONFIG, host=host), at_once())
    return host


def notes(host: FakeHost) -> list[str]:
    report = check_node(at_once(), CONFIG, host)
    assert report.ok
    return [str(finding) for finding in report.findings if finding.kind == "node-ip"]


def run_kubelet(host: FakeHost, argv: bytes, name: bytes = b"kubelet\n") -> None:
    for path, content in (("comm", name), ("cmdline", argv)):
        host.files.write(f"/proc/812/{path}", content, mode=0o444)


@pytest.mark.parametrize("option", [b"--node-ip=10.9.0.4", b"--node-ip\x0010.9.0.4,fd00:16::4"])
def test_a_running_kubelet(host: FakeHost, option: bytes) -> None:
    """The `--node-ip` of a running kubelet is a note if its IPv4 address is on another device than
    the exit, also in a list with an IPv6 address.
    """
    run_kubelet(host, ARGV % option)
    assert notes(host) == [
        (
            "note: node-ip: --node-ip=10.9.0.4 of the kubelet: is on eth1, through which its requests come, and the answers "
            "leave through eth0; see /proc/812/cmdline; if eth0 is the right device, use one of its addresses"
        )
    ]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/default/kubelet", "# one\nKUBELET_EXTRA_ARGS='--v=2 --node-ip=10.9.0.4'\n"),
        ("/var/lib/kubelet/kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--node-ip=10.9.0.4"\n'),
        ("/etc/rancher/k3s/config.yaml", 'token: abc\nnode-ip: "10.9.0.4"\n'),
    ],
)
def test_a_file_of_its_options(host: FakeHost, path: str, text: str) -> None:
    """A `--node-ip` in a file of the kubelet's options is a note that names the file."""
    host.files.write(path, text.encode(), mode=0o644)
    [note] = notes(host)
    assert ": is on eth1, through which its requests come" in note
    assert f"see {path};" in note


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (b"--node-ip=10.224.0.4", b"kubelet\n"),
        (b"--node-ip=10.77.0.4", b"kubelet\n"),
        (b"--node-ip=10.9.0.4", b"sleep\n"),
        (b"--node-ip=node", b"kubelet\n"),
        (b"--v=2", b"kubelet\n"),
    ],
)
def test_what_is_not_a_note(host: FakeHost, option: bytes, name: bytes) -> None:
    """A `--node-ip` is not a note if its address is on the exit or on none of the devices, or if
    the program is not a kubelet.
    """
    run_kubelet(host, ARGV % option, name)
    assert notes(host) == []
