"""`hostrouting init` prints what the node itself shows, and leaves a place for what it does not."""

import json
from pathlib import Path

import pytest
from support.in_process import run_here
from support.kernel import connect, uplink
from support.printed import EMPTIED, INSTALL_THERE, NOT_EXECUTABLE, UNSEEN

from hostrouting import Host
from hostrouting.testing import FakeHost
from phases import Context

KUBELET = b"kind: KubeletConfiguration\nclusterDNS:\n- 10.96.0.10\nclusterDomain: cluster.local\n"
SERVER = b"clusters:\n- cluster:\n    server: https://%s:443\n  name: kubernetes\n"


COMMAND = "/usr/bin/hostrouting"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return node(monkeypatch)


def node(monkeypatch: pytest.MonkeyPatch, command: str = COMMAND) -> FakeHost:
    """Return the node on which the command runs, from this path."""
    monkeypatch.setattr("hostrouting.testing.host_fakes._COMMAND", command)
    host = FakeHost()
    uplink(host.routes)
    monkeypatch.setattr(Host, "live", lambda: host)
    return host


def test_a_joined_node_names_its_services(host: FakeHost, tmp_path: Path) -> None:
    """On a joined node `init` prints the network of the exit, the given CIDR, and the addresses in
    the kubelet's files, each with its source; `check` accepts what is printed.
    """
    host.files.write("/var/lib/kubelet/config.yaml", KUBELET, mode=0o600)
    host.files.write("/var/lib/kubelet/kubeconfig", SERVER % b"10.0.0.1", mode=0o600)
    printed = run_here("init", "--cidr", "10.0.0.0/16")
    assert json.loads(printed.stdout) == {
        "hostRouting": {
            "routeOverlap": {
                "mode": "WARN",
                "expectedCidrs": ["10.0.0.0/16", "10.96.0.10/32", "10.0.0.1/32"],
                "expectedDevs": ["10.224.0.0/16"],
            }
        }
    }
    for line in (
        "10.0.0.0/16: given",
        "10.96.0.10/32: /var/lib/kubelet/config.yaml",
        "10.0.0.1/32: /var/lib/kubelet/kubeconfig",
        "10.224.0.0/16: eth0, the device of a default route",
    ):
        assert line in printed.stderr
    (config := tmp_path / "config.json").write_text(printed.stdout)
    assert "leave through eth0" in run_here("check", config).stdout


LASTS = "copy it to /usr/local/bin/hostrouting and run that"


@pytest.mark.parametrize(
    ("command", "mode", "reason"),
    [
        ("/tmp/a/hostrouting", 0o755, f"{UNSEEN}{LASTS}"),  # noqa: S108 - in memory
        ("/run/hostrouting", 0o755, f"{EMPTIED}{LASTS}"),
        (COMMAND, 0o644, f"{NOT_EXECUTABLE}{COMMAND}"),
        (COMMAND, None, INSTALL_THERE),
    ],
)
def test_a_command_that_a_boot_does_not_find(
    monkeypatch: pytest.MonkeyPatch, command: str, mode: int | None, reason: str
) -> None:
    """For a command that a boot does not find `init` leaves the watch out, and its line has the
    reason, the step, and the timer.
    """
    host = node(monkeypatch, command)
    if mode is not None:
        host.files.write(command, b"#!/usr/bin/python3\n", mode=mode)
    printed = run_here("init")
    line = f"missing: watch: the command {command} {reason}; "
    assert (
        f'{line}"watch": {{"enabled": true}} is a timer, which needs no command\n' in printed.stderr
    )
    assert [*json.loads(printed.stdout)["hostRouting"]] == ["routeOverlap"]


def test_a_command_that_lasts_watches(host: FakeHost, tmp_path: Path) -> None:
    """For a command that a boot finds `init` prints a watch as a service, which `check` accepts."""
    host.files.write(COMMAND, b"#!/usr/bin/python3\n", mode=0o755)
    printed = run_here("init", "--cidr", "10.0.0.0/16")
    watch = json.loads(printed.stdout)["hostRouting"]["watch"]
    assert watch == {"enabled": True, "mode": "service"}
    assert "watch: /usr/bin/hostrouting, which a boot finds\n" in printed.stderr
    (config := tmp_path / "config.json").write_text(printed.stdout)
    assert "leaves through eth0" in run_here("check", config).stdout


