"""Real systemd-networkd with a lease of its own DHCP server: when static routes go."""

import pytest
from system.test_networkd import KEPT, OWN_ROUTES, ROUTE, Machine, prepare

#: A renewal, after half the time of a lease, gives a lost default route back.
WIRE = """
ip netns add beyond
ip link add eth0 type veth peer name wire netns beyond
mkdir /etc/dhcp-server
cat > /etc/dhcp-server/wire.network <<'END'
[Match]
Name=wire
[Network]
Address=10.224.0.1/24
IPv6AcceptRA=no
LinkLocalAddressing=no
DHCPServer=yes
[DHCPServer]
PoolOffset=10
PoolSize=10
DefaultLeaseTimeSec=3600
PersistLeases=no
END
cat > /etc/systemd/system/dhcp-server.service <<'END'
[Service]
ExecStart=/lib/systemd/systemd-networkd
NetworkNamespacePath=/run/netns/beyond
BindPaths=/etc/dhcp-server:/etc/systemd/network
# Neither the bus nor the state of the machine's networkd; and it takes itself for one in a container.
TemporaryFileSystem=/run/systemd/netif:mode=777 /run/udev /run/dbus
ReadOnlyPaths=/sys
END
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s ../dhcp-server.service /etc/systemd/system/multi-user.target.wants/
"""
NETWORK = """
[Match]
Name=eth0
[Network]
DHCP=ipv4
IPv6AcceptRA=no
LinkLocalAddressing=no
"""


class Leased(Machine):
    """A machine whose eth0 has a lease; a short one, for `move`."""

    def __init__(self, *, more: str = "") -> None:
        wire = WIRE.replace("DefaultLeaseTimeSec=3600", "DefaultLeaseTimeSec=6")
        super().__init__(prepare(network=NETWORK + more, wire=wire))

    def address(self) -> str:
        return self.run("ip", "-4", "-o", "address", "show", "eth0").stdout

    def renew(self) -> None:
        """Let it renew its lease, and wait until the server has agreed."""
        cursor = self.cursor()
        self.run("networkctl", "renew", "eth0")
        self.until_logged(" ACK$", after=cursor)

    def move(self) -> None:
        """Let its lease end, which a server with other addresses does not renew, and wait until it
        has another one.
        """
        assert "10.224.0.1" in self.address()
        self.run(
            "sed", "--in-place", "s/PoolOffset=10/PoolOffset=50/", "/etc/dhcp-server/wire.network"
        )
        self.run("systemctl", "restart", "dhcp-server.service")
        self.until("[[ $(ip address show eth0) == *10.224.0.5* && $(ip route show default) ]]")


def test_a_lease_takes_our_routes_along() -> None:
    """Own routes stay when a lease is renewed, and are removed when networkd reconfigures the
    device or gets another address.
    """
    with Leased() as machine:
        machine.apply(ROUTE)
        machine.renew()
        assert machine.own_routes() == OWN_ROUTES
        machine.reconfigure()
        assert machine.own_routes() == []
        machine.apply(ROUTE)
        machine.move()
        assert machine.own_routes() == []


@pytest.mark.parametrize("more", ["", "KeepConfiguration=yes\n"])
def test_a_restart_with_the_drop_in(more: str) -> None:
    """The address of a lease, and the own routes with it, survive each restart of networkd since
    257, and before with `KeepConfiguration=yes` only; the drop-in by which hostrouting lets
    networkd keep foreign routes changes neither.
    """
    with Leased(more=more) as machine:
        # The config with the routes of ROUTE, and the drop-in.
        machine.apply(KEPT)
        for _ in range(2):
            machine.restart()
            assert machine.own_routes() == (OWN_ROUTES if more or machine.version >= 257 else [])
            machine.apply(KEPT)
