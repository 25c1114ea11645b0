"""A booted machine with gates: the distribution's own systemd-nspawn@.service, its payload
replaced, and a kubelet. A routed one is right, with the command and a router.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from support.boot_units import CHECK, NSPAWN, STATIC, stand_in, stand_in_program
from support.needs import require
from support.systemd_box import BOX_ROOT, SystemdBox, install_command

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import NewConfig
from hostrouting.boot.layout import (
    CONFIG_PATH,
    UNIT_DIRECTORY,
    BootUnit,
)
from hostrouting.host import UnitState
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.systemd.systemctl import Systemctl
from hostrouting.host.units import instance_of
from hostrouting.testing import KernelNode
from phases import Context

Machine = TypeVar("Machine", bound="GatedMachine")

GATES = (NSPAWN, "kubelet.service")
KUBE = "systemd-nspawn@kube1.service"
KUBELET = "kubelet.service"
#: Routes that are always right, and a check that finds an overlap as long as /etc/overlap exists.
STAND_INS = (
    stand_in(STATIC, "echo ran >> /run/hostrouting/static-routes.ran\n"),
    stand_in(
        CHECK,
        "echo ran >> /run/hostrouting/check-route-overlap.ran\n"
        "if [[ -e /etc/overlap ]]; then echo 'stand-in: an overlap' >&2; exit 11; fi\n",
        unit="After=network.target static-routes.service",
    ),
)
#: A check that takes its time while there is an overlap.
SLOW_CHECK = stand_in(
    CHECK,
    "if [[ -e /etc/overlap ]]; then [[ ${1-} == now ]] || sleep 1.5; exit 11; fi\n",
    unit="After=network.target static-routes.service",
)
#: The message of recovery after its first question.
STILL_WAITING = "hostrouting: units are held: check-route-overlap: stand-in: an overlap"
#: With it the gates are strict. The scripts are those of the stand-ins, and prove nothing.
STRICT = NewConfig(
    config=HostRoutingConfig.from_mapping(
        {
            "routeOverlap": {"expectedCidrs": ["10.96.0.0/16"], "mode": "STRICT"},
            "gates": list(GATES),
        }
    )
)
#: Everything of the distribution's unit stays as it is, except its command, which would need a
#: container image, and the watchdog of three minutes, to which that would answer. It speaks before
#: the unit counts as started, and so before a boot is over.
_PAYLOAD = """\
[Service]
WatchdogSec=0
ExecStart=
ExecStart=/bin/sh -c '\\
    trap "exit 133" USR1; echo %i >> /run/payloads; echo up; systemd-notify --ready; sleep infinity & wait'