def test_the_agents_of_this_node_are_its_gates(host: FakeHost, tmp_path: Path) -> None:
    """`init` prints each agent that is enabled or up as a gate; on a node without one it leaves the
    default gates.
    """
    default = (
        "gates: the default (systemd-nspawn@.service, kubelet.service), since no agent is enabled"
    )
    for name in "kubelet.service", "k3s.service", "rke2-agent.service":
        path = f"/etc/systemd/system/{name}"
        host.files.write(path, b"[Service]\nExecStart=/bin/k\n", mode=0o644)
    printed = run_here("init")
    assert "gates" not in json.loads(printed.stdout)["hostRouting"]
    assert f"{default}\n" in printed.stderr
    host.files.link(
        "/etc/systemd/system/multi-user.target.wants/k3s.service",
        "/etc/systemd/system/k3s.service",
    )
    printed = run_here("init", "--cidr", "10.0.0.0/16")
    assert json.loads(printed.stdout)["hostRouting"]["gates"] == ["k3s.service"]
    assert "k3s.service: a gate, since this node starts it\n" in printed.stderr
    (config := tmp_path / "config.json").write_text(printed.stdout)
    assert "leaves through eth0" in run_here("check", config).stdout
    host.services.start(Context(), "rke2-agent.service")
    printed = run_here("init")
    gates = json.loads(printed.stdout)["hostRouting"]["gates"]
    assert gates == ["k3s.service", "rke2-agent.service"]
    assert "k3s.service, rke2-agent.service: a gate, since" in printed.stderr


def test_a_systemd_that_does_not_answer(host: FakeHost) -> None:
    """Without an answer of systemd `init` prints the rest of the config, and reports the gates as
    missing.
    """
    host.services.fail_at(1)
    printed = run_here("init")
    assert "gates" not in json.loads(printed.stdout)["hostRouting"]
    assert "missing: gates: Failed to connect to bus: Connection refused\n" in printed.stderr


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (b"\n", b"\r\n", "10.96.0.10"),
        (b"10.96.0.10", b"'10.96.0.10'  # of services", "10.96.0.10"),
        (b"10.96.0.10\n", b"10.96.0.9\n- fd00::a\n", "10.96.0.9 fd00::a"),
        (b"10.0.0.1:443", b"[fd00::1]/k8s", "10.96.0.10 fd00::1"),
        (b"https://10.0.0.1:443", b'"HTTPS://10.0.0.2"', "10.96.0.10 10.0.0.2"),
        (b"\n- 10.96.0.10", b" [10.96.0.10]", "missing: the addresses in /var/lib/kubelet/config"),
    ],
)
def test_forms_of_the_files(host: FakeHost, old: bytes, new: bytes, found: str) -> None:
    """`init` reads the kubelet's files with any line ends, quotes and comments, and reports the
    addresses of another form as missing.
    """
    for path, text in ("config.yaml", KUBELET), ("kubeconfig", SERVER % b"10.0.0.1"):
        host.files.write(f"/var/lib/kubelet/{path}", text.replace(old, new), mode=0o600)
    printed = run_here("init")
    overlap = json.loads(printed.stdout)["hostRouting"]["routeOverlap"]
    names = [cidr.partition("/")[0] for cidr in overlap["expectedCidrs"]]
    assert found in f"{' '.join(names)}\n{printed.stderr}"


@pytest.mark.parametrize(
    "name",
    ["api.example.com", "::1", "127.1.0.1", "0.0.0.9", "224.0.0.1", "::ffff:10.0.0.1", "fe80::1"],
)
def test_what_is_missing_is_requested(host: FakeHost, name: str) -> None:
    """`init` does not expect a name, or an address that cannot be another host's: it reports the
    addresses as missing, and its last line has the step.
    """
    host.files.write("/etc/kubernetes/kubelet.conf", SERVER % name.encode(), mode=0o600)
    printed = run_here("init")
    line = f"missing: the addresses behind {name}, which /etc/kubernetes/kubelet.conf names"
    assert line in printed.stderr
    assert printed.stderr.endswith("API server not listed; give them by --cidr\n")
    assert '"expectedCidrs": []' in printed.stdout


