"""Real systemd-networkd: when it removes static routes, which ones the drop-in keeps, and
which ones watch repairs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.systemd_box import SystemdBox, install_command, require_program

from hostrouting import Configure, HostRoutingConfig, check_node
from hostrouting.watch.networkd import DROP_IN_PATH
from phases import Context, execute

Managed = TypeVar("Managed", bound="Machine")

#: With its broadcast address, or networkd of systemd 252 takes the address for another one, and
#: removes it with all routes of the device.
NETWORK = """
[Match]
Name=eth0
[Network]
IPv6AcceptRA=no
LinkLocalAddressing=no
Gateway=10.224.0.1
[Address]
Address=10.224.0.4/24
Broadcast=10.224.0.255
"""
#: As on a machine with udev: a /sys that can be written to, and a database in which eth0 is
#: complete. Without these, networkd takes itself for one in a container. Then it configures a
#: device before it has read foreign routes, and removes none.
WITH_UDEV = """
mount -o remount,rw /sys
mkdir -p /run/udev/data
echo I:1 > /run/udev/data/n$(cat /sys/class/net/eth0/ifindex)
"""
#: It logs when it has configured a device: 247 only so. And Ubuntu's detects a container by other
#: marks than its /sys: a file of PID 1, and the files of a control group that is not the root of
#: all.
SETTINGS = """\
[Service]
Environment=SYSTEMD_LOG_LEVEL=debug
ExecStartPre=+rm -f /run/systemd/container
ProtectControlGroups=no
TemporaryFileSystem=/sys/fs/cgroup
"""
WIRE = "ip link add eth0 type veth peer name wire && ip link set wire up"


def prepare(*, network: str = NETWORK, wire: str = WIRE, conf: str = "") -> str:
    """Return bash that makes eth0, by `wire`, and has networkd manage it."""
    return f"""
{wire}
rm /etc/systemd/system/systemd-networkd.service
cd /etc/systemd
mkdir -p network networkd.conf.d system/systemd-networkd.service.d system/multi-user.target.wants
ln -s /lib/systemd/system/systemd-networkd.service system/multi-user.target.wants/
cat > network/10-eth0.network <<'END'
{network}
END
cat > networkd.conf <<'END'
{conf}END
cat > system/systemd-networkd.service.d/settings.conf <<'END'
{SETTINGS}END
{WITH_UDEV}
"""


ROUTE: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.20.0.0/16"}]}
}
KEPT = {**ROUTE, "watch": {"enabled": True, "interval": "1h", "keepForeignRoutes": True}}
OWN_ROUTES = ["172.20.0.0/16 via 10.224.0.1 dev eth0 proto 142"]


def config(sections: dict[str, Any]) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping({**sections, "gates": ["systemd-nspawn@.service"]})


class Machine(SystemdBox):
    """A machine whose eth0 is managed by networkd."""

    def __init__(self, prepared: str = "", *, image: Path | None = None) -> None:
        super().__init__(prepare=prepared or prepare(), image=image)

    def __enter__(self: Managed) -> Managed:
        super().__enter__()
        self.ctx = Context(timeout=300)
        self.until_configured()
        return self

    def until_configured(self) -> None:
        """Wait until networkd has configured eth0: it has the default route then."""
        self.until(
            "[[ $(networkctl --no-legend list eth0) == *configured* && $(ip route show default) ]]"
        )

    def apply(self, sections: dict[str, Any]) -> None:
        """Apply the config; afterwards the route is there."""
        execute(Configure(config(sections), host=self.host), self.ctx)
        assert self.own_routes() == OWN_ROUTES

    def restart(self) -> None:
        """Start networkd again, and wait until it has configured eth0 again."""
        cursor = self.cursor()
        self.run("systemctl", "restart", "systemd-networkd.service")
        self.wait_until_done(cursor)

    def reconfigure(self) -> None:
        """Let it configure eth0 again."""
        cursor = self.cursor()
        self.run("networkctl", "reconfigure", "eth0")
        self.wait_until_done(cursor)

    def wait_until_done(self, cursor: str) -> None:
        self.until_logged("eth0: State changed: .* -> configured", after=cursor)
        self.until_configured()

    def until_logged(self, pattern: str, *, after: str) -> None:
        """Wait until a line of the journal after a cursor matches a pattern of grep."""
        # Not `--unit`: with it, journalctl 252 skips the first line after the cursor.
        self.until(
            f"journalctl --quiet --output=cat --after-cursor='{after}' | grep --quiet '{pattern}'"
        )

    def own_routes(self) -> list[str]:
        return [str(route) for route in self.host.routes.routes() if route.protocol == 142]

    def watch(self) -> None:
        """Apply the config with the service of watch, and wait until that is ready."""
        self.apply({**ROUTE, "watch": {"enabled": True, "mode": "service"}})
        self.until("systemctl --quiet is-active hostrouting-watch.service")

    def until_repaired(self, disturb: Callable[[], None]) -> None:
        """Do something that takes the route away, and wait until watch has repaired it."""
        cursor = self.cursor()
        disturb()
        self.until("[[ $(ip route show proto 142) == 172.20* ]]")
        self.until_logged("repaired: + 172.20", after=cursor)


def test_a_restart_is_survived_with_the_drop_in() -> None:
    """Own routes and rules survive every restart of networkd with the drop-in, even the first one
    after the apply, as networkd reads its settings at the start.

    Without the drop-in a restart or a reconfiguration removes own routes, about which the check
    warns.
    """
    with Machine() as machine:
        machine.apply(KEPT)
        machine.run("ip", "rule", "add", "from", "10.224.9.9", "lookup", "88")
        findings = check_node(machine.ctx, config(KEPT), machine.host).findings
        assert [each for each in findings if each.kind == "networkd"] == []
        for _ in range(3):
            machine.restart()
            assert machine.own_routes() == OWN_ROUTES
            assert "lookup 88" in machine.run("ip", "rule").stdout
        # Removed, it counts until the next restart.
        assert machine.host.files.exists(DROP_IN_PATH)
        machine.apply(ROUTE)
        assert not machine.host.files.exists(DROP_IN_PATH)
        findings = check_node(machine.ctx, config(ROUTE), machine.host).findings
        assert any("policy rules" in each.reason for each in findings)
        assert ("networkd", "eth0", "warning") in [
            (each.kind, each.subject, each.severity) for each in findings
        ]
        machine.restart()
        assert machine.own_routes() == []
        assert "lookup 88" not in machine.run("ip", "rule").stdout
        machine.apply(ROUTE)
        machine.reconfigure()
        assert machine.own_routes() == []


@pytest.mark.parametrize(
    ("main", "later", "survives"),
    [
        ("", "[Network]\nManageForeignRoutes=\\\n# a comment\n  No\n", True),
        ("[Network]\nManageForeignRoutes=off\n", "[Network]\nManageForeignRoutes=maybe\n", True),
        ("[Network]\nManageForeignRoutes=off\n", "[Network]\nManageForeignRoutes=on\n", False),
        ("[Network\n", "[Network]\nManageForeignRoutes=no\n", False),
        ("", "[Network]\nManageForeignRoutes=no\n[Network\nManageForeignRoutes=yes\n", True),
    ],
)
def test_the_reader_agrees_with_networkd(main: str, later: str, *, survives: bool) -> None:
    """A restart of networkd removes own routes exactly if the reader of its settings predicts
    that.
    """
    with Machine(prepare(conf=main)) as machine:
        machine.apply(ROUTE)
        machine.host.files.write(
            "/etc/systemd/networkd.conf.d/50-later.conf", later.encode(), mode=0o644
        )
        findings = check_node(machine.ctx, config(ROUTE), machine.host).findings
        assert ("networkd" not in [each.kind for each in findings]) == survives
        machine.restart()
        assert (machine.own_routes() == OWN_ROUTES) == survives


def test_watch_repairs(tmp_path: Path) -> None:
    """A route that networkd removes at a reconfigure or a restart is restored by `hostrouting
    watch`.

    The drop-in that prevents both is not installed here.
    """
    require_program()
    install_command(tmp_path / "image")
    with Machine(image=tmp_path / "image") as machine:
        machine.watch()
        for disturb in machine.reconfigure, machine.restart:
            machine.until_repaired(disturb)
        assert machine.own_routes() == OWN_ROUTES
