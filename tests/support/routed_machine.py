"""A booted machine that is right, with the command and a router: who asks gets an answer from there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.gated_machine import KUBE, KUBELET, GatedMachine, applied
from support.program import install_command
from support.systemd_box import SystemdBox

from hostrouting import Host
from hostrouting.boot import INTENT_PATH
from hostrouting.testing import KernelNode

CIDR = "172.16.8.0/22"
#: An address of the CIDR, which the router has.
PEER = "172.16.8.9"
GATEWAY = "10.224.0.1"
DEFAULT_ROUTE = f"ip route add default via {GATEWAY} dev eth0 metric 100\n"
#: The addresses and the default route of the node.
ADDRESSES = f"""
ip link set lo up; ip link set eth0 up; ip link set ib0 up
ip address add 10.224.0.4/24 dev eth0
ip address add 172.16.1.4/16 dev ib0
{DEFAULT_ROUTE}"""
#: eth1 is a spare device, and the fabric answers nobody.
_LINKS = f"""
ip link add eth0 type veth peer name wire && ip link set wire up
ip link add eth1 type veth peer name wire1
ip link add ib0 type veth peer name fabric && ip link set fabric up
{ADDRESSES}"""
#: It has its own address on both wires, and the addresses of the CIDR.
_ROUTER = (
    "link set lo up",
    "link add bridge type bridge",
    "link set bridge up",
    f"address add {GATEWAY}/24 dev bridge",
    "address add 10.225.0.1/24 dev bridge",
    f"route add local {CIDR} dev lo",
    "link set wire master bridge up",
    "link set wire1 master bridge up",
)
CONFIG: Mapping[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": CIDR}]},
    "routeOverlap": {"expectedCidrs": [CIDR], "mode": "STRICT"},
}


def shell_with(machine: SystemdBox, command: Path, script: str) -> str:
    """Return what a script prints, with the command on its path."""
    path = f"PATH={command.parent}:$PATH\n"
    return machine.run("bash", "-c", path + script, check=False).stdout


def status_of(machine: SystemdBox, command: Path) -> Mapping[str, Any]:
    """Return `hostrouting status --json`."""
    status: Mapping[str, Any] = json.loads(
        shell_with(machine, command, "hostrouting status --json")
    )
    return status


class RoutedMachine(GatedMachine):
    """A machine that is right under `CONFIG`, or under other sections."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        config = applied(**{**CONFIG, **sections})

        def arrange(host: Host) -> None:
            self._command = install_command(folder / "image")
            config(host)

        super().__init__(folder, units=(), arrange=arrange, prepare=_LINKS)
        self._stack = ExitStack()

    def __enter__(self) -> RoutedMachine:
        super().__enter__()
        try:
            router = self._stack.enter_context(KernelNode.made())
            for wire in "wire", "wire1":
                self._give(wire, router)
            for words in _ROUTER:
                router.ip(words)
            self.until(
                f"systemctl is-active --quiet {KUBE} && systemctl is-active --quiet {KUBELET}"
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _give(self, dev: str, router: KernelNode) -> None:
        # The machine does not see the names of namespaces out here.
        enter = ("nsenter", f"--net=/proc/{self.pid}/ns/net")
        subprocess.run([*enter, "ip", "link", "set", dev, "netns", router.name], check=True)

    def shell(self, script: str) -> str:
        """Return what a script prints, with the command on its path."""
        return shell_with(self, self._command, script)

    def status(self) -> Mapping[str, Any]:
        """Return `hostrouting status --json`."""
        return status_of(self, self._command)

    def check(self, config: str = INTENT_PATH) -> Mapping[str, Any]:
        """Return `hostrouting check --json`."""
        report: Mapping[str, Any] = json.loads(self.shell(f"hostrouting check --json {config}"))
        return report

    def way(self) -> str:
        """Return the gateway and the device by which the kernel sends packets of the CIDR."""
        words = self.run("ip", "route", "get", PEER, check=False).stdout.split()
        return " ".join(words[1:5])

    def answer(self) -> str:
        """Return what a packet to the CIDR gets: "Connection refused" is the answer of the router."""
        script = f"timeout 2 bash -c ': > /dev/tcp/{PEER}/9' 2>&1"
        return self.run("bash", "-c", script, check=False).stdout.strip().rpartition(": ")[2]


def assert_right(machine: RoutedMachine) -> None:
    """Fail unless the node is right, for the command, for the kernel and for a packet."""
    status = machine.status()
    assert (status["ok"], status["next"]) == (True, None), status
    assert machine.way() == "via 10.224.0.1 dev eth0"
    assert machine.answer() == "Connection refused"
