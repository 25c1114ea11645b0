"""What `status` offers on a node with a trouble outside routing is run word for word, and helps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.gated_machine import KUBE, KUBELET, GatedMachine, applied
from support.program import install_command, require_program
from system.test_routing_pair import CIDR, DEFAULT_ROUTE, LINKS, ROUTE, overlap
from system.troubles import RUN_FULL

from hostrouting.boot import INTENT_PATH
from hostrouting.host import Host

APPLY = f"hostrouting apply {INTENT_PATH}"
#: The other end of the wire answers nobody.
ROUTER = "ip neigh replace 10.224.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent\n"
LOST = f"ip route del {CIDR}\n"
READ_ONLY = "mount --bind /etc /etc && mount -o remount,bind,ro /etc\n"
REMOUNT = 'mount -o remount,rw "$(findmnt -n -o TARGET -T /etc/aks-flex-node)"'
#: Bash that makes the trouble, by its name, and the steps that `status` offers; the one after a `#`
#: is the operator's.
TROUBLES: Mapping[str, tuple[str, list[str]]] = {
    "/etc is read-only": (LOST + READ_ONLY, [REMOUNT, APPLY]),
    "/run is full": (
        LOST + RUN_FULL,
        ["du -xah /run | sort -h | tail # rm /run/filling; mount -o remount,size=64m /run", APPLY],
    ),
    "a unit of hostrouting is masked": (
        "ln -sf /dev/null /etc/systemd/system/static-routes.service && systemctl daemon-reload",
        ["systemctl unmask static-routes.service", APPLY],
    ),
    "a gate is masked": (
        f"systemctl stop {KUBE}; ln -s /dev/null /etc/systemd/system/{KUBE}; systemctl daemon-reload",
        [f"systemctl unmask {KUBE}", f"systemctl start {KUBE}"],
    ),
    "a gate is down": (f"systemctl stop {KUBELET}", [f"systemctl start {KUBELET}"]),
    "the device is down": (
        # Only an apply on the machine pins its exit.
        f"{APPLY}; ip link set eth0 down",
        [f"ip link set eth0 up # {DEFAULT_ROUTE}{ROUTER}", APPLY],
    ),
    "the scripts are lost": (
        f"systemctl stop {KUBE}; rm /etc/aks-flex-node/hostrouting-*/*.sh; systemctl start {KUBE}",
        [APPLY],
    ),
}


class Node(GatedMachine):
    """A machine that is right, with the command."""

    def __init__(self, folder: Path) -> None:
        config = applied(staticRoutes=ROUTE, routeOverlap=overlap("STRICT"))

        def arrange(host: Host) -> None:
            self._command = install_command(folder / "image")
            config(host)

        super().__init__(folder, units=(), arrange=arrange, prepare=LINKS + DEFAULT_ROUTE + ROUTER)

    def shell(self, script: str) -> str:
        """Return what a script prints, with the command on its path."""
        path = f"PATH={self._command.parent}:$PATH\n"
        return self.run("bash", "-c", path + script, check=False).stdout

    def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = json.loads(self.shell("hostrouting status --json"))
        return status


@pytest.mark.parametrize("name", TROUBLES)
def test_the_next_step_helps(tmp_path: Path, name: str) -> None:
    """The steps are offered in the order in which they must go; then the node is right."""
    require_program()
    trouble, steps = TROUBLES[name]
    with Node(tmp_path) as node:
        node.until(f"systemctl is-active --quiet {KUBE} && systemctl is-active --quiet {KUBELET}")
        assert node.status()["ok"], node.status()
        node.shell(trouble)
        for step in steps:
            offered, _, own = step.partition(" # ")
            status = node.status()
            assert status["next"] == offered, status
            node.shell(offered)
            node.shell(own)
        node.until(f"systemctl is-active --quiet {KUBE} && systemctl is-active --quiet {KUBELET}")
        status = node.status()
        assert (status["ok"], status["next"]) == (True, None), status