@pytest.mark.parametrize(
    ("own", "server", "cidr"),
    [("10.224.0.5/16", "10.224.0.5", "10.224.0.5/32"), ("fd00::5/64", "[fd00::5]", "fd00::5/128")],
)
def test_the_address_of_a_control_plane(host: FakeHost, own: str, server: str, cidr: str) -> None:
    """`init` leaves the node's own address out, since packets for it do not leave the node."""
    host.routes.add_address("eth0", own)
    path = "/etc/kubernetes/kubelet.conf"
    host.files.write(path, SERVER % server.encode(), mode=0o600)
    printed = run_here("init")
    line = f"left out: {cidr}, the node's own address, which {path} names\n"
    assert line in printed.stderr
    assert '"expectedCidrs": []' in printed.stdout


def test_a_single_address_is_expected(host: FakeHost) -> None:
    """`init` expects an API server's address that this node has as a /32, since another node may
    have it as well.
    """
    host.routes.add_address("eth0", "10.224.0.5/32")
    host.files.write("/etc/kubernetes/kubelet.conf", SERVER % b"10.224.0.5", mode=0o600)
    printed = run_here("init")
    assert "10.224.0.5/32: /etc/kubernetes/kubelet.conf\n" in printed.stderr
    overlap = json.loads(printed.stdout)["hostRouting"]["routeOverlap"]
    assert overlap["expectedCidrs"] == ["10.224.0.5/32"]


def test_a_large_file_is_not_read_whole(host: FakeHost) -> None:
    """`init` reports the addresses in a file that is too large as missing, since a part of the file
    may end in half an address, which is another one. A long run of blanks at the beginning does not
    take quadratic time.
    """
    path = "/var/lib/kubelet/config.yaml"
    host.files.write(path, b" " * 500_000 + b"x\n" + KUBELET * 9999, mode=0o600)
    printed = run_here("init")
    assert f"missing: the addresses in {path}, too large or in another form" in printed.stderr


@pytest.mark.parametrize(
    ("mac", "addresses", "route", "line"),
    [
        ("", "169.254.3.4/16 10.9.9.9/32 10.225.0.4/16", "default", "10.225.0.0/16: eth1, the"),
        ("", "10.9.9.9/32", "default", "eth1: eth1, the"),
        ("00:" * 19 + "00", "10.1.1.1/16", "default", "missing: expectedDevs: 0 devices"),
        ("", "fd00::1/64", "::/0", "eth1: eth1, the"),
        ("", "10.225.0.4/16", "::/0", "eth1: eth1, the"),
        ("", "", "default", "missing: expectedDevs: 2 devices have an IPv4 default route"),
    ],
)
def test_the_device_of_the_default_route(
    host: FakeHost, mac: str, addresses: str, route: str, line: str
) -> None:
    """`init` names the exit by its first network that a fleet can share, else by its name;
    InfiniBand, and a choice of several devices, are reported as missing.
    """
    if addresses:
        host.routes.remove_link("eth0")
    host.routes.add_link("eth1", mac=mac)
    for address in addresses.split():
        host.routes.add_address("eth1", address)
    host.routes.add_route(route, dev="eth1", metric=50)
    printed = run_here("init")
    overlap = json.loads(printed.stdout)["hostRouting"]["routeOverlap"]
    assert line in printed.stderr
    assert line.startswith(overlap.get("expectedDevs", ["missing"])[0])


def test_a_device_with_one_name_in_a_fleet(host: FakeHost) -> None:
    """`init` names a bond instead of its network, since it has one name in a fleet."""
    host.routes.remove_link("eth0")
    host.routes.add_link("bond0", kind="bond")
    host.routes.add_address("bond0", "10.224.0.4/16")
    host.routes.add_route("default", gateway="10.224.0.1", dev="bond0")
    printed = run_here("init")
    assert "bond0: bond0, the device of a default route\n" in printed.stderr
    overlap = json.loads(printed.stdout)["hostRouting"]["routeOverlap"]
    assert overlap["expectedDevs"] == ["bond0"]


def test_a_network_with_another_device(host: FakeHost) -> None:
    """`init` names the exit by its device if another device has an address in the same network."""
    connect(host.routes, eth1="10.224.7.7/32")
    printed = run_here("init")
    overlap = json.loads(printed.stdout)["hostRouting"]["routeOverlap"]
    assert overlap["expectedDevs"] == ["eth0"]


@pytest.mark.parametrize("words", ["--cidr x", "--cidr 10.0.0.0/16,10.1.0.0/16", "10.0.0.0/16"])
def test_a_wrong_cidr_is_refused(words: str) -> None:
    """`init` refuses a wrong CIDR with the way to give several, and prints nothing on stdout."""
    refused = run_here("init", *words.split())
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.endswith("; give --cidr once for each expected CIDR\n")
