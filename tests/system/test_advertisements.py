"""Real systemd-networkd with two links on which routers advertise themselves: what becomes of the default routes."""

import json
import re
from contextlib import ExitStack
from typing import Any, Final

import pytest
from support.ipv6_events import IPV6_ROUTE_EVENTS, kinds_of_events
from support.patience import wait_until
from support.routers import Prefix, Router
from support.systemd_box import SystemdBox, require_systemd_box
from system.test_networkd import SETTINGS

from hostrouting.host.netlink.conversation import in_namespace, open_here

DEVICES: Final = ("eth0", "rdma0")
#: Two links into a namespace of routers; nothing waits for the detection of duplicates.
WIRES: Final = """
sysctl -qw net.ipv6.conf.default.accept_dad=0
ip netns add beyond
for dev in eth0 rdma0; do
    ip link add $dev type veth peer name $dev netns beyond
    ip -n beyond address add fe80::a/64 dev $dev nodad
    ip -n beyond link set $dev up
done
"""
#: As of `test_networkd.WITH_UDEV`, for both devices.
NETWORKD: Final = f"""
{WIRES}
rm /etc/systemd/system/systemd-networkd.service
cd /etc/systemd
mkdir -p network system/systemd-networkd.service.d system/multi-user.target.wants
ln -s /lib/systemd/system/systemd-networkd.service system/multi-user.target.wants/
mount -o remount,rw /sys
mkdir -p /run/udev/data
for dev in eth0 rdma0; do
    echo I:1 > /run/udev/data/n$(cat /sys/class/net/$dev/ifindex)
    cat > network/10-$dev.network <<END
[Match]
Name=$dev
[Network]
IPv6AcceptRA=yes
LinkLocalAddressing=ipv6
END
done
cat > system/systemd-networkd.service.d/settings.conf <<'END'
{SETTINGS}END
"""
NO_GATEWAY: Final = """
mkdir -p /etc/systemd/network/10-rdma0.network.d
printf '[IPv6AcceptRA]\\nUseGateway=no\\n' > /etc/systemd/network/10-rdma0.network.d/50-no-gateway.conf
networkctl reload
networkctl reconfigure rdma0
"""
RTF_ADDRCONF: Final = 0x40000


@pytest.fixture(autouse=True)
def _possible() -> None:
    require_systemd_box()


class Advertised(SystemdBox):
    """A machine whose networkd listens to advertisements on both links; `routers` are their far ends."""

    def __init__(self, prepare: str = NETWORKD) -> None:
        super().__init__(prepare=prepare)

    def __enter__(self) -> "Advertised":
        super().__enter__()
        self._stack = ExitStack()
        self.routers = [Router(f"{self.root}/run/netns/beyond", dev) for dev in DEVICES]
        for router in self.routers:
            self._stack.callback(router.close)
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_stack"):
            self._stack.close()
        super().__exit__(*_)

    def advertise_until(self, wanted: list[tuple[list[str], int]], **settings: Any) -> None:
        """Advertise, on the second link with these settings, until there are these default routes: devices and metric.

        A daemon may not listen yet.
        """

        def told() -> bool:
            self.routers[0].advertise(lifetime=settings.get("lifetime", 1800), options=[Prefix("fd01::/64")])
            self.routers[1].advertise(**settings)
            return self.defaults() == wanted

        wait_until(told, f"{wanted}; there is {self.defaults()}")

    def shown(self) -> list[dict[str, Any]]:
        return list(json.loads(self.run("ip", "-6", "-j", "route", "show", "default").stdout or "[]"))

    def defaults(self) -> list[tuple[list[str], int]]:
        """Return the devices and the metric of each default route, in the order of the kernel."""
        return [
            (sorted(leg["dev"] for leg in route.get("nexthops", [route])), route["metric"]) for route in self.shown()
        ]

    def are_learned_by_the_kernel(self) -> bool:
        """Return whether any default route has RTF_ADDRCONF."""
        lines = self.run("cat", "/proc/net/ipv6_route").stdout.splitlines()
        words = [line.split() for line in lines]
        return any(int(each[-2], 16) & RTF_ADDRCONF for each in words if each[1] == "00" and each[-1] in DEVICES)


