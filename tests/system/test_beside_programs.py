"""Debian's bird, dhcpcd and NetworkManager, each keeping a route to the destination of our route
next to hostrouting.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs
import pytest
from support.needs import require
from support.patience import wait_until
from support.systemd_box import SystemdBox, install_command, require_program
from support.trees import make_tree

from hostrouting import Configure, HostRoutingConfig, Reset
from phases import Context, execute

PACKAGES = (
    *("python3", "systemd", "dbus", "iproute2", "procps"),
    # debootstrap does not find the one that polkitd needs.
    "libpam-systemd",
    *("bird2", "dhcpcd-base", "dnsmasq-base", "frr", "network-manager"),
)
PLACE = "172.16.8.0/22"
OWN_ROUTE = f"{PLACE} via 10.224.0.1 dev eth0 proto 142"
CONFIG = HostRoutingConfig.from_mapping(
    {
        "staticRoutes": {
            "enabled": True,
            "routes": [{"destination": PLACE, "gateway": "10.224.0.1", "dev": "eth0"}],
        },
        "watch": {"enabled": True, "mode": "service"},
        "gates": [],
    }
)
#: The last numbers of the gateways of a program: the one that it begins with, and the one that it
#: changes to.
OLDER, NEWER = "9", "8"
_WIRE = """
ip netns add beyond
ip link add eth0 type veth peer name wire netns beyond
ip -n beyond address add 10.224.0.1/24 dev wire
ip -n beyond link set wire up
mkdir -p /etc/systemd/system/multi-user.target.wants
# So that the time it takes is its own, also beside other tests.
mkdir -p /etc/systemd/system/hostrouting-watch.service.d
printf '[Service]\nNice=-20\n' > /etc/systemd/system/hostrouting-watch.service.d/test.conf
enable() { ln -s "$1" /etc/systemd/system/multi-user.target.wants/; }
"""
_ADDRESS = "ip link set eth0 up; ip address add 10.224.0.4/24 dev eth0\n"
_DHCP_SERVER = """
cat > /etc/dhcp-server.conf <<'END'
port=0
interface=wire
dhcp-authoritative
dhcp-range=10.224.0.4,10.224.0.4,255.255.255.0,2m
dhcp-option=121,0.0.0.0/0,10.224.0.1,172.16.8.0/22,10.224.0.9
END
cat > /etc/systemd/system/dhcp-server.service <<'END'
[Service]
ExecStart=/usr/sbin/dnsmasq --keep-in-foreground --conf-file=/etc/dhcp-server.conf --dhcp-leasefile=/run/leases
NetworkNamespacePath=/run/netns/beyond
END
enable /etc/systemd/system/dhcp-server.service
"""


@attrs.frozen(kw_only=True)
class Program:
    """A program and its events; `@` stands for the last number of the gateway that it then
    wants.
    """

    name: str
    #: Bash that sets it up, with 10.224.0.9 for its gateway.
    prepare: str
    #: Its route, as `ip` shows it.
    route: str
    #: Commands after which it has put its route in place again.
    disturbances: dict[str, str]
    #: Its route has the place of our route, so the remainders may concern it.
    is_in_place: bool = False
    #: The kernel refuses its additions while our route is there.
    adds_exclusively: bool = False

    def wants(self, gateway: str) -> str:
        """Return the route that it wants by a gateway."""
        return self.route.replace("@", gateway)


def _program(
    unit: str,
    metric: int,
    prepare: str,
    route: str,
    *,
    adds_exclusively: bool = False,
    **disturbances: str,
) -> Program:
    """Describe a program that can be restarted, with its metric."""
    return Program(
        name=f"{unit} with metric {metric}",
        prepare=prepare,
        route=f"{PLACE} via 10.224.0.@ dev eth0 proto {route}"
        + (f" metric {metric}" if metric else ""),
        disturbances={
            **disturbances,
            "restart": f"systemctl restart {unit}",
            "flap": "ip link set eth0 down; ip link set eth0 up",
        },
        is_in_place=not metric,
        adds_exclusively=adds_exclusively,
    )


def _bird(metric: int) -> Program:
    return _program(
        "bird",
        metric,
        f"""{_ADDRESS}
cat > /etc/bird/bird.conf <<'END'
log stderr all;
router id 10.224.0.4;
protocol device {{ scan time 1; }}
protocol kernel {{ ipv4 {{ export all; import none; }}; metric {metric}; scan time 1; }}
protocol static {{ ipv4; route {PLACE} via 10.224.0.9; }}
END
enable /lib/systemd/system/bird.service
""",
        "bird",
        adds_exclusively=not metric,
        reload=f"sed -i 's#{PLACE} via [^;]*#{PLACE} via 10.224.0.@#' /etc/bird/bird.conf; "
        "systemctl reload bird",
    )


def _dhcpcd(metric: int) -> Program:
    return _program(
        "dhcpcd",
        metric,
        f"""{_DHCP_SERVER}
cat > /etc/systemd/system/dhcpcd.service <<'END'
[Service]
ExecStart=/sbin/dhcpcd --nobackground --ipv4only --noarp --nohook resolv.conf --metric {metric} eth0
END
enable /etc/systemd/system/dhcpcd.service
""",
        "dhcp src 10.224.0.4",
        renewal="sed -i 's/22,10.*/22,10.224.0.@/' /etc/dhcp-server.conf; systemctl restart dhcp-server; "
        "dhcpcd --ipv4only --rebind eth0",
    )


def _network_manager(metric: int) -> Program:
    return _program(
        "NetworkManager",
        metric,
        f"""
