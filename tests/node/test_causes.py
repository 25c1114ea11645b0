"""The causes that stand in the way of an apply come in the order in which they must go; on a fake
machine.
"""

import os
from collections.abc import Callable

import attrs
import pytest
from support.patience import at_once
from support.printed import MAY_CHANGE, SEE_DHCP
from support.run_nodes import forget_devs, lose_our_routes, lose_the_default_route, node

from hostrouting import Configure, HostRoutingConfig, node_status
from hostrouting.base.findings import NodeFinding
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.net.links import Device
from hostrouting.net.outbound import devices_down
from hostrouting.node.check import check_node
from hostrouting.node.report import NodeReport
from hostrouting.testing import FakeHost
from phases import execute
from phases.testing import ManualClock

APPLY = f"hostrouting apply {CONFIG_PATH}"
CONFIG = HostRoutingConfig.from_mapping(
    {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]},
        "gates": ["systemd-nspawn@.service"],
    }
)
FOLDER = "/etc/aks-flex-node"
RUN = "/run/hostrouting"
CLOSING = f"chown 0 {RUN} && chmod go-w {RUN}"
UNIT = "/etc/systemd/system/static-routes.service"
SCRIPT = f"{FOLDER}/static-routes.sh"
REMOUNT = f'mount -o remount,rw "$(findmnt -n -o TARGET -T {FOLDER})"'
Trouble = Callable[[FakeHost], object]
IS_READ_ONLY: Trouble = lambda host: host.files.read_only.add("/etc")  # noqa: E731
RUN_IS_FULL: Trouble = lambda host: host.files.full.add("/run")  # noqa: E731
IS_MASKED: Trouble = lambda host: host.files.link(UNIT, "/dev/null")  # noqa: E731
IS_OPEN: Trouble = lambda host: host.files.tree.change(RUN, mode=0o777)  # noqa: E731
IS_DOWN: Trouble = lambda host: host.routes.set_up("eth0", up=False)  # noqa: E731


@pytest.fixture
def host() -> FakeHost:
    """A node that an apply found right."""
    host = node()
    # The address of InfiniBand has 20 octets.
    host.routes.add_link("ib0", mac=":".join(["00"] * 20))
    host.routes.add_address("ib0", "172.16.1.4/16")
    execute(Configure(CONFIG, host=host), at_once())
    return host


@pytest.mark.parametrize(
    ("troubles", "fact", "step"),
    [
        (
            [lambda host: host.files.full.add("/etc"), lose_our_routes],
            f"{FOLDER} has less than 64 kB",
            None,
        ),
        (
            [RUN_IS_FULL, lose_our_routes],
            "/run has less than 16384 kB",
            None,
        ),
        (
            [IS_DOWN],
            "eth0 is administratively down, so no traffic leaves through it",
            "ip link set eth0 up",
        ),
        (
            [IS_OPEN, lose_our_routes],
            f"hostRouting: {MAY_CHANGE}{RUN}",
            CLOSING,
        ),
        ([RUN_IS_FULL, IS_READ_ONLY, lose_our_routes], f"{FOLDER} is read-only", REMOUNT),
        ([IS_MASKED, IS_READ_ONLY], f"{FOLDER} is read-only", REMOUNT),
        ([IS_READ_ONLY, IS_DOWN], "eth0 is administratively down", "ip link set eth0 up"),
        (
            [IS_MASKED, lose_our_routes],
            f"{UNIT}: will be refused",
            "systemctl unmask static-routes.service",
        ),
        (
            [lambda host: host.files.link(SCRIPT, "/dev/null"), lose_our_routes],
            f"{SCRIPT}: will be refused",
            f"rm {SCRIPT}",
        ),
    ],
)
def test_the_first_step(
    host: FakeHost, troubles: list[Trouble], fact: str, step: str | None
) -> None:
    """The sentence of a status begins with the cause that must be removed first, and the next step
    is the command against this cause; against a full disk it is for the owner, with a command that
    shows what may go.
    """
    for trouble in troubles:
        trouble(host)
    status = node_status(at_once(), host)
    assert status.next == step
    assert status.sentence.startswith(f"wrong: {fact}")
    assert status.lines()[-1].startswith(f"next: {step or 'no command repairs this: '}")


