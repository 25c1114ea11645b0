"""The commands that `status` offers on a broken node are run word for word, and fix the node.

Then the kernel leads the expected addresses by the node's own gateway, and a packet is answered
from there; or the first line names who has to fix it. Two nodes have no command that fixes them:
nobody else has the address of a node without a manager, and who sets an expected address on its
fabric may mean it. Nodes of networkd are in `test_lost_default.py`.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.boot_units import install_upstream
from support.documents import ROOT
from support.gated_machine import (
    ADDRESSES,
    CIDR,
    CONFIG,
    DEFAULT_ROUTE,
    GATEWAY,
    KUBE,
    KUBELET,
    RoutedMachine,
)
from support.golden import FIRST_LINES, assert_first_line, golden_lines
from support.printed import ALIKE, UNTIL_THE_BOOT, WITHOUT_CONFIG
from support.systemd_box import require_program
from system.test_lost_default import LEASED
from system.troubles import RUN_FULL

from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH

APPLY = f"hostrouting apply {CONFIG_PATH}"
FIX = "hostrouting check --fix | hostrouting apply -"
LOST = f"ip route del {CIDR}\n"
#: A second card, in its own network or in that of eth0.
OTHER_NETWORK = "ip link set eth1 up; ip address add 10.225.0.4/24 dev eth1\n"
SAME_NETWORK = "ip link set eth1 up; ip address add 10.224.0.5/24 dev eth1\n"
#: A config that an operator writes first: it has no routes.
FIRST = json.dumps({"routeOverlap": CONFIG["routeOverlap"]})
OWN = "/root/hostrouting.json"
RUN = "/run/hostrouting"
#: The state that an image leaves: no apply on the node has found its device.
IMAGE = f"hostrouting apply --root / {OWN}\n"
#: As the manual advises it for images.
NETWORK = json.dumps(
    {**CONFIG, "routeOverlap": {**CONFIG["routeOverlap"], "expectedDevs": ["10.224.0.0/16"]}}
)
#: It expects addresses that no route of the config covers, too.
WIDER = json.dumps(
    {**CONFIG, "routeOverlap": {**CONFIG["routeOverlap"], "expectedCidrs": [CIDR, "10.96.0.0/16"]}}
)
#: It names the gateway of its route.
WITH_GATEWAY = json.dumps(
    {
        **CONFIG,
        "staticRoutes": {"enabled": True, "routes": [{"destination": CIDR, "gateway": GATEWAY}]},
    }
)
#: It names a device that the node does not have.
OTHER_NAME = json.dumps(
    {**CONFIG, "routeOverlap": {**CONFIG["routeOverlap"], "expectedDevs": ["eno1"]}}
)
LOCK = "/run/hostrouting.lock"
RESTORE = f"cp -p {CONFIG_PATH} {CONFIG_PATH}.rejected && hostrouting apply {APPLIED_PATH}"
WATCHED = json.dumps({**CONFIG, "watch": {"enabled": True}})
REMOUNT = 'mount -o remount,rw "$(findmnt -n -o TARGET -T /etc/aks-flex-node)"'
START = f"systemctl reset-failed {KUBELET}; systemctl start {KUBELET}"
SETTINGS = f"/run/systemd/system/{KUBELET}.d"


def assert_right(machine: RoutedMachine, *, way: str = f"via {GATEWAY} dev eth0") -> None:
    """Fail unless the node is right, for the command, for the kernel and for a packet."""
    status = machine.status()
    assert (status["ok"], status["next"]) == (True, None), status
    assert machine.way() == way
    assert machine.answer() == "Connection refused"


class Node(NamedTuple):
    """Bash that breaks a node, and each command that `status` offers until it is right.

    What follows a `#` the operator does besides, or alone where none is offered. An empty command
    is that of a node that stays right. Without a command only a person can fix it.
    `beyond` is what happens to its router.
    """

    commands: str
    steps: tuple[str, ...] = ()
    beyond: str = ""
    #: The page of first aid shows it.
    first_aid: bool = False
    way: str = "via 10.224.0.1 dev eth0"


def _device(name: str) -> str:
    add = f"ip link add {name} type veth peer name of-{name}"
    return f"{add}; ip link set of-{name} up; ip link set {name} up\n"


def _setting(text: str) -> str:
    return (
        f"mkdir -p {SETTINGS}; printf '{text}' > {SETTINGS}/other.conf; systemctl daemon-reload\n"
    )


BROKEN = {
    "a fabric has the CIDR in its /16": Node(
        f"hostrouting reset; hostrouting apply - <<< '{FIRST}'",
        (FIX,),
        first_aid=True,
    ),
    "a default route through the wrong device has a lower metric": Node(
        f"{OTHER_NETWORK}ip route add default via 10.225.0.1 dev eth1 metric 50", ("",)
    ),
    "such a default route comes to the node of an image": Node(
        f"{IMAGE}{OTHER_NETWORK}ip route add default via 10.225.0.1 dev eth1 metric 50",
        (APPLY,),
        way="via 10.225.0.1 dev eth1",
    ),
    "such a default route, and the route is lost": Node(
        f"{OTHER_NETWORK}{LOST}ip route add default via 10.225.0.1 dev eth1 metric 50",
        (APPLY,),
    ),
    "a default route of an image's node has its turns": Node(
        f"{IMAGE}{OTHER_NETWORK}{LOST}ip route append default via 10.225.0.1 dev eth1 metric 100",
        (" # ip route del default via 10.225.0.1 dev eth1 metric 100", APPLY),
    ),
    "a default route through the wrong device has its turns": Node(
        f"{OTHER_NETWORK}{LOST}ip route append default via 10.225.0.1 dev eth1 metric 100", (APPLY,)
    ),
    "of two cards in one network the wrong one comes first": Node(
        f"{SAME_NETWORK}ip route add default via 10.224.0.1 dev eth1 metric 50", ("",)
    ),
    "docker0 holds a part of the CIDR": Node(
        "ip link add docker0 type bridge; ip link set docker0 up\n"
        "ip address add 172.16.9.1/24 dev docker0",
        ("ip address del 172.16.9.1/24 dev docker0",),
        first_aid=True,
    ),
    "a rule leads to another table": Node(
        f"ip route add default dev ib0 table 100; ip rule add pref 1000 to {CIDR} lookup 100",
        ("ip rule del pref 1000",),
    ),
    "Tailscale has a route to the CIDR": Node(
        f"{_device('tailscale0')}ip route add {CIDR} dev tailscale0 table 52\n"
        "ip rule add pref 5210 fwmark 0x80000/0xff0000 lookup main\n"
        "ip rule add pref 5270 lookup 52",
        ("ip rule del pref 5270",),
        first_aid=True,
    ),
    "wg-quick has a route to the CIDR": Node(
        f"{_device('wg0')}ip route add {CIDR} dev wg0 table 51820\n"
        "ip rule add pref 32764 not fwmark 0xca6c lookup 51820",
        ("ip rule del pref 32764",),
    ),
    "a rule refuses the CIDR": Node(
        f"ip rule add pref 900 to {CIDR} unreachable", ("ip rule del pref 900",)
    ),
    "the rule of the table main is lost": Node(
        "ip rule del pref 32766", ("ip rule add pref 32766 lookup main",)
    ),
    "no IPv4 rule is left but that of the table local": Node(
        "ip rule flush", ("ip rule add pref 32766 lookup main",)
    ),
    "no IPv4 rule is left": Node(
        "ip rule flush; ip rule del pref 0",
        ("ip rule add pref 0 lookup local", "ip rule add pref 32766 lookup main"),
    ),
    "another program adds the same route before it": Node(
        f"ip route prepend {CIDR} via 10.224.0.1 dev eth0 proto static", (APPLY,)
    ),
    "another program leads the CIDR by the fabric": Node(
        f"ip route prepend {CIDR} dev ib0 proto static", (APPLY,)
    ),
    "the route has another metric": Node(
        f"{LOST}ip route add {CIDR} via 10.224.0.1 dev eth0 proto 142 metric 50", (APPLY,)
    ),
    "eth0 lost its address, and has it again": Node(
        "ip address del 10.224.0.4/24 dev eth0\n"
        f"ip address add 10.224.0.4/24 dev eth0; {DEFAULT_ROUTE}",
        (APPLY,),
    ),
    "eth0 was down for a moment": Node(
        f"ip link set eth0 down; ip link set eth0 up\n{DEFAULT_ROUTE}", (APPLY,)
    ),
    "another program leads a part of it by the fabric": Node(
        "ip route add 172.16.9.0/24 dev ib0 proto bird", (FIX,)
    ),
    "the lease is of another network": Node(
        f"ip address flush dev eth0; {OTHER_NETWORK.replace('eth1', 'eth0')}"
        "ip route add default via 10.225.0.1 dev eth0",
        (APPLY,),
        way="via 10.225.0.1 dev eth0",
    ),
    "the device is down": Node(
        "ip link set eth0 down",
        (f"ip link set eth0 up # {DEFAULT_ROUTE}", APPLY),
        first_aid=True,
    ),
    "the route is lost": Node(
        LOST,
        (APPLY,),
        first_aid=True,
    ),
    "the device of an image is down": Node(
        f"hostrouting reset; hostrouting apply --root / - <<< '{NETWORK}'; ip link set eth0 down",
        (f"ip link set eth0 up # {DEFAULT_ROUTE}", APPLY),
    ),
    "the default route is lost": Node(
        f"hostrouting apply - <<< '{WIDER}'; ip route del default",
        ("ip route add default via 10.224.0.1 dev eth0",),
    ),
    "its static device was down, and the config names the gateway": Node(
        f"hostrouting apply - <<< '{WITH_GATEWAY}'; ip link set eth0 down; ip link set eth0 up",
        ("ip route add default via 10.224.0.1 dev eth0", APPLY),
    ),
    "its static device was down, and nothing names the gateway": Node(
        "ip link set eth0 down; ip link set eth0 up"
    ),
    "two devices may be the one that has lost its address": Node(
        f"hostrouting apply - <<< '{NETWORK}'; ip address flush dev eth0; ip link set eth1 up",
    ),
    "the node of an image has no address": Node(
        f"hostrouting reset; ip address flush dev eth0\n"
        f"hostrouting apply --root / - <<< '{NETWORK}'",
    ),
    "the address is lost, and no program gives one": Node(
        "ip address flush dev eth0",
        (f" # ip address add 10.224.0.4/24 dev eth0; {DEFAULT_ROUTE}", APPLY),
    ),
    "the carrier is lost": Node("", beyond="link set wire down"),
    "the device is a port of a bridge": Node(
        "ip link add docker0 type bridge; ip link set docker0 up; ip link set eth0 master docker0",
        (" # ip link set eth0 nomaster", ""),
    ),
    "the config names a device that the node does not have": Node(
        f"hostrouting apply --force - <<< '{OTHER_NAME}'",
    ),
    "a folder is in the place of the lock": Node(
        f"{LOST}rm -f {LOCK}; mkdir {LOCK}", (f"mv {LOCK} {LOCK}.moved", APPLY)
    ),
    "the installed config was edited, and an apply would refuse it": Node(
        f"{LOST}sed -i s,{CIDR},172.16.8.1/22, {CONFIG_PATH}", (RESTORE,)
    ),
    "the gateway is silent": Node(
        "ip neigh flush dev eth0",
        beyond="address del 10.224.0.1/24 dev bridge",
    ),
    "/etc is read-only": Node(
        f"{LOST}mount -t tmpfs none /mnt; cp -a /etc/. /mnt; mount --move /mnt /etc\n"
        "mount -o remount,ro /etc",
        (REMOUNT, APPLY),
    ),
    "/run is full": Node(
        LOST + RUN_FULL, (" # rm /run/filling; mount -o remount,size=64m /run", APPLY)
    ),
    "others may change what the gates believe": Node(
        f"{LOST}chmod 777 {RUN}", (f"chown 0 {RUN} && chmod go-w {RUN}", APPLY)
    ),
    "a unit of hostrouting is masked": Node(
        "ln -sf /dev/null /etc/systemd/system/static-routes.service; systemctl daemon-reload",
        ("systemctl unmask static-routes.service", APPLY),
    ),
    "the scripts are lost": Node(
        f"systemctl stop {KUBE}; rm /etc/aks-flex-node/hostrouting-*/*.sh; systemctl start {KUBE}",
        (APPLY,),
    ),
    "the drop-in of a gate is deleted": Node(
        f"rm /etc/systemd/system/{KUBELET}.d/10-hostrouting.conf; systemctl daemon-reload", (APPLY,)
    ),
    "a foreign drop-in empties a gate": Node(
        _setting("[Service]\\nExecStartPre=\\n"),
    ),
    "a gate is masked": Node(
        f"systemctl stop {KUBE}; ln -s /dev/null /etc/systemd/system/{KUBE}; systemctl daemon-reload",
        (f"systemctl unmask {KUBE}", f"systemctl start {KUBE}"),
    ),
    "a gate is down": Node(f"systemctl stop {KUBELET}", (f"systemctl start {KUBELET}",)),
    "a gate has failed too often": Node(
        _setting("[Unit]\\nStartLimitBurst=1\\nStartLimitIntervalSec=1h\\n")
        + f"systemctl restart {KUBELET}; systemctl restart {KUBELET}",
        (f"systemctl reset-failed {KUBELET}", f"systemctl start {KUBELET}"),
        first_aid=True,
    ),
    "a gate fails by itself, again and again": Node(
        _setting("[Service]\\nExecStart=\\nExecStart=/bin/false\\n[Unit]\\nStartLimitBurst=9\\n")
        + f"systemctl restart {KUBELET}; until systemctl is-failed {KUBELET}; do sleep .1; done",
        (f" # rm -r {SETTINGS}; systemctl daemon-reload\n{START}",),
    ),
    "an agent has no gate": Node(
        "printf '[Service]\\nExecStart=/bin/sleep 9999\\n' > /etc/systemd/system/k3s-agent.service\n"
        "systemctl daemon-reload; systemctl start k3s-agent.service",
    ),
    "break-glass is set": Node(
        "touch /run/hostrouting.disabled", ("rm /run/hostrouting.disabled",)
    ),
    "the watch is stopped": Node(
        f"hostrouting apply - <<< '{WATCHED}'; systemctl stop hostrouting-watch.timer",
        (APPLY,),
        first_aid=True,
    ),
}
#: Of Calico.
_BLOCK = "ip route add blackhole 172.16.8.0/26 proto 80"


#: Bash that leaves the rest of an installation.
DEBRIS = {
    "the installed config is cut off": (
        f'text=$(head -c 50 {CONFIG_PATH}); echo -n "$text" > {CONFIG_PATH}'
    ),
    "the installed config is lost": f"rm {CONFIG_PATH}",
    "its generation is lost": "rm -r /etc/aks-flex-node/hostrouting-????????",
    "its folder is removed by hand": "rm -rf /etc/aks-flex-node",
    "its folder and its route are removed by hand": f"rm -r /etc/aks-flex-node; {LOST}",
}


class Restored:
    """One machine for all troubles of routing, which is made right again before each."""

    _RESTORE = f"""
