"""A node with a real systemd-nspawn machine, whose kubelet exchanges packets with an API server.

The node is a `SystemdBox`, and the machine shares its network, as those of AKSFlexNode do. The
kubelet is a script that asks the API server twice a second. The API server is a web server in a
network namespace behind a router. The fabric is a namespace in which nobody answers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from support.documents import ROOT
from support.systemd_box import PROGRAM, PYTHON, SystemdBox, copy_program

CIDR: Final = "172.16.8.0/22"
API: Final = "172.16.8.10"
MACHINE: Final = "systemd-nspawn@kube1.service"
#: The kubelet's log.
LOG: Final = "/var/lib/machines/kube1/var/log/kubelet.log"
#: The folder of the bootstrap agent, which is also its virtual environment.
AGENT: Final = "/opt/agent"
#: Machines are not registered, because systemd-machined would need a D-Bus daemon.
NSPAWN: Final = "systemd-nspawn --quiet --keep-unit --settings=override --register=no"
#: nspawn does not see the systemd in the /usr of the node, and would take the machine for an old one
#: that needs cgroups of version 1. Without cgroups, some of its stops would never end.
CGROUPS: Final = "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1"
#: The devices of the node, the router, the API server and the fabric; set up before systemd starts.
LINKS: Final = f"""
for name in router api fabric; do ip netns add $name; done
ip link add eth0 type veth peer name node netns router
ip link add ib0 type veth peer name fabric netns fabric
ip -n router link add cluster type veth peer name eth0 netns api
ip -n fabric link set fabric up
for name in node cluster; do ip -n router link set $name up; done
ip -n router address add 10.224.0.1/16 dev node
ip -n router address add 172.16.8.1/22 dev cluster
nsenter --net=/run/netns/router sysctl -qw net.ipv4.ip_forward=1
ip -n api link set eth0 up
ip -n api address add {API}/22 dev eth0
ip -n api route add default via 172.16.8.1
for name in lo eth0 ib0; do ip link set $name up; done
ip address add 10.224.0.4/16 dev eth0
ip route add default via 10.224.0.1 dev eth0 proto dhcp
"""
#: Seconds from the boot until the fabric connects.
LATE: Final = 10
SYSTEM: Final = "etc/systemd/system"
#: Files of the node. On a busy computer, the fabric connects even later: only after
#: `NspawnNode.wait_for_fabric` is called, so that a test can look at the node before.
NODE_FILES: Final = {
    f"{SYSTEM}/systemd-nspawn@.service.d/50-not-registered.conf": f"""\
[Service]
Environment={CGROUPS}
ExecStart=
ExecStart={NSPAWN} --machine=%i --boot
""",
    "etc/systemd/nspawn/kube1.nspawn": """\
[Exec]
PrivateUsers=no
LinkJournal=no
[Network]
VirtualEthernet=no
[Files]
BindReadOnly=/usr
""",
    f"{SYSTEM}/api.service": f"""\
[Service]
NetworkNamespacePath=/run/netns/api
WorkingDirectory={AGENT}/api
ExecStart={AGENT}/bin/python3 -c 'import http.server, socketserver; \\
    server = socketserver.ThreadingTCPServer(("", 6443), http.server.SimpleHTTPRequestHandler); \\
    server.serve_forever()'
""",
    "opt/agent/api/readyz": "ok\n",
    f"{SYSTEM}/fabric.timer": f"[Timer]\nOnStartupSec={LATE}s\nAccuracySec=100ms\n",
    f"{SYSTEM}/fabric.service": """\
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/bash -c 'until [[ -e /run/looked ]]; do sleep 0.1; done'
ExecStart=ip address add 172.16.1.4/16 dev ib0
""",
    f"{SYSTEM}/cleaner.service": f"[Service]\nExecStart=ip route delete {CIDR} proto 142\n",
    f"{SYSTEM}/route-monitor.service": """\
[Service]
ExecStart=ip -4 monitor route
StandardOutput=truncate:/run/routes.log
""",
}
#: Files of the machine. It has a systemd of its own, and the /usr of the node.
MACHINE_FILES: Final = {
    "etc/os-release": "ID=kube1\n",
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    f"{SYSTEM}/kubelet.service": """\
[Service]
ExecStart=/bin/bash /kubelet
StandardOutput=truncate:/var/log/kubelet.log
""",
    "kubelet": f"""\
ask() {{
    exec 3<> /dev/tcp/{API}/6443 && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && tail -n 1 <&3
}}
export -f ask
while true; do
    answer=$(timeout 5 bash -c ask 2> /dev/null)
    [[ $answer == "${{before-none}}" ]] || echo "API server {API}: ${{answer:-no answer}}"
    before=$answer
    sleep 0.5
done
""",
}
TWO_TASKS: Final = """\
import sys
from hostrouting import CheckRouteOverlap, ConfigureStaticRoutes, HostRoutingConfig
from phases import Serial, run