def test_each_finding_of_a_status_has_a_reason_and_a_cause_its_command(host: FakeHost) -> None:
    """Each finding of a status has a reason, a cause has its command in a key of its own, and a
    wrong address does not count as right.
    """
    IS_DOWN(host)
    answer = node_status(at_once(), host).to_mapping()
    findings = answer["findings"]
    assert [each["kind"] for each in findings if not each["reason"]] == []
    [cause] = [each for each in findings if each["kind"] == "device-down"]
    assert cause["command"] == "ip link set eth0 up"
    assert cause["reason"].endswith("; run: ip link set eth0 up")
    assert answer["cidrs"] == {"expected": 1, "right": 0}


def test_a_held_unit_waits_for_what_is_wrong(host: FakeHost) -> None:
    """The reason of a held unit names what must become right first: the boot files, without which
    nothing checks the routing, or routing and the boot files.
    """
    host.services.start(at_once(), "hostrouting-held@systemd-nspawn@kube1.service.service")
    host.files.remove(UNIT)
    for words in "the boot files are", "routing and the boot files are":
        [held] = [
            found for found in node_status(at_once(), host).check.findings if found.kind == "held"
        ]
        assert held.reason.endswith(f", and starts by itself once {words} right")
        lose_our_routes(host)


def test_a_held_unit_counts_from_the_boot(host: FakeHost) -> None:
    """A unit is held since the boot if systemd has no later time, however long the node has run."""
    host.services.start(at_once(), "hostrouting-held@systemd-nspawn@kube1.service.service")
    ctx = at_once()
    ctx.sleep(3600)
    [held] = [found for found in node_status(ctx, host).check.findings if found.kind == "held"]
    assert held.since == ManualClock.EPOCH


def test_a_gate_has_the_state_of_its_finding() -> None:
    """A gate has the state of its finding, a template the states of its instances, and a gate
    without a finding is open.
    """
    found = (
        NodeFinding("held", "kubelet.service", "waits"),
        NodeFinding("gate-down", "systemd-nspawn@kube1.service", "is down"),
    )
    config = HostRoutingConfig(gates=("a.service", "kubelet.service", "systemd-nspawn@.service"))
    assert NodeReport(findings=found).gates(config) == {
        "a.service": ("open", ""),
        "kubelet.service": ("held", "waits"),
        "systemd-nspawn@kube1.service": ("down", "is down"),
    }


@pytest.mark.usefixtures("in_tokyo")
def test_a_time_for_programs_is_utc() -> None:
    """The time of a finding ends in Z, and is the same in each time zone."""
    since = NodeFinding("held", "a.service", "waits", since=1785542400.5).to_mapping()["since"]
    assert since == "2026-08-01T00:00:00Z"


@pytest.mark.parametrize("named", ["10.224.0.0/16", "eth0"])
def test_a_named_device_that_is_down(host: FakeHost, named: str) -> None:
    """The only step for a device of `expectedDevs` that is down is the command that sets it up."""
    host.routes.set_up("eth0", up=False)
    overlap = {"expectedCidrs": ["172.16.8.0/22"], "expectedDevs": [named]}
    config = HostRoutingConfig.from_mapping({"routeOverlap": overlap, "gates": []})
    report = check_node(at_once(), config, host)
    assert [(cause.subject, cause.command) for cause in report.causes] == [
        ("eth0", "ip link set eth0 up")
    ]
    assert report.overlap.steps == ""


NAMES_NETWORK = HostRoutingConfig.from_mapping(
    {
        **CONFIG.to_mapping(),
        "routeOverlap": {
            "expectedCidrs": ["172.16.8.0/22"],
            "expectedDevs": ["10.224.0.0/16"],
        },
    }
)


@pytest.mark.parametrize(
    ("trouble", "kind", "step"),
    [
        (IS_DOWN, "device-down", "ip link set eth0 up"),
        (lambda _: None, "lost-default", f"networkctl reconfigure eth0 && {APPLY}"),
    ],
)
@pytest.mark.parametrize("by_fabric", [True, False])
def test_the_device_of_a_network_lost_its_address(
    host: FakeHost, trouble: Trouble, kind: str, step: str, *, by_fabric: bool
) -> None:
    """The step for a network of `expectedDevs` whose device has lost its address, which a manager
    takes from a device that is down, names the device without an address, also where another device
    has a default route.
    """
    execute(Configure(NAMES_NETWORK, host=host), at_once())
    for number in range(1, 3):
        host.routes.add_link(f"eth{number}")
        host.routes.add_address(f"eth{number}", f"192.168.{number}.4/24")
    path, text, _ = MANAGERS["systemd-networkd"]
    start(host, "systemd-networkd")
    for link in host.routes.links():
        host.files.write(path.format(link.ifindex), f"{text}\n".encode(), mode=0o644)
    lose_the_default_route(host)
    lose_our_routes(host)
    host.routes.remove_address("eth0", "10.224.0.4/16")
    if by_fabric:
        host.routes.add_route("default", gateway="172.16.0.1", dev="ib0")
    trouble(host)
    status = node_status(at_once(), host)
    [found] = status.check.first
    assert (found.kind, found.subject, status.next) == (kind, "eth0", step)


