"""A default route by InfiniBand that comes after the boot of an image: nothing moves there."""

from pathlib import Path

from support.gated_machine import CIDR, KUBE, RoutedMachine, assert_right
from support.infiniband import infiniband
from support.printed import leaves

OK = "/run/aks-flex-node/route-overlap.ok"
#: A router in the fabric has a better metric than that of eth0.
BETTER = "ip route add default via 172.31.0.1 dev ib9 metric 1"


def test_a_default_route_of_the_fabric_takes_nothing(tmp_path: Path) -> None:
    """The config names neither gateways nor devices, and an image has no pinned exit. The routes
    stay by eth0 at each start of a machine, and when watch or an apply repairs them.
    """
    with RoutedMachine(tmp_path) as machine:
        assert_right(machine)
        with infiniband(f"/proc/{machine.pid}/ns/net", "ib9", "172.31.0.4/16"):
            machine.shell(BETTER)
            for lost in "", f"ip route del {CIDR} proto 142":
                machine.shell(lost)
                before = len(machine.payloads())
                machine.systemctl("restart", KUBE)
                machine.until(f"(( $(wc -l < /run/payloads) > {before} ))")
                assert machine.way() == "via 10.224.0.1 dev eth0"
                assert (machine.files.read(OK) or b"").startswith(leaves(CIDR, "eth0").encode())
            status = machine.status()
            assert status["ok"], status
            [chosen] = [one for one in status["findings"] if one.get("kind") == "chosen-exit"]
            assert chosen["subject"] == "the IPv4 default route by ib9"


def test_no_gate_opens_by_the_fabric_alone(tmp_path: Path) -> None:
    """Where only InfiniBand has a default route left, and the routes are gone, machines are held."""
    with (
        RoutedMachine(tmp_path) as machine,
        infiniband(f"/proc/{machine.pid}/ns/net", "ib9", "172.31.0.4/16"),
    ):
        machine.shell(f"{BETTER}; ip route del default dev eth0; ip route del {CIDR} proto 142")
        assert machine.systemctl("restart", KUBE) != 0
        assert machine.files.read(OK) is None
        [cidr] = machine.check()["cidrs"]
        assert [one["kind"] for one in cidr["findings"]] == ["unknown-exit"]
        machine.shell("ip route add default via 10.224.0.1 dev eth0 metric 100")
        machine.until(f"systemctl is-active --quiet {KUBE}")
        assert machine.way() == "via 10.224.0.1 dev eth0"