def defaults_of(version: int, preference: str) -> list[tuple[list[str], int]]:
    """Return what networkd makes of an advertisement on eth0, and one with this preference on rdma0."""
    if version < 257:
        return [(["eth0", "rdma0"], 1024)]
    metric = {"high": 512, "medium": 1024, "low": 2048}[preference]
    return sorted([(["eth0"], 1024), (["rdma0"], metric)], key=lambda one: one[1])


@pytest.mark.parametrize("preference", ["high", "medium", "low"])
def test_two_links(preference: str) -> None:
    """252 makes one multipath route, whatever the preference; 257 two by objects, with a metric by preference.

    None of them is a route of the kernel's own, which does not listen.
    """
    with Advertised() as machine:
        machine.advertise_until(defaults_of(machine.version, preference), preference=preference)
        assert {route["protocol"] for route in machine.shown()} == {"ra"}
        assert not machine.are_learned_by_the_kernel()
        assert all("nhid" in route for route in machine.shown()) == (machine.version >= 257)
        switches = machine.run("sysctl", "-n", *(f"net.ipv6.conf.{dev}.accept_ra" for dev in DEVICES)).stdout
        assert switches.split() == ["0", "0"]


def test_forwarding_takes_none_away() -> None:
    """They stay when a CNI switches forwarding on, and are renewed."""
    with Advertised() as machine:
        wanted = defaults_of(machine.version, "medium")
        machine.advertise_until(wanted, lifetime=100)
        machine.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        assert machine.defaults() == wanted
        machine.advertise_until(wanted)
        wait_until(lambda: all(route["expires"] > 100 for route in machine.shown()), "a renewal")


def test_a_renewal_is_no_loss() -> None:
    """The kernel takes the same route again as another time of expiry, and announces nothing."""
    with Advertised() as machine:
        wanted = defaults_of(machine.version, "medium")
        machine.advertise_until(wanted, lifetime=1000)
        with in_namespace(f"/proc/{machine.pid}/ns/net", open_here) as listener:
            listener.bind((0, IPV6_ROUTE_EVENTS))
            machine.advertise_until(wanted, lifetime=1800)
            wait_until(lambda: all(route["expires"] > 1000 for route in machine.shown()), "a renewal")
            assert kinds_of_events(listener) == []


def test_expiry() -> None:
    """A router that says no more loses its route, and so does one that takes it back."""
    with Advertised() as machine:
        wanted = defaults_of(machine.version, "medium")
        machine.advertise_until(wanted, lifetime=3)
        wait_until(lambda: machine.defaults() == [], "the end of the routes")
        machine.advertise_until(wanted)
        machine.routers[1].advertise(lifetime=0)
        wait_until(lambda: machine.defaults() == [(["eth0"], 1024)], "the loss of the route by rdma0")


@pytest.mark.parametrize("options", [[Prefix("fd02::/64")], []])
def test_the_advice_ends_the_default_by_the_fabric(options: list[Prefix]) -> None:
    """`UseGateway=no` in a drop-in, reload and reconfigure: the default by rdma0 is gone, and stays away.

    Where its router offers no prefix, 257 never takes the device for configured, and whoever waits for that waits on.
    """
    with Advertised() as machine:
        wanted = defaults_of(machine.version, "high")
        machine.advertise_until(wanted, preference="high", options=options)
        cursor = machine.cursor()
        machine.run("bash", "-ec", NO_GATEWAY)
        wait_until(lambda: machine.defaults() == [(["eth0"], 1024)], f"the end of {machine.defaults()}")
        heard = re.compile(r"rdma0: NDISC: Invoking callback for 'router' event\.")
        machine.advertise_until([(["eth0"], 1024)], preference="high", options=options)
        machine.wait_for(heard, unit="systemd-networkd.service", after=cursor)
        if machine.version < 257 or options:
            machine.until("[[ $(networkctl --no-legend list rdma0) == *configured* ]]")
        assert machine.defaults() == [(["eth0"], 1024)]
        state = machine.run("networkctl", "--no-legend", "list", "rdma0").stdout.split()[-1]
        assert state == ("configured" if machine.version < 257 or options else "configuring")
