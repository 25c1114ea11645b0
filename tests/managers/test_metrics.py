"""Two network cards of one network, the wrong one first: the metric belongs to the route's owner."""

import pytest
from support.kernel import connect
from support.printed import DEFAULT_THROUGH, IF_RIGHT

from hostrouting import prove_egress
from hostrouting.testing import FakeHost

CIDR = "10.96.0.0/16"
DHCP = 16
STATIC = 4
BOOT = 3
WRONG = f"{DEFAULT_THROUGH}eth1"
RELOAD = "and run: networkctl reload"
NETPLAN = {
    "/etc/netplan/01-other.yaml": "network: {ethernets: {eno1: {dhcp4: true}}}\n",
    "/etc/netplan/50-cloud-init.yaml": "network:\n  ethernets:\n    eth1:\n      dhcp4: true\n",
    # netplan does not read it.
    "/etc/netplan/50-cloud-init.yaml.orig": "network: {ethernets: {eth1: {dhcp4: true}}}\n",
}


def networkd(path: str) -> dict[str, str]:
    text = f"# This is private data. Do not parse.\nADMIN_STATE=configured\nNETWORK_FILE={path}\n"
    return {"/run/systemd/netif/links/{}": text}


def manager(uuid: str) -> dict[str, str]:
    text = f"[device]\nmanaged=true\nconnection-uuid={uuid}\n"
    return {"/run/NetworkManager/devices/{}": text}


def node(protocol: int, files: dict[str, str]) -> FakeHost:
    """Two devices of one network; the default route through eth1 decides."""
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16", eth1="10.224.0.5/16")
    for dev, metric in ("eth0", 200), ("eth1", 100):
        host.routes.add_route(
            "default", gateway="10.224.0.1", dev=dev, metric=metric, protocol=protocol
        )
    index = next(link.ifindex for link in host.routes.links() if link.name == "eth1")
    for path, text in files.items():
        host.files.write(path.format(index), text.encode(), mode=0o644)
    return host


@pytest.mark.parametrize(
    ("protocol", "files", "step"),
    [
        (
            DHCP,
            networkd("/etc/systemd/network/10-eth1.network"),
            f"set RouteMetric=300 in [DHCPv4] of /etc/systemd/network/10-eth1.network.d/metric.conf, {RELOAD}",
        ),
        (
            STATIC,
            networkd("/etc/systemd/network/10-eth1.network"),
            f"set Metric=300 in [Route] of /etc/systemd/network/10-eth1.network, {RELOAD}",
        ),
        (
            DHCP,
            networkd("/run/systemd/network/10-netplan-eth1.network") | NETPLAN,
            "set route-metric: 300 in dhcp4-overrides of eth1 in /etc/netplan/50-cloud-init.yaml, and run: netplan apply",
        ),
        (
            STATIC,
            networkd("/run/systemd/network/10-netplan-eth1.network"),
            (
                "set metric: 300 in the default route in routes of eth1 in a file of /etc/netplan, "
                "and run: netplan apply"
            ),
        ),
        (
            STATIC,
            manager("1c8a3d6e"),
            "run: nmcli connection modify 1c8a3d6e ipv4.route-metric 300; nmcli device reapply eth1",
        ),
        (BOOT, networkd("/etc/systemd/network/10-eth1.network"), ""),
        (DHCP, {}, ""),
    ],
)
def test_the_setting_of_the_owner(protocol: int, files: dict[str, str], step: str) -> None:
    """The step for a wrong default route is a setting of its owner, by the route's protocol and the
    owner's files: next to the advice to name its device if that is right, and alone if the config
    names another one.
    """
    host = node(protocol, files)
    [chosen] = prove_egress(host, [CIDR]).notes
    right = f'{IF_RIGHT}["eth1"] to routeOverlap'
    assert chosen.kind == "chosen-exit"
    assert chosen.subject == WRONG
    assert chosen.step == (f"{right}; if not, {step}" if step else right)
    named = prove_egress(host, [CIDR], expected_devs=["eth0"]).notes
    assert [note.step for note in named] == ([step] if step else [])
    assert not prove_egress(host, [CIDR], expected_devs=["eth1"]).notes