"""
_KUBELET = """\
[Service]
Type=exec
ExecStart=/bin/sleep infinity
ExecStartPost=/bin/sh -c 'echo kubelet >> /run/payloads; echo up'
Restart=always
RestartSec=100ms
"""


def refusal(
    unit: str = KUBE, cause: str = "check-route-overlap: stand-in: an overlap"
) -> re.Pattern[str]:
    """Match the message of the gate for a unit that it refuses, by default because of an overlap.

    Gates share an answer: the messages of all but the first have its time.
    """
    begin = re.escape(f"hostrouting: {unit} is refused: ")
    return re.compile(begin + "(?:as before, since [0-9]{2}:[0-9]{2}: )?" + re.escape(cause))


#: A boot is over when systemd has nothing to do, which units that restart again and again can put
#: off for long: with this, a machine can be looked at from the beginning.
EARLY = f"""
mkdir -p {UNIT_DIRECTORY}/sysinit.target.wants
cat > {UNIT_DIRECTORY}/test-early.service <<END
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh -c 'NOTIFY_SOCKET=/run/host/notify systemd-notify --ready'
END
ln -s ../test-early.service {UNIT_DIRECTORY}/sysinit.target.wants/
"""


def require_nspawn() -> None:
    """Skip the test where the unit that is to be gated is not installed; on CI it is."""
    if Path("/") == BOX_ROOT:
        require("nspawn")
    else:
        require("box")


def applied(**sections: object) -> Callable[[Host], None]:
    """Return a function that applies a config, whose gates are those of the machine, to it or to
    its image, which has no Python of its own.
    """
    config = HostRoutingConfig.from_mapping({"gates": list(GATES), **sections})
    return lambda host: Configure(config, host=host, force=not host.is_live).do(Context(timeout=60))


def write_machines(image: Path) -> None:
    """The machine kube1 and a kubelet, both started at boot."""
    units = image / UNIT_DIRECTORY.lstrip("/")
    wants = units / "multi-user.target.wants"
    for folder in (units / f"{NSPAWN}.d", wants):
        folder.mkdir(parents=True)
    (units / f"{NSPAWN}.d/50-payload.conf").write_text(_PAYLOAD)
    (units / KUBELET).write_text(_KUBELET)
    (wants / KUBE).symlink_to(f"/lib/systemd/system/{NSPAWN}")
    (wants / KUBELET).symlink_to(f"{UNIT_DIRECTORY}/{KUBELET}")


def more_machines(**settings: str) -> str:
    r"""Return bash that adds machines of systemd-nspawn, started at boot, each with a drop-in that
    has its settings.

    A double underscore in a name stands for the `\x2d` by which systemd writes a dash.
    """
    commands = []
    for name, text in settings.items():
        unit = instance_of(NSPAWN, name.replace("__", r"\x2d"))
        commands += [
            f"mkdir -p '{UNIT_DIRECTORY}/{unit}.d'",
            f"cat > '{UNIT_DIRECTORY}/{unit}.d/70-settings.conf' <<'END'\n{text}\nEND",
            f"ln -s /lib/systemd/system/{NSPAWN} '{UNIT_DIRECTORY}/multi-user.target.wants/{unit}'",
        ]
    return "\n".join([*commands, ""])


class GatedMachine(SystemdBox):
    """A machine that boots from an image in which `units` were installed offline, by the code that
    is tested.

    `arrange` may do more to that image.
    """

    def __init__(
        self,
        folder: Path,
        *,
        units: tuple[BootUnit, ...] = STAND_INS,
        installed: NewConfig = STRICT,
        arrange: Callable[[Host], object] | None = None,
        prepare: str = "",
        overlap: bool = False,
        tree: Path = BOX_ROOT,
    ) -> None:
        image = folder / "image"
        write_machines(image)
        if units:
            stand_in_program(RootedFiles(str(image)))
        for unit in units:
            Boot(Host.offline(image), gates=GATES).install(Context(timeout=300), unit, installed)
        if arrange is not None:
            arrange(Host.offline(image))
        super().__init__(
            image=image, prepare=("touch /etc/overlap\n" if overlap else "") + prepare, tree=tree
        )

    def __enter__(self: Machine) -> Machine:
        super().__enter__()
        self.ctx = Context(timeout=600)
        self.files = RootedFiles(self.root)
        self.services = Systemctl((*self.enter, "systemctl"))
        self.boot = Boot(self.host, gates=GATES)
        return self

    def state(self, unit: str = KUBE) -> UnitState:
        """A unit of the machine."""
        return self.services.state(self.ctx, unit)

    def pids(self) -> tuple[int, int]:
        """Return the main process of each gated unit; 0 for one that does not run."""
        return self.state(KUBE).main_pid, self.state(KUBELET).main_pid

    def payloads(self) -> list[str]:
        """Return the payloads that have ever passed a gate, in their order."""
        return (self.files.read("/run/payloads") or b"").decode().split()

    def wait_until_up(self, unit: str = KUBE, *, after: str | None = None) -> None:
        """Wait until the gated payload has started, at all or `after` a cursor of the journal."""
        self.wait_for("up", unit=unit, after=after)

    def wait_for_refusal(self, unit: str = KUBE, *, after: str | None = None) -> None:
        """Wait until the gate has logged that it refuses a unit."""
        self.wait_for(refusal(unit), unit=unit, after=after)

    def wait_for_failure(self, unit: str) -> None:
        """Wait until systemd has logged that a unit failed, be it after the longest wait of the boot
        scripts.
        """
        self.wait_for(f"{unit}: Failed with result 'exit-code'.", unit=unit)

    def up_since(self, unit: str) -> float:
        """Return when a unit came up last, by the kernel's clock."""
        name = "ActiveEnterTimestampMonotonic"
        return int(self.services.settings(self.ctx, unit, name)[name]) / 1e6

    def wait_for_retry(self) -> None:
        """Wait until nothing is held any more, so that hostrouting-retry.service has ended."""
        pid = self.state("hostrouting-retry.service").main_pid
        # tail takes process 0 for none.
        self.run("timeout", "60", "tail", f"--pid={pid or 999999999}", "--follow", "/dev/null")

    def systemctl(self, *arguments: str) -> int:
        """The exit status of `systemctl` with these arguments."""
        return self.run("systemctl", *arguments, check=False).returncode

    def break_routing(self) -> None:
        """From now on the check finds an overlap."""
        self.files.write("/etc/overlap", b"", mode=0o644)

    def mend_routing(self) -> None:
        """From now on the check finds no overlap."""
        self.files.remove("/etc/overlap")

    def crash(self, unit: str) -> None:
        """Kill the process of the unit, as a fault would."""
        self.run("systemctl", "kill", "--signal=KILL", unit)

    def reboot(self) -> None:
        """Have the container reboot itself: it ends with 133, and its unit starts it again."""
        self.run("systemctl", "kill", "--kill-who=main", "--signal=USR1", KUBE)


#: An H200 node in small: eth0 with the default route, and a fabric that has no address yet.
SMALL_NODE = """
ip link add eth0 type veth peer name wire && ip link set wire up
ip link set eth0 up && ip address add 10.224.0.4/24 dev eth0
ip route add default via 10.224.0.1 dev eth0
ip link add ib0 type veth peer name fabric && ip link set fabric up && ip link set ib0 up
"""
#: The fabric takes the addresses of the cluster.
CONNECT = "ip address add 172.16.1.4/16 dev ib0"
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


class RoutedMachine(GatedMachine):
    """A machine that is right under `CONFIG`, or under other sections."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        config = applied(**{**CONFIG, **sections})

        def arrange(host: Host) -> None:
            install_command(folder / "image")
            config(host)

        super().__init__(folder, units=(), arrange=arrange, prepare=_LINKS)
        self._stack = ExitStack()

    def __enter__(self) -> RoutedMachine:
        super().__enter__()
        try:
            self.router = self._stack.enter_context(KernelNode.made())
            for wire in "wire", "wire1":
                self._give(wire, self.router)
            for words in _ROUTER:
                self.router.ip(words)
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

    def check(self, config: str = CONFIG_PATH) -> Mapping[str, Any]:
        """Return `hostrouting check --json`."""
        report: Mapping[str, Any] = json.loads(self.shell(f"hostrouting check --json {config}"))
        return report

    def way(self) -> str:
        """Return the gateway and the device through which the kernel sends packets of the CIDR."""
        words = self.run("ip", "route", "get", PEER, check=False).stdout.split()
        return " ".join(words[1:5])

    def answer(self) -> str:
        """Return the answer to a packet to the CIDR: that of the router is "Connection refused"."""
        script = f"timeout 2 bash -c ': > /dev/tcp/{PEER}/9' 2>&1"
        return self.run("bash", "-c", script, check=False).stdout.strip().rpartition(": ")[2]