def test_a_gate_that_is_down_beside_one_that_is_missing(host: FakeHost) -> None:
    """Of the warnings about a right node, one that has a command comes first; each gate has the
    state of its unit, or that the node does not have the unit.
    """
    units = {
        "systemd-nspawn@.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=machines.target\n",
        "machines.target": "[Unit]\n",
    }
    for name, text in units.items():
        host.files.write(f"/lib/systemd/system/{name}", text.encode(), mode=0o644)
    config = attrs.evolve(CONFIG, gates=("other.service", *CONFIG.gates))
    execute(Configure(config, host=host), at_once())
    unit = "systemd-nspawn@kube1.service"
    host.services.failing.add(unit)
    host.services.start(at_once(), unit)
    host.services.start(at_once(), "machines.target")
    status = node_status(at_once(), host)
    warnings = [found.kind for found in status.check.findings if found.severity == "warning"]
    assert sorted(warnings) == ["gate-failed", "gate-missing"]
    assert status.sentence == (
        f"warning: {unit}: is failed (exit-code), although machines.target wants it, and is not held"
    )
    assert status.next == f"systemctl start {unit}"
    gates = status.to_mapping()["gates"]
    states = [gates[name]["active_state"] for name in ("other.service", unit)]
    assert states == ["no such unit", "failed"]


@pytest.mark.parametrize("trouble", [IS_READ_ONLY, RUN_IS_FULL])
def test_a_node_that_needs_no_apply(host: FakeHost, trouble: Trouble) -> None:
    """A right node with a read-only /etc or a full /run is right, without a next step."""
    trouble(host)
    status = node_status(at_once(), host)
    kinds = [finding.kind for finding in status.check.findings]
    assert kinds == ["not-watched"]
    assert status.next is None


def test_a_lease_that_is_late(host: FakeHost) -> None:
    """A device that is set down is not a cause of a missing default route while the pinned device
    is up.
    """
    lose_the_default_route(host)
    host.routes.add_link("eth1", up=False)
    kinds = [finding.kind for finding in node_status(at_once(), host).check.findings]
    assert "device-down" not in kinds


def test_a_device_that_may_be_the_exit_is_set_down() -> None:
    """Where an exit is not pinned, the step for a missing default route names the device that is
    set down.
    """
    bare = FakeHost()
    bare.routes.add_link("eth0", up=False)
    bare.routes.add_link("eth1")
    report = check_node(at_once(), CONFIG, bare)
    assert report.causes == []
    assert report.overlap.steps == (
        f"Give the node a default route: {SEE_DHCP}.\n"
        "eth0 is administratively down: if it leads to the cluster, run: ip link set eth0 up"
    )


NETWORKD = "/run/systemd/netif/links/{}"
#: By the program that has a device: its file, and the command with which it configures it again.
MANAGERS = {
    "systemd-networkd": (
        NETWORKD,
        "NETWORK_FILE=/etc/systemd/network/10-eth0.network",
        "networkctl reconfigure eth0",
    ),
    "netplan": (
        NETWORKD,
        "NETWORK_FILE=/run/systemd/network/10-netplan-eth0.network",
        "netplan apply",
    ),
    "NetworkManager": (
        "/run/NetworkManager/devices/{}",
        "managed=true\nconnection-uuid=5ad",
        "nmcli device reapply eth0",
    ),
    "": ("/run/nobody", "", None),
}


