"""A dual-stack node under STRICT with two links on which routers advertise themselves, from its
boot to its units.

The installed scripts hold the units where the fabric's default route decides, and the printed
advice, followed to the letter, starts them. Watch reports what routers remove. The kernel, networkd
or NetworkManager receives the advertisements.
"""

import re
from pathlib import Path

import pytest
from support.gated_machine import EARLY, GATES, KUBE, KUBELET, GatedMachine
from support.systemd_box import BOX_ROOT, PYTHON, install_command, require_program
from system.advertised_machines import KERNEL, NETWORK_MANAGER, NETWORKD, Routers, defaults_of

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from phases import Context
from phases.context import wait

WATCH = "hostrouting-watch.service"
SECTIONS = {
    "staticRoutes": {
        "enabled": True,
        "routes": [{"destination": "172.20.0.0/16"}, {"destination": "fd00:9::/64"}],
    },
    "routeOverlap": {"expectedCidrs": ["172.16.8.0/22", "fd00:8::/48"], "mode": "STRICT"},
    "gates": list(GATES),
}
PREPARED = {"kernel": KERNEL, "networkd": NETWORKD, "NetworkManager": NETWORK_MANAGER}
each_owner = pytest.mark.parametrize(
    "owner", ["kernel", "networkd", pytest.param("NetworkManager", marks=pytest.mark.soak)]
)


@pytest.fixture
def tree(owner: str, request: pytest.FixtureRequest) -> Path:
    """Return the tree of a machine with this owner of the default routes."""
    require_program()
    found: Path = (
        request.getfixturevalue("with_network_manager") if owner == "NetworkManager" else BOX_ROOT
    )
    return found


class Node(GatedMachine):
    """A machine whose image was made by an apply."""

    #: A cursor of the journal, from which news count.
    since: str

    def __init__(
        self, folder: Path, owner: str, tree: Path, *, late: str = "", **changes: object
    ) -> None:
        def arrange(host: Host) -> None:
            python = PYTHON if tree == BOX_ROOT else Path("/usr/bin/python3")
            install_command(folder / "image", python=python)
            config = HostRoutingConfig.from_mapping(SECTIONS | changes)
            Configure(config, host=host, force=True).do(Context(timeout=60))

        prepare = f"late={late}\n{PREPARED[owner]}{EARLY}"
        super().__init__(folder, units=(), arrange=arrange, prepare=prepare, tree=tree)

    def check(self) -> str:
        """Return the output of the command."""
        return self.shell("hostrouting check")

    def next_step(self) -> object:
        """Return the command that `status` offers."""
        return self.status()["next"]

    def printed(self) -> str:
        """Return the messages of watch since then."""
        # Not `--unit`: with it, journalctl 252 skips the first line after the cursor.
        return "\n".join(self.journal(f"--after-cursor={self.since}"))

    def news(self) -> list[str]:
        """Return the kind of each finding that watch has logged, and `again` for the end of an
        alarm.
        """
        news = "^(?:fd00:8::/48: |the expected addresses are routed correctly )([a-z-]+)"
        return re.findall(news, self.printed(), re.MULTILINE)


def steps_of(owner: str, output: str, *, version: int) -> str:
    """Return, as bash, the steps that the printed advice has for an owner."""
    if owner == "kernel":
        return "\n".join(re.findall("^  ((?:sysctl|ip) .+)", output, re.MULTILINE))
    [steps] = re.findall(f"^  {owner}.*?: (.+)", output, re.MULTILINE)
    if owner == "NetworkManager":
        return str(steps).replace("CONNECTION", "rdma0")
    place = re.fullmatch(
        r"(.+) \(before systemd 250: (.+)\) in a drop-in of the \.network file of (\w+), then (.+)",
        steps,
    )
    assert place
    later, earlier, dev, commands = place.groups()
    section, setting = (earlier if version < 250 else later).split()
    folder = f"/etc/systemd/network/10-{dev}.network.d"
    return f"mkdir {folder}; printf '%s\\n%s\\n' '{section}' {setting} > {folder}/50-advice.conf; {commands}"


