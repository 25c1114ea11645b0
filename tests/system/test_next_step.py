"""The command that `status` offers on a node with a trouble outside routing helps, word for word."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.gated_machine import CIDR, DEFAULT_ROUTE, KUBE, KUBELET, RoutedMachine, assert_right
from support.systemd_box import require_program
from system.troubles import RUN_FULL

from hostrouting.boot.layout import INTENT_PATH

APPLY = f"hostrouting apply {INTENT_PATH}"
RUN = "/run/aks-flex-node"
LOST = f"ip route del {CIDR}\n"
READ_ONLY = "mount --bind /etc /etc && mount -o remount,bind,ro /etc\n"
#: One start in an hour.
LIMIT = f"""
mkdir /run/systemd/system/{KUBELET}.d
cat > /run/systemd/system/{KUBELET}.d/limit.conf <<'END'
[Unit]
StartLimitBurst=1
StartLimitIntervalSec=1h
END
"""
REMOUNT = 'mount -o remount,rw "$(findmnt -n -o TARGET -T /etc/aks-flex-node)"'
LARGEST = 'du -xah "$(findmnt -n -o TARGET -T /run)" | sort -h | tail'
#: Bash that makes the trouble, by its name, and the steps that `status` offers; the one after a `#`
#: is the operator's.
TROUBLES: Mapping[str, tuple[str, list[str]]] = {
    "/etc is read-only": (LOST + READ_ONLY, [REMOUNT, APPLY]),
    "/run is full": (
        LOST + RUN_FULL,
        [f"{LARGEST} # rm /run/filling; mount -o remount,size=64m /run", APPLY],
    ),
    "others may change what the gates believe": (
        LOST + f"chmod 777 {RUN}\n",
        [f"chown 0 {RUN} && chmod go-w {RUN}", APPLY],
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
    "a gate has failed too often": (
        f"{LIMIT}systemctl daemon-reload; systemctl restart {KUBELET}; systemctl restart {KUBELET}",
        [f"systemctl reset-failed {KUBELET}", f"systemctl start {KUBELET}"],
    ),
    "the device is down": (
        # Only an apply on the machine pins its exit.
        f"{APPLY}; ip link set eth0 down",
        [f"ip link set eth0 up # {DEFAULT_ROUTE}", APPLY],
    ),
    "the scripts are lost": (
        f"systemctl stop {KUBE}; rm /etc/aks-flex-node/hostrouting-*/*.sh; systemctl start {KUBE}",
        [APPLY],
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_the_next_step_helps(tmp_path: Path, name: str) -> None:
    """The steps are offered in the order in which they must go; then the node is right."""
    require_program()
    trouble, steps = TROUBLES[name]
    with RoutedMachine(tmp_path) as node:
        assert node.status()["ok"], node.status()
        node.shell(trouble)
        for step in steps:
            offered, _, own = step.partition(" # ")
            status = node.status()
            assert status["next"] == offered, status
            node.shell(offered)
            node.shell(own)
        node.until(f"systemctl is-active --quiet {KUBE} && systemctl is-active --quiet {KUBELET}")
        assert_right(node)


def test_a_device_is_down_that_no_apply_has_pinned(tmp_path: Path) -> None:
    """`check` names the device and the command; whether it is the exit, the operator decides."""
    require_program()
    with RoutedMachine(tmp_path) as node:
        node.shell("ip link set eth0 down")
        assert node.status()["next"] == "hostrouting check"
        [offered] = [
            line
            for line in node.shell("hostrouting check").splitlines()
            if line.startswith("eth0 is set down")
        ]
        command = "ip link set eth0 up"
        assert offered == f"eth0 is set down: if it leads to the cluster, run: {command}"
        node.shell(f"{command}; {DEFAULT_ROUTE}{APPLY}")
        assert_right(node)