umount /etc; rm -f /run/filling /run/hostrouting.disabled; rm -rf {LOCK}.moved; mount -o remount,size=64m /run
systemctl stop k3s-agent.service; rm /etc/systemd/system/k3s-agent.service
rm -r {SETTINGS}; systemctl unmask {KUBE} static-routes.service; systemctl daemon-reload
for dev in docker0 tailscale0 wg0 cali1; do ip link del $dev; done
for dev in eth0 eth1 ib0; do ip address flush dev $dev; ip link set $dev down; done
for table in main 52 100 51820; do ip route flush table $table; done
ip rule flush
ip rule add pref 32766 lookup main; ip rule add pref 32767 lookup default
{ADDRESSES}
echo '{json.dumps(CONFIG)}' > {OWN}
hostrouting apply {OWN}
systemctl reset-failed {KUBE} {KUBELET}; systemctl start {KUBE} {KUBELET}
hostrouting status
"""

    def __init__(self, machine: RoutedMachine) -> None:
        self._machine = machine

    def machine(self) -> RoutedMachine:
        """Return the machine, which is right."""
        for words in "link set wire up", "address replace 10.224.0.1/24 dev bridge":
            self._machine.router.ip(words)
        output = self._machine.shell(self._RESTORE)
        assert "\nright: " in f"\n{output}", output
        return self._machine


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    """Boot the machine."""
    require_program()
    with RoutedMachine(tmp_path_factory.mktemp("machine")) as machine:
        yield Restored(machine)


@pytest.mark.parametrize("name", BROKEN)
def test_the_offered_commands_mend_it(restored: Restored, name: str) -> None:
    """A broken node is right after the offered commands, two at most, and a packet is answered;
    where a person must act, none is offered, and the step says so.
    """
    machine = restored.machine()
    broken = BROKEN[name]
    machine.shell(broken.commands)
    if broken.beyond:
        machine.router.ip(broken.beyond)
    assert_first_line(name, machine.status()["verdict"])
    for step in broken.steps:
        offered, _, own = step.partition(" # ")
        status = machine.status()
        assert status["next"] == (offered or None), status
        if offered in (runs := {APPLY, FIX}):
            assert runs & {each.get("command") for each in status["findings"]} <= {offered}, status
        machine.shell(offered)
        machine.shell(own)
    if broken.steps:
        machine.until(
            f"systemctl is-active --quiet {KUBE} && systemctl is-active --quiet {KUBELET}"
        )
        assert_right(machine, way=broken.way)
    else:
        status = machine.status()
        assert status["next"] is None, status
        # A person has to act, if the node is wrong.
        assert status["state"] == "right" or status["step"]["type"] == "owner", status


def test_an_apply_mends_a_node_whose_default_route_has_two_next_hops(restored: Restored) -> None:
    """An apply on a node whose default route got two next hops restores the route by the device
    found, and a warning advises to name the right exits.
    """
    machine = restored.machine()
    hops = "nexthop via 10.224.0.1 dev eth0 nexthop via 10.225.0.1 dev eth1"
    machine.shell(f"{OTHER_NETWORK}{LOST}ip route replace default metric 100 {hops}")
    assert machine.status()["next"] == APPLY
    machine.shell(APPLY)
    assert (machine.way(), machine.answer()) == ("via 10.224.0.1 dev eth0", "Connection refused")
    status = machine.status()
    assert (status["state"], status["next"]) == ("right", None), status
    [found] = [each for each in status["findings"] if each["severity"] == "warning"]
    assert (found["kind"], found["reason"]) == (
        "several-exits",
        f"{ALIKE}name the right ones in expectedDevs",
    )


@pytest.mark.parametrize(
    ("commands", "state", "program"),
    [
        ("ip route add blackhole 172.16.8.0/26 proto bird", "wrong", "bird"),
        (_BLOCK, "wrong", "Calico"),
        (f"{_device('cali1')}{_BLOCK}", "wrong", "Calico"),
        (f"{_device('cali1')}{_BLOCK}; ip route add 172.16.8.7 dev cali1", "right", None),
    ],
)
def test_a_blackhole_stays(
    restored: Restored, commands: str, state: str, program: str | None
) -> None:
    """A blackhole in an expected CIDR is wrong and has its owner in the finding, unless it is
    Calico's own block with a pod; the offered steps keep it.
    """
    machine = restored.machine()
    machine.shell(f"hostrouting reset; hostrouting apply - <<< '{FIRST}'; hostrouting apply {OWN}")
    machine.shell(commands)
    status = machine.status()
    assert status["state"] == state
    assert status["next"] is None, status
    owners = [found["program"] for found in status["findings"] if found["kind"] == "blocked"]
    assert owners == [program] * bool(program)
    assert "blackhole 172.16.8.0/26" in machine.shell("ip route get 172.16.8.1; ip route")


def test_an_own_address_in_the_cidr(restored: Restored) -> None:
    """The offered fix fixes all of a CIDR but the node's own address on the fabric; the check is
    the only step afterwards.
    """
    machine = restored.machine()
    machine.shell(
        f"hostrouting reset; ip address add 172.16.9.4/16 dev ib0; hostrouting apply - <<< '{FIRST}'"
    )
    assert machine.status()["next"] == FIX
    machine.shell(FIX)
    assert machine.way() == "via 10.224.0.1 dev eth0"
    status = machine.status()
    assert (status["state"], status["next"]) == ("wrong", None), status
    assert status["verdict"].startswith(
        f"wrong: {CIDR} is right, all but 172.16.9.4, the node's own address on ib0"
    )
    [found] = [found for found in status["findings"] if found["kind"] == "local"]
    assert found["own"] == ["172.16.9.4"]


@pytest.mark.parametrize("name", DEBRIS)
def test_an_apply_mends_what_is_left(restored: Restored, name: str) -> None:
    """One apply makes a node right whose installed config was cut off, lost, or removed by hand."""
    machine = restored.machine()
    machine.shell(DEBRIS[name])
    status = machine.status()
    # A config that people have damaged is not in force.
    assert_first_line(name, status.get("error", status.get("verdict")))
    machine.shell(f"hostrouting apply {OWN}")
    assert_right(machine)


#: The CIDR and its route are taken out of the installed config.
_EDITED = json.dumps(
    {"hostRouting": {"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"], "mode": "STRICT"}}}
)


@pytest.mark.parametrize(
    "edit",
    [
        f"echo '{_EDITED}' > {CONFIG_PATH}",
        f"echo '{_EDITED}' > /root/new && mv /root/new {CONFIG_PATH}",
    ],
    ids=["through its link", "in place of its link"],
)
def test_an_installed_config_that_was_edited(restored: Restored, edit: str) -> None:
    """No apply is offered of an installed config that was edited by hand and would be refused: the
    one that was applied stays in force, and the packet leaves as before.
    """
    machine = restored.machine()
    machine.shell(edit)
    assert machine.status()["edited"] is True
    assert "edited since its apply, which is still in force" in machine.shell("hostrouting status")
    step = machine.status()["step"]
    assert (step["type"], step["command"]) == ("owner", None), step
    assert "its apply would fail" in step["owner"]
    machine.shell(f"hostrouting apply {CONFIG_PATH}")
    assert (machine.way(), machine.answer()) == ("via 10.224.0.1 dev eth0", "Connection refused")
    machine.shell(f"hostrouting apply {OWN}")
    assert_right(machine)
    assert machine.status()["edited"] is False


def test_a_reset_removes_what_another_one_could_not(restored: Restored) -> None:
    """A route that came back after a reset is reported, and another reset removes the route."""
    machine = restored.machine()
    machine.shell(f"hostrouting reset; ip route add {CIDR} via 10.224.0.1 dev eth0 proto 142")
    assert machine.status()["verdict"] == (UNTIL_THE_BOOT)
    machine.shell("hostrouting reset")
    assert machine.status()["error"] == WITHOUT_CONFIG
    assert machine.run("ip", "route", "show", "proto", "142").stdout == ""


def test_an_apply_replaces_the_files_of_upstream(restored: Restored) -> None:
    """An apply over the files and the route of upstream makes the node right, and the gateway
    answers.
    """
    machine = restored.machine()
    machine.shell(f"hostrouting reset; ip route add {CIDR} via 10.224.0.1 dev eth0")
    install_upstream(machine.files)
    machine.shell(
        f"systemctl daemon-reload; systemctl start static-routes.service\nhostrouting apply {OWN}"
    )
    assert_right(machine)


def test_the_page_of_first_aid() -> None:
    """The first-aid page has the first lines and the commands of these broken nodes, and of one
    that networkd manages.
    """
    page = (ROOT / "docs/operators.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [^|`]* \| `(.*)` \| `(.*)` \|$", page.partition("\n\n## Quick")[0], re.MULTILINE
    )
    lines = {name: line.partition("; ")[0] for name, line in golden_lines(FIRST_LINES).items()}
    shown = {
        (lines[name], node.steps[0].partition(" # ")[0])
        for name, node in BROKEN.items()
        if node.first_aid
    }
    shown |= {(lines[name], steps[0]) for name, (_, steps) in LEASED.items()}
    held = f"{lines['a fabric has the CIDR in its /16']}; {KUBELET} is held"
    shown.add((held, BROKEN["break-glass is set"].commands))
    assert {(printed, command.replace("\\|", "|")) for printed, command in rows} == shown
    assert len(rows) == 10


def test_none_needs_a_third_command() -> None:
    """Every broken node of the table needs two commands at most."""
    assert {len(broken.steps) for broken in BROKEN.values()} <= {0, 1, 2}