def start(host: FakeHost, manager: str) -> None:
    """Let the service of a program that manages devices run."""
    unit = "systemd-networkd" if manager == "netplan" else manager
    if unit:
        host.files.link(f"/run/systemd/units/invocation:{unit}.service", "0123")


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("lacking", ["address", "default route"])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_default_route_is_lost(
    host: FakeHost, manager: str, lacking: str, *, pinned: bool
) -> None:
    """The next step for a lost default route is the command of the program that manages the device,
    with the apply that brings back the routes which that drops; without such a program the step is
    None. It is the same if no device is expected.
    """
    path, text, step = MANAGERS[manager]
    [index] = [link.ifindex for link in host.routes.links() if link.name == "eth0"]
    host.files.write(path.format(index), f"{text}\n".encode(), mode=0o644)
    start(host, manager)
    assert node_status(at_once(), host).next is None
    if not pinned:
        forget_devs(host)
    lose_the_default_route(host)
    lose_our_routes(host)
    if lacking == "address":
        host.routes.remove_address("eth0", "10.224.0.4/16")
    status = node_status(at_once(), host)
    [found] = [each for each in status.check.findings if each.kind == "lost-default"]
    assert (found.subject, found.severity) == ("eth0", "warning")
    assert f"IPv4 {lacking}" in found.reason
    assert manager in found.reason
    assert status.check.first == [found]
    # The files of an image that is none differ, but an apply would fail.
    assert status.next == (step and f"{step} && {APPLY}")


@pytest.mark.parametrize("manager", ["systemd-networkd", "netplan"])
def test_a_manager_that_waits_is_not_started_anew(host: FakeHost, manager: str) -> None:
    """A device that systemd-networkd is still configuring has no next command: its owner reads the
    log of networkd.
    """
    path, text, _ = MANAGERS[manager]
    [index] = [link.ifindex for link in host.routes.links() if link.name == "eth0"]
    start(host, manager)
    content = f"ADMIN_STATE=configuring\n{text}\n".encode()
    host.files.write(path.format(index), content, mode=0o644)
    lose_the_default_route(host)
    lose_our_routes(host)
    step = node_status(at_once(), host).step
    assert step
    assert step.type == "owner"
    assert step.text.endswith("see: journalctl -b -u systemd-networkd.service")


@pytest.mark.parametrize(
    ("pinned", "links", "down", "is_one_the_exit"),
    [
        ("eth0", {"eth0": True, "eth1": False}, (), False),
        ("eth0", {"eth0": False, "eth1": True}, ("eth0",), True),
        ("gone0", {"eth0": False, "eth1": False}, ("eth0", "eth1"), True),
        (None, {"eth0": False, "eth1": True}, ("eth0",), False),
        (None, {"eth0": False, "cali0": True}, ("eth0",), True),
        (None, {"eth0": True, "cali0": False}, (), False),
        (None, {"cali0": False}, ("cali0",), True),
        (None, {"eth0": False, "docker0": True}, ("eth0",), True),
    ],
)
def test_which_devices_are_set_down(
    pinned: str | None,
    links: dict[str, bool],
    down: tuple[str, ...],
    is_one_the_exit: bool,
) -> None:
    """`devices_down` returns the pinned device, or else all hardware, as far as it is down; virtual
    devices count only on a node without hardware.

    Which device is the exit is undecided while another piece of hardware is up.
    """
    kinds = {"cali0": "veth", "docker0": "bridge"}
    devices = [
        Device(name, number, up=up, kind=kinds.get(name, ""))
        for number, (name, up) in enumerate(links.items())
    ]
    named = [pinned] if pinned else []
    assert devices_down(named, devices) == (down, is_one_the_exit)


@pytest.mark.parametrize("pid", ["4711", "own", "no process", ""])
def test_another_run_is_under_way(host: FakeHost, pid: str) -> None:
    """A lost route is waited for while the process of another run has the lock, and is an error
    with its usual step otherwise.
    """
    own = str(os.getpid())
    text = f"{pid.replace('own', own)}\n"
    host.files.write("/run/hostrouting.lock", text.encode(), mode=0o600)
    for process in "4711", own:
        host.files.write(f"/proc/{process}", b"", mode=0o444)
    assert node_status(at_once(), host).check.verdict == "right"
    lose_our_routes(host)
    status = node_status(at_once(), host)
    is_waiting = pid == "4711"
    assert status.ok is False
    assert status.check.verdict == ("waiting" if is_waiting else "wrong")
    assert status.next == ("hostrouting status --wait 60" if is_waiting else APPLY)
    assert status.sentence.startswith("waiting: process 4711 changes") is is_waiting
