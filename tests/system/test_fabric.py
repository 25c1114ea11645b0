"""The announced fabric on real systemd: a stand-in of WALinuxAgent connects it long after the boot
check.
"""

from pathlib import Path

import pytest
from support.fabric_files import DATA, Files, record
from support.gated_machine import GATES, KUBELET, GatedMachine
from support.hurried import hurried
from support.needs import require
from support.overlap_answers import verdict_of
from support.printed import HELPFUL_ROUTES, NO_FABRIC

from hostrouting import Configure, Host, HostRoutingConfig, check_node
from phases import Context

#: A node in small whose fabric has devices and no addresses yet.
LINKS = """
ip link set lo up
ip link add eth0 type veth peer name wire && ip link set wire up
ip link set eth0 up && ip address add 10.224.0.4/24 dev eth0
ip route add default via 10.224.0.1 dev eth0
ip link add fab0 address 00:15:5d:33:ff:1d type veth peer name far0 && ip link set far0 up
"""
SECOND = (
    "ip link add fab1 address 00:15:5d:33:ff:1e type veth peer name far1 && ip link set far1 up\n"
)
#: Its /sys belongs to the machine that it runs on.
INFINIBAND = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mlx5_0\n"

CIDRS = ["172.16.8.0/22", "172.17.8.0/22"]
POOL = "/var/lib/hyperv/.kvp_pool_0"
HOST = record(b"HostName", b"a host")
ADDRESSES = record(b"IPoIB_Data", DATA)
ANNOUNCED = Files()
#: The agent has nothing to do yet.
AWAITED = Files(pool=HOST)
OFF = Files(configuration=b"OS.EnableRDMA=n\n")
CHECK = "check-route-overlap.service"
AGENT = "walinuxagent.service"
DAEMON = "hv-kvp-daemon.service"
UNITS = "/etc/systemd/system"
DETECTED = "/run/hostrouting/route-overlap.detected"
OK = "/run/hostrouting/route-overlap.ok"
FINE = "172.16.8.0/22, 172.17.8.0/22 leave through eth0\n"


AGENT_UNIT = b"""\
[Unit]
Wants=network-online.target
After=network-online.target
ConditionPathExists=/etc/waagent.conf
[Service]
Type=simple
ExecStart=/usr/local/sbin/waagent
[Install]
WantedBy=multi-user.target
"""


def config_of(*, routed: bool = False) -> HostRoutingConfig:
    """The config of a node that expects a part of each network of the fabric, with routes that fix
    both or without.
    """
    routes = [{"destination": cidr} for cidr in CIDRS if routed]
    sections = {
        "staticRoutes": {"enabled": routed, "routes": routes},
        "routeOverlap": {"expectedCidrs": CIDRS, "mode": "STRICT"},
        "gates": list(GATES),
    }
    return HostRoutingConfig.from_mapping(sections)


class CloudMachine(GatedMachine):
    """A node of the cloud with the agent; None stands for a file that it does not have."""

    def __init__(
        self,
        folder: Path,
        *,
        routed: bool = False,
        files: Files = ANNOUNCED,
        prepare: str = LINKS + SECOND,
    ) -> None:
        def arrange(image: Host) -> None:
            for path, content in ("/etc/waagent.conf", files.configuration), (POOL, files.pool):
                if content is not None:
                    image.files.write(path, content, mode=0o644)
            image.files.write(f"{UNITS}/{AGENT}", AGENT_UNIT, mode=0o644)
            image.files.link(f"{UNITS}/multi-user.target.wants/{AGENT}", f"{UNITS}/{AGENT}")
            program = Path(__file__).parents[1].joinpath("support/waagent.sh").read_bytes()
            image.files.write("/usr/local/sbin/waagent", program, mode=0o755)
            Configure(config_of(routed=routed), host=image, force=True).do(Context(timeout=60))

        super().__init__(folder, units=(), arrange=arrange, prepare=prepare)

    def let_the_agent_act(self, *, until: str = "all addresses are set") -> None:
        """Let the agent begin, and wait until it has printed this."""
        self.until("[[ -p /run/waagent.begin ]]")
        self.run("bash", "-c", "echo > /run/waagent.begin")
        self.wait_for(until, unit=AGENT)

    def markers(self) -> dict[str, str]:
        """The texts of the markers of the check, by their paths."""
        texts = {path: self.files.read(path) for path in (DETECTED, OK)}
        return {
            path: verdict_of(path, text.decode())
            for path, text in texts.items()
            if text is not None
        }

    def findings(self) -> list[str]:
        """The findings of the boot check, each without the deciding route."""
        return [line.partition(" (")[0] for line in self.markers()[DETECTED].splitlines()]

    def printed(self) -> str:
        """The messages of the boot check, without those of systemd."""
        return "\n".join(self.journal("--identifier=check-route-overlap"))


def found(kind: str) -> list[str]:
    by = ["", ""] if kind == "announced" else [" through fab0", " through fab1"]
    return [f"172.1{n}.8.0/22: {kind} 172.1{n}.8.0-172.1{n}.11.255{by[n - 6]}" for n in (6, 7)]