config = HostRoutingConfig.from_file(sys.argv[1])
report = run(Serial(ConfigureStaticRoutes(config), CheckRouteOverlap(config)), timeout=120)
print(report)
sys.exit(not report.ok)
"""
_CHECK: Final = {
    "routeOverlap": {"expectedCidrs": [CIDR], "mode": "STRICT"},
    "gates": ["systemd-nspawn@.service"],
}
_ROUTES: Final = {"staticRoutes": {"enabled": True, "routes": [{"destination": CIDR}]}, **_CHECK}
CONFIGS: Final = {
    "check.json": _CHECK,
    "routes.json": _ROUTES,
    "watch.json": {**_ROUTES, "watch": {"enabled": True, "mode": "service"}},
}


class NspawnError(Exception):
    """This computer cannot run a machine of systemd-nspawn; the text is its error."""


def write_disk(disk: Path) -> None:
    """Write the files of a node on which nothing of hostrouting is installed."""
    machine, agent = disk / "var/lib/machines/kube1", disk / AGENT.lstrip("/")
    for root, files in (disk, NODE_FILES), (machine, MACHINE_FILES):
        for name, text in files.items():
            _write(root / name, text)
    for name in "usr", "var/log":
        (machine / name).mkdir(parents=True)
    for name in "bin", "lib", "lib64", "sbin":
        (machine / name).symlink_to(f"usr/{name}")
    for root, unit in (machine, "kubelet.service"), (disk, "api.service"), (disk, "fabric.timer"):
        wants = root / SYSTEM / "multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / unit).symlink_to(f"../{unit}")
    copy_program(disk)
    _write(agent / "pyvenv.cfg", f"home = {PYTHON.parent}\n")
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    _write(agent / packages / "hostrouting.pth", f"{PROGRAM}\n")
    command = agent / "bin/hostrouting"
    _write(command, f"#!{AGENT}/bin/python3\nfrom hostrouting.__main__ import main\nmain()\n")
    command.chmod(0o755)
    (agent / "bin/python3").symlink_to(PYTHON)
    shutil.copy(ROOT / "examples/bootstrap_agent.py", agent)
    _write(agent / "two_tasks.py", TWO_TASKS)
    for name, sections in CONFIGS.items():
        lines = [f'  "{key}": {json.dumps(section)}' for key, section in sections.items()]
        _write(agent / name, '{"hostRouting": {\n' + ",\n".join(lines) + "}}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


class NspawnNode(SystemdBox):
    """The node, from a boot until it is switched off. `disk` is a folder with its files."""

    def __init__(self, disk: Path) -> None:
        super().__init__(image=disk, prepare=LINKS)
        self._disk = disk

    def try_nspawn(self) -> None:
        """Run the machine with another command; raise `NspawnError` if that fails."""
        nspawn = f"{NSPAWN} --machine=kube1 /bin/true"
        unit = ("--property=Type=notify", "--property=Delegate=yes", f"--setenv={CGROUPS}")
        run = ("systemd-run", "--quiet", "--wait", "--pipe", *unit)
        trial = self.run(*run, *nspawn.split(), check=False)
        if trial.returncode:
            raise NspawnError(f"{nspawn} ended with {trial.returncode}: {trial.stderr.strip()}")

    def typed(self, command: str) -> str:
        """Return what a command prints that root types in the folder of the agent."""
        path = f"{AGENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ended = subprocess.run(
            [*self.enter, "bash", "-c", f"cd {AGENT}; {command}"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/root"},
        )
        # `ip` ends lines with a space.
        return "".join(f"{line.rstrip()}\n" for line in ended.stdout.splitlines())

    def wait_for_answer(self, answer: str) -> None:
        """Wait until this is the last answer that the kubelet has logged."""
        self.until(f"[[ $(tail -n 1 {LOG}) == *': {answer}' ]]", unit=MACHINE)

    def wait_for_request(self) -> None:
        """Wait until the API server has answered another request of the node."""
        request = re.compile(r'10\.224\.0\.4 .* "GET /readyz HTTP/1\.0" 200 -')
        self.wait_for(request, unit="api", after=self.cursor())

    def wait_for_fabric(self) -> None:
        """Wait until the fabric has connected, which it does not before the first call."""
        self.run("touch", "/run/looked")
        self.until("systemctl is-active --quiet fabric")
        late = self._when("ActiveEnter", "fabric") - self._when("Userspace")
        assert late >= LATE, f"the fabric connected {late} s after the boot"

    def _when(self, event: str, *unit: str) -> float:
        name = f"--property={event}TimestampMonotonic"
        return int(self.run("systemctl", "show", "--value", name, *unit).stdout) / 1e6

    def monitor_routes(self) -> None:
        """Begin to write changes of routes to /run/routes.log."""
        self.run("systemctl", "start", "route-monitor")
        monitor = self.run("systemctl", "show", "--property=MainPID", "--value", "route-monitor")
        # The kernel numbers a program's first socket as the program, and shows its groups.
        listens = f"$3 == {monitor.stdout.strip()} && $4 != 0 {{ found = 1 }} END {{ exit !found }}"
        self.until(f"awk '{listens}' /proc/net/netlink")

    def wait_for_repair(self) -> None:
        """Wait until the watch has logged that it restored a route."""
        self.wait_for(re.compile("repaired: .*"), unit="hostrouting-watch")

    def save(self) -> None:
        """Write to the disk what was installed, for the next boot."""
        for name in "etc/aks-flex-node", "etc/systemd":
            subprocess.run(["cp", "-aT", f"{self.root}/{name}", self._disk / name], check=True)