@pytest.mark.parametrize(
    ("owner", "preference"),
    [
        ("kernel", "high"),
        ("kernel", "medium"),
        ("kernel", "low"),
        ("networkd", "high"),
        # As `high` before systemd 257.
        *(pytest.param("networkd", each, marks=pytest.mark.soak) for each in ("medium", "low")),
        *(
            pytest.param("NetworkManager", each, marks=pytest.mark.soak)
            for each in ("high", "medium", "low")
        ),
    ],
)
def test_from_the_boot_to_the_start(
    tmp_path: Path, owner: str, tree: Path, preference: str
) -> None:
    """A default route through the fabric that decides, alone or with another, holds the units until the
    printed advice is followed.

    One that may decide later is a warning. networkd 252 makes one route of both, and NetworkManager
    prefers the device that it activates first, whatever the preference.
    """
    fine = "high" if owner == "NetworkManager" else "low"
    late = "eth0" if owner == "NetworkManager" and preference != fine else ""
    with Node(tmp_path, owner, tree, late=late) as machine, Routers(machine) as routers:
        wanted = defaults_of(owner, machine.version, preference, first="rdma0" if late else "eth0")
        is_held = preference != fine or len(wanted) == 1
        dev = "rdma0" if is_held else "eth0"
        alone = [one for one in wanted if dev in one[0]] if len(wanted) > 1 else [([dev], 1024)]
        routers.advertise_until(alone, dev, preference=preference)
        if late:
            machine.run("nmcli", "--wait", "0", "connection", "up", late)
        routers.advertise_until(wanted, preference=preference)
        if is_held:
            machine.wait_for_failure("check-route-overlap.service")
            assert (machine.pids(), machine.payloads()) == ((0, 0), [])
            assert machine.systemctl("start", "systemd-nspawn@late.service") == 1
            output = machine.check()
            assert re.search("fd00:8:: to .*: leaves through .*rdma0", output)
            assert "172.16.8.0/22" not in output
            machine.run("bash", "-ec", steps_of(owner, output, version=machine.version))
        for unit in KUBE, KUBELET:
            machine.wait_until_up(unit)
        output = machine.check()
        assert ("fallback-by-fabric" in output) == (not is_held)
        assert ("will-vanish" in output) == (owner == "kernel")
        # A CNI that comes takes no default route, if this advice is followed, too.
        machine.run(
            "sysctl",
            "-qw",
            *re.findall(r": set (net\.ipv6\.\S+)", output),
            "net.ipv6.conf.all.forwarding=1",
        )
        routers.advertise(preference=preference)
        assert machine.systemctl("restart", KUBELET) == 0
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 0
        assert machine.files.exists(MARKER_OK)
        own_routes = machine.run("ip", "-6", "route", "show", "proto", "142").stdout
        assert own_routes.startswith("fd00:9::/64 via fe80::a dev eth0 ")


def test_a_router_that_withdraws(tmp_path: Path) -> None:
    """The first step after a router withdrew its route is to reconfigure the device; if no router
    answers, no command helps, and the step names networkd's log.
    """
    require_program()
    with Node(tmp_path, "networkd", BOX_ROOT) as machine, Routers(machine) as routers:
        routers.advertise_until([(["eth0"], 1024)], "eth0")
        machine.wait_until_up(KUBELET)
        routers.by_device["eth0"].advertise(lifetime=0)
        machine.until("[[ ! $(ip -6 route show default) ]]")
        apply = f"hostrouting apply {CONFIG_PATH}"
        assert machine.next_step() == f"networkctl reconfigure eth0 && {apply}"
        machine.run("networkctl", "reconfigure", "eth0")
        machine.until("[[ $(ip -6 -o address show eth0) == *fe80::* ]]")
        step = machine.status()["step"]
        assert step["type"] == "owner", step
        assert "journalctl -b -u systemd-networkd.service" in step["owner"]


@each_owner
def test_watch(tmp_path: Path, owner: str, tree: Path) -> None:
    """A lost default route is one alarm, whether it expires or is withdrawn, and the end of the
    alarm is logged; a renewal logs nothing.

    Forwarding takes the kernel's routes, and none of a daemon. A default route through the fabric is an
    alarm if it decides.
    """
    watch = {"enabled": True, "mode": "service", "interval": "2s"}
    with Node(tmp_path, owner, tree, watch=watch) as machine, Routers(machine) as routers:
        both = defaults_of(owner, machine.version, "high")
        right = [(["eth0"], both[0][1] if owner == "NetworkManager" else 1024)]

        def give(**settings: int) -> None:
            routers.advertise_until(right, "eth0", **settings)
            machine.until(f"[[ -e {MARKER_OK} && ! -e {MARKER_DETECTED} ]]")

        def until_alarm() -> None:
            machine.until(f"[[ -e {MARKER_DETECTED} && ! -e {MARKER_OK} ]]")

        give()
        machine.run("systemctl", "restart", WATCH)
        machine.since = machine.cursor()
        ctx = Context()
        for _ in range(6):
            give(lifetime=3)
            assert not wait(ctx, lambda: bool(machine.news()), until=ctx.clock.monotonic() + 1)
        until_alarm()
        give()
        routers.by_device["eth0"].advertise(lifetime=0)
        until_alarm()
        give()
        wanted = ["no-route", "again"] * 2
        routers.advertise_until(both, preference="high")
        if owner != "NetworkManager":
            until_alarm()
            assert steps_of(owner, machine.printed(), version=machine.version)
            wanted += ["overlap", "again"]
        routers.by_device["rdma0"].advertise(lifetime=0)
        give()
        machine.run("sysctl", "-qw", "net.ipv6.conf.rdma0.forwarding=1")
        if owner == "kernel":
            until_alarm()
            give()
            wanted += ["no-route", "again"]
        assert routers.defaults() == right
        assert machine.news() == wanted