def test_an_announced_fabric_holds_at_boot(tmp_path: Path) -> None:
    """An announced fabric holds the gates under STRICT, before the agent has connected it and
    afterwards, until routes by the named gateway are applied.

    The unit of the check, without any capability, reads a configuration and a pool, with its date,
    that are closed to all but root.
    """
    close = f"chmod 600 {POOL} /etc/waagent.conf && chmod 700 /var/lib/hyperv\n"
    with CloudMachine(tmp_path, prepare=LINKS + SECOND + close) as machine:
        assert machine.payloads() == []
        assert machine.findings() == found("announced")
        assert f"(172.16.0.0/16, announced by {POOL}, written 20" in machine.markers()[DETECTED]
        assert f"\n{HELPFUL_ROUTES}\n" in machine.printed()
        machine.let_the_agent_act()
        assert machine.systemctl("start", CHECK) == 1
        assert machine.findings() == found("overlap")
        assert machine.payloads() == []
        Configure(config_of(routed=True), host=machine.host).do(machine.ctx)
        machine.wait_until_up()
        machine.wait_until_up(KUBELET)
        assert machine.markers() == {OK: FINE}


def test_the_mending_routes_let_a_machine_start(tmp_path: Path) -> None:
    """A node with fixing routes passes the check at boot and after the agent has acted, and only
    the expected CIDRs avoid the fabric.
    """
    with CloudMachine(tmp_path, routed=True) as machine:
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        assert machine.markers() == {OK: FINE}
        assert machine.printed() == FINE.strip()
        pids = machine.pids()
        machine.let_the_agent_act()
        assert machine.systemctl("start", CHECK) == 0
        assert machine.markers() == {OK: FINE}
        report = check_node(machine.ctx, config_of(routed=True), machine.host)
        assert (report.ok, [each.kind for each in report.findings]) == (
            True,
            ["open-exit", "not-watched"],
        )
        assert machine.pids() == pids
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 0
        ways = [
            machine.run("ip", "route", "get", at).stdout
            for at in ("172.16.8.9", "172.16.1.9", "172.17.1.9")
        ]
        assert [way.partition(" dev ")[2].split()[0] for way in ways] == ["eth0", "fab0", "fab1"]


@pytest.mark.parametrize(
    ("files", "agent_prints"),
    [
        (OFF, "RDMA is off"),
        (AWAITED, "the pool has no addresses"),
        (Files(configuration=None, pool=None), ""),
        (Files(pool=HOST + ADDRESSES[:-100]), ""),
    ],
    ids=["off", "without the key", "without all files", "torn"],
)
def test_it_starts(tmp_path: Path, files: Files, agent_prints: str) -> None:
    """A node whose files announce no fabric starts its gates at once, and is right after the agent
    has decided to do nothing.
    """
    with CloudMachine(tmp_path, files=files) as machine:
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        assert machine.markers() == {OK: FINE}
        if agent_prints:
            machine.let_the_agent_act(until=agent_prints)
        assert machine.systemctl("start", CHECK) == 0
        assert machine.markers() == {OK: FINE}
        # Only a node with InfiniBand waits for the addresses.
        assert "waiting" not in machine.printed()


def test_the_wait_ends(tmp_path: Path) -> None:
    """The boot of a node with InfiniBand waits for the fabric's addresses, and starts the gates
    after the wait with a warning; later starts do not wait.

    The wait of 30 s is one second here.
    """
    with (
        hurried(),
        CloudMachine(tmp_path, files=AWAITED, prepare=LINKS + SECOND + INFINIBAND) as machine,
    ):
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        assert machine.markers() == {OK: FINE}
        assert (
            f"warning: routeOverlap: {NO_FABRIC}{POOL} has no IPoIB_Data yet" in machine.printed()
        )
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 0
        assert machine.printed().count("waiting") == 1


def test_files_of_another_user(tmp_path: Path) -> None:
    """A pool file that another user owns and that is closed to the check's unit does not announce a
    fabric.
    """
    close = f"chown nobody {POOL} && chmod 600 {POOL}\n"
    with CloudMachine(tmp_path, prepare=LINKS + SECOND + close) as machine:
        assert machine.markers() == {OK: FINE}
        assert machine.printed() == FINE.removesuffix("\n")


def test_the_order_on_an_absent_daemon(tmp_path: Path) -> None:
    """The unit of the check is ordered after a daemon that this machine does not have, and systemd reports
    nothing about that.
    """
    require("systemd-analyze")
    with CloudMachine(tmp_path) as machine:
        assert machine.run("systemctl", "cat", DAEMON, check=False).returncode == 1
        assert DAEMON in machine.run("systemctl", "show", "--property=After", CHECK).stdout
        verified = machine.run("systemd-analyze", "verify", "--man=no", f"{UNITS}/{CHECK}")
        assert (verified.stdout, verified.stderr) == ("", "")
        assert not [line for line in machine.journal() if DAEMON in line]
