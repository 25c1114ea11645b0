"""Real daemons with two links on which routers advertise themselves: what becomes of the default
routes.

systemd-networkd is that of the machine; NetworkManager that of Debian 12.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.advertised_machines import (
    DEVICES,
    NETWORK_MANAGER,
    NETWORKD,
    Default,
    Routers,
    defaults_of,
)
from support.ipv6_events import IPV6_ROUTE_EVENTS, kinds_of_events
from support.patience import wait_until
from support.routers import Prefix
from support.systemd_box import SystemdBox

from hostrouting.host.netlink.conversation import in_namespace, open_here

NO_GATEWAY = """
mkdir -p /etc/systemd/network/10-rdma0.network.d
printf '{setting}\\n' > /etc/systemd/network/10-rdma0.network.d/50-no-gateway.conf
networkctl reload
"""
NEVER_DEFAULT = "nmcli connection modify rdma0 ipv6.never-default yes; nmcli device reapply rdma0"


@contextmanager
def networkd() -> Iterator[Routers]:
    with SystemdBox(prepare=NETWORKD) as machine, Routers(machine) as routers:
        yield routers


def renewed_in_silence(routers: Routers, wanted: list[Default], renewed: int) -> None:
    """Let the routers repeat it, until the daemon has received it; no route is announced."""
    with in_namespace(f"/proc/{routers.machine.pid}/ns/net", open_here) as listener:
        listener.bind((0, IPV6_ROUTE_EVENTS))
        routers.advertise_until(wanted, lifetime=renewed)
        if all("expires" in route for route in routers.shown()):
            wait_until(
                lambda: all(route["expires"] > renewed - 500 for route in routers.shown()),
                "a renewal",
            )
        assert kinds_of_events(listener) == []


@pytest.mark.parametrize("preference", ["high", "medium", "low"])
def test_two_links(preference: str) -> None:
    """252 makes one multipath route, whatever the preference; 257 two by objects, with a metric by
    preference.

    None of them is a route of the kernel's own, which does not listen.
    """
    with networkd() as routers:
        machine = routers.machine
        routers.advertise_until(
            defaults_of("networkd", machine.version, preference), preference=preference
        )
        assert {route["protocol"] for route in routers.shown()} == {"ra"}
        assert not routers.are_learned_by_the_kernel()
        assert all("nhid" in route for route in routers.shown()) == (machine.version >= 257)
        switches = machine.run(
            "sysctl", "-n", *(f"net.ipv6.conf.{dev}.accept_ra" for dev in DEVICES)
        ).stdout
        assert switches.split() == ["0", "0"]


def test_forwarding_takes_none_away() -> None:
    """They stay when a CNI switches forwarding on, and are renewed."""
    with networkd() as routers:
        wanted = defaults_of("networkd", routers.machine.version, "medium")
        routers.advertise_until(wanted, lifetime=100)
        routers.machine.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        assert routers.defaults() == wanted
        routers.advertise_until(wanted)
        wait_until(lambda: all(route["expires"] > 100 for route in routers.shown()), "a renewal")


def test_a_renewal_is_silent() -> None:
    """To the kernel the same route is another time of expiry, which it announces to nobody."""
    with networkd() as routers:
        wanted = defaults_of("networkd", routers.machine.version, "medium")
        routers.advertise_until(wanted, lifetime=1000)
        renewed_in_silence(routers, wanted, 1800)


@pytest.mark.parametrize("options", [[Prefix("fd02::/64")], []])
def test_the_advice_ends_the_default_by_the_fabric(options: list[Prefix]) -> None:
    """`UseGateway=no` in a drop-in, and a reload: the default by rdma0 is gone, and stays
    away.

    Where its router offers no prefix, 257 never takes the device for configured, and whoever waits
    for that waits on.
    """
    with networkd() as routers:
        machine = routers.machine
        routers.advertise_until(
            defaults_of("networkd", machine.version, "high"), preference="high", options=options
        )
        cursor = machine.cursor()
        setting = "[IPv6AcceptRA]\\nUseGateway=no"
        if machine.version < 250:
            # 249 ignores the key.
            setting = "[Network]\\nIPv6AcceptRA=no"
        machine.run("bash", "-ec", NO_GATEWAY.format(setting=setting))
        routers.until_there_are([(["eth0"], 1024)])

        def is_taken() -> bool:
            routers.advertise(preference="high", options=options)
            journal = machine.journal("--unit=systemd-networkd.service", f"--after-cursor={cursor}")
            return "rdma0: NDISC: Invoking callback for 'router' event." in journal

        # Without IPv6AcceptRA= it receives none.
        if machine.version >= 250:
            wait_until(
                is_taken,
                "an advertisement that networkd receives: it has just set the link up again",
            )
        if machine.version < 257 or options:
            machine.until("[[ $(networkctl --no-legend list rdma0) == *configured* ]]")
        assert routers.defaults() == [(["eth0"], 1024)]
        state = machine.run("networkctl", "--no-legend", "list", "rdma0").stdout.split()[-1]
        assert state == ("configured" if machine.version < 257 or options else "configuring")


@pytest.mark.soak
class TestNetworkManager:
    """1.42: each default route stands alone, without a time of expiry for the kernel."""

    @pytest.fixture
    def routers(self, with_network_manager: Path) -> Iterator[Routers]:
        with (
            SystemdBox(prepare=NETWORK_MANAGER, tree=with_network_manager) as machine,
            Routers(machine) as routers,
        ):
            yield routers

    @pytest.mark.parametrize("preference", ["high", "medium", "low"])
    def test_two_links(self, routers: Routers, preference: str) -> None:
        """Metric 100 and 101 in the order of activation; the preference is kept, and decides
        nothing.
        """
        self.activate(routers, preference=preference)
        assert [route["pref"] for route in routers.shown()] == ["medium", preference]
        assert not any("expires" in route or "nhid" in route for route in routers.shown())
        assert not routers.are_learned_by_the_kernel()

    def activate(self, routers: Routers, **settings: object) -> None:
        """Let the first router advertise itself before the second one."""
        routers.advertise_until([(["eth0"], 100)], "eth0")
        routers.advertise_until([(["eth0"], 100), (["rdma0"], 101)], **settings)

    def test_forwarding_renewal_and_loss(self, routers: Routers) -> None:
        """With forwarding on they stay; a renewal is silent; a router that takes its route back
        loses it.
        """
        self.activate(routers)
        routers.machine.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        renewed_in_silence(routers, [(["eth0"], 100), (["rdma0"], 101)], 1800)
        routers.by_device["rdma0"].advertise(lifetime=0)
        routers.until_there_are([(["eth0"], 100)])

    def test_the_advice(self, routers: Routers) -> None:
        """`ipv6.never-default`, and the device applied again: its default route is gone, and stays
        away.
        """
        self.activate(routers, preference="high")
        routers.machine.run("bash", "-ec", NEVER_DEFAULT)
        routers.until_there_are([(["eth0"], 100)])

        def is_taken() -> bool:
            routers.advertise(preference="high", options=[Prefix("fd02::/64")])
            return (
                " fd02::"
                in routers.machine.run("ip", "-6", "address", "show", "dev", "rdma0").stdout
            )

        wait_until(is_taken, "an address by an advertisement")
        assert routers.defaults() == [(["eth0"], 100)]
