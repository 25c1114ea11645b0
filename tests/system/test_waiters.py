"""Units that require a gate, on real systemd: a refusal leaves them down, and they start after it."""

from pathlib import Path
from time import monotonic

import pytest
from support.boot_units import departure_of
from support.gated_machine import EARLY, KUBE, KUBELET, STAND_INS, GatedMachine

from hostrouting.boot import UNIT_DIRECTORY, Boot, held_gates

RETRY = "hostrouting-retry.service"
_SERVICE = "[Service]\nExecStart=/bin/sleep infinity\n"
_WANTED = "[Install]\nWantedBy=multi-user.target\n"


def requiring(unit: str, word: str = "Requires", service: str = _SERVICE) -> str:
    """Return a unit that requires another one in one of systemd's ways."""
    return f"[Unit]\n{word}={unit}\nAfter={unit}\nAllowIsolate=yes\n{service}{_WANTED}"


#: Every way in which a unit requires a gate.
UNITS = {
    "requires.service": requiring(KUBE),
    "binds.service": requiring(KUBE, "BindsTo"),
    "requisite.service": requiring(KUBE, "Requisite"),
    "part.service": requiring(KUBE, "PartOf"),
    "needs.target": requiring(KUBE, service=""),
    "behind.service": requiring("needs.target"),
    "chain-1.service": requiring(KUBE),
    r"chain\x2d2.service": requiring("chain-1.service"),
    "chain-3.service": requiring(r"chain\x2d2.service", "BindsTo"),
    # Its gate starts again by itself.
    "helper.service": requiring(KUBELET),
}
#: An operator stops it while its gate is held.
STOPPED = {"stopped.service": requiring(KUBE)}


def written(units: dict[str, str]) -> str:
    """Return bash that writes and enables units."""
    commands = [f"cat > '{UNIT_DIRECTORY}/{name}' <<'END'\n{text}END\n" for name, text in units.items()]
    names = " ".join(f"'{name}'" for name in units)
    return "".join([*commands, f"systemctl enable --quiet {names}\n"])


def quoted(units: dict[str, str]) -> str:
    return " ".join(f"'{name}'" for name in units)


def wait_until_all(machine: GatedMachine, units: dict[str, str], state: str) -> None:
    machine.until(f"[[ $(systemctl is-active {quoted(units)} | sort -u) == {state} ]]")


def waiting(machine: GatedMachine) -> set[str]:
    """The units that are marked as waiting."""
    states = machine.services.loaded(machine.ctx, "hostrouting-waits@.service")
    names = (state.name for state in states if state.is_running)
    return {name.removeprefix("hostrouting-waits@").removesuffix(".service") for name in names}


def began(machine: GatedMachine, unit: str) -> float:
    """When a unit was started last, by the kernel's clock."""
    name = "InactiveExitTimestampMonotonic"
    return int(machine.services.settings(machine.ctx, unit, name)[name]) / 1e6


#: What leaves the units of a node down that was right.
VERBS = {
    "start": f"systemctl stop {KUBE} {KUBELET}; systemctl start --no-block {quoted(UNITS | STOPPED)}",
    "restart": f"systemctl restart --no-block {KUBE} {KUBELET}",
    "try-restart": f"systemctl try-restart --no-block {KUBE} {KUBELET}",
    "isolate": f"systemctl stop {KUBE} {KUBELET}; systemctl isolate --no-block multi-user.target",
}


@pytest.mark.parametrize("verb", ["boot", *VERBS])
def test_whoever_waited_is_started(tmp_path: Path, verb: str) -> None:
    """All units that required the gate are up within 15 s after routing is right, but for one that
    was stopped meanwhile; no mark remains.
    """
    prepare = EARLY * (verb == "boot") + written(UNITS | STOPPED)
    with GatedMachine(tmp_path, prepare=prepare, overlap=verb == "boot") as machine:
        cursor = None
        if verb != "boot":
            wait_until_all(machine, UNITS | STOPPED, "active")
            machine.break_routing()
            cursor = machine.cursor()
            machine.run("bash", "-c", VERBS[verb])
        machine.wait_for(f"{KUBE}: Failed with result 'exit-code'.", unit=KUBE, after=cursor)
        down = {name: text for name, text in UNITS.items() if name != "part.service"}
        wait_until_all(machine, down | STOPPED, "inactive")
        assert waiting(machine) >= {*down, *STOPPED}
        machine.run("systemctl", "stop", *STOPPED)
        assert waiting(machine).isdisjoint(STOPPED)
        since = monotonic()
        machine.mend_routing()
        wait_until_all(machine, UNITS, "active")
        took = {unit: round(began(machine, unit) - since, 1) for unit in UNITS}
        took[KUBE] = round(began(machine, KUBE) - since, 1)
        print(since, "\n".join(machine.run("journalctl","-b","--no-pager","-o","short-monotonic","-u",KUBE,"-u",KUBELET,"-u",RETRY).stdout.splitlines()[-60:]))
        assert max(took.values()) < 15, took
        machine.wait_for_retry()
        assert (waiting(machine), held_gates(machine.ctx, machine.services)) == (set(), [])
        assert machine.state("stopped.service").active_state == "inactive"
