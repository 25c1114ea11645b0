"""The real units of the two capabilities at boot: an H200 node in small, with eth0, and an ib0 that
shadows a /22.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.gated_machine import (
    EARLY,
    GATES,
    KUBE,
    KUBELET,
    GatedMachine,
    applied,
    more_machines,
)
from support.hurried import hurried
from support.overlap_answers import verdict_of
from support.printed import NO_DEVICE, NO_DEVICE_OF, SEE_DHCP, WAITING, leaves, next_step
from support.systemd_box import PROGRAM, PYTHON, copy_program, require_program

from hostrouting import Configure, HostRoutingConfig
from hostrouting.base.commands import SHOW_HISTORY
from hostrouting.boot.installed_config import NOT_INSTALLED
from hostrouting.boot.layout import CONFIG_PATH

LINKS = """
ip link add eth0 type veth peer name wire && ip link set wire up
ip link set eth0 up && ip address add 10.224.0.4/24 dev eth0
ip link add ib0 type veth peer name fabric && ip link set fabric up
ip link set ib0 up && ip address add 172.16.1.4/16 dev ib0
"""
DEFAULT_ROUTE = "ip route add default via 10.224.0.1 dev eth0\n"
DETECTED = "/run/hostrouting/route-overlap.detected"
OK = "/run/hostrouting/route-overlap.ok"
WAITED = "/run/hostrouting/waits-until"
RETRY = "hostrouting-retry.service"
CIDR = "172.16.8.0/22"
ROUTE: Mapping[str, Any] = {"enabled": True, "routes": [{"destination": CIDR}]}


def overlap(mode: str) -> Mapping[str, object]:
    return {"expectedCidrs": [CIDR], "mode": mode}


def markers(machine: GatedMachine) -> dict[str, str]:
    texts = {path: machine.files.read(path) for path in (DETECTED, OK)}
    return {
        path: verdict_of(path, text.decode()) for path, text in texts.items() if text is not None
    }


def test_strict_holds_and_heals(tmp_path: Path) -> None:
    """Under STRICT no machine starts while the fabric's /16 takes the cluster's addresses, until
    the missing route is added.

    A machine with its own network checks in that of the node.
    """
    arrange = applied(routeOverlap=overlap("STRICT"))
    prepare = LINKS + DEFAULT_ROUTE + more_machines(private="[Service]\nPrivateNetwork=yes")
    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=prepare) as machine:
        assert machine.payloads() == []
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 1
        assert list(markers(machine)) == [DETECTED]
        output = "\n".join(machine.journal("--unit=check-route-overlap.service"))
        assert "ib0" in output
        assert "1 of 1 expected CIDRs do not leave entirely through eth0:" in output
        machine.run("ip", "route", "add", CIDR, "via", "10.224.0.1", "dev", "eth0")
        for unit in (
            KUBE,
            KUBELET,
            "systemd-nspawn@late.service",
            "systemd-nspawn@private.service",
        ):
            machine.wait_until_up(unit)
        assert list(markers(machine)) == [OK]


def test_static_routes_make_strict_pass(tmp_path: Path) -> None:
    """A boot installs the static routes, then checks routing, then starts the machines; the fabric
    still routes to its peers.
    """
    arrange = applied(staticRoutes=ROUTE, routeOverlap=overlap("STRICT"))
    with GatedMachine(
        tmp_path, units=(), arrange=arrange, prepare=LINKS + DEFAULT_ROUTE
    ) as machine:
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        assert list(markers(machine)) == [OK]
        routes = machine.run("ip", "route", "show", "proto", "142").stdout.split("\n")
        assert [route.strip() for route in routes] == ["172.16.8.0/22 via 10.224.0.1 dev eth0", ""]
        assert "dev ib0" in machine.run("ip", "route", "get", "172.16.1.9").stdout


FACT = "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 "


def test_the_cause_is_in_the_first_commands_that_an_operator_types(tmp_path: Path) -> None:
    """`systemctl status` of the machine and of the check contains the cause, and a refusal logs at
    most 15 lines in all.

    If one trouble replaces another while a machine waits, the status of the check has the new one,
    and the journal of recovery has it in full.
    """
    arrange = applied(routeOverlap=overlap("STRICT"))
    other = """