cat > /etc/NetworkManager/NetworkManager.conf <<'END'
[main]
plugins=keyfile
dns=none
END
cat > /etc/NetworkManager/system-connections/eth0.nmconnection <<'END'
[connection]
id=eth0
type=ethernet
interface-name=eth0
[ipv4]
method=manual
address1=10.224.0.4/24
route1={PLACE},10.224.0.9,{metric}
[ipv6]
method=disabled
END
chmod 600 /etc/NetworkManager/system-connections/*
enable /lib/systemd/system/NetworkManager.service
""",
        "static",
        reload=f"nmcli connection modify eth0 ipv4.routes '{PLACE} 10.224.0.@ {metric}'; "
        "nmcli device reapply eth0",
        renewal="nmcli connection up eth0",
    )


#: The remainders concern this program alone: it deletes by destination, and adds exclusively.
DHCPCD_IN_OUR_PLACE = _dhcpcd(0)
#: It gives way to our route.
ZEBRA = Program(
    name="zebra",
    prepare=f"""{_ADDRESS}
echo 'ip route {PLACE} 10.224.0.9' > /etc/frr/frr.conf
enable /lib/systemd/system/frr.service
""",
    route=f"{PLACE} via 10.224.0.@ dev eth0 proto static metric 20",
    disturbances={},
)
#: At their default metrics, and where they can, at that of our route.
PROGRAMS = {
    program.name: program
    for program in (
        *map(_bird, (32, 0)),
        _dhcpcd(1002),
        *map(_network_manager, (100, 0)),
    )
}


#: Words of a route that depend on the moment.
_PASSING = re.compile(r" linkdown| nhid \d+")
_Any = TypeVar("_Any", bound="Beside")


class Beside(SystemdBox):
    """A machine with a program; hostrouting is installed, and does nothing before an apply."""

    def __init__(self, program: Program, tree: Path, folder: Path) -> None:
        image = folder / "image"
        install_command(image, python=Path("/usr/bin/python3"))
        super().__init__(prepare=_WIRE + program.prepare, image=image, tree=tree)
        self.program = program
        #: The last number of the gateway that the program wants.
        self.gateway = OLDER

    def __enter__(self: _Any) -> _Any:
        """Boot, and wait until the program has its route."""
        super().__enter__()
        self.wait_until(lambda: self.program.wants(self.gateway) in self.place())
        return self

    def place(self) -> list[str]:
        """Return the routes to the destination of our route."""
        shown = self.run(
            "ip", "-4", "-oneline", "route", "show", "exact", PLACE
        ).stdout.splitlines()
        return [_PASSING.sub("", line).strip() for line in shown]

    def apply(self) -> None:
        """Apply the config; Watch runs as a service, and is ready."""
        execute(Configure(CONFIG, host=self.host), Context(timeout=300))
        # It waits for a start that goes on.
        self.run("systemctl", "start", "hostrouting-watch.service")

    def reset(self) -> None:
        """Remove everything of hostrouting."""
        execute(Reset(CONFIG, host=self.host), Context(timeout=300))

    def disturb(self, name: str) -> None:
        """Let something happen to the program, and wait until it has put its route in place, if it
        can.
        """
        self.run("bash", "-ec", self.program.disturbances[name].replace("@", NEWER))
        self.gateway = NEWER if "@" in self.program.disturbances[name] else self.gateway
        if not self.program.adds_exclusively:
            self.wait_until(lambda: self.program.wants(self.gateway) in self.place())

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until something holds."""
        wait_until(done, "the route of the program, or of hostrouting")

    def until_in_force(self) -> None:
        """Wait until our route is the first of its place."""
        self.wait_until(lambda: self.place()[:1] == [OWN_ROUTE])


pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tree with the programs: none is installed, or started, on this machine."""
    require("systemd", "debootstrap")
    require_program()
    return make_tree("bookworm", tmp_path_factory.mktemp("beside") / "bookworm", *PACKAGES)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(tree: Path, tmp_path: Path, name: str) -> None:
    """Own routes are in force again after every disturbance by the program, and after a reset the
    program's own route is.

    At a metric of its own the program notices nothing. In our place an older route of the program
    may stay behind the one that it wants.
    """
    program = PROGRAMS[name]
    with Beside(program, tree, tmp_path) as machine:
        machine.apply()
        for disturbance in program.disturbances:
            machine.disturb(disturbance)
            machine.until_in_force()
        machine.reset()
        # At the latest when it looks again.
        machine.wait_until(lambda: machine.place()[:1] == [program.wants(machine.gateway)])
        _, *others = machine.place()
        assert others == [] or (program.is_in_place and others == [program.wants(OLDER)])


def test_dhcpcd_in_our_place(tree: Path, tmp_path: Path) -> None:
    """A renewal by dhcpcd with another gateway deletes the own route instead of the older route,
    case (c), and the newer one is refused, case (b); watch repairs the own route.

    After the reset dhcpcd has the older route until it adds the newer one.
    """
    program = DHCPCD_IN_OUR_PLACE
    with Beside(program, tree, tmp_path) as machine:
        machine.apply()
        machine.run("bash", "-ec", program.disturbances["renewal"].replace("@", NEWER))
        machine.until(
            f"journalctl --unit=hostrouting-watch | grep --quiet 'repaired: + {OWN_ROUTE}'"
        )
        machine.until_in_force()
        assert machine.place() == [OWN_ROUTE, program.wants(OLDER)]
        machine.reset()
        assert machine.place() == [program.wants(OLDER)]


def test_zebra(tree: Path, tmp_path: Path) -> None:
    """Zebra withdraws its static route while the own one is present, case (d), and installs the
    route again after the reset.
    """
    with Beside(ZEBRA, tree, tmp_path) as machine:
        machine.apply()
        machine.wait_until(lambda: machine.place() == [OWN_ROUTE])
        machine.reset()
        machine.wait_until(lambda: machine.place() == [ZEBRA.wants(OLDER)])
