"""Two network cards of one network under networkd: the setting that `check` names turns the exit."""

import re

from support.printed import DEFAULT_THROUGH
from system.test_networkd import Machine, prepare
from system.test_networkd_dhcp import WIRE

from hostrouting import HostRoutingConfig, check_node

CONFIG = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"]}})
STATIC = """
[Match]
Name=eth0
[Network]
IPv6AcceptRA=no
LinkLocalAddressing=no
[Address]
Address=10.224.0.4/24
Broadcast=10.224.0.255
[Route]
Gateway=10.224.0.1
Metric={metric}
"""
#: eth1 gets its default route from a DHCP server, at metric 1024; eth0 has one in its file.
LEASED = f"""
{WIRE.replace("eth0", "eth1")}
ip link add eth0 type veth peer name other && ip link set other up
mkdir -p /run/udev/data /etc/systemd/network
mount -o remount,rw /sys
echo I:1 > /run/udev/data/n$(cat /sys/class/net/eth1/ifindex)
cat > /etc/systemd/network/20-eth1.network <<'END'
[Match]
Name=eth1
[Network]
DHCP=ipv4
IPv6AcceptRA=no
LinkLocalAddressing=no
END
"""
#: A device that networkd configures again is without its route for a moment.
IS_LEASED = """
[[ $(networkctl --no-legend list eth0) == *configured* && $(networkctl --no-legend list eth1) == *configured*
    && $(ip route show default dev eth1) && $(ip route show default dev eth0) ]]
"""


class TwoCards(Machine):
    """A machine with two cards, whose default routes have metrics."""

    def __init__(self, metric: int) -> None:
        super().__init__(prepare(network=STATIC.format(metric=metric), wire=LEASED))

    def chosen(self) -> tuple[str, str]:
        """Return which default route decides, and the step against it."""
        self.until(" ".join(IS_LEASED.split()))
        report = check_node(self.ctx, CONFIG, self.host)
        [note] = [finding for finding in report.findings if finding.kind == "chosen-exit"]
        return note.subject, note.step

    def obey(self, step: str) -> None:
        """Make the setting as the step has it, in a drop-in or in place of the present one."""
        found = re.search(r"if not, set ((\w+)=\d+) in \[(\w+)\] of (\S+), and run: (.*)", step)
        assert found, step
        setting, key, section, path, commands = found.groups()
        text = (self.files_text(path) or f"[{section}]\n{key}=\n").splitlines()
        lines = [setting if line.startswith(f"{key}=") else line for line in text]
        self.host.files.write(path, "".join(f"{line}\n" for line in lines).encode(), mode=0o644)
        self.run("bash", "-ec", commands)

    def files_text(self, path: str) -> str:
        return (self.host.files.read(path) or b"").decode()


def test_a_lease_comes_first() -> None:
    """The step against a lease that decides is RouteMetric= in a drop-in, after which the default
    route of the file decides.
    """
    with TwoCards(metric=2000) as machine:
        subject, step = machine.chosen()
        assert subject == f"{DEFAULT_THROUGH}eth1"
        assert "RouteMetric=2100 in [DHCPv4] of /etc/systemd/network/20-eth1.network.d/" in step
        machine.obey(step)
        machine.until("[[ $(ip route show default dev eth1) == *'metric 2100'* ]]")
        assert machine.chosen()[0] == f"{DEFAULT_THROUGH}eth0"


def test_each_change_is_in_force() -> None:
    """The step is in force after each change of a drop-in that exists, however soon the next change
    follows.

    With a `networkctl reconfigure` behind the reload, 252 soon lost the address for good.
    """
    with TwoCards(metric=2000) as machine:
        _, step = machine.chosen()
        for metric in range(2100, 2120):
            machine.obey(step.replace("RouteMetric=2100", f"RouteMetric={metric}"))
            machine.until(f"[[ $(ip route show default dev eth1) == *'metric {metric}'* ]]")


def test_a_static_route_comes_first() -> None:
    """The step against a static default route that decides is Metric= in the file of its device,
    after which the lease decides.
    """
    with TwoCards(metric=50) as machine:
        subject, step = machine.chosen()
        assert subject == f"{DEFAULT_THROUGH}eth0"
        assert "Metric=1124 in [Route] of /etc/systemd/network/10-eth0.network" in step
        machine.obey(step)
        machine.until("[[ $(ip route show default dev eth0) == *'metric 1124'* ]]")
        assert machine.chosen()[0] == f"{DEFAULT_THROUGH}eth1"