ip link add ib1 type veth peer name other && ip link set other up
ip link set ib1 up && ip address add 172.16.10.4/24 dev ib1
"""
    with GatedMachine(
        tmp_path, units=(), arrange=arrange, prepare=LINKS + DEFAULT_ROUTE
    ) as machine:
        machine.run("systemctl", "stop", KUBELET)
        refused = f"hostrouting: {KUBE} is refused: as before, since "
        [line] = [line for line in status(machine, KUBE) if refused in line]
        assert FACT in line
        assert [line for line in status(machine, "check-route-overlap") if FACT in line]
        own_lines = machine.journal(
            "--unit=check-route-overlap", "--unit=hostrouting-ready", "--unit=static-routes"
        )
        assert len([*own_lines, *machine.journal(f"--unit={KUBE}")]) <= 15
        machine.run("bash", "-c", f"{other}ip route add {CIDR} via 10.224.0.1 dev eth0\n")
        first = "1 of 1 expected CIDRs do not leave entirely through eth0:"
        machine.wait_for(f"hostrouting: units are held: {first}", unit=RETRY)
        assert "through ib1" in "\n".join(machine.journal(f"--unit={RETRY}"))
        machine.run("systemctl", "start", "--wait", "check-route-overlap", check=False)
        assert [
            line
            for line in status(machine, "check-route-overlap")
            if "as before, since " in line and "through ib1" in line
        ]
        assert machine.payloads() == []


def status(machine: GatedMachine, unit: str) -> list[str]:
    return machine.run(
        "systemctl", "status", "--full", "--no-pager", unit, check=False
    ).stdout.splitlines()


def test_apply_and_reset_log_what_is_held_and_what_starts(tmp_path: Path) -> None:
    """An apply that fixes nothing leaves the units held, a reset starts them, and the journal has a
    line for each.
    """
    require_program()
    arrange = applied(routeOverlap=overlap("STRICT"))
    with GatedMachine(
        tmp_path, units=(), arrange=arrange, prepare=LINKS + DEFAULT_ROUTE
    ) as machine:
        copy_program(Path(machine.root))
        command = "env", f"PYTHONPATH={PROGRAM}", str(PYTHON), "-m", "hostrouting"
        checksum = machine.run("sha256sum", CONFIG_PATH).stdout[:12]
        refusal = machine.run(
            "env", "SUDO_UID=1000", *command, "apply", "--json", CONFIG_PATH, check=False
        )
        assert (refusal.returncode, json.loads(refusal.stdout)["held"]) == (1, [KUBELET, KUBE]), (
            refusal.stderr
        )
        assert f": {KUBELET}, {KUBE}" in refusal.stderr
        result = machine.run(*command, "status", check=False)
        first, *_, last = result.stdout.splitlines()
        assert result.returncode == 1
        assert first.startswith(f"wrong: {leaves(CIDR, 'ib0')}")
        assert last == next_step("hostrouting check --fix | hostrouting apply -")
        assert f"{KUBE}: is held " in result.stdout
        reset = machine.run(*command, "reset", "--json")
        assert json.loads(reset.stdout)["released"] == [KUBELET, KUBE]
        for unit in KUBE, KUBELET:
            machine.wait_until_up(unit)
        machine.journal()
        shown = machine.run(*SHOW_HISTORY.split(), "--output=json").stdout.splitlines()
        names = "COMMAND", "UID", "SUDO_UID", "BEFORE", "AFTER", "VERDICT"
        refused = f"configure/check-route-overlap: 1 of 1 expected CIDRs do not leave entirely through eth0: {CIDR}"
        assert [[json.loads(line)[f"HOSTROUTING_{name}"] for name in names] for line in shown] == [
            ["apply", "0", "1000", checksum, checksum, refused],
            ["reset", "0", "", checksum, "", NOT_INSTALLED],
        ]


def test_apply_ends_the_wait_for_a_removed_route(tmp_path: Path) -> None:
    """An apply that corrects a route for whose absent device a boot waits starts the machines
    before the 30 s are over.
    """
    typo = {
        "enabled": True,
        "routes": [{"destination": CIDR, "gateway": "10.224.0.1", "dev": "eth7"}],
    }
    arrange = applied(staticRoutes=typo, routeOverlap=overlap("WARN"))
    with GatedMachine(
        tmp_path, units=(), arrange=arrange, prepare=LINKS + DEFAULT_ROUTE + EARLY
    ) as machine:
        output = f"{WAITING}{CIDR} via 10.224.0.1 dev eth7: {NO_DEVICE}"
        machine.wait_for(output, unit="static-routes.service")
        since = time.monotonic()
        applied(staticRoutes=ROUTE, routeOverlap=overlap("WARN"))(machine.host)
        machine.wait_until_up()
        machine.wait_until_up(KUBELET)
        assert time.monotonic() - since < 25


def logged_waits(machine: GatedMachine) -> list[str]:
    units = "--unit=static-routes.service", "--unit=check-route-overlap.service"
    return [line for line in machine.journal(*units) if line.startswith("waiting")]


def test_no_default_route_holds_and_heals(tmp_path: Path) -> None:
    """A boot without a default route waits 30 s once, for both units, and holds the gates; later
    starts do not wait, and the default route starts the gates.
    """
    # The boot is not over before routing is right; this looks earlier.
    arrange = applied(staticRoutes=ROUTE, routeOverlap=overlap("STRICT"))
    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=LINKS + EARLY) as machine:
        machine.wait_for_failure("check-route-overlap.service")
        assert machine.payloads() == []
        assert "no IPv4 default route" in "\n".join(machine.journal("--unit=static-routes.service"))
        assert machine.systemctl("start", "hostrouting-ready.service") == 1
        assert logged_waits(machine) == [
            (f"{WAITING}{CIDR}: table main has no IPv4 default route; {SEE_DHCP}")
        ]
        # The seconds of the program count, too.
        assert int(machine.files.read(WAITED) or 0) >= 30
        machine.run(*DEFAULT_ROUTE.split())
        machine.wait_until_up()
        machine.wait_until_up(KUBELET)
        assert list(markers(machine)) == [OK]


def test_a_rename_heals(tmp_path: Path) -> None:
    """A held node with a network in `expectedDevs` starts once the device has its lease, under any
    name; a default route through the fabric is not enough.
    """
    section = {**overlap("STRICT"), "expectedDevs": ["10.224.0.0/16"]}
    astray = f"ip route add {CIDR} dev ib0\nip route add default via 172.16.0.1 dev ib0 metric 9\n"
    with hurried():
        arrange = applied(routeOverlap=section)
        prepare = LINKS + astray + EARLY
        with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=prepare) as machine:
            machine.wait_for_failure("check-route-overlap.service")
            assert machine.payloads() == []
            missing = f"there is no network device {NO_DEVICE_OF}"
            assert logged_waits(machine) == [f"waiting up to 1 s: {missing}"]
            machine.run("ip", "link", "set", "eth0", "down")
            machine.run("ip", "link", "set", "eth0", "name", "enP5")
            machine.run("ip", "link", "set", "enP5", "up")
            machine.run(*f"ip route replace {CIDR} via 10.224.0.1 dev enP5".split())
            machine.run(*DEFAULT_ROUTE.replace("eth0", "enP5").split())
            machine.wait_until_up()
            machine.wait_until_up(KUBELET)
            assert markers(machine) == {OK: leaves(CIDR, "enP5\n")}


def test_warn_waits_once(tmp_path: Path) -> None:
    """Under WARN a boot waits once, and later starts do not: a kubelet that restarts is up at
    once.
    """
    with hurried():
        arrange = applied(routeOverlap=overlap("WARN"))
        with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=LINKS) as machine:
            assert sorted(machine.payloads()) == ["kube1", "kubelet"]
            assert machine.systemctl("restart", KUBELET) == 0
            assert len(logged_waits(machine)) == 1
            assert list(markers(machine)) == [DETECTED]


def test_apply_change_and_reset_while_machines_run(tmp_path: Path) -> None:
    """Running processes survive an apply, a change and a reset, and the reset removes every trace
    of hostrouting except for the empty folder of upstream's markers.
    """
    with GatedMachine(tmp_path, units=(), prepare=LINKS + DEFAULT_ROUTE) as machine:
        pids, before = machine.pids(), everything(machine)
        assert all(pids)
        other = {
            "enabled": True,
            "routes": [*ROUTE["routes"], {"destination": "172.16.12.0/24", "metric": 7}],
        }
        for routes in ROUTE, other:
            applied(staticRoutes=routes, routeOverlap=overlap("STRICT"))(machine.host)
            # The scripts that are there now pass, too.
            assert machine.systemctl("start", "hostrouting-ready.service") == 0
        assert list(markers(machine)) == [OK]
        reset(machine)
        assert everything(machine) == before
        applied(routeOverlap=overlap("WARN"))(machine.host)
        reset(machine)
        assert everything(machine) == before
        assert machine.pids() == pids


def reset(machine: GatedMachine) -> None:
    config = HostRoutingConfig.from_json(json.dumps({"hostRouting": {"gates": list(GATES)}}))
    Configure(config, host=machine.host).undo(machine.ctx)


def everything(machine: GatedMachine) -> list[str]:
    """Files, links and folders that we could have made, routes, and units that systemd has in
    memory.
    """
    found = machine.run(
        "find", "/etc/systemd", "/etc/aks-flex-node", "/run", "-maxdepth", "4", check=False
    ).stdout
    begins = "/etc", "/run/aks-flex-node/", "/run/hostrouting"
    places = [path for path in found.splitlines() if path.startswith(begins)]
    routes = machine.run("ip", "-4", "route", "show", "table", "all").stdout.splitlines()
    units = machine.run(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "*rout*"
    ).stdout.splitlines()
    return sorted(places) + routes + units
